package attention

import (
	"fmt"
	"math"

	"github.com/seed-091431b3/attention/kernel"
)

// Part is attention of some rows over a part of their keys. A row is a query
// and a head, in any order that all parts share: what Forward writes to a
// packed O of one batch is [tokens*QueryHeads, ValueDim].
type Part struct {
	O   []float32 // [rows, dim]
	LSE []float64 // [rows]
}

// Merge combines attention of the same rows over two disjoint sets of keys to
// attention over both (FlashAttention-2, Dao 2023, section 3.1.1):
//
//	LSE = ln(exp(LSE1) + exp(LSE2))
//	O   = O1*exp(LSE1-LSE) + O2*exp(LSE2-LSE)
//
// A row whose LSE is -Inf has seen nothing: its O is not looked at, and the
// other part's row is the result, bit for bit. Sinks belong to one of the
// parts. Dropout is linear in O and goes through, if both parts count keys
// alike.
//
// dst may be a or b, and is otherwise apart from both. O is computed in float64
// and rounded once, in the same order on every processor. The result is exact
// but for rounding; it is not the bits of attention over all keys at once.
func Merge(dst, a, b Part, dim int) error {
	if err := checkMerge(dst, a, b, dim); err != nil {
		return err
	}
	for r := range dst.LSE {
		o, o1, o2 := row(dst.O, r, dim), row(a.O, r, dim), row(b.O, r, dim)
		x, y := a.LSE[r], b.LSE[r]
		switch {
		case math.IsInf(x, -1) && math.IsInf(y, -1):
			clear(o)
			dst.LSE[r] = x
		case math.IsInf(y, -1):
			copy(o, o1)
			dst.LSE[r] = x
		case math.IsInf(x, -1):
			copy(o, o2)
			dst.LSE[r] = y
		default:
			dst.LSE[r] = mergeRow(o, o1, o2, x, y)
		}
	}
	return nil
}

func row(o []float32, r, dim int) []float32 { return o[r*dim : (r+1)*dim] }

// mergeRow merges one row that both parts have seen something of, and returns
// its LSE.
func mergeRow(o, o1, o2 []float32, x, y float64) float64 {
	m := max(x, y) // NaN if either is
	wx, wy := kernel.Exp(x-m), kernel.Exp(y-m)
	sum := wx + wy
	wx, wy = wx/sum, wy/sum
	for c := range o {
		o[c] = float32(float64(float64(o1[c])*wx) + float64(float64(o2[c])*wy))
	}
	return m + kernel.Ln(sum)
}

// checkMerge verifies sizes and overlaps.
func checkMerge(dst, a, b Part, dim int) error {
	if dim < 1 || dim > maxDim {
		return fmt.Errorf("attention: dim: %d, must be from 1 to %d", dim, maxDim)
	}
	rows := len(dst.LSE)
	parts := [...]struct {
		name string
		Part
	}{{"dst", dst}, {"a", a}, {"b", b}}
	for _, p := range parts {
		if len(p.LSE) != rows {
			return fmt.Errorf("attention: LSE of %s: has %d rows, that of dst has %d", p.name, len(p.LSE), rows)
		}
		if want, ok := index(rows, dim, 0, 0, 0, 0, 0); !ok || len(p.O) != want {
			return fmt.Errorf("attention: O of %s: has %d elements, %d rows of %d need %d", p.name, len(p.O), rows, dim, want)
		}
	}
	o, lse := regionOf("O of dst", dst.O), regionOf("LSE of dst", dst.LSE)
	if o.overlaps(lse) {
		return fmt.Errorf("attention: O of dst: overlaps LSE of dst")
	}
	for _, p := range parts[1:] {
		for _, in := range [...]region{regionOf("O of "+p.name, p.O), regionOf("LSE of "+p.name, p.LSE)} {
			for _, out := range [...]region{o, lse} {
				if out.overlaps(in) && (out.start != in.start || out.end != in.end) {
					return fmt.Errorf("attention: %s: overlaps %s without being it", out.name, in.name)
				}
			}
		}
	}
	return nil
}
