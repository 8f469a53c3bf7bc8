package attention

import (
	"fmt"
	"unsafe"

	"github.com/seed-091431b3/attention/kernel"
)

// Format is how numbers are stored. Arithmetic is that of float32 throughout.
type Format uint8

// The formats of a [Cache].
const (
	FormatFloat32  = Format(kernel.Float32)
	FormatBFloat16 = Format(kernel.BFloat16)
	FormatFloat16  = Format(kernel.Float16)
)

var formatNames = [...]string{"float32", "bfloat16", "float16"}

func (f Format) String() string {
	if int(f) < len(formatNames) {
		return formatNames[f]
	}
	return fmt.Sprintf("Format(%d)", uint8(f))
}

// BFloat16 is a number of 16 bits with the exponent of float32 and a mantissa of
// 7 bits ("brain floating point").
type BFloat16 uint16

// Float16 is a number of IEEE 754's binary16: an exponent of 5 bits and a mantissa
// of 10.
type Float16 uint16

// Element is what a [Tensor] holds.
type Element interface {
	float32 | BFloat16 | Float16
}

// ToBFloat16 rounds x half to even; what is too large becomes an infinity, and NaN
// stays NaN.
func ToBFloat16(x float32) BFloat16 { return BFloat16(kernel.BFloat16.Narrow16(x)) }

// ToFloat16 is [ToBFloat16] for Float16, whose largest number is 65504.
func ToFloat16(x float32) Float16 { return Float16(kernel.Float16.Narrow16(x)) }

// Float32 is the same number.
func (x BFloat16) Float32() float32 { return kernel.BFloat16.Widen32(uint16(x)) }

// Float32 is the same number.
func (x Float16) Float32() float32 { return kernel.Float16.Widen32(uint16(x)) }

// fewNumbers are converted one by one, as looking for a kernel takes longer.
const fewNumbers = 256

// Widen converts the numbers of src, as many as both have room for, and returns
// how many.
func Widen[T BFloat16 | Float16](dst []float32, src []T) int {
	n, f := min(len(dst), len(src)), formatOf(src)
	if n >= fewNumbers {
		tables()[0].Stored[f].Widen(&dst[0], (*byte)(unsafe.Pointer(&src[0])), n)
		return n
	}
	for i, x := range src[:n] {
		dst[i] = f.Widen32(uint16(x))
	}
	return n
}

// Narrow is the inverse of [Widen], rounding as [ToBFloat16] and [ToFloat16] do.
func Narrow[T BFloat16 | Float16](dst []T, src []float32) int {
	n, f := min(len(dst), len(src)), formatOf(dst)
	if n >= fewNumbers {
		tables()[0].Stored[f].Narrow((*byte)(unsafe.Pointer(&dst[0])), &src[0], n)
		return n
	}
	for i, x := range src[:n] {
		dst[i] = T(f.Narrow16(x))
	}
	return n
}

func formatOf[T BFloat16 | Float16](x []T) kernel.Format {
	if _, ok := any(x).([]BFloat16); ok {
		return kernel.BFloat16
	}
	return kernel.Float16
}

// bits16 views numbers of 16 bits as such.
func bits16[T ~uint16](x []T) []uint16 {
	return unsafe.Slice((*uint16)(unsafe.Pointer(unsafe.SliceData(x))), len(x))
}
