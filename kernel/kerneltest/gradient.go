package kerneltest

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/seed-091431b3/attention/kernel"
)

// order is a way in which rows lie in memory.
type order int

const (
	regular    order = iota // one after another
	heads                   // three heads of each token, of five
	headsApart              // three heads, each with all of its tokens
	anyOrder
	repeated // some rows are the same
	orders
)

func (o order) String() string {
	return [...]string{"regular", "heads", "heads apart", "any", "repeated"}[o]
}

// offsets returns where each of n rows of d elements starts, rows lying gap
// apart, and how many elements reach from the first to the last in memory.
func (x *test) offsets(o order, n, d, gap int) (off []int, size int) {
	off = x.Perm(n)
	for i := range off {
		token, head := (i+2)/3, (i+2)%3 // the first token is cut short
		switch o {
		case regular:
			off[i] = i
		case heads:
			off[i] = token*5 + head
		case headsApart:
			off[i] = head*n + token
		case repeated:
			off[i] /= 2
		}
	}
	least := slices.Min(off)
	for i := range off {
		off[i] = (off[i] - least) * (d + gap)
	}
	return off, slices.Max(off) + d
}

// rowCounts are the numbers of rows to try: up to the keys of a cell.
func (x *test) rowCounts() []int {
	return append(slices.Clone(x.keyCounts()), kernel.GradRows, kernel.CellKeys)
}

// panelDims are numbers of channels around the ends of a panel.
func (x *test) panelDims() []int {
	c := x.got.Columns
	return []int{1, max(c-1, 1), c, c + 1, 2*c - 1, 2 * c, 3*c + c/2 + 1}
}

// packRows: dst[c/Columns*step + i*Columns + c%Columns] = src[off[i]+c].
func (s *suite) packRows(t *testing.T) {
	x := newTest(t, s)
	x.eachShape(func(x *test, n, d, gap, more int, k kind) {
		for o := range orders {
			x.tryPackRows(o, n, d, gap, more, k, nil)
		}
	})
	x.run("one value that is not finite", func(x *test) {
		for _, d := range x.panelDims() {
			for _, n := range []int{1, 2, 3, 9} {
				for _, bad := range []float32{inf, -inf, nan} {
					for _, i := range []int{0, n / 2, n - 1} {
						for _, c := range []int{0, d / 2, d - 1, min(x.got.Columns, d) - 1} {
							o := order(x.IntN(int(orders)))
							x.tryPackRows(o, n, d, x.IntN(2), 0, ordinary, func(src []float32, off []int) { src[off[i]+c] = bad })
						}
					}
				}
			}
		}
	})
	x.run("the greatest finite values", func(x *test) {
		for _, d := range x.panelDims() {
			for _, sign := range []float32{1, -1} {
				x.tryPackRows(regular, 9, d, 1, 0, equal, func(src []float32, off []int) {
					v := float32(math.MaxFloat32)
					for _, o := range off {
						for c := range d {
							src[o+c] = v
						}
						v *= sign
					}
				})
			}
		}
	})
}

// eachShape calls f for every number of rows, of channels, and kind, with rows
// and panels next to each other and apart.
func (x *test) eachShape(f func(x *test, n, d, gap, more int, k kind)) {
	x.run("every number of rows", func(x *test) {
		for _, n := range x.rowCounts() {
			f(x, n, 5, 0, 0, ordinary)
			f(x, n, x.got.Columns+3, 3, 16, sparse)
		}
	})
	x.run("every number of channels", func(x *test) {
		for _, d := range append(x.panelDims(), x.dims()...) {
			f(x, 1, d, 0, 0, ordinary)
			f(x, 19, d, 7, 9, ordinary)
			f(x, 32, d, 0, 0, sparse)
		}
	})
	x.kinds(func(x *test, k kind) { f(x, 21, 21, 1, 3, k) })
}

// tryPackRows packs n rows of d channels, gap apart in the source with NaN
// between them; panels lie more elements apart than they need.
func (x *test) tryPackRows(o order, n, d, gap, more int, k kind, change func(src []float32, off []int)) {
	x.Helper()
	off, size := x.offsets(o, n, d, gap)
	src := repeat(nan, size)
	for _, at := range off {
		copy(src[at:], k.fill(x.Rand, d))
	}
	if change != nil {
		change(src, off)
	}
	columns := x.got.Columns
	step := n*columns + more
	before := ordinary.fill(x.Rand, (padded(d, columns)/columns-1)*step+n*columns)
	want, finite := clone(before), true
	for i, at := range off {
		for c := range padded(d, columns) {
			var v float32
			if c < d {
				v = src[at+c]
			}
			want[c/columns*step+i*columns+c%columns] = v
			finite = finite && v-v == 0
		}
	}
	x.each(fmt.Sprintf("n=%d d=%d gap=%d step=%d order=%v", n, d, gap, step, o), func() {
		dst := inout(x.mem, "dst", before)
		got := x.got.PackRows(&dst[0], input(x.mem, "src", src), input(x.mem, "off", off), n, d, step)
		x.same("dst", want, dst, columns)
		if got != finite {
			x.Errorf("%s: finite is %v, must be %v", x.mem.where(), got, finite)
		}
	})
}

