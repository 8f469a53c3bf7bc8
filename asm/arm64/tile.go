package main

import (
	"fmt"

	"github.com/seed-091431b3/attention/asm/neon"
)

// tile is the register plan of the matrix loops: acc[row][v] accumulates, b is
// one row of the strip, a holds a column of the panel, of which lanes are taken.
type tile struct {
	acc  [][]neon.V
	b, a []neon.V
}

func (g *gen) newTile(nv int) *tile {
	t := &tile{}
	for range panel {
		t.acc = append(t.acc, g.Vs(nv))
	}
	t.b, t.a = g.Vs(nv), g.Vs(panel/4)
	return t
}

// load loads consecutive vectors, in pairs.
func (g *gen) load(v []neon.V, base neon.X, offset int) {
	for ; len(v) >= 2; v, offset = v[2:], offset+32 {
		g.Ldp(v[0], v[1], base, offset)
	}
	if len(v) == 1 {
		g.Ldr(v[0], base, offset)
	}
}

// store is the inverse of load.
func (g *gen) store(v []neon.V, base neon.X, offset int) {
	for ; len(v) >= 2; v, offset = v[2:], offset+32 {
		g.Stp(v[0], v[1], base, offset)
	}
	if len(v) == 1 {
		g.Str(v[0], base, offset)
	}
}

// multiply accumulates n rank-one updates, advancing a and b: acc[row] +=
// a[row]·b.
func (g *gen) multiply(t *tile, a, b, n neon.X) {
	nv := len(t.b)
	g.Unrolled(n, 4, func(count int) {
		for k := range count {
			g.load(t.a, a, k*4*panel)
			g.load(t.b, b, k*16*nv)
			if k%2 == 0 {
				g.Prefetch(a, 1024+k*4*panel)
			}
			for row, acc := range t.acc {
				for v, x := range acc {
					g.FmlaElement(x, t.b[v], t.a[row/4], row%4)
				}
			}
		}
		g.AddImm(a, a, count*4*panel)
		g.AddImm(b, b, count*16*nv)
	})
}

// score emits Strip.Score for strips of nv vectors.
func (g *gen) score(nv int) {
	g.Func(fmt.Sprintf("scoreNEON_%d", 4*nv), "s, max, k, q *float32, dk, tiles int",
		fmt.Sprintf("is Strip.Score for %d lanes; works like scoreGeneric.", 4*nv))
	s, mx, k, q, dk, tiles := g.Arg("s"), g.Arg("max"), g.Arg("k"), g.Arg("q"), g.Arg("dk"), g.Arg("tiles")
	b, n := g.X(), g.X()
	t := g.newTile(nv)
	g.Loop(tiles, func() {
		for _, acc := range t.acc {
			for _, x := range acc {
				g.Zero(x)
			}
		}
		g.MovX(b, q)
		g.MovX(n, dk)
		g.multiply(t, k, b, n)
		g.load(t.b, mx, 0)
		for row, acc := range t.acc {
			g.store(acc, s, row*16*nv)
			for v, x := range acc {
				g.Fmax(t.b[v], t.b[v], x)
			}
		}
		g.store(t.b, mx, 0)
		g.AddImm(s, s, panel*16*nv)
	})
	g.Ret()
}

// accumulate emits Strip.Accumulate for strips of nv vectors.
func (g *gen) accumulate(nv int) {
	g.Func(fmt.Sprintf("accumulateNEON_%d", 4*nv), "o, v, p, alpha *float32, n, step, tiles int",
		fmt.Sprintf("is Strip.Accumulate for %d lanes; works like accumulateGeneric.", 4*nv))
	o, v, p, alpha := g.Arg("o"), g.Arg("v"), g.Arg("p"), g.Arg("alpha")
	keys, step, tiles := g.Arg("n"), g.Arg("step"), g.Arg("tiles")
	a, b, n := g.X(), g.X(), g.X()
	t := g.newTile(nv)
	g.LslImm(step, step, 2)
	g.Loop(tiles, func() {
		empty, ready := g.Label("empty"), g.Label("ready")
		g.IfZero(alpha, empty)
		g.load(t.b, alpha, 0)
		for row, acc := range t.acc {
			g.load(acc, o, row*16*nv)
			for v, x := range acc {
				g.Fmul(x, x, t.b[v])
			}
		}
		g.Jump(ready)
		g.Here(empty)
		for _, acc := range t.acc {
			for _, x := range acc {
				g.Zero(x)
			}
		}
		g.Here(ready)
		g.MovX(a, v)
		g.MovX(b, p)
		g.MovX(n, keys)
		g.multiply(t, a, b, n)
		for row, acc := range t.acc {
			g.store(acc, o, row*16*nv)
		}
		g.AddImm(o, o, panel*16*nv)
		g.AddX(v, v, step)
	})
	g.Ret()
}

