package kerneltest

import (
	"fmt"
	"testing"

	"github.com/seed-091431b3/attention/kernel"
)

// lanes returns w lanes of a tile [rows][width] from lane first on; lanes past
// the last repeat it.
func lanes(tile []float32, width, first, w int) []float32 {
	rows := len(tile) / width
	part := make([]float32, rows*w)
	for i := range part {
		part[i] = tile[i/w*width+min(first+i%w, width-1)]
	}
	return part
}

// setLanes is the inverse of lanes.
func setLanes(tile []float32, width, first int, part []float32, w int) {
	for i, v := range part {
		if r := first + i%w; r < width && i/w < len(tile)/width {
			tile[i/w*width+r] = v
		}
	}
}

// perStrip runs f for every strip.
func (s *suite) perStrip(t *testing.T, f func(x *test, strip *kernel.Strip)) {
	n := -1
	s.perWidth(t, func(x *test) {
		n++
		f(x, &s.got.Strips[n])
	})
}

// score: s[j][r] = fma chain over c of k[j][c]*q[c][r]; max is raised.
func (s *suite) score(t *testing.T) {
	s.perStrip(t, func(x *test, strip *kernel.Strip) {
		x.run("every number of channels", func(x *test) {
			for _, dk := range x.dims() {
				x.tryScore(strip, 1, dk, ordinary)
				x.tryScore(strip, 21, dk, sparse)
			}
		})
		x.run("every number of keys", func(x *test) {
			for _, n := range x.keyCounts() {
				x.tryScore(strip, n, 1, ordinary)
				x.tryScore(strip, n, 16, sparse)
			}
		})
		x.kinds(func(x *test, k kind) {
			for _, dk := range []int{1, 2, 3, 8, 19} {
				x.tryScore(strip, 33, dk, k)
			}
		})
	})
}

// score computes raw scores of n keys with a table's own panels and strips.
func score(ops *kernel.Ops, k, q, max []float32, n, dk, width int) []float32 {
	strip := &ops.Strips[0]
	rows := padded(n, ops.Panel)
	panels := make([]float32, rows*dk)
	ops.PackK(&panels[0], &k[0], dk, n, dk)
	tile := make([]float32, n*width)
	for first := 0; first < width; first += strip.Width {
		part, m := make([]float32, rows*strip.Width), lanes(max, width, first, strip.Width)
		strip.Score(&part[0], &m[0], &panels[0], &lanes(q, width, first, strip.Width)[0], dk, rows/ops.Panel)
		setLanes(tile, width, first, part, strip.Width)
		setLanes(max, width, first, m, strip.Width)
	}
	return tile
}

func (x *test) tryScore(strip *kernel.Strip, n, dk int, k kind) {
	x.Helper()
	keys, q, max := k.fill(x.Rand, n*dk), k.fill(x.Rand, dk*x.w), x.maxima()
	wantMax := clone(max)
	want := score(x.want, keys, q, wantMax, n, dk, x.w)
	rows := padded(n, x.got.Panel)
	panels := make([]float32, rows*dk)
	x.got.PackK(&panels[0], &keys[0], dk, n, dk)
	x.each(fmt.Sprintf("keys=%d dk=%d", n, dk), func() {
		s, m := output[float32](x.mem, "s", rows*x.w), inout(x.mem, "max", max)
		strip.Score(&s[0], &m[0], input(x.mem, "k", panels), input(x.mem, "q", q), dk, rows/x.got.Panel)
		x.same("s", want, s[:n*x.w], x.w)
		x.sameMax(wantMax, m, want)
	})
}

// accumulate: o = o*alpha, then fma chain over j of v[j][c]*p[j][r].
func (s *suite) accumulate(t *testing.T) {
	s.perStrip(t, func(x *test, strip *kernel.Strip) {
		x.run("every number of channels", func(x *test) {
			for _, dv := range x.dims() {
				x.tryAccumulate(strip, 1, dv, 0, ordinary)
				x.tryAccumulate(strip, 21, dv, 16, sparse)
			}
		})
		x.run("every number of keys", func(x *test) {
			for _, n := range x.keyCounts() {
				x.tryAccumulate(strip, n, 1, 0, ordinary)
				x.tryAccumulate(strip, n, 17, (kernel.BlockKeys-n)*x.got.Panel+16, sparse)
			}
		})
		x.run("no keys", func(x *test) {
			for _, dv := range x.dims() {
				x.tryAccumulate(strip, 0, dv, 0, sparse)
				x.tryAccumulate(strip, 0, dv, 7, sparse)
			}
		})
		x.kinds(func(x *test, k kind) {
			for _, n := range []int{1, 2, 3, 8, 19} {
				x.tryAccumulate(strip, n, 19, 3, k)
			}
		})
	})
}