// unpackRows: dst[off[i]+c] = src[c/Columns*step + i*Columns + c%Columns]*mul + 0.
func (s *suite) unpackRows(t *testing.T) {
	x := newTest(t, s)
	x.eachShape(func(x *test, n, d, gap, more int, k kind) {
		for o := range repeated { // which of two rows in one place wins is nobody's to say
			for _, mul := range []float32{1, -0.125, 0, 0x1p-110, 0x1p110}[:x.many(3, 5)] {
				x.tryUnpackRows(o, n, d, gap, more, k, mul)
			}
		}
	})
}

// tryUnpackRows: what lies between panels and past their channels is NaN, what
// lies between rows stays.
func (x *test) tryUnpackRows(o order, n, d, gap, more int, k kind, mul float32) {
	x.Helper()
	off, size := x.offsets(o, n, d, gap)
	before := ordinary.fill(x.Rand, size)
	columns := x.got.Columns
	step := n*columns + more
	src := repeat(nan, (padded(d, columns)/columns-1)*step+n*columns)
	want := clone(before)
	for i, at := range off {
		for c := range d {
			v := k.draw(x.Rand)
			src[c/columns*step+i*columns+c%columns] = v
			want[at+c] = float32(v*mul) + 0
		}
	}
	x.each(fmt.Sprintf("n=%d d=%d gap=%d step=%d order=%v mul=%g", n, d, gap, step, o, mul), func() {
		dst := inout(x.mem, "dst", before)
		x.got.UnpackRows(&dst[0], input(x.mem, "off", off), input(x.mem, "src", src), n, d, step, mul)
		x.same("dst", want, dst, size)
	})
}

// dot: d[r] = fma chain over c of a[c][r]*b[c][r], from 0.
func (s *suite) dot(t *testing.T) {
	s.perWidth(t, func(x *test) {
		try := func(x *test, n int, k kind) {
			a, b := k.fill(x.Rand, n*x.w), k.fill(x.Rand, n*x.w)
			want := make([]float32, x.w)
			x.want.Dot(&want[0], &a[0], &b[0], n, x.w)
			x.each(fmt.Sprintf("n=%d", n), func() {
				d := output[float32](x.mem, "d", x.w)
				x.got.Dot(&d[0], input(x.mem, "a", a), input(x.mem, "b", b), n, x.w)
				x.same("d", want, d, x.w)
			})
		}
		x.run("every length", func(x *test) {
			for _, n := range x.dims() {
				try(x, n, ordinary)
				try(x, n, sparse)
			}
		})
		x.kinds(func(x *test, k kind) {
			for _, n := range []int{1, 2, 3, 19, 64} {
				try(x, n, k)
			}
		})
	})
}

// scales of raw scores: the least, the greatest, and usual ones.
var scales = []float64{1, 0.125, 1 / math.Sqrt(96), 0x1p-100, 0x1p100}

// exactUnit is log2(e) times a scale as the sum of two float32.
func exactUnit(scale float64) (unit, rest float32) {
	u := math.Log2E * scale
	unit = float32(u)
	return unit, float32(u - float64(unit))
}

// gradient is a problem for Gradient: s, dp and keep are [n][w], keep may be
// nil; hi, lo and delta [w].
type gradient struct{ s, dp, keep, hi, lo, delta []float32 }

// gradient draws a problem whose hi lie around near.
func (x *test) gradient(tile, near []float32, k kind) gradient {
	g := gradient{
		s: tile, dp: k.fill(x.Rand, len(tile)), keep: make([]float32, len(tile)),
		hi: clone(near), lo: make([]float32, x.w), delta: k.fill(x.Rand, x.w),
	}
	for i := range g.keep {
		if x.IntN(4) > 0 {
			g.keep[i] = 1 / 0.75
		}
	}
	for r := range g.hi {
		switch x.IntN(12) {
		case 0:
			g.hi[r] = inf // saw nothing
		case 1:
			g.hi[r] = nan
		case 2:
			g.hi[r] = -inf
		case 3:
			g.hi[r] += 3
		case 4:
			g.hi[r] -= 3
		case 5:
			g.hi[r] -= 100
		case 6:
			g.hi[r] *= 1 - 0x1p-22
		}
		if x.IntN(4) > 0 {
			g.lo[r] = g.hi[r] * (x.Float32() - 0.5) * 0x1p-24
		}
	}
	return g
}

