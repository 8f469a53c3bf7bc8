package kerneltest

import (
	"fmt"
	"math"
	"testing"

	"github.com/seed-091431b3/attention/kernel"
)

// units multiply a difference of logits: log2(e), times scales of 1/8, the
// least and the greatest.
var units = []float32{math.Log2E, math.Log2E / 8, math.Log2E * 0x1p-100, math.Log2E * 0x1p100}

// state is m and l of the lanes of a strip.
type state struct{ m, l []float32 }

// state draws running maxima around near, and sums as they may stand beside
// them.
func (x *test) state(near []float32) state {
	s := state{make([]float32, x.w), make([]float32, x.w)}
	for r := range s.m {
		s.m[r], s.l[r] = near[r], 1+x.Float32()*100
		switch x.IntN(8) {
		case 0:
			s.m[r], s.l[r] = -inf, 0 // nothing seen yet
		case 1:
			s.m[r] = nan
		case 2:
			s.m[r] = inf
		case 3:
			s.m[r] += 3
		case 4:
			s.m[r] -= 3
		case 5:
			s.m[r] = near[r] * (1 + 0x1p-22)
		}
		if s.m[r]-s.m[r] != 0 && s.l[r] != 0 {
			s.l[r] = nan
		}
	}
	return s
}

// softmax: see the contract.
func (s *suite) softmax(t *testing.T) {
	s.perWidth(t, func(x *test) {
		x.sizes(func(x *test, n int, k kind) {
			for _, unit := range units {
				tile := k.fill(x.Rand, n*x.w)
				hideSome(x, tile)
				x.trySoftmax(tile, x.state(x.laneMax(tile)), unit)
			}
		})
		x.run("nothing visible", func(x *test) {
			for _, n := range x.keyCounts() {
				x.trySoftmax(repeat(-inf, n*x.w), state{repeat(-inf, x.w), repeat(float32(0), x.w)}, math.Log2E)
				x.trySoftmax(repeat(-inf, n*x.w), x.state(ordinary.fill(x.Rand, x.w)), math.Log2E)
			}
		})
		x.run("every range of exp2", func(x *test) {
			for i := range x.many(3, 400) {
				tile := make([]float32, kernel.BlockKeys*x.w)
				for j := range tile {
					// Around every half and whole number, and anywhere.
					tile[j] = -float32(x.IntN(270)) / 2
					if i%2 == 0 {
						tile[j] = math.Nextafter32(tile[j], float32(x.IntN(3)-1)*200)
					} else {
						tile[j] -= x.Float32() / 2
					}
				}
				clear(tile[:x.w])
				x.trySoftmax(tile, state{repeat(-inf, x.w), repeat(float32(0), x.w)}, 1)
				x.trySoftmax(tile, state{tile[x.w : 2*x.w], repeat(float32(1), x.w)}, 1)
			}
		})
		x.run("block after block", func(x *test) {
			m := state{repeat(-inf, x.w), repeat(float32(0), x.w)}
			for range 20 {
				tile := ordinary.fill(x.Rand, kernel.BlockKeys*x.w)
				hideSome(x, tile)
				m = x.trySoftmax(tile, m, 2*math.Log2E)
			}
		})
	})
}

// hideSome hides a quarter of the keys of some lanes, and all keys of few.
func hideSome(x *test, tile []float32) {
	for r := range x.w {
		hide := x.IntN(10)
		for i := r; i < len(tile); i += x.w {
			if hide == 0 || hide < 4 && x.IntN(4) == 0 {
				tile[i] = -inf
			}
		}
	}
}

// trySoftmax returns the state after the tile.
func (x *test) trySoftmax(tile []float32, before state, unit float32) state {
	x.Helper()
	n, max := len(tile)/x.w, x.laneMax(tile)
	want, m, l, alpha := clone(tile), clone(before.m), clone(before.l), make([]float32, x.w)
	x.want.Softmax(&want[0], &clone(max)[0], &m[0], &l[0], &alpha[0], n, x.w, unit, new(byte))
	freed := x.free(before.m)
	x.each(fmt.Sprintf("n=%d unit=%g", n, unit), func() {
		p, gotM, gotL := inout(x.mem, "s", tile), inout(x.mem, "m", before.m), inout(x.mem, "l", before.l)
		gotAlpha := output[float32](x.mem, "alpha", x.w)
		// max is the function's own to change.
		x.got.Softmax(&p[0], &inout(x.mem, "max", max)[0], &gotM[0], &gotL[0], &gotAlpha[0], n, x.w, unit, new(byte))
		x.sameState(state{m, l}, state{gotM, gotL}, freed)
		x.same("alpha", alpha, gotAlpha, x.w)
		for i := range p {
			if freed[i%x.w] && tile[i] == tile[i] {
				p[i] = want[i]
			}
		}
		x.same("p", want, p, x.w)
	})
	return state{m, l}
}

// free tells the lanes whose maximum is NaN, where only the sum is held to be
// one too.
func (x *test) free(m ...[]float32) []bool {
	f := make([]bool, x.w)
	for r := range f {
		for _, v := range m {
			f[r] = f[r] || v[r] != v[r]
		}
	}
	return f
}

