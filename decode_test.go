package attention_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-091431b3/attention"
	"github.com/seed-091431b3/attention/kernel"
	"github.com/seed-091431b3/attention/ref"
)

// formats are those of a cache.
var formats = []attention.Format{attention.FormatFloat32, attention.FormatBFloat16, attention.FormatFloat16}

// stored is x rounded to a format.
func stored(f attention.Format, x []float32) []float32 {
	if f == attention.FormatFloat32 {
		return x
	}
	y := make([]float32, len(x))
	for i, v := range x {
		y[i] = kernel.Format(f).Widen32(kernel.Format(f).Narrow16(v))
	}
	return y
}

// stored is p with keys and values rounded to a format.
func (p *problem) stored(f attention.Format) *problem {
	s := *p
	s.k, s.v = stored(f, p.k), stored(f, p.v)
	return &s
}

// runCached computes p with its keys and values in a cache, to which they are
// appended in random pieces, in turn with those of the other sequences.
func (p *problem) runCached(t testing.TB, op *attention.Operator, r *rand.Rand, f attention.Format, page int) result {
	t.Helper()
	n := p.ref.Batch()
	pages := 0
	for b := range n {
		_, nk, _ := p.sequence(b)
		pages += (nk + page - 1) / page
	}
	cache, err := attention.NewCache(attention.CacheConfig{
		KVHeads: p.ref.Hkv, HeadDim: p.ref.Dk, ValueDim: p.ref.Dv, PageKeys: page, Pages: pages, Format: f,
	})
	require.NoError(t, err)
	in, out, got := p.call()
	seqs := make([]*attention.CachedSequence, n)
	for b := range seqs {
		seqs[b] = cache.NewSequence()
	}
	for left := p.ref.CuK[n]; left > 0; {
		b := r.IntN(n)
		_, nk, _ := p.sequence(b)
		at := seqs[b].Len()
		step := min(nk-at, 1+r.IntN(1+nk/2))
		k, v := in.K, in.V
		k.Data, v.Data = k.Data[(p.ref.CuK[b]+at)*k.TokenStride:], v.Data[(p.ref.CuK[b]+at)*v.TokenStride:]
		require.NoError(t, seqs[b].Append(k, v, step))
		left -= step
	}
	require.Zero(t, cache.FreePages())
	in.K, in.V = attention.Tensor{}, attention.Tensor{}
	batch := p.batch
	batch.CuK = nil
	require.NoError(t, op.ForwardCached(in, out, batch, seqs), p.name)
	return got
}

// TestCacheComputesEverything: with its keys and values in a cache of any format
// and page, any problem gives the bits that Forward gives for the same numbers.
func TestCacheComputesEverything(t *testing.T) {
	rounds := 150
	if testing.Short() {
		rounds = 8
	}
	perKernel(t, func(t *testing.T, kernel string) {
		r := rand.New(rand.NewPCG(51, 51))
		problems := bitProblems(r)
		for range rounds {
			problems = append(problems, randomProblem(r, 300_000))
		}
		for _, p := range problems {
			f, page, workers := formats[r.IntN(3)], 16*(1+r.IntN(20)), 1+r.IntN(4)
			p := p.stored(f)
			want := p.run(t, kernel, 1)
			got := p.runCached(t, operator(t, p, kernel, workers), r, f, page)
			sameBits(t, want, got, p.name, kernel, f, "page of", page, workers, "workers")
		}
	})
}

// fewRowProblems have few rows for many keys: what decoding is.
func fewRowProblems(r *rand.Rand) []*problem {
	var all []*problem
	for _, s := range []shape{
		{4, 1, 64, 64, []int{1}, []int{5000}},
		{1, 1, 32, 33, []int{1}, []int{4097}},
		{5, 1, 17, 16, []int{6}, []int{2049}},
		{33, 1, 8, 8, []int{1}, []int{2048}},
		{12, 2, 16, 48, []int{2, 1, 0, 5}, []int{3100, 1, 7, 1023}},
	} {
		for _, extras := range [][]string{nil, {"softcap", "sinks"}, {"alibi", "dropout"}, {"bias"}} {
			p := newProblem(r, s)
			p.name += fmt.Sprint(" ", extras)
			if len(extras) > 0 {
				p.setMasks(func(_, nq, nk, off int) (string, attention.Mask, ref.Mask) { return randomMask(r, s.hq, nq, nk, off) })
			}
			all = append(all, p.add(r, extras...))
		}
	}
	return all
}

// TestSpansOverWorkers: one sequence is shared out over any number of workers and
// gives the bits of one.
func TestSpansOverWorkers(t *testing.T) {
	perKernel(t, func(t *testing.T, kernel string) {
		r := rand.New(rand.NewPCG(52, 52))
		problems := fewRowProblems(r)
		if testing.Short() {
			problems = problems[3:6]
		}
		for _, p := range problems {
			want := p.run(t, kernel, 1)
			for _, workers := range []int{2, 3, 16} {
				op := operator(t, p, kernel, workers)
				for range 2 { // the second finds used scratch
					sameBits(t, want, p.runOn(t, op), p.name, kernel, workers, "workers")
				}
				sameBits(t, want, p.runCached(t, op, r, attention.FormatFloat32, 48), p.name, kernel, workers, "workers, cached")
			}
		}
	})
}

// TestHiddenInCache: what a mask hides may be anything in a cache, too.
func TestHiddenInCache(t *testing.T) {
	perKernel(t, func(t *testing.T, kernel string) {
		r := rand.New(rand.NewPCG(53, 53))
		for _, p := range append(hiddenProblems(t), fewRowProblems(r)[5:]...) {
			for _, f := range formats {
				q := p.stored(f)
				op := operator(t, q, kernel, 1+r.IntN(3))
				want := q.run(t, kernel, 1)
				for range 2 {
					n, kv, c, inK := r.IntN(q.ref.CuK[q.ref.Batch()]), r.IntN(q.ref.Hkv), r.IntN(min(q.ref.Dk, q.ref.Dv)), r.IntN(2) == 0
					bad := []float32{nan, float32(math.Inf(1)), 1e3}[r.IntN(3)]
					got := q.spoilt(inK, n, kv, c, bad).runCached(t, op, r, f, 16*(1+r.IntN(9)))
					q.eachQuery(func(b, h, i, row int) {
						j := n - q.ref.CuK[b]
						if j < 0 || n >= q.ref.CuK[b+1] || h/(q.ref.Hq/q.ref.Hkv) != kv || !q.visible(b, h, i, j) {
							sameBits(t, q.row(want, row), q.row(got, row), q.name, f, "row", row, "does not see", bad, "of key", n)
						}
					})
				}
			}
		}
	})
}
