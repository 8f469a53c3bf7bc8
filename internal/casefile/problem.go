package casefile

import (
	"errors"
	"fmt"
	"math"
	"strconv"
)

const (
	// maxDim is the largest number of heads or channels that is accepted.
	maxDim = 1 << 20
	// maxPosition bounds offsets and window sides, so that sums of them and of
	// lengths cannot overflow.
	maxPosition = math.MaxInt / 8
)

// Problem is a case as an attention problem: every array has the shape that
// Attrs says. Arrays that the case does not have are nil.
type Problem struct {
	Attrs
	Seed *uint64 // Attrs.DropoutSeed

	Q      []float32 // [Tq, Hq, Dk]
	K      []float32 // [Tk, Hkv, Dk]
	V      []float32 // [Tk, Hkv, Dv]
	DO     []float32 // [Tq, Hq, Dv]
	DLSE   []float32 // [Tq, Hq]
	Slopes []float32 // [Hq]
	Sinks  []float32 // [Hq]
	Rates  []float32 // [Tq]: dropout rate of each query row, instead of DropoutP
	Bias   []float32 // for each sequence in turn [BiasHeads, nq, nk]; see BiasOf
	Mask   []bool    // for each sequence in turn [MaskHeads, nq, nk]; see MaskOf
	Keep   []bool    // for each sequence in turn [Hq, nq, nk]; see KeepOf
}

// Batch returns the number of sequences.
func (p *Problem) Batch() int { return len(p.Seqs) }

// Dropout reports whether dropout is in force.
func (p *Problem) Dropout() bool { return p.Keep != nil || p.Rates != nil || p.DropoutP > 0 }

// GivenKeep reports whether the dropout mask is arbitrary, not the hash's.
func (p *Problem) GivenKeep() bool { return p.Keep != nil && p.Seed == nil }

// BiasOf returns the bias of sequence b: [BiasHeads, nq, nk].
func (p *Problem) BiasOf(b int) []float32 { return ofSeq(p.Seqs, p.BiasHeads, p.Bias, b) }

// MaskOf returns the mask of sequence b: [MaskHeads, nq, nk].
func (p *Problem) MaskOf(b int) []bool { return ofSeq(p.Seqs, p.MaskHeads, p.Mask, b) }

// KeepOf returns what dropout keeps of sequence b: [Hq, nq, nk].
func (p *Problem) KeepOf(b int) []bool { return ofSeq(p.Seqs, p.Hq, p.Keep, b) }

// ofSeq returns the part of flat, for each sequence in turn [heads, nq, nk],
// that belongs to sequence b.
func ofSeq[T any](seqs []Seq, heads int, flat []T, b int) []T {
	if flat == nil {
		return nil
	}
	start := 0
	for _, s := range seqs[:b] {
		start += heads * s.Q * s.KV
	}
	end := start + heads*seqs[b].Q*seqs[b].KV
	return flat[start:end:end]
}

// Problem validates c as an attention problem.
func (c *Case) Problem() (*Problem, error) {
	p := &Problem{Attrs: c.Attrs}
	if err := p.checkAttrs(); err != nil {
		return nil, err
	}
	if p.DropoutSeed != nil {
		seed, err := strconv.ParseUint(*p.DropoutSeed, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("casefile: dropout_seed: %w", err)
		}
		p.Seed = &seed
	}
	for _, in := range p.inputs() {
		if err := in.load(c); err != nil {
			return nil, err
		}
	}
	if err := p.checkDropout(); err != nil {
		return nil, err
	}
	return p, p.checkOutputs(c)
}

// input is an array of a problem, and where it is decoded to.
type input struct {
	name     string
	required bool
	shape    []int // a flat array has one dimension, -1 if it overflows
	floats   *[]float32
	bools    *[]bool
}

// inputs lists the arrays that the problem can have.
func (p *Problem) inputs() []input {
	tq, tk := p.CuQ[p.Batch()], p.CuKV[p.Batch()]
	list := []input{
		{name: "Q", required: true, shape: []int{tq, p.Hq, p.Dk}, floats: &p.Q},
		{name: "K", required: true, shape: []int{tk, p.Hkv, p.Dk}, floats: &p.K},
		{name: "V", required: true, shape: []int{tk, p.Hkv, p.Dv}, floats: &p.V},
		{name: "dO", shape: []int{tq, p.Hq, p.Dv}, floats: &p.DO},
		{name: "dLSE", shape: []int{tq, p.Hq}, floats: &p.DLSE},
		{name: "alibi_slopes", shape: []int{p.Hq}, floats: &p.Slopes},
		{name: "sinks", shape: []int{p.Hq}, floats: &p.Sinks},
		{name: "dropout_rates", shape: []int{tq}, floats: &p.Rates},
		{name: "dropout_keep", shape: []int{p.pairs(p.Hq)}, bools: &p.Keep},
	}
	if p.BiasHeads > 0 {
		list = append(list, input{name: "bias", required: true, shape: []int{p.pairs(p.BiasHeads)}, floats: &p.Bias})
	}
	if p.MaskHeads > 0 {
		list = append(list, input{name: "mask", required: true, shape: []int{p.pairs(p.MaskHeads)}, bools: &p.Mask})
	}
	return list
}

// pairs returns how many (head, query, key) there are in all sequences, or -1
// if that overflows.
func (p *Problem) pairs(heads int) int {
	total := 0
	for _, s := range p.Seqs {
		n, ok := product(heads, s.Q, s.KV)
		if !ok || n > math.MaxInt-total {
			return -1
		}
		total += n
	}
	return total
}

