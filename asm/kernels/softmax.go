package main

import (
	"math"

	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// Coefficients of 2^f, |f| <= 1/2; see exp2Generic.
var exp2Coefficients = [...]float32{1, .6931472420692444, .24022655189037323, .05550272762775421,
	.009617069736123085, .0013418003218248487, .0001584151032147929}

// exp2 is the register plan of 2^x for x <= 0: what is not here is read from
// memory.
type exp2 struct {
	lowest, magic, top reg.VecPhysical
	x, n, p            reg.VecPhysical
}

// newExp2 loads the constants.
//
// AVX2 has no scaling by a power of two. Adding magic = 1.5·2^23 + 126 rounds x
// to n and leaves n+126 in the low bits, which, shifted into the exponent's
// place, are 2^(n-1), or +0 for n = -126; the coefficients are doubled in
// return. AVX-512 rounds and scales, and a mask makes n <= -126 zero.
func (g *gen) newExp2() *exp2 {
	e := &exp2{lowest: g.broadcast(-126)}
	if g.wide {
		e.top = g.broadcast(exp2Coefficients[6])
	} else {
		e.magic = g.broadcast(3<<22 + 126)
		e.top = g.broadcast(2 * exp2Coefficients[6])
	}
	e.x, e.n, e.p = g.vec(), g.vec(), g.vec()
	return e
}

// eval replaces e.x by a power of two, in e.p. It destroys e.x and e.n.
func (g *gen) eval(e *exp2) {
	x, n, p := e.x, e.n, e.p
	scale := float32(1)
	if g.wide {
		g.VRNDSCALEPS(operand.U8(0), x, n)
		g.VSUBPS(n, x, x)
	} else {
		scale = 2
		g.VMAXPS(x, e.lowest, x)
		g.VADDPS(e.magic, x, n)
		g.VSUBPS(e.magic, n, p)
		g.VSUBPS(p, x, x)
	}
	g.VMOVAPS(e.top, p)
	for i := 5; i >= 0; i-- {
		g.VFMADD213PS(g.data.float(scale*exp2Coefficients[i]), x, p)
	}
	if g.wide {
		const notLessEqual = 6 // true for NaN
		g.VCMPPS(operand.U8(notLessEqual), e.lowest, n, reg.K1)
		g.VSCALEFPS_Z(n, p, reg.K1, p)
	} else {
		g.VPSLLD(operand.U8(23), n, n)
		g.VMULPS(n, p, p)
	}
}

// softmax emits Ops.Softmax.
func (g *gen) softmax() {
	g.function("softmax"+g.name, "s, max, m, l, alpha *float32, n, w int, unit float32",
		"is Ops.Softmax; works like softmaxGeneric.")
	s, mx, m, l, alpha := g.arg("s"), g.arg("max"), g.arg("m"), g.arg("l"), g.arg("alpha")
	keys := g.arg("n")
	w := g.rowBytes(g.arg("w"))
	unit := g.broadcastArg("unit")
	e := g.newExp2()
	low, sum := g.vec(), g.vec()
	lowest := g.data.float(-math.MaxFloat32)
	sign := g.broadcastBits(1 << 31)
	g.columns(w, func(offset reg.GPVirtual) {
		lane := func(base reg.Register) operand.Mem { return operand.Mem{Base: base, Index: offset, Scale: 1} }
		big := sum
		g.VMOVUPS(lane(m), e.x)
		g.VMOVUPS(lane(mx), big)
		g.VMAXPS(e.x, big, big)
		g.VMOVUPS(big, lane(m))
		// -max(M, -MaxFloat32), to be added.
		g.VMOVUPS(lowest, low)
		g.VMAXPS(big, low, low)
		g.VXORPS(sign, low, low)
		g.VADDPS(low, e.x, e.x)
		g.VMULPS(unit, e.x, e.x)
		g.eval(e)
		g.VMOVUPS(e.p, lane(alpha))
		g.zero(sum)
		row, n := g.GP64(), g.GP64()
		g.LEAQ(lane(s), row)
		g.MOVQ(keys, n)
		body := func(int) {
			g.VADDPS(at(row, 0), low, e.x)
			g.VMULPS(unit, e.x, e.x)
			g.eval(e)
			g.VMOVUPS(e.p, at(row, 0))
			g.VADDPS(e.p, sum, sum)
			g.ADDQ(w, row)
		}
		g.unrolled(n, 4, body, func(int) {})
		g.VMOVUPS(lane(l), e.x)
		g.VFMADD132PS(lane(alpha), sum, e.x)
		g.VMOVUPS(e.x, lane(l))
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
	e := g.newExp2()
	low, a1, a2 := g.vec(), g.vec(), g.vec()
	sign := g.broadcastBits(1 << 31)
	lowest := g.data.float(-math.MaxFloat32)
	g.columns(w, func(offset reg.GPVirtual) {
		lane := func(base reg.Register) operand.Mem { return operand.Mem{Base: base, Index: offset, Scale: 1} }
		big := a2
		g.VMOVUPS(lane(m2), big)
		g.VMOVUPS(lane(m), e.x)
		g.VMAXPS(e.x, big, big)
		g.VMOVUPS(lowest, low)
		g.VMAXPS(big, low, low)
		g.VXORPS(sign, low, low)
		g.VADDPS(low, e.x, e.x)
		g.VMOVUPS(big, lane(m))
		g.VMULPS(unit, e.x, e.x)
		g.eval(e)
		g.VMOVAPS(e.p, a1)
		g.VADDPS(lane(m2), low, e.x)
		g.VMULPS(unit, e.x, e.x)
		g.eval(e)
		g.VMOVAPS(e.p, a2)
		fold := func(to, from operand.Mem) {
			g.VMULPS(from, a2, e.x)
			g.VMOVUPS(to, e.p)
			g.VFMADD213PS(e.x, a1, e.p)
			g.VMOVUPS(e.p, to)
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
