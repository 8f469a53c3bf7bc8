package attention

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
)

// worstULP returns the worst error of f against want, in units in the last
// place of the true value, over every step-th float32 between the bit patterns
// from and to, and where it is.
func worstULP(from, to, step uint32, f func(float32) float32, want func(float64) float64) (worst float64, at float32) {
	for u := from; u <= to; u += step {
		x := math.Float32frombits(u)
		w := want(float64(x))
		ulp := math.Ldexp(1, max(math.Ilogb(w), -126)-23)
		if e := math.Abs(float64(f(x))-w) / ulp; e > worst || e != e {
			worst, at = e, x
		}
	}
	return worst, at
}

func TestExp2IsWithinItsStatedError(t *testing.T) {
	step := uint32(509)
	if testing.Short() {
		step = 50021
	}
	// From -0 down to -125.49, below which the result would be 0.
	worst, at := worstULP(0x80000000, math.Float32bits(-125.49), step, exp2Generic, math.Exp2)
	t.Logf("worst error %.3f ulp, at %g", worst, at)
	assert.Less(t, worst, 0.87)
	assert.Equal(t, float32(1), exp2Generic(0))
	for _, x := range []float32{-125.5, -126, -1e9, negInf} {
		assert.Zero(t, math.Float32bits(exp2Generic(x)), x)
	}
	assert.NotZero(t, exp2Generic(-125.49))
	assert.True(t, math.IsNaN(float64(exp2Generic(float32(math.NaN())))))
}

func TestTanhIsWithinItsStatedError(t *testing.T) {
	step := uint32(509)
	if testing.Short() {
		step = 50021
	}
	worst, at := worstULP(1, math.Float32bits(20), step, tanhGeneric, math.Tanh)
	t.Logf("worst error %.3f ulp, at %g", worst, at)
	assert.Less(t, worst, 1.4)
	for _, x := range []float32{9.5, 1e9, math.MaxFloat32, -negInf} {
		assert.Equal(t, float32(1), tanhGeneric(x), x)
		assert.Equal(t, float32(-1), tanhGeneric(-x), x)
	}
	assert.Equal(t, uint32(1<<31), math.Float32bits(tanhGeneric(float32(math.Copysign(0, -1)))))
	assert.True(t, math.IsNaN(float64(tanhGeneric(float32(math.NaN())))))
	worst, _ = worstULP(math.Float32bits(0.5), math.Float32bits(0.5)+1<<21, 1, func(x float32) float32 { return -tanhGeneric(-x) }, math.Tanh)
	assert.Less(t, worst, 1.4, "tanh is odd")
}
