package kernel

import "math"

// Exp returns e^x for x <= 0 in float64 arithmetic without fused operations,
// so that every processor gives the same bits. Worst error 1 ulp (see the
// test); below -708 the result is 0, so that none is subnormal. NaN gives NaN.
//
// With x = k·ln 2 + r, |r| <= ln(2)/2: e^r by its Taylor series, of which the
// first term left out is below 2^-57.
func Exp(x float64) float64 {
	if x < -708 {
		return 0
	}
	const magic = 3 << 51 // adding it rounds to an integer
	k := float64(float64(x*math.Log2E)+magic) - magic
	r := float64(x-float64(k*ln2Hi)) - float64(k*ln2Lo)
	p := float64(expC[len(expC)-1])
	for i := len(expC) - 2; i >= 0; i-- {
		p = float64(p*r) + expC[i]
	}
	p = 1 + (r + float64(float64(r*r)*p))
	if x != x {
		return x
	}
	return p * math.Float64frombits(uint64(int64(k)+1023)<<52)
}

// expC are 1/n! from n = 2.
var expC = [...]float64{1. / 2, 1. / 6, 1. / 24, 1. / 120, 1. / 720, 1. / 5040, 1. / 40320, 1. / 362880,
	1. / 3628800, 1. / 39916800, 1. / 479001600, 1. / 6227020800}
