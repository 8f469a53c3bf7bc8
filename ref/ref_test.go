package ref_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-091431b3/attention/ref"
)

// sees returns which of nk keys each of nq queries of head h sees.
func sees(m ref.Mask, h, nq, nk int) []string {
	rows := make([]string, nq)
	for i := range rows {
		for j := range nk {
			if m(0, h, i, j) {
				rows[i] += "x"
			} else {
				rows[i] += "."
			}
		}
	}
	return rows
}

func TestMasks(t *testing.T) {
	dense := ref.Dense(2, 1, 2, []bool{true, false, false, true})
	for _, c := range []struct {
		name string
		mask ref.Mask
		h    int
		want []string
	}{
		{"causal", ref.Causal(1), 0, []string{"xx..", "xxx.", "xxxx"}},
		{"causal before all keys", ref.Causal(-2), 0, []string{"....", "....", "x..."}},
		{"window", ref.Window(1, 1, 0), 0, []string{"xx..", ".xx.", "..xx"}},
		{"window, open left", ref.Window(0, ref.Unbounded, 1), 0, []string{"xx..", "xxx.", "xxxx"}},
		{"window, open right", ref.Window(0, 0, ref.Unbounded), 0, []string{"xxxx", ".xxx", "..xx"}},
		{"window of nothing else", ref.Window(1, 0, 0), 0, []string{".x..", "..x.", "...x"}},
		{"prefix", ref.PrefixLM(0, 2), 0, []string{"xx..", "xx..", "xxx."}},
		{"sink tokens", ref.SinkTokens(1, 1, 0, 0), 0, []string{"xx..", "x.x.", "x..x"}},
		{"documents", ref.Documents(2, []int{7, 7, 5, 7}), 0, []string{"..x.", "xx.x", "...."}},
		{"key ranges", ref.KeyRanges([]int{0, 3, 2}, []int{2, 3, 4}), 0, []string{"xx..", "....", "..xx"}},
		{"dense, head 0", dense, 0, []string{"x."}},
		{"dense, head 1", dense, 1, []string{".x"}},
		{"dense, shared", ref.Dense(1, 1, 2, []bool{true, false}), 1, []string{"x."}},
		{"tree", ref.Tree(6, []int{-1, 0, 0, 2}), 0, []string{"xxx...", "xxxx..", "xxx.x.", "xxx.xx"}},
		{"block-sparse", ref.BlockSparse(2, 2, []ref.Block{{0, 1}, {1, 0}}), 0, []string{"..xx", "..xx", "xx.."}},
		{"and", ref.And(ref.Causal(0), nil, ref.Window(0, 1, 5)), 0, []string{"x...", "xx..", ".xx."}},
	} {
		assert.Equal(t, c.want, sees(c.mask, c.h, len(c.want), len(c.want[0])), c.name)
	}
}

func TestKept(t *testing.T) {
	rate := func(r float64) (kept float64) {
		const n = 1 << 16
		for j := range n {
			if ref.Kept(1, 2, 3, 4, j, r) {
				kept += 1.0 / n
			}
		}
		return kept
	}
	assert.Equal(t, 1.0, rate(0), "nothing is dropped at rate 0")
	assert.Equal(t, 0.0, rate(math.Nextafter(1, 0)), "the threshold rounds to 2^32")
	for _, r := range []float64{.001, .1, .5, .9} {
		assert.InDelta(t, 1-r, rate(r), 5*math.Sqrt(r*(1-r)/(1<<16)))
	}
}

func TestDropoutIDs(t *testing.T) {
	p := allFeatures(rand.New(rand.NewPCG(1, 2)), false)
	p.Dropout.IDs = nil
	byIndex := ref.Forward(p)
	p.Dropout.IDs = []uint64{0, 1, 2, 3, 4}
	assert.Equal(t, byIndex, ref.Forward(p))
	p.Dropout.IDs[0] = 9
	other := ref.Forward(p)
	assert.Equal(t, byIndex.LSE, other.LSE)
	assert.NotEqual(t, byIndex.O, other.O)
	p.Dropout.Keep = func(b, h, i, j int) bool {
		return ref.Kept(11, p.Dropout.IDs[b], h, i, j, float64(p.Dropout.Rates[p.CuQ[b]+i]))
	}
	assert.Equal(t, other, ref.Forward(p))
}

