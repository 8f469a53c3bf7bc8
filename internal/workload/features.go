package workload

import (
	"math/rand/v2"

	"github.com/seed-091431b3/attention"
)

// Feature is something that a call may be given besides Q, K and V.
type Feature struct {
	Name   string
	Modify func(*attention.Config, *attention.Inputs)
	Pairs  float64 // see Spec
}

// Features are those of a single sequence of n tokens, to be compared with the
// first, which is none.
func Features(heads, n int) []Feature {
	rng := rand.New(rand.NewPCG(5, 6))
	seen := make([]bool, n*n)
	for i := range seen {
		seen[i] = rng.IntN(10) > 0
	}
	bias := make([]float32, n*n)
	for i := range bias {
		bias[i] = float32(rng.NormFloat64())
	}
	perHead := make([]float32, heads)
	for h := range perHead {
		perHead[h] = float32(h+1) / 8
	}
	config := func(f func(c *attention.Config)) func(*attention.Config, *attention.Inputs) {
		return func(c *attention.Config, _ *attention.Inputs) { f(c) }
	}
	inputs := func(f func(in *attention.Inputs)) func(*attention.Config, *attention.Inputs) {
		return func(_ *attention.Config, in *attention.Inputs) { f(in) }
	}
	return []Feature{
		{Name: "none"},
		{Name: "causal", Modify: config(func(c *attention.Config) { c.Mask = attention.Causal() }), Pairs: float64(n) * float64(n+1) / 2},
		{Name: "bool", Modify: config(func(c *attention.Config) { c.Mask = attention.Bool(seen, 0, n) })},
		{Name: "bias", Modify: inputs(func(in *attention.Inputs) { in.Bias = []attention.Bias{{Data: bias, QueryStride: n}} })},
		{Name: "alibi", Modify: config(func(c *attention.Config) { c.ALiBi = perHead })},
		{Name: "softcap", Modify: config(func(c *attention.Config) { c.Softcap = 30 })},
		{Name: "dropout", Modify: inputs(func(in *attention.Inputs) { in.Dropout = &attention.Dropout{Seed: 1, Rate: 0.1} })},
		{Name: "sinks", Modify: inputs(func(in *attention.Inputs) { in.Sinks = perHead })},
	}
}

// Window is a causal window of width keys over n tokens, one head of 64.
func Window(n, width int, kernel string) Spec {
	return Spec{
		QueryHeads: 1, Dim: 64, Lengths: []int{n}, Kernel: kernel,
		Modify: func(c *attention.Config, _ *attention.Inputs) { c.Mask = attention.Window(width-1, 0) },
		Pairs:  float64(n)*float64(width) - float64(width)*float64(width-1)/2,
	}
}
