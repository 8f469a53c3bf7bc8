package main

import "github.com/seed-091431b3/attention/asm/neon"

// P and dS are carried times 2^gradientShift; see kernel.GradShift.
const gradientShift = 32

// gradient emits Ops.Gradient. As in exp2Shifted the fraction comes from x, not
// from a rounded product.
func (g *gen) gradient() {
	g.Func("gradientNEON", "s, dp, keep, hi, lo, delta *float32, n, w int, unit, rest float32",
		"is Ops.Gradient; works like gradientGeneric.")
	w, t, keep := g.bytes("w"), g.X(), g.Arg("keep")
	const chains = 3
	e := g.newExp2(chains, gradientShift, t)
	most := g.constant(127-gradientShift, t)
	unit, rest, high, low, delta := g.ArgFloat("unit"), g.ArgFloat("rest"), g.V(), g.V(), g.V()
	g.Fdiv(e.least, e.least, unit)
	g.Fdiv(most, most, unit)
	body := func(walk *walk, kept bool) func(count int) {
		return func(count int) {
			each := func(f func(i int)) { eachOf(count, f) }
			each(func(i int) { g.Ldr(e.x[i], walk.rows[0][i], 0) })
			each(func(i int) { g.Fsub(e.x[i], e.x[i], high) })
			each(func(i int) { g.Fsub(e.x[i], e.x[i], low) })
			each(func(i int) { g.Fmax(e.x[i], e.x[i], e.least) })
			each(func(i int) { g.Fmin(e.x[i], e.x[i], most) })
			each(func(i int) { g.Fmul(e.n[i], e.x[i], unit) })
			each(func(i int) { g.Fadd(e.n[i], e.n[i], e.magic) })
			each(func(i int) { g.Fsub(e.t[i], e.magic, e.n[i]) })
			each(func(i int) { g.Fmla(e.t[i], e.x[i], unit) })
			each(func(i int) { g.Fmla(e.t[i], e.x[i], rest) })
			each(func(i int) { g.Mov(e.x[i], e.t[i]) })
			g.fraction(e, count)
			each(func(i int) {
				p, d, k := e.p[i], e.t[i], e.x[i]
				g.Ldr(d, walk.rows[1][i], 0)
				if kept {
					g.Ldr(k, walk.rows[2][i], 0)
					g.Fneg(e.n[i], delta)
					g.Fmla(e.n[i], d, k)
					g.Fmul(d, p, e.n[i])
					g.Fmul(k, p, k)
					g.Str(k, walk.rows[0][i], 0)
				} else {
					g.Fsub(d, d, delta)
					g.Fmul(d, p, d)
					g.Str(p, walk.rows[0][i], 0)
				}
				g.Str(d, walk.rows[1][i], 0)
			})
		}
	}
	all := g.newWalk(3, chains)
	two := &walk{rows: all.rows[:2], left: all.left}
	g.eachColumn(w, func(offset neon.X) {
		g.lane(high, "hi", offset, t)
		g.lane(low, "lo", offset, t)
		g.lane(delta, "delta", offset, t)
		without, done := g.Label("without"), g.Label("done")
		g.IfZero(keep, without)
		g.start(all, offset, "s", "dp", "keep")
		g.down(all, w, body(all, true))
		g.Jump(done)
		g.Here(without)
		g.start(two, offset, "s", "dp")
		g.down(two, w, body(two, false))
		g.Here(done)
	})
	g.Ret()
}

// hide emits Ops.Hide.
func (g *gen) hide() {
	g.Func("hideNEON", "a, b *float32, words *uint32, n, w int", "is Ops.Hide; works like hideGeneric.")
	w, x := g.bytes("w"), g.V()
	a, b := g.X(), g.X()
	g.eachBit(w, func(offset neon.X) {
		g.LoadArg(a, "a")
		g.LoadArg(b, "b")
		g.AddX(a, a, offset)
		g.AddX(b, b, offset)
	}, func(bit neon.V) {
		for _, p := range []neon.X{a, b} {
			g.Ldr(x, p, 0)
			g.And(x, x, bit)
			g.Str(x, p, 0)
			g.AddX(p, p, w)
		}
	}, func(neon.X) {})
	g.Ret()
}

// uncap emits Ops.Uncap.
func (g *gen) uncap() {
	g.Func("uncapNEON", "ds, capped *float32, n, w int, inv float32", "is Ops.Uncap; works like uncapGeneric.")
	w, t := g.bytes("w"), g.X()
	inv, one, x, y := g.ArgFloat("inv"), g.constant(1, t), g.V(), g.V()
	walk := g.newWalk(2, 1)
	g.eachColumn(w, func(offset neon.X) {
		g.start(walk, offset, "ds", "capped")
		g.down(walk, w, func(int) {
			g.Ldr(x, walk.rows[1][0], 0)
			g.Fmul(x, x, inv)
			g.Mov(y, one)
			g.Fmls(y, x, x)
			g.Ldr(x, walk.rows[0][0], 0)
			g.Fmul(x, x, y)
			g.Str(x, walk.rows[0][0], 0)
		})
	})
	g.Ret()
}

// dot emits Ops.Dot.
func (g *gen) dot() {
	g.Func("dotNEON", "d, a, b *float32, n, w int", "is Ops.Dot; works like dotGeneric.")
	w, t := g.bytes("w"), g.X()
	sum, x, y := g.V(), g.V(), g.V()
	walk := g.newWalk(2, 1)
	g.eachColumn(w, func(offset neon.X) {
		g.Zero(sum)
		g.start(walk, offset, "a", "b")
		g.down(walk, w, func(int) {
			g.Ldr(x, walk.rows[0][0], 0)
			g.Ldr(y, walk.rows[1][0], 0)
			g.Fmla(sum, x, y)
		})
		g.setLane(sum, "d", offset, t)
	})
	g.Ret()
}