// gradients: see the contract of Gradient.
func (s *suite) gradients(t *testing.T) {
	s.perWidth(t, func(x *test) {
		x.sizes(func(x *test, n int, k kind) {
			for _, scale := range scales[:x.many(2, len(scales))] {
				unit, rest := exactUnit(scale)
				tile := k.fill(x.Rand, n*x.w)
				hideSome(x, tile)
				g := x.gradient(tile, x.laneMax(tile), k)
				x.tryGradient(g, unit, rest)
				g.hi, g.lo, g.keep = k.fill(x.Rand, x.w), k.fill(x.Rand, x.w), k.fill(x.Rand, n*x.w)
				x.tryGradient(g, unit, rest)
			}
		})
		x.run("every range of exp2", func(x *test) {
			for i := range x.many(2, 30) {
				x.tryExponents(i%2 == 0)
			}
		})
		x.run("rows that saw nothing", func(x *test) {
			for _, n := range x.keyCounts() {
				g := x.gradient(ordinary.fill(x.Rand, n*x.w), repeat(inf, x.w), ordinary)
				g.hi, g.lo = repeat(inf, x.w), repeat(float32(0), x.w)
				s, dp := x.tryGradient(g, math.Log2E, 0)
				for i := range s {
					if math.Float32bits(s[i]) != 0 || dp[i] != 0 {
						x.Fatalf("n=%d: p[%d][%d] is %v and dp %v, must be 0", n, i/x.w, i%x.w, s[i], dp[i])
					}
				}
			}
		})
		x.run("keep is nil for ones", func(x *test) {
			for _, n := range x.keyCounts() {
				g := x.gradient(sparse.fill(x.Rand, n*x.w), repeat(float32(1), x.w), sparse)
				g.keep = repeat(float32(1), n*x.w)
				want, wantDP := clone(g.s), clone(g.dp)
				x.want.Gradient(&want[0], &wantDP[0], nil, &g.hi[0], &g.lo[0], &g.delta[0], n, x.w, math.Log2E, 0)
				s, dp := x.tryGradient(g, math.Log2E, 0)
				x.same("s", want, s, x.w)
				x.same("dp", wantDP, dp, x.w)
			}
		})
	})
}

// tryExponents tries exponents around every half and whole number, or anywhere,
// over all of the range and past its ends.
func (x *test) tryExponents(around bool) {
	x.Helper()
	const least, most = -(127 + kernel.GradShift), 129 - kernel.GradShift
	exponents := make([]float32, kernel.BlockKeys*x.w)
	for i := range exponents {
		v := float32(least) + float32(x.IntN(2*(most-least)+1))/2
		if around {
			v = math.Nextafter32(v, float32(x.IntN(3)-1)*200)
		} else {
			v += (x.Float32() - 0.5) / 2
		}
		exponents[i] = v
	}
	zeros := repeat(float32(0), x.w)
	for _, rest := range []float32{0, 0x1p-25, -0x1p-25} {
		g := x.gradient(exponents, zeros, ordinary)
		g.hi, g.lo = zeros, zeros
		x.tryGradient(g, 1, rest)
	}
	for _, scale := range scales {
		unit, rest := exactUnit(scale)
		tile := clone(exponents)
		for i := range tile {
			tile[i] = float32(float64(tile[i]) / (math.Log2E * scale))
		}
		g := x.gradient(tile, zeros, ordinary)
		for r := range zeros {
			g.hi[r], g.lo[r] = 0, 0 // where products round to a half
			if x.IntN(2) == 0 {
				g.hi[r] = float32(x.NormFloat64() / scale)
				g.lo[r] = g.hi[r] * 0x1p-26
			}
		}
		x.tryGradient(g, unit, rest)
	}
}

