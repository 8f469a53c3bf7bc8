package kerneltest

import (
	"fmt"
	"math"
	"testing"

	"github.com/seed-091431b3/attention/kernel"
)

// formats runs f for every format, by name.
func (s *suite) formats(t *testing.T, f func(t *testing.T, f kernel.Format)) {
	for i, name := range []string{"float32", "bfloat16", "float16"} {
		t.Run(name, func(t *testing.T) { f(t, kernel.Format(i)) })
	}
}

// store is x in a format, by the portable conversion.
func (s *suite) store(f kernel.Format, x []float32) []byte {
	b := make([]byte, len(x)*f.Size()+1)
	if len(x) > 0 {
		s.want.Stored[f].Narrow(&b[0], &x[0], len(x))
	}
	return b[:len(b)-1]
}

// rowCounts are the numbers of rows to try of a strip of w lanes.
func rowCounts(w int) []int {
	var counts []int
	for _, n := range []int{1, 2, 3, 4, 5, 6, 8, 12, 13} {
		if n < w {
			counts = append(counts, n)
		}
	}
	return append(counts, w)
}

// firstLanes returns the first n lanes of a tile of w.
func firstLanes(tile []float32, w, n int) []float32 {
	part := make([]float32, 0, len(tile)/w*n)
	for i := 0; i < len(tile); i += w {
		part = append(part, tile[i:i+n]...)
	}
	return part
}

// storedScore: s[j][r] = fma chain over c of k[j][c]*q[c][r] for few rows.
func (s *suite) storedScore(t *testing.T) {
	s.formats(t, func(t *testing.T, f kernel.Format) {
		s.perWidth(t, func(x *test) {
			x.run("every number of channels", func(x *test) {
				for _, dk := range x.dims() {
					x.tryStoredScore(f, 1, dk, x.w, ordinary)
					x.tryStoredScore(f, 2, dk, min(4, x.w), sparse)
				}
			})
			x.run("every number of rows", func(x *test) {
				for _, rows := range rowCounts(x.w) {
					for _, panels := range []int{1, 2, 3, 8} {
						x.tryStoredScore(f, panels, 7, rows, sparse)
					}
				}
			})
			x.kinds(func(x *test, k kind) { x.tryStoredScore(f, 3, 5, x.w, k) })
		})
	})
}

func (x *test) tryStoredScore(f kernel.Format, panels, dk, rows int, k kind) {
	x.Helper()
	n := panels * kernel.Run
	keys, q, max := x.store(f, k.fill(x.Rand, n*dk)), k.fill(x.Rand, dk*x.w), x.maxima()
	want, wantMax := make([]float32, n*x.w), clone(max)
	x.want.Stored[f].Score(&want[0], &wantMax[0], &q[0], &keys[0], &keys[0], dk, panels, rows, x.w)
	want = firstLanes(want, x.w, rows)
	x.each(fmt.Sprintf("panels=%d dk=%d rows=%d", panels, dk, rows), func() {
		s, m := output[float32](x.mem, "s", n*x.w), inout(x.mem, "max", max)
		k := input(x.mem, "k", keys)
		x.got.Stored[f].Score(&s[0], &m[0], input(x.mem, "q", q), k, k, dk, panels, rows, x.w)
		got := firstLanes(s, x.w, rows)
		x.same("s", want, got, rows)
		narrow := *x
		narrow.w = rows
		narrow.sameMax(wantMax[:rows], m[:rows], got)
	})
}

// storedAccumulate: o = o*alpha, then fma chain over j of v[j][c]*p[j][r] for few
// rows.
func (s *suite) storedAccumulate(t *testing.T) {
	s.formats(t, func(t *testing.T, f kernel.Format) {
		s.perWidth(t, func(x *test) {
			x.run("every number of keys", func(x *test) {
				for _, n := range x.keyCounts() {
					x.tryStoredAccumulate(f, n, 0, 1, x.w, ordinary)
					x.tryStoredAccumulate(f, n, 3, 2, min(4, x.w), sparse)
				}
			})
			x.run("every number of rows", func(x *test) {
				for _, rows := range rowCounts(x.w) {
					for _, panels := range []int{1, 2, 3, 8} {
						x.tryStoredAccumulate(f, 7, 1, panels, rows, sparse)
					}
				}
			})
			x.kinds(func(x *test, k kind) { x.tryStoredAccumulate(f, 5, 0, 3, x.w, k) })
		})
	})
}

