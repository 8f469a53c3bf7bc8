package attention_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-091431b3/attention"
	"github.com/seed-091431b3/attention/ref"
)

// problem is one call, in the library's terms and in the reference's. Its
// arrays are packed.
type problem struct {
	name    string
	cfg     attention.Config
	batch   attention.Batch
	q, k, v []float32
	in      attention.Inputs // but for Q, K and V
	ref     *ref.Problem
}

// result is what a call gives, packed.
type result struct {
	o   []float32
	lse []float64
}

// run computes p with the given kernel and workers, all arrays packed.
func (p *problem) run(t testing.TB, kernel string, workers int) result {
	t.Helper()
	cfg := p.cfg
	cfg.Kernel, cfg.Workers = kernel, workers
	op, err := attention.New(cfg)
	require.NoError(t, err, p.name)
	return p.runOn(t, op)
}

// runOn computes p with an operator configured like it.
func (p *problem) runOn(t testing.TB, op *attention.Operator) result {
	t.Helper()
	in, out, r := p.call()
	require.NoError(t, op.Forward(in, out, p.batch), p.name)
	return r
}

// call returns the arguments of a call with packed arrays.
func (p *problem) call() (attention.Inputs, attention.Outputs, result) {
	in := p.in
	in.Q = attention.Packed(p.q, p.ref.Hq, p.ref.Dk)
	in.K = attention.Packed(p.k, p.ref.Hkv, p.ref.Dk)
	in.V = attention.Packed(p.v, p.ref.Hkv, p.ref.Dv)
	r := newResult(p.ref)
	return in, attention.Outputs{O: attention.Packed(r.o, p.ref.Hq, p.ref.Dv), LSE: r.lse}, r
}

// newResult returns outputs full of NaN.
func newResult(p *ref.Problem) result {
	rows := p.CuQ[p.Batch()] * p.Hq
	r := result{make([]float32, rows*p.Dv), make([]float64, rows)}
	fill(r.o, float32(math.NaN()))
	fill(r.lse, math.NaN())
	return r
}

func fill[T any](x []T, v T) {
	for i := range x {
		x[i] = v
	}
}

// shape is what newProblem builds around.
type shape struct {
	hq, hkv, dk, dv int
	nq, nk          []int // of the sequences
}

// random returns n numbers of a standard normal distribution.
func random(r *rand.Rand, n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(r.NormFloat64())
	}
	return x
}

// newProblem returns a problem with random Q, K and V, no mask and no extras.
func newProblem(r *rand.Rand, s shape) *problem {
	cuQ, cuK := attention.CuSeqlens(s.nq), attention.CuSeqlens(s.nk)
	tq, tk := cuQ[len(s.nq)], cuK[len(s.nk)]
	p := &problem{
		name:  fmt.Sprintf("heads %d/%d dims %d/%d nq %v nk %v", s.hq, s.hkv, s.dk, s.dv, s.nq, s.nk),
		cfg:   attention.Config{QueryHeads: s.hq, KVHeads: s.hkv, HeadDim: s.dk, ValueDim: s.dv},
		batch: attention.RaggedQK(cuQ, cuK),
		q:     random(r, tq*s.hq*s.dk), k: random(r, tk*s.hkv*s.dk), v: random(r, tk*s.hkv*s.dv),
	}
	p.ref = &ref.Problem{
		Hq: s.hq, Hkv: s.hkv, Dk: s.dk, Dv: s.dv, CuQ: cuQ, CuK: cuK, Q: p.q, K: p.k, V: p.v,
		Scale: ref.DefaultScale(s.dk), Masks: make([]ref.Mask, len(s.nq)),
	}
	return p
}

// sequence is nq, nk and the offset of sequence b.
func (p *problem) sequence(b int) (nq, nk, off int) {
	r := p.ref
	nq, nk = r.CuQ[b+1]-r.CuQ[b], r.CuK[b+1]-r.CuK[b]
	if r.Offset != nil {
		return nq, nk, r.Offset[b]
	}
	return nq, nk, nk - nq
}