// tryGradient tries g with nil in the place of keep, and with keep, of which it
// returns what the table gave.
func (x *test) tryGradient(g gradient, unit, rest float32) (s, dp []float32) {
	x.Helper()
	n := len(g.s) / x.w
	for _, kept := range []bool{false, true} {
		run := func(ops *kernel.Ops, s, dp []float32) {
			var keep *float32
			if kept {
				keep = placed(x, ops, "keep", g.keep)
			}
			ops.Gradient(&s[0], &dp[0], keep, placed(x, ops, "hi", g.hi), placed(x, ops, "lo", g.lo),
				placed(x, ops, "delta", g.delta), n, x.w, unit, rest)
		}
		want, wantDP := clone(g.s), clone(g.dp)
		run(x.want, want, wantDP)
		x.each(fmt.Sprintf("n=%d unit=%g rest=%g keep=%v", n, unit, rest, kept), func() {
			gotS, gotDP := inout(x.mem, "s", g.s), inout(x.mem, "dp", g.dp)
			run(x.got, gotS, gotDP)
			x.same("s", want, gotS, x.w)
			x.same("dp", wantDP, gotDP, x.w)
			s, dp = clone(gotS), clone(gotDP)
		})
	}
	return s, dp
}

// hide: a and b are +0 where bit j%32 of words[j/32][r] is clear.
func (s *suite) hide(t *testing.T) {
	s.perWidth(t, func(x *test) {
		x.sizes(func(x *test, n int, k kind) {
			for _, words := range x.masks() {
				x.tryHide(n, words, k)
			}
		})
		x.run("each single key", func(x *test) {
			for j := range kernel.BlockKeys {
				one := make([]uint32, kernel.MaskWords*x.w)
				one[j/32*x.w+j%x.w] = 1 << (j % 32)
				x.tryHide(kernel.BlockKeys, one, mixed)
				for i := range one {
					one[i] = ^one[i]
				}
				x.tryHide(kernel.BlockKeys, one, mixed)
			}
		})
	})
}

func (x *test) tryHide(n int, words []uint32, k kind) {
	x.Helper()
	a, b := k.fill(x.Rand, n*x.w), k.fill(x.Rand, n*x.w)
	wantA, wantB := clone(a), clone(b)
	for i := range a {
		if j, r := i/x.w, i%x.w; words[j/32*x.w+r]>>(j%32)&1 == 0 {
			wantA[i], wantB[i] = 0, 0
		}
	}
	x.each(fmt.Sprintf("n=%d", n), func() {
		gotA, gotB := inout(x.mem, "a", a), inout(x.mem, "b", b)
		x.got.Hide(&gotA[0], &gotB[0], input(x.mem, "words", words), n, x.w)
		x.same("a", wantA, gotA, x.w)
		x.same("b", wantB, gotB, x.w)
	})
}

// uncap: ds = ds * fma(-t, t, 1), t = capped*inv.
func (s *suite) uncap(t *testing.T) {
	s.perWidth(t, func(x *test) {
		try := func(x *test, ds, capped []float32, softcap float32) {
			n, want := len(ds)/x.w, clone(ds)
			x.want.Uncap(&want[0], &capped[0], n, x.w, 1/softcap)
			x.each(fmt.Sprintf("n=%d softcap=%g", n, softcap), func() {
				got := inout(x.mem, "ds", ds)
				x.got.Uncap(&got[0], input(x.mem, "capped", capped), n, x.w, 1/softcap)
				x.same("ds", want, got, x.w)
			})
		}
		x.sizes(func(x *test, n int, k kind) {
			for _, softcap := range []float32{30, 50, 1, 5, 0x1p-100, 0x1p100}[:x.many(2, 6)] {
				capped := make([]float32, n*x.w)
				for i := range capped {
					capped[i] = softcap * float32(math.Tanh(x.NormFloat64()*4))
					if x.IntN(8) == 0 {
						capped[i] = softcap * float32(x.IntN(3)-1)
					}
				}
				try(x, k.fill(x.Rand, n*x.w), capped, softcap)
				try(x, k.fill(x.Rand, n*x.w), k.fill(x.Rand, n*x.w), softcap)
			}
		})
	})
}

