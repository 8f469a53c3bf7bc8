package attention

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"

	"github.com/seed-091431b3/attention/kernel"
)

// CacheConfig describes a [Cache].
type CacheConfig struct {
	KVHeads int
	// HeadDim is the number of channels of K, ValueDim that of V, 0 meaning
	// HeadDim.
	HeadDim, ValueDim int
	// PageKeys is the number of keys in a page, a multiple of 16; 0 means 128.
	PageKeys int
	// Pages is the number of pages there are, for all sequences together.
	Pages int
	// Format is how keys and values are stored: 16 bits halve the memory, and the
	// time of decoding, which is that of reading it. They are rounded half to even
	// when they are appended.
	Format Format
}

// Cache holds the keys and values of sequences that grow token by token (a "KV
// cache"), in pages from a pool of a fixed size (Kwon et al. 2023, section 4).
// Its memory is allocated when it is made and never grows.
//
// Sequences of one cache may be used by several goroutines at once, a single
// sequence by one.
type Cache struct {
	cfg CacheConfig
	ops *kernel.Ops
	// Pages, as kernel.Pages has them, and how many keys have been written of each.
	k, v         []byte
	filled       []int32
	finite       []bool
	kHead, vHead int // bytes of a head of a page
	vStep        int // keys between panels of V

	mu   sync.Mutex
	free []int32
	refs []int32 // of each page, how many sequences have it
	hole int32   // a page of zeros, in place of those whose keys are all dropped
}

// errNoCache says what a zero value of one of the types is good for.
var errNoCache = errors.New("the zero Cache and CachedSequence are of no use, NewCache and NewSequence make one")

// ErrCacheFull says that a cache has too few free pages left.
var ErrCacheFull = errors.New("the cache is full")

// NewCache allocates a cache, or returns an error that names the field of cfg
// that is wrong.
func NewCache(cfg CacheConfig) (*Cache, error) {
	if cfg.ValueDim == 0 {
		cfg.ValueDim = cfg.HeadDim
	}
	if cfg.PageKeys == 0 {
		cfg.PageKeys = kernel.BlockKeys
	}
	for _, f := range [...]struct {
		name string
		n    int
	}{{"KVHeads", cfg.KVHeads}, {"HeadDim", cfg.HeadDim}, {"ValueDim", cfg.ValueDim}, {"PageKeys", cfg.PageKeys}} {
		if f.n < 1 || f.n > maxDim {
			return nil, fmt.Errorf("attention: %s: %d, must be from 1 to %d", f.name, f.n, maxDim)
		}
	}
	if cfg.PageKeys%kernel.Run != 0 {
		return nil, fmt.Errorf("attention: PageKeys: %d, must be a multiple of %d", cfg.PageKeys, kernel.Run)
	}
	if cfg.Pages < 0 || cfg.Pages >= math.MaxInt32 {
		return nil, fmt.Errorf("attention: Pages: %d, must be from 0 to %d", cfg.Pages, math.MaxInt32-1)
	}
	const most = min(1<<50, math.MaxInt/16) // elements
	channels := cfg.HeadDim + roundUp(cfg.ValueDim, kernel.Run)
	if size := float64(cfg.Pages+1) * float64(cfg.KVHeads) * float64(cfg.PageKeys) * float64(channels); size > most {
		return nil, fmt.Errorf("attention: Pages: %d pages of %d keys, %d heads and %d and %d channels are too large",
			cfg.Pages, cfg.PageKeys, cfg.KVHeads, cfg.HeadDim, cfg.ValueDim)
	}
	if cfg.Format >= Format(kernel.Formats) {
		return nil, fmt.Errorf("attention: Format: %d is not a format", cfg.Format)
	}
	ops, err := table("")
	if err != nil {
		return nil, err
	}
	c := &Cache{cfg: cfg, ops: ops}
	c.kHead = cfg.PageKeys * cfg.HeadDim * kernel.Format(cfg.Format).Size()
	// A line more, so that the panels do not fall into the same sets of a processor's
	// cache.
	c.vStep = cfg.PageKeys + 4/kernel.Format(cfg.Format).Size()
	c.vHead = c.vStep * roundUp(cfg.ValueDim, kernel.Run) * kernel.Format(cfg.Format).Size()
	heads := (cfg.Pages + 1) * cfg.KVHeads
	for _, m := range [...]struct {
		to    *[]byte
		bytes int
	}{{&c.k, heads * c.kHead}, {&c.v, heads * c.vHead}} {
		if *m.to, err = allocate(c, m.bytes); err != nil {
			return nil, fmt.Errorf("attention: Pages: %d pages need %d bytes for K or V: %w", cfg.Pages, m.bytes, err)
		}
	}
	c.filled, c.finite = make([]int32, cfg.Pages+1), make([]bool, heads)
	c.refs, c.free, c.hole = make([]int32, cfg.Pages+1), make([]int32, cfg.Pages), int32(cfg.Pages)
	c.refs[c.hole], c.filled[c.hole] = 1, int32(cfg.PageKeys) // for the cache itself, so that it is never free
	for i := range cfg.KVHeads {
		c.finite[int(c.hole)*cfg.KVHeads+i] = true
	}
	for i := range c.free {
		c.free[i] = int32(cfg.Pages - 1 - i)
	}
	return c, nil
}

