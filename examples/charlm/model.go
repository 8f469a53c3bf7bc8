package main

import (
	"math"
	"math/rand/v2"
	"time"

	"github.com/seed-091431b3/attention"
)

// shape is that of a model: pre-norm blocks of attention, whose key heads serve
// several query heads each, and of a two-layer perceptron.
type shape struct {
	Layers, QueryHeads, KVHeads, HeadDim, Hidden int
}

var defaultShape = shape{Layers: 4, QueryHeads: 4, KVHeads: 2, HeadDim: 32, Hidden: 640}

const vocabulary = 256

func (s shape) width() int { return s.QueryHeads * s.HeadDim }

// weight is a parameter with its gradient and the state of its optimizer.
type weight struct {
	matrix
	grad, mean, square []float32
	decays             bool
}

// layer is the parameters of one block.
type layer struct {
	norm1, norm2         *weight // [1, width]
	qkv, out, up, down   *weight
	op                   *attention.Operator
	x, h, qkvs, o, h2, u matrix // kept of the forward pass, one row a token
	mid, act             matrix
	inv1, inv2           []float32
	lse                  []float64
}

type model struct {
	shape
	embedding, norm *weight // the embedding serves input and output
	layers          []*layer
	weights         []*weight // all of them

	x, h, logits matrix // after the last block
	inv          []float32
	// Scratch for gradients.
	dx, dh, dqkv, do, dmid matrix
	attentionTime          time.Duration
}

func newModel(s shape, r *rand.Rand) (*model, error) {
	m := &model{shape: s}
	d := s.width()
	random := func(rows, cols int, scale float64) *weight {
		w := m.add(rows, cols)
		w.decays = true
		for i := range w.data {
			w.data[i] = float32(r.NormFloat64() * scale)
		}
		return w
	}
	ones := func() *weight {
		w := m.add(1, d)
		for i := range w.data {
			w.data[i] = 1
		}
		return w
	}
	m.embedding = random(vocabulary, d, 0.05)
	in, residual := 1/math.Sqrt(float64(d)), 1/math.Sqrt(float64(2*s.Layers))
	for range s.Layers {
		op, err := attention.New(attention.Config{
			QueryHeads: s.QueryHeads, KVHeads: s.KVHeads, HeadDim: s.HeadDim, Mask: attention.Causal(),
		})
		if err != nil {
			return nil, err
		}
		m.layers = append(m.layers, &layer{
			op: op, norm1: ones(), norm2: ones(),
			qkv:  random(d, (s.QueryHeads+2*s.KVHeads)*s.HeadDim, in),
			out:  random(d, d, in*residual),
			up:   random(d, s.Hidden, in),
			down: random(s.Hidden, d, residual/math.Sqrt(float64(s.Hidden))),
		})
	}
	m.norm = ones()
	return m, nil
}

func (m *model) add(rows, cols int) *weight {
	n := rows * cols
	w := &weight{matrix: newMatrix(rows, cols), grad: make([]float32, n), mean: make([]float32, n), square: make([]float32, n)}
	m.weights = append(m.weights, w)
	return w
}

// size is the number of parameters.
func (m *model) size() int {
	n := 0
	for _, w := range m.weights {
		n += len(w.data)
	}
	return n
}

func (m *model) kernel() string { return m.layers[0].op.Kernel() }

func (w *weight) gradient() matrix { return matrix{w.rows, w.cols, w.grad} }

// fit makes x a matrix of the given size, in its memory if that is enough.
func fit(x *matrix, rows, cols int) {
	if n := rows * cols; cap(x.data) < n {
		x.data = make([]float32, n)
	} else {
		x.data = x.data[:n]
	}
	x.rows, x.cols = rows, cols
}

func fitSlice[T any](x *[]T, n int) {
	if cap(*x) < n {
		*x = make([]T, n)
	}
	*x = (*x)[:n]
}

// forward leaves the logits of every token's next byte in m.logits. Dropout of
// attention probabilities is nil for none.
func (m *model) forward(b *batch, dropout func(layer int) *attention.Dropout) error {
	n, d := len(b.in), m.width()
	fit(&m.x, n, d)
	for t, c := range b.in {
		row := m.x.row(t)
		for k, v := range m.embedding.row(int(c)) {
			row[k] = v * m.lift()
		}
	}
	for i, l := range m.layers {
		fit(&l.x, n, d)
		copy(l.x.data, m.x.data)
		fit(&l.h, n, d)
		fitSlice(&l.inv1, n)
		normalize(m.x, l.norm1.data, l.h, l.inv1)
		fit(&l.qkvs, n, l.qkv.cols)
		multiply(plain, l.h, plain, l.qkv.matrix, 0, l.qkvs)
		rotate(l.qkvs, b.cu, m.QueryHeads+m.KVHeads, m.HeadDim, false)
		fit(&l.o, n, d)
		fitSlice(&l.lse, n*m.QueryHeads)
		in, out := m.attention(l, dropout(i))
		start := time.Now()
		if err := l.op.Forward(in, out, attention.Ragged(b.cu)); err != nil {
			return err
		}
		m.attentionTime += time.Since(start)
		multiply(plain, l.o, plain, l.out.matrix, 1, m.x)

		fit(&l.u, n, d)
		copy(l.u.data, m.x.data)
		fit(&l.h2, n, d)
		fitSlice(&l.inv2, n)
		normalize(m.x, l.norm2.data, l.h2, l.inv2)
		fit(&l.mid, n, m.Hidden)
		fit(&l.act, n, m.Hidden)
		multiply(plain, l.h2, plain, l.up.matrix, 0, l.mid)
		activate(l.mid, l.act)
		multiply(plain, l.act, plain, l.down.matrix, 1, m.x)
	}
	fit(&m.h, n, d)
	fitSlice(&m.inv, n)
	normalize(m.x, m.norm.data, m.h, m.inv)
	fit(&m.logits, n, vocabulary)
	multiply(plain, m.h, transposed, m.embedding.matrix, 0, m.logits)
	return nil
}

