package main

import "github.com/seed-091431b3/attention/asm/neon"

// format is one of kernel.Format.
type format struct {
	name string
	size int // bytes of an element
}

var (
	float32s  = format{"F32", 4}
	bfloat16s = format{"BF16", 2}
	float16s  = format{"F16", 2}
)

// Constants of kernel.Stored: a panel is run elements wide, and rows are taken
// four at a time.
const run, fewRows = 16, 4

// few is the register plan of the loops for few rows: acc[r][x] accumulates
// vector x of a panel for lane r, b is a row of the panel, widened from raw, and
// a are the lanes.
type few struct {
	*gen
	f                 format
	acc               [fewRows][]neon.V
	raw, b            []neon.V
	a, zero           neon.V
	data, ahead       neon.X // the panel at hand, and the one to fetch meanwhile
	pitch, left, lane neon.X // of the tile of rows: bytes of its rows, rows to come, bytes to the lanes at hand
}

// widen widens the eight numbers in raw to two vectors. Zero holds zeros.
func (g *gen) widen(f format, b []neon.V, raw, zero neon.V) {
	if f == bfloat16s {
		g.Zip1H(b[0], zero, raw)
		g.Zip2H(b[1], zero, raw)
		return
	}
	g.FcvtlH(b[0], raw)
	g.Fcvtl2H(b[1], raw)
}

// loadRow leaves row i of the panel at p in b.
func (w *few) loadRow(p neon.X, i int) {
	if w.f == float32s {
		w.load(w.b, p, 4*run*i)
		return
	}
	w.load(w.raw, p, 2*run*i)
	for half, raw := range w.raw {
		w.widen(w.f, w.b[2*half:][:2], raw, w.zero)
	}
}

// multiply accumulates n rank-one updates of the panel and of the lanes at hand
// of a tile. One row alone is worth a loop of its own: the model of neoverse-n1
// has 4.5 to 8 cycles an update instead of 8 to 14.
func (w *few) multiply(tile, n string) {
	p, fetch, from, count := w.X(), w.X(), w.X(), w.X()
	w.MovX(p, w.data)
	w.MovX(fetch, w.ahead)
	w.LoadArg(from, tile)
	w.AddX(from, from, w.lane)
	w.LoadArg(count, n)
	single, done := w.Label("single"), w.Label("done")
	w.IfLess(w.left, 2, single)
	w.updates(w.acc[:], p, fetch, from, count)
	w.Jump(done)
	w.Here(single)
	w.updates(w.acc[:1], p, fetch, from, count)
	w.Here(done)
}

// updates is the loop of multiply, advancing all it is given; lanes are the
// accumulators to update.
func (w *few) updates(lanes [][]neon.V, p, fetch, from, count neon.X) {
	bytes := run * w.f.size
	w.Unrolled(count, 2, func(count int) {
		for i := range count {
			w.loadRow(p, i)
			w.Ldr(w.a, from, 0)
			w.AddX(from, from, w.pitch)
			if i*bytes%64 == 0 {
				w.Prefetch(fetch, i*bytes)
			}
			for r, acc := range lanes {
				for x, v := range acc {
					w.FmlaElement(v, w.b[x], w.a, r)
				}
			}
		}
		w.AddImm(p, p, count*bytes)
		w.AddImm(fetch, fetch, count*bytes)
	})
}

// eachPanel runs body for each panel at data, of which there is one every step
// rows, and each four rows of the tile, and then after.
func (g *gen) eachPanel(f format, data, step string, body func(w *few), after func(w *few)) {
	w := &few{gen: g, f: f, raw: g.Vs(2), b: g.Vs(run / 4), a: g.V(), zero: g.V(),
		data: g.Arg(data), ahead: g.X(), pitch: g.bytes("w"), left: g.X(), lane: g.X()}
	for r := range w.acc {
		w.acc[r] = g.Vs(run / 4)
	}
	bytes, panels, t := g.Arg(step), g.Arg("panels"), g.X()
	g.MovImm(t, run*f.size)
	g.MulX(bytes, bytes, t)
	g.Zero(w.zero)
	g.Loop(panels, func() {
		g.LoadArg(t, "next")
		g.AddX(w.ahead, w.data, bytes)
		g.Raw("CMP $1, %v", panels)
		g.Raw("CSEL EQ, %v, %v, %v", t, w.ahead, w.ahead)
		g.MovImm(w.lane, 0)
		g.LoadArg(w.left, "rows")
		lanes := g.Label("lanes")
		g.Here(lanes)
		body(w)
		g.AddImm(w.lane, w.lane, 4*fewRows)
		g.Raw("SUBS $%d, %v, %v", fewRows, w.left, w.left)
		g.Raw("BGT %s", lanes)
		g.MovX(w.data, w.ahead)
		after(w)
	})
	g.Ret()
}

// clear empties the accumulators.
func (w *few) clear() {
	for _, acc := range w.acc {
		for _, v := range acc {
			w.Zero(v)
		}
	}
}

