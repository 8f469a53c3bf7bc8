package casefile

import "github.com/seed-091431b3/attention/ref"

// Ref returns p as a problem of the float64 reference.
func (p *Problem) Ref() *ref.Problem {
	r := &ref.Problem{
		Hq: p.Hq, Hkv: p.Hkv, Dk: p.Dk, Dv: p.Dv,
		CuQ: p.CuQ, CuK: p.CuKV,
		Q: p.Q, K: p.K, V: p.V, DO: p.DO, DLSE: p.DLSE,
		Scale: p.Scale, Softcap: p.Softcap, Slopes: p.Slopes, Sinks: p.Sinks,
	}
	for b, s := range p.Seqs {
		r.Offset = append(r.Offset, s.Offset)
		r.Masks = append(r.Masks, p.refMask(b))
		if p.Bias != nil {
			r.Bias = append(r.Bias, ref.Bias{Heads: p.BiasHeads, Rows: s.Q, Data: p.BiasOf(b)})
		}
	}
	if p.Dropout() {
		r.Dropout = &ref.Dropout{Rate: p.DropoutP, Rates: p.Rates}
		if p.GivenKeep() {
			r.Dropout.Keep = p.refKeep()
		} else {
			r.Dropout.Seed = *p.Seed
		}
	}
	return r
}

// refMask returns the mask of sequence b, nil if it hides nothing.
func (p *Problem) refMask(b int) ref.Mask {
	s := p.Seqs[b]
	var masks []ref.Mask
	if s.Causal {
		masks = append(masks, ref.Causal(s.Offset))
	}
	if s.Left >= 0 || s.Right >= 0 {
		masks = append(masks, ref.Window(s.Offset, s.Left, s.Right))
	}
	if p.Mask != nil {
		masks = append(masks, ref.Dense(p.MaskHeads, s.Q, s.KV, p.MaskOf(b)))
	}
	switch len(masks) {
	case 0:
		return nil
	case 1:
		return masks[0]
	}
	return ref.And(masks...)
}

// refKeep returns the dropout mask that the case gives.
func (p *Problem) refKeep() func(b, h, i, j int) bool {
	keep := make([][]bool, p.Batch())
	for b := range keep {
		keep[b] = p.KeepOf(b)
	}
	return func(b, h, i, j int) bool {
		s := p.Seqs[b]
		return keep[b][(h*s.Q+i)*s.KV+j]
	}
}