// setMasks gives every sequence a mask by make.
func (p *problem) setMasks(mask func(b, nq, nk, off int) (string, attention.Mask, ref.Mask)) {
	p.batch.Masks = make([]attention.Mask, p.ref.Batch())
	var names []string
	for b := range p.ref.Batch() {
		nq, nk, off := p.sequence(b)
		name, m, r := mask(b, nq, nk, off)
		p.batch.Masks[b], p.ref.Masks[b] = m, r
		names = append(names, name)
	}
	p.name += " masks [" + strings.Join(names, ", ") + "]"
}

// randomMask returns a mask for one sequence.
func randomMask(r *rand.Rand, hq, nq, nk, off int) (string, attention.Mask, ref.Mask) {
	side := func() int { return [...]int{attention.Unbounded, 0, 1, r.IntN(nk + 2), r.IntN(200)}[r.IntN(5)] }
	for {
		switch r.IntN(13) {
		case 0:
			return "none", attention.Mask{}, nil
		case 1:
			return "causal", attention.Causal(), ref.Causal(off)
		case 2:
			left, right := side(), side()
			return fmt.Sprintf("window(%d,%d)", left, right), attention.Window(left, right), ref.Window(off, left, right)
		case 3:
			n := r.IntN(nk + 2)
			return fmt.Sprintf("prefix(%d)", n), attention.PrefixLM(n), ref.PrefixLM(off, n)
		case 4:
			n, left, right := r.IntN(300), side(), side()
			return fmt.Sprintf("sinks(%d,%d,%d)", n, left, right), attention.SinkTokens(n, left, right), ref.SinkTokens(off, n, left, right)
		case 5:
			if off >= 0 && off+nq <= nk {
				return randomDocuments(r, nk, off)
			}
		case 6:
			lo, hi := make([]int, nq), make([]int, nq)
			for i := range lo {
				lo[i], hi[i] = r.IntN(nk+20)-10, r.IntN(nk+20)-10
			}
			return "ranges", attention.KeyRanges(lo, hi), ref.KeyRanges(lo, hi)
		case 7:
			return randomBool(r, hq, nq, nk)
		case 8:
			if nq <= nk {
				return randomTree(r, nq, nk)
			}
		case 9:
			return randomBlocks(r, nq, nk)
		case 10:
			return randomFunc(r)
		default:
			a, ma, ra := randomMask(r, hq, nq, nk, off)
			b, mb, rb := randomMask(r, hq, nq, nk, off)
			return a + " and " + b, attention.And(ma, mb), ref.And(ra, rb)
		}
	}
}

func randomDocuments(r *rand.Rand, nk, off int) (string, attention.Mask, ref.Mask) {
	doc, wide, scattered := make([]int32, nk), make([]int, nk), r.IntN(2) == 0
	for j := range doc {
		switch {
		case scattered:
			doc[j] = int32(r.IntN(3))
		case j > 0 && r.IntN(50) > 0:
			doc[j] = doc[j-1]
		case j > 0:
			doc[j] = doc[j-1] + 1
		}
		wide[j] = int(doc[j])
	}
	return fmt.Sprintf("documents (scattered: %v)", scattered), attention.Documents(doc), ref.Documents(off, wide)
}

func randomBool(r *rand.Rand, hq, nq, nk int) (string, attention.Mask, ref.Mask) {
	heads, rows := [...]int{1, hq}[r.IntN(2)], [...]int{1, nq}[r.IntN(2)]
	bits := make([]bool, heads*rows*nk)
	for i := range bits {
		bits[i] = r.IntN(3) > 0
	}
	head, row := rows*nk, nk
	if heads == 1 {
		head = 0
	}
	if rows == 1 {
		row = 0
	}
	return fmt.Sprintf("bool [%d,%d]", heads, rows), attention.Bool(bits, head, row), func(_, h, i, j int) bool { return bits[h*head+i*row+j] }
}

