package main

import (
	"math"

	"github.com/seed-091431b3/attention/asm/neon"
)

// eachScore is the frame of the passes over a score tile: body must leave the
// new score of the row at ptr in x.
func (g *gen) eachScore(column func(offset neon.X), body func(x neon.V, ptr neon.X)) {
	w, t, x, mx := g.bytes("w"), g.X(), g.V(), g.V()
	walk := g.newWalk(1, 1)
	g.eachColumn(w, func(offset neon.X) {
		g.lane(mx, "max", offset, t)
		g.start(walk, offset, "s")
		column(offset)
		g.down(walk, w, func(int) {
			ptr := walk.rows[0][0]
			body(x, ptr)
			g.Fmax(mx, mx, x)
			g.Str(x, ptr, 0)
		})
		g.setLane(mx, "max", offset, t)
	})
	g.Ret()
}

// bias emits Ops.Bias.
func (g *gen) bias() {
	g.Func("biasNEON", "s, max, bias *float32, n, w int, mul float32", "is Ops.Bias; works like biasGeneric.")
	mul, y, b, pitch := g.ArgFloat("mul"), g.V(), g.X(), g.bytes("w")
	g.eachScore(func(offset neon.X) {
		g.LoadArg(b, "bias")
		g.AddX(b, b, offset)
	}, func(x neon.V, ptr neon.X) {
		g.Ldr(y, ptr, 0)
		g.Ldr(x, b, 0)
		g.Fmla(x, y, mul)
		g.AddX(b, b, pitch)
	})
}

// alibi emits Ops.ALiBi.
func (g *gen) alibi() {
	g.Func("alibiNEON", "s, max, slope *float32, pos *int32, n, w int, mul float32", "is Ops.ALiBi; works like alibiGeneric.")
	t := g.X()
	mul, one, pos, slope, d := g.ArgFloat("mul"), g.constantBits(1, t), g.V(), g.V(), g.V()
	g.eachScore(func(offset neon.X) {
		g.lane(pos, "pos", offset, t)
		g.lane(slope, "slope", offset, t)
	}, func(x neon.V, ptr neon.X) {
		g.Abs(d, pos)
		g.Scvtf(d, d)
		g.Ldr(x, ptr, 0)
		g.Fmul(x, x, mul)
		g.Fmls(x, d, slope)
		g.SubInt(pos, pos, one)
	})
}

// eachBit runs row for every row of every column, with the row's bits of the
// parameter words spread over the lanes of bit; w is in bytes.
func (g *gen) eachBit(w neon.X, column func(offset neon.X), row func(bit neon.V), end func(offset neon.X)) {
	words, left, n, most := g.X(), g.X(), g.X(), g.X()
	bits, bit := g.V(), g.V()
	g.MovImm(most, 32)
	g.eachColumn(w, func(offset neon.X) {
		column(offset)
		g.LoadArg(words, "words")
		g.AddX(words, words, offset)
		g.LoadArg(left, "n")
		next, done := g.Label("word"), g.Label("done")
		g.Here(next)
		g.IfZero(left, done)
		g.MinX(n, left, most)
		g.SubX(left, left, n)
		g.Ldr(bits, words, 0)
		g.AddX(words, words, w)
		g.Loop(n, func() {
			g.Shl(bit, bits, 31)
			g.Ushr(bits, bits, 1)
			g.Sshr(bit, bit, 31)
			row(bit)
		})
		g.Jump(next)
		g.Here(done)
		end(offset)
	})
}

// mask emits Ops.Mask.
func (g *gen) mask() {
	g.Func("maskNEON", "s, max *float32, words *uint32, n, w int", "is Ops.Mask; works like maskGeneric.")
	w, t, s := g.bytes("w"), g.X(), g.X()
	x, mx, hidden := g.V(), g.V(), g.constantBits(0xFF800000, t)
	g.eachBit(w, func(offset neon.X) {
		g.LoadArg(s, "s")
		g.AddX(s, s, offset)
		g.lane(mx, "max", offset, t)
	}, func(bit neon.V) {
		g.Ldr(x, s, 0)
		g.Bsl(bit, x, hidden)
		g.Fmax(mx, mx, bit)
		g.Str(bit, s, 0)
		g.AddX(s, s, w)
	}, func(offset neon.X) { g.setLane(mx, "max", offset, t) })
	g.Ret()
}

