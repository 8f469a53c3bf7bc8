package attention_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-091431b3/attention"
	"github.com/seed-091431b3/attention/ref"
)

// visible reports whether query i of head h in sequence b sees key j.
func (p *problem) visible(b, h, i, j int) bool {
	return p.ref.Masks[b] == nil || p.ref.Masks[b](b, h, i, j)
}

// eachQuery calls f for every row of every sequence.
func (p *problem) eachQuery(f func(b, h, i, row int)) {
	for b := range p.ref.Batch() {
		nq, _, _ := p.sequence(b)
		for i := range nq {
			for h := range p.ref.Hq {
				f(b, h, i, (p.ref.CuQ[b]+i)*p.ref.Hq+h)
			}
		}
	}
}

// row is one row of a result.
func (p *problem) row(r result, n int) result {
	return result{r.o[n*p.ref.Dv : (n+1)*p.ref.Dv], r.lse[n : n+1]}
}

// hiddenProblems are problems in which much is hidden, some of it in the middle
// of blocks.
func hiddenProblems(t *testing.T) []*problem {
	r := rand.New(rand.NewPCG(8, 8))
	var all []*problem
	for _, s := range []shape{
		{4, 2, 9, 17, []int{70, 9, 1, 0, 3}, []int{140, 5, 200, 4, 0}},
		{2, 1, 32, 32, []int{3}, []int{1500}},
		{2, 2, 5, 3, []int{129}, []int{129}},
	} {
		for range 7 {
			p := newProblem(r, s)
			p.setMasks(func(_, nq, nk, off int) (string, attention.Mask, ref.Mask) {
				name, m, visible := randomMask(r, s.hq, nq, nk, off)
				if visible == nil {
					return "causal", attention.Causal(), ref.Causal(off)
				}
				return name, m, visible
			})
			all = append(all, p)
		}
		all[len(all)-1].add(r, "softcap", "alibi", "sinks", "dropout")
		all[len(all)-2].add(r, "bias")
	}
	if testing.Short() {
		return all[5:7]
	}
	return all
}

// perKernel runs f for every kernel.
func perKernel(t *testing.T, f func(t *testing.T, kernel string)) {
	for _, kernel := range attention.Kernels() {
		t.Run(kernel, func(t *testing.T) { f(t, kernel) })
	}
}

// TestUnseenKeys: keys that no query sees may hold anything.
func TestUnseenKeys(t *testing.T) {
	perKernel(t, func(t *testing.T, kernel string) {
		for _, p := range hiddenProblems(t) {
			want := p.run(t, kernel, 1)
			seen := make([]bool, p.ref.CuK[p.ref.Batch()]*p.ref.Hkv)
			group := p.ref.Hq / p.ref.Hkv
			p.eachQuery(func(b, h, i, _ int) {
				for n := p.ref.CuK[b]; n < p.ref.CuK[b+1]; n++ {
					seen[n*p.ref.Hkv+h/group] = seen[n*p.ref.Hkv+h/group] || p.visible(b, h, i, n-p.ref.CuK[b])
				}
			})
			for _, bad := range []float32{nan, float32(math.Inf(1)), float32(math.Inf(-1)), 1e3} {
				c := *p
				c.k, c.v = slices.Clone(p.k), slices.Clone(p.v)
				for n, s := range seen {
					if !s {
						fill(c.k[n*p.ref.Dk:(n+1)*p.ref.Dk], bad)
						fill(c.v[n*p.ref.Dv:(n+1)*p.ref.Dv], bad)
					}
				}
				sameBits(t, want, c.run(t, kernel, 1), p.name, bad, "in keys that nobody sees")
			}
		}
	})
}

// spoilt is p with bad in one element of a key or a value; key n of all
// sequences.
func (p *problem) spoilt(inK bool, n, kv, c int, bad float32) *problem {
	s := *p
	if inK {
		s.k = slices.Clone(p.k)
		s.k[(n*p.ref.Hkv+kv)*p.ref.Dk+c] = bad
	} else {
		s.v = slices.Clone(p.v)
		s.v[(n*p.ref.Hkv+kv)*p.ref.Dv+c] = bad
	}
	return &s
}

