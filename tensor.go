package attention

import (
	"cmp"
	"fmt"
	"math/bits"
	"slices"
	"unsafe"

	"github.com/seed-091431b3/attention/kernel"
)

// Tensor is a strided view of rows: channel c of token t of head h of sequence b
// is
//
//	Data[start(b) + t*TokenStride + h*HeadStride + c]
//
// where start(b) is b*SequenceStride, or, if SequenceStride is 0, the b-th
// entry of the cumulative lengths times TokenStride: the sequences are packed
// back to back. Strides count elements. The number of heads and channels is
// the operator's.
//
// Numbers of 16 bits are in BF16 or F16 instead of Data. They are converted
// when they are read, exactly, and rounded half to even when O is written;
// arithmetic is that of float32. The gradients that Backward writes must be
// float32.
type Tensor struct {
	Data           []float32
	BF16           []BFloat16
	F16            []Float16
	TokenStride    int
	HeadStride     int
	SequenceStride int
}

// Packed views data as [tokens, heads, dim], the sequences of a ragged batch
// back to back.
func Packed[T Element](data []T, heads, dim int) Tensor {
	return strided(data, heads*dim, dim, 0)
}

// strided is a tensor with these strides.
func strided[T Element](data []T, token, head, sequence int) Tensor {
	t := Tensor{TokenStride: token, HeadStride: head, SequenceStride: sequence}
	switch data := any(data).(type) {
	case []float32:
		t.Data = data
	case []BFloat16:
		t.BF16 = data
	case []Float16:
		t.F16 = data
	}
	return t
}

// BSHD views data as [sequences, length, heads, dim]; a sequence may use fewer
// than length tokens.
func BSHD[T Element](data []T, length, heads, dim int) Tensor {
	return strided(data, heads*dim, dim, length*heads*dim)
}

// BHSD views data as [sequences, heads, length, dim]; a sequence may use fewer
// than length tokens.
func BHSD[T Element](data []T, heads, length, dim int) Tensor {
	return strided(data, dim, length*dim, heads*length*dim)
}

// FusedQKV views data as [tokens, queryHeads+2*kvHeads, dim], the output of one
// projection: the query heads of a token, then its key heads, then its value
// heads.
func FusedQKV[T Element](data []T, queryHeads, kvHeads, dim int) (q, k, v Tensor) {
	token := (queryHeads + 2*kvHeads) * dim
	part := func(head int) Tensor { return strided(data[min(head*dim, len(data)):], token, dim, 0) }
	return part(0), part(queryHeads), part(queryHeads + kvHeads)
}

// start is the element at which sequence b begins, cu being the cumulative
// lengths.
func (t *Tensor) start(cu []int, b int) int {
	if t.SequenceStride != 0 {
		return b * t.SequenceStride
	}
	return cu[b] * t.TokenStride
}

// format is that of the elements.
func (t *Tensor) format() kernel.Format {
	switch {
	case t.BF16 != nil:
		return kernel.BFloat16
	case t.F16 != nil:
		return kernel.Float16
	}
	return kernel.Float32
}

// given reports whether there are elements, none included.
func (t *Tensor) given() bool { return t.Data != nil || t.BF16 != nil || t.F16 != nil }

func (t *Tensor) len() int { return len(t.Data) + len(t.BF16) + len(t.F16) }

// from is the view from element n on.
func (t *Tensor) from(n int) kernel.Rows {
	r := kernel.Rows{Format: t.format(), Row: t.TokenStride, Head: t.HeadStride}
	switch r.Format {
	case kernel.Float32:
		r.Data = t.Data[n:]
	case kernel.BFloat16:
		r.Half = bits16(t.BF16[n:])
	case kernel.Float16:
		r.Half = bits16(t.F16[n:])
	}
	return r
}

// check verifies that every element of the tensor lies within its slice, and in
// no other sequence.
func (t *Tensor) check(name string, cu []int, heads, dim int) error {
	if t.Data != nil && (t.BF16 != nil || t.F16 != nil) || t.BF16 != nil && t.F16 != nil {
		return fmt.Errorf("attention: %s: has %d elements of Data, %d of BF16 and %d of F16, all but one must be nil",
			name, len(t.Data), len(t.BF16), len(t.F16))
	}
	for _, s := range [...]struct {
		name string
		n    int
	}{{"TokenStride", t.TokenStride}, {"HeadStride", t.HeadStride}, {"SequenceStride", t.SequenceStride}} {
		if s.n < 0 {
			return fmt.Errorf("attention: %s: %s is %d, must not be negative", name, s.name, s.n)
		}
	}
	if t.SequenceStride == 0 {
		return t.fits(name, 0, cu[len(cu)-1], heads, dim, len(cu)-2)
	}
	for b := range len(cu) - 1 {
		if err := t.fits(name, b, cu[b+1]-cu[b], heads, dim, b); err != nil {
			return err
		}
	}
	return t.checkSequences(name, cu, heads, dim)
}

// fits verifies that n tokens that start at b*SequenceStride lie within Data.
func (t *Tensor) fits(name string, b, n, heads, dim, sequence int) error {
	if n == 0 {
		return nil
	}
	last, ok := index(b, t.SequenceStride, n-1, t.TokenStride, heads-1, t.HeadStride, dim)
	if !ok {
		return fmt.Errorf("attention: %s: the size of sequence %d overflows int", name, sequence)
	}
	if last > t.len() {
		return fmt.Errorf("attention: %s: has %d elements, sequence %d ends at %d", name, t.len(), sequence, last)
	}
	return nil
}

