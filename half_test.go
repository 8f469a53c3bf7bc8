package attention_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-091431b3/attention"
	"github.com/seed-091431b3/attention/kernel"
)

// inFormat is a float32 tensor in a format, to which it is rounded.
func inFormat(f attention.Format, x attention.Tensor) attention.Tensor {
	data := x.Data
	switch f {
	case attention.FormatBFloat16:
		x.Data, x.BF16 = nil, make([]attention.BFloat16, len(data))
		attention.Narrow(x.BF16, data)
	case attention.FormatFloat16:
		x.Data, x.F16 = nil, make([]attention.Float16, len(data))
		attention.Narrow(x.F16, data)
	}
	return x
}

// inFloat32 is the inverse of inFormat.
func inFloat32(x attention.Tensor) attention.Tensor {
	switch {
	case x.BF16 != nil:
		x.Data = make([]float32, len(x.BF16))
		attention.Widen(x.Data, x.BF16)
	case x.F16 != nil:
		x.Data = make([]float32, len(x.F16))
		attention.Widen(x.Data, x.F16)
	}
	x.BF16, x.F16 = nil, nil
	return x
}

// half is p with Q, K and V rounded to formats.
func (p *problem) half(q, k, v attention.Format) *problem {
	h := *p
	h.q, h.k, h.v = stored(q, p.q), stored(k, p.k), stored(v, p.v)
	return &h
}

// halfProblems are problems of all kinds, and weird values that masks hide.
func halfProblems(t *testing.T, r *rand.Rand) []*problem {
	problems := append(bitProblems(r), hiddenProblems(t)...)
	rounds := 60
	if testing.Short() {
		rounds = 4
	}
	for range rounds {
		problems = append(problems, randomProblem(r, 200_000))
	}
	return problems
}

// TestStoredTensors: Q, K, V and O in any formats and layouts give the bits of
// float32 with the same numbers, and O rounded once.
func TestStoredTensors(t *testing.T) {
	perKernel(t, func(t *testing.T, kernel string) {
		r := rand.New(rand.NewPCG(61, 61))
		format := func() attention.Format { return formats[r.IntN(3)] }
		for n, p := range halfProblems(t, r) {
			fq, fk, fv, fo := format(), format(), format(), format()
			p := p.half(fq, fk, fv)
			want := p.run(t, kernel, 1)
			l := layouts[n%len(layouts)]
			x := p.ref
			in, out, got := p.call()
			in.Q = inFormat(fq, l.place(x.CuQ, x.Hq, x.Dk, p.q, nan))
			in.K = inFormat(fk, l.place(x.CuK, x.Hkv, x.Dk, p.k, nan))
			in.V = inFormat(fv, l.place(x.CuK, x.Hkv, x.Dv, p.v, nan))
			const untouched = 12352 // exact in all formats
			out.O = inFormat(fo, l.place(x.CuQ, x.Hq, x.Dv, got.o, untouched))
			op := operator(t, p, kernel, 1+r.IntN(3))
			require.NoError(t, op.Forward(in, out, p.batch), p.name)
			o := inFloat32(out.O)
			got.o = get(x.CuQ, x.Hq, x.Dv, o)
			want.o = stored(fo, want.o)
			sameBits(t, want, got, p.name, l.name, "Q, K, V, O in", fq, fk, fv, fo)
			left := 0
			for _, v := range o.Data {
				if v == untouched {
					left++
				}
			}
			require.Equal(t, len(o.Data)-len(got.o), left, "%s: elements of O between its rows that are as they were", p.name)
		}
	})
}

// TestStoredTensorsBackward: the gradients are those of the numbers that the
// tensors hold.
func TestStoredTensorsBackward(t *testing.T) {
	perKernel(t, func(t *testing.T, kernel string) {
		r := rand.New(rand.NewPCG(62, 62))
		format := func() attention.Format { return formats[r.IntN(3)] }
		for _, p := range halfProblems(t, r) {
			fq, fk, fv, fo, fdo := format(), format(), format(), format(), format()
			p := p.half(fq, fk, fv).differentiable(r)
			op := operator(t, p, kernel, 1+r.IntN(3))
			in, out, _ := p.call()
			require.NoError(t, op.Forward(in, out, p.batch), p.name)
			copy(out.O.Data, stored(fo, out.O.Data))
			g, want := p.backwardCall()
			copy(g.DO.Data, stored(fdo, g.DO.Data))
			require.NoError(t, op.Backward(in, out, g, p.batch), p.name)

			h, got := p.backwardCall()
			in.Q, in.K, in.V, out.O = inFormat(fq, in.Q), inFormat(fk, in.K), inFormat(fv, in.V), inFormat(fo, out.O)
			h.DO = inFormat(fdo, g.DO)
			require.NoError(t, op.Backward(in, out, h, p.batch), p.name)
			sameGradients(t, want, got, p.name, "Q, K, V, O, DO in", fq, fk, fv, fo, fdo)
		}
	})
}

