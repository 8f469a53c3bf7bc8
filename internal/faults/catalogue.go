package faults

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/seed-091431b3/attention/ref"
)

const open = ref.Unbounded

// moreQueriesThanKeys is fault 1: a ragged causal batch with far more queries
// than keys gave NaN in dQ.
func moreQueriesThanKeys(s Subject) error {
	const d = 32
	cuQ := []int{0, 76, 110, 256}
	base := ref.Problem{
		Hq: 1, Hkv: 1, Dk: d, Dv: d, CuQ: cuQ, CuK: []int{0, 1, 2, 3},
		Q: vals(1, 256*d), K: vals(2, 3*d), V: vals(3, 3*d), DO: fill[float32](1, 256*d),
	}
	var errs []error
	for _, causal := range []bool{true, false} {
		r, err := s.run(newProblem(base, causal, open, open, nil))
		if err != nil {
			return err
		}
		o, dv := fill(0.0, 256*d), fill(1.0, 3*d)
		for b := range 3 {
			first := cuQ[b]
			if causal {
				first = cuQ[b+1] - 1 // the one row that sees a key
				hidden := slices.Concat(r.O[cuQ[b]*d:first*d], r.DQ[cuQ[b]*d:first*d])
				lse := r.LSE[cuQ[b]:first]
				errs = append(errs, check(0, expect{"hidden O, dQ", hidden, fill(0.0, len(hidden))},
					expect{"hidden LSE", lse, fill(negInf, len(lse))}))
			} else {
				copy(dv[b*d:], fill(float64(cuQ[b+1]-cuQ[b]), d))
			}
			for t := first; t < cuQ[b+1]; t++ {
				copy(o[t*d:], widen(base.V[b*d:(b+1)*d]))
			}
		}
		errs = append(errs, check(s.Tolerance, expect{"O", r.O, o}, expect{"dV", r.DV, dv}))
		// dQ and dK are sums of nq terms that are 0 but for rounding in <dO, v>
		errs = append(errs, check(d*s.Tolerance, expect{"dQ", r.DQ, fill(0.0, 256*d)}))
		errs = append(errs, check(146*d*s.Tolerance, expect{"dK", r.DK, fill(0.0, 3*d)}))
	}
	return errors.Join(errs...)
}

// SlidingWindow is fault 2 with n queries and keys: causal windows of ten keys,
// whose leading key blocks are masked in full, gave NaN. It should be run for
// lengths one below, at and one above every block size of an implementation.
func SlidingWindow(s Subject, n int) error {
	const d = 8
	ones := fill[float32](1, n*d)
	p := newProblem(ref.Problem{
		Hq: 1, Hkv: 1, Dk: d, Dv: d, CuQ: []int{0, n}, CuK: []int{0, n}, Q: ones, K: ones, V: ones,
	}, false, 9, 0, nil)
	r, err := s.run(p)
	if err != nil {
		return err
	}
	lse := make([]float64, n)
	for i := range lse {
		lse[i] = p.Scale*d + math.Log(float64(min(i+1, 10)))
	}
	return check(s.Tolerance, expect{"O", r.O, fill(1.0, n*d)}, expect{"LSE", r.LSE, lse})
}

// softcapAndPadding is fault 3: padding keys were capped before they were
// masked, and so took weight.
func softcapAndPadding(s Subject) error {
	const n, d = 65, 8
	r, err := s.run(newProblem(ref.Problem{
		Hq: 1, Hkv: 1, Dk: d, Dv: d, CuQ: []int{0, 1}, CuK: []int{0, n}, Softcap: 1,
		Q: fill[float32](0, d), K: vals(2, n*d), V: fill[float32](1, n*d),
	}, false, open, open, nil))
	if err != nil {
		return err
	}
	return check(s.Tolerance, expect{"O", r.O, fill(1.0, d)}, expect{"LSE", r.LSE, []float64{math.Log(n)}})
}

// logitsBelowSentinel is fault 4: logits below the finite number that stood for
// "masked" gave 0.
func logitsBelowSentinel(s Subject) error {
	const dv = 5 // P in the first four channels, Σ j·P_j in the last
	p := ref.Problem{
		Hq: 1, Hkv: 1, Dk: 1, Dv: dv, CuQ: []int{0, 1}, CuK: []int{0, 4}, Scale: 1,
		Q: []float32{1}, K: []float32{-1e5, -1e5 - 1, -1e5 - 2, -1e5 - 3}, V: make([]float32, 4*dv),
	}
	l := 1 + math.Exp(-1) + math.Exp(-2) + math.Exp(-3)
	o := make([]float64, dv)
	for j := range 4 {
		p.V[j*dv+j], p.V[j*dv+4] = 1, float32(j)
		o[j] = math.Exp(float64(-j)) / l
		o[4] += float64(j) * o[j]
	}
	r, err := s.run(newProblem(p, false, open, open, nil))
	if err != nil {
		return err
	}
	return check(s.Tolerance,
		expect{"O", r.O, o},
		expect{"LSE + 1e5", []float64{r.LSE[0] + 1e5}, []float64{math.Log(l)}})
}

