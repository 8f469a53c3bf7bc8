package attention_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-091431b3/attention"
	"github.com/seed-091431b3/attention/ref"
)

var nan = float32(math.NaN())

// bitProblems are problems that between them take every path of the forward
// pass.
func bitProblems(r *rand.Rand) []*problem {
	masks := func(p *problem, f func(nq, nk, off int) (string, attention.Mask, ref.Mask)) *problem {
		p.setMasks(func(_, nq, nk, off int) (string, attention.Mask, ref.Mask) { return f(nq, nk, off) })
		return p
	}
	causal := func(_, _, off int) (string, attention.Mask, ref.Mask) {
		return "causal", attention.Causal(), ref.Causal(off)
	}
	window := func(_, _, off int) (string, attention.Mask, ref.Mask) {
		return "window", attention.Window(40, 3), ref.Window(off, 40, 3)
	}
	function := func(_, _, _ int) (string, attention.Mask, ref.Mask) { return randomFunc(r) }
	one := func(nq, nk int) shape { return shape{2, 2, 16, 16, []int{nq}, []int{nk}} }
	ragged := shape{6, 2, 24, 17, []int{70, 0, 1, 130, 9}, []int{70, 5, 300, 130, 0}}
	all := []*problem{
		newProblem(r, ragged),
		masks(newProblem(r, ragged), causal),
		masks(newProblem(r, ragged), window),
		masks(newProblem(r, ragged), function).add(r, "softcap", "alibi", "bias", "sinks", "dropout by rows"),
		masks(newProblem(r, ragged), causal).add(r, "dropout", "sinks"),
		masks(newProblem(r, one(300, 300)), causal).add(r, "alibi"),
		newProblem(r, one(5, 2500)).add(r, "bias"),
		masks(newProblem(r, one(1, 1300)), window),
		newProblem(r, shape{8, 1, 65, 3, []int{1, 1, 1}, []int{1025, 128, 1}}),
	}
	if testing.Short() {
		return all[7:8]
	}
	return append(all, masks(newProblem(r, one(1100, 1100)), causal), masks(newProblem(r, one(40, 3000)), function).add(r, "sinks"))
}

func operator(t testing.TB, p *problem, kernel string, workers int) *attention.Operator {
	t.Helper()
	cfg := p.cfg
	cfg.Kernel, cfg.Workers = kernel, workers
	op, err := attention.New(cfg)
	require.NoError(t, err)
	return op
}

// TestSameBits: the same inputs give the same bits, whatever computes them.
func TestSameBits(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 3))
	for _, p := range bitProblems(r) {
		want := p.run(t, "generic", 1)
		for _, kernel := range attention.Kernels() {
			t.Run(kernel, func(t *testing.T) {
				for _, workers := range []int{1, 2, 3, 7} {
					op := operator(t, p, kernel, workers)
					for range 2 { // the second call finds used scratch
						sameBits(t, want, p.runOn(t, op), p.name, workers, "workers")
					}
				}
				op := operator(t, p, kernel, 2)
				for n, l := range layouts {
					if p.ref.Batch() == 1 && n > 2 && n != 4 {
						continue // long, and no different from a batch
					}
					other := layouts[(n+3)%len(layouts)]
					sameBits(t, want, p.runLaidOut(t, op, l, l, l, l, nan), p.name, l.name)
					sameBits(t, want, p.runLaidOut(t, op, other, l, other, l, 1e3), p.name, l.name, other.name)
				}
				for b := range p.ref.Batch() {
					one := p.alone(b)
					sameBits(t, p.part(want, b), one.run(t, kernel, 1), p.name, "sequence", b, "alone")
				}
				sameBits(t, p.permuted(want), p.permute().run(t, kernel, 3), p.name, "in another order")
			})
		}
	}
}

// alone is sequence b of p by itself.
func (p *problem) alone(b int) *problem {
	return p.choose([]int{b})
}

// order is another order of the sequences, with the last one twice.
func (p *problem) order() []int {
	n := p.ref.Batch()
	order := []int{n - 1}
	for b := n - 1; b >= 0; b-- {
		order = append(order, b)
	}
	return order
}

