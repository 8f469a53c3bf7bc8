package main

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/mmcloughlin/avo/attr"
	"github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/ir"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// isa is what differs between the two tables.
type isa struct {
	name   string
	lanes  int // float32 in a vector
	panel  int // rows of the register tile
	strips []int
	vecs   []reg.VecPhysical
	wide   bool // AVX-512
}

// The register tile is panel rows of nv vectors. AVX2 has 16 registers: 4x24
// takes 12 accumulators, 3 vectors of q or p, and one broadcast. On AVX-512
// 8x32, 16 accumulators, already covers the 4 cycles of a multiply-add on two
// ports; 8x48 serves what a strip of 32 leaves over.
var (
	avx2 = isa{name: "AVX2", lanes: 8, panel: 4, strips: []int{3, 2, 1}, vecs: []reg.VecPhysical{
		reg.Y0, reg.Y1, reg.Y2, reg.Y3, reg.Y4, reg.Y5, reg.Y6, reg.Y7,
		reg.Y8, reg.Y9, reg.Y10, reg.Y11, reg.Y12, reg.Y13, reg.Y14, reg.Y15,
	}}
	avx512 = isa{name: "AVX512", lanes: 16, panel: 8, strips: []int{3, 2, 1}, wide: true, vecs: []reg.VecPhysical{
		reg.Z0, reg.Z1, reg.Z2, reg.Z3, reg.Z4, reg.Z5, reg.Z6, reg.Z7,
		reg.Z8, reg.Z9, reg.Z10, reg.Z11, reg.Z12, reg.Z13, reg.Z14, reg.Z15,
		reg.Z16, reg.Z17, reg.Z18, reg.Z19, reg.Z20, reg.Z21, reg.Z22, reg.Z23,
		reg.Z24, reg.Z25, reg.Z26, reg.Z27, reg.Z28, reg.Z29, reg.Z30, reg.Z31,
	}}
)

func (i isa) bytes() int { return 4 * i.lanes }

// gen emits functions for one isa.
type gen struct {
	*build.Context
	isa
	data   *constants
	labels int
	used   int
}

// function starts an assembly function; a signature without results needs no
// parentheses.
func (g *gen) function(name, signature, doc string) {
	g.Function(name)
	if !strings.HasPrefix(signature, "(") {
		signature = "(" + signature + ")"
	}
	g.SignatureExpr("func" + signature)
	g.Pragma("noescape")
	g.Doc(name + " " + doc)
	g.labels, g.used = 0, 0
}

// end returns from the function.
func (g *gen) end() {
	g.VZEROUPPER()
	g.RET()
}

// arg loads a parameter into a general register.
func (g *gen) arg(name string) reg.GPVirtual {
	return g.Load(g.Param(name), g.GP64()).(reg.GPVirtual)
}

// vec hands out the next vector register; a function takes each once.
func (g *gen) vec() reg.VecPhysical {
	g.used++
	return g.vecs[g.used-1]
}

// vecN hands out n vector registers.
func (g *gen) vecN(n int) []reg.VecPhysical {
	v := make([]reg.VecPhysical, n)
	for i := range v {
		v[i] = g.vec()
	}
	return v
}

// broadcastArg hands out a register with a float32 parameter in every lane.
func (g *gen) broadcastArg(name string) reg.VecPhysical {
	v := g.vec()
	g.VBROADCASTSS(g.paramMem(name), v)
	return v
}

func (g *gen) paramMem(name string) operand.Mem {
	addr, err := g.Param(name).Resolve()
	if err != nil {
		panic(err)
	}
	return addr.Addr
}

// broadcast hands out a register with a constant in every lane.
func (g *gen) broadcast(x float32) reg.VecPhysical { return g.broadcastBits(math.Float32bits(x)) }

func (g *gen) broadcastBits(x uint32) reg.VecPhysical {
	v := g.vec()
	g.VBROADCASTSS(g.data.word(x), v)
	return v
}

// zero clears v.
func (g *gen) zero(v reg.VecPhysical) {
	if g.wide {
		g.VPXORD(v, v, v)
	} else {
		g.VXORPS(v, v, v)
	}
}

// label makes a name unique within the function.
func (g *gen) label(name string) string {
	g.labels++
	return fmt.Sprintf("%s%d", name, g.labels)
}

