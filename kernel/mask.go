package kernel

// Sequence is what a mask may know of the sequence it is asked about. Query i
// sits at position i+Offset in key coordinates.
type Sequence struct {
	Index         int // in the batch
	Queries, Keys int
	Offset        int
}

// Visibility says what a tile of queries and keys holds.
type Visibility uint8

const (
	Hidden  Visibility = iota // no query sees any key
	Mixed                     // some pairs are visible, or it is not known
	Visible                   // every query sees every key
)

// A Ranger is a mask whose rows are intervals: query i sees exactly the keys
// lo <= j < hi. The result need not lie within the sequence.
type Ranger interface {
	Range(s *Sequence, i int) (lo, hi int)
}

// A Bitmap is a mask of any shape.
type Bitmap interface {
	// PerHead reports whether rows differ between heads.
	PerHead() bool
	// Tile classifies queries i0 <= i < i1 and keys j0 <= j < j1 for all heads.
	// Where it is Hidden, so are the keys from j0 to next, which is at least j1.
	Tile(s *Sequence, i0, i1, j0, j1 int) (v Visibility, next int)
	// Row clears in words the bits of the keys that query i of head h does not
	// see: bit k%32 of words[k/32] is key j0+k, for k < n.
	Row(s *Sequence, h, i, j0, n int, words *[MaskWords]uint32)
}

// Dense is a mask in memory: query i of head h sees key j where
// Data[h*Head+i*Query+j].
type Dense struct {
	Data        []bool
	Head, Query int
}

// Mask is the conjunction of its terms; the zero Mask hides nothing.
type Mask struct {
	Rangers []Ranger
	Bitmaps []Bitmap
	Dense   []Dense
}

// Forget drops the terms, but keeps the room for them.
func (m *Mask) Forget() {
	clear(m.Rangers[:cap(m.Rangers)])
	clear(m.Bitmaps[:cap(m.Bitmaps)])
	clear(m.Dense[:cap(m.Dense)])
}

// intervals reports whether intervals are all there is.
func (m *Mask) intervals() bool { return len(m.Bitmaps) == 0 && len(m.Dense) == 0 }

// rangeOf intersects the intervals of all rangers with the keys of s. An empty
// interval is returned as (0, 0).
func (m *Mask) rangeOf(s *Sequence, i int) (lo, hi int) {
	lo, hi = 0, s.Keys
	for _, r := range m.Rangers {
		a, b := r.Range(s, i)
		lo, hi = max(lo, a), min(hi, b)
	}
	if lo >= hi {
		return 0, 0
	}
	return lo, hi
}

// tile classifies a tile, intervals apart. What is in memory is not looked at.
func (m *Mask) tile(s *Sequence, i0, i1, j0, j1 int) (Visibility, int) {
	all := Visible
	if len(m.Dense) > 0 {
		all = Mixed
	}
	for _, b := range m.Bitmaps {
		v, next := b.Tile(s, i0, i1, j0, j1)
		if v == Hidden {
			return Hidden, next
		}
		all = min(all, v)
	}
	return all, j1
}

// perHead reports whether any bitmap differs between heads; what is in memory
// is looked up lane by lane anyway.
func (m *Mask) perHead() bool {
	for _, b := range m.Bitmaps {
		if b.PerHead() {
			return true
		}
	}
	return false
}

// setRange sets words to the keys lo <= j < hi of the block that starts at j0.
func setRange(words []uint32, lo, hi, j0 int) {
	for w := range words {
		first := j0 + 32*w
		words[w] = ones(hi-first) &^ ones(lo-first)
	}
}

// ones returns a word whose lowest n bits are set, n being clamped to 0..32.
func ones(n int) uint32 { return uint32(uint64(1)<<min(max(n, 0), 32) - 1) }

// Extent is the number of keys in the interval that query i may see.
func (m *Mask) Extent(s *Sequence, i int) int {
	lo, hi := m.rangeOf(s, i)
	return hi - lo
}