// load finds the array of in, checks it and decodes it.
func (in input) load(c *Case) error {
	a := c.Array(in.name, Input)
	if a == nil {
		if in.required {
			return fmt.Errorf("casefile: input %q is missing", in.name)
		}
		return nil
	}
	err := a.checkShape(in.shape)
	if err != nil {
		return err
	}
	if in.bools != nil {
		*in.bools, err = a.Bools()
	} else {
		*in.floats, err = a.Float32s()
	}
	return err
}

// checkShape checks that a has the shape want.
func (a *Array) checkShape(want []int) error {
	same := len(a.Shape) == len(want)
	for i := 0; same && i < len(want); i++ {
		same = a.Shape[i] == want[i]
	}
	if !same {
		return fmt.Errorf("casefile: %s %q has shape %v, but attrs say %v", a.Role, a.Name, a.Shape, want)
	}
	return nil
}

// checkAttrs validates Attrs by itself.
func (p *Problem) checkAttrs() error {
	for _, d := range []struct {
		name string
		n    int
	}{{"hq", p.Hq}, {"hkv", p.Hkv}, {"dk", p.Dk}, {"dv", p.Dv}} {
		if d.n < 1 || d.n > maxDim {
			return fmt.Errorf("casefile: %s is %d, outside 1 to %d", d.name, d.n, maxDim)
		}
	}
	if p.Hq%p.Hkv != 0 {
		return fmt.Errorf("casefile: hkv %d does not divide hq %d", p.Hkv, p.Hq)
	}
	if p.Softcap < 0 {
		return fmt.Errorf("casefile: softcap is %g, below 0", p.Softcap)
	}
	if p.DropoutP < 0 || p.DropoutP >= 1 {
		return fmt.Errorf("casefile: dropout_p is %g, outside [0, 1)", p.DropoutP)
	}
	if n := p.BiasHeads; n != 0 && n != 1 && n != p.Hq {
		return fmt.Errorf("casefile: bias_heads is %d, not 0, 1 or hq", n)
	}
	if n := p.MaskHeads; n != 0 && n != 1 && n != p.Hq {
		return fmt.Errorf("casefile: mask_heads is %d, not 0, 1 or hq", n)
	}
	return p.checkSeqs()
}

// checkSeqs validates seqs, cu_q and cu_kv.
func (p *Problem) checkSeqs() error {
	n := len(p.Seqs)
	if len(p.CuQ) != n+1 || len(p.CuKV) != n+1 {
		return fmt.Errorf("casefile: cu_q has %d entries and cu_kv %d, but %d seqs want %d", len(p.CuQ), len(p.CuKV), n, n+1)
	}
	if p.CuQ[0] != 0 || p.CuKV[0] != 0 {
		return errors.New("casefile: cu_q and cu_kv must start at 0")
	}
	for b, s := range p.Seqs {
		if s.Q < 0 || s.KV < 0 || s.Q > maxPosition || s.KV > maxPosition {
			return fmt.Errorf("casefile: sequence %d: q %d or kv %d is outside 0 to %d", b, s.Q, s.KV, maxPosition)
		}
		if p.CuQ[b] > math.MaxInt-s.Q || p.CuKV[b] > math.MaxInt-s.KV {
			return fmt.Errorf("casefile: sequence %d: the sum of lengths is too large", b)
		}
		if p.CuQ[b+1] != p.CuQ[b]+s.Q || p.CuKV[b+1] != p.CuKV[b]+s.KV {
			return fmt.Errorf("casefile: sequence %d: cu_q and cu_kv do not agree with q %d and kv %d", b, s.Q, s.KV)
		}
		if max(s.Offset, -s.Offset, s.Left, s.Right) > maxPosition || s.Offset == math.MinInt {
			return fmt.Errorf("casefile: sequence %d: offset, left or right is beyond %d", b, maxPosition)
		}
	}
	return nil
}

// checkDropout validates what belongs to dropout.
func (p *Problem) checkDropout() error {
	for t, rate := range p.Rates {
		if !(rate >= 0 && rate < 1) {
			return fmt.Errorf("casefile: dropout_rates: entry %d is %g, outside [0, 1)", t, rate)
		}
	}
	if p.Dropout() && p.Keep == nil && p.Seed == nil {
		return errors.New("casefile: dropout has neither dropout_seed nor dropout_keep")
	}
	return nil
}

// checkOutputs checks the shapes of the outputs that are known by name, and of
// all magnitudes.
func (p *Problem) checkOutputs(c *Case) error {
	tq, tk := p.CuQ[p.Batch()], p.CuKV[p.Batch()]
	shapes := map[string][]int{
		"O":      {tq, p.Hq, p.Dv},
		"LSE":    {tq, p.Hq},
		"dQ":     {tq, p.Hq, p.Dk},
		"dK":     {tk, p.Hkv, p.Dk},
		"dV":     {tk, p.Hkv, p.Dv},
		"dBias":  {p.pairs(p.BiasHeads)},
		"dSinks": {p.Hq},
	}
	for _, name := range c.Outputs() {
		output := c.Array(name, Output)
		if want, known := shapes[name]; known {
			if err := output.checkShape(want); err != nil {
				return err
			}
		}
		if m := c.Array(name, Magnitude); m != nil {
			if err := m.checkShape(output.Shape); err != nil {
				return err
			}
		}
	}
	return nil
}