// TestNaNReachesWhoSeesIt: a NaN in a key makes the rows that see it NaN, one
// in a value their channel; the bits of everything else stay.
func TestNaNReachesWhoSeesIt(t *testing.T) {
	perKernel(t, func(t *testing.T, kernel string) {
		r := rand.New(rand.NewPCG(9, 9))
		for _, p := range hiddenProblems(t) {
			want := p.run(t, kernel, 1)
			for range 8 {
				n, kv := r.IntN(p.ref.CuK[p.ref.Batch()]), r.IntN(p.ref.Hkv)
				ck, cv := r.IntN(p.ref.Dk), r.IntN(p.ref.Dv)
				key := p.spoilt(true, n, kv, ck, nan).run(t, kernel, 2)
				value := p.spoilt(false, n, kv, cv, nan).run(t, kernel, 2)
				infinite := p.spoilt(false, n, kv, cv, float32(math.Inf(1))).run(t, kernel, 2)
				p.eachQuery(func(b, h, i, row int) {
					before := p.row(want, row)
					j := n - p.ref.CuK[b]
					sees := n >= p.ref.CuK[b] && n < p.ref.CuK[b+1] && h/(p.ref.Hq/p.ref.Hkv) == kv && p.visible(b, h, i, j)
					if !sees {
						sameBits(t, before, p.row(key, row), p.name, "row", row, "does not see NaN in key", n)
						sameBits(t, before, p.row(value, row), p.name, "row", row, "does not see NaN in value", n)
						sameBits(t, before, p.row(infinite, row), p.name, "row", row, "does not see Inf in value", n)
						return
					}
					allNaN(t, p.row(key, row), p.name, "row", row, "sees NaN in key", n)
					got := p.row(value, row)
					require.True(t, got.o[cv] != got.o[cv], "%s: row %d sees NaN in value %d, channel %d, and has %v", p.name, row, n, cv, got.o[cv])
					got.o[cv] = before.o[cv]
					sameBits(t, before, got, p.name, "row", row, "other channels than that with NaN")
				})
			}
		}
	})
}

func allNaN(t *testing.T, r result, what ...any) {
	t.Helper()
	for _, x := range r.o {
		require.True(t, x != x, "%v: has %v", what, x)
	}
	require.True(t, math.IsNaN(r.lse[0]), "%v: LSE is %v", what, r.lse[0])
}

// TestNaNInQuery: a NaN in a query makes its own row NaN, if it sees anything,
// and no other.
func TestNaNInQuery(t *testing.T) {
	perKernel(t, func(t *testing.T, kernel string) {
		r := rand.New(rand.NewPCG(10, 10))
		for _, p := range hiddenProblems(t) {
			want := p.run(t, kernel, 1)
			for range 4 {
				bad := r.IntN(len(want.lse))
				c := *p
				c.q = slices.Clone(p.q)
				c.q[bad*p.ref.Dk+r.IntN(p.ref.Dk)] = nan
				got := c.run(t, kernel, 1)
				p.eachQuery(func(b, h, i, row int) {
					sees := false
					for j := range p.ref.CuK[b+1] - p.ref.CuK[b] {
						sees = sees || p.visible(b, h, i, j)
					}
					if row == bad && sees {
						allNaN(t, p.row(got, row), p.name, "row", row)
					} else {
						sameBits(t, p.row(want, row), p.row(got, row), p.name, "row", row, "with NaN in query", bad)
					}
				})
			}
		}
	})
}

