package main

import (
	"fmt"

	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// tile is the register plan of the matrix loops: acc[row][v] accumulates, b
// holds one row of the strip, a the broadcasts, taken in turn.
type tile struct {
	acc [][]reg.VecPhysical
	b   []reg.VecPhysical
	a   []reg.VecPhysical
}

func (g *gen) newTile(nv int) *tile {
	t := &tile{}
	for range g.panel {
		t.acc = append(t.acc, g.vecN(nv))
	}
	t.b = g.vecN(nv)
	t.a = g.vecN(min(len(g.vecs)-g.used, 4))
	return t
}

// prefetchPanel is how far ahead, in bytes, the panels are fetched.
const prefetchPanel = 2048

// multiply accumulates n rank-one updates: acc[row] += a[row] * b, where a is a
// column of a panel and b a row of the strip, both advancing. It destroys n, a
// and b.
func (g *gen) multiply(t *tile, a, b, n reg.GPVirtual) {
	nv := len(t.b)
	turn := 0
	g.unrolled(n, 4, func(k int) {
		if (k*g.panel*4)%64 == 0 {
			g.PREFETCHT0(at(a, k*g.panel*4+prefetchPanel))
		}
		for v, r := range t.b {
			g.VMOVUPS(at(b, (k*nv+v)*g.bytes()), r)
		}
		for row, acc := range t.acc {
			x := t.a[turn%len(t.a)]
			turn++
			g.VBROADCASTSS(at(a, (k*g.panel+row)*4), x)
			for v := range acc {
				g.VFMADD231PS(t.b[v], x, acc[v])
			}
		}
	}, func(count int) {
		g.ADDQ(imm(count*g.panel*4), a)
		g.ADDQ(imm(count*nv*g.bytes()), b)
	})
}

// score emits Strip.Score for strips of nv vectors.
func (g *gen) score(nv int) {
	g.function(fmt.Sprintf("score%s_%d", g.name, nv*g.lanes), "s, max, k, q *float32, dk, tiles int",
		fmt.Sprintf("is Strip.Score for %d lanes; works like scoreGeneric.", nv*g.lanes))
	s, mx, k, q := g.arg("s"), g.arg("max"), g.arg("k"), g.arg("q")
	dk, tiles := g.arg("dk"), g.arg("tiles")
	t := g.newTile(nv)
	g.loop(tiles, func() {
		for _, acc := range t.acc {
			for _, v := range acc {
				g.zero(v)
			}
		}
		b, n := g.GP64(), g.GP64()
		g.MOVQ(q, b)
		g.MOVQ(dk, n)
		g.multiply(t, k, b, n)
		for v, m := range t.b {
			g.VMOVUPS(at(mx, v*g.bytes()), m)
		}
		for row, acc := range t.acc {
			for v, x := range acc {
				g.VMOVUPS(x, at(s, (row*nv+v)*g.bytes()))
				g.VMAXPS(t.b[v], x, t.b[v])
			}
		}
		for v, m := range t.b {
			g.VMOVUPS(m, at(mx, v*g.bytes()))
		}
		g.ADDQ(imm(g.panel*nv*g.bytes()), s)
	})
	g.end()
}

// accumulate emits Strip.Accumulate for strips of nv vectors.
func (g *gen) accumulate(nv int) {
	g.function(fmt.Sprintf("accumulate%s_%d", g.name, nv*g.lanes), "o, v, p, alpha *float32, n, step, tiles int",
		fmt.Sprintf("is Strip.Accumulate for %d lanes; works like accumulateGeneric.", nv*g.lanes))
	o, v, p, alpha := g.arg("o"), g.arg("v"), g.arg("p"), g.arg("alpha")
	keys, step, tiles := g.arg("n"), g.arg("step"), g.arg("tiles")
	g.SHLQ(operand.U8(2), step)
	t := g.newTile(nv)
	g.loop(tiles, func() {
		empty, ready := g.label("empty"), g.label("ready")
		g.TESTQ(alpha, alpha)
		g.JZ(operand.LabelRef(empty))
		for v, a := range t.b {
			g.VMOVUPS(at(alpha, v*g.bytes()), a)
		}
		for row, acc := range t.acc {
			for v, x := range acc {
				g.VMULPS(at(o, (row*nv+v)*g.bytes()), t.b[v], x)
			}
		}
		g.JMP(operand.LabelRef(ready))
		g.Label(empty)
		for _, acc := range t.acc {
			for _, x := range acc {
				g.zero(x)
			}
		}
		g.Label(ready)
		a, b, n := g.GP64(), g.GP64(), g.GP64()
		g.MOVQ(v, a)
		g.MOVQ(p, b)
		g.MOVQ(keys, n)
		g.multiply(t, a, b, n)
		for row, acc := range t.acc {
			for v, x := range acc {
				g.VMOVUPS(x, at(o, (row*nv+v)*g.bytes()))
			}
		}
		g.ADDQ(imm(g.panel*nv*g.bytes()), o)
		g.ADDQ(step, v)
	})
	g.end()
}
