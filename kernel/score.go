package kernel

import "math"

// log2e converts natural units to those of exp2.
const log2e = 1.44269504088896340735992468100189214

// Score is how a raw score <q, k> becomes a logit, and how q is packed for it.
// Raw scores stay raw where nothing but the scale is asked for: their
// differences are exact to the last bit at any magnitude, and the scale goes
// into the exponential.
type Score struct {
	qmul    float32 // multiplies q when it is packed: the sign of the scale
	mul     float32 // raw score to natural units
	natural bool    // logits are in natural units, mul applied
	softcap float32 // 0: none
	capMul  float32 // raw score to the argument of tanh
	scale   float64 // of the maximum in LSE, where logits are raw
	// What sums of dS are multiplied by to give the gradients of q and k: mostly
	// all at once, by grad, but first by first if that would not be a normal
	// number.
	first, grad float32
}

// Scales outside these bounds would leave float32 once multiplied by log2(e)
// or divided by a softcap; they multiply q instead.
const minScale, maxScale = 0x1p-100, 0x1p+100

// NewScore prepares scores for a finite scale and a softcap (0: none); more
// says that ALiBi or a bias follows.
func NewScore(scale float64, softcap float32, more bool) Score {
	s := Score{qmul: 1, scale: math.Abs(scale), softcap: softcap, natural: softcap > 0 || more}
	clamped := math.Max(-math.MaxFloat32, math.Min(scale, math.MaxFloat32))
	s.first, s.grad = 1, float32(clamped*unshift)
	if math.Abs(clamped*unshift) < 0x1p-126 {
		s.first, s.grad = unshift, float32(clamped)
	}
	if scale < 0 {
		s.qmul = -1
	}
	if s.scale < minScale || s.scale > maxScale {
		s.qmul = float32(clamped)
		s.scale = 1
	}
	s.mul = float32(s.scale)
	if softcap > 0 {
		// Finite, so that a score of 0 stays 0.
		s.capMul = float32(math.Min(s.scale/float64(softcap), math.MaxFloat32))
	}
	return s
}

// unit is what multiplies a difference of logits to give a power of two.
func (s *Score) unit() float32 {
	unit, _ := s.exactUnit()
	return unit
}

// exactUnit is unit as the sum of two float32.
func (s *Score) exactUnit() (unit, rest float32) {
	u := float64(s.scale * log2e) // rounded, not fused with what follows
	if s.natural {
		u = log2e
	}
	unit = float32(u)
	return unit, float32(u - float64(unit))
}

// split returns lse in the units of the logits, as the sum of two float32.
func (s *Score) split(lse float64) (hi, lo float32) {
	if !s.natural {
		lse /= s.scale
	}
	hi = float32(lse)
	return hi, float32(lse - float64(hi))
}