// scoreStored emits Stored.Score.
func (g *gen) scoreStored(f format) {
	g.Func("score"+f.name+"NEON", "s, max, q *float32, k, next *byte, dk, panels, rows, w int",
		"is Stored.Score; works like scoreStoredGeneric.")
	s, to, max, big := g.Arg("s"), g.X(), g.X(), g.V()
	g.eachPanel(f, "k", "dk", func(w *few) {
		w.clear()
		w.multiply("q", "dk")
		g.LoadArg(max, "max")
		g.AddX(max, max, w.lane)
		g.Ldr(big, max, 0)
		g.AddX(to, s, w.lane)
		for x := range w.acc[0] {
			rows := []neon.V{w.acc[0][x], w.acc[1][x], w.acc[2][x], w.acc[3][x]}
			g.transpose4(rows, rows, w.b)
			for _, v := range rows {
				g.Fmax(big, big, v)
				g.Str(v, to, 0)
				g.AddX(to, to, w.pitch)
			}
		}
		g.Str(big, max, 0)
	}, func(w *few) { g.AddShift(s, s, w.pitch, 4) })
}

// accumulateStored emits Stored.Accumulate.
func (g *gen) accumulateStored(f format) {
	g.Func("accumulate"+f.name+"NEON", "o, p, alpha *float32, v, next *byte, n, step, panels, rows, w int",
		"is Stored.Accumulate; works like accumulateStoredGeneric.")
	// Of o: where the panel at hand starts, bytes of a row, and the rows at hand.
	column, row, o := g.Arg("o"), g.Arg("panels"), g.xs(fewRows)
	alpha := g.X()
	g.LslImm(row, row, 6)
	g.eachPanel(f, "v", "step", func(w *few) {
		// Lanes are four bytes each.
		g.LsrImm(o[0], w.lane, 2)
		g.MulX(o[0], o[0], row)
		g.AddX(o[0], o[0], column)
		for r := 1; r < fewRows; r++ {
			g.AddX(o[r], o[r-1], row)
		}
		empty, ready := g.Label("empty"), g.Label("ready")
		g.LoadArg(alpha, "alpha")
		g.IfZero(alpha, empty)
		g.AddX(alpha, alpha, w.lane)
		g.Ldr(w.a, alpha, 0)
		for r, acc := range w.acc {
			g.load(acc, o[r], 0)
			for _, v := range acc {
				g.FmulElement(v, v, w.a, r)
			}
		}
		g.Jump(ready)
		g.Here(empty)
		w.clear()
		g.Here(ready)
		w.multiply("p", "n")
		for r, acc := range w.acc {
			g.store(acc, o[r], 0)
		}
	}, func(*few) { g.AddImm(column, column, 4*run) })
}

// widenStored emits Stored.Widen.
func (g *gen) widenStored(f format) {
	g.Func("widen"+f.name+"NEON", "dst *float32, src *byte, n int", "is Stored.Widen; works like widenGeneric.")
	dst, src := g.Arg("dst"), g.Arg("src")
	raw, zero, wide := g.V(), g.V(), g.Vs(2)
	g.Zero(zero)
	g.eightAndOne(func() {
		g.Ldr(raw, src, 0)
		g.widen(f, wide, raw, zero)
		g.store(wide, dst, 0)
		g.AddImm(src, src, 16)
		g.AddImm(dst, dst, 32)
	}, func() {
		g.LdrH(raw, src)
		g.widen(f, wide, raw, zero)
		g.StrS(wide[0], dst, 0)
		g.AddImm(src, src, 2)
		g.AddImm(dst, dst, 4)
	})
}

// narrowStored emits Stored.Narrow.
func (g *gen) narrowStored(f format) {
	g.Func("narrow"+f.name+"NEON", "dst *byte, src *float32, n int", "is Stored.Narrow; works like narrowGeneric.")
	dst, src, x := g.Arg("dst"), g.Arg("src"), g.Vs(2)
	narrow := func() {
		g.FcvtnH(x[0], x[0])
		g.Fcvtn2H(x[0], x[1])
	}
	if f == bfloat16s {
		narrow = g.narrowBF16(x)
	}
	g.eightAndOne(func() {
		g.load(x, src, 0)
		narrow()
		g.Str(x[0], dst, 0)
		g.AddImm(src, src, 32)
		g.AddImm(dst, dst, 16)
	}, func() {
		g.LdrS(x[0], src, 0)
		narrow()
		g.StrH(x[0], dst)
		g.AddImm(src, src, 4)
		g.AddImm(dst, dst, 2)
	})
}

// narrowBF16 returns what leaves x as eight bfloat16 in x[0].
func (g *gen) narrowBF16(x []neon.V) func() {
	t := g.X()
	half, quiet, rounded, is := g.constantBits(0x7FFF, t), g.constantBits(1<<22, t), g.V(), g.Vs(2)
	return func() {
		for i, v := range x {
			// Half of the last place, less one where the last bit is even.
			g.Shl(rounded, v, 15)
			g.Ushr(rounded, rounded, 31)
			g.AddInt(rounded, rounded, half)
			g.AddInt(rounded, rounded, v)
			g.Fcmeq(is[i], v, v)
			g.Orr(v, v, quiet)
			g.Bsl(is[i], rounded, v)
		}
		g.Uzp2H(x[0], is[0], is[1])
	}
}

// eightAndOne runs eight for each eight of the parameter n, and one for each of
// the rest.
func (g *gen) eightAndOne(eight, one func()) {
	n, rest := g.Arg("n"), g.X()
	g.AndImm(rest, n, 7)
	g.LsrImm(n, n, 3)
	g.Loop(n, eight)
	g.Loop(rest, one)
	g.Ret()
}
