package main

import (
	"encoding/binary"
	"math"
	"math/cmplx"
	"math/rand/v2"
)

// naive computes a model by the book, in float64 and token by token. It shares
// nothing with the program, the reading of the file included.
type naive struct {
	dim, hidden, layers, heads, kvHeads, vocab, context int

	embedding, attNorm, wq, wk, wv, wo, ffnNorm, w1, w2, w3, norm, classifier []float64

	keys, values [][][]float64 // of a layer and position
}

func newNaive(file []byte) *naive {
	number := func(i int) int { return int(int32(binary.LittleEndian.Uint32(file[4*i:]))) }
	m := &naive{
		dim: number(0), hidden: number(1), layers: number(2), heads: number(3), kvHeads: number(4),
		vocab: max(number(5), -number(5)), context: number(6),
	}
	at := 7
	take := func(n int) []float64 {
		x := make([]float64, n)
		for i := range x {
			x[i] = float64(math.Float32frombits(binary.LittleEndian.Uint32(file[4*at:])))
			at++
		}
		return x
	}
	square, narrow, wide := m.layers*m.dim*m.dim, m.layers*m.dim*m.dim/m.heads*m.kvHeads, m.layers*m.dim*m.hidden
	m.embedding = take(m.vocab * m.dim)
	m.attNorm = take(m.layers * m.dim)
	m.wq, m.wk, m.wv, m.wo = take(square), take(narrow), take(narrow), take(square)
	m.ffnNorm = take(m.layers * m.dim)
	m.w1, m.w2, m.w3 = take(wide), take(wide), take(wide)
	m.norm = take(m.dim)
	take(m.context * m.dim / m.heads) // cosines and sines
	m.classifier = m.embedding
	if number(5) < 0 {
		m.classifier = take(m.vocab * m.dim)
	}
	m.keys, m.values = make([][][]float64, m.layers), make([][][]float64, m.layers)
	return m
}

// next returns the logits after one token more.
func (m *naive) next(token int) []float64 {
	x := append([]float64(nil), m.embedding[token*m.dim:][:m.dim]...)
	for l := range m.layers {
		h := rms(x, m.attNorm[l*m.dim:])
		position := len(m.keys[l])
		q := m.turn(apply(m.wq, l, m.dim, h), position)
		m.keys[l] = append(m.keys[l], m.turn(apply(m.wk, l, m.dim*m.kvHeads/m.heads, h), position))
		m.values[l] = append(m.values[l], apply(m.wv, l, m.dim*m.kvHeads/m.heads, h))
		for i, v := range apply(m.wo, l, m.dim, m.attend(q, m.keys[l], m.values[l])) {
			x[i] += v
		}
		h = rms(x, m.ffnNorm[l*m.dim:])
		gate, up := apply(m.w1, l, m.hidden, h), apply(m.w3, l, m.hidden, h)
		for i, g := range gate {
			up[i] *= g / (1 + math.Exp(-g))
		}
		for i, v := range apply(m.w2, l, m.dim, up) {
			x[i] += v
		}
	}
	return apply(m.classifier, 0, m.vocab, rms(x, m.norm))
}

func (m *naive) attend(q []float64, keys, values [][]float64) []float64 {
	o := make([]float64, m.dim)
	size := m.dim / m.heads
	for h := range m.heads {
		from := h / (m.heads / m.kvHeads) * size
		p, sum := make([]float64, len(keys)), 0.0
		for j, k := range keys {
			for c := range size {
				p[j] += q[h*size+c] * k[from+c]
			}
			p[j] = math.Exp(p[j] / math.Sqrt(float64(size)))
			sum += p[j]
		}
		for j, v := range values {
			for c := range size {
				o[h*size+c] += p[j] / sum * v[from+c]
			}
		}
	}
	return o
}

// turn rotates pairs of channels, taken as complex numbers.
func (m *naive) turn(x []float64, position int) []float64 {
	size := m.dim / m.heads
	for i := 0; i < len(x); i += 2 {
		angle := float64(position) / math.Pow(10000, float64(i%size)/float64(size))
		z := complex(x[i], x[i+1]) * cmplx.Rect(1, angle)
		x[i], x[i+1] = real(z), imag(z)
	}
	return x
}

// apply multiplies x by matrix l of those in w, which have rows rows.
func apply(w []float64, l, rows int, x []float64) []float64 {
	y := make([]float64, rows)
	w = w[l*rows*len(x):]
	for r := range y {
		for c, v := range x {
			y[r] += w[r*len(x)+c] * v
		}
	}
	return y
}

func rms(x, gain []float64) []float64 {
	y, sum := make([]float64, len(x)), 0.0
	for _, v := range x {
		sum += v * v
	}
	for i, v := range x {
		y[i] = v / math.Sqrt(sum/float64(len(x))+1e-5) * gain[i]
	}
	return y
}

// random returns a checkpoint with random weights, of the given header.
func random(header ...int32) []byte {
	r := rand.New(rand.NewPCG(1, 2))
	var file []byte
	for _, n := range header {
		file = binary.LittleEndian.AppendUint32(file, uint32(n))
	}
	add := func(n int32, mean, deviation float64) {
		for range n {
			file = binary.LittleEndian.AppendUint32(file, math.Float32bits(float32(mean+deviation*r.NormFloat64())))
		}
	}
	dim, hidden, layers, vocab, context := header[0], header[1], header[2], max(header[5], -header[5]), header[6]
	square, narrow, wide := layers*dim*dim, layers*dim*dim/header[3]*header[4], layers*dim*hidden
	scale := 1 / math.Sqrt(float64(dim))
	add(vocab*dim, 0, 1)
	add(layers*dim, 1, 0.2)
	add(square, 0, 2*scale) // of queries: attention is not to be uniform
	add(narrow, 0, scale)
	add(narrow, 0, scale)
	add(square, 0, scale)
	add(layers*dim, 1, 0.2)
	add(wide, 0, scale)
	add(wide, 0, scale)
	add(wide, 0, scale)
	add(dim, 1, 0.2)
	add(context*dim/header[3], 0, 1) // in place of cosines and sines, which are not to be read
	if header[5] < 0 {
		add(vocab*dim, 0, 3*scale)
	}
	return file
}