// addOuter: g[j][c] += fma chain over rows i of p[j][i]*x[i][c], from 0.
func (s *suite) addOuter(t *testing.T) {
	s.perWidth(t, func(x *test) {
		most := kernel.BlockKeys / x.got.Panel
		x.run("every number of keys", func(x *test) {
			for tiles := 1; tiles <= most; tiles++ {
				if testing.Short() && tiles > 3 && tiles < most {
					continue
				}
				x.tryAddOuter(tiles, x.w+1, 1, 0, ordinary)
				x.tryAddOuter(tiles, min(2*x.w+3, kernel.GradRows), 2, 16, sparse)
			}
		})
		x.run("every number of rows", func(x *test) {
			for rows := 1; rows <= kernel.GradRows; rows++ {
				if next := (rows + 1) % x.w; testing.Short() && rows > 3 && next > 2 {
					continue // not around a whole number of strips
				}
				x.tryAddOuter(1, rows, 1, 0, ordinary)
				x.tryAddOuter(2, rows, 3, 5, sparse)
			}
		})
		x.run("every number of channels", func(x *test) {
			last := 0
			for _, d := range x.dims() {
				panels := padded(d, x.got.Columns) / x.got.Columns
				if panels == last {
					continue
				}
				last = panels
				x.tryAddOuter(1, x.w+1, panels, 0, ordinary)
				x.tryAddOuter(3, 19, panels, 7, sparse)
			}
		})
		x.kinds(func(x *test, k kind) {
			for _, rows := range []int{1, 2, 3, x.w, 2*x.w - 1} {
				x.tryAddOuter(1, rows, 2, 0, k)
				x.tryAddOuter(3, rows, 3, 3, k)
			}
		})
		x.run("all at once", func(x *test) {
			x.tryAddOuter(most, kernel.GradRows, x.many(2, 17), 16, ordinary)
		})
	})
}

// outer is a problem for AddOuter: p [keys][rows], x [rows][channels], g
// [keys][channels].
type outer struct {
	p, x, g              []float32
	keys, rows, channels int
}

// matrix is [rows][cols] numbers in panels [cols/columns][rows][columns].
type matrix struct{ rows, cols, columns, step int }

// at is where an element lies.
func (m matrix) at(i, c int) int { return c/m.columns*m.step + i*m.columns + c%m.columns }

// pack returns the panels of v, which is [..][cols] with perhaps fewer of both:
// missing elements and what lies between panels are rest.
func (m matrix) pack(v []float32, cols int, rest float32) []float32 {
	panels := repeat(rest, (padded(m.cols, m.columns)/m.columns-1)*m.step+m.rows*m.columns)
	for i, x := range v {
		panels[m.at(i/cols, i%cols)] = x
	}
	return panels
}

// layout is how a table takes a problem: of p the strips are the panels.
func (o *outer) layout(ops *kernel.Ops, w, more int) (p, x, g matrix) {
	keys, channels := padded(o.keys, ops.Panel), padded(o.channels, ops.Columns)
	return matrix{keys, o.rows, w, keys*w + more},
		matrix{o.rows, channels, ops.Columns, o.rows*ops.Columns + more},
		matrix{keys, channels, ops.Columns, keys*ops.Columns + more}
}

// run computes o with a table's own panels.
func (o *outer) run(ops *kernel.Ops, w int) []float32 {
	p, x, g := o.layout(ops, w, 0)
	panels := g.pack(o.g, o.channels, 0)
	ops.AddOuter(&panels[0], &p.pack(o.p, o.rows, 0)[0], &x.pack(o.x, o.channels, 0)[0],
		p.rows/ops.Panel, o.rows, w, p.step, g.cols/ops.Columns, g.step, x.step)
	sum := make([]float32, len(o.g))
	for i := range sum {
		sum[i] = panels[g.at(i/o.channels, i%o.channels)]
	}
	return sum
}

// tryAddOuter: tiles and panels lie more elements apart than they need. Lanes
// past the last row, and what lies between tiles and panels, are NaN in inputs.
func (x *test) tryAddOuter(tiles, rows, panels, more int, k kind) {
	x.Helper()
	ops := x.got
	o := outer{keys: tiles * ops.Panel, rows: rows, channels: panels * ops.Columns}
	o.p, o.x, o.g = k.fill(x.Rand, o.keys*rows), k.fill(x.Rand, rows*o.channels), k.fill(x.Rand, o.keys*o.channels)
	p, in, g := o.layout(ops, x.w, more)
	const between = 7.25 // a number, as a NaN would hide what is added to it
	before := g.pack(o.g, o.channels, between)
	want := g.pack(o.run(x.want, x.w), o.channels, between)
	pTiles, xPanels := p.pack(o.p, rows, nan), in.pack(o.x, o.channels, nan)
	x.each(fmt.Sprintf("keys=%d rows=%d channels=%d steps=+%d", o.keys, rows, o.channels, more), func() {
		got := inout(x.mem, "g", before)
		ops.AddOuter(&got[0], input(x.mem, "p", pTiles), input(x.mem, "x", xPanels),
			tiles, rows, x.w, p.step, panels, g.step, in.step)
		x.same("g", want, got, ops.Columns)
	})
}
