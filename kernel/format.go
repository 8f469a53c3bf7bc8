package kernel

import (
	"encoding/binary"
	"math"
)

// Format is how numbers are kept in memory; arithmetic is that of float32.
type Format uint8

const (
	Float32 Format = iota
	BFloat16
	Float16
	Formats // their number
)

// Size is the number of bytes of an element.
func (f Format) Size() int {
	if f == Float32 {
		return 4
	}
	return 2
}

// Run keys lie together in a panel of stored K, and Run channels in one of
// stored V, whatever the table: a cache line of float32.
const Run = 16

// Stored holds the loops over what is stored in one format. K lies in panels
// [key/Run][channel][Run], V in panels [channel/Run][key][Run], step keys apart.
type Stored struct {
	// Score and Accumulate are [Strip]'s for few rows, whose time is that of
	// reading K and V: lanes are keys and channels in them. They compute lanes r <
	// rows and leave anything in the lanes after. While they read a panel they fetch
	// the next, and next, a valid address, while they read the last.
	//
	//	s[j][r] = fma chain over c ascending of k[j][c]*q[c][r], from 0; max[r] is raised
	//	o[r][c] = o*alpha[r], then fma chain over j ascending of v[j][c]*p[j][r]
	//
	// s, p [keys][w], q [dk][w], o [w][panels*Run]; alpha nil starts from zero.
	Score      func(s, max, q *float32, k, next *byte, dk, panels, rows, w int)
	Accumulate func(o, p, alpha *float32, v, next *byte, n, step, panels, rows, w int)
	// Widen converts n numbers to float32, exactly; Narrow from float32, rounding
	// half to even. NaN stays NaN.
	Widen  func(dst *float32, src *byte, n int)
	Narrow func(dst *byte, src *float32, n int)
}

// Widen32 is the value of a bfloat16 or float16.
func (f Format) Widen32(x uint16) float32 {
	if f == BFloat16 {
		return math.Float32frombits(uint32(x) << 16)
	}
	sign, e, m := uint32(x>>15)<<31, uint32(x>>10)&31, uint32(x)&0x3FF
	switch e {
	case 31:
		if m != 0 {
			m |= 1 << 9 // quiet
		}
		return math.Float32frombits(sign | 0xFF<<23 | m<<13)
	case 0:
		// A multiple of 2^-24.
		return math.Float32frombits(math.Float32bits(float32(m)*0x1p-24) | sign)
	}
	return math.Float32frombits(sign | (e+127-15)<<23 | m<<13)
}

// Narrow16 rounds x to a bfloat16 or float16, half to even.
func (f Format) Narrow16(x float32) uint16 {
	b := math.Float32bits(x)
	sign, abs := uint16(b>>31)<<15, b&^(1<<31)
	if f == BFloat16 {
		if abs > 0xFF<<23 {
			return uint16(b>>16) | 1<<6
		}
		return uint16((b + 0x7FFF + b>>16&1) >> 16)
	}
	switch {
	case abs > 0xFF<<23:
		return sign | 0x7C00 | 1<<9 | uint16(abs>>13)&0x3FF
	case abs >= 0x477FF000: // 65520 rounds to infinity
		return sign | 0x7C00
	case abs < 0x38800000: // below 2^-14: adding 0.5 leaves multiples of 2^-24
		return sign | uint16(math.Float32bits(math.Float32frombits(abs)+0.5)-math.Float32bits(0.5))
	}
	return sign | uint16((abs-(127-15)<<23+0xFFF+abs>>13&1)>>13)
}

// exponents are the bits of the exponents in eight bytes of a format.
var exponents = [Formats]uint64{0x7F80_0000_7F80_0000, 0x7F80_7F80_7F80_7F80, 0x7C00_7C00_7C00_7C00}

// Finite reports whether none of the stored numbers is an infinity or NaN. These
// have an exponent of ones, to which a carry in its lowest bit makes the bit above.
func (f Format) Finite(stored []byte) bool {
	ones := exponents[f]
	lowest := ones &^ (ones << 1)
	var a, b uint64
	for ; len(stored) >= 16; stored = stored[16:] {
		a |= binary.LittleEndian.Uint64(stored)&ones + lowest
		b |= binary.LittleEndian.Uint64(stored[8:])&ones + lowest
	}
	if len(stored) > 0 {
		var last [16]byte
		copy(last[:], stored)
		a |= binary.LittleEndian.Uint64(last[:])&ones + lowest
		b |= binary.LittleEndian.Uint64(last[8:])&ones + lowest
	}
	return (a|b)&(ones<<1&^ones) == 0
}
