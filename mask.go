package attention

import (
	"cmp"
	"fmt"
	"slices"
	"sort"

	"github.com/seed-091431b3/attention/kernel"
)

// Unbounded, as a side of a window, lets it reach any distance.
const Unbounded = -1

// Mask says which keys a query sees. The zero Mask hides nothing: attention is
// bidirectional. Masks may be shared; And combines them. A mask copies the slices
// it is made from, but for the data of Bool, which must not change while a call
// runs. Whether a mask fits a sequence is verified by each call.
//
// In what follows query i sits at position p = i + offset in key coordinates
// (see Batch), and j is a key.
type Mask struct {
	terms []term
}

// term is a mask that stands for itself in a conjunction.
type term interface {
	// check verifies the mask against a sequence it is used on.
	check(s kernel.Sequence, heads int) error
}

// And is the conjunction: visible where all masks say so.
func And(masks ...Mask) Mask {
	var m Mask
	for _, x := range masks {
		m.terms = append(m.terms, x.terms...)
	}
	return m
}

func maskOf(t term) Mask { return Mask{terms: []term{t}} }

func (m Mask) check(s kernel.Sequence, heads int) error {
	for _, t := range m.terms {
		if err := t.check(s, heads); err != nil {
			return fmt.Errorf("%w (sequence %d)", err, s.Index)
		}
	}
	return nil
}

// compile appends the terms to dst.
func (m Mask) compile(dst *kernel.Mask) {
	for _, t := range m.terms {
		switch t := t.(type) {
		case kernel.Ranger:
			dst.Rangers = append(dst.Rangers, t)
		case kernel.Bitmap:
			dst.Bitmaps = append(dst.Bitmaps, t)
		case boolMask:
			dst.Dense = append(dst.Dense, kernel.Dense(t))
		}
	}
}

// invalid is a mask whose construction failed; using it gives the error.
type invalid struct{ err error }

func (t invalid) check(kernel.Sequence, int) error { return t.err }

func invalidMask(format string, args ...any) Mask {
	return maskOf(invalid{fmt.Errorf("attention: "+format, args...)})
}

// Causal lets a query see its own position and what precedes it: j <= p.
func Causal() Mask { return maskOf(interval{Unbounded, 0}) }

// Window lets a query see the left keys before its position, that position, and
// the right keys after it: p-left <= j <= p+right. Either side may be
// Unbounded. Window(n-1, 0) shows n keys; that is FlashAttention's convention.
func Window(left, right int) Mask {
	if left < Unbounded || right < Unbounded {
		return invalidMask("Window: (%d, %d), neither side may be below Unbounded (%d)", left, right, Unbounded)
	}
	return maskOf(interval{left, right})
}

// interval is p-left <= j <= p+right.
type interval struct{ left, right int }

func (t interval) check(kernel.Sequence, int) error { return nil }

func (t interval) Range(s *kernel.Sequence, i int) (lo, hi int) {
	p := i + s.Offset
	lo, hi = 0, s.Keys
	const far = 2*maxLength - 1 // reaches every key, and does not overflow
	if t.left >= 0 {
		lo = p - min(t.left, far)
	}
	if t.right >= 0 {
		hi = p + min(t.right, far) + 1
	}
	return lo, hi
}

// PrefixLM lets every query see the first n keys, and is causal after them:
// j < n or j <= p.
func PrefixLM(n int) Mask {
	if n < 0 {
		return invalidMask("PrefixLM: %d, must not be negative", n)
	}
	return maskOf(prefix(n))
}

type prefix int

func (t prefix) check(kernel.Sequence, int) error { return nil }

func (t prefix) Range(s *kernel.Sequence, i int) (lo, hi int) {
	return 0, max(int(t), i+s.Offset+1)
}

// SinkTokens lets every query see the first n keys besides its window: j < n or
// p-left <= j <= p+right (StreamingLLM, Xiao et al. 2023).
func SinkTokens(n, left, right int) Mask {
	if n < 0 {
		return invalidMask("SinkTokens: n is %d, must not be negative", n)
	}
	if left < Unbounded || right < Unbounded {
		return invalidMask("SinkTokens: window (%d, %d), neither side may be below Unbounded (%d)", left, right, Unbounded)
	}
	return maskOf(sinkTokens{n, interval{left, right}})
}