// TestHiddenBias: the bias of a hidden key may be anything, and a bias of -Inf
// is a mask.
func TestHiddenBias(t *testing.T) {
	perKernel(t, func(t *testing.T, kernel string) {
		r := rand.New(rand.NewPCG(11, 11))
		for range 6 {
			p := newProblem(r, shape{2, 1, 8, 8, []int{40, 3}, []int{150, 1100}})
			p.setMasks(func(_, nq, nk, off int) (string, attention.Mask, ref.Mask) { return randomMask(r, 2, nq, nk, off) })
			p.in.Bias = make([]attention.Bias, 2)
			for b := range p.in.Bias {
				nq, nk, _ := p.sequence(b)
				p.in.Bias[b] = attention.Bias{Data: random(r, 2*nq*nk), HeadStride: nq * nk, QueryStride: nk}
			}
			want := p.run(t, kernel, 1)
			hide := func(bad float32) {
				p.eachQuery(func(b, h, i, _ int) {
					for j := range p.ref.CuK[b+1] - p.ref.CuK[b] {
						if x := &p.in.Bias[b]; !p.visible(b, h, i, j) {
							x.Data[h*x.HeadStride+i*x.QueryStride+j] = bad
						}
					}
				})
			}
			hide(nan)
			sameBits(t, want, p.run(t, kernel, 1), p.name, "NaN in the bias of hidden keys")
			hide(float32(math.Inf(-1)))
			p.batch.Masks = nil
			sameBits(t, want, p.run(t, kernel, 1), p.name, "a bias of -Inf instead of the mask")
		}
	})
}

// TestNothingToSee: rows that see nothing give 0 and -Inf, or the sink.
func TestNothingToSee(t *testing.T) {
	perKernel(t, func(t *testing.T, kernel string) {
		r := rand.New(rand.NewPCG(12, 12))
		for _, s := range []shape{{2, 1, 4, 5, []int{40, 1}, []int{0, 0}}, {2, 1, 4, 5, []int{40, 1}, []int{30, 1100}}} {
			p := newProblem(r, s)
			p.cfg.Mask = attention.Func(func(_, _, _, _ int) bool { return false }, nil)
			hidden := p.run(t, kernel, 2)
			p.in.Sinks = []float32{-1.5, 0}
			sunk := p.run(t, kernel, 2)
			for n, o := range hidden.o {
				require.Equal(t, uint32(0), math.Float32bits(o))
				require.Equal(t, uint32(0), math.Float32bits(sunk.o[n]))
			}
			for n, lse := range hidden.lse {
				require.Equal(t, math.Inf(-1), lse)
				require.Equal(t, float64(p.in.Sinks[n%2]), sunk.lse[n])
			}
		}
	})
}

// TestInfiniteLogits: a logit of -Inf has no weight, +Inf gives NaN, as IEEE
// arithmetic has it.
func TestInfiniteLogits(t *testing.T) {
	perKernel(t, func(t *testing.T, kernel string) {
		r := rand.New(rand.NewPCG(13, 13))
		p := newProblem(r, shape{1, 1, 2, 3, []int{2}, []int{200}})
		copy(p.q, []float32{1, 1, 1, 1})
		p.k[2*150] = float32(math.Inf(-1))
		got := p.run(t, kernel, 1)
		p.batch.Masks = []attention.Mask{attention.Func(func(_, _, _, j int) bool { return j != 150 }, nil)}
		sameBits(t, p.run(t, kernel, 1), got, "logit of -Inf")
		p.batch.Masks = nil
		p.k[2*150] = float32(math.Inf(1))
		got = p.run(t, kernel, 1)
		allNaN(t, p.row(got, 0), "logit of +Inf")
		for j := range 200 {
			p.k[2*j] = float32(math.Inf(-1))
		}
		got = p.run(t, kernel, 1)
		require.Equal(t, []float32{0, 0, 0, 0, 0, 0}, got.o)
		require.Equal(t, []float64{math.Inf(-1), math.Inf(-1)}, got.lse)
	})
}

// TestUnknownVisibility: what a tile function returns beyond the three is taken
// as Mixed.
func TestUnknownVisibility(t *testing.T) {
	r := rand.New(rand.NewPCG(15, 15))
	p := newProblem(r, shape{2, 1, 4, 4, []int{40}, []int{200}})
	visible := func(_, _, i, j int) bool { return (i+j)%3 > 0 }
	p.batch.Masks = []attention.Mask{attention.Func(visible, nil)}
	want := p.run(t, "", 1)
	for _, v := range []attention.Visibility{77, 3, 255} {
		p.batch.Masks[0] = attention.Func(visible, func(_, _, _, _, _ int) attention.Visibility { return v })
		sameBits(t, want, p.run(t, "", 1), v)
	}
}
