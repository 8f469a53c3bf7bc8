package main

import (
	"fmt"

	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// tile is the register plan of the matrix loops: acc[row][v] accumulates, b
// holds one row of the strip, a the broadcasts, taken in turn. Its rows are
// those of one panel or several.
type tile struct {
	acc [][]reg.VecPhysical
	b   []reg.VecPhysical
	a   []reg.VecPhysical
}

func (g *gen) newTile(nv, panels int) *tile {
	g.used = 0
	t := &tile{}
	for range panels * g.panel {
		t.acc = append(t.acc, g.vecN(nv))
	}
	t.b = g.vecN(nv)
	t.a = g.vecN(min(len(g.vecs)-g.used, 4))
	return t
}

// prefetchPanel is how far ahead, in bytes, the panels are fetched.
const prefetchPanel = 2048

// multiply accumulates n rank-one updates: acc[row] += a[row] * b, where a is a
// column of the panels and b a row of the strip, all advancing. It destroys n,
// a and b.
func (g *gen) multiply(t *tile, a []reg.GPVirtual, b, n reg.GPVirtual) {
	nv := len(t.b)
	turn := 0
	g.unrolled(n, 4, func(k int) {
		if (k*g.panel*4)%64 == 0 {
			for _, p := range a {
				g.PREFETCHT0(at(p, k*g.panel*4+prefetchPanel))
			}
		}
		for v, r := range t.b {
			g.VMOVUPS(at(b, (k*nv+v)*g.bytes()), r)
		}
		for row, acc := range t.acc {
			x := t.a[turn%len(t.a)]
			turn++
			g.VBROADCASTSS(at(a[row/g.panel], (k*g.panel+row%g.panel)*4), x)
			for v := range acc {
				g.VFMADD231PS(t.b[v], x, acc[v])
			}
		}
	}, func(count int) {
		for _, p := range a {
			g.ADDQ(imm(count*g.panel*4), p)
		}
		g.ADDQ(imm(count*nv*g.bytes()), b)
	})
}

// panelsOf is how many panels a tile of nv vectors takes at once: a single
// vector needs the rows of two to have as many independent multiply-adds as
// their latency asks for. (On Zen 3 4x8 reaches 53 % of the peak.)
func panelsOf(nv int) int {
	if nv == 1 {
		return 2
	}
	return 1
}

// eachTile runs body for tiles panels, panelsOf(nv) at a time and then singly.
func (g *gen) eachTile(nv int, tiles reg.GPVirtual, body func(panels int)) {
	if panelsOf(nv) == 2 {
		pairs := g.GP64()
		g.MOVQ(tiles, pairs)
		g.SHRQ(operand.U8(1), pairs)
		g.loop(pairs, func() { body(2) })
		g.ANDQ(operand.U8(1), tiles)
	}
	g.loop(tiles, func() { body(1) })
}

// pointers returns copies of p, and of p + stride if panels is 2.
func (g *gen) pointers(p, stride reg.GPVirtual, panels int) []reg.GPVirtual {
	all := []reg.GPVirtual{g.GP64()}
	g.MOVQ(p, all[0])
	if panels == 2 {
		all = append(all, g.GP64())
		g.LEAQ(operand.Mem{Base: p, Index: stride, Scale: 1}, all[1])
	}
	return all
}

// score emits Strip.Score for strips of nv vectors.
func (g *gen) score(nv int) {
	g.function(fmt.Sprintf("score%s_%d", g.name, nv*g.lanes), "s, max, k, q *float32, dk, tiles int",
		fmt.Sprintf("is Strip.Score for %d lanes; works like scoreGeneric.", nv*g.lanes))
	s, mx, k, q := g.arg("s"), g.arg("max"), g.arg("k"), g.arg("q")
	dk, tiles := g.arg("dk"), g.arg("tiles")
	step := g.GP64() // bytes of a panel
	g.IMUL3Q(operand.U8(4*g.panel), dk, step)
	g.eachTile(nv, tiles, func(panels int) {
		t := g.newTile(nv, panels)
		for _, acc := range t.acc {
			for _, v := range acc {
				g.zero(v)
			}
		}
		b, n := g.GP64(), g.GP64()
		g.MOVQ(q, b)
		g.MOVQ(dk, n)
		g.multiply(t, g.pointers(k, step, panels), b, n)
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
		g.ADDQ(imm(len(t.acc)*nv*g.bytes()), s)
		for range panels {
			g.ADDQ(step, k)
		}
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
	g.eachTile(nv, tiles, func(panels int) {
		t := g.newTile(nv, panels)
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
		b, n := g.GP64(), g.GP64()
		g.MOVQ(p, b)
		g.MOVQ(keys, n)
		g.multiply(t, g.pointers(v, step, panels), b, n)
		for row, acc := range t.acc {
			for v, x := range acc {
				g.VMOVUPS(x, at(o, (row*nv+v)*g.bytes()))
			}
		}
		g.ADDQ(imm(len(t.acc)*nv*g.bytes()), o)
		for range panels {
			g.ADDQ(step, v)
		}
	})
	g.end()
}