type sinkTokens struct {
	n      int
	window interval
}

func (t sinkTokens) check(kernel.Sequence, int) error { return nil }

func (t sinkTokens) PerHead() bool { return false }

func (t sinkTokens) Tile(s *kernel.Sequence, i0, i1, j0, j1 int) (kernel.Visibility, int) {
	lo, hi0 := t.window.Range(s, i0)
	lo1, hi := t.window.Range(s, i1-1)
	switch {
	case j1 <= t.n, j0 >= lo1 && j1 <= hi0:
		return kernel.Visible, j1
	case j0 >= hi && j0 >= t.n:
		return kernel.Hidden, s.Keys
	case j1 <= lo && j0 >= t.n:
		return kernel.Hidden, lo
	}
	return kernel.Mixed, j1
}

func (t sinkTokens) Row(s *kernel.Sequence, _, i, j0, n int, words *[kernel.MaskWords]uint32) {
	lo, hi := t.window.Range(s, i)
	clearUnless(words, n, func(k int) bool { j := j0 + k; return j < t.n || lo <= j && j < hi })
}

// clearUnless clears the bits k < n for which visible is false.
func clearUnless(words *[kernel.MaskWords]uint32, n int, visible func(k int) bool) {
	for k := range n {
		if bit := uint32(1) << (k % 32); words[k/32]&bit != 0 && !visible(k) {
			words[k/32] &^= bit
		}
	}
}

// KeyRanges lets query i see the keys lo[i] <= j < hi[i]. Bounds outside the
// sequence are clamped.
func KeyRanges(lo, hi []int) Mask {
	if len(lo) != len(hi) {
		return invalidMask("KeyRanges: lo has %d entries, hi has %d, must be the same", len(lo), len(hi))
	}
	return maskOf(keyRanges{slices.Clone(lo), slices.Clone(hi)})
}

type keyRanges struct{ lo, hi []int }

func (t keyRanges) check(s kernel.Sequence, _ int) error {
	if len(t.lo) != s.Queries {
		return fmt.Errorf("attention: KeyRanges: has %d entries, the sequence has %d queries", len(t.lo), s.Queries)
	}
	return nil
}

func (t keyRanges) Range(_ *kernel.Sequence, i int) (lo, hi int) { return t.lo[i], t.hi[i] }

// Documents lets a query see the keys of its own document: doc[p] == doc[j].
// doc has one entry a key, and every query must sit on a key.
func Documents(doc []int32) Mask {
	doc = slices.Clone(doc)
	t := &documents{doc: doc, lo: make([]int, len(doc)), hi: make([]int, len(doc))}
	seen := make(map[int32]bool)
	for a := 0; a < len(doc); {
		b := a + 1
		for b < len(doc) && doc[b] == doc[a] {
			b++
		}
		if seen[doc[a]] {
			return maskOf(scattered{doc})
		}
		seen[doc[a]] = true
		for j := a; j < b; j++ {
			t.lo[j], t.hi[j] = a, b
		}
		a = b
	}
	return maskOf(t)
}

func checkDocuments(s kernel.Sequence, doc []int32) error {
	if len(doc) != s.Keys {
		return fmt.Errorf("attention: Documents: has %d entries, the sequence has %d keys", len(doc), s.Keys)
	}
	if s.Queries > 0 && (s.Offset < 0 || s.Offset+s.Queries > s.Keys) {
		return fmt.Errorf("attention: Documents: queries sit at positions %d to %d, must be within the %d keys",
			s.Offset, s.Offset+s.Queries-1, s.Keys)
	}
	return nil
}

// documents holds the interval of the document at each position.
type documents struct {
	doc    []int32
	lo, hi []int
}

func (t *documents) check(s kernel.Sequence, _ int) error { return checkDocuments(s, t.doc) }

func (t *documents) Range(s *kernel.Sequence, i int) (lo, hi int) {
	return t.lo[i+s.Offset], t.hi[i+s.Offset]
}

// scattered are documents of which some are not contiguous.
type scattered struct{ doc []int32 }