func randomTree(r *rand.Rand, nq, nk int) (string, attention.Mask, ref.Mask) {
	parents := make([]int, nq)
	for i := range parents {
		parents[i] = max(r.IntN(i+1), i-3) - 1
	}
	return "tree", attention.Tree(parents), ref.Tree(nk, parents)
}

func randomBlocks(r *rand.Rand, nq, nk int) (string, attention.Mask, ref.Mask) {
	bq, bk := 1+r.IntN(150), 1+r.IntN(150)
	var blocks []attention.Block
	var listed []ref.Block
	for i := range nq/bq + 1 {
		for j := range nk/bk + 1 {
			if r.IntN(3) == 0 {
				blocks = append(blocks, attention.Block{Q: i, K: j})
				listed = append(listed, ref.Block{Row: i, Col: j})
			}
		}
	}
	return fmt.Sprintf("blocks %dx%d", bq, bk), attention.BlockSparse(bq, bk, blocks), ref.BlockSparse(bq, bk, listed)
}

// randomFunc hides a quarter of all tiles of 64 by 64 and every seventh pair of
// what is not visible as a whole.
func randomFunc(r *rand.Rand) (string, attention.Mask, ref.Mask) {
	seed := r.IntN(1000)
	kind := func(b, i, j int) int { return (i/64*31 + j/64*17 + b*5 + seed) % 4 } // 0: hidden, 1: visible
	visible := func(b, h, i, j int) bool {
		k := kind(b, i, j)
		return k == 1 || k > 1 && (h+i+j)%7 > 0
	}
	tile := func(b, i0, i1, j0, j1 int) attention.Visibility {
		k := kind(b, i0, j0)
		if i0/64 != (i1-1)/64 || j0/64 != (j1-1)/64 || k > 1 {
			return attention.Mixed
		}
		return [...]attention.Visibility{attention.Hidden, attention.Visible}[k]
	}
	if r.IntN(2) == 0 {
		return "func", attention.Func(visible, nil), visible
	}
	return "func with tiles", attention.Func(visible, tile), visible
}

// extra adds one thing beyond the mask.
type extra struct {
	name string
	add  func(r *rand.Rand, p *problem)
}

var extras = []extra{
	{"scale", func(r *rand.Rand, p *problem) {
		p.ref.Scale = [...]float64{0, 1, -0.3, 0.02}[r.IntN(4)]
		p.cfg.Scale = &p.ref.Scale
	}},
	{"softcap", func(r *rand.Rand, p *problem) {
		p.ref.Softcap = [...]float64{0.5, 5, 50}[r.IntN(3)]
		p.cfg.Softcap = p.ref.Softcap
	}},
	{"alibi", func(r *rand.Rand, p *problem) {
		p.cfg.ALiBi = make([]float32, p.ref.Hq)
		for h := range p.cfg.ALiBi {
			p.cfg.ALiBi[h] = float32(math.Exp2(-8 * float64(h+1) / float64(p.ref.Hq)))
		}
		p.cfg.ALiBi[r.IntN(p.ref.Hq)] = [...]float32{0, -0.01, 0.5}[r.IntN(3)]
		p.ref.Slopes = p.cfg.ALiBi
	}},
	{"bias", addBias},
	{"sinks", func(r *rand.Rand, p *problem) {
		p.in.Sinks = random(r, p.ref.Hq)
		p.in.Sinks[0] += [...]float32{0, 60, -60}[r.IntN(3)]
		p.ref.Sinks = p.in.Sinks
	}},
	{"dropout", func(r *rand.Rand, p *problem) {
		d := &attention.Dropout{Seed: r.Uint64(), Rate: [...]float64{0, 0.1, 0.5, 0.999}[r.IntN(4)]}
		p.in.Dropout = d
		p.ref.Dropout = &ref.Dropout{Seed: d.Seed, Rate: d.Rate}
	}},
	{"dropout by rows", func(r *rand.Rand, p *problem) {
		d := &attention.Dropout{Seed: r.Uint64(), Rates: make([]float32, p.ref.CuQ[p.ref.Batch()])}
		for t := range d.Rates {
			d.Rates[t] = r.Float32() * float32(r.IntN(2))
		}
		p.in.Dropout = d
		p.batch.IDs = make([]uint64, p.ref.Batch())
		for b := range p.batch.IDs {
			p.batch.IDs[b] = r.Uint64()
		}
		p.ref.Dropout = &ref.Dropout{Seed: d.Seed, Rates: d.Rates, IDs: p.batch.IDs}
	}},
}