// coarseLSE is fault 5: with an LSE of float32, the backward pass computed
// weights of large logits from a rounded LSE.
func coarseLSE(s Subject) error {
	var errs []error
	for _, n := range []int{2, 3, 5} {
		for _, x := range []float32{1e4, 1e5, 1e6} {
			p := ref.Problem{
				Hq: 1, Hkv: 1, Dk: 1, Dv: n, CuQ: []int{0, 1}, CuK: []int{0, n}, Scale: 1,
				Q: []float32{1}, K: fill(x, n), V: make([]float32, n*n), DO: fill[float32](1, n),
			}
			for j := range n {
				p.V[j*n+j] = 1
			}
			r, err := s.run(newProblem(p, false, open, open, nil))
			if err != nil {
				return err
			}
			// dV_jc = P_j · dO_c
			if err := check(s.Tolerance, expect{"dV", r.DV, fill(1/float64(n), n*n)}); err != nil {
				errs = append(errs, fmt.Errorf("%d keys with logit %g: %w", n, x, err))
			}
		}
	}
	return errors.Join(errs...)
}

// alignment is fault 6: which keys a causal query sees where there are more or
// fewer keys than queries. All logits are 0, so O is the mean of 1, 2, ….
func alignment(s Subject) error {
	var errs []error
	for _, c := range []struct {
		name   string
		nq, nk int
		offset []int // nil is bottom-right
		o, lse []float64
	}{
		{"bottom-right 2x5", 2, 5, nil, []float64{2.5, 3}, []float64{math.Log(4), math.Log(5)}},
		{"top-left 2x5", 2, 5, []int{0}, []float64{1, 1.5}, []float64{0, math.Ln2}},
		{"bottom-right 5x2", 5, 2, nil, []float64{0, 0, 0, 1, 1.5}, []float64{negInf, negInf, negInf, 0, math.Ln2}},
	} {
		r, err := s.run(newProblem(ref.Problem{
			Hq: 1, Hkv: 1, Dk: 1, Dv: 1, CuQ: []int{0, c.nq}, CuK: []int{0, c.nk}, Offset: c.offset,
			Q: make([]float32, c.nq), K: make([]float32, c.nk), V: []float32{1, 2, 3, 4, 5}[:c.nk],
		}, true, open, open, nil))
		if err != nil {
			return err
		}
		if err := check(s.Tolerance, expect{"O", r.O, c.o}, expect{"LSE", r.LSE, c.lse}); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", c.name, err))
		}
	}
	return errors.Join(errs...)
}

// merge is fault 7: a part that saw no key must not change the other.
func merge(s Subject) error {
	o, lse, err := s.Merge(
		[]float64{1, 0, 2}, []float64{math.Log(3), negInf, 1.5},
		[]float64{5, 0, 0}, []float64{0, negInf, negInf})
	if err != nil {
		return err
	}
	return check(s.Tolerance,
		expect{"O", o, []float64{2, 0, 2}},
		expect{"LSE", lse, []float64{math.Log(4), negInf, 1.5}})
}

// gradientThroughLSE is fault 8: the loss is the sum of LSE.
func gradientThroughLSE(s Subject) error {
	r, err := s.run(newProblem(ref.Problem{
		Hq: 1, Hkv: 1, Dk: 2, Dv: 2, CuQ: []int{0, 2}, CuK: []int{0, 2},
		Q: []float32{1, .5, -.25, 2}, K: []float32{.5, -1, 1.5, .25}, V: vals(3, 4),
		DO: make([]float32, 4), DLSE: []float32{1, 1},
	}, false, open, open, nil))
	if err != nil {
		return err
	}
	return check(s.Tolerance,
		expect{"LSE", r.LSE, []float64{1.424358006, .273808244}},
		expect{"dQ", r.DQ, []float64{.890485791, -.035941281, .940986153, .027184172}},
		expect{"dK", r.DK, []float64{.140255876, .324435228, .390074209, 1.443331725}},
		expect{"dV", r.DV, fill(0.0, 4)})
}

// groupedWindow is fault 9: grouped heads, a window, and more keys than queries.
func groupedWindow(s Subject) error {
	r, err := s.run(newProblem(ref.Problem{
		Hq: 2, Hkv: 1, Dk: 4, Dv: 3, CuQ: []int{0, 3}, CuK: []int{0, 5}, Scale: .5,
		Q: vals(1, 3*2*4), K: vals(2, 5*4), V: vals(3, 5*3), DO: vals(4, 3*2*3),
	}, true, 1, 0, nil))
	if err != nil {
		return err
	}
	err = check(s.Tolerance,
		expect{"LSE", r.LSE, []float64{.490499202, .76321215, 1.086109372, .817286799, .788359321, .63405338}},
		expect{"O(0,0)", r.O[:3], []float64{-.296892969, .222557435, -.4120235}},
		expect{"dQ(2,0)", r.DQ[4*4 : 5*4], []float64{.084273856, .120926853, -.040058937, -.030440349}},
		expect{"dK row 1", r.DK[4:8], []float64{-.031739658, .100555716, .029886449, .031183854}},
		expect{"dK row 4", r.DK[16:20], []float64{.093247106, -.04916136, .018259907, -.004913727}},
		expect{"dV row 1", r.DV[3:6], []float64{-.018905593, -.516050391, -.680405565}},
		expect{"dV row 4", r.DV[12:15], []float64{.003570037, -.927554196, -.319488158}})
	unseen := check(0, expect{"dK row 0", r.DK[:4], fill(0.0, 4)}, expect{"dV row 0", r.DV[:3], fill(0.0, 3)})
	return errors.Join(err, unseen)
}
