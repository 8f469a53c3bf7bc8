package workload

import (
	"fmt"
	"math/rand/v2"
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
	PageKeys            int // 0: the default
	Kernel              string
	Workers             int // 0: 1
	// Bytes is what the caches of all steps hold at least, so that a step finds
	// its own in no processor's cache.
	Bytes float64
}

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

// NewDecode makes the caches, with contents drawn by a fixed seed.
func NewDecode(s DecodeSpec) (*Decode, error) {
	if s.KVHeads == 0 {
		s.KVHeads = s.QueryHeads
	}
	queries, page := max(s.Queries, 1), s.PageKeys
	if page == 0 {
		page = 128
	}
	cfg := attention.Config{
		QueryHeads: s.QueryHeads, KVHeads: s.KVHeads, HeadDim: s.Dim,
		Workers: max(s.Workers, 1), Kernel: s.Kernel, Mask: attention.Causal(),
	}
	d := &Decode{workers: cfg.Workers}
	pages, keys, longest := 0, 0, 0
	for _, n := range s.Lengths {
		pages += (n + page - 1) / page
		keys += n
		longest = max(longest, n)
	}
	size := 4.0
	if s.Format != attention.FormatFloat32 {
		size = 2
	}
	d.Bytes = float64(keys) * float64(s.KVHeads) * 2 * float64(s.Dim) * size
	batches := 1 + int(s.Bytes/d.Bytes)
	cache, err := attention.NewCache(attention.CacheConfig{
		KVHeads: s.KVHeads, HeadDim: s.Dim, PageKeys: page, Pages: pages * batches, Format: s.Format,
	})
	if err != nil {
		return nil, err
	}
	if d.Operator, err = attention.New(cfg); err != nil {
		return nil, err
	}
	rng := rand.New(rand.NewPCG(5, 6))
	tensor := func(tokens, heads int) attention.Tensor {
		data := make([]float32, tokens*heads*s.Dim)
		for i := range data {
			data[i] = float32(rng.NormFloat64())
		}
		return attention.Packed(data, heads, s.Dim)
	}
	k, v := tensor(longest, s.KVHeads), tensor(longest, s.KVHeads)
	for range batches {
		var batch []*attention.CachedSequence
		for _, n := range s.Lengths {
			x := cache.NewSequence()
			if err := x.Append(k, v, n); err != nil {
				return nil, fmt.Errorf("filling the cache: %w", err)
			}
			batch = append(batch, x)
		}
		d.Batches = append(d.Batches, batch)
	}
	n := len(s.Lengths) * queries
	d.Inputs = attention.Inputs{Q: tensor(n, s.QueryHeads)}
	d.Outputs = attention.Outputs{O: tensor(n, s.QueryHeads)}
	cu := make([]int, len(s.Lengths)+1)
	for b := range cu {
		cu[b] = b * queries
	}
	d.Batch = attention.Batch{CuQ: cu}
	return d, nil
}

// Step decodes the next batch.
func (d *Decode) Step() error {
	batch := d.Batches[d.next]
	d.next = (d.next + 1) % len(d.Batches)
	return d.Operator.ForwardCached(d.Inputs, d.Outputs, d.Batch, batch)
}

// Measure times steps against reading as much memory. All batches are used once
// beforehand.
func (d *Decode) Measure(minTime time.Duration) peak.Stream {
	step := func() {
		if err := d.Step(); err != nil {
			panic(err) // a step that ran once runs again
		}
	}
	for range d.Batches {
		step()
	}
	return peak.MeasureStream(d.Bytes, d.workers, minTime, step)
}
