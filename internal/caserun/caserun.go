// Package caserun computes the outputs of a case file with the library.
package caserun

import (
	"fmt"

	"github.com/seed-091431b3/attention"
	"github.com/seed-091431b3/attention/internal/casefile"
)

// Call is a case in the library's terms.
type Call struct {
	Config  attention.Config
	Batch   attention.Batch
	Inputs  attention.Inputs
	Outputs attention.Outputs
	O       []float32 // [Tq, Hq, Dv]
	LSE     []float64 // [Tq, Hq]
}

// New translates p. Dropout given as an array of keys to keep has no
// counterpart in the library, and is an error.
func New(p *casefile.Problem, kernel string, workers int) (*Call, error) {
	if p.GivenKeep() {
		return nil, fmt.Errorf("the case gives a dropout mask of its own; the library's is a hash of a seed")
	}
	tokens := p.CuQ[len(p.CuQ)-1]
	c := &Call{
		Config: attention.Config{
			QueryHeads: p.Hq, KVHeads: p.Hkv, HeadDim: p.Dk, ValueDim: p.Dv,
			Scale: &p.Scale, Softcap: p.Softcap, ALiBi: p.Slopes,
			Kernel: kernel, Workers: workers,
		},
		Batch: attention.RaggedQK(p.CuQ, p.CuKV),
		O:     make([]float32, tokens*p.Hq*p.Dv),
		LSE:   make([]float64, tokens*p.Hq),
	}
	c.Inputs = attention.Inputs{
		Q:     attention.Packed(p.Q, p.Hq, p.Dk),
		K:     attention.Packed(p.K, p.Hkv, p.Dk),
		V:     attention.Packed(p.V, p.Hkv, p.Dv),
		Sinks: p.Sinks,
	}
	c.Outputs = attention.Outputs{O: attention.Packed(c.O, p.Hq, p.Dv), LSE: c.LSE}
	c.Batch.Offsets = make([]int, p.Batch())
	c.Batch.Masks = make([]attention.Mask, p.Batch())
	if p.Bias != nil {
		c.Inputs.Bias = make([]attention.Bias, p.Batch())
	}
	for b, s := range p.Seqs {
		c.Batch.Offsets[b] = s.Offset
		c.Batch.Masks[b] = mask(p, b)
		if p.Bias != nil {
			c.Inputs.Bias[b] = attention.Bias{
				Data:       p.BiasOf(b),
				HeadStride: headStride(p.BiasHeads, s), QueryStride: s.KV,
			}
		}
	}
	if p.Dropout() {
		c.Inputs.Dropout = &attention.Dropout{Seed: *p.Seed, Rate: p.DropoutP, Rates: p.Rates}
	}
	return c, nil
}

// Run computes O and LSE.
func (c *Call) Run() error {
	op, err := attention.New(c.Config)
	if err != nil {
		return err
	}
	return op.Forward(c.Inputs, c.Outputs, c.Batch)
}

func mask(p *casefile.Problem, b int) attention.Mask {
	s := p.Seqs[b]
	var m attention.Mask
	if s.Causal {
		m = attention.And(m, attention.Causal())
	}
	// In a case any negative side is unbounded.
	if s.Left >= 0 || s.Right >= 0 {
		m = attention.And(m, attention.Window(max(s.Left, attention.Unbounded), max(s.Right, attention.Unbounded)))
	}
	if p.Mask != nil {
		m = attention.And(m, attention.Bool(p.MaskOf(b), headStride(p.MaskHeads, s), s.KV))
	}
	return m
}

// headStride is that of an array [heads, q, kv], of which one head is shared.
func headStride(heads int, s casefile.Seq) int {
	if heads == 1 {
		return 0
	}
	return s.Q * s.KV
}