func (p *problem) permute() *problem { return p.choose(p.order()) }

func (p *problem) permuted(r result) result {
	var all result
	for _, b := range p.order() {
		part := p.part(r, b)
		all.o, all.lse = append(all.o, part.o...), append(all.lse, part.lse...)
	}
	return all
}

// part is sequence b of a result.
func (p *problem) part(r result, b int) result {
	from, to := p.ref.CuQ[b]*p.ref.Hq, p.ref.CuQ[b+1]*p.ref.Hq
	return result{r.o[from*p.ref.Dv : to*p.ref.Dv], r.lse[from:to]}
}

// choose is a batch of some of the sequences of p, each with the number that it
// has in p as its id. Functions as masks would be asked about another index,
// and are told the one in p.
func (p *problem) choose(seqs []int) *problem {
	r, c := p.ref, *p
	c.q, c.k, c.v, c.batch = nil, nil, nil, attention.Batch{Align: p.batch.Align}
	var nq, nk []int
	x := &ref.Problem{Hq: r.Hq, Hkv: r.Hkv, Dk: r.Dk, Dv: r.Dv, Scale: r.Scale, Softcap: r.Softcap, Slopes: r.Slopes, Sinks: r.Sinks}
	c.ref, c.in.Bias = x, nil
	if d := p.in.Dropout; d != nil {
		c.in.Dropout = &attention.Dropout{Seed: d.Seed, Rate: d.Rate}
	}
	for n, b := range seqs {
		q, k, off := p.sequence(b)
		nq, nk = append(nq, q), append(nk, k)
		c.q = append(c.q, p.q[r.CuQ[b]*r.Hq*r.Dk:r.CuQ[b+1]*r.Hq*r.Dk]...)
		c.k = append(c.k, p.k[r.CuK[b]*r.Hkv*r.Dk:r.CuK[b+1]*r.Hkv*r.Dk]...)
		c.v = append(c.v, p.v[r.CuK[b]*r.Hkv*r.Dv:r.CuK[b+1]*r.Hkv*r.Dv]...)
		c.batch.Offsets = append(c.batch.Offsets, off)
		if r.DO != nil {
			x.DO = append(x.DO, r.DO[r.CuQ[b]*r.Hq*r.Dv:r.CuQ[b+1]*r.Hq*r.Dv]...)
		}
		if r.DLSE != nil {
			x.DLSE = append(x.DLSE, r.DLSE[r.CuQ[b]*r.Hq:r.CuQ[b+1]*r.Hq]...)
		}
		id := uint64(b)
		if p.batch.IDs != nil {
			id = p.batch.IDs[b]
		}
		c.batch.IDs = append(c.batch.IDs, id)
		if p.batch.Masks != nil {
			m := p.batch.Masks[b]
			if visible := r.Masks[b]; visible != nil && n%2 == 0 {
				m = attention.Func(func(_, h, i, j int) bool { return visible(b, h, i, j) }, nil)
			} else if visible != nil {
				m = denseMask(visible, b, r.Hq, q, k)
			}
			c.batch.Masks = append(c.batch.Masks, m)
		}
		if p.in.Bias != nil {
			c.in.Bias = append(c.in.Bias, p.in.Bias[b])
		}
		if d := p.in.Dropout; d != nil && d.Rates != nil {
			c.in.Dropout.Rates = append(c.in.Dropout.Rates, d.Rates[r.CuQ[b]:r.CuQ[b+1]]...)
		}
	}
	x.CuQ, x.CuK = attention.CuSeqlens(nq), attention.CuSeqlens(nk)
	c.batch.CuQ, c.batch.CuK = x.CuQ, x.CuK
	x.Q, x.K, x.V = c.q, c.k, c.v
	return &c
}

// denseMask is a mask as an array of bool.
func denseMask(visible ref.Mask, b, hq, nq, nk int) attention.Mask {
	bits := make([]bool, hq*nq*nk)
	for n := range bits {
		bits[n] = visible(b, n/(nq*nk), n/nk%nq, n%nk)
	}
	return attention.Bool(bits, nq*nk, nk)
}