// Below 1, tanh(x) is x + x³·P(x²)/Q(x²); see tanhGeneric.
var (
	tanhP = [...]float32{-0.3333333134651184, -0.014686569571495056}
	tanhQ = [...]float32{1, 0.4440595209598541, 0.0157197006046772}
)

// softcap emits Ops.Softcap.
func (g *gen) softcap() {
	g.Func("softcapNEON", "s, max *float32, n, w int, mul, softcap float32", "is Ops.Softcap; works like softcapGeneric.")
	t := g.X()
	mul, softcap := g.ArgFloat("mul"), g.ArgFloat("softcap")
	e := g.newExp2(1, 0, t)
	k := g.constant(-2*math.Log2E, t)
	p, q := []neon.V{g.constant(tanhP[0], t), g.constant(tanhP[1], t)}, []neon.V{}
	for _, c := range tanhQ {
		q = append(q, g.constant(c, t))
	}
	y, u, num, den, sign := g.V(), g.V(), g.V(), g.V(), g.V()
	one := q[0]
	g.eachScore(func(neon.X) {}, func(x neon.V, ptr neon.X) {
		g.Ldr(x, ptr, 0)
		g.Ushr(sign, x, 31)
		g.Shl(sign, sign, 31)
		g.Fmul(y, x, mul)
		g.Fabs(y, y)
		g.Fmul(e.x[0], y, k)
		g.eval(e, 1)
		// Below 1: num = y³·P, den = Q.
		g.Fmul(u, y, y)
		g.Mov(num, p[0])
		g.Fmla(num, u, p[1])
		g.Mov(den, q[1])
		g.Fmla(den, u, q[2])
		g.Mov(x, q[0])
		g.Fmla(x, den, u)
		g.Mov(den, x)
		g.Fmul(u, y, u)
		g.Fmul(num, u, num)
		// From 1 on: 1 - 2t/(1+t), t = exp(-2y).
		above, exp := u, e.p[0]
		g.Fcmge(above, y, one)
		g.Fadd(x, exp, one)
		g.selectInto(den, above, x, e.t[0])
		g.Fadd(x, exp, exp)
		g.Fneg(x, x)
		g.selectInto(num, above, x, e.t[0])
		g.selectInto(y, above, one, e.t[0])
		g.Fdiv(x, num, den)
		g.Fadd(x, y, x)
		g.Orr(x, x, sign)
		g.Fmul(x, x, softcap)
	})
}

// selectInto sets d to n where the mask is set.
func (g *gen) selectInto(d, mask, n, t neon.V) {
	g.Mov(t, mask)
	g.Bsl(t, n, d)
	g.Mov(d, t)
}

const (
	golden = 0x9E3779B97F4A7C15
	mixA   = 0xBF58476D1CE4E5B9
	mixB   = 0x94D049BB133111EB
)

