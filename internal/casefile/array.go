package casefile

import (
	"encoding/binary"
	"fmt"
	"math"
)

// Array is one array of a case: its bytes are Data, little-endian, in C order.
type Array struct {
	Name  string
	Role  Role
	DType DType
	Shape []int
	Data  []byte
}

// Len returns the number of elements.
func (a *Array) Len() int { return len(a.Data) / a.DType.Size() }

// Float32s decodes an array of f32 or f16.
func (a *Array) Float32s() ([]float32, error) {
	switch a.DType {
	case F32:
		return decode(a.Data, 4, func(b []byte) float32 { return math.Float32frombits(binary.LittleEndian.Uint32(b)) }), nil
	case F16:
		return decode(a.Data, 2, func(b []byte) float32 { return halfToFloat32(binary.LittleEndian.Uint16(b)) }), nil
	}
	return nil, a.cannot("float32")
}

// Float64s decodes an array of f64, f32 or f16.
func (a *Array) Float64s() ([]float64, error) {
	if a.DType == F64 {
		return decode(a.Data, 8, func(b []byte) float64 { return math.Float64frombits(binary.LittleEndian.Uint64(b)) }), nil
	}
	narrow, err := a.Float32s()
	if err != nil {
		return nil, a.cannot("float64")
	}
	wide := make([]float64, len(narrow))
	for i, x := range narrow {
		wide[i] = float64(x)
	}
	return wide, nil
}

// Int64s decodes an array of i64, i32 or u8.
func (a *Array) Int64s() ([]int64, error) {
	switch a.DType {
	case I64:
		return decode(a.Data, 8, func(b []byte) int64 { return int64(binary.LittleEndian.Uint64(b)) }), nil
	case I32:
		return decode(a.Data, 4, func(b []byte) int64 { return int64(int32(binary.LittleEndian.Uint32(b))) }), nil
	case U8:
		return decode(a.Data, 1, func(b []byte) int64 { return int64(b[0]) }), nil
	}
	return nil, a.cannot("int64")
}

// Bools decodes an array of bool.
func (a *Array) Bools() ([]bool, error) {
	if a.DType != Bool {
		return nil, a.cannot("bool")
	}
	return decode(a.Data, 1, func(b []byte) bool { return b[0] != 0 }), nil
}

// cannot is the error of asking for a type that does not hold a's elements.
func (a *Array) cannot(as string) error {
	return fmt.Errorf("casefile: %s %q is %s, which cannot be read as %s", a.Role, a.Name, a.DType, as)
}

// decode applies one to every size bytes of data.
func decode[T any](data []byte, size int, one func([]byte) T) []T {
	out := make([]T, len(data)/size)
	for i := range out {
		out[i] = one(data[i*size:])
	}
	return out
}

// NewArray encodes values in the type that holds their Go type exactly. It
// panics if shape does not have as many elements as values.
func NewArray[T float64 | float32 | int64 | int32 | uint8 | bool](name string, role Role, shape []int, values []T) Array {
	a := Array{Name: name, Role: role, Shape: shape}
	switch v := any(values).(type) {
	case []float64:
		a.DType = F64
	case []float32:
		a.DType = F32
	case []int64:
		a.DType = I64
	case []int32:
		a.DType = I32
	case []uint8:
		a.DType = U8
	case []bool:
		a.DType = Bool
	default:
		panic(fmt.Sprintf("casefile: no dtype for %T", v))
	}
	if n, ok := product(shape...); !ok || n != len(values) {
		panic(fmt.Sprintf("casefile: array %q of shape %v has %d values", name, shape, len(values)))
	}
	data, err := binary.Append(nil, binary.LittleEndian, values)
	if err != nil {
		panic(err) // every T has a fixed size
	}
	a.Data = data
	return a
}

// halfToFloat32 widens an IEEE 754 binary16, exactly.
func halfToFloat32(h uint16) float32 {
	sign := uint32(h>>15) << 31
	exponent, fraction := uint32(h>>10&0x1f), uint32(h&0x3ff)
	switch exponent {
	case 0: // zero or subnormal: fraction · 2^-24
		x := float32(fraction) * (1.0 / (1 << 24))
		return math.Float32frombits(math.Float32bits(x) | sign)
	case 0x1f: // Inf or NaN
		return math.Float32frombits(sign | 0xff<<23 | fraction<<13)
	}
	return math.Float32frombits(sign | (exponent+127-15)<<23 | fraction<<13)
}

// product multiplies factors that are at least 0; ok is false if one is not, or
// if the result overflows an int.
func product(factors ...int) (n int, ok bool) {
	n = 1
	zero := false
	for _, f := range factors {
		switch {
		case f < 0:
			return 0, false
		case f == 0:
			zero = true
		case n > math.MaxInt/f:
			return 0, false
		default:
			n *= f
		}
	}
	if zero {
		return 0, true
	}
	return n, true
}
