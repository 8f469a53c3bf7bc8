package faults

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/seed-091431b3/attention/ref"
)

// staleKeys is how many rows of memory follow the last key.
const staleKeys = 3

// hiddenKey is hidden from all queries of every sequence of staleProblem.
const hiddenKey = 4

// staleProblem returns a ragged problem with hidden keys, in K and V that are
// longer than the batch.
func staleProblem() *Problem {
	const hq, hkv, dk, dv = 4, 2, 5, 7
	cuQ, cuK := []int{0, 6, 6, 15}, []int{0, 9, 12, 29}
	tq, rows := cuQ[3], cuK[3]+staleKeys
	return newProblem(ref.Problem{
		Hq: hq, Hkv: hkv, Dk: dk, Dv: dv, CuQ: cuQ, CuK: cuK,
		Q: vals(1, tq*hq*dk), K: vals(2, rows*hkv*dk), V: vals(3, rows*hkv*dv), DO: vals(4, tq*hq*dv),
	}, true, open, open, func(_, _, _, j int) bool { return j != hiddenKey })
}

// spoil fills the K and V rows that nothing may read with x, in copies: those of
// the hidden key and of what lies beyond the batch. Sequence 1 has no queries, so
// that all of its keys are hidden too.
func spoil(p *Problem, x float32) *Problem {
	r := *p.Problem
	r.K, r.V = slices.Clone(r.K), slices.Clone(r.V)
	row := func(t int) {
		copy(r.K[t*r.Hkv*r.Dk:(t+1)*r.Hkv*r.Dk], fill(x, r.Hkv*r.Dk))
		copy(r.V[t*r.Hkv*r.Dv:(t+1)*r.Hkv*r.Dv], fill(x, r.Hkv*r.Dv))
	}
	row(r.CuK[0] + hiddenKey)
	row(r.CuK[2] + hiddenKey)
	for t := r.CuK[1]; t < r.CuK[2]; t++ {
		row(t)
	}
	for t := range staleKeys {
		row(r.CuK[3] + t)
	}
	q := *p
	q.Problem = &r
	return &q
}

// staleMemory is fault 10: what nothing may read changes no bit, and NaN in one
// row of Q stays in that row of O.
func staleMemory(s Subject) error {
	p := staleProblem()
	clean, err := s.run(p)
	if err != nil {
		return err
	}
	nan := float32(math.NaN())
	var errs []error
	for _, x := range []float32{nan, 1e3} {
		r, err := s.run(spoil(p, x))
		if err != nil {
			return err
		}
		if err := sameBits(clean, r); err != nil {
			errs = append(errs, fmt.Errorf("unreadable memory filled with %g: %w", x, err))
		}
	}
	return errors.Join(append(errs, queryNaN(s, p, clean))...)
}

// queryNaN puts a NaN into row t of head h of Q.
func queryNaN(s Subject, p *Problem, clean *Result) error {
	const t, h = 8, 2
	r := *p.Problem
	r.Q = slices.Clone(r.Q)
	r.Q[(t*r.Hq+h)*r.Dk+1] = float32(math.NaN())
	q := *p
	q.Problem = &r
	got, err := s.run(&q)
	if err != nil {
		return err
	}
	for i, o := range got.O {
		inRow := i/r.Dv == t*r.Hq+h
		if inRow && !math.IsNaN(o) {
			return fmt.Errorf("output O[%d] is %g for a query with NaN", i, o)
		}
		if !inRow && math.Float64bits(o) != math.Float64bits(clean.O[i]) {
			return fmt.Errorf("output O[%d] is %g, not %g, because of NaN in another query", i, o, clean.O[i])
		}
	}
	return nil
}

// sameBits checks that two results are the same to the bit.
func sameBits(a, b *Result) error {
	for _, x := range []struct {
		name string
		a, b []float64
	}{{"O", a.O, b.O}, {"LSE", a.LSE, b.LSE}, {"dQ", a.DQ, b.DQ}, {"dK", a.DK, b.DK}, {"dV", a.DV, b.DV}} {
		for i := range x.a {
			if math.Float64bits(x.a[i]) != math.Float64bits(x.b[i]) {
				return fmt.Errorf("%s[%d] was %g and is %g", x.name, i, x.a[i], x.b[i])
			}
		}
	}
	return nil
}