func (t scattered) check(s kernel.Sequence, _ int) error { return checkDocuments(s, t.doc) }

func (t scattered) PerHead() bool { return false }

func (t scattered) Tile(_ *kernel.Sequence, _, _, _, j1 int) (kernel.Visibility, int) {
	return kernel.Mixed, j1
}

func (t scattered) Row(s *kernel.Sequence, _, i, j0, n int, words *[kernel.MaskWords]uint32) {
	own := t.doc[i+s.Offset]
	clearUnless(words, n, func(k int) bool { return t.doc[j0+k] == own })
}

// Bool is a dense mask: query i of head h sees key j where
// data[h*headStride + i*queryStride + j] is true. A stride of 0 broadcasts.
func Bool(data []bool, headStride, queryStride int) Mask {
	if headStride < 0 || queryStride < 0 {
		return invalidMask("Bool: strides (%d, %d), must not be negative", headStride, queryStride)
	}
	return maskOf(boolMask{data, headStride, queryStride})
}

type boolMask kernel.Dense

func (t boolMask) check(s kernel.Sequence, heads int) error {
	if s.Queries == 0 || s.Keys == 0 {
		return nil
	}
	end, ok := index(heads-1, t.Head, s.Queries-1, t.Query, 0, 0, s.Keys)
	if !ok {
		return fmt.Errorf("attention: Bool: the size of the mask overflows int")
	}
	if end > len(t.Data) {
		return fmt.Errorf("attention: Bool: has %d elements, the sequence needs %d", len(t.Data), end)
	}
	return nil
}

// Tree is the mask of speculative decoding: the queries are draft tokens, the
// last keys of the sequence are those same tokens, and parents[i] is the index
// of the draft token that token i follows, or -1 if it follows the prefix
// directly. A query sees the prefix, itself and its ancestors. parents[i] < i.
func Tree(parents []int) Mask {
	for i, p := range parents {
		if p < -1 || p >= i {
			return invalidMask("Tree: parent of token %d is %d, must be -1 or an earlier token", i, p)
		}
	}
	return maskOf(tree(slices.Clone(parents)))
}

type tree []int

func (t tree) check(s kernel.Sequence, _ int) error {
	switch {
	case len(t) != s.Queries:
		return fmt.Errorf("attention: Tree: has %d parents, the sequence has %d queries", len(t), s.Queries)
	case len(t) > s.Keys:
		return fmt.Errorf("attention: Tree: has %d tokens, the sequence has %d keys", len(t), s.Keys)
	}
	return nil
}

func (t tree) PerHead() bool { return false }

func (t tree) Tile(s *kernel.Sequence, _, i1, j0, j1 int) (kernel.Visibility, int) {
	prefix := s.Keys - len(t)
	switch {
	case j1 <= prefix:
		return kernel.Visible, j1
	case j0 >= prefix+i1:
		return kernel.Hidden, s.Keys
	}
	return kernel.Mixed, j1
}

func (t tree) Row(s *kernel.Sequence, _, i, j0, n int, words *[kernel.MaskWords]uint32) {
	prefix := s.Keys - len(t)
	var seen [kernel.MaskWords]uint32
	for k := range max(min(prefix-j0, n), 0) {
		seen[k/32] |= 1 << (k % 32)
	}
	for a := i; a >= 0 && prefix+a >= j0; a = t[a] {
		if k := prefix + a - j0; k < n {
			seen[k/32] |= 1 << (k % 32)
		}
	}
	for w := range words {
		words[w] &= seen[w]
	}
}

// Block names a tile of a BlockSparse mask: block row Q and block column K.
type Block struct{ Q, K int }

