package ref

import "math"

// Output is the result of the forward pass.
type Output struct {
	O   []float64 // [Tq, Hq, Dv]
	LSE []float64 // [Tq, Hq]: natural logarithm, sink included, dropout not
}

// Forward computes attention. It panics if p.Check fails.
func Forward(p *Problem) *Output {
	if err := p.Check(); err != nil {
		panic(err)
	}
	tq := p.CuQ[p.Batch()]
	out := &Output{
		O:   make([]float64, tq*p.Hq*p.Dv),
		LSE: make([]float64, tq*p.Hq),
	}
	p.eachRow(func(r *row) {
		t := r.seq.q0 + r.i
		out.LSE[t*p.Hq+r.h] = r.lse
		copy(at(out.O, t, r.h, p.Hq, p.Dv), r.o)
	})
	return out
}

// row is the forward pass of one query: query i of head h. The slices over
// keys have one element per *visible* key, in increasing order of key.
type row struct {
	seq  seq
	h, i int

	keys   []int     // the visible keys
	capped []float64 // scores after scale and softcap, before ALiBi and bias
	z      []float64 // scores
	p      []float64 // softmax of z: P
	keep   []float64 // 1/(1-rate) where dropout keeps, 0 where it drops

	m, lse float64   // maximum of z, and log-sum-exp, both with the sink
	pSink  float64   // weight of the sink
	o      []float64 // [Dv]
}

// eachRow runs the forward pass of every query row and hands it to visit, which
// must not keep it.
func (p *Problem) eachRow(visit func(*row)) {
	r := &row{o: make([]float64, p.Dv)}
	for b := range p.Batch() {
		r.seq = p.seq(b)
		for r.h = range p.Hq {
			for r.i = range r.seq.nq {
				p.scores(r)
				p.softmax(r)
				p.dropout(r)
				p.sumValues(r)
				visit(r)
			}
		}
	}
}

// scores lists the visible keys of r and their scores:
//
//	z = scale · <q_i, k_j>
//	z = softcap · tanh(z / softcap)
//	z = z - slope · |p - j|
//	z = z + bias_ij
func (p *Problem) scores(r *row) {
	r.keys, r.capped, r.z = r.keys[:0], r.capped[:0], r.z[:0]
	s := r.seq
	q := p.q(s, r.h, r.i)
	for j := range s.nk {
		if !p.visible(s.b, r.h, r.i, j) {
			continue
		}
		z := p.Scale * dot(q, p.k(s, r.h, j))
		if p.Softcap > 0 {
			z = p.Softcap * math.Tanh(z/p.Softcap)
		}
		r.keys, r.capped = append(r.keys, j), append(r.capped, z)
		if p.Slopes != nil {
			z -= float64(p.Slopes[r.h]) * math.Abs(float64(r.i+s.off-j))
		}
		if p.Bias != nil && p.Bias[s.b].Data != nil {
			bias := &p.Bias[s.b]
			z += float64(bias.Data[bias.index(r.h, r.i, s.nk)+j])
		}
		r.z = append(r.z, z)
	}
}

// visible reports whether query i of head h in sequence b sees key j.
func (p *Problem) visible(b, h, i, j int) bool {
	return p.Masks == nil || p.Masks[b] == nil || p.Masks[b](b, h, i, j)
}

// softmax turns the scores of r into P, with the sink as one more logit that
// has no value:
//
//	m   = max z
//	LSE = m + ln(Σ exp(z - m))
//	P   = exp(z - LSE), computed as exp(z - m) / Σ so that a large m costs no bits
func (p *Problem) softmax(r *row) {
	r.m, r.pSink, r.p = math.Inf(-1), 0, r.p[:0]
	if p.Sinks != nil {
		r.m = float64(p.Sinks[r.h])
	}
	for _, z := range r.z {
		r.m = math.Max(r.m, z) // NaN if z is
	}
	if math.IsInf(r.m, -1) {
		r.lse = r.m
		r.p = append(r.p, make([]float64, len(r.z))...)
		return
	}
	l := 0.0
	for _, z := range r.z {
		e := math.Exp(z - r.m)
		r.p = append(r.p, e)
		l += e
	}
	if p.Sinks != nil {
		r.pSink = math.Exp(float64(p.Sinks[r.h]) - r.m)
		l += r.pSink
	}
	for n := range r.p {
		r.p[n] /= l
	}
	r.pSink /= l
	r.lse = r.m + math.Log(l)
}

// dropout sets the factor of each visible key: keep / (1 - rate).
func (p *Problem) dropout(r *row) {
	r.keep = r.keep[:0]
	kept := p.Dropout.row(r.seq, r.h, r.i)
	factor := 1 / (1 - p.Dropout.rate(r.seq.q0+r.i))
	for _, j := range r.keys {
		if kept(j) {
			r.keep = append(r.keep, factor)
		} else {
			r.keep = append(r.keep, 0)
		}
	}
}

// sumValues computes O_i = Σ A_ij · v_j with A = P · keep / (1 - rate).
func (p *Problem) sumValues(r *row) {
	clear(r.o)
	for n, j := range r.keys {
		addScaled(r.o, r.p[n]*r.keep[n], p.v(r.seq, r.h, j))
	}
}

// dot returns Σ a_c · b_c.
func dot(a, b []float32) float64 {
	sum := 0.0
	for c := range a {
		sum += float64(a[c]) * float64(b[c])
	}
	return sum
}

// addScaled adds w·x to dst.
func addScaled(dst []float64, w float64, x []float32) {
	for c := range dst {
		dst[c] += w * float64(x[c])
	}
}