// addOuter emits Ops.AddOuter: the keys of a panel by two panels of channels,
// or by one. Four query rows are taken at a time, whose lanes lie together.
func (g *gen) addOuter() {
	g.Func("addOuterNEON", "sum, p, x *float32, tiles, rows, w, pStep, panels, gStep, xStep int",
		"is Ops.AddOuter; works like addOuterGeneric.")
	sum, x, panels := g.Arg("sum"), g.Arg("x"), g.Arg("panels")
	w, gStep, xStep, next := g.Arg("w"), g.Arg("gStep"), g.Arg("xStep"), g.Arg("pStep")
	for _, v := range []neon.X{w, gStep, xStep, next} {
		g.LslImm(v, v, 2)
	}
	for _, count := range []int{2, 1} {
		top, done := g.Label("panels"), g.Label("done")
		g.Here(top)
		g.IfLess(panels, count, done)
		xs, vs := g.Used()
		g.outerPanels(count, sum, x, w, gStep, xStep, next)
		g.Reset(xs, vs)
		for range count {
			g.AddX(sum, sum, gStep)
			g.AddX(x, x, xStep)
		}
		g.SubImm(panels, panels, count)
		g.Jump(top)
		g.Here(done)
	}
	g.Ret()
}

// outerPanels adds to count panels of all keys.
func (g *gen) outerPanels(count int, sum, x, w, gStep, xStep, next neon.X) {
	p, tiles := g.Arg("p"), g.Arg("tiles")
	to := []neon.X{g.X(), g.X()}
	g.MovX(to[0], sum)
	g.AddX(to[1], sum, gStep)
	from := []neon.X{g.X(), g.X()}
	key := make([]neon.X, panel)
	for j := range key {
		key[j] = g.X()
	}
	left, n, at := g.X(), g.X(), g.X() // at: bytes from the start of the strip
	var acc [panel][]neon.V
	for j := range acc {
		acc[j] = g.Vs(count)
	}
	a, b := g.Vs(panel), [2][]neon.V{g.Vs(4), nil}
	if count == 2 {
		b[1] = g.Vs(4)
	}
	// add takes query row i of four: its channels are in b[.][i].
	add := func(i int) {
		for j := range acc {
			for v, y := range acc[j] {
				g.FmlaElement(y, b[v][i], a[j], i)
			}
		}
	}
	// channels loads those of four query rows.
	channels := func(offset int) {
		for v := range count {
			g.load(b[v], from[v], offset)
		}
	}
	g.Loop(tiles, func() {
		for j := range acc {
			for _, y := range acc[j] {
				g.Zero(y)
			}
		}
		g.MovX(from[0], x)
		g.AddX(from[1], x, xStep)
		g.MovX(key[0], p)
		for j := 1; j < panel; j++ {
			g.AddX(key[j], key[j-1], w)
		}
		g.LoadArg(left, "rows")
		strip, done := g.Label("strip"), g.Label("done")
		g.Here(strip)
		g.LsrImm(n, w, 2)
		g.MinX(n, n, left)
		g.SubX(left, left, n)
		// A whole strip of the main width needs no loop of its own.
		other := g.Label("other")
		g.Raw("CMP $%d, %v", 4*strips[0], n)
		g.Raw("BNE %s", other)
		for four := range strips[0] {
			channels(64 * four)
			for j := range key {
				g.Ldr(a[j], key[j], 16*four)
			}
			for i := range 4 {
				add(i)
			}
		}
		for v := range count {
			g.AddImm(from[v], from[v], 64*strips[0])
		}
		for _, k := range key {
			g.AddX(k, k, next)
		}
		g.IfNotZero(left, strip)
		g.Jump(done)
		g.Here(other)
		g.MovImm(at, 0)
		g.eachFour(n, func() {
			channels(0)
			for v := range count {
				g.AddImm(from[v], from[v], 64)
			}
			for j := range key {
				g.LdrIndex(a[j], key[j], at)
			}
			g.AddImm(at, at, 16)
			for i := range 4 {
				add(i)
			}
		}, func() {
			for j := range key {
				g.LdrIndex(a[j], key[j], at)
			}
		}, func(i int) {
			for v := range count {
				g.Ldr(b[v][i], from[v], 16*i)
			}
			add(i)
		})
		g.IfZero(left, done)
		for _, k := range key {
			g.AddX(k, k, next)
		}
		g.Jump(strip)
		g.Here(done)
		for v := range count {
			for j := range acc {
				g.Ldr(a[j], to[v], 16*j)
			}
			for j := range acc {
				g.Fadd(a[j], a[j], acc[j][v])
				g.Str(a[j], to[v], 16*j)
			}
			g.AddImm(to[v], to[v], 16*panel)
		}
		for range panel {
			g.AddX(p, p, w)
		}
	})
}

// eachFour runs four for each four of n, then, if some are left, prepare and
// one for each of those.
func (g *gen) eachFour(n neon.X, four, prepare func(), one func(i int)) {
	fours, done := g.X(), g.Label("done")
	g.LsrImm(fours, n, 2)
	g.Loop(fours, four)
	g.AndImm(n, n, 3)
	g.IfZero(n, done)
	prepare()
	for i := range 3 {
		one(i)
		if i < 2 {
			g.SubImm(n, n, 1)
			g.IfZero(n, done)
		}
	}
	g.Here(done)
}
