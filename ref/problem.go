package ref

import (
	"fmt"
	"math"
)

// Problem is one attention call over a ragged batch of B sequences, packed
// back to back without padding. Slices may be longer than their shape; what
// lies beyond it is never read. Optional fields are nil when not in force.
type Problem struct {
	Hq, Hkv int // query heads and key/value heads; Hkv divides Hq
	Dk, Dv  int // channels of Q and K, and of V and O

	CuQ, CuK []int // [B+1]: sequence b has query rows CuQ[b] to CuQ[b+1]-1, and keys likewise
	Offset   []int // [B]: position of query 0 in key coordinates; nil is bottom-right, nk-nq

	Q []float32 // [Tq, Hq, Dk]
	K []float32 // [Tk, Hkv, Dk]
	V []float32 // [Tk, Hkv, Dv]

	Scale   float64   // used as given, 0 included; see DefaultScale
	Softcap float64   // 0 is off
	Slopes  []float32 // [Hq]: ALiBi slopes
	Sinks   []float32 // [Hq]: logits of the attention sinks
	Masks   []Mask    // [B]: a nil entry hides nothing
	Bias    []Bias    // [B]: an entry with nil Data adds nothing
	Dropout *Dropout

	DO   []float32 // [Tq, Hq, Dv]: gradient of the loss with respect to O; nil is zero
	DLSE []float32 // [Tq, Hq]: gradient of the loss with respect to LSE; nil is zero
}

// Bias is the additive bias of one sequence. With Heads = 1 all heads share
// it, with Rows = 1 all query rows do.
type Bias struct {
	Heads, Rows int       // 1 or Hq; 1 or nq
	Data        []float32 // [Heads, Rows, nk]
}

// DefaultScale returns 1/sqrt(dk), the customary scale of the scores.
func DefaultScale(dk int) float64 { return 1 / math.Sqrt(float64(dk)) }

// Batch returns B, the number of sequences.
func (p *Problem) Batch() int { return len(p.CuQ) - 1 }

// Check reports the first way in which p does not describe a problem.
func (p *Problem) Check() error {
	if p.Hq < 1 || p.Hkv < 1 || p.Dk < 1 || p.Dv < 1 {
		return fmt.Errorf("ref: Hq=%d Hkv=%d Dk=%d Dv=%d: all must be at least 1", p.Hq, p.Hkv, p.Dk, p.Dv)
	}
	if p.Hq%p.Hkv != 0 {
		return fmt.Errorf("ref: Hkv=%d does not divide Hq=%d", p.Hkv, p.Hq)
	}
	if len(p.CuQ) == 0 || len(p.CuQ) != len(p.CuK) {
		return fmt.Errorf("ref: CuQ has %d entries and CuK %d: both must have B+1", len(p.CuQ), len(p.CuK))
	}
	for b := range p.Batch() {
		if p.CuQ[b+1] < p.CuQ[b] || p.CuK[b+1] < p.CuK[b] {
			return fmt.Errorf("ref: sequence %d has a negative length", b)
		}
	}
	if p.CuQ[0] != 0 || p.CuK[0] != 0 {
		return fmt.Errorf("ref: CuQ starts at %d and CuK at %d: both must start at 0", p.CuQ[0], p.CuK[0])
	}
	if err := p.checkLengths(); err != nil {
		return err
	}
	return p.checkBias()
}

// checkLengths holds every slice against its shape.
func (p *Problem) checkLengths() error {
	b, tq, tk := p.Batch(), p.CuQ[p.Batch()], p.CuK[p.Batch()]
	var rates []float32
	if p.Dropout != nil {
		rates = p.Dropout.Rates
	}
	for _, s := range []struct {
		name     string
		got      int
		want     int
		optional bool
	}{
		{"Q", len(p.Q), tq * p.Hq * p.Dk, false},
		{"K", len(p.K), tk * p.Hkv * p.Dk, false},
		{"V", len(p.V), tk * p.Hkv * p.Dv, false},
		{"DO", len(p.DO), tq * p.Hq * p.Dv, p.DO == nil},
		{"DLSE", len(p.DLSE), tq * p.Hq, p.DLSE == nil},
		{"Slopes", len(p.Slopes), p.Hq, p.Slopes == nil},
		{"Sinks", len(p.Sinks), p.Hq, p.Sinks == nil},
		{"Offset", len(p.Offset), b, p.Offset == nil},
		{"Masks", len(p.Masks), b, p.Masks == nil},
		{"Bias", len(p.Bias), b, p.Bias == nil},
		{"Dropout.Rates", len(rates), tq, rates == nil},
	} {
		if !s.optional && s.got < s.want {
			return fmt.Errorf("ref: %s has %d elements and needs %d", s.name, s.got, s.want)
		}
	}
	return nil
}

// checkBias holds the bias of every sequence against its shape.
func (p *Problem) checkBias() error {
	for b, bias := range p.Bias {
		if bias.Data == nil {
			continue
		}
		s := p.seq(b)
		if bias.Heads != 1 && bias.Heads != p.Hq || bias.Rows != 1 && bias.Rows != s.nq {
			return fmt.Errorf("ref: bias of sequence %d is for %d heads and %d rows: want 1 or %d, and 1 or %d",
				b, bias.Heads, bias.Rows, p.Hq, s.nq)
		}
		if want := bias.Heads * bias.Rows * s.nk; len(bias.Data) < want {
			return fmt.Errorf("ref: bias of sequence %d has %d elements and needs %d", b, len(bias.Data), want)
		}
	}
	return nil
}

// seq is where one sequence lies in the packed arrays.
type seq struct {
	b      int // index in the batch
	q0, k0 int // first packed query row and key
	nq, nk int
	off    int // position of query 0 in key coordinates
}

// seq returns the place of sequence b.
func (p *Problem) seq(b int) seq {
	s := seq{b: b, q0: p.CuQ[b], k0: p.CuK[b], nq: p.CuQ[b+1] - p.CuQ[b], nk: p.CuK[b+1] - p.CuK[b]}
	if p.Offset != nil {
		s.off = p.Offset[b]
	} else {
		s.off = s.nk - s.nq
	}
	return s
}

// group returns G, the number of query heads that share one kv head.
func (p *Problem) group() int { return p.Hq / p.Hkv }

// q returns row i of head h of Q: [Dk].
func (p *Problem) q(s seq, h, i int) []float32 { return at(p.Q, s.q0+i, h, p.Hq, p.Dk) }

// k returns the key j that query head h reads: [Dk].
func (p *Problem) k(s seq, h, j int) []float32 { return at(p.K, s.k0+j, h/p.group(), p.Hkv, p.Dk) }

// v returns the value j that query head h reads: [Dv].
func (p *Problem) v(s seq, h, j int) []float32 { return at(p.V, s.k0+j, h/p.group(), p.Hkv, p.Dv) }

// at returns row (t, h) of x, a packed array [T, heads, d]: [d].
func at[T any](x []T, t, h, heads, d int) []T {
	start := (t*heads + h) * d
	return x[start : start+d]
}

// index returns where the bias of (h, i, key 0) lies in Data.
func (b *Bias) index(h, i, nk int) int {
	if b.Heads == 1 {
		h = 0
	}
	if b.Rows == 1 {
		i = 0
	}
	return (h*b.Rows + i) * nk
}
