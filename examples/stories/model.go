package main

import (
	"fmt"
	"math"

	"github.com/seed-091431b3/attention"
)

// Every token is computed by itself but for the attention, and every sum has one
// order, so that a token's bits do not depend on what it is computed with. That
// the attention keeps them, cached or not, is the library's promise. Products are
// converted before they are added, lest a compiler fuse the two in one place and
// not in another.

// decoder computes the tokens of one text at a time.
type decoder struct {
	*checkpoint
	op       *attention.Operator
	rows     int       // tokens of a call, at most
	cos, sin []float32 // of a position and pair of channels
	// Activations, a row for each token of the call.
	x, h, q, k, v, o, gate, up []float32
	scores                     []float32
	cu                         [2]int
}

// newDecoder returns a decoder for calls of up to rows tokens. Its results do
// not depend on the number of workers.
func newDecoder(c *checkpoint, rows, workers int) (*decoder, error) {
	op, err := attention.New(attention.Config{
		QueryHeads: c.heads, KVHeads: c.kvHeads, HeadDim: c.headDim(), Mask: attention.Causal(), Workers: workers,
	})
	if err != nil {
		return nil, err
	}
	d := &decoder{checkpoint: c, op: op, rows: rows, scores: make([]float32, c.vocab)}
	for _, b := range [...]struct {
		data *[]float32
		cols int
	}{
		{&d.x, c.dim}, {&d.h, c.dim}, {&d.q, c.dim}, {&d.o, c.dim},
		{&d.k, c.kvDim()}, {&d.v, c.kvDim()}, {&d.gate, c.hidden}, {&d.up, c.hidden},
	} {
		*b.data = make([]float32, rows*b.cols)
	}
	for p := range c.context {
		for i := 0; i < c.headDim(); i += 2 {
			sin, cos := math.Sincos(float64(p) * math.Pow(10000, -float64(i)/float64(c.headDim())))
			d.cos, d.sin = append(d.cos, float32(cos)), append(d.sin, float32(sin))
		}
	}
	return d, nil
}

// pageKeys is the number of keys in a page of the cache.
const pageKeys = 64

// newCache returns an empty sequence for each layer, with room for the given
// number of tokens. As all layers take the same pages, a text that is too long
// fails in the first, before anything is changed.
func (c *checkpoint) newCache(tokens, pageKeys int) ([]*attention.CachedSequence, error) {
	layers := make([]*attention.CachedSequence, c.layers)
	for l := range layers {
		cache, err := attention.NewCache(attention.CacheConfig{
			KVHeads: c.kvHeads, HeadDim: c.headDim(), PageKeys: pageKeys, Pages: (tokens + pageKeys - 1) / pageKeys,
		})
		if err != nil {
			return nil, err
		}
		layers[l] = cache.NewSequence()
	}
	return layers, nil
}

// forward computes the tokens that follow those in the cache, which has a
// sequence for each layer, and adds them to it. Without a cache, tokens are the
// whole text.
func (d *decoder) forward(tokens []int, cache []*attention.CachedSequence) error {
	n, first := len(tokens), 0
	if cache != nil {
		first = cache[0].Len()
	}
	if n < 1 || n > d.rows {
		return fmt.Errorf("%d tokens at once, must be from 1 to %d", n, d.rows)
	}
	if first+n > d.context {
		return fmt.Errorf("%d tokens after %d are more than the context of %d", n, first, d.context)
	}
	for i, t := range tokens {
		if t < 0 || t >= d.vocab {
			return fmt.Errorf("token %d is %d, must be from 0 to %d", first+i, t, d.vocab-1)
		}
		copy(d.x[i*d.dim:], d.embedding.row(t))
	}
	x, h, q, o := d.x[:n*d.dim], d.h[:n*d.dim], d.q[:n*d.dim], d.o[:n*d.dim]
	k, v := d.k[:n*d.kvDim()], d.v[:n*d.kvDim()]
	gate, up := d.gate[:n*d.hidden], d.up[:n*d.hidden]
	for l := range d.blocks {
		b := &d.blocks[l]
		normalize(h, x, b.attNorm.data)
		multiply(q, h, b.wq)
		multiply(k, h, b.wk)
		multiply(v, h, b.wv)
		d.rotate(q, d.heads, first)
		d.rotate(k, d.kvHeads, first)
		var own []*attention.CachedSequence
		if cache != nil {
			own = cache[l : l+1]
		}
		if err := d.attend(o, q, k, v, n, own); err != nil {
			return fmt.Errorf("layer %d: %w", l, err)
		}
		multiply(h, o, b.wo)
		add(x, h)

		normalize(h, x, b.ffnNorm.data)
		multiply(gate, h, b.w1)
		multiply(up, h, b.w3)
		swiGLU(gate, up)
		multiply(h, gate, b.w2)
		add(x, h)
	}
	return nil
}