// dropout emits Ops.Dropout. NEON has no product of 64-bit integers; the hash of
// a row is computed in general registers, lane by lane.
func (g *gen) dropout() {
	g.Func("dropoutNEON", "p *float32, key *uint64, threshold *uint32, inv *float32, first, n, w int",
		"is Ops.Dropout; works like dropoutGeneric.")
	p, key, threshold, inv, lanes := g.Arg("p"), g.Arg("key"), g.Arg("threshold"), g.Arg("inv"), g.Arg("w")
	pitch, ahead, step, a, b := g.bytes("w"), g.Arg("first"), g.X(), g.X(), g.X()
	g.Raw("MOVD $0x%x, %v", uint64(golden), step)
	g.Raw("MOVD $0x%x, %v", uint64(mixA), a)
	g.Raw("MOVD $0x%x, %v", uint64(mixB), b)
	g.LsrImm(ahead, ahead, 1)
	g.MulX(ahead, ahead, step)
	stream, draw, least, ptr, left, pairs := g.X(), g.X(), g.X(), g.X(), g.X(), g.X()
	by, x, zero := g.V(), g.V(), g.V()
	g.Zero(zero)
	mix := func() {
		g.AddX(stream, stream, step)
		g.Raw("EOR %v>>30, %v, %v", stream, stream, draw)
		g.MulX(draw, draw, a)
		g.Raw("EOR %v>>27, %v, %v", draw, draw, draw)
		g.MulX(draw, draw, b)
		g.Raw("EOR %v>>31, %v, %v", draw, draw, draw)
	}
	keep := func() {
		g.LdrS(x, ptr, 0)
		g.Raw("FMULS F%d, F%d, F%d", int(by), int(x), int(x))
		g.Raw("CMPW %v, %v", least, draw)
		g.Raw("FCSELS HS, F%d, F%d, F%d", int(x), int(zero), int(x))
		g.StrS(x, ptr, 0)
		g.AddX(ptr, ptr, pitch)
	}
	g.Loop(lanes, func() {
		g.LdrX(stream, key, 0)
		g.AddX(stream, stream, ahead)
		g.LdrW(least, threshold, 0)
		g.LdrS(by, inv, 0)
		g.MovX(ptr, p)
		g.LoadArg(left, "n")
		g.LsrImm(pairs, left, 1)
		g.Loop(pairs, func() {
			mix()
			keep()
			g.LsrImm(draw, draw, 32)
			keep()
		})
		g.AndImm(left, left, 1)
		even := g.Label("even")
		g.IfZero(left, even)
		mix()
		keep()
		g.Here(even)
		g.AddImm(key, key, 8)
		g.AddImm(threshold, threshold, 4)
		g.AddImm(inv, inv, 4)
		g.AddImm(p, p, 4)
	})
	g.Ret()
}

// bits emits Ops.Bits. A product gathers the lowest bits of eight booleans.
func (g *gen) bits() {
	g.Func("bitsNEON", "words *uint32, src *bool, off *int, n, w int", "is Ops.Bits; works like bitsGeneric.")
	words, src, off, lanes, pitch := g.Arg("words"), g.Arg("src"), g.Arg("off"), g.Arg("w"), g.bytes("w")
	spread, row, word, left, n, most := g.X(), g.X(), g.X(), g.X(), g.X(), g.X()
	seen, shift, t, one := g.X(), g.X(), g.X(), g.X()
	g.Raw("MOVD $0x0102040810204080, %v", spread)
	g.MovImm(most, 32)
	g.MovImm(one, 1)
	g.Loop(lanes, func() {
		g.LdrX(row, off, 0)
		g.AddX(row, row, src)
		g.MovX(word, words)
		g.LoadArg(left, "n")
		next, done := g.Label("word"), g.Label("done")
		g.Here(next)
		g.IfZero(left, done)
		g.MinX(n, left, most)
		g.SubX(left, left, n)
		// Bits past the last key are as if seen.
		g.MovImm(seen, -1)
		g.Raw("LSL %v, %v, %v", n, seen, seen)
		g.MovImm(shift, 0)
		eights := g.X()
		g.LsrImm(eights, n, 3)
		g.Loop(eights, func() {
			g.LdrX(t, row, 0)
			g.MulX(t, t, spread)
			g.LsrImm(t, t, 56)
			g.Raw("LSL %v, %v, %v", shift, t, t)
			g.Raw("ORR %v, %v, %v", t, seen, seen)
			g.AddImm(shift, shift, 8)
			g.AddImm(row, row, 8)
		})
		g.AndImm(n, n, 7)
		g.Loop(n, func() {
			g.LdrB(t, row, 0)
			g.Raw("LSL %v, %v, %v", shift, t, t)
			g.Raw("ORR %v, %v, %v", t, seen, seen)
			g.AddX(shift, shift, one)
			g.AddX(row, row, one)
		})
		g.LdrW(t, word, 0)
		g.Raw("AND %v, %v, %v", seen, t, t)
		g.StrW(t, word, 0)
		g.AddX(word, word, pitch)
		g.Jump(next)
		g.Here(done)
		g.AddImm(off, off, 8)
		g.AddImm(words, words, 4)
	})
	g.Ret()
}
