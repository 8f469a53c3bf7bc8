package ref_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/seed-091431b3/attention/ref"
)

// Inputs of the gradient tests are multiples of grid, and so are their
// neighbours: float32 holds all of them exactly. step is the distance of the
// central difference, whose error is of the order of step^4.
const (
	grid = 1.0 / (1 << 12)
	step = 1.0 / (1 << 7)
)

// onGrid returns n random multiples of grid in [-1, 1).
func onGrid(rng *rand.Rand, n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(rng.IntN(2<<12)-1<<12) * grid
	}
	return x
}

// allFeatures returns a small random problem with everything in force: grouped
// heads, different widths, empty sequences, rows that see nothing, softcap,
// ALiBi, all broadcasts of bias, sinks, dropout with a rate for each row, and
// gradients of O and LSE.
func allFeatures(rng *rand.Rand, sinks bool) *ref.Problem {
	const hq, hkv, dk, dv = 4, 2, 3, 2
	cuQ, cuK := []int{0, 3, 3, 5, 9, 11}, []int{0, 5, 7, 7, 10, 14}
	tq, tk := 11, 14
	p := &ref.Problem{
		Hq: hq, Hkv: hkv, Dk: dk, Dv: dv, CuQ: cuQ, CuK: cuK, Offset: []int{2, 2, -2, -1, 1},
		Q: onGrid(rng, tq*hq*dk), K: onGrid(rng, tk*hkv*dk), V: onGrid(rng, tk*hkv*dv),
		Scale: .7, Softcap: 1.5, Slopes: onGrid(rng, hq),
		Masks: []ref.Mask{
			ref.Window(2, 2, 1), nil, nil, ref.Causal(-1),
			ref.And(ref.SinkTokens(1, 1, 1, 0), ref.Dense(1, 2, 4, []bool{true, true, false, true, true, false, true, true})),
		},
		Bias: []ref.Bias{
			{Heads: hq, Rows: 3, Data: onGrid(rng, hq*3*5)}, {}, {},
			{Heads: 1, Rows: 4, Data: onGrid(rng, 4*3)}, {Heads: hq, Rows: 1, Data: onGrid(rng, hq*4)},
		},
		Dropout: &ref.Dropout{Rates: make([]float32, tq), Seed: 11, IDs: []uint64{9, 8, 7, 6, 5}},
		DO:      onGrid(rng, tq*hq*dv), DLSE: onGrid(rng, tq*hq),
	}
	for t := range p.Dropout.Rates {
		p.Dropout.Rates[t] = float32(t%4) / 8
	}
	if sinks {
		p.Sinks = onGrid(rng, hq)
	}
	return p
}

// loss is what DO and DLSE are the gradients of. Rows without anything to see
// have no part in it.
func loss(p *ref.Problem) float64 {
	out := ref.Forward(p)
	sum := 0.0
	for i, o := range out.O {
		sum += o * float64(p.DO[i])
	}
	for i, lse := range out.LSE {
		if !math.IsInf(lse, -1) {
			sum += lse * float64(p.DLSE[i])
		}
	}
	return sum
}

// differences returns the derivative of the loss with respect to each element
// of x, an input of p, by the five-point central difference.
func differences(p *ref.Problem, x []float32) []float64 {
	d := make([]float64, len(x))
	for i, at := range x {
		shifted := func(steps float32) float64 {
			x[i] = at + steps*step
			return loss(p)
		}
		d[i] = (8*(shifted(1)-shifted(-1)) - (shifted(2) - shifted(-2))) / (12 * step)
		x[i] = at
	}
	return d
}

func TestGradientsAgainstFiniteDifferences(t *testing.T) {
	for seed := range uint64(4) {
		p := allFeatures(rand.New(rand.NewPCG(seed, 1)), seed%2 == 0)
		if seed == 3 {
			p.Dropout, p.Softcap, p.Slopes = nil, 0, nil
		}
		g := ref.Backward(p)
		assert.InDeltaSlice(t, differences(p, p.Q), g.DQ, 1e-7, "dQ")
		assert.InDeltaSlice(t, differences(p, p.K), g.DK, 1e-7, "dK")
		assert.InDeltaSlice(t, differences(p, p.V), g.DV, 1e-7, "dV")
		for b := range p.Bias {
			if p.Bias[b].Data == nil {
				assert.Nil(t, g.DBias[b])
				continue
			}
			assert.InDeltaSlice(t, differences(p, p.Bias[b].Data), g.DBias[b], 1e-7, "dBias of sequence %d", b)
		}
		if p.Sinks == nil {
			assert.Nil(t, g.DSinks)
			continue
		}
		assert.InDeltaSlice(t, differences(p, p.Sinks), g.DSinks, 1e-7, "dSinks")
	}
}
