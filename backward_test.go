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

// gradients is what a backward pass gives, packed.
type gradients struct {
	dq, dk, dv []float32
	dbias      [][]float32 // of a sequence, nil without bias
	dsinks     []float32
}

// differentiable gives p random gradients of O and, often, of LSE.
func (p *problem) differentiable(r *rand.Rand) *problem {
	rows := p.ref.CuQ[p.ref.Batch()] * p.ref.Hq
	p.ref.DO = random(r, rows*p.ref.Dv)
	if r.IntN(3) > 0 {
		p.ref.DLSE = random(r, rows)
	}
	return p
}

// backwardCall returns the gradients of a call with packed arrays, those it
// writes full of NaN.
func (p *problem) backwardCall() (attention.Gradients, gradients) {
	x := p.ref
	tq, tk := x.CuQ[x.Batch()], x.CuK[x.Batch()]
	fresh := func(n int) []float32 {
		s := make([]float32, n)
		fill(s, nan)
		return s
	}
	r := gradients{dq: fresh(tq * x.Hq * x.Dk), dk: fresh(tk * x.Hkv * x.Dk), dv: fresh(tk * x.Hkv * x.Dv)}
	g := attention.Gradients{
		DO: attention.Packed(x.DO, x.Hq, x.Dv), DQ: attention.Packed(r.dq, x.Hq, x.Dk),
		DK: attention.Packed(r.dk, x.Hkv, x.Dk), DV: attention.Packed(r.dv, x.Hkv, x.Dv),
	}
	if x.DLSE != nil {
		g.DLSE = widen(x.DLSE)
	}
	for _, b := range p.in.Bias {
		if b.Data != nil {
			b.Data = fresh(len(b.Data))
		}
		g.DBias, r.dbias = append(g.DBias, b), append(r.dbias, b.Data)
	}
	if p.in.Sinks != nil {
		r.dsinks = fresh(x.Hq)
		g.DSinks = r.dsinks
	}
	return g, r
}

// backwardOn computes p forward, on an operator of its own, and backward.
func (p *problem) backwardOn(t testing.TB, op *attention.Operator) gradients {
	t.Helper()
	in, out, _ := p.call()
	require.NoError(t, operator(t, p, op.Kernel(), 1).Forward(in, out, p.batch), p.name)
	g, r := p.backwardCall()
	require.NoError(t, op.Backward(in, out, g, p.batch), p.name)
	return r
}

// each calls f with all arrays of two results, by name.
func (r *gradients) each(s *gradients, f func(name string, a, b []float32)) {
	f("dQ", r.dq, s.dq)
	f("dK", r.dk, s.dk)
	f("dV", r.dv, s.dv)
	for b := range r.dbias {
		f(fmt.Sprintf("dBias of sequence %d", b), r.dbias[b], s.dbias[b])
	}
	f("dSinks", r.dsinks, s.dsinks)
}

// sameGradients holds two results to each other; a NaN is any NaN.
func sameGradients(t testing.TB, want, got gradients, what ...any) {
	t.Helper()
	want.each(&got, func(name string, a, b []float32) {
		require.Len(t, b, len(a), name)
		for i, x := range a {
			if y := b[i]; math.Float32bits(x) != math.Float32bits(y) && (x == x || y == y) {
				require.FailNow(t, "other bits", "%v: %s[%d] is %v (%#x), was %v (%#x)", what, name, i, y, math.Float32bits(y), x, math.Float32bits(x))
			}
		}
	})
}

