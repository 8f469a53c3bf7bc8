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
}

// Scales outside these bounds would leave float32 once multiplied by log2(e)
// or divided by a softcap; they multiply q instead.
const minScale, maxScale = 0x1p-100, 0x1p+100

// NewScore prepares scores for a finite scale and a softcap (0: none); more
// says that ALiBi or a bias follows.
func NewScore(scale float64, softcap float32, more bool) Score {
	s := Score{qmul: 1, scale: math.Abs(scale), softcap: softcap, natural: softcap > 0 || more}
	if scale < 0 {
		s.qmul = -1
	}
	if s.scale < minScale || s.scale > maxScale {
		s.qmul = float32(math.Max(-math.MaxFloat32, math.Min(scale, math.MaxFloat32)))
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
	if s.natural {
		return log2e
	}
	return float32(s.scale * log2e)
}
