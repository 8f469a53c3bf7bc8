// Package caserun computes the outputs of a case file with the library.
package caserun

import (
	"fmt"
	"math"
	"slices"

	"github.com/seed-091431b3/attention"
	"github.com/seed-091431b3/attention/internal/casefile"
)

// Call is a case in the library's terms.
type Call struct {
	Config    attention.Config
	Batch     attention.Batch
	Inputs    attention.Inputs
	Outputs   attention.Outputs
	Gradients *attention.Gradients // nil if the case gives no gradient of O or LSE
	Results   []Result
}

// Result is an array that a call writes, under the name that cases use.
type Result struct {
	Name  string
	Shape []int
	F32   []float32
	F64   []float64 // LSE, of which F32 is nil
}

// Compare holds r to what the case expects.
func (r *Result) Compare(c *casefile.Case) (casefile.Comparison, error) {
	if r.F64 != nil {
		return casefile.Compare(c, r.Name, r.F64)
	}
	return casefile.Compare(c, r.Name, r.F32)
}

// Array is r as an output of a case file.
func (r *Result) Array() casefile.Array {
	if r.F64 != nil {
		return casefile.NewArray(r.Name, casefile.Output, r.Shape, r.F64)
	}
	return casefile.NewArray(r.Name, casefile.Output, r.Shape, r.F32)
}

// Same reports whether two calls gave the same bits, any NaN being like any
// other.
func Same(a, b *Call) bool {
	return slices.EqualFunc(a.Results, b.Results, func(x, y Result) bool {
		return x.Name == y.Name && slices.EqualFunc(x.F32, y.F32, func(x, y float32) bool {
			return math.Float32bits(x) == math.Float32bits(y) || x != x && y != y
		}) && slices.EqualFunc(x.F64, y.F64, func(x, y float64) bool {
			return math.Float64bits(x) == math.Float64bits(y) || x != x && y != y
		})
	})
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
	}
	o := c.result("O", tokens, p.Hq, p.Dv)
	lse := make([]float64, tokens*p.Hq)
	c.Results = append(c.Results, Result{Name: "LSE", Shape: []int{tokens, p.Hq}, F64: lse})
	c.Inputs = attention.Inputs{
		Q:     attention.Packed(p.Q, p.Hq, p.Dk),
		K:     attention.Packed(p.K, p.Hkv, p.Dk),
		V:     attention.Packed(p.V, p.Hkv, p.Dv),
		Sinks: p.Sinks,
	}
	c.Outputs = attention.Outputs{O: attention.Packed(o, p.Hq, p.Dv), LSE: lse}
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
	if p.DO != nil || p.DLSE != nil {
		c.addGradients(p)
	}
	return c, nil
}

// result adds an array of float32 to the results.
func (c *Call) result(name string, shape ...int) []float32 {
	n := 1
	for _, x := range shape {
		n *= x
	}
	r := Result{Name: name, Shape: shape, F32: make([]float32, n)}
	c.Results = append(c.Results, r)
	return r.F32
}

// addGradients asks for all gradients.
func (c *Call) addGradients(p *casefile.Problem) {
	tq, tk := p.CuQ[p.Batch()], p.CuKV[p.Batch()]
	dO := p.DO
	if dO == nil {
		dO = make([]float32, tq*p.Hq*p.Dv)
	}
	c.Gradients = &attention.Gradients{
		DO: attention.Packed(dO, p.Hq, p.Dv),
		DQ: attention.Packed(c.result("dQ", tq, p.Hq, p.Dk), p.Hq, p.Dk),
		DK: attention.Packed(c.result("dK", tk, p.Hkv, p.Dk), p.Hkv, p.Dk),
		DV: attention.Packed(c.result("dV", tk, p.Hkv, p.Dv), p.Hkv, p.Dv),
	}
	if p.DLSE != nil {
		c.Gradients.DLSE = make([]float64, len(p.DLSE))
		for i, x := range p.DLSE {
			c.Gradients.DLSE[i] = float64(x)
		}
	}
	if p.Sinks != nil {
		c.Gradients.DSinks = c.result("dSinks", p.Hq)
	}
	if p.Bias != nil {
		flat := c.result("dBias", len(p.Bias))
		for _, x := range c.Inputs.Bias {
			n := len(x.Data)
			x.Data, flat = flat[:n:n], flat[n:]
			c.Gradients.DBias = append(c.Gradients.DBias, x)
		}
	}
}

// Run computes the results. Each pass has an operator of its own, so that it
// finds no scratch of the other's.
func (c *Call) Run() error {
	op, err := attention.New(c.Config)
	if err != nil {
		return err
	}
	if err := op.Forward(c.Inputs, c.Outputs, c.Batch); err != nil || c.Gradients == nil {
		return err
	}
	if op, err = attention.New(c.Config); err != nil {
		return err
	}
	return op.Backward(c.Inputs, c.Outputs, *c.Gradients, c.Batch)
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