// TestBackwardMatchesReference holds random problems to the float64 reference,
// and the kernels and numbers of workers to each other's bits.
func TestBackwardMatchesReference(t *testing.T) {
	problems, size := 150, 1_500_000
	if testing.Short() {
		problems, size = 12, 50_000
	}
	for n := range problems {
		r := rand.New(rand.NewPCG(uint64(n), 78))
		p := randomProblem(r, size).differentiable(r)
		kernels := attention.Kernels()
		got := p.backwardOn(t, operator(t, p, kernels[0], 1))
		checkGradients(t, p, got)
		for _, kernel := range kernels {
			workers := [...]int{1, 2, 3, 7}[r.IntN(4)]
			sameGradients(t, got, p.backwardOn(t, operator(t, p, kernel, workers)), p.name, kernel, workers)
		}
		if t.Failed() {
			t.Fatalf("problem %d: %s", n, p.name)
		}
	}
}

// TestBackwardOfLongSequences holds gradients that are sums over thousands of
// rows and keys to the reference.
func TestBackwardOfLongSequences(t *testing.T) {
	if testing.Short() {
		t.Skip("the reference takes long")
	}
	r := rand.New(rand.NewPCG(20, 20))
	long := newProblem(r, shape{1, 1, 32, 32, []int{2100}, []int{2100}})
	long.setMasks(func(_, _, _, off int) (string, attention.Mask, ref.Mask) {
		return "causal", attention.Causal(), ref.Causal(off)
	})
	for _, p := range []*problem{long, newProblem(r, shape{4, 2, 8, 16, []int{700}, []int{2500}}).add(r, "bias", "sinks", "dropout")} {
		p.differentiable(r)
		checkGradients(t, p, p.backwardOn(t, operator(t, p, "", 2)))
	}
}

// checkGradients holds a result to the reference, as checkReference does: the
// magnitude of an element is the sum of what makes it up, in absolute values,
// times 1 + L.
func checkGradients(t *testing.T, p *problem, got gradients) {
	t.Helper()
	want, y := ref.Backward(p.ref), plainBackward(p.ref)
	check := func(name string, got []float32, want []float64, x sums) {
		worst := 8.0
		for i := range want {
			if x.size[i] > 0 {
				worst = max(worst, 2*math.Abs(float64(x.plain[i])-want[i])/(x.size[i]*0x1p-24))
			}
		}
		for i, g := range got {
			off := math.Abs(float64(g) - want[i])
			if float64(g) != want[i] && !(off <= worst*x.size[i]*0x1p-24+math.SmallestNonzeroFloat32) && !(g != g && math.IsNaN(want[i])) {
				t.Fatalf("%s: %s[%d] is %v, must be %v: off by %.1f units, limit %.1f", p.name, name, i, g, want[i], off/(x.size[i]*0x1p-24), worst)
			}
		}
	}
	check("dQ", got.dq, want.DQ, y.dq)
	check("dK", got.dk, want.DK, y.dk)
	check("dV", got.dv, want.DV, y.dv)
	for b := range got.dbias {
		if got.dbias[b] != nil {
			check("dBias", got.dbias[b], want.DBias[b], y.dbias[b])
		}
	}
	check("dSinks", got.dsinks, want.DSinks, y.dsinks)
}

// sums are gradients by plain float32 arithmetic, and their magnitudes.
type sums struct {
	plain []float32
	size  []float64
}

func newSums(n int) sums { return sums{make([]float32, n), make([]float64, n)} }

func (s *sums) add(i int, a, b float32, magnitude float64) {
	s.plain[i] += a * b
	s.size[i] += magnitude
}

type plainGradients struct {
	dq, dk, dv, dsinks sums
	dbias              []sums
}

// plainBackward is a backward pass in float32 as one would write it, with the
// magnitudes of its results.
func plainBackward(p *ref.Problem) *plainGradients {
	tq, tk := p.CuQ[p.Batch()], p.CuK[p.Batch()]
	g := &plainGradients{
		dq: newSums(tq * p.Hq * p.Dk), dk: newSums(tk * p.Hkv * p.Dk), dv: newSums(tk * p.Hkv * p.Dv), dsinks: newSums(p.Hq),
	}
	for b := range p.Batch() {
		if p.Bias != nil {
			g.dbias = append(g.dbias, newSums(len(p.Bias[b].Data)))
		}
		for t := p.CuQ[b]; t < p.CuQ[b+1]; t++ {
			for h := range p.Hq {
				g.row(p, b, t, h)
			}
		}
	}
	return g
}