// index returns a*as + b*bs + c*cs + d, or false if it overflows. All are >= 0.
func index(a, as, b, bs, c, cs, d int) (int, bool) {
	sum := uint64(d)
	for _, p := range [...][2]int{{a, as}, {b, bs}, {c, cs}} {
		hi, lo := bits.Mul64(uint64(p[0]), uint64(p[1]))
		var carry uint64
		sum, carry = bits.Add64(sum, lo, 0)
		if hi != 0 || carry != 0 {
			return 0, false
		}
	}
	const maxInt = uint64(^uint(0) >> 1)
	return int(sum), sum <= maxInt
}

// region is the memory a tensor or slice covers, for the tests of overlap.
type region struct {
	name        string
	start, end  uintptr // bytes
	token, foot int     // stride of a token, and how much of it is covered; elements, 0: unknown
	size        int     // bytes of an element
}

func regionOf[T any](name string, data []T) region {
	if len(data) == 0 {
		return region{name: name}
	}
	start, size := uintptr(unsafe.Pointer(unsafe.SliceData(data))), unsafe.Sizeof(data[0])
	return region{name: name, start: start, end: start + uintptr(len(data))*size, size: int(size)}
}

// region is what the tensor covers, its interleaving included if its tokens
// are one stride apart throughout.
func (t *Tensor) region(name string, cu []int, heads, dim int) region {
	end := 0
	if t.SequenceStride == 0 && cu[len(cu)-1] > 0 {
		end, _ = index(0, 0, cu[len(cu)-1]-1, t.TokenStride, heads-1, t.HeadStride, dim)
	} else {
		for b := range len(cu) - 1 {
			if n := cu[b+1] - cu[b]; n > 0 {
				e, _ := index(b, t.SequenceStride, n-1, t.TokenStride, heads-1, t.HeadStride, dim)
				end = max(end, e)
			}
		}
	}
	var r region
	switch t.format() {
	case kernel.Float32:
		r = regionOf(name, t.Data[:end])
	case kernel.BFloat16:
		r = regionOf(name, t.BF16[:end])
	case kernel.Float16:
		r = regionOf(name, t.F16[:end])
	}
	if foot := (heads-1)*t.HeadStride + dim; foot <= t.TokenStride && (t.SequenceStride == 0 || t.SequenceStride%t.TokenStride == 0) {
		r.token, r.foot = t.TokenStride, foot
	}
	return r
}

// overlaps reports whether two regions share an element. Tensors interleaved in
// one buffer, such as a fused Q, K and V, do not.
func (r region) overlaps(s region) bool {
	if r.start >= s.end || s.start >= r.end {
		return false
	}
	if r.token == 0 || r.token != s.token || r.size != s.size {
		return true
	}
	if r.start > s.start {
		r, s = s, r
	}
	size := uintptr(r.size)
	if (s.start-r.start)%size != 0 {
		return true
	}
	gap := int((s.start - r.start) / size % uintptr(r.token))
	return gap < r.foot || gap+s.foot > r.token
}

// checkDistinct verifies that the tokens and heads of an output do not share
// elements with each other.
func (t *Tensor) checkDistinct(name string, cu []int, heads, dim int) error {
	rows := cu[len(cu)-1]
	if t.SequenceStride != 0 {
		rows = longest(cu)
	}
	if !distinct(rows, t.TokenStride, heads, t.HeadStride, dim) {
		return fmt.Errorf("attention: %s: strides %d (token) and %d (head) make rows of %d channels overlap", name, t.TokenStride, t.HeadStride, dim)
	}
	return nil
}

// checkSequences verifies that no sequence reaches into another, as one does
// that is longer than the padding of its batch allows.
func (t *Tensor) checkSequences(name string, cu []int, heads, dim int) error {
	rows := longest(cu)
	if t.SequenceStride == 0 || rows == 0 {
		return nil
	}
	if t.HeadStride == 0 {
		heads = 1 // shared by all
	}
	if !nested(dim, axis{t.TokenStride, rows}, axis{t.HeadStride, heads}, axis{t.SequenceStride, len(cu) - 1}) {
		return fmt.Errorf("attention: %s: SequenceStride %d, TokenStride %d and HeadStride %d make sequences of up to %d tokens overlap",
			name, t.SequenceStride, t.TokenStride, t.HeadStride, rows)
	}
	return nil
}

// longest is the length of the longest sequence.
func longest(cu []int) int {
	n := 0
	for b := range len(cu) - 1 {
		n = max(n, cu[b+1]-cu[b])
	}
	return n
}

// distinct reports whether rows tokens and heads of dim channels share no
// element.
func distinct(rows, token, heads, head, dim int) bool {
	return rows == 0 || heads == 0 || nested(dim, axis{token, rows}, axis{head, heads}, axis{})
}

// axis is n things stride elements apart.
type axis struct{ stride, n int }

// nested reports whether rows of dim channels along three axes lie apart because
// the axes are nested, each in the next.
func nested(dim int, axes ...axis) bool {
	slices.SortFunc(axes, func(x, y axis) int { return cmp.Compare(x.stride, y.stride) })
	extent := dim
	for _, a := range axes {
		if a.n < 2 {
			continue
		}
		if a.stride < extent {
			return false
		}
		extent += (a.n - 1) * a.stride
	}
	return true
}
