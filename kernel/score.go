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
	// all at once, by grad, but by powers of two first if that would not be a
	// normal number.
	powers [2]float32
	grad   float32
}

// Scales outside these bounds would leave float32 once multiplied by log2(e)
// or divided by a softcap; a power of two of theirs multiplies q instead.
const minScale, maxScale = 0x1p-100, 0x1p+100

// NewScore prepares scores for a finite scale and a softcap (0: none); more
// says that ALiBi or a bias follows.
func NewScore(scale float64, softcap float32, more bool) Score {
	s := Score{qmul: 1, scale: math.Abs(scale), softcap: softcap, natural: softcap > 0 || more, powers: [2]float32{1, 1}}
	power := 1.0
	switch _, e := math.Frexp(s.scale); {
	case scale == 0:
		s.qmul, s.scale, power = 0, 1, 0
	case s.scale > maxScale:
		power = math.Ldexp(1, min(e-100, 126))
		s.scale = math.Min(s.scale/power, maxScale)
	case s.scale < minScale:
		power = math.Ldexp(1, max(e+99, -126))
		s.scale = math.Max(s.scale/power, minScale)
	}
	sign := math.Copysign(1, scale)
	s.qmul = float32(sign * power)
	s.grad = float32(scale * unshift)
	if g := math.Abs(scale * unshift); scale != 0 && (g < 0x1p-126 || g > math.MaxFloat32) {
		s.powers = [2]float32{unshift, float32(power)}
		s.grad = float32(sign * s.scale)
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
