// Package faults holds faults that were publicly reported against attention
// libraries, each as a numeric test that any implementation can be put to.
//
//	for _, f := range faults.All() {
//		t.Run(f.Name, func(t *testing.T) { require.NoError(t, f.Check(subject)) })
//	}
package faults

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/seed-091431b3/attention/ref"
)

// Problem is a problem for an implementation under test. Its masks, if any, are
// also described by Causal, Left and Right, for all sequences alike, so that
// an implementation can use its own masks; AddMask is conjoined with them.
type Problem struct {
	*ref.Problem          // Masks is complete: it includes all of the below
	Causal       bool     // j ≤ p
	Left, Right  int      // p-Left ≤ j ≤ p+Right; ref.Unbounded leaves a side open
	AddMask      ref.Mask // nil hides nothing
}

// Result is what an implementation computes. Gradients are wanted only where the
// problem has DO or DLSE, and are float64 of whatever it computes in.
type Result struct {
	O, LSE     []float64 // [Tq, Hq, Dv], [Tq, Hq]
	DQ, DK, DV []float64 // [Tq, Hq, Dk], [Tk, Hkv, Dk], [Tk, Hkv, Dv]
}

// Subject is an implementation under test.
type Subject struct {
	Run func(*Problem) (*Result, error)
	// Merge combines attention over two disjoint sets of keys. o: [n, Dv];
	// lse: [n].
	Merge func(o1, lse1, o2, lse2 []float64) (o, lse []float64, err error)
	// Tolerance is the error accepted, relative to max(1, |expected|).
	Tolerance float64
}

// Fault is one fault.
type Fault struct {
	Number int
	Name   string
	// Check returns how the subject has the fault, or nil.
	Check func(Subject) error
}

// All returns all faults, in the order of their numbers.
func All() []Fault {
	return []Fault{
		{1, "more queries than keys", moreQueriesThanKeys},
		{2, "window with masked leading blocks", func(s Subject) error { return SlidingWindow(s, 600) }},
		{3, "softcap and a padded key block", softcapAndPadding},
		{4, "logits below a finite sentinel", logitsBelowSentinel},
		{5, "saved LSE too coarse", coarseLSE},
		{6, "alignment", alignment},
		{7, "merge", merge},
		{8, "gradient through LSE", gradientThroughLSE},
		{9, "GQA, window and bottom-right", groupedWindow},
		{10, "stale memory", staleMemory},
	}
}

// Reference returns the float64 reference as a subject.
func Reference() Subject {
	return Subject{
		Run: func(p *Problem) (*Result, error) {
			if err := p.Check(); err != nil {
				return nil, err
			}
			out := ref.Forward(p.Problem)
			r := &Result{O: out.O, LSE: out.LSE}
			if p.DO != nil || p.DLSE != nil {
				g := ref.Backward(p.Problem)
				r.DQ, r.DK, r.DV = g.DQ, g.DK, g.DV
			}
			return r, nil
		},
		Merge: func(o1, lse1, o2, lse2 []float64) ([]float64, []float64, error) {
			o, lse := ref.Merge(o1, lse1, o2, lse2)
			return o, lse, nil
		},
		Tolerance: 1e-9, // the literals below have nine digits
	}
}

// run runs s on p and checks the lengths of what it returns.
func (s Subject) run(p *Problem) (*Result, error) {
	r, err := s.Run(p)
	if err != nil {
		return nil, err
	}
	tq, tk := p.CuQ[p.Batch()], p.CuK[p.Batch()]
	want := map[string][2]int{
		"O":   {len(r.O), tq * p.Hq * p.Dv},
		"LSE": {len(r.LSE), tq * p.Hq},
	}
	if p.DO != nil || p.DLSE != nil {
		want["dQ"] = [2]int{len(r.DQ), tq * p.Hq * p.Dk}
		want["dK"] = [2]int{len(r.DK), tk * p.Hkv * p.Dk}
		want["dV"] = [2]int{len(r.DV), tk * p.Hkv * p.Dv}
	}
	for name, n := range want {
		if n[0] != n[1] {
			return nil, fmt.Errorf("%s has %d elements, want %d", name, n[0], n[1])
		}
	}
	return r, nil
}

// newProblem wraps p, sets its masks from the description, and fills in the
// scale if it is 0.
func newProblem(p ref.Problem, causal bool, left, right int, add ref.Mask) *Problem {
	if p.Scale == 0 {
		p.Scale = ref.DefaultScale(p.Dk)
	}
	for b := range p.Batch() {
		off := (p.CuK[b+1] - p.CuK[b]) - (p.CuQ[b+1] - p.CuQ[b])
		if p.Offset != nil {
			off = p.Offset[b]
		}
		masks := []ref.Mask{ref.Window(off, left, right), add}
		if causal {
			masks = append(masks, ref.Causal(off))
		}
		p.Masks = append(p.Masks, ref.And(masks...))
	}
	return &Problem{Problem: &p, Causal: causal, Left: left, Right: right, AddMask: add}
}

// Val is the test data that the faults are stated with: a value in [-1, 1) that
// is a pure function of seed and i.
func Val(seed, i uint64) float32 {
	x := seed<<32 | i
	x += 0x9E3779B97F4A7C15
	x ^= x >> 30
	x *= 0xBF58476D1CE4E5B9
	x ^= x >> 27
	x *= 0x94D049BB133111EB
	x ^= x >> 31
	return float32(float64(x>>40)/(1<<23)) - 1
}

// vals returns the first n values of a seed.
func vals(seed uint64, n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = Val(seed, uint64(i))
	}
	return x
}

// widen returns x in float64.
func widen(x []float32) []float64 {
	w := make([]float64, len(x))
	for i := range x {
		w[i] = float64(x[i])
	}
	return w
}

// expect is expected values: got and want have the same length.
type expect struct {
	name      string
	got, want []float64
}

// check holds every expectation; where want is infinite or tolerance is 0, got
// must equal it.
func check(tolerance float64, expectations ...expect) error {
	var errs []error
	for _, e := range expectations {
		if len(e.got) != len(e.want) {
			errs = append(errs, fmt.Errorf("%s has %d elements, want %d", e.name, len(e.got), len(e.want)))
			continue
		}
		for i, want := range e.want {
			got := e.got[i]
			near := math.Abs(got-want) <= tolerance*max(1, math.Abs(want)) && !math.IsInf(want, 0)
			if got != want && !near {
				errs = append(errs, fmt.Errorf("%s[%d] is %.10g, want %.10g", e.name, i, got, want))
				break
			}
		}
	}
	return errors.Join(errs...)
}

// fill returns n times x.
func fill[T any](x T, n int) []T { return slices.Repeat([]T{x}, n) }

var negInf = math.Inf(-1)
