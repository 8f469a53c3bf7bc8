package attention_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-091431b3/attention"
	"github.com/seed-091431b3/attention/ref"
)

// TestForwardMatchesReference holds random problems to the float64 reference,
// and the kernels and numbers of workers to each other's bits.
func TestForwardMatchesReference(t *testing.T) {
	problems, size := 150, 4_000_000
	if testing.Short() {
		problems, size = 12, 100_000
	}
	for n := range problems {
		r := rand.New(rand.NewPCG(uint64(n), 77))
		p := randomProblem(r, size)
		kernels := attention.Kernels()
		got := p.run(t, kernels[0], 1)
		checkReference(t, p, got)
		for _, kernel := range kernels {
			workers := [...]int{1, 2, 3, 7}[r.IntN(4)]
			sameBits(t, got, p.run(t, kernel, workers), p.name, kernel, workers)
		}
		if t.Failed() {
			t.Fatalf("problem %d: %s", n, p.name)
		}
	}
}

// checkReference holds a result to the reference.
//
// The unit of the error of an element is 2^-24 times its magnitude, which is
//
//	O:   (1 + L) · Σ_j A_ij·|v_jc|
//	LSE: 1 + L
//
// where L is the largest sum of absolute values that makes up a logit of the
// row: a logit is known to 2^-24·L at best, and errs P by as much. The worst
// error of a problem in these units may be twice that of plain float32
// attention on the same problem, or 8. An element without magnitude is exact.
func checkReference(t *testing.T, p *problem, got result) {
	t.Helper()
	want := ref.Forward(p.ref)
	y := newYardstick(p.ref, want)
	check := func(name string, i int, got, want, unit, limit float64) {
		switch {
		case got == want, math.IsNaN(got) && math.IsNaN(want):
		case math.Abs(got-want) <= limit*unit+math.SmallestNonzeroFloat32:
		default:
			t.Errorf("%s: %s[%d] is %v, must be %v: off by %.1f units, limit %.1f", p.name, name, i, got, want, math.Abs(got-want)/unit, limit)
			t.FailNow()
		}
	}
	for i, g := range got.o {
		check("O", i, float64(g), want.O[i], y.unitO[i], max(8, 2*y.plainO))
	}
	for i, g := range got.lse {
		check("LSE", i, g, want.LSE[i], y.unitLSE[i], max(8, 2*y.plainLSE))
	}
}

// yardstick is what errors are measured by.
type yardstick struct {
	unitO, unitLSE   []float64
	plainO, plainLSE float64 // worst error of plain float32 attention, in units
}

func newYardstick(p *ref.Problem, want *ref.Output) *yardstick {
	y := &yardstick{unitO: make([]float64, len(want.O)), unitLSE: make([]float64, len(want.LSE))}
	for b := range p.Batch() {
		for t := p.CuQ[b]; t < p.CuQ[b+1]; t++ {
			for h := range p.Hq {
				y.row(p, want, b, t, h)
			}
		}
	}
	return y
}

// plainRow is one row in plain float32: the visible keys, their logits and then
// probabilities before division by l, and what the logits are made of at most.
type plainRow struct {
	keys    []int
	p       []float32
	m, l    float32
	largest float64
}

// row takes in one row: all logits, their softmax, the sum of the values.
func (y *yardstick) row(p *ref.Problem, want *ref.Output, b, t, h int) {
	const u = 1.0 / (1 << 24)
	x, r := plainLogits(p, b, t, h), t*p.Hq+h
	y.unitLSE[r] = u * (1 + x.largest)
	if math.IsInf(float64(x.m), -1) {
		return
	}
	for n, z := range x.p {
		x.p[n] = float32(math.Exp(float64(z - x.m)))
		x.l += x.p[n]
	}
	if p.Sinks != nil {
		x.l += float32(math.Exp(float64(p.Sinks[h] - x.m)))
	}
	y.plainLSE = max(y.plainLSE, math.Abs(float64(x.m)+math.Log(float64(x.l))-want.LSE[r])/y.unitLSE[r])
	x.drop(p.Dropout, b, h, t-p.CuQ[b], t)
	for c := range p.Dv {
		var o float32
		var size float64
		for n, j := range x.keys {
			v := p.V[((p.CuK[b]+j)*p.Hkv+h/(p.Hq/p.Hkv))*p.Dv+c]
			o += x.p[n] * v
			size += math.Abs(float64(x.p[n] * v))
		}
		e := r*p.Dv + c
		y.unitO[e] = u * (1 + x.largest) * size / float64(x.l)
		if y.unitO[e] > 0 {
			y.plainO = max(y.plainO, math.Abs(float64(o/x.l)-want.O[e])/y.unitO[e])
		}
	}
}