// TestStoredTensorsInCache: what is appended to a cache of any format is what the
// tensors hold, rounded once.
func TestStoredTensorsInCache(t *testing.T) {
	r := rand.New(rand.NewPCG(63, 63))
	p := newProblem(r, shape{4, 2, 19, 33, []int{1}, []int{70}})
	op := operator(t, p, "", 1)
	for _, f := range formats {
		for _, from := range formats {
			h := p.half(from, from, from)
			in, out, got := h.call()
			cache, err := attention.NewCache(attention.CacheConfig{KVHeads: 2, HeadDim: 19, ValueDim: 33, Pages: 1, Format: f})
			require.NoError(t, err)
			s := cache.NewSequence()
			for at := 0; at < 70; {
				n := min(1+r.IntN(30), 70-at)
				k, v := in.K, in.V
				k.Data, v.Data = k.Data[at*k.TokenStride:], v.Data[at*v.TokenStride:]
				require.NoError(t, s.Append(inFormat(from, k), inFormat(from, v), n))
				at += n
			}
			in.Q, in.K, in.V = inFormat(from, in.Q), attention.Tensor{}, attention.Tensor{}
			require.NoError(t, op.ForwardCached(in, out, attention.Ragged([]int{0, 1}), []*attention.CachedSequence{s}))
			want := h.stored(f)
			sameBits(t, want.run(t, "", 1), got, "from", from, "to", f)
		}
	}
}

// TestStoredTensorErrors: two slices, gradients of 16 bits and what is too short
// are named.
func TestStoredTensorErrors(t *testing.T) {
	op, err := attention.New(attention.Config{QueryHeads: 2, HeadDim: 4})
	require.NoError(t, err)
	good := func() (attention.Inputs, attention.Outputs) {
		x := func() attention.Tensor { return attention.Packed(make([]attention.BFloat16, 16), 2, 4) }
		return attention.Inputs{Q: x(), K: x(), V: x()}, attention.Outputs{O: x(), LSE: make([]float64, 4)}
	}
	batch := attention.Ragged([]int{0, 2})
	in, out := good()
	require.NoError(t, op.Forward(in, out, batch))
	in.K.Data = make([]float32, 16)
	requireSays(t, op.Forward(in, out, batch), []string{"K", "16 elements of Data", "16 of BF16", "nil"})
	in, out = good()
	out.O.F16 = make([]attention.Float16, 3)
	requireSays(t, op.Forward(in, out, batch), []string{"O", "3 of F16"})
	in, out = good()
	in.V.BF16 = in.V.BF16[:15]
	requireSays(t, op.Forward(in, out, batch), []string{"V", "15", "16"})
	in, out = good()
	out.O.BF16 = in.Q.BF16
	requireSays(t, op.Forward(in, out, batch), []string{"O", "overlaps", "Q"})
	in, out = good()
	g := attention.Gradients{DO: out.O, DK: attention.Packed(make([]attention.Float16, 16), 2, 4)}
	requireSays(t, op.Backward(in, out, g, batch), []string{"DK", "16 bits", "float32"})
}

// TestStoredTensorsAllocateNothing, once a call of the size has been.
func TestStoredTensorsAllocateNothing(t *testing.T) {
	r := rand.New(rand.NewPCG(64, 64))
	p := newProblem(r, shape{4, 2, 24, 40, []int{200, 3}, []int{300, 70}}).differentiable(r)
	for workers := 1; workers <= 2; workers++ {
		op := operator(t, p, "", workers)
		in, out, _ := p.call()
		g, _ := p.backwardCall()
		f := attention.FormatBFloat16
		in.Q, in.K, in.V, out.O, g.DO = inFormat(f, in.Q), inFormat(f, in.K), inFormat(f, in.V), inFormat(f, out.O), inFormat(f, g.DO)
		step := func() {
			if err := errorOf(op.Forward(in, out, p.batch), op.Backward(in, out, g, p.batch)); err != nil {
				t.Fatal(err)
			}
		}
		step()
		assert.Zero(t, testing.AllocsPerRun(10, step), "%d workers", workers)
	}
}

// TestConversions ties the public conversions, of one number and of many, to
// those of the package kernel, which are tested there.
func TestConversions(t *testing.T) {
	for _, n := range []int{0, 1, 7, 255, 256, 257, 1 << 16} {
		bf, f16 := make([]attention.BFloat16, n), make([]attention.Float16, n)
		for i := range n {
			bf[i], f16[i] = attention.BFloat16(i), attention.Float16(i)
		}
		a, b := make([]float32, n), make([]float32, n+1)
		require.Equal(t, n, attention.Widen(a, bf))
		require.Equal(t, n, attention.Widen(b, f16))
		back, back16 := make([]attention.BFloat16, n+3), make([]attention.Float16, n)
		require.Equal(t, n, attention.Narrow(back, a))
		require.Equal(t, n, attention.Narrow(back16, b))
		for i := range n {
			for _, x := range []struct{ want, one, many float32 }{
				{kernel.BFloat16.Widen32(uint16(i)), bf[i].Float32(), a[i]},
				{kernel.Float16.Widen32(uint16(i)), f16[i].Float32(), b[i]},
			} {
				if x.want != x.want {
					require.True(t, x.one != x.one && x.many != x.many, "%#x", i)
					continue
				}
				require.Equal(t, fmt.Sprint(math.Float32bits(x.want)), fmt.Sprint(math.Float32bits(x.one)), "%#x", i)
				require.Equal(t, math.Float32bits(x.want), math.Float32bits(x.many), "%#x", i)
			}
			if a[i] == a[i] {
				require.Equal(t, bf[i], back[i])
				require.Equal(t, bf[i], attention.ToBFloat16(a[i]))
			}
			if b[i] == b[i] {
				require.Equal(t, f16[i], back16[i])
				require.Equal(t, f16[i], attention.ToFloat16(b[i]))
			}
		}
	}
	require.Equal(t, float32(math.Inf(1)), attention.ToFloat16(65520).Float32())
	require.Equal(t, float32(65504), attention.ToFloat16(65519.996).Float32())
}
