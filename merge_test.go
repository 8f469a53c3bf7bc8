package attention_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-091431b3/attention"
	"github.com/seed-091431b3/attention/ref"
)

func widen(x []float32) []float64 {
	y := make([]float64, len(x))
	for i := range x {
		y[i] = float64(x[i])
	}
	return y
}

// randomPart has rows whose LSE differ by up to about spread; every fifth saw
// nothing.
func randomPart(r *rand.Rand, rows, dim int, spread float64) attention.Part {
	p := attention.Part{O: random(r, rows*dim), LSE: make([]float64, rows)}
	for i := range p.LSE {
		p.LSE[i] = r.NormFloat64() * spread
		if r.IntN(5) == 0 {
			p.LSE[i] = math.Inf(-1)
			clear(p.O[i*dim : (i+1)*dim])
		}
	}
	return p
}

func clonePart(p attention.Part) attention.Part {
	return attention.Part{O: slices.Clone(p.O), LSE: slices.Clone(p.LSE)}
}

func TestMergeMatchesReference(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for range 50 {
		rows, dim, spread := 1+r.IntN(50), 1+r.IntN(40), [...]float64{1e-3, 1, 30, 1000, 1e6}[r.IntN(5)]
		a, b := randomPart(r, rows, dim, spread), randomPart(r, rows, dim, spread)
		dst := attention.Part{O: make([]float32, rows*dim), LSE: make([]float64, rows)}
		fill(dst.O, nan)
		before := [...]attention.Part{clonePart(a), clonePart(b)}
		require.NoError(t, attention.Merge(dst, a, b, dim))
		assert.Equal(t, before, [...]attention.Part{a, b}, "inputs")
		o, lse := ref.Merge(widen(a.O), a.LSE, widen(b.O), b.LSE)
		for i, want := range o {
			// Rounded once to float32, from an error of a few ulp of float64; that
			// of LSE-LSE2 counts too.
			big := max(math.Abs(float64(a.O[i])), math.Abs(float64(b.O[i])))
			assert.InDelta(t, want, float64(dst.O[i]), big*(0x1p-24+0x1p-51*spread)+1e-45)
		}
		for i, want := range lse {
			if want != dst.LSE[i] {
				assert.InDelta(t, want, dst.LSE[i], 4*0x1p-53*math.Max(1, math.Abs(want)))
			}
		}
		for _, in := range []*attention.Part{&a, &b} {
			x, y := clonePart(a), clonePart(b)
			into := x
			if in == &b {
				into = y
			}
			require.NoError(t, attention.Merge(into, x, y, dim))
			assert.Equal(t, dst, into, "in place")
		}
		swapped := clonePart(a)
		require.NoError(t, attention.Merge(swapped, b, a, dim))
		assert.Equal(t, dst, swapped, "the other way round")
	}
}

// TestMergeIdentity: a part that saw nothing changes no bit, whatever its O is.
func TestMergeIdentity(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 2))
	a := randomPart(r, 40, 7, 10)
	nothing := attention.Part{O: make([]float32, 40*7), LSE: make([]float64, 40)}
	fill(nothing.LSE, math.Inf(-1))
	for _, garbage := range []float32{0, nan, 1e30} {
		fill(nothing.O, garbage)
		dst := clonePart(a)
		require.NoError(t, attention.Merge(dst, a, nothing, 7))
		assert.Equal(t, a, dst)
		require.NoError(t, attention.Merge(dst, nothing, a, 7))
		assert.Equal(t, a, dst)
		require.NoError(t, attention.Merge(dst, nothing, nothing, 7))
		for i := range dst.LSE {
			assert.Equal(t, math.Inf(-1), dst.LSE[i])
		}
		assert.Equal(t, make([]float32, 40*7), dst.O)
	}
}

func TestMergeNaN(t *testing.T) {
	for _, x := range [][2]float64{{math.NaN(), 0}, {0, math.NaN()}, {math.Inf(1), 0}} {
		dst := attention.Part{O: make([]float32, 2), LSE: make([]float64, 1)}
		require.NoError(t, attention.Merge(dst, attention.Part{O: []float32{1, 2}, LSE: x[:1]}, attention.Part{O: []float32{3, 4}, LSE: x[1:]}, 2))
		allNaN(t, result{dst.O, dst.LSE}, x)
	}
	dst := attention.Part{O: make([]float32, 2), LSE: make([]float64, 1)}
	require.NoError(t, attention.Merge(dst, attention.Part{O: []float32{1, nan}, LSE: []float64{0}}, attention.Part{O: []float32{3, 4}, LSE: []float64{0}}, 2))
	assert.Equal(t, float32(2), dst.O[0])
	assert.True(t, dst.O[1] != dst.O[1])
}

