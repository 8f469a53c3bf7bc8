package main

import (
	"math"

	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// scores is the frame of the passes over a score tile: they visit the columns,
// and in each the rows, and raise the column's maximum.
type scores struct {
	rows, w  reg.GPVirtual
	x, max   reg.VecPhysical
	negative reg.VecPhysical // -Inf
}

// newScores loads what the frame needs; w is in bytes from here on.
func (g *gen) newScores() *scores {
	f := &scores{rows: g.arg("n"), w: g.rowBytes(g.arg("w"))}
	f.x, f.max = g.vec(), g.vec()
	f.negative = g.broadcastBits(0xFF800000)
	return f
}

// each runs column at the start of every column, then row for each of its rows,
// which must leave the new score in f.x; ptr points to the old one.
func (g *gen) each(f *scores, s, mx reg.GPVirtual, column func(offset reg.GPVirtual), row func(ptr reg.GPVirtual)) {
	g.columns(f.w, func(offset reg.GPVirtual) {
		ptr, n := g.GP64(), g.GP64()
		g.LEAQ(operand.Mem{Base: s, Index: offset, Scale: 1}, ptr)
		g.MOVQ(f.rows, n)
		g.VMOVUPS(operand.Mem{Base: mx, Index: offset, Scale: 1}, f.max)
		column(offset)
		g.unrolled(n, 2, func(int) {
			row(ptr)
			g.VMAXPS(f.max, f.x, f.max)
			g.VMOVUPS(f.x, at(ptr, 0))
			g.ADDQ(f.w, ptr)
		}, func(int) {})
		g.VMOVUPS(f.max, operand.Mem{Base: mx, Index: offset, Scale: 1})
	})
}

// bias emits Ops.Bias.
func (g *gen) bias() {
	g.function("bias"+g.name, "s, max, bias *float32, n, w int, mul float32", "is Ops.Bias; works like biasGeneric.")
	s, mx, bias := g.arg("s"), g.arg("max"), g.arg("bias")
	f := g.newScores()
	mul := g.broadcastArg("mul")
	b := g.GP64()
	g.each(f, s, mx, func(offset reg.GPVirtual) {
		g.LEAQ(operand.Mem{Base: bias, Index: offset, Scale: 1}, b)
	}, func(ptr reg.GPVirtual) {
		g.VMOVUPS(at(ptr, 0), f.x)
		g.VFMADD213PS(at(b, 0), mul, f.x)
		g.ADDQ(f.w, b)
	})
	g.end()
}

// alibi emits Ops.ALiBi.
func (g *gen) alibi() {
	g.function("alibi"+g.name, "s, max, slope *float32, pos *int32, n, w int, mul float32",
		"is Ops.ALiBi; works like alibiGeneric.")
	s, mx, slope, pos := g.arg("s"), g.arg("max"), g.arg("slope"), g.arg("pos")
	f := g.newScores()
	mul := g.broadcastArg("mul")
	minusOne := g.broadcastBits(0xFFFFFFFF)
	p, d, by := g.vec(), g.vec(), g.vec()
	g.each(f, s, mx, func(offset reg.GPVirtual) {
		g.VMOVUPS(operand.Mem{Base: pos, Index: offset, Scale: 1}, p)
		g.VMOVUPS(operand.Mem{Base: slope, Index: offset, Scale: 1}, by)
	}, func(ptr reg.GPVirtual) {
		g.VPABSD(p, d)
		g.VCVTDQ2PS(d, d)
		g.VMULPS(at(ptr, 0), mul, f.x)
		g.VFNMADD231PS(d, by, f.x)
		g.VPADDD(minusOne, p, p)
	})
	g.end()
}

// Below 1, tanh(x) is x + x³·P(x²)/Q(x²); see tanhGeneric.
var (
	tanhP = [...]float32{-0.3333333134651184, -0.014686569571495056}
	tanhQ = [...]float32{1, 0.4440595209598541, 0.0157197006046772}
)

// softcap emits Ops.Softcap. It takes three rows at a time, as softmax does more,
// and looks at a score again for its sign.
func (g *gen) softcap() {
	g.function("softcap"+g.name, "s, max *float32, n, w int, mul, softcap float32",
		"is Ops.Softcap; works like softcapGeneric.")
	s, mx, keys := g.arg("s"), g.arg("max"), g.arg("n")
	w := g.rowBytes(g.arg("w"))
	const chains = 3
	e := g.newExp2(chains, false)
	y, most, u := g.vecN(chains), g.vec(), g.vec()
	walk := g.newWalk(w, 1)
	rows := func(count int) {
		g.eachRows(walk, count, func(tiles [][]operand.Mem) { g.tanh(e, y, u, tiles[0]); g.cap(e, most, tiles[0]) })
	}
	g.columns(w, func(offset reg.GPVirtual) {
		lane := func(base reg.Register) operand.Mem { return operand.Mem{Base: base, Index: offset, Scale: 1} }
		g.LEAQ(lane(s), walk.tiles[0].row)
		g.MOVQ(keys, walk.left)
		g.VMOVUPS(lane(mx), most)
		rows(chains)
		rows(1)
		g.VMOVUPS(most, lane(mx))
	})
	g.end()
}

// tanh leaves the hyperbolic tangent of |rows|*mul in e.x.
func (g *gen) tanh(e *exp2, y []reg.VecPhysical, u reg.VecPhysical, rows []operand.Mem) {
	d := g.data
	each := func(f func(i int)) {
		for i := range rows {
			f(i)
		}
	}
	g.VBROADCASTSS(g.paramMem("mul"), e.c)
	g.VMOVUPS(d.word(math.MaxInt32), u)
	each(func(i int) { g.VMULPS(rows[i], e.c, y[i]) })
	each(func(i int) { g.VANDPS(u, y[i], y[i]) })
	g.VMOVUPS(d.float(-2*math.Log2E), e.c)
	each(func(i int) { g.VMULPS(e.c, y[i], e.x[i]) })
	g.eval(e, rows...)
	// x and n are free now: below 1, num is y³·P and den is Q.
	num, den := e.x, e.n
	each(func(i int) {
		g.VMULPS(y[i], y[i], u)
		g.VMOVUPS(d.float(tanhP[1]), num[i])
		g.VFMADD213PS(d.float(tanhP[0]), u, num[i])
		g.VMOVUPS(d.float(tanhQ[2]), den[i])
		g.VFMADD213PS(d.float(tanhQ[1]), u, den[i])
		g.VFMADD213PS(d.float(tanhQ[0]), u, den[i])
		g.VMULPS(u, y[i], u)
		g.VMULPS(u, num[i], num[i])
	})
	// From 1 on, tanh(y) is 1 - 2t/(1+t), t = exp(-2y).
	const greaterEqual = 13
	g.VMOVUPS(d.float(1), e.c)
	each(func(i int) {
		t := e.p[i]
		if g.wide {
			g.VCMPPS(operand.U8(greaterEqual), e.c, y[i], reg.K5)
			g.VMULPS(d.float(-2), t, u)
			g.VMOVAPS(u, reg.K5, num[i])
			g.VADDPS(e.c, t, u)
			g.VMOVAPS(u, reg.K5, den[i])
			g.VMOVAPS(e.c, reg.K5, y[i])
			return
		}
		g.VCMPPS(operand.U8(greaterEqual), e.c, y[i], u)
		g.VBLENDVPS(u, e.c, y[i], y[i])
		g.VADDPS(e.c, t, e.c)
		g.VBLENDVPS(u, e.c, den[i], den[i])
		g.VMULPS(d.float(-2), t, t)
		g.VBLENDVPS(u, t, num[i], num[i])
		g.VMOVUPS(d.float(1), e.c)
	})
	each(func(i int) { g.VDIVPS(den[i], num[i], e.x[i]) })
	each(func(i int) { g.VADDPS(y[i], e.x[i], e.x[i]) })
}

// cap gives e.x the signs of the rows, multiplies it by softcap, and writes it.
func (g *gen) cap(e *exp2, most reg.VecPhysical, rows []operand.Mem) {
	g.VMOVUPS(g.data.word(1<<31), e.n[0])
	g.VBROADCASTSS(g.paramMem("softcap"), e.c)
	for i := range rows {
		x, sign := e.x[i], e.p[i]
		g.VANDPS(rows[i], e.n[0], sign)
		g.VORPS(sign, x, x)
		g.VMULPS(e.c, x, x)
		g.VMOVUPS(x, rows[i])
		g.VMAXPS(most, x, most)
	}
}

// mask emits Ops.Mask.
func (g *gen) mask() {
	g.function("mask"+g.name, "s, max *float32, words *uint32, n, w int", "is Ops.Mask; works like maskGeneric.")
	s, mx, words := g.arg("s"), g.arg("max"), g.arg("words")
	f := g.newScores()
	bits, bit := g.vec(), g.vec()
	g.columns(f.w, func(offset reg.GPVirtual) {
		ptr := g.GP64()
		g.LEAQ(operand.Mem{Base: s, Index: offset, Scale: 1}, ptr)
		g.VMOVUPS(operand.Mem{Base: mx, Index: offset, Scale: 1}, f.max)
		g.eachBit(words, f.rows, f.w, offset, bits, bit, func() {
			if g.wide {
				g.VPMOVD2M(bit, reg.K1)
				g.VBLENDMPS(at(ptr, 0), f.negative, reg.K1, f.x)
			} else {
				g.VBLENDVPS(bit, at(ptr, 0), f.negative, f.x)
			}
			g.VMAXPS(f.max, f.x, f.max)
			g.VMOVUPS(f.x, at(ptr, 0))
			g.ADDQ(f.w, ptr)
		})
		g.VMOVUPS(f.max, operand.Mem{Base: mx, Index: offset, Scale: 1})
	})
	g.end()
}

// eachBit runs body for each row of a column with the row's bits of words in
// the signs of bit.
func (g *gen) eachBit(words, rows, w, offset reg.GPVirtual, bits, bit reg.VecPhysical, body func()) {
	word, left := g.GP64(), g.GP64()
	g.LEAQ(operand.Mem{Base: words, Index: offset, Scale: 1}, word)
	g.MOVQ(rows, left)
	next, done := g.label("word"), g.label("done")
	g.Label(next)
	g.TESTQ(left, left)
	g.JZ(operand.LabelRef(done))
	n, thirtyTwo := g.GP64(), g.GP64()
	g.MOVQ(left, n)
	g.MOVQ(operand.U32(32), thirtyTwo)
	g.CMPQ(n, thirtyTwo)
	g.CMOVQGT(thirtyTwo, n)
	g.SUBQ(n, left)
	g.VMOVUPS(at(word, 0), bits)
	g.ADDQ(w, word)
	g.loop(n, func() {
		g.VPSLLD(operand.U8(31), bits, bit)
		g.VPSRLD(operand.U8(1), bits, bits)
		body()
	})
	g.JMP(operand.LabelRef(next))
	g.Label(done)
}

// bits emits Ops.Bits: 32 booleans are compared with zero and their signs
// gathered. The last of fewer than 32 are read together with those before them,
// or one by one where a row has no 32.
func (g *gen) bits() {
	g.function("bitsAVX2", "words *uint32, src *bool, off *int, n, w int", "is Ops.Bits; works like bitsGeneric.")
	words, src, off, n, lanes := g.arg("words"), g.arg("src"), g.arg("off"), g.arg("n"), g.arg("w")
	pitch := g.rowBytes(lanes)
	zero, x := reg.Y0, reg.Y1
	g.VXORPS(zero, zero, zero)
	row, word, left, hidden := g.GP64(), g.GP64(), g.GP64(), g.GP32()
	// gather sets hidden to the 32 booleans from disp after row on, negated.
	gather := func(disp int) {
		g.VPCMPEQB(at(row, disp), zero, x)
		g.VPMOVMSKB(x, hidden)
	}
	// hide clears the bits of hidden in word.
	hide := func() {
		g.NOTL(hidden)
		g.ANDL(hidden, at(word, 0))
	}
	g.loop(lanes, func() {
		g.MOVQ(at(off, 0), row)
		g.ADDQ(src, row)
		g.MOVQ(words, word)
		g.MOVQ(n, left)
		whole, tail, short, done := g.label("whole"), g.label("tail"), g.label("short"), g.label("done")
		g.Label(whole)
		g.CMPQ(left, operand.U8(32))
		g.JL(operand.LabelRef(tail))
		gather(0)
		hide()
		g.PREFETCHT0(at(row, 4*32))
		g.ADDQ(operand.U8(32), row)
		g.ADDQ(pitch, word)
		g.SUBQ(operand.U8(32), left)
		g.JMP(operand.LabelRef(whole))
		g.Label(tail)
		g.TESTQ(left, left)
		g.JZ(operand.LabelRef(done))
		g.CMPQ(n, operand.U8(32))
		g.JL(operand.LabelRef(short))
		// Of the 32 that end with the row, the last left count.
		g.ADDQ(left, row)
		gather(-32)
		shift := g.GP64()
		g.MOVQ(operand.U32(32), shift)
		g.SUBQ(left, shift)
		g.SHRXL(shift.As32(), hidden, hidden)
		hide()
		g.JMP(operand.LabelRef(done))
		g.Label(short)
		one, seen, none := g.GP32(), g.GP32(), g.GP32()
		g.MOVL(operand.U32(1), one)
		g.XORL(hidden, hidden)
		g.XORL(none, none)
		g.loop(left, func() {
			// hidden |= one where the boolean is 0.
			g.MOVBLZX(at(row, 0), seen)
			g.TESTL(seen, seen)
			g.MOVL(one, seen)
			g.CMOVLNE(none, seen)
			g.ORL(seen, hidden)
			g.ADDL(one, one)
			g.INCQ(row)
		})
		hide()
		g.Label(done)
		g.ADDQ(operand.U8(8), off)
		g.ADDQ(operand.U8(4), words)
	})
	g.end()
}
