// Package kerneltest is the contract of a table of tile loops as a test suite:
// every function of a table must give the bits of the portable table.
//
// Bits are compared element by element of what a tile means, as tables differ
// in their panels and strips. A NaN equals any NaN; everything else is held to
// the bit, the sign of a zero included, except that a maximum is compared as a
// number: of two zeros either is the greatest. Where a lane holds a NaN its
// maximum may be anything.
//
// Arguments lie between pages that may not be touched, flush against the one
// behind and against the one before, so that an access outside of the shapes
// that the contract names is a fault. Inputs must stay as they are.
package kerneltest

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"unsafe"

	"github.com/seed-091431b3/attention/kernel"
)

// Run holds every function of got against want, the portable table, whose
// functions take any width; and those of its table for narrow strips. With -short
// it tries fewer sizes, so that it runs in reasonable time on an emulated
// processor.
func Run(t *testing.T, want, got *kernel.Ops) {
	s := &suite{want: want, got: got}
	t.Run("Shape", s.shape)
	if t.Failed() {
		return
	}
	for _, f := range []struct {
		name string
		test func(*testing.T)
	}{
		{"Gather", s.gather}, {"Scatter", s.scatter}, {"PackK", s.packK}, {"PackV", s.packV},
		{"Softcap", s.softcap}, {"ALiBi", s.alibi}, {"Bias", s.bias}, {"Mask", s.mask},
		{"Bits", s.bits}, {"Softmax", s.softmax}, {"Dropout", s.dropout}, {"Fold", s.fold},
		{"LogSum", s.logSum}, {"Sink", s.sink}, {"AccumulateVisible", s.accumulateVisible},
		{"Score", s.score}, {"Accumulate", s.accumulate},
		{"PackRows", s.packRows}, {"UnpackRows", s.unpackRows}, {"Dot", s.dot}, {"Gradient", s.gradients},
		{"Hide", s.hide}, {"Uncap", s.uncap}, {"AddOuter", s.addOuter},
		{"Stored.Score", s.storedScore}, {"Stored.Accumulate", s.storedAccumulate}, {"Widen", s.widen}, {"Narrow", s.narrow},
	} {
		t.Run(f.name, f.test)
	}
	if got.Narrow != nil {
		t.Run("NarrowRows", func(t *testing.T) { Run(t, want, got.Narrow) })
	}
}

type suite struct{ want, got *kernel.Ops }

// shape holds what the algorithm assumes of a table's sizes.
func (s *suite) shape(t *testing.T) {
	if s.got.Name == "" {
		t.Error("the table has no name")
	}
	if p := s.got.Panel; p < 1 || kernel.Run%p != 0 {
		t.Errorf("Panel is %d, must divide a run of %d keys", p, kernel.Run)
	}
	if len(s.got.Strips) == 0 {
		t.Fatal("there are no strips")
	}
	seen := map[int]bool{}
	for _, x := range s.got.Strips {
		if x.Width < 1 || x.Width > kernel.MaxLanes || seen[x.Width] {
			t.Errorf("strip of width %d, must be positive, at most %d and not there before", x.Width, kernel.MaxLanes)
		}
		if x.Cost < 1 {
			t.Errorf("strip of width %d costs %d, must be positive", x.Width, x.Cost)
		}
		seen[x.Width] = true
	}
	if w := s.got.Strips[0].Width; w > 0 && kernel.GradRows%w != 0 {
		t.Errorf("the first strip's width is %d, must divide a group of %d rows", w, kernel.GradRows)
	}
	if c := s.got.Columns; c < 1 || c > kernel.MaxLanes {
		t.Errorf("Columns is %d, must be positive and at most %d", c, kernel.MaxLanes)
	}
}

// test is one sub-test: its random numbers and its arguments.
type test struct {
	*testing.T
	*suite
	*rand.Rand
	mem *memory
	w   int // width of the strip
}

// perWidth runs f for every width of strip.
func (s *suite) perWidth(t *testing.T, f func(x *test)) {
	for i, strip := range s.got.Strips {
		t.Run(fmt.Sprintf("w=%d", strip.Width), func(t *testing.T) {
			f(&test{T: t, suite: s, Rand: rand.New(rand.NewPCG(uint64(i), 1)), mem: newMemory(t), w: strip.Width})
		})
	}
}

