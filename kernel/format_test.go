package kernel

import (
	"math"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// value is what the bits of a format mean, by definition: sign, exponent of e
// bits, mantissa of m bits.
func value(bits uint16, e, m int) float64 {
	sign := 1.0
	if bits>>15 == 1 {
		sign = -1
	}
	bias := 1<<(e-1) - 1
	exponent, mantissa := int(bits>>m)&(1<<e-1), float64(bits&(1<<m-1))
	switch {
	case exponent == 1<<e-1 && mantissa == 0:
		return sign * math.Inf(1)
	case exponent == 1<<e-1:
		return math.NaN()
	case exponent == 0:
		return math.Copysign(math.Ldexp(mantissa, 1-bias-m), sign)
	}
	return sign * math.Ldexp(mantissa+float64(int(1)<<m), exponent-bias-m)
}

var formats = []struct {
	format Format
	e, m   int
}{{BFloat16, 8, 7}, {Float16, 5, 10}}

// TestWidenIsExact: all 65,536 numbers of each format mean what its definition
// says.
func TestWidenIsExact(t *testing.T) {
	for _, f := range formats {
		for i := range 1 << 16 {
			want, got := value(uint16(i), f.e, f.m), float64(f.format.Widen32(uint16(i)))
			require.True(t, math.Float64bits(want) == math.Float64bits(got) || want != want && got != got,
				"%d: %#x is %v, must be %v", f.format, i, got, want)
		}
	}
}

// TestNarrowRoundsHalfToEven: every number of each format comes back, what lies
// between two neighbours goes to the nearer, what lies half-way to the even one.
func TestNarrowRoundsHalfToEven(t *testing.T) {
	for _, f := range formats {
		infinity := uint16(1<<f.e-1) << f.m
		narrow := func(x float32) uint16 { return f.format.Narrow16(x) }
		for _, sign := range []uint16{0, 1 << 15} {
			for i := range infinity {
				lo, hi := i|sign, (i+1)|sign
				a := value(lo, f.e, f.m)
				b := value(hi, f.e, f.m)
				if i+1 == infinity {
					b = a + (a - value(lo-1, f.e, f.m)) // the next, if there were one
				}
				mid := float32((a + b) / 2)
				even := lo
				if i&1 == 1 {
					even = hi
				}
				require.Equal(t, lo, narrow(float32(a)), "%d: %v", f.format, a)
				require.Equal(t, even, narrow(mid), "%d: %v, half-way from %#x", f.format, mid, lo)
				require.Equal(t, lo, narrow(math.Nextafter32(mid, float32(a))), "%d: below %v", f.format, mid)
				outward := float32(math.Copysign(math.Inf(1), float64(mid)))
				require.Equal(t, hi, narrow(math.Nextafter32(mid, outward)), "%d: above %v", f.format, mid)
			}
			require.Equal(t, infinity|sign, narrow(float32(value(infinity|sign, f.e, f.m))))
		}
		for _, bits := range []uint32{0x7FC00000, 0x7F800001, 0xFFFFFFFF, 0xFF800001} {
			x := f.format.Widen32(narrow(math.Float32frombits(bits)))
			require.True(t, x != x, "%d: NaN %#x became %v", f.format, bits, x)
		}
	}
}

// TestFinite: each number of each format says by itself, in every place, whether
// it is finite.
func TestFinite(t *testing.T) {
	for _, f := range formats {
		words := make([]uint64, 4)
		stored := unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), 32)
		for i := range 1 << 16 {
			x := f.format.Widen32(uint16(i))
			at := i % 16
			stored[2*at], stored[2*at+1] = byte(i), byte(i>>8)
			require.Equal(t, x-x == 0, f.format.Finite(stored), "%d: %#x", f.format, i)
			stored[2*at], stored[2*at+1] = 0xFF, 0x03 // finite
		}
	}
	for _, x := range []float32{0, -1, math.MaxFloat32, -math.MaxFloat32, float32(math.Inf(1)), float32(math.Inf(-1)), float32(math.NaN())} {
		stored := []float32{1, -2, 3, x, 0, -5, 6, 7}
		for range stored {
			stored = append(stored[1:], stored[0])
			require.Equal(t, x-x == 0, Float32.Finite(unsafe.Slice((*byte)(unsafe.Pointer(&stored[0])), 32)), x)
		}
	}
}