func (g *plainGradients) row(p *ref.Problem, b, t, h int) {
	x := plainLogits(p, b, t, h)
	if math.IsInf(float64(x.m), -1) {
		return
	}
	nk, i, group, r := p.CuK[b+1]-p.CuK[b], t-p.CuQ[b], p.Hq/p.Hkv, t*p.Hq+h
	logits := slices.Clone(x.p)
	for n, z := range x.p {
		x.p[n] = float32(math.Exp(float64(z - x.m)))
		x.l += x.p[n]
	}
	var sink float32
	if p.Sinks != nil {
		sink = float32(math.Exp(float64(p.Sinks[h] - x.m)))
		x.l += sink
	}
	for n := range x.p {
		x.p[n] /= x.l
	}
	prob := slices.Clone(x.p)
	for n := range x.p {
		x.p[n] = 1
	}
	x.drop(p.Dropout, b, h, i, t)
	keep, do := x.p, p.DO[r*p.Dv:][:p.Dv]
	dp, dpSize := make([]float32, len(prob)), make([]float64, len(prob))
	var delta float32
	var deltaSize float64
	for n, j := range x.keys {
		v := p.V[((p.CuK[b]+j)*p.Hkv+h/group)*p.Dv:][:p.Dv]
		for c, d := range do {
			dp[n] += d * v[c]
			dpSize[n] += math.Abs(float64(d * v[c]))
		}
		delta += prob[n] * keep[n] * dp[n]
		deltaSize += float64(prob[n]*keep[n]) * dpSize[n]
	}
	if p.DLSE != nil {
		delta -= p.DLSE[r]
		deltaSize += math.Abs(float64(p.DLSE[r]))
	}
	scale := 1 + x.largest
	if p.Sinks != nil {
		w := sink / x.l
		g.dsinks.add(h, -w, delta, scale*float64(w)*deltaSize)
	}
	q := p.Q[r*p.Dk:][:p.Dk]
	for n, j := range x.keys {
		ds := prob[n] * (dp[n]*keep[n] - delta)
		size := scale * float64(prob[n]) * (dpSize[n]*float64(keep[n]) + deltaSize)
		if p.Bias != nil && p.Bias[b].Data != nil {
			bias := &p.Bias[b]
			g.dbias[b].add((min(h, bias.Heads-1)*bias.Rows+min(i, bias.Rows-1))*nk+j, ds, 1, size)
		}
		if p.Softcap > 0 {
			if z := cappedOf(p, b, h, i, j, logits[n]); z == z { // not of a bias of -Inf
				th := z / float32(p.Softcap)
				ds *= 1 - th*th
			}
		}
		ds *= float32(p.Scale)
		size *= math.Abs(p.Scale)
		kv := (p.CuK[b]+j)*p.Hkv + h/group
		for c := range q {
			k := p.K[kv*p.Dk+c]
			g.dq.add(r*p.Dk+c, ds, k, size*math.Abs(float64(k)))
			g.dk.add(kv*p.Dk+c, ds, q[c], size*math.Abs(float64(q[c])))
		}
		a := prob[n] * keep[n]
		for c, d := range do {
			g.dv.add(kv*p.Dv+c, a, d, scale*math.Abs(float64(a*d)))
		}
	}
}

// cappedOf is a logit without ALiBi and bias, which were added to z.
func cappedOf(p *ref.Problem, b, h, i, j int, z float32) float32 {
	nq, nk := p.CuQ[b+1]-p.CuQ[b], p.CuK[b+1]-p.CuK[b]
	off := nk - nq
	if p.Offset != nil {
		off = p.Offset[b]
	}
	if p.Bias != nil && p.Bias[b].Data != nil {
		bias := &p.Bias[b]
		z -= bias.Data[(min(h, bias.Heads-1)*bias.Rows+min(i, bias.Rows-1))*nk+j]
	}
	if p.Slopes != nil {
		z += p.Slopes[h] * float32(math.Abs(float64(i+off-j)))
	}
	return z
}

