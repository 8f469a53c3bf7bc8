package attention_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-091431b3/attention"
)

// layout places a packed array [T, heads, dim] in memory in some other way.
type layout struct {
	name string
	// view returns the strides for sequences of the given cumulative lengths, and
	// the number of elements to allocate.
	view func(cu []int, heads, dim int) (attention.Tensor, int)
}

func longest(cu []int) int {
	n := 0
	for b := range len(cu) - 1 {
		n = max(n, cu[b+1]-cu[b])
	}
	return n
}

var layouts = []layout{
	{"packed", func(cu []int, heads, dim int) (attention.Tensor, int) {
		return attention.Packed[float32](nil, heads, dim), cu[len(cu)-1] * heads * dim
	}},
	{"packed, more data than tokens", func(cu []int, heads, dim int) (attention.Tensor, int) {
		return attention.Packed[float32](nil, heads, dim), cu[len(cu)-1]*heads*dim + 100
	}},
	{"padded heads and tokens", func(cu []int, heads, dim int) (attention.Tensor, int) {
		x := attention.Tensor{TokenStride: heads*(dim+3) + 5, HeadStride: dim + 3}
		return x, cu[len(cu)-1] * x.TokenStride
	}},
	{"heads first", func(cu []int, heads, dim int) (attention.Tensor, int) {
		tokens := cu[len(cu)-1]
		return attention.Tensor{TokenStride: dim, HeadStride: max(tokens, 1) * dim}, heads * tokens * dim
	}},
	{"BSHD", func(cu []int, heads, dim int) (attention.Tensor, int) {
		s := longest(cu) + 3
		return attention.BSHD[float32](nil, s, heads, dim), (len(cu) - 1) * s * heads * dim
	}},
	{"BHSD", func(cu []int, heads, dim int) (attention.Tensor, int) {
		s := longest(cu) + 2
		return attention.BHSD[float32](nil, heads, s, dim), (len(cu) - 1) * s * heads * dim
	}},
	{"length first", func(cu []int, heads, dim int) (attention.Tensor, int) {
		n := len(cu) - 1
		return attention.Tensor{TokenStride: n * heads * dim, HeadStride: dim, SequenceStride: heads * dim}, longest(cu) * n * heads * dim
	}},
	{"head of one channel between others", func(cu []int, heads, dim int) (attention.Tensor, int) {
		return attention.Tensor{TokenStride: 2 * heads * dim, HeadStride: 2 * dim}, cu[len(cu)-1] * 2 * heads * dim
	}},
}

// eachRow calls f with the elements of every row of a packed array and of a
// tensor.
func eachRow(cu []int, heads, dim int, x attention.Tensor, f func(packed, strided int)) {
	for b := range len(cu) - 1 {
		start := cu[b] * x.TokenStride
		if x.SequenceStride != 0 {
			start = b * x.SequenceStride
		}
		for t := range cu[b+1] - cu[b] {
			for h := range heads {
				f(((cu[b]+t)*heads+h)*dim, start+t*x.TokenStride+h*x.HeadStride)
			}
		}
	}
}

// place lays out a packed array; gap fills what no row covers.
func (l layout) place(cu []int, heads, dim int, packed []float32, gap float32) attention.Tensor {
	x, size := l.view(cu, heads, dim)
	x.Data = make([]float32, size)
	fill(x.Data, gap)
	put(cu, heads, dim, x, packed)
	return x
}

// put copies a packed array into a tensor.
func put(cu []int, heads, dim int, x attention.Tensor, packed []float32) {
	eachRow(cu, heads, dim, x, func(p, s int) { copy(x.Data[s:s+dim], packed[p:p+dim]) })
}

// get returns a tensor as a packed array.
func get(cu []int, heads, dim int, x attention.Tensor) []float32 {
	packed := make([]float32, cu[len(cu)-1]*heads*dim)
	eachRow(cu, heads, dim, x, func(p, s int) { copy(packed[p:p+dim], x.Data[s:s+dim]) })
	return packed
}

// runLaidOut computes p with its tensors laid out, gap in between, and verifies
// that nothing but the rows of O is written.
func (p *problem) runLaidOut(t *testing.T, op *attention.Operator, q, k, v, o layout, gap float32) result {
	t.Helper()
	r := p.ref
	in, out, got := p.call()
	in.Q = q.place(r.CuQ, r.Hq, r.Dk, p.q, gap)
	in.K = k.place(r.CuK, r.Hkv, r.Dk, p.k, gap)
	in.V = v.place(r.CuK, r.Hkv, r.Dv, p.v, gap)
	const untouched = 12345
	out.O = o.place(r.CuQ, r.Hq, r.Dv, got.o, untouched)
	require.NoError(t, op.Forward(in, out, p.batch), p.name)
	got.o = get(r.CuQ, r.Hq, r.Dv, out.O)
	left := 0
	for _, x := range out.O.Data {
		if x == untouched {
			left++
		}
	}
	require.Equal(t, len(out.O.Data)-len(got.o), left, "%s: elements of O between its rows that are as they were", p.name)
	return got
}

// TestSequencesBeyondTheirPadding: a sequence that is longer than the padding
// of its tensor would read the next one, or the next head.
func TestSequencesBeyondTheirPadding(t *testing.T) {
	op, err := attention.New(attention.Config{QueryHeads: 2, HeadDim: 1})
	require.NoError(t, err)
	data := func() []float32 { return make([]float32, 24) }
	batch := attention.RaggedQK([]int{0, 1, 2}, []int{0, 5, 8})
	q, o := attention.BSHD(data(), 4, 2, 1), attention.BSHD(data(), 4, 2, 1)
	for _, k := range []attention.Tensor{attention.BSHD(data(), 4, 2, 1), attention.BHSD(data(), 2, 4, 1)} {
		err := op.Forward(attention.Inputs{Q: q, K: k, V: attention.Packed(data(), 2, 1)}, attention.Outputs{O: o}, batch)
		requireSays(t, err, []string{"K", "SequenceStride", "5 tokens", "overlap"})
		err = op.Forward(attention.Inputs{Q: q, K: attention.Packed(data(), 2, 1), V: k}, attention.Outputs{O: o}, batch)
		requireSays(t, err, []string{"V", "SequenceStride", "5 tokens", "overlap"})
		require.NoError(t, op.Forward(attention.Inputs{Q: q, K: k, V: k}, attention.Outputs{O: o}, attention.RaggedQK([]int{0, 1, 2}, []int{0, 4, 7})))
	}
	// [heads, sequences, length] is as good as any other order.
	heads := attention.Tensor{Data: data(), TokenStride: 1, HeadStride: 12, SequenceStride: 6}
	require.NoError(t, op.Forward(attention.Inputs{Q: q, K: heads, V: heads}, attention.Outputs{O: o}, attention.RaggedQK([]int{0, 1, 2}, []int{0, 6, 12})))
}
