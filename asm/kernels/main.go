// Kernels generates the loops over a tile for amd64: kernel_amd64.s and its
// stubs. Both tables, AVX2 and AVX-512, come from the same functions; a machine
// describes what differs. kernel.Ops says what each loop computes.
package main

import (
	"log"

	"github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/buildtags"

	"github.com/seed-091431b3/attention/asm/internal/output"
)

func main() {
	c := build.NewContext()
	c.Constraints(buildtags.And(buildtags.Term("amd64"), buildtags.Not("purego"), buildtags.Not("noasm")))
	data := newConstants(c)
	for _, isa := range []isa{avx2, avx512} {
		g := &gen{Context: c, isa: isa, data: data}
		for _, nv := range isa.strips {
			g.score(nv)
			g.accumulate(nv)
		}
		g.softmax()
		g.fold()
		g.logSum()
		g.softcap()
		g.alibi()
		g.bias()
		g.mask()
		g.dropout()
		g.packK()
		g.gradient()
		g.dot()
		g.hide()
		g.uncap()
		g.addOuter()
		g.packRows()
		for _, f := range []format{float32s, bfloat16s, float16s} {
			g.scoreStored(f)
			g.accumulateStored(f)
		}
	}
	g := &gen{Context: c, isa: avx2, data: data}
	g.packV(4)
	g.packV(8)
	g.gather()
	g.bits()
	g.scatter()
	for _, f := range []format{bfloat16s, float16s} {
		g.widenStored(f)
		g.narrowStored(f)
	}
	g.hasF16C()
	if err := output.Generate(c, "../kernel_amd64.s", "../stubs_amd64.go", "attention", "go -C asm run ./kernels"); err != nil {
		log.Fatal(err)
	}
}
