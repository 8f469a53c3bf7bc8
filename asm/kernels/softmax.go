package main

import (
	"math"

	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// Coefficients of 2^f, |f| <= 1/2; see exp2Generic.
var exp2Coefficients = [...]float32{1, .6931472420692444, .24022655189037323, .05550272762775421,
	.009617069736123085, .0013418003218248487, .0001584151032147929}

// exp2 is the register plan of 2^x, x <= 0, for several chains at a time. A chain is some 45 cycles of latency, and more of them fit a
// scheduler when they are interleaved. Constants go through c, one load for all
// chains. Without n, the powers of two wait in memory, which lets AVX2 run six
// chains instead of four: on Zen 3, 6.6 becomes 6.15 cycles a vector.
type exp2 struct {
	x, n, p []reg.VecPhysical
	c, t    reg.VecPhysical
}

func (g *gen) newExp2(chains int, spill bool) *exp2 {
	e := &exp2{x: g.vecN(chains), p: g.vecN(chains), c: g.vec()}
	if spill {
		e.t = g.vec()
	} else {
		e.n = g.vecN(chains)
	}
	return e
}

// eval leaves 2^x[i] in p[i] for as many chains as out has places, where it may
// write. It destroys x and n.
//
// AVX2 has no scaling by a power of two. Adding magic = 1.5·2^23 + 126 rounds x
// to n and leaves n+126 in the low bits, which, shifted into the exponent's
// place, are 2^(n-1), or +0 for n = -126; the coefficients are doubled in
// return. AVX-512 rounds and scales, and a mask makes n <= -126 zero.
func (g *gen) eval(e *exp2, out ...operand.Mem) {
	constant := func(x float32) { g.VMOVUPS(g.data.float(x), e.c) }
	constant(-126)
	if g.wide {
		for i := range out {
			g.VRNDSCALEPS(operand.U8(0), e.x[i], e.n[i])
		}
		for i := range out {
			g.notBelow(e, i)
			g.VSUBPS(e.n[i], e.x[i], e.x[i])
		}
	} else {
		for i := range out {
			g.VMAXPS(e.x[i], e.c, e.x[i])
		}
		constant(3<<22 + 126)
		for i := range out {
			g.VADDPS(e.c, e.x[i], e.p[i])
		}
		for i := range out {
			n := e.integer(i)
			g.VSUBPS(e.c, e.p[i], n)
			g.VSUBPS(n, e.x[i], e.x[i])
			g.power(e, i, out[i])
		}
	}
	g.fraction(e, out)
}

// notBelow sets the mask of chain i where n is above c, or NaN.
func (g *gen) notBelow(e *exp2, i int) {
	const notLessEqual = 6
	g.VCMPPS(operand.U8(notLessEqual), e.c, e.n[i], masks[i])
}

// integer is where AVX2 keeps the integer of chain i.
func (e *exp2) integer(i int) reg.VecPhysical {
	if e.n == nil {
		return e.t
	}
	return e.n[i]
}

// power turns p, an integer plus magic, into a power of two in n or out.
func (g *gen) power(e *exp2, i int, out operand.Mem) {
	n := e.integer(i)
	g.VPSLLD(operand.U8(23), e.p[i], n)
	if e.n == nil {
		g.VMOVUPS(n, out)
	}
}

// fraction leaves 2^x[i], times the power of two in n or out, in p[i].
func (g *gen) fraction(e *exp2, out []operand.Mem) {
	scale := float32(2)
	if g.wide {
		scale = 1
	}
	constant := func(k int) { g.VMOVUPS(g.data.float(scale*exp2Coefficients[k]), e.c) }
	constant(6)
	for i := range out {
		g.VMOVAPS(e.c, e.p[i])
	}
	for k := 5; k >= 0; k-- {
		constant(k)
		for i := range out {
			g.VFMADD213PS(e.c, e.x[i], e.p[i])
		}
	}
	for i := range out {
		switch {
		case g.wide:
			g.VSCALEFPS_Z(e.n[i], e.p[i], masks[i], e.p[i])
		case e.n == nil:
			g.VMULPS(out[i], e.p[i], e.p[i])
		default:
			g.VMULPS(e.n[i], e.p[i], e.p[i])
		}
	}
}

// scale multiplies the first chains x by the parameter unit.
func (g *gen) scale(e *exp2, chains int) {
	g.VBROADCASTSS(g.paramMem("unit"), e.c)
	for i := range chains {
		g.VMULPS(e.c, e.x[i], e.x[i])
	}
}

// masks are the mask registers of the chains.
var masks = []reg.OpmaskPhysical{reg.K1, reg.K2, reg.K3, reg.K4}

// lowest sets low to -max(m, -MaxFloat32), to be added to logits.
func (g *gen) lowest(m, low reg.VecPhysical) {
	g.VMOVUPS(g.data.float(-math.MaxFloat32), low)
	g.VMAXPS(m, low, low)
	g.VXORPS(g.data.word(1<<31), low, low)
}

// walk goes down a column of tiles of one shape, several rows at a time.
type walk struct {
	tiles []cursor
	left  reg.GPVirtual // rows to come
	pitch reg.GPVirtual // bytes between rows
}

// cursor is the row at hand of a tile, and the third after it.
type cursor struct{ row, row3 reg.GPVirtual }

// rows are six rows from the one at hand on.
func (c cursor) rows(pitch reg.GPVirtual) []operand.Mem {
	return []operand.Mem{
		at(c.row, 0), {Base: c.row, Index: pitch, Scale: 1}, {Base: c.row, Index: pitch, Scale: 2},
		at(c.row3, 0), {Base: c.row3, Index: pitch, Scale: 1}, {Base: c.row3, Index: pitch, Scale: 2},
	}
}

func (g *gen) newWalk(pitch reg.GPVirtual, tiles int) *walk {
	w := &walk{left: g.GP64(), pitch: pitch}
	for range tiles {
		w.tiles = append(w.tiles, cursor{g.GP64(), g.GP64()})
	}
	return w
}

// eachRows hands body count rows of each tile, up to 6, as long as there are as
// many.
func (g *gen) eachRows(w *walk, count int, body func(tiles [][]operand.Mem)) {
	top, done := g.label("rows"), g.label("done")
	g.SUBQ(operand.U8(count), w.left)
	g.JL(operand.LabelRef(done))
	g.align()
	g.Label(top)
	var tiles [][]operand.Mem
	for _, c := range w.tiles {
		rows := c.rows(w.pitch)
		if count >= 3 {
			g.LEAQ(rows[2], c.row3)
			g.ADDQ(w.pitch, c.row3)
		}
		tiles = append(tiles, rows[:count])
	}
	body(tiles)
	for _, c := range w.tiles {
		rows := c.rows(w.pitch)
		switch {
		case count == 3:
			g.MOVQ(c.row3, c.row)
		case count > 3:
			g.LEAQ(rows[count-1], c.row)
			g.ADDQ(w.pitch, c.row)
		default:
			g.LEAQ(rows[count], c.row)
		}
	}
	g.SUBQ(operand.U8(count), w.left)
	g.JGE(operand.LabelRef(top))
	g.Label(done)
	g.ADDQ(operand.U8(count), w.left)
}

// softmax emits Ops.Softmax.
func (g *gen) softmax() {
	g.function("softmax"+g.name, "s, max, m, l, alpha *float32, n, w int, unit float32, fetch *byte",
		"is Ops.Softmax; works like softmaxGeneric.")
	s, mx, m, l, alpha := g.arg("s"), g.arg("max"), g.arg("m"), g.arg("l"), g.arg("alpha")
	keys, fetch := g.arg("n"), g.arg("fetch")
	w := g.rowBytes(g.arg("w"))
	low, sum := g.vec(), g.vec()
	e := g.newExp2(6, true)
	if g.wide {
		e = g.newExp2(4, false)
	}
	first := e.x[0]
	walk := g.newWalk(w, 1)
	rows := func(count int) {
		g.eachRows(walk, count, func(tiles [][]operand.Mem) {
			out := tiles[0]
			for i := range out {
				g.VADDPS(out[i], low, e.x[i])
				if i%2 == 0 {
					g.PREFETCHT0(at(fetch, 32*i))
				}
			}
			g.ADDQ(imm(32*count), fetch)
			g.scale(e, count)
			g.eval(e, out...)
			for i := range out {
				g.VMOVUPS(e.p[i], out[i])
				g.VADDPS(e.p[i], sum, sum)
			}
		})
	}
	g.columns(w, func(offset reg.GPVirtual) {
		lane := func(base reg.Register) operand.Mem { return operand.Mem{Base: base, Index: offset, Scale: 1} }
		g.VMOVUPS(lane(m), first)
		g.VMOVUPS(lane(mx), sum)
		g.VMAXPS(first, sum, sum)
		g.VMOVUPS(sum, lane(m))
		g.lowest(sum, low)
		g.VADDPS(low, first, first)
		g.scale(e, 1)
		g.eval(e, lane(alpha))
		g.VMOVUPS(e.p[0], lane(alpha))
		g.zero(sum)
		g.LEAQ(lane(s), walk.tiles[0].row)
		g.MOVQ(keys, walk.left)
		rows(len(e.x))
		rows(2)
		rows(1)
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
	e := g.newExp2(2, false)
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
		}
		g.scale(e, 2)
		g.eval(e, lane(m2), lane(l2))
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