func (x *test) tryStoredAccumulate(f kernel.Format, n, more, panels, rows int, k kind) {
	x.Helper()
	step := n + more
	v := x.store(f, k.fill(x.Rand, ((panels-1)*step+n)*kernel.Run))
	p, o, alpha := k.fill(x.Rand, n*x.w), k.fill(x.Rand, x.w*panels*kernel.Run), k.fill(x.Rand, x.w)
	size := rows * panels * kernel.Run
	for _, scaled := range []bool{true, false} {
		want := clone(o)
		var a *float32
		if scaled {
			a = &alpha[0]
		}
		x.want.Stored[f].Accumulate(&want[0], &p[0], a, &v[0], &v[0], n, step, panels, rows, x.w)
		x.each(fmt.Sprintf("keys=%d step=%d panels=%d rows=%d alpha=%v", n, step, panels, rows, scaled), func() {
			got := inout(x.mem, "o", o)
			v, a := input(x.mem, "v", v), a
			if scaled {
				a = input(x.mem, "alpha", alpha)
			}
			x.got.Stored[f].Accumulate(&got[0], input(x.mem, "p", p), a, v, v, n, step, panels, rows, x.w)
			x.same("o", want[:size], got[:size], panels*kernel.Run)
		})
	}
}

// widen: every number there is, and every length.
func (s *suite) widen(t *testing.T) {
	s.formats(t, func(t *testing.T, f kernel.Format) {
		x := newTest(t, s)
		try := func(src []byte) {
			n := len(src) / f.Size()
			want := make([]float32, n)
			x.want.Stored[f].Widen(&want[0], &src[0], n)
			x.each(fmt.Sprintf("n=%d", n), func() {
				dst := output[float32](x.mem, "dst", n)
				x.got.Stored[f].Widen(&dst[0], input(x.mem, "src", src), n)
				x.same("dst", want, dst, n)
			})
		}
		for n := 1; n < 70; n++ {
			try(x.store(f, ordinary.fill(x.Rand, n)))
		}
		if f != kernel.Float32 {
			all := make([]byte, 1<<17)
			for i := range 1 << 16 {
				all[2*i], all[2*i+1] = byte(i), byte(i>>8)
			}
			try(all)
		}
	})
}

// narrow: every number of the format, what lies half-way between two and beside
// that, every length, and any bits.
func (s *suite) narrow(t *testing.T) {
	s.formats(t, func(t *testing.T, f kernel.Format) {
		x := newTest(t, s)
		try := func(src []float32) {
			n := len(src)
			want := x.store(f, src)
			x.each(fmt.Sprintf("n=%d", n), func() {
				dst := output[byte](x.mem, "dst", n*f.Size())
				x.got.Stored[f].Narrow(&dst[0], input(x.mem, "src", src), n)
				x.sameStored(f, want, dst)
			})
		}
		for n := 1; n < 70; n++ {
			try(ordinary.fill(x.Rand, n))
		}
		for _, k := range kinds {
			try(k.fill(x.Rand, 1000))
		}
		if f != kernel.Float32 {
			try(halfWays(f))
		}
	})
}

// halfWays are the numbers of a 16-bit format, those half-way to the next, and
// the float32 beside these.
func halfWays(f kernel.Format) []float32 {
	var all []float32
	for i := range 1 << 16 {
		a, b := f.Widen32(uint16(i)), f.Widen32(uint16(i+1))
		mid := a + (b-a)/2
		all = append(all, a, mid, math.Nextafter32(mid, a), math.Nextafter32(mid, b))
	}
	return all
}

// sameStored holds stored numbers to want; a NaN equals any NaN.
func (x *test) sameStored(f kernel.Format, want, got []byte) {
	x.Helper()
	a, b := make([]float32, len(want)/f.Size()), make([]float32, len(want)/f.Size())
	x.want.Stored[f].Widen(&a[0], &want[0], len(a))
	x.want.Stored[f].Widen(&b[0], &got[0], len(b))
	x.same("dst", a, b, len(a))
}
