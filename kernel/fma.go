package kernel

import "math"

// FMA32 returns a*b + c with one rounding, in portable arithmetic.
//
// The product of two float32 is exact in float64, so only the addition rounds,
// to 53 bits; rounding that to 24 bits goes wrong only if the 53-bit sum lies
// half-way between two float32, or is subnormal as a float32.
func FMA32(a, b, c float32) float32 {
	t := float64(a)*float64(b) + float64(c)
	if doubtful(t) {
		return fmaSlow(a, b, c)
	}
	return float32(t)
}

// AddScaled sets y[r] to fma(a, x[r], y[r]). It is FMA32 in a loop, which the
// compiler would not inline.
func AddScaled(y []float32, a float32, x []float32) {
	wide := float64(a)
	for r, b := range x[:len(y)] {
		t := wide*float64(b) + float64(y[r])
		if doubtful(t) {
			y[r] = fmaSlow(a, b, y[r])
		} else {
			y[r] = float32(t)
		}
	}
}

// doubtful reports whether rounding t to float32 may round twice wrongly.
func doubtful(t float64) bool {
	u := math.Float64bits(t)
	return u&(1<<29-1) == 1<<28 || u<<1 < 897<<53
}

// fmaSlow rounds a*b + c to odd before it rounds to float32: a 53-bit result
// whose last bit says "inexact" cannot be rounded twice wrongly.
func fmaSlow(a, b, c32 float32) float32 {
	p, c := float64(a)*float64(b), float64(c32)
	t := p + c
	// The exact error of t (Knuth's two-sum).
	x := t - p
	e := (p - (t - x)) + (c - x)
	if u := math.Float64bits(t); e != 0 && u&1 == 0 {
		if (e > 0) == (t > 0) {
			u++
		} else {
			u--
		}
		t = math.Float64frombits(u)
	}
	return float32(t)
}
