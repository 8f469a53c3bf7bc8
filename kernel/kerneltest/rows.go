package kerneltest

import (
	"fmt"
	"testing"
)

// factors multiply q when it is packed.
var factors = []float32{1, -1, 0.75, 0x1p-110, 0x1p110}

// gather: dst[c][r] = src[off[r]+c] * mul.
func (s *suite) gather(t *testing.T) {
	s.perWidth(t, func(x *test) {
		try := func(x *test, n int, k kind, gap int) {
			off, size := x.layRows(n, gap)
			src := k.fill(x.Rand, size)
			mul := factors[x.IntN(len(factors))]
			want := make([]float32, n*x.w)
			x.want.Gather(&want[0], &src[0], &off[0], n, x.w, mul)
			x.each(fmt.Sprintf("n=%d gap=%d mul=%g", n, gap, mul), func() {
				dst := output[float32](x.mem, "dst", n*x.w)
				x.got.Gather(&dst[0], input(x.mem, "src", src), input(x.mem, "off", off), n, x.w, mul)
				x.same("dst", want, dst, x.w)
			})
		}
		x.run("every length", func(x *test) {
			for _, n := range append(x.dims(), x.keyCounts()...) {
				try(x, n, ordinary, 0)
				try(x, n, sparse, 3)
			}
		})
		x.kinds(func(x *test, k kind) { try(x, 37, k, 1) })
	})
}

// layRows returns where the row of each lane starts, rows of n elements lying
// gap apart in random order, some shared by several lanes, and how many
// elements they cover.
func (x *test) layRows(n, gap int) (off []int, size int) {
	off = make([]int, x.w)
	lanes := x.w
	if x.w > 1 && x.IntN(2) == 0 {
		lanes -= x.IntN(x.w) // the last lanes repeat one row, as in a short strip
	}
	for i, row := range x.Perm(lanes) {
		off[i] = row * (n + gap)
	}
	for r := lanes; r < x.w; r++ {
		off[r] = off[lanes-1]
	}
	return off, lanes*(n+gap) - gap
}

// scatter: dst[off[r]+c] = src[c][r] * inv[r] + 0.
func (s *suite) scatter(t *testing.T) {
	s.perWidth(t, func(x *test) {
		try := func(x *test, n int, k kind, gap int) {
			off, size := x.layRows(n, gap)
			src, inv := k.fill(x.Rand, n*x.w), k.fill(x.Rand, x.w)
			for r := 1; r < x.w; r++ {
				if off[r] != off[r-1] {
					continue
				}
				inv[r] = inv[r-1]
				for c := range n {
					src[c*x.w+r] = src[c*x.w+r-1]
				}
			}
			before := ordinary.fill(x.Rand, size) // what lies between rows stays
			want := clone(before)
			x.want.Scatter(&want[0], &off[0], &src[0], &inv[0], n, x.w)
			x.each(fmt.Sprintf("n=%d gap=%d", n, gap), func() {
				dst := inout(x.mem, "dst", before)
				x.got.Scatter(&dst[0], input(x.mem, "off", off), input(x.mem, "src", src), input(x.mem, "inv", inv), n, x.w)
				x.same("dst", want, dst, size)
			})
		}
		x.run("every length", func(x *test) {
			for _, n := range x.dims() {
				try(x, n, ordinary, 0)
				try(x, n, sparse, 5)
			}
		})
		x.kinds(func(x *test, k kind) { try(x, 37, k, 1) })
	})
}

// packK: row j, channel c goes to dst[j/Panel][c][j%Panel]; rows past the end
// repeat the last.
func (s *suite) packK(t *testing.T) {
	x := newTest(t, s)
	try := func(x *test, n, d, gap int, k kind) {
		src := x.stridedRows(k, n, d, d+gap)
		panel := x.got.Panel
		rows := padded(n, panel)
		want := make([]float32, rows*d)
		for j := range rows {
			for c := range d {
				want[j/panel*d*panel+c*panel+j%panel] = src[min(j, n-1)*(d+gap)+c]
			}
		}
		x.each(fmt.Sprintf("n=%d d=%d stride=%d", n, d, d+gap), func() {
			dst := output[float32](x.mem, "dst", rows*d)
			x.got.PackK(&dst[0], input(x.mem, "src", src), d+gap, n, d)
			x.same("dst", want, dst, panel)
		})
	}
	x.run("every number of keys", func(x *test) {
		for _, n := range x.keyCounts() {
			try(x, n, 5, 0, ordinary)
			try(x, n, 16, 3, sparse)
		}
	})
	x.run("every number of channels", func(x *test) {
		for _, d := range x.dims() {
			try(x, 1, d, 0, ordinary)
			try(x, 19, d, 7, ordinary)
			try(x, 32, d, d, sparse)
		}
	})
	x.kinds(func(x *test, k kind) { try(x, 21, 21, 1, k) })
}

// stridedRows returns n rows of d numbers with NaN between them, which nothing
// may let into a result.
func (x *test) stridedRows(k kind, n, d, stride int) []float32 {
	src := repeat(nan, max(n-1, 0)*stride+min(n, 1)*d)
	for j := range n {
		copy(src[j*stride:], k.fill(x.Rand, d))
	}
	return src
}

// packV: channel c of key j goes to dst[c/Panel*step + j*Panel + c%Panel].
func (s *suite) packV(t *testing.T) {
	x := newTest(t, s)
	x.run("every number of keys", func(x *test) {
		for _, n := range x.keyCounts() {
			x.tryPackV(n, 5, 0, 0, ordinary, nil)
			x.tryPackV(n, 33, 3, 16, sparse, nil)
		}
	})
	x.run("every number of channels", func(x *test) {
		for _, d := range x.dims() {
			x.tryPackV(1, d, 0, 0, ordinary, nil)
			x.tryPackV(19, d, 7, 9, ordinary, nil)
			x.tryPackV(32, d, d, 0, sparse, nil)
		}
	})
	x.kinds(func(x *test, k kind) { x.tryPackV(21, 21, 1, 3, k, nil) })
	x.run("one value that is not finite", func(x *test) {
		for _, d := range []int{1, 7, 16, 33} {
			for _, bad := range []float32{inf, -inf, nan} {
				for _, at := range []int{0, d - 1, 4 * d, 9*d - 1} {
					x.tryPackV(9, d, 2, 0, ordinary, func(src []float32) { src[at/d*(d+2)+at%d] = bad })
				}
			}
		}
	})
}

// tryPackV packs n rows of d channels, gap apart in the source; panels lie more
// elements apart than they need.
func (x *test) tryPackV(n, d, gap, more int, k kind, change func(src []float32)) {
	x.Helper()
	src := x.stridedRows(k, n, d, d+gap)
	if change != nil {
		change(src)
	}
	panel := x.got.Panel
	step := n*panel + more
	before := ordinary.fill(x.Rand, (padded(d, panel)/panel-1)*step+n*panel)
	want, finite := clone(before), true
	for j := range n {
		for c := range padded(d, panel) {
			var v float32
			if c < d {
				v = src[j*(d+gap)+c]
			}
			want[c/panel*step+j*panel+c%panel] = v
			finite = finite && v-v == 0
		}
	}
	x.each(fmt.Sprintf("n=%d d=%d stride=%d step=%d", n, d, d+gap, step), func() {
		dst := inout(x.mem, "dst", before)
		got := x.got.PackV(&dst[0], input(x.mem, "src", src), d+gap, n, d, step)
		x.same("dst", want, dst, panel)
		if got != finite {
			x.Errorf("%s: finite is %v, must be %v", x.mem.where(), got, finite)
		}
	})
}
