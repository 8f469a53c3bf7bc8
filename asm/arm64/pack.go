package main

import "github.com/seed-091431b3/attention/asm/neon"

// transpose4 transposes r, four vectors, into o by way of t.
func (g *gen) transpose4(o, r, t []neon.V) {
	g.Trn1(t[0], r[0], r[1])
	g.Trn2(t[1], r[0], r[1])
	g.Trn1(t[2], r[2], r[3])
	g.Trn2(t[3], r[2], r[3])
	g.Zip1D(o[0], t[0], t[2])
	g.Zip1D(o[1], t[1], t[3])
	g.Zip2D(o[2], t[0], t[2])
	g.Zip2D(o[3], t[1], t[3])
}

// xs hands out n general registers.
func (g *gen) xs(n int) []neon.X {
	x := make([]neon.X, n)
	for i := range x {
		x[i] = g.X()
	}
	return x
}

// eachFourLanes runs body for each four lanes of a tile, with pointers to their
// rows in base, and p at the tile's first row of them.
func (g *gen) eachFourLanes(base, tile string, body func(rows []neon.X, p neon.X)) {
	from, start, off, lanes := g.Arg(base), g.Arg(tile), g.Arg("off"), g.Arg("w")
	rows, p := g.xs(4), g.X()
	g.LsrImm(lanes, lanes, 2)
	g.Loop(lanes, func() {
		for i, r := range rows {
			g.LdrX(r, off, 8*i)
			g.AddShift(r, from, r, 2)
		}
		g.MovX(p, start)
		body(rows, p)
		g.AddImm(off, off, 32)
		g.AddImm(start, start, 16)
	})
	g.Ret()
}

// gather emits Ops.Gather.
func (g *gen) gather() {
	g.Func("gatherNEON", "dst, src *float32, off *int, n, w int, mul float32", "is Ops.Gather; works like gatherGeneric.")
	mul, pitch, n := g.ArgFloat("mul"), g.bytes("w"), g.X()
	r, t, o := g.Vs(4), g.Vs(4), g.Vs(4)
	g.eachFourLanes("src", "dst", func(rows []neon.X, p neon.X) {
		g.LoadArg(n, "n")
		g.LsrImm(n, n, 2)
		g.Loop(n, func() {
			for i := range r {
				g.Ldr(r[i], rows[i], 0)
				g.AddImm(rows[i], rows[i], 16)
			}
			g.transpose4(o, r, t)
			for _, v := range o {
				g.Fmul(v, v, mul)
				g.Str(v, p, 0)
				g.AddX(p, p, pitch)
			}
		})
		g.LoadArg(n, "n")
		g.AndImm(n, n, 3)
		g.Loop(n, func() {
			for i := range rows {
				g.LdrLane(r[0], i, rows[i])
				g.AddImm(rows[i], rows[i], 4)
			}
			g.Fmul(r[0], r[0], mul)
			g.Str(r[0], p, 0)
			g.AddX(p, p, pitch)
		})
	})
}

// scatter emits Ops.Scatter.
func (g *gen) scatter() {
	g.Func("scatterNEON", "dst *float32, off *int, src, inv *float32, n, w int", "is Ops.Scatter; works like scatterGeneric.")
	pitch, n, factors := g.bytes("w"), g.X(), g.Arg("inv")
	by, zero, r, t, o := g.V(), g.V(), g.Vs(4), g.Vs(4), g.Vs(4)
	g.Zero(zero)
	g.eachFourLanes("dst", "src", func(rows []neon.X, p neon.X) {
		g.Ldr(by, factors, 0)
		g.AddImm(factors, factors, 16)
		row := func(v neon.V) {
			g.Ldr(v, p, 0)
			g.Fmul(v, v, by)
			g.Fadd(v, v, zero)
			g.AddX(p, p, pitch)
		}
		g.LoadArg(n, "n")
		g.LsrImm(n, n, 2)
		g.Loop(n, func() {
			for _, v := range r {
				row(v)
			}
			g.transpose4(o, r, t)
			for i, v := range o {
				g.Str(v, rows[i], 0)
				g.AddImm(rows[i], rows[i], 16)
			}
		})
		g.LoadArg(n, "n")
		g.AndImm(n, n, 3)
		g.Loop(n, func() {
			row(r[0])
			for i := range rows {
				g.StrLane(r[0], i, rows[i])
				g.AddImm(rows[i], rows[i], 4)
			}
		})
	})
}