// lift brings the embedding, which is small as it also makes the logits, to the
// size of what the blocks add.
func (m *model) lift() float32 { return float32(math.Sqrt(float64(m.width()))) }

// attention returns the arguments of a layer's attention: Q, K and V are the
// heads of one buffer.
func (m *model) attention(l *layer, dropout *attention.Dropout) (attention.Inputs, attention.Outputs) {
	in := attention.Inputs{Dropout: dropout}
	in.Q, in.K, in.V = attention.FusedQKV(l.qkvs.data, m.QueryHeads, m.KVHeads, m.HeadDim)
	return in, attention.Outputs{O: attention.Packed(l.o.data, m.QueryHeads, m.HeadDim), LSE: l.lse}
}

// backward returns the loss of the last forward pass, and leaves its gradients.
func (m *model) backward(b *batch, dropout func(layer int) *attention.Dropout) (float64, error) {
	n, d := len(b.in), m.width()
	for _, w := range m.weights {
		clear(w.grad)
	}
	loss := crossEntropy(m.logits, b.out)
	fit(&m.dh, n, d)
	fit(&m.dx, n, d)
	clear(m.dx.data)
	multiply(plain, m.logits, plain, m.embedding.matrix, 0, m.dh)
	multiply(transposed, m.logits, plain, m.h, 1, m.embedding.gradient())
	normalizeBack(m.x, m.norm.data, m.inv, m.dh, m.dx, m.norm.grad)
	for i := len(m.layers) - 1; i >= 0; i-- {
		l := m.layers[i]
		fit(&m.dmid, n, m.Hidden)
		multiply(transposed, l.act, plain, m.dx, 1, l.down.gradient())
		multiply(plain, m.dx, transposed, l.down.matrix, 0, m.dmid)
		share(len(l.mid.data), func(from, to int) {
			for k := from; k < to; k++ {
				m.dmid.data[k] *= l.mid.data[k]
			}
		})
		multiply(transposed, l.h2, plain, m.dmid, 1, l.up.gradient())
		multiply(plain, m.dmid, transposed, l.up.matrix, 0, m.dh)
		normalizeBack(l.u, l.norm2.data, l.inv2, m.dh, m.dx, l.norm2.grad)

		fit(&m.do, n, d)
		multiply(transposed, l.o, plain, m.dx, 1, l.out.gradient())
		multiply(plain, m.dx, transposed, l.out.matrix, 0, m.do)
		fit(&m.dqkv, n, l.qkv.cols)
		in, out := m.attention(l, dropout(i))
		g := attention.Gradients{DO: attention.Packed(m.do.data, m.QueryHeads, m.HeadDim)}
		g.DQ, g.DK, g.DV = attention.FusedQKV(m.dqkv.data, m.QueryHeads, m.KVHeads, m.HeadDim)
		start := time.Now()
		if err := l.op.Backward(in, out, g, attention.Ragged(b.cu)); err != nil {
			return 0, err
		}
		m.attentionTime += time.Since(start)
		rotate(m.dqkv, b.cu, m.QueryHeads+m.KVHeads, m.HeadDim, true)
		multiply(transposed, l.h, plain, m.dqkv, 1, l.qkv.gradient())
		multiply(plain, m.dqkv, transposed, l.qkv.matrix, 0, m.dh)
		normalizeBack(l.x, l.norm1.data, l.inv1, m.dh, m.dx, l.norm1.grad)
	}
	e := m.embedding.gradient()
	for t, c := range b.in {
		row := e.row(int(c))
		for k, v := range m.dx.row(t) {
			row[k] += v * m.lift()
		}
	}
	return loss, nil
}

// noDropout is for measuring and sampling.
func noDropout(int) *attention.Dropout { return nil }

// sample continues a function, a byte at a time. It computes the whole text
// anew for each: a cache is another example's subject.
func (m *model) sample(n int, temperature float64, seed uint64) (string, error) {
	r := rand.New(rand.NewPCG(seed, 3))
	s := []byte("func ")
	for len(s) < n {
		b := &batch{cu: []int{0, len(s) + 1}, in: append([]byte{0}, s...)}
		if err := m.forward(b, noDropout); err != nil {
			return "", err
		}
		s = append(s, draw(r, m.logits.row(len(s)), temperature))
	}
	return string(s), nil
}

// draw draws a byte by its probability, sharpened by a temperature below 1.
func draw(r *rand.Rand, logits []float32, temperature float64) byte {
	best := 0
	for c := range logits {
		if logits[c] > logits[best] {
			best = c
		}
	}
	if temperature == 0 {
		return byte(best)
	}
	var sum float64
	p := make([]float64, len(logits))
	for c := range logits {
		p[c] = math.Exp(float64(logits[c]-logits[best]) / temperature)
		sum += p[c]
	}
	x := r.Float64() * sum
	for c := range p {
		if x -= p[c]; x < 0 {
			return byte(c)
		}
	}
	return byte(best)
}
