package attention

import (
	"fmt"
	"math/bits"
	"unsafe"
)

// Tensor is a strided view of float32 rows: channel c of token t of head h of
// sequence b is
//
//	Data[start(b) + t*TokenStride + h*HeadStride + c]
//
// where start(b) is b*SequenceStride, or, if SequenceStride is 0, the b-th
// entry of the cumulative lengths times TokenStride: the sequences are packed
// back to back. Strides count elements. The number of heads and channels is
// the operator's.
type Tensor struct {
	Data           []float32
	TokenStride    int
	HeadStride     int
	SequenceStride int
}

// Packed views data as [tokens, heads, dim], the sequences of a ragged batch
// back to back.
func Packed(data []float32, heads, dim int) Tensor {
	return Tensor{Data: data, TokenStride: heads * dim, HeadStride: dim}
}

// BSHD views data as [sequences, length, heads, dim]; a sequence may use fewer
// than length tokens.
func BSHD(data []float32, length, heads, dim int) Tensor {
	return Tensor{Data: data, TokenStride: heads * dim, HeadStride: dim, SequenceStride: length * heads * dim}
}

// BHSD views data as [sequences, heads, length, dim]; a sequence may use fewer
// than length tokens.
func BHSD(data []float32, heads, length, dim int) Tensor {
	return Tensor{Data: data, TokenStride: dim, HeadStride: length * dim, SequenceStride: heads * length * dim}
}

// FusedQKV views data as [tokens, queryHeads+2*kvHeads, dim], the output of one
// projection: the query heads of a token, then its key heads, then its value
// heads.
func FusedQKV(data []float32, queryHeads, kvHeads, dim int) (q, k, v Tensor) {
	token := (queryHeads + 2*kvHeads) * dim
	part := func(head int) Tensor {
		return Tensor{Data: data[min(head*dim, len(data)):], TokenStride: token, HeadStride: dim}
	}
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

// check verifies that every element of the tensor lies within Data.
func (t *Tensor) check(name string, cu []int, heads, dim int) error {
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
	return nil
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
	if last > len(t.Data) {
		return fmt.Errorf("attention: %s: has %d elements, sequence %d ends at %d", name, len(t.Data), sequence, last)
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
}

func regionOf[T any](name string, data []T) region {
	if len(data) == 0 {
		return region{name: name}
	}
	start := uintptr(unsafe.Pointer(unsafe.SliceData(data)))
	return region{name: name, start: start, end: start + uintptr(len(data))*unsafe.Sizeof(data[0])}
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
	r := regionOf(name, t.Data[:end])
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
	if r.token == 0 || r.token != s.token {
		return true
	}
	const size = 4
	if r.start > s.start {
		r, s = s, r
	}
	if (s.start-r.start)%size != 0 {
		return true
	}
	gap := int((s.start - r.start) / size % uintptr(r.token))
	return gap < r.foot || gap+s.foot > r.token
}

// checkDistinct verifies that the tokens and heads of an output do not share
// elements with each other.
func (t *Tensor) checkDistinct(name string, cu []int, heads, dim int) error {
	longest := 0
	for b := range len(cu) - 1 {
		longest = max(longest, cu[b+1]-cu[b])
	}
	rows := longest
	if t.SequenceStride == 0 {
		rows = cu[len(cu)-1]
	}
	token, head := t.TokenStride, t.HeadStride
	if !distinct(rows, token, heads, head, dim) {
		return fmt.Errorf("attention: %s: strides %d (token) and %d (head) make rows of %d channels overlap", name, token, head, dim)
	}
	if t.SequenceStride != 0 && len(cu) > 2 && longest > 0 {
		foot := (heads-1)*head + dim
		used := (longest-1)*token + foot
		// Sequences follow each other, or lie side by side within a token as in
		// [length, sequences, heads, dim].
		beside := t.SequenceStride >= foot && token >= (len(cu)-2)*t.SequenceStride+foot
		if t.SequenceStride < used && !beside {
			return fmt.Errorf("attention: %s: SequenceStride is %d, a sequence covers %d elements", name, t.SequenceStride, used)
		}
	}
	return nil
}

// distinct reports whether rows tokens and heads of dim channels share no
// element.
func distinct(rows, token, heads, head, dim int) bool {
	switch {
	case rows == 0 || heads == 0 || rows == 1 && heads == 1:
		return true
	case rows == 1:
		return head >= dim
	case heads == 1:
		return token >= dim
	case head <= token:
		return head >= dim && token >= (heads-1)*head+dim
	}
	return token >= dim && head >= (rows-1)*token+dim
}
