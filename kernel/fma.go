package kernel

import "math"

// FMA32 returns a*b + c with one rounding, in portable arithmetic.
//
// The product of two float32 is exact in float64, so only the addition rounds,
// to 53 bits; rounding that to 24 bits goes wrong only if the 53-bit sum lies
// half-way between two float32, or is subnormal as a float32.
func FMA32(a, b, c float32) float32 {
	p := float64(a) * float64(b)
	t := p + float64(c)
	if u := math.Float64bits(t); u&(1<<29-1) == 1<<28 || u<<1 < 897<<53 {
		return fmaSlow(p, float64(c), t)
	}
	return float32(t)
}

// fmaSlow rounds p + c, which is t in float64, to odd before it rounds to
// float32: a 53-bit result whose last bit says "inexact" cannot be rounded
// twice wrongly.
func fmaSlow(p, c, t float64) float32 {
	// The exact error of t (Knuth's two-sum).
	b := t - p
	e := (p - (t - b)) + (c - b)
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