// TestSameBitsOfMasks: a mask's representation does not enter the result.
func TestSameBitsOfMasks(t *testing.T) {
	r := rand.New(rand.NewPCG(4, 4))
	shapes := [][2]int{{300, 300}, {70, 1200}, {1, 1100}, {200, 90}, {33, 33}}
	if testing.Short() {
		shapes = [][2]int{{33, 200}}
	}
	for _, s := range shapes {
		for _, dk := range []int{8, 33} {
			if dk > 8 && s[0]*s[1] > 20_000 {
				continue
			}
			p := newProblem(r, shape{4, 2, dk, 9, []int{s[0]}, []int{s[1]}})
			nq, nk, off := p.sequence(0)
			for _, w := range [][2]int{{attention.Unbounded, 0}, {20, 0}, {130, 5}, {0, 0}, {attention.Unbounded, attention.Unbounded}} {
				visible := ref.Window(off, w[0], w[1])
				p.batch.Masks = []attention.Mask{attention.Window(w[0], w[1])}
				want := p.run(t, "generic", 1)
				for name, m := range sameMasks(visible, w, nq, nk, off) {
					p.batch.Masks[0] = m
					for _, kernel := range attention.Kernels() {
						sameBits(t, want, p.run(t, kernel, 1), kernel, p.name, "window", w, "as", name)
					}
				}
			}
		}
	}
}

// sameMasks are masks that all say the same as the window w.
func sameMasks(visible ref.Mask, w [2]int, nq, nk, off int) map[string]attention.Mask {
	lo, hi := make([]int, nq), make([]int, nq)
	var pairs []attention.Block
	for i := range nq {
		lo[i], hi[i] = 0, nk
		if w[0] >= 0 {
			lo[i] = i + off - w[0]
		}
		if w[1] >= 0 {
			hi[i] = i + off + w[1] + 1
		}
		for j := range nk {
			if visible(0, 0, i, j) {
				pairs = append(pairs, attention.Block{Q: i, K: j})
			}
		}
	}
	f := func(_, _, i, j int) bool { return visible(0, 0, i, j) }
	tile := func(_, i0, i1, j0, j1 int) attention.Visibility {
		n := 0
		for i := i0; i < i1; i++ {
			for j := j0; j < j1; j++ {
				if visible(0, 0, i, j) {
					n++
				}
			}
		}
		switch n {
		case 0:
			return attention.Hidden
		case (i1 - i0) * (j1 - j0):
			return attention.Visible
		}
		return attention.Mixed
	}
	m := map[string]attention.Mask{
		"sink tokens":         attention.SinkTokens(0, w[0], w[1]),
		"ranges":              attention.KeyRanges(lo, hi),
		"bool":                denseMask(visible, 0, 4, nq, nk),
		"function":            attention.Func(f, nil),
		"function with tiles": attention.Func(f, tile),
		"pairs":               attention.BlockSparse(1, 1, pairs),
		"itself, twice":       attention.And(attention.Window(w[0], w[1]), attention.Window(w[0], w[1])),
		"interval and bitmap": attention.And(attention.Window(w[0], w[1]), attention.Func(f, nil)),
	}
	if off >= 0 && off+nq <= nk {
		m["one document"] = attention.And(attention.Window(w[0], w[1]), attention.Documents(make([]int32, nk)))
	}
	switch w {
	case [2]int{attention.Unbounded, 0}:
		m["causal"] = attention.Causal()
		m["prefix of nothing"] = attention.PrefixLM(0)
		if nq <= nk {
			chain := make([]int, nq)
			for i := range chain {
				chain[i] = i - 1
			}
			m["a tree that is a chain"] = attention.Tree(chain)
		}
	case [2]int{attention.Unbounded, attention.Unbounded}:
		m["none"] = attention.Mask{}
		m["whole prefix"] = attention.PrefixLM(nk)
		m["whole sink"] = attention.SinkTokens(nk, 0, 0)
		m["one block"] = attention.BlockSparse(nq, nk, []attention.Block{{Q: 0, K: 0}})
	}
	return m
}

