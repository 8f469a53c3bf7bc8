package main

import (
	"math"

	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// Coefficients of 2^f, |f| <= 1/2; see exp2Generic.
var exp2Coefficients = [...]float32{1, .6931472420692444, .24022655189037323, .05550272762775421,
	.009617069736123085, .0013418003218248487, .0001584151032147929}

// exp2 is the register plan of 2^x, x <= 0, for several chains at a time: a
// chain is some 45 cycles of latency, and more of them fit the scheduler when
// they are interleaved. Constants go through c, one load for all chains.
type exp2 struct {
	x, n, p []reg.VecPhysical
	c       reg.VecPhysical
}

func (g *gen) newExp2(chains int) *exp2 {
	return &exp2{x: g.vecN(chains), n: g.vecN(chains), p: g.vecN(chains), c: g.vec()}
}

// eval leaves 2^x[i] in p[i] for the first chains chains. It destroys x and n.
//
// AVX2 has no scaling by a power of two. Adding magic = 1.5·2^23 + 126 rounds x
// to n and leaves n+126 in the low bits, which, shifted into the exponent's
// place, are 2^(n-1), or +0 for n = -126; the coefficients are doubled in
// return. AVX-512 rounds and scales, and a mask makes n <= -126 zero.
func (g *gen) eval(e *exp2, chains int) {
	each := func(f func(x, n, p reg.VecPhysical)) {
		for i := range chains {
			f(e.x[i], e.n[i], e.p[i])
		}
	}
	constant := func(x float32) { g.VMOVUPS(g.data.float(x), e.c) }
	scale := float32(1)
	constant(-126)
	if g.wide {
		each(func(x, n, _ reg.VecPhysical) { g.VRNDSCALEPS(operand.U8(0), x, n) })
		for i := range chains {
			const notLessEqual = 6 // true for NaN
			g.VCMPPS(operand.U8(notLessEqual), e.c, e.n[i], masks[i])
		}
		each(func(x, n, _ reg.VecPhysical) { g.VSUBPS(n, x, x) })
	} else {
		scale = 2
		each(func(x, _, _ reg.VecPhysical) { g.VMAXPS(x, e.c, x) })
		constant(3<<22 + 126)
		each(func(x, n, _ reg.VecPhysical) { g.VADDPS(e.c, x, n) })
		each(func(_, n, p reg.VecPhysical) { g.VSUBPS(e.c, n, p) })
		each(func(x, _, p reg.VecPhysical) { g.VSUBPS(p, x, x) })
	}
	constant(scale * exp2Coefficients[6])
	each(func(_, _, p reg.VecPhysical) { g.VMOVAPS(e.c, p) })
	for i := 5; i >= 0; i-- {
		constant(scale * exp2Coefficients[i])
		each(func(x, _, p reg.VecPhysical) { g.VFMADD213PS(e.c, x, p) })
	}
	if g.wide {
		for i := range chains {
			g.VSCALEFPS_Z(e.n[i], e.p[i], masks[i], e.p[i])
		}
		return
	}
	each(func(_, n, _ reg.VecPhysical) { g.VPSLLD(operand.U8(23), n, n) })
	each(func(_, n, p reg.VecPhysical) { g.VMULPS(n, p, p) })
}

// masks are the mask registers of the chains.
var masks = []reg.OpmaskPhysical{reg.K1, reg.K2, reg.K3, reg.K4}

// lowest sets low to -max(m, -MaxFloat32), to be added to logits.
func (g *gen) lowest(m, low reg.VecPhysical) {
	g.VMOVUPS(g.data.float(-math.MaxFloat32), low)
	g.VMAXPS(m, low, low)
	g.VXORPS(g.data.word(1<<31), low, low)
}

// softmax emits Ops.Softmax.
func (g *gen) softmax() {
	g.function("softmax"+g.name, "s, max, m, l, alpha *float32, n, w int, unit float32",
		"is Ops.Softmax; works like softmaxGeneric.")
	s, mx, m, l, alpha := g.arg("s"), g.arg("max"), g.arg("m"), g.arg("l"), g.arg("alpha")
	keys := g.arg("n")
	w := g.rowBytes(g.arg("w"))
	const chains = 4
	unit, low, sum := g.broadcastArg("unit"), g.vec(), g.vec()
	e := g.newExp2(chains)
	first := e.x[0]
	row, ahead, n, rest := g.GP64(), g.GP64(), g.GP64(), g.GP64()
	// rows takes count rows from row on.
	rows := func(count int) {
		at := []operand.Mem{at(row, 0), {Base: row, Index: w, Scale: 1}, {Base: row, Index: w, Scale: 2}, {Base: ahead, Index: w, Scale: 1}}
		for i := range count {
			g.VADDPS(at[i], low, e.x[i])
		}
		for i := range count {
			g.VMULPS(unit, e.x[i], e.x[i])
		}
		g.eval(e, count)
		for i := range count {
			g.VMOVUPS(e.p[i], at[i])
			g.VADDPS(e.p[i], sum, sum)
		}
	}
	g.columns(w, func(offset reg.GPVirtual) {
		lane := func(base reg.Register) operand.Mem { return operand.Mem{Base: base, Index: offset, Scale: 1} }
		g.VMOVUPS(lane(m), first)
		g.VMOVUPS(lane(mx), sum)
		g.VMAXPS(first, sum, sum)
		g.VMOVUPS(sum, lane(m))
		g.lowest(sum, low)
		g.VADDPS(low, first, first)
		g.VMULPS(unit, first, first)
		g.eval(e, 1)
		g.VMOVUPS(e.p[0], lane(alpha))
		g.zero(sum)
		g.LEAQ(lane(s), row)
		g.MOVQ(keys, n)
		g.MOVQ(keys, rest)
		g.ANDQ(operand.U8(chains-1), rest)
		g.SHRQ(operand.U8(2), n)
		g.loop(n, func() {
			g.LEAQ(operand.Mem{Base: row, Index: w, Scale: 2}, ahead)
			rows(chains)
			g.LEAQ(operand.Mem{Base: row, Index: w, Scale: 4}, row)
		})
		g.loop(rest, func() {
			rows(1)
			g.ADDQ(w, row)
		})
		g.VMOVUPS(lane(l), first)
		g.VFMADD132PS(lane(alpha), sum, first)
		g.VMOVUPS(first, lane(l))
	})
	g.end()
}

// fold emits Ops.Fold.
func (g *gen) fold() {
	g.function("fold"+g.name, "o, m, l, o2, m2, l2 *float32, n, w int, unit float32",
		"is Ops.Fold; works like foldGeneric.")
	o, m, l := g.arg("o"), g.arg("m"), g.arg("l")
	o2, m2, l2 := g.arg("o2"), g.arg("m2"), g.arg("l2")
	rows := g.arg("n")
	w := g.rowBytes(g.arg("w"))
	unit := g.broadcastArg("unit")
	e := g.newExp2(2)
	low, big := g.vec(), g.vec()
	a1, a2 := e.p[0], e.p[1]
	g.columns(w, func(offset reg.GPVirtual) {
		lane := func(base reg.Register) operand.Mem { return operand.Mem{Base: base, Index: offset, Scale: 1} }
		g.VMOVUPS(lane(m), e.x[0])
		g.VMOVUPS(lane(m2), e.x[1])
		g.VMAXPS(e.x[0], e.x[1], big)
		g.VMOVUPS(big, lane(m))
		g.lowest(big, low)
		for _, x := range e.x {
			g.VADDPS(low, x, x)
			g.VMULPS(unit, x, x)
		}
		g.eval(e, 2)
		fold := func(to, from operand.Mem) {
			x, y := e.x[0], e.x[1]
			g.VMULPS(from, a2, x)
			g.VMOVUPS(to, y)
			g.VFMADD213PS(x, a1, y)
			g.VMOVUPS(y, to)
		}
		fold(lane(l), lane(l2))
		to, from, n := g.GP64(), g.GP64(), g.GP64()
		g.LEAQ(lane(o), to)
		g.LEAQ(lane(o2), from)
		g.MOVQ(rows, n)
		g.loop(n, func() {
			fold(at(to, 0), at(from, 0))
			g.ADDQ(w, to)
			g.ADDQ(w, from)
		})
	})
	g.end()
}
