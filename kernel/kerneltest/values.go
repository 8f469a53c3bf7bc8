package kerneltest

import (
	"math"
	"math/rand/v2"
)

var (
	inf = float32(math.Inf(1))
	nan = float32(math.NaN())
)

// weird are the numbers at which arithmetic changes its rules.
var weird = []float32{
	0, float32(math.Copysign(0, -1)), 1, -1, inf, -inf, nan, -nan, math.Float32frombits(0x7F800001),
	math.SmallestNonzeroFloat32, -math.SmallestNonzeroFloat32, 0x1p-126, -0x1p-126, 0x1.fffffcp-127,
	math.MaxFloat32, -math.MaxFloat32, 88, -88, 104, -104, 1e-30, 1e30, 126, -126, 125.5, -125.5,
}

// kind is a way to draw numbers.
type kind struct {
	name string
	draw func(r *rand.Rand) float32
}

func (k kind) String() string { return k.name }

// fill returns n numbers.
func (k kind) fill(r *rand.Rand, n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = k.draw(r)
	}
	return x
}

var (
	ordinary = kind{"ordinary values", func(r *rand.Rand) float32 { return float32(r.NormFloat64()) }}
	// Few bits: products and sums that lie half-way between two float32.
	coarse = kind{"values that tie", func(r *rand.Rand) float32 {
		return float32(r.IntN(1<<13)-1<<12) * float32(math.Ldexp(1, -12*r.IntN(3)))
	}}
	equal  = kind{"equal values", func(*rand.Rand) float32 { return 1.5 }}
	zeros  = kind{"zeros of both signs", func(r *rand.Rand) float32 { return weird[r.IntN(2)] }}
	huge   = kind{"huge values", func(r *rand.Rand) float32 { return float32(r.NormFloat64()) * 1e19 }}
	large  = kind{"large values", func(r *rand.Rand) float32 { return 1e6 + float32(r.NormFloat64()) }}
	tiny   = kind{"tiny values", func(r *rand.Rand) float32 { return float32(r.NormFloat64()) * 1e-22 }}
	subs   = kind{"subnormal values", func(r *rand.Rand) float32 { return math.Float32frombits(r.Uint32() & 0x80FFFFFF) }}
	mixed  = kind{"weird values", func(r *rand.Rand) float32 { return weird[r.IntN(len(weird))] }}
	sparse = kind{"a few weird values", func(r *rand.Rand) float32 {
		if r.IntN(40) == 0 {
			return weird[r.IntN(len(weird))]
		}
		return float32(r.NormFloat64())
	}}
	anyBits = kind{"any bits", func(r *rand.Rand) float32 { return math.Float32frombits(r.Uint32()) }}

	kinds = []kind{ordinary, coarse, equal, zeros, huge, large, tiny, subs, mixed, sparse, anyBits}
)

// Sizes around the boundaries at which loops change: vectors, panels, words of
// a mask, a block of keys.
var (
	keyCounts      = []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 15, 16, 17, 23, 24, 25, 31, 32, 33, 47, 48, 49, 63, 64, 65, 95, 96, 97, 126, 127, 128}
	keyCountsShort = []int{1, 2, 7, 8, 9, 17, 32, 33, 128}

	dims      = []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 24, 31, 32, 33, 48, 63, 64, 65, 80, 96, 127, 128, 129, 192, 256, 257}
	dimsShort = []int{1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 33}
)