// gradientsOf is sequence b of a result, without DSinks, which is a sum over
// all.
func (p *problem) gradientsOf(r gradients, b int) gradients {
	x := p.ref
	part := gradients{
		dq: r.dq[x.CuQ[b]*x.Hq*x.Dk : x.CuQ[b+1]*x.Hq*x.Dk],
		dk: r.dk[x.CuK[b]*x.Hkv*x.Dk : x.CuK[b+1]*x.Hkv*x.Dk],
		dv: r.dv[x.CuK[b]*x.Hkv*x.Dv : x.CuK[b+1]*x.Hkv*x.Dv],
	}
	if r.dbias != nil {
		part.dbias = r.dbias[b : b+1]
	}
	return part
}

// TestSameBitsBackward: the same inputs give the same gradients, whatever
// computes them.
func TestSameBitsBackward(t *testing.T) {
	r := rand.New(rand.NewPCG(21, 21))
	for _, p := range bitProblems(r) {
		p.differentiable(r)
		want := p.backwardOn(t, operator(t, p, "generic", 1))
		perKernel(t, func(t *testing.T, kernel string) {
			for _, workers := range []int{1, 2, 3, 7} {
				op := operator(t, p, kernel, workers)
				for range 2 { // the second call finds used scratch
					sameGradients(t, want, p.backwardOn(t, op), p.name, workers, "workers")
				}
			}
			op := operator(t, p, kernel, 2)
			for n, l := range layouts {
				if p.ref.Batch() == 1 && n != 2 && n != 5 {
					continue // long, and no different from a batch
				}
				other := layouts[(n+3)%len(layouts)]
				sameGradients(t, want, p.backwardLaidOut(t, op, l, other, nan), p.name, l.name)
			}
			for b := range p.ref.Batch() {
				got := p.choose([]int{b})
				alone := got.backwardOn(t, operator(t, got, kernel, 1))
				alone.dsinks = nil
				sameGradients(t, p.gradientsOf(want, b), alone, p.name, "sequence", b, "alone")
			}
			other := p.permute()
			got := other.backwardOn(t, operator(t, other, kernel, 3))
			for n, b := range p.order() {
				sameGradients(t, p.gradientsOf(want, b), other.gradientsOf(got, n), p.name, "sequence", b, "in another order")
			}
		})
	}
}

// backwardLaidOut computes p with its tensors laid out, gap in between, and
// verifies that nothing but the rows of gradients is written.
func (p *problem) backwardLaidOut(t *testing.T, op *attention.Operator, a, b layout, gap float32) gradients {
	t.Helper()
	r := p.ref
	in, out, got := p.call()
	require.NoError(t, op.Forward(in, out, p.batch), p.name)
	in.Q, in.K = a.place(r.CuQ, r.Hq, r.Dk, p.q, gap), b.place(r.CuK, r.Hkv, r.Dk, p.k, gap)
	in.V, out.O = a.place(r.CuK, r.Hkv, r.Dv, p.v, gap), b.place(r.CuQ, r.Hq, r.Dv, got.o, gap)
	g, grads := p.backwardCall()
	const untouched = 12345
	g.DO = a.place(r.CuQ, r.Hq, r.Dv, r.DO, gap)
	g.DQ, g.DK = b.place(r.CuQ, r.Hq, r.Dk, grads.dq, untouched), a.place(r.CuK, r.Hkv, r.Dk, grads.dk, untouched)
	g.DV = b.place(r.CuK, r.Hkv, r.Dv, grads.dv, untouched)
	require.NoError(t, op.Backward(in, out, g, p.batch), p.name)
	grads.dq, grads.dk, grads.dv = get(r.CuQ, r.Hq, r.Dk, g.DQ), get(r.CuK, r.Hkv, r.Dk, g.DK), get(r.CuK, r.Hkv, r.Dv, g.DV)
	left, all := 0, 0
	for _, x := range [][]float32{g.DQ.Data, g.DK.Data, g.DV.Data} {
		for _, v := range x {
			if v == untouched {
				left++
			}
		}
		all += len(x)
	}
	require.Equal(t, all-len(grads.dq)-len(grads.dk)-len(grads.dv), left, "%s: elements between the rows of gradients that are as they were", p.name)
	return grads
}