// packK emits Ops.PackK.
func (g *gen) packK() {
	g.Func("packKNEON", "dst, src *float32, stride, n, d int", "is Ops.PackK; works like packKGeneric.")
	dst, src, stride, left, d := g.Arg("dst"), g.Arg("src"), g.bytes("stride"), g.Arg("n"), g.X()
	rows := g.xs(panel)
	r, t, o := g.Vs(8), g.Vs(4), g.Vs(8)
	top, done := g.Label("panel"), g.Label("done")
	g.Here(top)
	g.IfLess(left, 1, done)
	g.MovX(rows[0], src)
	for i := 1; i < panel; i++ {
		// A row past the end is the last one again.
		g.AddX(rows[i], rows[i-1], stride)
		g.Raw("CMP $%d, %v", i, left)
		g.Raw("CSEL GT, %v, %v, %v", rows[i], rows[i-1], rows[i])
	}
	g.AddShift(src, src, stride, 3)
	g.LoadArg(d, "d")
	g.LsrImm(d, d, 2)
	g.Loop(d, func() {
		for i := range rows {
			g.Ldr(r[i], rows[i], 0)
			g.AddImm(rows[i], rows[i], 16)
		}
		g.transpose4(o[:4], r[:4], t)
		g.transpose4(o[4:], r[4:], t)
		for c := range 4 {
			g.Stp(o[c], o[4+c], dst, 32*c)
		}
		g.AddImm(dst, dst, 128)
	})
	g.LoadArg(d, "d")
	g.AndImm(d, d, 3)
	g.Loop(d, func() {
		for i := range rows {
			g.LdrLane(o[i/4], i%4, rows[i])
			g.AddImm(rows[i], rows[i], 4)
		}
		g.Stp(o[0], o[1], dst, 0)
		g.AddImm(dst, dst, 32)
	})
	g.SubImm(left, left, panel)
	g.Jump(top)
	g.Here(done)
	g.Ret()
}

// returnFinite returns whether a sum of products with zero is a number in all
// lanes.
func (g *gen) returnFinite(sum, t neon.V, x neon.X) {
	g.Fcmeq(t, sum, sum)
	y := g.X()
	g.Raw("VMOV %v.D[0], %v", t, x)
	g.Raw("VMOV %v.D[1], %v", t, y)
	g.Raw("AND %v, %v, %v", x, y, x)
	g.Raw("CMP $-1, %v", x)
	g.Raw("CSET EQ, %v", x)
	g.ReturnBool("finite", x)
	g.Ret()
}

// packV emits Ops.PackV.
func (g *gen) packV() {
	g.Func("packVNEON", "(dst, src *float32, stride, n, d, step int) (finite bool)", "is Ops.PackV; works like packVGeneric.")
	dst, src, stride, step, d := g.Arg("dst"), g.Arg("src"), g.bytes("stride"), g.bytes("step"), g.Arg("d")
	keys, from, to, row, at, c := g.X(), g.X(), g.X(), g.X(), g.X(), g.X()
	zero, sums, x, t := g.V(), g.Vs(2), g.Vs(2), g.V()
	g.Zero(zero)
	g.Zero(sums[0])
	g.Zero(sums[1])
	top, tail, done := g.Label("panel"), g.Label("tail"), g.Label("done")
	g.Here(top)
	g.IfLess(d, panel, tail)
	g.MovX(from, src)
	g.MovX(to, dst)
	g.LoadArg(keys, "n")
	g.Loop(keys, func() {
		g.load(x, from, 0)
		g.Fmla(sums[0], x[0], zero)
		g.Fmla(sums[1], x[1], zero)
		g.store(x, to, 0)
		g.AddX(from, from, stride)
		g.AddImm(to, to, 32)
	})
	g.AddImm(src, src, 32)
	g.AddX(dst, dst, step)
	g.SubImm(d, d, panel)
	g.Jump(top)
	g.Here(tail)
	g.IfZero(d, done)
	g.LoadArg(keys, "n")
	g.Loop(keys, func() {
		g.Str(zero, dst, 0)
		g.Str(zero, dst, 16)
		g.MovX(row, src)
		g.MovX(at, dst)
		g.MovX(c, d)
		g.Loop(c, func() {
			g.LdrS(t, row, 0)
			g.Fmla(sums[0], t, zero)
			g.StrS(t, at, 0)
			g.AddImm(row, row, 4)
			g.AddImm(at, at, 4)
		})
		g.AddX(src, src, stride)
		g.AddImm(dst, dst, 32)
	})
	g.Here(done)
	g.Fadd(sums[0], sums[0], sums[1])
	g.returnFinite(sums[0], t, c)
}

