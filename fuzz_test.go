package attention_test

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-091431b3/attention"
	"github.com/seed-091431b3/attention/ref"
)

// geometry reads the shape of a call from the bytes of a fuzzer.
type geometry struct {
	bytes []byte
	valid bool // whether what was read so far is a call that must be accepted
	sure  bool // whether that is known: the library may refuse unusual layouts of O
}

// pick returns a number from 0 to n-1, 0 once the bytes are used up.
func (g *geometry) pick(n int) int {
	if len(g.bytes) == 0 {
		return 0
	}
	b := g.bytes[0]
	g.bytes = g.bytes[1:]
	return int(b) % n
}

// cu reads cumulative lengths, now and then bad ones.
func (g *geometry) cu(n, longest int) []int {
	cu := []int{0}
	if g.pick(64) == 63 {
		cu[0] = g.pick(3) - 1
	}
	g.valid = g.valid && cu[0] == 0
	for b := range n {
		step := g.pick(longest + 1)
		if g.pick(64) == 63 {
			step = -g.pick(4)
		}
		cu = append(cu, cu[b]+step)
		g.valid = g.valid && step >= 0
	}
	return cu
}

// tensor reads a layout. Data ends where the last row does, or a little off.
func (g *geometry) tensor(cu []int, heads, dim int) attention.Tensor {
	long := max(longest(cu), 0)
	var x attention.Tensor
	kind := g.pick(5)
	switch kind {
	case 0:
		x = attention.Packed[float32](nil, heads, dim)
	case 1:
		x = attention.BSHD[float32](nil, long+g.pick(3), heads, dim)
	case 2:
		x = attention.BHSD[float32](nil, heads, long+g.pick(3), dim)
	default:
		x = attention.Tensor{TokenStride: g.pick(80) - 2, HeadStride: g.pick(80) - 2, SequenceStride: g.pick(255) - 2}
		g.sure = false
	}
	short := max(g.pick(32)-29, 0)
	if x.TokenStride < 0 || x.HeadStride < 0 || x.SequenceStride < 0 {
		g.valid = false
	}
	if !g.valid {
		x.Data = make([]float32, 1000)
		return x
	}
	end := 0
	eachRow(cu, heads, dim, x, func(_, s int) { end = max(end, s+dim) })
	x.Data = make([]float32, max(end-short, 0))
	g.valid = short == 0 || end == 0
	return x
}

// distinct reports whether no two rows of a tensor share an element.
func distinct(cu []int, heads, dim int, x attention.Tensor) bool {
	used := make([]bool, len(x.Data))
	ok := true
	eachRow(cu, heads, dim, x, func(_, s int) {
		for c := s; c < s+dim; c++ {
			ok = ok && !used[c]
			used[c] = true
		}
	})
	return ok
}

// fuzzCall is a call of any geometry.
type fuzzCall struct {
	cfg   attention.Config
	batch attention.Batch
	in    attention.Inputs
	out   attention.Outputs
	g     geometry
	seqs  int
	mask  int
}

func newFuzzCall(bytes []byte) *fuzzCall {
	c := &fuzzCall{g: geometry{bytes: bytes, valid: true, sure: true}}
	g := &c.g
	hkv := 1 + g.pick(3)
	c.cfg = attention.Config{QueryHeads: hkv * (1 + g.pick(3)), KVHeads: hkv, HeadDim: 1 + g.pick(20), ValueDim: 1 + g.pick(20), Workers: 1 + g.pick(3)}
	c.seqs = g.pick(5)
	cuQ := g.cu(c.seqs, [...]int{3, 20, 70}[g.pick(3)])
	cuK := cuQ
	c.batch = attention.Ragged(cuQ)
	if g.pick(2) == 1 {
		cuK = g.cu(c.seqs, [...]int{3, 40, 200}[g.pick(3)])
		c.batch.CuK = cuK
	}
	if g.pick(64) == 63 {
		c.batch.CuK = append(cuK, cuK[c.seqs])
		g.valid = false
	}
	if g.pick(2) == 1 {
		c.batch.Offsets = make([]int, c.seqs)
		for b := range c.batch.Offsets {
			c.batch.Offsets[b] = g.pick(256) - 128
		}
	}
	c.mask = g.pick(4)
	c.cfg.Mask = []attention.Mask{{}, attention.Causal(), attention.Window(3, 1), attention.SinkTokens(2, 2, 0)}[c.mask]
	c.in.Q = g.tensor(cuQ, c.cfg.QueryHeads, c.cfg.HeadDim)
	c.in.K = g.tensor(cuK, hkv, c.cfg.HeadDim)
	c.in.V = g.tensor(cuK, hkv, c.cfg.ValueDim)
	c.out.O = g.tensor(cuQ, c.cfg.QueryHeads, c.cfg.ValueDim)
	if g.pick(3) > 0 {
		short := max(g.pick(32)-30, 0)
		tokens := max(cuQ[c.seqs], 0) * c.cfg.QueryHeads
		c.out.LSE = make([]float64, max(tokens-short, 0))
		g.valid = g.valid && len(c.out.LSE) == tokens
	}
	if c.seqs == 0 {
		g.sure = false // an empty batch is not looked at
	}
	return c
}

