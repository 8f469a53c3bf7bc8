package ref

import "math"

// Gradients is the result of the backward pass.
type Gradients struct {
	DQ     []float64   // [Tq, Hq, Dk]
	DK     []float64   // [Tk, Hkv, Dk]
	DV     []float64   // [Tk, Hkv, Dv]
	DBias  [][]float64 // [B][Heads, Rows, nk]; nil without bias, and so are entries without bias
	DSinks []float64   // [Hq]; nil without sinks
}

// Backward computes the gradients of a loss whose gradients with respect to O
// and LSE are p.DO and p.DLSE. It runs the forward pass again. It panics if
// p.Check fails.
func Backward(p *Problem) *Gradients {
	if err := p.Check(); err != nil {
		panic(err)
	}
	g := newGradients(p)
	p.eachRow(func(r *row) {
		if math.IsInf(r.lse, -1) {
			return // the row is 0 whatever its inputs are
		}
		p.backwardRow(g, r)
	})
	return g
}

// newGradients returns the gradients of p, all zero.
func newGradients(p *Problem) *Gradients {
	tq, tk := p.CuQ[p.Batch()], p.CuK[p.Batch()]
	g := &Gradients{
		DQ: make([]float64, tq*p.Hq*p.Dk),
		DK: make([]float64, tk*p.Hkv*p.Dk),
		DV: make([]float64, tk*p.Hkv*p.Dv),
	}
	if p.Sinks != nil {
		g.DSinks = make([]float64, p.Hq)
	}
	if p.Bias != nil {
		g.DBias = make([][]float64, p.Batch())
		for b, bias := range p.Bias[:p.Batch()] {
			if bias.Data != nil {
				g.DBias[b] = make([]float64, bias.Heads*bias.Rows*p.seq(b).nk)
			}
		}
	}
	return g
}

// backwardRow adds what one query row gives to every gradient.
func (p *Problem) backwardRow(g *Gradients, r *row) {
	s := r.seq
	t := s.q0 + r.i
	q, dO := p.q(s, r.h, r.i), p.dO(t, r.h)
	delta := p.delta(r, dO)
	if p.Sinks != nil {
		// P_sink = exp(sink - LSE), and the sink's value is 0
		g.DSinks[r.h] -= r.pSink * delta
	}
	dq := at(g.DQ, t, r.h, p.Hq, p.Dk)
	for n, j := range r.keys {
		dk := at(g.DK, s.k0+j, r.h/p.group(), p.Hkv, p.Dk)
		dv := at(g.DV, s.k0+j, r.h/p.group(), p.Hkv, p.Dv)

		// O_i = Σ A_ij · v_j
		addScaled(dv, r.p[n]*r.keep[n], dO)
		dA := dot(dO, p.v(s, r.h, j))
		// A = P · keep / (1 - rate)
		dP := dA * r.keep[n]
		// P = exp(z - LSE)
		dZ := r.p[n] * (dP - delta)
		// z = z + bias
		if g.DBias != nil && g.DBias[s.b] != nil {
			g.DBias[s.b][p.Bias[s.b].index(r.h, r.i, s.nk)+j] += dZ
		}
		// z = softcap · tanh(z / softcap)
		dS := dZ
		if p.Softcap > 0 {
			th := r.capped[n] / p.Softcap
			dS *= 1 - th*th
		}
		// z = scale · <q_i, k_j>
		addScaled(dq, p.Scale*dS, p.k(s, r.h, j))
		addScaled(dk, p.Scale*dS, q)
	}
}

// dO returns the gradient of O at packed row t: [Dv].
func (p *Problem) dO(t, h int) []float32 {
	if p.DO == nil {
		return make([]float32, p.Dv)
	}
	return at(p.DO, t, h, p.Hq, p.Dv)
}

// delta returns Σ_c dO_ic · O_ic - dLSE_i.
func (p *Problem) delta(r *row, dO []float32) float64 {
	sum := 0.0
	for c := range dO {
		sum += float64(dO[c]) * r.o[c]
	}
	if p.DLSE != nil {
		sum -= float64(p.DLSE[(r.seq.q0+r.i)*p.Hq+r.h])
	}
	return sum
}