func TestRowsThatSeeNothing(t *testing.T) {
	nan := float32(math.NaN())
	p := &ref.Problem{
		Hq: 1, Hkv: 1, Dk: 1, Dv: 1, CuQ: []int{0, 1, 2}, CuK: []int{0, 1, 1}, Scale: 1,
		Q: []float32{1, 1}, K: []float32{nan}, V: []float32{nan}, DO: []float32{nan, nan}, DLSE: []float32{nan, nan},
		Masks: []ref.Mask{func(_, _, _, _ int) bool { return false }, nil},
		Bias:  []ref.Bias{{Heads: 1, Rows: 1, Data: []float32{nan}}, {}},
	}
	out := ref.Forward(p)
	assert.Equal(t, []float64{0, 0}, out.O)
	assert.Equal(t, []float64{math.Inf(-1), math.Inf(-1)}, out.LSE)
	g := ref.Backward(p)
	assert.Equal(t, &ref.Gradients{
		DQ: []float64{0, 0}, DK: []float64{0}, DV: []float64{0}, DBias: [][]float64{{0}, nil},
	}, g)

	p.Sinks, p.DO, p.DLSE = []float32{3}, nil, []float32{.5, .25}
	assert.Equal(t, []float64{3, 3}, ref.Forward(p).LSE)
	assert.Equal(t, []float64{.75}, ref.Backward(p).DSinks)
}

func TestInfiniteAndNaNScores(t *testing.T) {
	inf := float32(math.Inf(1))
	p := &ref.Problem{
		Hq: 1, Hkv: 1, Dk: 1, Dv: 1, CuQ: []int{0, 1}, CuK: []int{0, 2}, Scale: 1,
		Q: []float32{0}, K: []float32{1, 2}, V: []float32{3, 5}, DO: []float32{1},
	}
	for _, c := range []struct {
		bias   []float32
		o, lse float64
		dv     []float64
	}{
		{[]float32{-inf, 0}, 5, 0, []float64{0, 1}},
		{[]float32{-inf, -inf}, 0, math.Inf(-1), []float64{0, 0}},
		{[]float32{inf, 0}, math.NaN(), math.NaN(), nil},
		{[]float32{0, float32(math.NaN())}, math.NaN(), math.NaN(), nil},
	} {
		p.Bias = []ref.Bias{{Heads: 1, Rows: 1, Data: c.bias}}
		out, g := ref.Forward(p), ref.Backward(p)
		if math.IsNaN(c.o) {
			assert.True(t, math.IsNaN(out.O[0]) && math.IsNaN(out.LSE[0]), c.bias)
			continue
		}
		assert.Equal(t, []float64{c.o}, out.O, c.bias)
		assert.Equal(t, []float64{c.lse}, out.LSE, c.bias)
		assert.Equal(t, c.dv, g.DV, c.bias)
		assert.Equal(t, []float64{0}, g.DQ, c.bias)
	}
}

// TestMergeOfSplitKeys merges attention over the two halves of the keys.
func TestMergeOfSplitKeys(t *testing.T) {
	whole := allFeatures(rand.New(rand.NewPCG(5, 6)), false)
	whole.Dropout = nil
	part := func(parity int) *ref.Output {
		p := *whole
		p.Masks = nil
		for _, m := range whole.Masks {
			p.Masks = append(p.Masks, ref.And(m, func(_, _, _, j int) bool { return j%2 == parity }))
		}
		return ref.Forward(&p)
	}
	a, b, want := part(0), part(1), ref.Forward(whole)
	o, lse := ref.Merge(a.O, a.LSE, b.O, b.LSE)
	for i := range lse {
		if math.IsInf(want.LSE[i], -1) {
			assert.Equal(t, want.LSE[i], lse[i])
		} else {
			assert.InDelta(t, want.LSE[i], lse[i], 1e-14)
		}
	}
	assert.InDeltaSlice(t, want.O, o, 1e-14)
	assert.Panics(t, func() { ref.Merge(o, lse, o[1:], lse) })
}

func TestCheck(t *testing.T) {
	for _, c := range []struct {
		spoil func(*ref.Problem)
		says  string
	}{
		{func(p *ref.Problem) { p.Dv = 0 }, "at least 1"},
		{func(p *ref.Problem) { p.Hkv = 3 }, "does not divide"},
		{func(p *ref.Problem) { p.CuQ = p.CuQ[1:] }, "B+1"},
		{func(p *ref.Problem) { p.CuK[2] = 4 }, "negative length"},
		{func(p *ref.Problem) { p.CuK[0] = 1 }, "start at 0"},
		{func(p *ref.Problem) { p.V = p.V[1:] }, "V has 55 elements and needs 56"},
		{func(p *ref.Problem) { p.Dropout.Rates = p.Dropout.Rates[1:] }, "Rates"},
		{func(p *ref.Problem) { p.Bias[0].Rows = 2 }, "bias of sequence 0"},
		{func(p *ref.Problem) { p.Bias[3].Data = p.Bias[3].Data[1:] }, "bias of sequence 3 has 11"},
	} {
		p := allFeatures(rand.New(rand.NewPCG(1, 2)), true)
		require.NoError(t, p.Check())
		c.spoil(p)
		require.ErrorContains(t, p.Check(), c.says)
		assert.Panics(t, func() { ref.Forward(p) })
		assert.Panics(t, func() { ref.Backward(p) })
	}
}