// TestUnwantedGradients: what is not wanted changes nothing of what is.
func TestUnwantedGradients(t *testing.T) {
	r := rand.New(rand.NewPCG(22, 22))
	for _, p := range bitProblems(r) {
		if p.ref.CuQ[p.ref.Batch()] > 400 {
			continue
		}
		p.differentiable(r)
		perKernel(t, func(t *testing.T, kernel string) {
			op := operator(t, p, kernel, 2)
			want := p.backwardOn(t, op)
			in, out, _ := p.call()
			require.NoError(t, op.Forward(in, out, p.batch))
			for wanted := range 32 {
				g, got := p.backwardCall()
				expect := want
				if wanted&1 == 0 {
					g.DQ.Data, got.dq, expect.dq = nil, nil, nil
				}
				if wanted&2 == 0 {
					g.DK.Data, got.dk, expect.dk = nil, nil, nil
				}
				if wanted&4 == 0 {
					g.DV.Data, got.dv, expect.dv = nil, nil, nil
				}
				if wanted&8 == 0 {
					g.DBias, got.dbias, expect.dbias = nil, nil, nil
				}
				if wanted&16 == 0 {
					g.DSinks, got.dsinks, expect.dsinks = nil, nil, nil
				}
				require.NoError(t, op.Backward(in, out, g, p.batch))
				sameGradients(t, expect, got, p.name, "wanted", wanted)
			}
		})
	}
}

// TestBackwardHidesWhatIsHidden: NaN and infinities in a row change the
// gradients of those alone that see it or that it sees.
func TestBackwardHidesWhatIsHidden(t *testing.T) {
	perKernel(t, func(t *testing.T, kernel string) {
		r := rand.New(rand.NewPCG(23, 23))
		for _, p := range hiddenProblems(t) {
			p.differentiable(r)
			op := operator(t, p, kernel, 2)
			want := p.backwardOn(t, op)
			for range 6 {
				p.spoilAndCheck(t, r, op, want)
			}
		}
	})
}