// eachRow walks n rows in memory and in panels side by side: whole and one get
// pointers to four channels, or to one of the last, and must not move them;
// before comes before those of the last.
func (g *gen) eachRow(packed, loose string, whole, one func(row, panel neon.X), before func(panel neon.X)) {
	panels, base, off, n, step := g.Arg(packed), g.Arg(loose), g.Arg("off"), g.Arg("n"), g.bytes("step")
	row, panel, c := g.X(), g.X(), g.X()
	g.Loop(n, func() {
		g.LdrX(row, off, 0)
		g.AddImm(off, off, 8)
		g.AddShift(row, base, row, 2)
		g.MovX(panel, panels)
		g.AddImm(panels, panels, 4*columns)
		g.LoadArg(c, "d")
		g.LsrImm(c, c, 2)
		g.Loop(c, func() {
			whole(row, panel)
			g.AddImm(row, row, 16)
			g.AddX(panel, panel, step)
		})
		g.LoadArg(c, "d")
		g.AndImm(c, c, 3)
		done := g.Label("whole")
		g.IfZero(c, done)
		before(panel)
		g.Loop(c, func() {
			one(row, panel)
			g.AddImm(row, row, 4)
			g.AddImm(panel, panel, 4)
		})
		g.Here(done)
	})
}

// packRows emits Ops.PackRows.
func (g *gen) packRows() {
	g.Func("packRowsNEON", "(dst, src *float32, off *int, n, d, step int) (finite bool)", "is Ops.PackRows; works like packRowsGeneric.")
	zero, sum, x, t := g.V(), g.V(), g.V(), g.X()
	g.Zero(zero)
	g.Zero(sum)
	g.eachRow("dst", "src", func(row, panel neon.X) {
		g.Ldr(x, row, 0)
		g.Fmla(sum, x, zero)
		g.Str(x, panel, 0)
	}, func(row, panel neon.X) {
		g.LdrS(x, row, 0)
		g.Fmla(sum, x, zero)
		g.StrS(x, panel, 0)
	}, func(panel neon.X) { g.Str(zero, panel, 0) })
	g.returnFinite(sum, x, t)
}

// unpackRows emits Ops.UnpackRows.
func (g *gen) unpackRows() {
	g.Func("unpackRowsNEON", "dst *float32, off *int, src *float32, n, d, step int, mul float32", "is Ops.UnpackRows; works like unpackRowsGeneric.")
	mul, zero, x := g.ArgFloat("mul"), g.V(), g.V()
	g.Zero(zero)
	scale := func() {
		g.Fmul(x, x, mul)
		g.Fadd(x, x, zero)
	}
	g.eachRow("src", "dst", func(row, panel neon.X) {
		g.Ldr(x, panel, 0)
		scale()
		g.Str(x, row, 0)
	}, func(row, panel neon.X) {
		g.LdrS(x, panel, 0)
		scale()
		g.StrS(x, row, 0)
	}, func(neon.X) {})
	g.Ret()
}