// at is the memory disp bytes after base.
func at(base reg.Register, disp int) operand.Mem { return operand.Mem{Base: base, Disp: disp} }

// imm is an immediate of 32 bits; a shorter one would be refused from 128 on.
func imm(n int) operand.Op {
	if n >= 0 && n < 128 {
		return operand.U8(n)
	}
	return operand.U32(uint32(n))
}

// loop runs body n times, n being a register that it counts down; n = 0 runs it
// not at all.
func (g *gen) loop(n reg.Register, body func()) {
	top, done := g.label("loop"), g.label("done")
	g.TESTQ(n, n)
	g.JZ(operand.LabelRef(done))
	g.align()
	g.Label(top)
	body()
	g.DECQ(n)
	g.JNZ(operand.LabelRef(top))
	g.Label(done)
}

// align starts a loop on a cache line: the matrix loops lose up to 12 percent
// where theirs straddles one more than it must.
func (g *gen) align() {
	g.Instruction(&ir.Instruction{Opcode: "PCALIGN", Operands: []operand.Op{operand.U8(64)}})
}

// unrolled runs body(i) for n iterations in groups of unroll, then next, which
// advances pointers by a number of iterations. It destroys n.
func (g *gen) unrolled(n reg.Register, unroll int, body func(i int), next func(count int)) {
	g.unrolledRest(n, unroll, body, func() { body(0) }, next)
}

// unrolledRest is unrolled with another body for what is left over.
func (g *gen) unrolledRest(n reg.Register, unroll int, body func(i int), left func(), next func(count int)) {
	rest := g.GP64()
	g.MOVQ(n, rest)
	shift := 0
	for 1<<shift < unroll {
		shift++
	}
	g.ANDQ(operand.U8(unroll-1), rest)
	g.SHRQ(operand.U8(shift), n)
	g.loop(n, func() {
		for i := range unroll {
			body(i)
		}
		next(unroll)
	})
	g.loop(rest, func() {
		left()
		next(1)
	})
}

// columns runs body for each vector column of tiles whose rows have w lanes; w
// is destroyed. Offset, in bytes, is that of the column.
func (g *gen) columns(w reg.GPVirtual, body func(offset reg.GPVirtual)) {
	offset := g.GP64()
	g.XORQ(offset, offset)
	top := g.label("column")
	g.Label(top)
	body(offset)
	g.ADDQ(imm(g.bytes()), offset)
	g.CMPQ(offset, w)
	g.JB(operand.LabelRef(top))
}

// rowBytes is w in bytes.
func (g *gen) rowBytes(w reg.GPVirtual) reg.GPVirtual {
	b := g.GP64()
	g.MOVQ(w, b)
	g.SHLQ(operand.U8(2), b)
	return b
}

// constants are numbers in read-only memory, each repeated over 64 bytes so that
// it serves as a vector operand too.
type constants struct {
	c    *build.Context
	made map[string]operand.Mem
}

func newConstants(c *build.Context) *constants {
	return &constants{c: c, made: map[string]operand.Mem{}}
}

// table is a global of the given content.
func (d *constants) table(name string, content ...operand.Constant) operand.Mem {
	m, ok := d.made[name]
	if !ok {
		m = d.c.StaticGlobal(name)
		d.c.DataAttributes(attr.RODATA | attr.NOPTR)
		for _, x := range content {
			d.c.AppendDatum(x)
		}
		d.made[name] = m
	}
	return m
}

func (d *constants) word(x uint32) operand.Mem {
	return d.table(fmt.Sprintf("word%08x", x), slices.Repeat([]operand.Constant{operand.U32(x)}, 16)...)
}

func (d *constants) wide(x uint64) operand.Mem {
	return d.table(fmt.Sprintf("wide%016x", x), slices.Repeat([]operand.Constant{operand.U64(x)}, 8)...)
}

func (d *constants) float(x float32) operand.Mem { return d.word(math.Float32bits(x)) }

func (d *constants) double(x float64) operand.Mem { return d.wide(math.Float64bits(x)) }

// tailMask is eight words of ones, then eight of zeros: the words from n before
// its middle on mask n lanes.
func (d *constants) tailMask() operand.Mem {
	return d.table("tailMask", append(slices.Repeat([]operand.Constant{operand.U32(math.MaxUint32)}, 8),
		slices.Repeat([]operand.Constant{operand.U32(0)}, 8)...)...)
}