// spoilAndCheck puts something that is not finite into one element of one
// input. Only rows that see, or are, the row of that element may change, and
// the keys that those see.
func (p *problem) spoilAndCheck(t *testing.T, r *rand.Rand, op *attention.Operator, want gradients) {
	t.Helper()
	x, c := *p.ref, *p
	c.ref = &x
	bad := [...]float32{nan, float32(math.Inf(1)), float32(math.Inf(-1)), math.MaxFloat32}[r.IntN(4)]
	spoil := func(data []float32, row, dim int) []float32 {
		data = slices.Clone(data)
		data[row*dim+r.IntN(dim)] = bad
		return data
	}
	key, row := -1, -1
	what := r.IntN(4)
	switch n, kv := r.IntN(x.CuK[x.Batch()]*x.Hkv), r.IntN(x.CuQ[x.Batch()]*x.Hq); what {
	case 0:
		key, c.k = n, spoil(p.k, n, x.Dk)
	case 1:
		key, c.v = n, spoil(p.v, n, x.Dv)
	case 2:
		row, c.q = kv, spoil(p.q, kv, x.Dk)
	case 3:
		row, x.DO = kv, spoil(x.DO, kv, x.Dv)
	}
	got := c.backwardOn(t, op)
	rows, keys := make([]bool, x.CuQ[x.Batch()]*x.Hq), make([]bool, x.CuK[x.Batch()]*x.Hkv)
	p.eachQuery(func(b, h, i, n int) {
		kv := h / (x.Hq / x.Hkv)
		sees := func(k int) bool {
			j := k/x.Hkv - x.CuK[b]
			return k%x.Hkv == kv && j >= 0 && j < x.CuK[b+1]-x.CuK[b] && p.visible(b, h, i, j)
		}
		any := false
		for j := range x.CuK[b+1] - x.CuK[b] {
			any = any || p.visible(b, h, i, j)
		}
		if !any || n != row && (key < 0 || !sees(key)) {
			return
		}
		rows[n] = true
		for j := range x.CuK[b+1] - x.CuK[b] {
			k := (x.CuK[b]+j)*x.Hkv + kv
			keys[k] = keys[k] || sees(k)
		}
	})
	for n, touched := range rows {
		if !touched {
			sameGradients(t, gradients{dq: want.dq[n*x.Dk : (n+1)*x.Dk]}, gradients{dq: got.dq[n*x.Dk : (n+1)*x.Dk]},
				p.name, bad, "in input", what, "of row", row, "or key", key, "in dQ of row", n)
		}
	}
	for n, touched := range keys {
		if !touched {
			sameGradients(t, gradients{dk: want.dk[n*x.Dk : (n+1)*x.Dk], dv: want.dv[n*x.Dv : (n+1)*x.Dv]},
				gradients{dk: got.dk[n*x.Dk : (n+1)*x.Dk], dv: got.dv[n*x.Dv : (n+1)*x.Dv]},
				p.name, bad, "in input", what, "of row", row, "or key", key, "in gradients of key", n)
		}
	}
}

// TestGradientsOfNothing: rows that see nothing, keys that nobody sees, and
// sequences without queries have gradients of exactly zero.
func TestGradientsOfNothing(t *testing.T) {
	perKernel(t, func(t *testing.T, kernel string) {
		r := rand.New(rand.NewPCG(24, 24))
		for _, s := range []shape{
			{2, 1, 4, 5, []int{40, 1, 0}, []int{0, 0, 3}}, {2, 1, 4, 5, []int{40, 1, 0}, []int{30, 1100, 700}},
		} {
			p := newProblem(r, s).differentiable(r)
			p.cfg.Mask = attention.Func(func(_, _, _, _ int) bool { return false }, nil)
			got := p.backwardOn(t, operator(t, p, kernel, 2))
			zero := got
			zero.dq, zero.dk, zero.dv = make([]float32, len(got.dq)), make([]float32, len(got.dk)), make([]float32, len(got.dv))
			sameGradients(t, zero, got)
		}
	})
}

// TestBiasOfMinusInfinityHides: gradients are those under a mask.
func TestBiasOfMinusInfinityHides(t *testing.T) {
	perKernel(t, func(t *testing.T, kernel string) {
		r := rand.New(rand.NewPCG(25, 25))
		for range 4 {
			p := newProblem(r, shape{2, 1, 8, 8, []int{40, 3}, []int{150, 1100}}).differentiable(r)
			p.setMasks(func(_, nq, nk, off int) (string, attention.Mask, ref.Mask) { return randomMask(r, 2, nq, nk, off) })
			p.in.Bias = make([]attention.Bias, 2)
			for b := range p.in.Bias {
				nq, nk, _ := p.sequence(b)
				p.in.Bias[b] = attention.Bias{Data: random(r, 2*nq*nk), HeadStride: nq * nk, QueryStride: nk}
			}
			want := p.backwardOn(t, operator(t, p, kernel, 1))
			p.eachQuery(func(b, h, i, _ int) {
				for j := range p.ref.CuK[b+1] - p.ref.CuK[b] {
					if x := &p.in.Bias[b]; !p.visible(b, h, i, j) {
						x.Data[h*x.HeadStride+i*x.QueryStride+j] = float32(math.Inf(-1))
					}
				}
			})
			p.batch.Masks = nil
			sameGradients(t, want, p.backwardOn(t, operator(t, p, kernel, 1)), p.name)
		}
	})
}