// FreePages is the number of pages that no sequence has.
func (c *Cache) FreePages() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.free)
}

// take appends n free pages to pages, or says that there are too few.
func (c *Cache) take(pages []int32, n int) ([]int32, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n > len(c.free) {
		return pages, fmt.Errorf("attention: Cache: needs %d more of its pages, %d of %d are free: %w", n, len(c.free), c.cfg.Pages, ErrCacheFull)
	}
	from := len(c.free) - n
	// From the end, so that what is taken together lies together as long as it can.
	for i := len(c.free) - 1; i >= from; i-- {
		c.refs[c.free[i]], c.filled[c.free[i]] = 1, 0
		pages = append(pages, c.free[i])
	}
	c.free = c.free[:from]
	return pages, nil
}

// share notes another sequence that has the pages.
func (c *Cache) share(pages []int32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range pages {
		c.refs[p]++
	}
}

// drop notes a sequence less that has the pages.
func (c *Cache) drop(pages []int32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range pages {
		if c.refs[p]--; c.refs[p] == 0 {
			c.free = append(c.free, p)
		}
	}
}

// shared reports whether another sequence has the page, too.
func (c *Cache) shared(p int32) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.refs[p] > 1
}

// copyPage copies a page.
func (c *Cache) copyPage(to, from int32) {
	heads := c.cfg.KVHeads
	f, t := int(from)*heads, int(to)*heads
	copy(c.k[t*c.kHead:(t+heads)*c.kHead], c.k[f*c.kHead:])
	copy(c.v[t*c.vHead:(t+heads)*c.vHead], c.v[f*c.vHead:])
	copy(c.finite[t:t+heads], c.finite[f:])
	c.filled[to] = c.filled[from]
}

// CachedSequence is the keys and values of one sequence in a [Cache].
type CachedSequence struct {
	cache   *Cache
	pages   []int32
	n       int
	gone    dropped
	scratch writer
}

// NewSequence returns an empty sequence. Its pages are the pool's again once it is
// freed; one that is merely forgotten keeps them.
func (c *Cache) NewSequence() *CachedSequence {
	if c.ops == nil {
		return &CachedSequence{} // the zero Cache has no pages
	}
	return &CachedSequence{cache: c}
}

// Len is the number of keys.
func (s *CachedSequence) Len() int { return s.n }

// Append adds the first n tokens of k and v, whose heads and channels are those
// of the cache; their SequenceStride counts for nothing. If the pool has too few
// pages nothing is changed, and the error is an [ErrCacheFull]: errors.Is tells.
func (s *CachedSequence) Append(k, v Tensor, n int) error {
	c := s.cache
	if c == nil {
		return fmt.Errorf("attention: %w", errNoCache)
	}
	if n < 0 || n > maxLength-s.n {
		return fmt.Errorf("attention: n: %d, must be from 0 to %d after %d keys", n, maxLength-s.n, s.n)
	}
	k.SequenceStride, v.SequenceStride = 0, 0
	cu := [...]int{0, n}
	if err := k.check("K", cu[:], c.cfg.KVHeads, c.cfg.HeadDim); err != nil {
		return err
	}
	if err := v.check("V", cu[:], c.cfg.KVHeads, c.cfg.ValueDim); err != nil {
		return err
	}
	if n == 0 {
		return nil
	}
	if err := s.grow(n); err != nil {
		return err
	}
	s.write(&k, &v, n)
	s.n += n
	return nil
}

// grow makes room for n keys: new pages, and a copy of the last if it is
// another sequence's, too, and has room left.
func (s *CachedSequence) grow(n int) error {
	c, size := s.cache, s.cache.cfg.PageKeys
	have := len(s.pages)
	more := (s.n+n+size-1)/size - have
	copied := s.n%size > 0 && c.shared(s.pages[have-1])
	if copied {
		more++
	}
	pages, err := c.take(s.pages, more)
	if err != nil {
		return err
	}
	if copied {
		old := pages[have-1]
		c.copyPage(pages[have], old)
		pages = slices.Delete(pages, have-1, have)
		c.drop([]int32{old})
	}
	s.pages = pages
	return nil
}

// Fork returns a sequence with the same keys, for beam search, parallel samples,
// or a prompt that is kept. The two share their pages; a last page that has room
// left is copied when one of them grows, which takes a free page.
func (s *CachedSequence) Fork() *CachedSequence {
	if s.cache == nil {
		return &CachedSequence{}
	}
	s.cache.share(s.pages)
	return &CachedSequence{cache: s.cache, pages: slices.Clone(s.pages), n: s.n, gone: slices.Clone(s.gone)}
}