// run is a sub-test whose name says what it tries.
func (x *test) run(name string, f func(x *test)) {
	x.T.Run(name, func(t *testing.T) {
		y := *x
		y.T = t
		f(&y)
	})
}

// each calls f for both places of the arguments.
func (x *test) each(label string, f func()) {
	x.Helper()
	x.mem.each(x.T, label, f)
}

// keyCounts are the numbers of keys to try.
func (x *test) keyCounts() []int {
	if testing.Short() {
		return keyCountsShort
	}
	return keyCounts
}

// dims are the numbers of channels to try.
func (x *test) dims() []int {
	if testing.Short() {
		return dimsShort
	}
	return dims
}

// sizes calls f for every number of keys with ordinary and sparse values, and
// for a few numbers with every kind.
func (x *test) sizes(f func(x *test, n int, k kind)) {
	x.run("every number of keys", func(x *test) {
		for _, n := range x.keyCounts() {
			f(x, n, ordinary)
			f(x, n, sparse)
		}
	})
	x.kinds(func(x *test, k kind) {
		for _, n := range []int{1, 5, 37, kernel.BlockKeys} {
			f(x, n, k)
		}
	})
}

// kinds calls f for every kind of value.
func (x *test) kinds(f func(x *test, k kind)) {
	for _, k := range kinds {
		x.run(k.name, func(x *test) { f(x, k) })
	}
}

// same holds the elements of got to those of want; both are [rows][cols].
func (x *test) same(name string, want, got []float32, cols int) {
	x.Helper()
	for i, a := range want {
		if b := got[i]; math.Float32bits(a) != math.Float32bits(b) && (a == a || b == b) {
			x.Fatalf("%s: %s[%d][%d] is %v (%#x), must be %v (%#x)", x.mem.where(), name, i/cols, i%cols,
				b, math.Float32bits(b), a, math.Float32bits(a))
		}
	}
}

// same64 is same for float64.
func (x *test) same64(name string, want, got []float64) {
	x.Helper()
	for i, a := range want {
		if b := got[i]; math.Float64bits(a) != math.Float64bits(b) && (a == a || b == b) {
			x.Fatalf("%s: %s[%d] is %v (%#x), must be %v (%#x)", x.mem.where(), name, i, b, math.Float64bits(b), a, math.Float64bits(a))
		}
	}
}

// sameMax holds maxima of the lanes of tile, which is [rows][w], to want.
func (x *test) sameMax(want, got, tile []float32) {
	x.Helper()
	for r, a := range want {
		if got[r] != a && a == a && !x.hasNaN(tile, r) {
			x.Fatalf("%s: max[%d] is %v, must be %v", x.mem.where(), r, got[r], a)
		}
	}
}

// hasNaN reports whether lane r of a tile holds a NaN.
func (x *test) hasNaN(tile []float32, r int) bool {
	for ; r < len(tile); r += x.w {
		if tile[r] != tile[r] {
			return true
		}
	}
	return false
}

// laneMax returns the greatest number of each lane of a tile.
func (x *test) laneMax(tile []float32) []float32 {
	max := repeat(-inf, x.w)
	for i, v := range tile {
		if v > max[i%x.w] {
			max[i%x.w] = v
		}
	}
	return max
}

// repeat returns n times v.
func repeat[T any](v T, n int) []T {
	x := make([]T, n)
	for i := range x {
		x[i] = v
	}
	return x
}

// clone returns a copy of v with room for one element, so that it has an
// address even if it is empty.
func clone[T any](v []T) []T { return append(make([]T, 0, len(v)+1), v...) }

// ptr returns the address of the first element.
func ptr[T any](v []T) *T { return unsafe.SliceData(v) }

// padded rounds n up to a multiple of m.
func padded(n, m int) int { return (n + m - 1) / m * m }

// newTest is a test of a function that knows no strips.
func newTest(t *testing.T, s *suite) *test {
	return &test{T: t, suite: s, Rand: rand.New(rand.NewPCG(0, 2)), mem: newMemory(t), w: 1}
}