// accumulation is a problem for Accumulate: v [n][dv], p [n][w], o [dv][w], and
// alpha [w] or nil.
type accumulation struct {
	v, p, o, alpha []float32
	n, dv          int
}

// packed returns v in the panels of a table.
func (a *accumulation) packed(ops *kernel.Ops, step int) []float32 {
	panels := padded(a.dv, ops.Panel) / ops.Panel
	v := make([]float32, (panels-1)*step+a.n*ops.Panel)
	if a.n > 0 {
		ops.PackV(&v[0], &a.v[0], a.dv, a.n, a.dv, step)
	}
	return v
}

// run computes a with a table's own panels and strips.
func (a *accumulation) run(ops *kernel.Ops, width int) []float32 {
	strip := &ops.Strips[0]
	w, rows, step := strip.Width, padded(a.dv, ops.Panel), a.n*ops.Panel
	v := clone(a.packed(ops, step))
	o := clone(a.o)
	for first := 0; first < width; first += w {
		part := make([]float32, rows*w)
		copy(part, lanes(a.o, width, first, w))
		var alpha *float32
		if a.alpha != nil {
			alpha = &lanes(a.alpha, width, first, w)[0]
		}
		strip.Accumulate(&part[0], ptr(v), ptr(clone(lanes(a.p, width, first, w))), alpha, a.n, step, rows/ops.Panel)
		setLanes(o, width, first, part, w)
	}
	return o
}

// accumulations draws a problem, with alpha and without.
func (x *test) accumulations(n, dv int, k kind) []accumulation {
	a := accumulation{
		v: k.fill(x.Rand, n*dv), p: k.fill(x.Rand, n*x.w), o: k.fill(x.Rand, dv*x.w), alpha: k.fill(x.Rand, x.w), n: n, dv: dv,
	}
	for r := range a.alpha {
		if x.IntN(2) == 0 {
			a.alpha[r] = 1
		}
	}
	b := a
	b.alpha = nil
	return []accumulation{a, b}
}

// tryAccumulate: panels of V lie more elements apart than they need.
func (x *test) tryAccumulate(strip *kernel.Strip, n, dv, more int, k kind) {
	x.Helper()
	panel := x.got.Panel
	rows, step := padded(dv, panel), n*panel+more
	for _, a := range x.accumulations(n, dv, k) {
		want := a.run(x.want, x.w)
		v := a.packed(x.got, step)
		x.each(fmt.Sprintf("keys=%d dv=%d step=%d alpha=%v", n, dv, step, a.alpha != nil), func() {
			o := inout(x.mem, "o", append(clone(a.o), make([]float32, (rows-dv)*x.w)...))
			strip.Accumulate(&o[0], input(x.mem, "v", v), input(x.mem, "p", a.p), x.alpha(&a), n, step, rows/panel)
			x.same("o", want, o[:dv*x.w], x.w)
		})
	}
}

func (x *test) alpha(a *accumulation) *float32 {
	if a.alpha == nil {
		return nil
	}
	return input(x.mem, "alpha", a.alpha)
}

// accumulateVisible: like Accumulate, but hidden keys are left out.
func (s *suite) accumulateVisible(t *testing.T) {
	s.perWidth(t, func(x *test) {
		x.sizes(func(x *test, n int, k kind) {
			for _, words := range x.masks() {
				for _, a := range x.accumulations(n, x.many(2, 11), k) {
					x.tryVisible(&a, words)
				}
			}
		})
	})
}

func (x *test) tryVisible(a *accumulation, words []uint32) {
	x.Helper()
	panel := x.got.Panel
	rows, step := padded(a.dv, panel), a.n*panel+5
	v := a.packed(x.got, step)
	before := append(clone(a.o), make([]float32, (rows-a.dv)*x.w)...)
	want := clone(before)
	var alpha *float32
	if a.alpha != nil {
		alpha = &a.alpha[0]
	}
	x.want.AccumulateVisible(&want[0], &v[0], &a.p[0], alpha, &words[0], a.n, step, rows/panel, panel, x.w)
	x.each(fmt.Sprintf("keys=%d alpha=%v", a.n, a.alpha != nil), func() {
		o := inout(x.mem, "o", before)
		x.got.AccumulateVisible(&o[0], input(x.mem, "v", v), input(x.mem, "p", a.p), x.alpha(a), input(x.mem, "words", words),
			a.n, step, rows/panel, panel, x.w)
		x.same("o", want[:a.dv*x.w], o[:a.dv*x.w], x.w)
	})
}
