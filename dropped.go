package attention

import (
	"slices"
	"sort"

	"github.com/seed-091431b3/attention/kernel"
)

// keyInterval is the keys lo <= j < hi.
type keyInterval struct{ lo, hi int }

// dropped are the keys that a cached sequence has no more: intervals in order, no
// two of which touch. It is the mask that hides them.
type dropped []keyInterval

// with adds an interval, and returns the one that it has become part of.
func (d dropped) with(x keyInterval) (dropped, keyInterval) {
	first := d.from(x.lo - 1) // one that ends at x.lo touches
	last := first
	for ; last < len(d) && d[last].lo <= x.hi; last++ {
		x.lo, x.hi = min(x.lo, d[last].lo), max(x.hi, d[last].hi)
	}
	return slices.Replace(d, first, last, x), x
}

// below is what of d is below key n.
func (d dropped) below(n int) dropped {
	i := sort.Search(len(d), func(i int) bool { return d[i].hi >= n })
	if i == len(d) {
		return d
	}
	if d[i].hi = n; d[i].lo < n {
		i++
	}
	return d[:i]
}

// from is the first interval that ends behind key j.
func (d dropped) from(j int) int {
	return sort.Search(len(d), func(i int) bool { return d[i].hi > j })
}

func (d *dropped) PerHead() bool { return false }

func (d *dropped) Tile(_ *kernel.Sequence, _, _, j0, j1 int) (kernel.Visibility, int) {
	i := d.from(j0)
	switch {
	case i == len(*d) || (*d)[i].lo >= j1:
		return kernel.Visible, j1
	case (*d)[i].lo <= j0 && (*d)[i].hi >= j1:
		return kernel.Hidden, (*d)[i].hi
	}
	return kernel.Mixed, j1
}

func (d *dropped) Row(_ *kernel.Sequence, _, _, j0, n int, words *[kernel.MaskWords]uint32) {
	for _, x := range (*d)[d.from(j0):] {
		if x.lo >= j0+n {
			break
		}
		for k := max(x.lo-j0, 0); k < min(x.hi-j0, n); k++ {
			words[k/32] &^= 1 << (k % 32)
		}
	}
}