func addBias(r *rand.Rand, p *problem) {
	p.in.Bias, p.ref.Bias = make([]attention.Bias, p.ref.Batch()), make([]ref.Bias, p.ref.Batch())
	for b := range p.in.Bias {
		nq, nk, _ := p.sequence(b)
		if r.IntN(5) == 0 {
			continue // none
		}
		heads, rows := [...]int{1, p.ref.Hq}[r.IntN(2)], [...]int{1, nq}[r.IntN(2)]
		data := random(r, heads*rows*nk)
		if r.IntN(4) == 0 && len(data) > 0 {
			data[r.IntN(len(data))] = float32(math.Inf(-1))
		}
		x := attention.Bias{Data: data, HeadStride: rows * nk, QueryStride: nk}
		if heads == 1 {
			x.HeadStride = 0
		}
		if rows == 1 {
			x.QueryStride = 0
		}
		p.in.Bias[b], p.ref.Bias[b] = x, ref.Bias{Heads: heads, Rows: rows, Data: data}
	}
}

// add adds the named extras.
func (p *problem) add(r *rand.Rand, names ...string) *problem {
	for _, name := range names {
		for _, e := range extras {
			if e.name == name {
				e.add(r, p)
				p.name += " " + name
			}
		}
	}
	return p
}

// randomProblem draws everything. Its work is at most about size
// multiplications.
func randomProblem(r *rand.Rand, size int) *problem {
	pick := func(n ...int) int { return n[r.IntN(len(n))] }
	var s shape
	s.hkv = pick(1, 1, 2, 3)
	s.hq = s.hkv * pick(1, 1, 2, 3, 4, 8)
	s.dk = pick(1, 2, 3, 8, 16, 31, 40, 64, 64, 65, 96, 128, 192, 257, 1+r.IntN(257))
	s.dv = pick(s.dk, s.dk, 1, 7, 33, 64, 128, 1+r.IntN(257))
	for range pick(1, 1, 2, 3, 5) {
		nq, nk := pick(0, 1, 2, 3, 17, r.IntN(130), r.IntN(1101)), pick(0, 1, 5, r.IntN(130), 128, 1024, 1025, r.IntN(1101), r.IntN(4200))
		if r.IntN(2) == 0 {
			nk = nq
		}
		for nq > 1 && nq*nk*s.hq*(s.dk+s.dv) > size {
			nq = nq / 2
		}
		s.nq, s.nk = append(s.nq, nq), append(s.nk, nk)
	}
	p := newProblem(r, s)
	switch r.IntN(3) {
	case 0:
		p.batch.Align = attention.TopLeft
		p.ref.Offset = make([]int, len(s.nq))
		p.name += " top-left"
	case 1:
		for b := range s.nq {
			p.ref.Offset = append(p.ref.Offset, pick(0, s.nk[b]-s.nq[b], r.IntN(s.nk[b]+1), -r.IntN(s.nq[b]+1), s.nk[b]+3))
		}
		p.batch.Offsets = p.ref.Offset
		p.name += fmt.Sprintf(" offsets %v", p.ref.Offset)
	}
	if r.IntN(4) > 0 {
		p.setMasks(func(_, nq, nk, off int) (string, attention.Mask, ref.Mask) { return randomMask(r, s.hq, nq, nk, off) })
	}
	for _, e := range extras {
		if r.IntN(4) == 0 {
			p.add(r, e.name)
		}
	}
	return p
}