// TestFusedProjection: Q, K and V in one buffer, and O interleaved with
// something else.
func TestFusedProjection(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 5))
	const hq, hkv, dim = 6, 2, 17
	p := newProblem(r, shape{hq, hkv, dim, dim, []int{70, 3, 0, 129}, []int{70, 3, 0, 129}})
	p.cfg.Mask = attention.Causal()
	want := p.run(t, "", 1)
	cu, tokens := p.ref.CuQ, p.ref.CuQ[4]
	data := make([]float32, tokens*(hq+2*hkv)*dim)
	in, out, _ := p.call()
	in.Q, in.K, in.V = attention.FusedQKV(data, hq, hkv, dim)
	put(cu, hq, dim, in.Q, p.q)
	put(cu, hkv, dim, in.K, p.k)
	put(cu, hkv, dim, in.V, p.v)
	op := operator(t, p, "", 2)
	require.NoError(t, op.Forward(in, out, p.batch))
	sameBits(t, want, result{out.O.Data, out.LSE})

	// O in a buffer of its own kind, between Q and V of each token.
	wide := make([]float32, tokens*(hq+hq+hkv)*dim)
	part := func(head int) attention.Tensor {
		return attention.Tensor{Data: wide[head*dim:], TokenStride: (2*hq + hkv) * dim, HeadStride: dim}
	}
	in.Q, out.O, in.V = part(0), part(hq), part(2*hq)
	put(cu, hq, dim, in.Q, p.q)
	put(cu, hkv, dim, in.V, p.v)
	require.NoError(t, op.Forward(in, out, p.batch))
	sameBits(t, want, result{get(cu, hq, dim, out.O), out.LSE})
	require.Equal(t, p.q, get(cu, hq, dim, in.Q))
	require.Equal(t, p.v, get(cu, hkv, dim, in.V))
}

// TestPrefillAndDecode: tokens that come one by one, or in chunks, give the
// bits of all at once.
func TestPrefillAndDecode(t *testing.T) {
	r := rand.New(rand.NewPCG(6, 6))
	n := 1200
	if testing.Short() {
		n = 150
	}
	p := newProblem(r, shape{4, 2, 16, 16, []int{n}, []int{n}})
	p.cfg.Mask = attention.Causal()
	want := p.run(t, "generic", 1)
	for _, kernel := range attention.Kernels() {
		for _, workers := range []int{1, 2} {
			op := operator(t, p, kernel, workers)
			for _, chunk := range []int{1, 7, 100} {
				in, out, got := p.call()
				q, o := in.Q, out.O
				for at := 0; at < n; at += chunk {
					next := min(at+chunk, n)
					if chunk == 1 && at > 20 && at < n-20 && at%131 > 2 {
						copy(got.o[at*64:], want.o[at*64:next*64])
						copy(got.lse[at*4:], want.lse[at*4:next*4])
						continue // a few steps are enough
					}
					in.Q.Data, out.O.Data, out.LSE = q.Data[at*64:], o.Data[at*64:], got.lse[at*4:]
					require.NoError(t, op.Forward(in, out, attention.RaggedQK([]int{0, next - at}, []int{0, next})))
				}
				sameBits(t, want, got, kernel, workers, "workers, chunks of", chunk)
			}
		}
	}
}

// TestInputsStay: a call writes to none of its inputs.
func TestInputsStay(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 7))
	problems := 10
	if testing.Short() {
		problems = 3
	}
	for n := range problems {
		p := randomProblem(r, 50_000).add(r, "bias", "sinks", "alibi", "dropout by rows")
		before := fmt.Sprint(p.q, p.k, p.v, p.in, p.cfg.ALiBi, p.batch.CuQ, p.batch.CuK, p.batch.Offsets, p.batch.IDs, *p.in.Dropout)
		q := slices.Clone(p.q)
		p.run(t, "", 1+n%3)
		require.Equal(t, before, fmt.Sprint(p.q, p.k, p.v, p.in, p.cfg.ALiBi, p.batch.CuQ, p.batch.CuK, p.batch.Offsets, p.batch.IDs, *p.in.Dropout))
		require.Equal(t, q, p.q)
	}
}
