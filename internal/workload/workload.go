// Package workload makes the problems that the benchmarks and the command
// measure, and counts their useful flops.
package workload

import (
	"math/rand/v2"
	"time"

	"github.com/seed-091431b3/attention"
	"github.com/seed-091431b3/attention/internal/peak"
)

// Spec describes a batch of self-attention.
type Spec struct {
	QueryHeads, KVHeads int // KVHeads 0: QueryHeads
	Dim, ValueDim       int // ValueDim 0: Dim
	Lengths             []int
	Causal              bool
	Backward            bool // measure the backward pass instead of the forward pass
	Kernel              string
	Workers             int // 0: 1

	// Modify, if not nil, adds features to the configuration and inputs.
	Modify func(*attention.Config, *attention.Inputs)
	// Pairs is the number of visible query-key pairs of one head, 0 meaning all,
	// or half of them if Causal.
	Pairs float64
}

// Workload is a problem ready to run.
type Workload struct {
	Operator *attention.Operator
	Inputs   attention.Inputs
	Outputs  attention.Outputs
	Batch    attention.Batch
	// Gradients is nil in a forward pass.
	Gradients *attention.Gradients
	// Flops are the useful ones: a multiplication and an addition for every
	// visible pair, head, and channel of K and of V; 2.5 times that in a backward
	// pass.
	Flops float64

	workers int
}

// New makes the problem, with inputs drawn from a normal distribution by a fixed
// seed, packed [tokens, heads, channels].
func New(s Spec) (*Workload, error) {
	if s.KVHeads == 0 {
		s.KVHeads = s.QueryHeads
	}
	if s.ValueDim == 0 {
		s.ValueDim = s.Dim
	}
	cfg := attention.Config{
		QueryHeads: s.QueryHeads, KVHeads: s.KVHeads, HeadDim: s.Dim, ValueDim: s.ValueDim,
		Workers: max(s.Workers, 1), Kernel: s.Kernel,
	}
	if s.Causal {
		cfg.Mask = attention.Causal()
	}
	cu := attention.CuSeqlens(s.Lengths)
	tokens := cu[len(cu)-1]
	rng := rand.New(rand.NewPCG(1, 2))
	tensor := func(heads, dim int) attention.Tensor {
		data := make([]float32, tokens*heads*dim)
		for i := range data {
			data[i] = float32(rng.NormFloat64())
		}
		return attention.Packed(data, heads, dim)
	}
	w := &Workload{
		workers: max(s.Workers, 1),
		Inputs: attention.Inputs{
			Q: tensor(s.QueryHeads, s.Dim), K: tensor(s.KVHeads, s.Dim), V: tensor(s.KVHeads, s.ValueDim),
		},
		Batch: attention.Ragged(cu),
	}
	w.Outputs = attention.Outputs{
		O:   attention.Packed(make([]float32, tokens*s.QueryHeads*s.ValueDim), s.QueryHeads, s.ValueDim),
		LSE: make([]float64, tokens*s.QueryHeads),
	}
	if s.Modify != nil {
		s.Modify(&cfg, &w.Inputs)
	}
	w.Flops = s.pairs() * float64(s.QueryHeads) * 2 * float64(s.Dim+s.ValueDim)
	var err error
	if w.Operator, err = attention.New(cfg); err != nil || !s.Backward {
		return w, err
	}
	w.Flops *= 2.5
	w.Gradients = &attention.Gradients{
		DO: tensor(s.QueryHeads, s.ValueDim), DQ: tensor(s.QueryHeads, s.Dim),
		DK: tensor(s.KVHeads, s.Dim), DV: tensor(s.KVHeads, s.ValueDim),
	}
	// By another operator, so that this one's scratch is that of its own calls.
	forward, err := attention.New(cfg)
	if err != nil {
		return w, err
	}
	return w, forward.Forward(w.Inputs, w.Outputs, w.Batch)
}

func (s *Spec) pairs() float64 {
	if s.Pairs > 0 {
		return s.Pairs
	}
	var pairs float64
	for _, n := range s.Lengths {
		if n := float64(n); s.Causal {
			pairs += n * (n + 1) / 2
		} else {
			pairs += n * n
		}
	}
	return pairs
}

// Run computes the problem once.
func (w *Workload) Run() error {
	if w.Gradients != nil {
		return w.Operator.Backward(w.Inputs, w.Outputs, *w.Gradients, w.Batch)
	}
	return w.Operator.Forward(w.Inputs, w.Outputs, w.Batch)
}

// Ragged draws n lengths uniformly from lo to hi, by a fixed seed.
func Ragged(n, lo, hi int) []int {
	rng := rand.New(rand.NewPCG(3, 4))
	lengths := make([]int, n)
	for i := range lengths {
		lengths[i] = lo + rng.IntN(hi-lo+1)
	}
	return lengths
}

// Measure times the workload against the peak of its kernel. The workload is
// run once beforehand, so that nothing is allocated in it.
func (w *Workload) Measure(minTime time.Duration) peak.Result {
	run := func() {
		if err := w.Run(); err != nil {
			panic(err) // a workload that ran once runs again
		}
	}
	run()
	return peak.Measure(w.Operator.Kernel(), w.Flops, w.workers, minTime, run)
}