// BlockSparse lets query i see key j where the block (i/queries, j/keys) is
// listed.
func BlockSparse(queries, keys int, blocks []Block) Mask {
	if queries <= 0 || keys <= 0 {
		return invalidMask("BlockSparse: blocks of %d x %d, both sides must be positive", queries, keys)
	}
	t := &blockSparse{queries: queries, rows: map[int][]keysFromTo{}}
	sorted := slices.Clone(blocks)
	slices.SortFunc(sorted, func(x, y Block) int { return cmp.Or(cmp.Compare(x.Q, y.Q), cmp.Compare(x.K, y.K)) })
	for _, b := range sorted {
		if b.Q < 0 || b.K < 0 {
			return invalidMask("BlockSparse: block (%d, %d), must not be negative", b.Q, b.K)
		}
		if b.K > maxLength/keys {
			continue // beyond any sequence
		}
		row := t.rows[b.Q]
		lo, hi := b.K*keys, b.K*keys+min(keys, maxLength)
		if n := len(row); n > 0 && row[n-1].hi >= lo {
			row[n-1].hi = hi
			continue
		}
		t.rows[b.Q] = append(row, keysFromTo{lo, hi})
	}
	return maskOf(t)
}

// keysFromTo are the keys lo <= j < hi.
type keysFromTo struct{ lo, hi int }

// blockSparse holds, for each row of blocks that has any, the keys it shows as
// ascending intervals that do not touch.
type blockSparse struct {
	queries int
	rows    map[int][]keysFromTo
}

func (t *blockSparse) check(kernel.Sequence, int) error { return nil }

func (t *blockSparse) PerHead() bool { return false }

// from returns the intervals of query i that end after key j.
func (t *blockSparse) from(i, j int) []keysFromTo {
	row := t.rows[i/t.queries]
	n := sort.Search(len(row), func(n int) bool { return row[n].hi > j })
	return row[n:]
}

func (t *blockSparse) Tile(s *kernel.Sequence, i0, i1, j0, j1 int) (kernel.Visibility, int) {
	visible, next := true, max(s.Keys, j1)
	for i := i0; i < i1; i += t.queries - i%t.queries {
		row := t.from(i, j0)
		visible = visible && len(row) > 0 && row[0].lo <= j0 && row[0].hi >= j1
		if len(row) > 0 {
			next = min(next, max(row[0].lo, j0))
		}
	}
	switch {
	case visible:
		return kernel.Visible, j1
	case next >= j1:
		return kernel.Hidden, next
	}
	return kernel.Mixed, j1
}

func (t *blockSparse) Row(_ *kernel.Sequence, _, i, j0, n int, words *[kernel.MaskWords]uint32) {
	row := t.from(i, j0)
	clearUnless(words, n, func(k int) bool {
		for len(row) > 0 && row[0].hi <= j0+k {
			row = row[1:]
		}
		return len(row) > 0 && row[0].lo <= j0+k
	})
}

// Visibility is what a mask says of a tile of queries and keys.
type Visibility = kernel.Visibility

// Hidden tiles are skipped, Visible ones take no mask work, Mixed ones are
// asked pair by pair.
const (
	Hidden  = kernel.Hidden
	Mixed   = kernel.Mixed
	Visible = kernel.Visible
)

// Func is a mask given by a function: visible(b, h, i, j) of sequence b, query
// head h, query i and key j. It must be pure, as it is called from several
// goroutines and asked more than once. tile, which may be nil, classifies the
// queries i0 <= i < i1 and keys j0 <= j < j1 of all heads at once; only tiles
// it calls Mixed are asked pair by pair.
func Func(visible func(b, h, i, j int) bool, tile func(b, i0, i1, j0, j1 int) Visibility) Mask {
	if visible == nil {
		return invalidMask("Func: the function is nil")
	}
	return maskOf(&function{visible, tile})
}

type function struct {
	visible func(b, h, i, j int) bool
	tile    func(b, i0, i1, j0, j1 int) Visibility
}

func (t *function) check(kernel.Sequence, int) error { return nil }

func (t *function) PerHead() bool { return true }

func (t *function) Tile(s *kernel.Sequence, i0, i1, j0, j1 int) (kernel.Visibility, int) {
	if t.tile == nil {
		return kernel.Mixed, j1
	}
	v := t.tile(s.Index, i0, i1, j0, j1)
	if v != kernel.Hidden && v != kernel.Visible {
		v = kernel.Mixed // which is always right
	}
	return v, j1
}

func (t *function) Row(s *kernel.Sequence, h, i, j0, n int, words *[kernel.MaskWords]uint32) {
	clearUnless(words, n, func(k int) bool { return t.visible(s.Index, h, i, j0+k) })
}