// TestMergeOfHalves: attention over two halves of the keys, merged, is that
// over all.
func TestMergeOfHalves(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 3))
	p := newProblem(r, shape{4, 2, 16, 9, []int{60}, []int{200}})
	p.cfg.Mask = attention.Causal()
	p.ref.Masks[0] = ref.Causal(140)
	op := operator(t, p, "", 1)
	merged := newResult(p.ref)
	fill(merged.lse, math.Inf(-1))
	for _, part := range [][2]int{{0, 70}, {70, 200}} {
		in, out, got := p.call()
		in.K.Data, in.V.Data = in.K.Data[part[0]*2*16:], in.V.Data[part[0]*2*9:]
		batch := attention.RaggedQK([]int{0, 60}, []int{0, part[1] - part[0]})
		batch.Offsets = []int{140 - part[0]}
		require.NoError(t, op.Forward(in, out, batch))
		sum := attention.Part{O: merged.o, LSE: merged.lse}
		require.NoError(t, attention.Merge(sum, sum, attention.Part{O: got.o, LSE: got.lse}, 9))
	}
	checkReference(t, p, merged)
}

func TestMergeErrors(t *testing.T) {
	part := func() attention.Part { return attention.Part{O: make([]float32, 12), LSE: make([]float64, 4)} }
	floats := asFloat32(make([]float64, 40))
	for _, x := range []struct {
		name string
		says []string
		bad  func(dst, a, b *attention.Part) (dim int)
	}{
		{"no channels", []string{"dim", "0"}, func(_, _, _ *attention.Part) int { return 0 }},
		{"negative channels", []string{"dim", "-3"}, func(_, _, _ *attention.Part) int { return -3 }},
		{"LSE of a", []string{"LSE of a", "3", "4"}, func(_, a, _ *attention.Part) int { a.LSE = a.LSE[:3]; return 3 }},
		{"LSE of b", []string{"LSE of b", "5", "4"}, func(_, _, b *attention.Part) int { b.LSE = make([]float64, 5); return 3 }},
		{"O of dst", []string{"O of dst", "11", "12"}, func(dst, _, _ *attention.Part) int { dst.O = dst.O[:11]; return 3 }},
		{"O of a", []string{"O of a", "13", "12"}, func(_, a, _ *attention.Part) int { a.O = make([]float32, 13); return 3 }},
		{"O of b", []string{"O of b", "0", "12"}, func(_, _, b *attention.Part) int { b.O = nil; return 3 }},
		{"another dim", []string{"O of dst", "12", "16"}, func(_, _, _ *attention.Part) int { return 4 }},
		{"O shifted", []string{"O of dst", "overlaps", "O of a"}, func(dst, a, _ *attention.Part) int {
			all := make([]float32, 15)
			dst.O, a.O = all[3:], all[:12]
			return 3
		}},
		{"LSE shifted", []string{"LSE of dst", "overlaps", "LSE of b"}, func(dst, _, b *attention.Part) int {
			all := make([]float64, 5)
			dst.LSE, b.LSE = all[1:], all[:4]
			return 3
		}},
		{"O in LSE", []string{"O of dst", "overlaps", "LSE of a"}, func(dst, a, _ *attention.Part) int {
			dst.O, a.LSE = floats[:12], asFloat64(floats[8:16])
			return 3
		}},
		{"dst in itself", []string{"O of dst", "overlaps", "LSE of dst"}, func(dst, _, _ *attention.Part) int {
			dst.O, dst.LSE = floats[:12], asFloat64(floats[8:16])
			return 3
		}},
	} {
		t.Run(x.name, func(t *testing.T) {
			dst, a, b := part(), part(), part()
			dim := x.bad(&dst, &a, &b)
			fill(dst.O, 7)
			requireSays(t, attention.Merge(dst, a, b, dim), x.says)
			for _, o := range dst.O {
				assert.Equal(t, float32(7), o)
			}
		})
	}
	require.NoError(t, attention.Merge(attention.Part{}, attention.Part{}, attention.Part{}, 8), "no rows")
}