// attend lets n tokens see themselves and what precedes them. That includes the
// layer's cache, a single sequence, unless there is none.
func (d *decoder) attend(o, q, k, v []float32, n int, cache []*attention.CachedSequence) error {
	d.cu = [2]int{0, n}
	batch := attention.Ragged(d.cu[:])
	in := attention.Inputs{Q: attention.Packed(q, d.heads, d.headDim())}
	out := attention.Outputs{O: attention.Packed(o, d.heads, d.headDim())}
	keys, values := attention.Packed(k, d.kvHeads, d.headDim()), attention.Packed(v, d.kvHeads, d.headDim())
	if cache == nil {
		in.K, in.V = keys, values
		return d.op.Forward(in, out, batch)
	}
	if err := cache[0].Append(keys, values, n); err != nil {
		return err
	}
	return d.op.ForwardCached(in, out, batch, cache)
}

// logits are those of what follows token i of the last call of forward. They
// are valid until the next call.
func (d *decoder) logits(i int) []float32 {
	h := d.h[:d.dim]
	normalize(h, d.x[i*d.dim:(i+1)*d.dim], d.norm.data)
	multiply(d.scores, h, d.classifier)
	return d.scores
}

// rotate turns the pairs of channels of every head by an angle that grows with
// the token's position (rotary embedding, Su et al. 2021).
func (d *decoder) rotate(x []float32, heads, first int) {
	pairs := d.headDim() / 2
	for i := range x {
		if i%2 != 0 {
			continue
		}
		t, pair := i/(heads*d.headDim()), i/2%pairs
		c, s := d.cos[(first+t)*pairs+pair], d.sin[(first+t)*pairs+pair]
		x[i], x[i+1] = float32(x[i]*c)-float32(x[i+1]*s), float32(x[i]*s)+float32(x[i+1]*c)
	}
}

// multiply computes y = x·wᵀ for each row of x. A weight is read once for all
// rows, each of which has its own sums.
func multiply(y, x []float32, w matrix) {
	for r := range w.rows {
		weights := w.row(r)
		for i, j := 0, r; j < len(y); i, j = i+w.cols, j+w.rows {
			y[j] = dot(weights, x[i:i+w.cols])
		}
	}
}

// dot has four sums, as additions that wait for one another are slow.
func dot(a, b []float32) float32 {
	var s0, s1, s2, s3 float32
	for len(a) >= 4 && len(b) >= 4 {
		s0 += float32(a[0] * b[0])
		s1 += float32(a[1] * b[1])
		s2 += float32(a[2] * b[2])
		s3 += float32(a[3] * b[3])
		a, b = a[4:], b[4:]
	}
	for i, v := range a {
		s0 += float32(v * b[i])
	}
	return (s0 + s1) + (s2 + s3)
}

// normalize computes y = x/rms(x)·gain for each row (RMSNorm, Zhang and Sennrich
// 2019).
func normalize(y, x, gain []float32) {
	const epsilon = 1e-5
	for ; len(x) > 0; x, y = x[len(gain):], y[len(gain):] {
		var sum float64
		for _, v := range x[:len(gain)] {
			sum += float64(v) * float64(v) // exact, fused or not
		}
		inv := float32(1 / math.Sqrt(sum/float64(len(gain))+epsilon))
		for c, g := range gain {
			y[c] = x[c] * inv * g
		}
	}
}

// swiGLU computes gate = silu(gate)·up (Shazeer 2020).
func swiGLU(gate, up []float32) {
	for i, g := range gate {
		gate[i] = g / float32(1+math.Exp(-float64(g))) * up[i]
	}
}

func add(x, y []float32) {
	for i, v := range y {
		x[i] += v
	}
}

// largest is the index of the first of the largest.
func largest(x []float32) int {
	best := 0
	for i, v := range x {
		if v > x[best] {
			best = i
		}
	}
	return best
}