// sameState holds sums to the bit and maxima as numbers, but for lanes that are
// free.
func (x *test) sameState(want, got state, free []bool) {
	x.Helper()
	for r, a := range want.m {
		if b := got.m[r]; a != b && (a == a || b == b) && !free[r] {
			x.Fatalf("%s: m[%d] is %v, must be %v", x.mem.where(), r, b, a)
		}
	}
	x.same("l", want.l, got.l, x.w)
}

// fold: see the contract.
func (s *suite) fold(t *testing.T) {
	s.perWidth(t, func(x *test) {
		x.run("every number of channels", func(x *test) {
			for _, n := range x.dims() {
				x.tryFold(n, ordinary)
				x.tryFold(n, sparse)
			}
		})
		x.kinds(func(x *test, k kind) {
			for range x.many(2, 20) {
				x.tryFold(24, k)
			}
		})
	})
}

func (x *test) tryFold(n int, k kind) {
	x.Helper()
	near := k.fill(x.Rand, x.w)
	a, b := x.state(near), x.state(near)
	o, o2 := k.fill(x.Rand, n*x.w), k.fill(x.Rand, n*x.w)
	unit := units[x.IntN(len(units))]
	want, m, l := clone(o), clone(a.m), clone(a.l)
	x.want.Fold(&want[0], &m[0], &l[0], &clone(o2)[0], &clone(b.m)[0], &clone(b.l)[0], n, x.w, unit)
	freed := x.free(a.m, b.m)
	x.each(fmt.Sprintf("n=%d unit=%g", n, unit), func() {
		gotO, gotM, gotL := inout(x.mem, "o", o), inout(x.mem, "m", a.m), inout(x.mem, "l", a.l)
		x.got.Fold(&gotO[0], &gotM[0], &gotL[0], input(x.mem, "o2", o2), input(x.mem, "m2", b.m), input(x.mem, "l2", b.l), n, x.w, unit)
		x.sameState(state{m, l}, state{gotM, gotL}, freed)
		x.same("o", want, gotO, x.w)
	})
}

// logSum: lse = float64(m)*scale + ln(l), inv = 1/l; l = 0: -Inf and 0.
func (s *suite) logSum(t *testing.T) {
	s.perWidth(t, func(x *test) {
		try := func(x *test, m, l []float32) {
			for _, scale := range []float64{1, 1 / math.Sqrt(96), 0x1p-100, 0x1p100} {
				want, wantInv := make([]float64, x.w), make([]float32, x.w)
				x.want.LogSum(&want[0], &wantInv[0], &m[0], &l[0], x.w, scale)
				x.each(fmt.Sprintf("scale=%g", scale), func() {
					lse, inv := output[float64](x.mem, "lse", x.w), output[float32](x.mem, "inv", x.w)
					x.got.LogSum(&lse[0], &inv[0], input(x.mem, "m", m), input(x.mem, "l", l), x.w, scale)
					x.same64("lse", want, lse)
					x.same("inv", wantInv, inv, x.w)
				})
			}
		}
		x.kinds(func(x *test, k kind) {
			for range x.many(3, 50) {
				st := x.state(k.fill(x.Rand, x.w))
				try(x, st.m, st.l)
			}
		})
		x.run("every range of ln", func(x *test) {
			for range x.many(10, 2000) {
				l := make([]float32, x.w)
				for r := range l {
					l[r] = float32(math.Ldexp(1+x.Float64(), x.IntN(30)))
					switch x.IntN(5) {
					case 0:
						l[r] = float32(1 + x.IntN(2000))
					case 1:
						l[r] = 1 + float32(x.IntN(100))*0x1p-23
					case 2:
						l[r] = math.Nextafter32(float32(math.Ldexp(4./3, x.IntN(30))), float32(x.IntN(3)-1)*inf)
					}
				}
				try(x, ordinary.fill(x.Rand, x.w), l)
			}
		})
	})
}

// sink: see the contract.
func (s *suite) sink(t *testing.T) {
	s.perWidth(t, func(x *test) {
		x.kinds(func(x *test, k kind) {
			for range x.many(3, 50) {
				sinks := k.fill(x.Rand, x.w)
				x.trySink(x.state(sinks), sinks)
			}
		})
		x.run("every distance from the logits", func(x *test) {
			for range x.many(10, 1000) {
				sinks := ordinary.fill(x.Rand, x.w)
				st := x.state(sinks)
				for r := range sinks {
					sinks[r] += float32(x.NormFloat64() * 60)
				}
				x.trySink(st, sinks)
			}
		})
	})
}

func (x *test) trySink(before state, sinks []float32) {
	x.Helper()
	m, l, weight := clone(before.m), clone(before.l), make([]float32, x.w)
	x.want.Sink(&m[0], &l[0], &weight[0], &clone(sinks)[0], x.w)
	freed := x.free(before.m, sinks)
	x.each("sinks", func() {
		gotM, gotL, got := inout(x.mem, "m", before.m), inout(x.mem, "l", before.l), output[float32](x.mem, "weight", x.w)
		x.got.Sink(&gotM[0], &gotL[0], &got[0], input(x.mem, "sink", sinks), x.w)
		x.sameState(state{m, l}, state{gotM, gotL}, freed)
		x.same("weight", weight, got, x.w)
	})
}