// TestBackwardOfOddGroups: heads that share a key head in numbers that do not
// divide a group of rows, so that the rows of one query are parts of two groups
// and of two tasks.
func TestBackwardOfOddGroups(t *testing.T) {
	r := rand.New(rand.NewPCG(26, 26))
	groups := []int{5, 7, 97, 100}
	if testing.Short() {
		groups = []int{7, 100}
	}
	for _, group := range groups {
		for _, hkv := range []int{1, 2} {
			for _, nq := range []int{1, 20, 25} {
				p := newProblem(r, shape{group * hkv, hkv, 5, 3, []int{nq, 0, 3}, []int{nq + 30, 4, 300}}).differentiable(r)
				p.setMasks(func(_, nq, nk, off int) (string, attention.Mask, ref.Mask) {
					return randomMask(r, group*hkv, nq, nk, off)
				})
				p.add(r, "bias", "sinks", "dropout")
				want := p.backwardOn(t, operator(t, p, "", 1))
				checkGradients(t, p, want)
				for _, workers := range []int{2, 3, 8} {
					sameGradients(t, want, p.backwardOn(t, operator(t, p, "", workers)), p.name, workers, "workers")
				}
			}
		}
	}
}

// TestLSEOfAnotherProblem: an LSE that does not belong to the inputs gives
// nonsense, but the same nonsense on every kernel.
func TestLSEOfAnotherProblem(t *testing.T) {
	r := rand.New(rand.NewPCG(27, 27))
	for range 20 {
		p := newProblem(r, shape{4, 2, 9, 5, []int{40, 3}, []int{150, 60}}).differentiable(r)
		p.setMasks(func(_, nq, nk, off int) (string, attention.Mask, ref.Mask) { return randomMask(r, 4, nq, nk, off) })
		in, out, _ := p.call()
		require.NoError(t, operator(t, p, "", 1).Forward(in, out, p.batch))
		for i := range out.LSE {
			out.LSE[i] = []float64{math.NaN(), math.Inf(1), math.Inf(-1), 1e300, -1e300, -50, 50, 0, out.LSE[i]}[r.IntN(9)]
		}
		var want *gradients
		for _, kernel := range attention.Kernels() {
			g, got := p.backwardCall()
			require.NoError(t, operator(t, p, kernel, 2).Backward(in, out, g, p.batch))
			if want == nil {
				want = &got
			}
			sameGradients(t, *want, got, p.name, kernel)
		}
	}
}

// TestSoftcapHidesNaN: the gradient of a softcap is taken from the logit, which
// is NaN where a hidden key or a query that sees nothing is.
func TestSoftcapHidesNaN(t *testing.T) {
	perKernel(t, func(t *testing.T, kernel string) {
		r := rand.New(rand.NewPCG(28, 28))
		p := newProblem(r, shape{1, 1, 4, 4, []int{4}, []int{4}}).differentiable(r)
		p.ref.Softcap, p.cfg.Softcap = 5, 5
		p.cfg.Mask = attention.Func(func(_, _, i, j int) bool { return j != 2 && i != 3 }, nil)
		want := p.backwardOn(t, operator(t, p, kernel, 1))
		fill(p.k[2*4:3*4], nan)
		fill(p.v[2*4:3*4], nan)
		fill(p.q[3*4:], nan)
		fill(p.ref.DO[3*4:], nan)
		sameGradients(t, want, p.backwardOn(t, operator(t, p, kernel, 1)))
	})
}
