package attention_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-091431b3/attention"
)

func TestPackAndUnpack(t *testing.T) {
	cu := attention.CuSeqlens([]int{2, 0, 3})
	padded := []int{1, 2, 3, 4, -1, -1, -1, -1, -1, -1, -1, -1, 5, 6, 7, 8, 9, 10}
	ragged := make([]int, 10)
	require.NoError(t, attention.Pack(ragged, padded, cu, 3, 2))
	assert.Equal(t, []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, ragged)
	back := make([]int, 18)
	fill(back, 99)
	require.NoError(t, attention.Unpack(back, ragged, cu, 3, 2))
	assert.Equal(t, []int{1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 0, 0, 5, 6, 7, 8, 9, 10}, back)
	require.NoError(t, attention.Pack([]string{}, []string{}, nil, 5, 3))
	require.NoError(t, attention.Unpack([]float32{}, nil, []int{0}, 5, 3))
	require.NoError(t, attention.Unpack([]float32{}, nil, []int{0, 0}, 0, 3))
}

// TestPackedForward: a padded batch that is packed gives what it gives as it is.
func TestPackedForward(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	const length, heads, dim = 9, 2, 8
	lengths := []int{4, 9, 0, 1}
	cu := attention.CuSeqlens(lengths)
	padded := random(r, len(lengths)*length*heads*dim)
	op, err := attention.New(attention.Config{QueryHeads: heads, HeadDim: dim, Mask: attention.Causal()})
	require.NoError(t, err)
	x := attention.BSHD(padded, length, heads, dim)
	want := make([]float32, len(padded))
	require.NoError(t, op.Forward(attention.Inputs{Q: x, K: x, V: x}, attention.Outputs{O: attention.BSHD(want, length, heads, dim)}, attention.Ragged(cu)))

	ragged, o, got := make([]float32, 14*heads*dim), make([]float32, 14*heads*dim), make([]float32, len(padded))
	require.NoError(t, attention.Pack(ragged, padded, cu, length, heads*dim))
	x = attention.Packed(ragged, heads, dim)
	require.NoError(t, op.Forward(attention.Inputs{Q: x, K: x, V: x}, attention.Outputs{O: attention.Packed(o, heads, dim)}, attention.Ragged(cu)))
	require.NoError(t, attention.Unpack(got, o, cu, length, heads*dim))
	assert.Equal(t, want, got)
}

func TestPackErrors(t *testing.T) {
	for _, x := range []struct {
		name          string
		says          []string
		cu            []int
		length, width int
		padded        int
		ragged        int
	}{
		{"length negative", []string{"length", "-1"}, []int{0, 2, 5}, -1, 2, 12, 10},
		{"width negative", []string{"width", "-2"}, []int{0, 2, 5}, 3, -2, 12, 10},
		{"lengths start late", []string{"cu_seqlens", "entry 0"}, []int{1, 2, 5}, 3, 2, 12, 10},
		{"lengths fall", []string{"cu_seqlens", "entry 2"}, []int{0, 2, 1}, 3, 2, 12, 2},
		{"sequence longer than the padding", []string{"cu_seqlens", "sequence 1", "4", "3"}, []int{0, 1, 5}, 3, 2, 12, 10},
		{"ragged too short", []string{"9", "10"}, []int{0, 2, 5}, 3, 2, 12, 9},
		{"ragged too long", []string{"11", "10"}, []int{0, 2, 5}, 3, 2, 12, 11},
		{"padded too short", []string{"11", "12"}, []int{0, 2, 5}, 3, 2, 11, 10},
		{"padded too long", []string{"13", "12"}, []int{0, 2, 5}, 3, 2, 13, 10},
		{"overflow of length", []string{"2 sequences"}, []int{0, 0, 0}, math.MaxInt, 2, 12, 0},
		{"overflow of width", []string{"tokens"}, []int{0, 2, 5}, 3, math.MaxInt, 12, 10},
	} {
		t.Run(x.name, func(t *testing.T) {
			padded, ragged := make([]int, x.padded), make([]int, x.ragged)
			fill(padded, 1)
			fill(ragged, 2)
			requireSays(t, attention.Pack(ragged, padded, x.cu, x.length, x.width), x.says)
			requireSays(t, attention.Unpack(padded, ragged, x.cu, x.length, x.width), x.says)
			for _, v := range padded {
				assert.Equal(t, 1, v)
			}
			for _, v := range ragged {
				assert.Equal(t, 2, v)
			}
		})
	}
	all := make([]float32, 21)
	requireSays(t, attention.Pack(all[11:], all[:12], []int{0, 2, 5}, 3, 2), []string{"dst", "overlaps", "src"})
	requireSays(t, attention.Unpack(all[:12], all[11:], []int{0, 2, 5}, 3, 2), []string{"dst", "overlaps", "src"})
}
