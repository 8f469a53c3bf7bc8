package kernel

import "math"

const (
	ln2Hi = 0x1.62e42fee00000p-1  // 33 bits, so that a multiple by an exponent is exact
	ln2Lo = 0x1.a39ef35793c76p-33 // ln 2 - ln2Hi
)

// Ln returns the natural logarithm of a number that is at least 1, in float64
// arithmetic without fused operations, so that every processor gives the same
// bits. Worst error 1 ulp of float64 for a float32, 2 ulp for a float64 (see
// the test). NaN gives NaN.
//
// With l = m·2^e, m in [2/3, 4/3], and s = (m-1)/(m+1): ln m = 2·artanh(s), a
// series in s² <= 0.04.
func Ln[T float32 | float64](l T) float64 {
	u := math.Float64bits(float64(l))
	const twoThirds = 0x3FE5555500000000
	e := int64(u-twoThirds) >> 52
	m := math.Float64frombits(u - uint64(e)<<52)
	s := (m - 1) / (m + 1)
	z := float64(s * s)
	r := float64(lnC[len(lnC)-1])
	for i := len(lnC) - 2; i >= 0; i-- {
		r = float64(r*z) + lnC[i]
	}
	r = float64(s*z) * r
	k := float64(e)
	// The bits of NaN were taken apart like a number's: x*0 brings it back.
	return float64(k*ln2Hi) + (2*s + (2*r + float64(k*ln2Lo))) + float64(float64(l)*0)
}

// lnC are the coefficients of artanh(s)/s past the first.
var lnC = [...]float64{1. / 3, 1. / 5, 1. / 7, 1. / 9, 1. / 11, 1. / 13, 1. / 15, 1. / 17, 1. / 19, 1. / 21, 1. / 23}