func plainLogits(p *ref.Problem, b, t, h int) plainRow {
	nq, nk, i := p.CuQ[b+1]-p.CuQ[b], p.CuK[b+1]-p.CuK[b], t-p.CuQ[b]
	off := nk - nq
	if p.Offset != nil {
		off = p.Offset[b]
	}
	x := plainRow{m: float32(math.Inf(-1))}
	if p.Sinks != nil {
		x.m = p.Sinks[h]
		x.largest = math.Abs(float64(x.m))
	}
	q := p.Q[(t*p.Hq+h)*p.Dk:][:p.Dk]
	for j := range nk {
		if p.Masks[b] != nil && !p.Masks[b](b, h, i, j) {
			continue
		}
		var z float32
		var size float64
		for c, k := range p.K[((p.CuK[b]+j)*p.Hkv+h/(p.Hq/p.Hkv))*p.Dk:][:p.Dk] {
			z += q[c] * k
			size += math.Abs(float64(q[c] * k))
		}
		z *= float32(p.Scale)
		size *= math.Abs(p.Scale)
		if p.Softcap > 0 {
			z = float32(p.Softcap) * float32(math.Tanh(float64(z/float32(p.Softcap))))
		}
		if p.Slopes != nil {
			d := p.Slopes[h] * float32(math.Abs(float64(i+off-j)))
			z -= d
			size += math.Abs(float64(d))
		}
		if p.Bias != nil && p.Bias[b].Data != nil {
			bias := &p.Bias[b]
			v := bias.Data[(min(h, bias.Heads-1)*bias.Rows+min(i, bias.Rows-1))*nk+j]
			z += v
			if !math.IsInf(float64(v), 0) {
				size += math.Abs(float64(v))
			}
		}
		x.keys, x.p = append(x.keys, j), append(x.p, z)
		x.m, x.largest = max(x.m, z), max(x.largest, size)
	}
	return x
}

// drop applies dropout to query i, which is token t.
func (x *plainRow) drop(d *ref.Dropout, b, h, i, t int) {
	if d == nil {
		return
	}
	rate, id := d.Rate, uint64(b)
	if d.Rates != nil {
		rate = float64(d.Rates[t])
	}
	if d.IDs != nil {
		id = d.IDs[b]
	}
	for n, j := range x.keys {
		if ref.Kept(d.Seed, id, h, i, j, rate) {
			x.p[n] *= float32(1 / (1 - rate))
		} else {
			x.p[n] = 0
		}
	}
}

// sameBits holds two results to each other; a NaN is any NaN.
func sameBits(t testing.TB, want, got result, what ...any) {
	t.Helper()
	for i, a := range want.o {
		if b := got.o[i]; math.Float32bits(a) != math.Float32bits(b) && (a == a || b == b) {
			require.FailNow(t, "other bits", "%v: O[%d] is %v (%#x), was %v (%#x)", what, i, b, math.Float32bits(b), a, math.Float32bits(a))
		}
	}
	for i, a := range want.lse {
		if b := got.lse[i]; math.Float64bits(a) != math.Float64bits(b) && (a == a || b == b) {
			require.FailNow(t, "other bits", "%v: LSE[%d] is %v, was %v", what, i, b, a)
		}
	}
	assert.Len(t, got.o, len(want.o))
	assert.Len(t, got.lse, len(want.lse))
}

// TestExtremeScales: any finite scale is right where the logits are ordinary
// numbers, and so are the gradients.
func TestExtremeScales(t *testing.T) {
	perKernel(t, func(t *testing.T, kernel string) {
		r := rand.New(rand.NewPCG(14, 14))
		for _, x := range []struct {
			scale float64
			q, k  float32
		}{
			{1e31, 1e8, 0}, {1e60, 1e-30, 1e-30}, {1e40, 1e-20, 1e-20}, {-1e40, 1e-20, 1e-20}, {1e-54, 1e27, 1e27},
			{1e-29, 1e15, 1e14}, {-1e-33, 1e17, 1e16}, {1e30, 1e-15, 1e-15}, {0, 1, 1}, {1e308, 0, 1},
		} {
			p := newProblem(r, shape{1, 1, 1, 1, []int{3}, []int{5}}).differentiable(r)
			for i := range p.q {
				p.q[i] = x.q
			}
			for j := range p.k {
				p.k[j] = x.k * float32(j)
			}
			p.ref.Scale = x.scale
			p.cfg.Scale = &p.ref.Scale
			got, want := p.run(t, kernel, 1), ref.Forward(p.ref)
			near := func(name string, got, want float64) {
				t.Helper()
				if d := math.Abs(got - want); !(d <= 1e-5*math.Abs(want)+1e-6) && math.Abs(want) < math.MaxFloat32 {
					t.Errorf("scale %g, q %g, k %g: %s is %v, must be %v", x.scale, x.q, x.k, name, got, want)
				}
			}
			for i, o := range got.o {
				near("O", float64(o), want.O[i])
				near("LSE", got.lse[i], want.LSE[i])
			}
			g, y := p.backwardOn(t, operator(t, p, kernel, 1)), ref.Backward(p.ref)
			for i := range g.dq {
				near("dQ", float64(g.dq[i]), y.DQ[i])
			}
			for j := range g.dk {
				near("dV", float64(g.dv[j]), y.DV[j])
				if math.Abs(y.DK[j]) > 1e-4*math.Abs(x.scale*float64(x.q)) { // else it is what cancellation leaves
					near("dK", float64(g.dk[j]), y.DK[j])
				}
			}
		}
	})
}