// problem is the call as the reference knows it, with random numbers.
func (c *fuzzCall) problem(seed uint64) *problem {
	cuK := c.batch.CuK
	if cuK == nil {
		cuK = c.batch.CuQ
	}
	p := newProblem(rand.New(rand.NewPCG(seed, 1)), shape{hq: c.cfg.QueryHeads, hkv: c.cfg.KVHeads, dk: c.cfg.HeadDim, dv: c.cfg.ValueDim})
	p.name = "fuzzed"
	r := p.ref
	r.CuQ, r.CuK, r.Offset, r.Masks = c.batch.CuQ, cuK, c.batch.Offsets, make([]ref.Mask, c.seqs)
	for b := range r.Masks {
		_, _, off := p.sequence(b)
		r.Masks[b] = []ref.Mask{nil, ref.Causal(off), ref.Window(off, 3, 1), ref.SinkTokens(off, 2, 2, 0)}[c.mask]
	}
	random := rand.New(rand.NewPCG(seed, 2))
	for _, x := range []attention.Tensor{c.in.Q, c.in.K, c.in.V} {
		for i := range x.Data {
			x.Data[i] = float32(random.NormFloat64())
		}
	}
	r.Q = get(r.CuQ, r.Hq, r.Dk, c.in.Q)
	r.K = get(r.CuK, r.Hkv, r.Dk, c.in.K)
	r.V = get(r.CuK, r.Hkv, r.Dv, c.in.V)
	return p
}

// addGeometries seeds a fuzzer.
func addGeometries(f *testing.F) {
	f.Add(uint64(1), []byte{})
	f.Add(uint64(2), []byte{1, 1, 7, 4, 0, 2, 1, 0, 3, 0, 9, 0, 1, 0, 2, 0, 8, 0, 0, 0, 0, 1})
	r := rand.New(rand.NewPCG(1, 1))
	for n := range 60 {
		b := make([]byte, 20+n)
		for i := range b {
			b[i] = byte(r.IntN(256))
		}
		f.Add(uint64(n), b)
	}
}

// FuzzForward: a call is accepted if and only if its geometry is right, then
// it gives what the reference does and writes nothing else; if not, the error
// is ours and nothing is written.
func FuzzForward(f *testing.F) {
	addGeometries(f)
	f.Fuzz(func(t *testing.T, seed uint64, bytes []byte) {
		c := newFuzzCall(bytes)
		const before = 12345
		fill(c.out.O.Data, before)
		fill(c.out.LSE, before)
		var p *problem
		if c.g.valid {
			p = c.problem(seed)
		}
		op, err := attention.New(c.cfg)
		require.NoError(t, err)
		err = op.Forward(c.in, c.out, c.batch)
		if err != nil {
			require.True(t, strings.HasPrefix(err.Error(), "attention: "), err)
			require.False(t, c.g.valid && c.g.sure, "refused: %v", err)
			for _, x := range c.out.O.Data {
				require.Equal(t, float32(before), x, "O is written")
			}
			for _, x := range c.out.LSE {
				require.Equal(t, float64(before), x, "LSE is written")
			}
			return
		}
		require.True(t, c.g.valid || c.seqs == 0, "accepted")
		if c.seqs == 0 || !c.g.valid {
			return
		}
		r := p.ref
		require.True(t, distinct(r.CuQ, r.Hq, r.Dv, c.out.O), "accepted: rows of O overlap")
		got := result{get(r.CuQ, r.Hq, r.Dv, c.out.O), c.out.LSE}
		checkReference(t, p, got)
		left := 0
		for _, x := range c.out.O.Data {
			if x == before {
				left++
			}
		}
		require.Equal(t, len(c.out.O.Data)-len(got.o), left, "elements of O between its rows that are as they were")
	})
}

// FuzzBackward is FuzzForward for gradients of any layout, after a forward pass
// that is accepted.
func FuzzBackward(f *testing.F) {
	addGeometries(f)
	f.Fuzz(func(t *testing.T, seed uint64, bytes []byte) {
		c := newFuzzCall(bytes)
		if !c.g.valid || c.seqs == 0 {
			return
		}
		p := c.problem(seed)
		r := p.ref
		c.out.LSE = make([]float64, r.CuQ[c.seqs]*r.Hq)
		op, err := attention.New(c.cfg)
		require.NoError(t, err)
		if op.Forward(c.in, c.out, c.batch) != nil {
			return
		}
		g := attention.Gradients{
			DO: c.g.tensor(r.CuQ, r.Hq, r.Dv), DQ: c.g.tensor(r.CuQ, r.Hq, r.Dk),
			DK: c.g.tensor(r.CuK, r.Hkv, r.Dk), DV: c.g.tensor(r.CuK, r.Hkv, r.Dv),
		}
		const before = 12345
		written := []attention.Tensor{g.DQ, g.DK, g.DV}
		for _, x := range written {
			fill(x.Data, before)
		}
		if c.g.valid {
			p.differentiable(rand.New(rand.NewPCG(seed, 3)))
			r.DLSE = nil
			put(r.CuQ, r.Hq, r.Dv, g.DO, r.DO)
			r.DO = get(r.CuQ, r.Hq, r.Dv, g.DO) // rows may overlap
		}
		if err := op.Backward(c.in, c.out, g, c.batch); err != nil {
			require.True(t, strings.HasPrefix(err.Error(), "attention: "), err)
			require.False(t, c.g.valid && c.g.sure, "refused: %v", err)
			for _, x := range written {
				for _, v := range x.Data {
					require.Equal(t, float32(before), v, "a gradient is written")
				}
			}
			return
		}
		require.True(t, c.g.valid, "accepted")
		got := gradients{dq: get(r.CuQ, r.Hq, r.Dk, g.DQ), dk: get(r.CuK, r.Hkv, r.Dk, g.DK), dv: get(r.CuK, r.Hkv, r.Dv, g.DV)}
		checkGradients(t, p, got)
		left, all := 0, -len(got.dq)-len(got.dk)-len(got.dv)
		for _, x := range written {
			for _, v := range x.Data {
				if v == before {
					left++
				}
			}
			all += len(x.Data)
		}
		require.Equal(t, all, left, "elements of gradients between their rows that are as they were")
	})
}
