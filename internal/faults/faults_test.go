package faults

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestReferenceHasNoFault(t *testing.T) {
	for _, f := range All() {
		t.Run(f.Name, func(t *testing.T) {
			require.NoError(t, f.Check(Reference()))
		})
	}
}

func TestSlidingWindowLengths(t *testing.T) {
	for _, n := range []int{1, 9, 10, 11, 63, 64, 65, 127, 128, 129, 511, 512, 513} {
		assert.NoError(t, SlidingWindow(Reference(), n), "n = %d", n)
	}
}

func TestVal(t *testing.T) {
	for i, want := range []float64{0.5326035, -0.7479380, 0.4018624, 0.2657524} {
		assert.InDelta(t, want, Val(1, uint64(i)), 6e-8)
	}
}

// TestFaultsAreSeen gives every check a subject that has some fault.
func TestFaultsAreSeen(t *testing.T) {
	broken := map[string]Subject{
		"NaN where nothing is visible": spoiled(func(_ *Problem, r *Result) {
			for i, lse := range r.LSE {
				if math.IsInf(lse, -1) {
					r.LSE[i] = math.NaN()
				}
			}
		}),
		"everything a little off": spoiled(func(_ *Problem, r *Result) {
			for _, x := range [][]float64{r.O, r.LSE, r.DQ, r.DK, r.DV} {
				for i := range x {
					x[i] += 1e-4
				}
			}
		}),
		"NaN in the last row": spoiled(func(_ *Problem, r *Result) { r.O[len(r.O)-1] = math.NaN() }),
		"reads what lies beyond the batch": spoiled(func(p *Problem, r *Result) {
			r.O[0] += 0 * float64(p.K[len(p.K)-1])
		}),
	}
	seen := map[int]bool{}
	for _, s := range broken {
		for _, f := range All() {
			seen[f.Number] = seen[f.Number] || f.Check(s) != nil
		}
	}
	for _, f := range All() {
		assert.True(t, seen[f.Number], "fault %d: %s", f.Number, f.Name)
	}
}

// spoiled returns the reference with its results changed by spoil.
func spoiled(spoil func(*Problem, *Result)) Subject {
	s := Reference()
	run := s.Run
	s.Run = func(p *Problem) (*Result, error) {
		r, err := run(p)
		if err == nil {
			spoil(p, r)
		}
		return r, err
	}
	s.Merge = func(o1, lse1, o2, lse2 []float64) ([]float64, []float64, error) {
		o, lse, err := Reference().Merge(o1, lse1, o2, lse2)
		lse[1] = math.NaN()
		return o, lse, err
	}
	return s
}
