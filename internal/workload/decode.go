package workload

import (
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"time"

	"github.com/seed-091431b3/attention"
	"github.com/seed-091431b3/attention/internal/peak"
)

// DecodeSpec describes steps of decoding: one query or a few for each sequence of
// a batch whose keys and values are cached.
type DecodeSpec struct {
	QueryHeads, KVHeads int // KVHeads 0: QueryHeads
	Dim                 int
	Lengths             []int // keys of the sequences of one step
	Queries             int   // of a sequence in a step; 0: 1
	Format              attention.Format
	PageKeys            int // 0: DefaultPageKeys
	Kernel              string
	Workers             int // 0: 1
	// Bytes is what the caches of all steps hold at least, so that a step finds
	// its own in no processor's cache.
	Bytes float64
}

const (
	// DefaultPageKeys is a cache's, too.
	DefaultPageKeys = 128
	// ColdBytes are more than the caches of a processor hold.
	ColdBytes = 512 << 20
	// fillTokens are appended to a sequence at once.
	fillTokens = 1024
)

// Decode is decoding ready to run. Steps take turns with several batches.
type Decode struct {
	Operator *attention.Operator
	Inputs   attention.Inputs
	Outputs  attention.Outputs
	Batch    attention.Batch
	Batches  [][]*attention.CachedSequence
	// Bytes are those of the keys and values of one step.
	Bytes float64

	workers, next int
}

// defaults replaces what is 0 by what it stands for.
func (s *DecodeSpec) defaults() {
	if s.KVHeads == 0 {
		s.KVHeads = s.QueryHeads
	}
	if s.PageKeys == 0 {
		s.PageKeys = DefaultPageKeys
	}
	s.Queries, s.Workers = max(s.Queries, 1), max(s.Workers, 1)
}

// elementBytes is the size of a number in a format.
func elementBytes(f attention.Format) int {
	if f == attention.FormatFloat32 {
		return 4
	}
	return 2
}

// shape is the bytes of the keys and values of one step, the number of batches,
// and of the pages of each.
func (s *DecodeSpec) shape() (bytes, batches, pages float64) {
	var keys float64
	for _, n := range s.Lengths {
		keys += float64(n)
		pages += float64((n + s.PageKeys - 1) / s.PageKeys)
	}
	bytes = keys * float64(s.KVHeads) * 2 * float64(s.Dim) * float64(elementBytes(s.Format))
	return bytes, 1 + math.Floor(s.Bytes/bytes), pages
}

// Memory is how many bytes NewDecode allocates, nearly. It does not overflow.
func (s DecodeSpec) Memory() float64 {
	s.defaults()
	_, batches, pages := s.shape()
	sequence := 256 + 2*4*16*float64(s.Dim) // without its pages: what writing takes
	page := pageBytes(s.PageKeys, s.KVHeads, s.Dim, s.Format)
	rows := float64(len(s.Lengths))*float64(s.Queries)*float64(s.QueryHeads) + fillTokens*float64(s.KVHeads)
	return page + batches*(pages*page+sequence*float64(len(s.Lengths))) + rows*2*4*float64(s.Dim)
}

// pageBytes are those of a page of a cache, nearly: V has a line more for every 16
// channels, which are rounded up. A cache has a page more than is asked for.
func pageBytes(keys, heads, dim int, f attention.Format) float64 {
	return float64(keys+1) * float64(heads) * 2 * float64(dim+7) * float64(elementBytes(f))
}

// NewDecode makes the caches, with contents drawn by a fixed seed.
func NewDecode(s DecodeSpec) (*Decode, error) {
	s.defaults()
	runtime.GC() // the caches that others left may have been as large
	bytes, batches, pages := s.shape()
	cache, err := attention.NewCache(attention.CacheConfig{
		KVHeads: s.KVHeads, HeadDim: s.Dim, PageKeys: s.PageKeys, Pages: int(pages * batches), Format: s.Format,
	})
	if err != nil {
		return nil, err
	}
	d := &Decode{Bytes: bytes, workers: s.Workers}
	if d.Operator, err = attention.New(attention.Config{
		QueryHeads: s.QueryHeads, KVHeads: s.KVHeads, HeadDim: s.Dim,
		Workers: s.Workers, Kernel: s.Kernel, Mask: attention.Causal(),
	}); err != nil {
		return nil, err
	}
	rng := rand.New(rand.NewPCG(5, 6))
	k, v := normal(rng, fillTokens, s.KVHeads, s.Dim), normal(rng, fillTokens, s.KVHeads, s.Dim)
	for range int(batches) {
		batch := make([]*attention.CachedSequence, len(s.Lengths))
		for b, n := range s.Lengths {
			batch[b] = cache.NewSequence()
			for left := n; left > 0; left -= fillTokens {
				if err := batch[b].Append(k, v, min(left, fillTokens)); err != nil {
					return nil, fmt.Errorf("filling the cache: %w", err)
				}
			}
		}
		d.Batches = append(d.Batches, batch)
	}
	n := len(s.Lengths) * s.Queries
	d.Inputs = attention.Inputs{Q: normal(rng, n, s.QueryHeads, s.Dim)}
	d.Outputs = attention.Outputs{O: attention.Packed(make([]float32, n*s.QueryHeads*s.Dim), s.QueryHeads, s.Dim)}
	cu := make([]int, len(s.Lengths)+1)
	for b := range cu {
		cu[b] = b * s.Queries
	}
	d.Batch = attention.Batch{CuQ: cu}
	return d, nil
}

// normal is a packed tensor drawn from a normal distribution.
func normal(rng *rand.Rand, tokens, heads, dim int) attention.Tensor {
	data := make([]float32, tokens*heads*dim)
	for i := range data {
		data[i] = float32(rng.NormFloat64())
	}
	return attention.Packed(data, heads, dim)
}

// Step decodes the next batch.
func (d *Decode) Step() error {
	batch := d.Batches[d.next]
	d.next = (d.next + 1) % len(d.Batches)
	return d.Operator.ForwardCached(d.Inputs, d.Outputs, d.Batch, batch)
}

// Measure times steps against reading as much memory, of a buffer as large as the
// caches of all steps, ColdBytes at most. All batches are used once beforehand.
func (d *Decode) Measure(minTime time.Duration) peak.Stream {
	step := func() {
		if err := d.Step(); err != nil {
			panic(err) // a step that ran once runs again
		}
	}
	for range d.Batches {
		step()
	}
	buffer := int(min(ColdBytes, d.Bytes*float64(len(d.Batches))))
	return peak.MeasureStream(d.Bytes, d.workers, buffer, minTime, step)
}
