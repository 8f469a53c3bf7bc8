// Command peak generates the loops that find the highest rate of fused
// multiply-adds a processor reaches.
package main

import (
	"fmt"
	"log"
	"math"

	"github.com/mmcloughlin/avo/attr"
	"github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"

	"github.com/seed-091431b3/attention/asm/internal/output"
)

// An isa is a vector instruction set and the registers of its loop. The
// accumulators are independent chains: 8 would hide a latency of 4 cycles at 2
// multiply-adds a cycle, more leave room for a late start.
type isa struct {
	name  string         // ends the function's name
	lanes int            // float32 in a register
	acc   []reg.Register // accumulators
	x, y  reg.Register   // factors
}

var (
	avx2 = isa{"AVX2", 8, []reg.Register{
		reg.Y0, reg.Y1, reg.Y2, reg.Y3, reg.Y4, reg.Y5,
		reg.Y6, reg.Y7, reg.Y8, reg.Y9, reg.Y10, reg.Y11,
	}, reg.Y14, reg.Y15}
	avx512 = isa{"AVX512", 16, []reg.Register{
		reg.Z0, reg.Z1, reg.Z2, reg.Z3, reg.Z4, reg.Z5, reg.Z6, reg.Z7,
		reg.Z8, reg.Z9, reg.Z10, reg.Z11, reg.Z12, reg.Z13, reg.Z14, reg.Z15,
		reg.Z16, reg.Z17, reg.Z18, reg.Z19, reg.Z20, reg.Z21, reg.Z22, reg.Z23,
	}, reg.Z30, reg.Z31}
)

// Every accumulator starts at 1 and gains x·y = 0.00046 in each iteration,
// until that is less than half its ulp, at 8192: it is a normal number after
// any number of iterations. The factors have full mantissas, as real ones do.
// The loop of plain Go in internal/peak uses the same numbers.
const (
	start = 1
	x     = 0.0217
	y     = 0.0211
)

func main() {
	c := build.NewContext()
	c.ConstraintExpr("amd64,!purego,!noasm")
	loop(c, avx2)
	loop(c, avx512)
	stream(c)
	if err := output.Generate(c, "../internal/peak/peak_amd64.s", "../internal/peak/stubs_amd64.go", "peak", "go -C asm run ./peak"); err != nil {
		log.Fatal(err)
	}
}

// loop declares func fmaPeak<ISA>(iters int) (sum float32).
func loop(c *build.Context, v isa) {
	name := "fmaPeak" + v.name
	c.Function(name)
	c.Attributes(attr.NOSPLIT)
	c.SignatureExpr("func(iters int) (sum float32)")
	c.Doc(
		fmt.Sprintf("%s does iters iterations of %d independent multiply-adds of %d lanes,", name, len(v.acc), v.lanes),
		fmt.Sprintf("%d flops an iteration. sum is that of the first lanes.", 2*len(v.acc)*v.lanes),
	)
	c.Pragma("noescape")
	n := c.Load(c.Param("iters"), reg.RCX)
	broadcast(c, x, v.x)
	broadcast(c, y, v.y)
	broadcast(c, start, v.acc...)
	c.TESTQ(n, n)
	c.JLE(operand.LabelRef("done"))

	c.Label("loop")
	for _, a := range v.acc {
		c.VFMADD231PS(v.x, v.y, a)
	}
	c.DECQ(n)
	c.JNZ(operand.LabelRef("loop"))

	c.Label("done")
	for _, a := range v.acc[1:] {
		c.VADDPS(a, v.acc[0], v.acc[0])
	}
	c.VMOVSS(reg.X0, operand.NewParamAddr("sum", 8))
	c.VZEROUPPER()
	c.RET()
}

// stream declares func streamAVX(data *byte, lines, ahead int) (sum float32).
func stream(c *build.Context) {
	const unroll = 4
	c.Function("streamAVX")
	c.Attributes(attr.NOSPLIT)
	c.SignatureExpr("func(data *byte, lines, ahead int) (sum float32)")
	c.Doc(
		fmt.Sprintf("streamAVX reads lines of 64 bytes, a multiple of %d, fetching those that lie ahead bytes", unroll),
		"further on. sum depends on all of them.",
	)
	c.Pragma("noescape")
	p, n, ahead := c.Load(c.Param("data"), reg.RDI), c.Load(c.Param("lines"), reg.RCX), c.Load(c.Param("ahead"), reg.RSI)
	acc := avx2.acc[:2*unroll]
	for _, a := range acc {
		c.VXORPS(a, a, a)
	}
	c.SHRQ(operand.U8(2), n)
	c.JZ(operand.LabelRef("done"))

	c.Label("loop")
	for i := range unroll {
		c.PREFETCHT0(operand.Mem{Base: p, Index: ahead, Scale: 1, Disp: 64 * i})
		for j := range 2 {
			a := acc[2*i+j]
			c.VXORPS(operand.Mem{Base: p, Disp: 64*i + 32*j}, a, a)
		}
	}
	c.ADDQ(operand.U32(64*unroll), p)
	c.DECQ(n)
	c.JNZ(operand.LabelRef("loop"))

	c.Label("done")
	for _, a := range acc[1:] {
		c.VXORPS(a, acc[0], acc[0])
	}
	c.VMOVSS(reg.X0, operand.NewParamAddr("sum", 24))
	c.VZEROUPPER()
	c.RET()
}

// broadcast sets all lanes of each dst to value, by way of AX and X0.
func broadcast(c *build.Context, value float32, dst ...reg.Register) {
	c.MOVL(operand.U32(math.Float32bits(value)), reg.EAX)
	c.VMOVD(reg.EAX, reg.X0)
	for _, d := range dst {
		c.VBROADCASTSS(reg.X0, d)
	}
}