// Truncate drops the keys from n on, as after speculation that failed. It does
// nothing if there are no more than n, or n is negative.
func (s *CachedSequence) Truncate(n int) {
	if n < 0 || n >= s.n {
		return
	}
	keep := (n + s.cache.cfg.PageKeys - 1) / s.cache.cfg.PageKeys
	s.cache.drop(s.pages[keep:])
	s.pages, s.n = s.pages[:keep], n
	s.gone = s.gone.below(n)
}

// Drop hides the keys from <= j < to for good, as those that a window has left,
// and frees the pages all of whose places are dropped. All other keys keep their
// positions, and Len still counts all. For a window of left keys before the query,
// Drop(0, Len()-left) before the next tokens are appended. Truncate does not bring
// anything back.
func (s *CachedSequence) Drop(from, to int) {
	from, to = max(from, 0), min(to, s.n)
	if from >= to {
		return
	}
	var all keyInterval
	s.gone, all = s.gone.with(keyInterval{from, to})
	c, size := s.cache, s.cache.cfg.PageKeys
	first, last := (all.lo+size-1)/size, all.hi/size
	for i := first; i < last; i++ {
		if page := s.pages[i : i+1]; page[0] != c.hole {
			c.drop(page)
			page[0] = c.hole
			c.share(page)
		}
	}
}

// Free drops all keys. The sequence is empty then, and can be used again.
func (s *CachedSequence) Free() { s.Truncate(0) }

// ForwardCached is [Operator.Forward] with the keys and values of cached
// sequences, one a sequence of the batch, in place of in.K and in.V, which must
// be empty. CuK of the batch must be nil: the keys of a sequence are as many as
// there are in the cache, those of its own queries included, which are to be
// appended first: [Ragged] makes such a batch. With the default alignment the
// queries are the last tokens. Sequences are only read: two calls may have the
// same at once.
//
// The result has the bits of a Forward over the same keys in one piece, however
// they were appended, forked and cut into pages.
func (op *Operator) ForwardCached(in Inputs, out Outputs, batch Batch, sequences []*CachedSequence) error {
	return op.ForwardCachedContext(context.Background(), in, out, batch, sequences)
}

// ForwardCachedContext is ForwardCached, but ends early with ctx's error once
// ctx is done; the outputs are then unfinished.
func (op *Operator) ForwardCachedContext(ctx context.Context, in Inputs, out Outputs, batch Batch, sequences []*CachedSequence) error {
	c := op.acquire()
	defer op.release(c)
	if err := c.checkCached(&in, &batch, sequences); err != nil {
		return err
	}
	c.in, c.out, c.batch, c.cached = in, out, batch, sequences
	return c.forward(ctx)
}

// checkCached verifies the sequences, and gives the batch their lengths.
func (c *call) checkCached(in *Inputs, batch *Batch, sequences []*CachedSequence) error {
	if batch.CuK != nil {
		return fmt.Errorf("attention: cu_seqlens of K: has %d entries, must be nil, as the lengths are those of the cached sequences", len(batch.CuK))
	}
	if in.K.given() || in.V.given() {
		return fmt.Errorf("attention: K, V: are given, must be empty, as the keys are those of the cached sequences")
	}
	if len(sequences) != batch.Sequences() {
		return fmt.Errorf("attention: sequences: there are %d, the batch has %d", len(sequences), batch.Sequences())
	}
	c.cuK = append(c.cuK[:0], 0)
	cfg := &c.op.cfg
	for b, s := range sequences {
		if s == nil {
			return fmt.Errorf("attention: sequences: entry %d is nil", b)
		}
		if s.cache == nil {
			return fmt.Errorf("attention: sequences: entry %d: %w", b, errNoCache)
		}
		if x := &s.cache.cfg; x.KVHeads != cfg.KVHeads || x.HeadDim != cfg.HeadDim || x.ValueDim != cfg.ValueDim {
			return fmt.Errorf("attention: sequences: entry %d has %d heads of %d and %d channels, must have %d of %d and %d",
				b, x.KVHeads, x.HeadDim, x.ValueDim, cfg.KVHeads, cfg.HeadDim, cfg.ValueDim)
		}
		c.cuK = append(c.cuK, c.cuK[b]+s.n)
	}
	if len(batch.CuQ) > 0 {
		batch.CuK = c.cuK
	}
	return nil
}

// view is the keys and values of a kv head, of which there are some.
func (s *CachedSequence) view(kv int) kernel.Pages {
	c, heads := s.cache, s.cache.cfg.KVHeads
	return kernel.Pages{
		Format: kernel.Format(c.cfg.Format), K: c.k[kv*c.kHead:], V: c.v[kv*c.vHead:], Filled: c.filled, Finite: c.finite[kv:], Table: s.pages,
		Keys: c.cfg.PageKeys, KPage: heads * c.kHead, VPage: heads * c.vHead, VStep: c.vStep, FStride: heads,
	}
}
