package workload

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"slices"
	"time"

	"github.com/seed-091431b3/attention"
	"github.com/seed-091431b3/attention/internal/peak"
)

// AppendSpec describes the growing of cached sequences, as in decoding: they take
// turns, each by as many tokens; or of a single one, if all is to stay in a
// processor's caches.
type AppendSpec struct {
	KVHeads, Dim int
	Tokens       int // of one Append; 0: 1
	Format       attention.Format
	PageKeys     int // 0: DefaultPageKeys
	// Bytes of other memory are read before every sample, so that the processor's
	// caches hold nothing of what it writes; 0: they hold all, if they can.
	Bytes float64
}

// AppendResult is what Append.Measure found: medians over the samples.
type AppendResult struct {
	Samples    int
	Nanos      float64 // ns a token, appended
	WriteNanos float64 // ns a token, written
	Ratio      float64 // median of the samples' ratios
}

// Append is appending ready to run, and a plain write to compare it with: copies
// of rows [token][head][channel] of K and of V that are in the cache's format
// already, one after the other, round and round two buffers as large as the keys
// and values of all sequences.
type Append struct {
	spec      AppendSpec
	sequences []*attention.CachedSequence
	rounds    int // of a sample
	keys      int // most of a sequence, which is freed then
	k, v      attention.Tensor

	row          int // bytes of K, or V, of a token
	ringK, ringV []byte
	next         int // where the rings are written next
	rowsK, rowsV []byte
	other        []byte
}

const (
	// A sample is of sampleTokens, or minAppends calls: enough for a thread's clock.
	sampleTokens = 128
	minAppends   = 4
	minSamples   = 21
)

func (s *AppendSpec) defaults() {
	if s.PageKeys == 0 {
		s.PageKeys = DefaultPageKeys
	}
	s.Tokens = max(s.Tokens, 1)
}

// shape is the number of sequences, of rounds of a sample, and the most keys of a
// sequence.
func (s *AppendSpec) shape() (sequences, rounds, keys int) {
	sequences, rounds = max(sampleTokens/s.Tokens, minAppends), 1
	if s.Bytes == 0 {
		sequences, rounds = 1, sequences
	}
	return sequences, rounds, 2 * max(s.PageKeys, rounds*s.Tokens)
}

// Memory is how many bytes NewAppend allocates, nearly. It does not overflow.
func (s AppendSpec) Memory() float64 {
	s.defaults()
	sequences, _, keys := s.shape()
	pages := 1 + float64(sequences)*float64((keys+s.PageKeys-1)/s.PageKeys)
	row := 2 * float64(s.KVHeads) * float64(s.Dim)
	rows := float64(sequences)*float64(keys) + float64(s.Tokens)
	return s.Bytes + pages*pageBytes(s.PageKeys, s.KVHeads, s.Dim, s.Format) +
		row*(rows*float64(elementBytes(s.Format))+4*float64(max(s.Tokens, s.PageKeys)))
}

// NewAppend makes the cache and writes to all that a sample will write to.
func NewAppend(s AppendSpec) (*Append, error) {
	s.defaults()
	sequences, rounds, keys := s.shape()
	cache, err := attention.NewCache(attention.CacheConfig{
		KVHeads: s.KVHeads, HeadDim: s.Dim, PageKeys: s.PageKeys, Format: s.Format,
		Pages: sequences * ((keys + s.PageKeys - 1) / s.PageKeys),
	})
	if err != nil {
		return nil, err
	}
	most := max(s.Tokens, s.PageKeys)
	rng := rand.New(rand.NewPCG(7, 8))
	a := &Append{
		spec: s, rounds: rounds, keys: keys, row: s.KVHeads * s.Dim * elementBytes(s.Format),
		k: normal(rng, most, s.KVHeads, s.Dim), v: normal(rng, most, s.KVHeads, s.Dim),
		other: written(int(s.Bytes)),
	}
	a.rowsK, a.rowsV = written(s.Tokens*a.row), written(s.Tokens*a.row)
	a.ringK, a.ringV = written(sequences*keys*a.row), written(sequences*keys*a.row)
	for range sequences {
		x := cache.NewSequence()
		for left := keys; left > 0; left -= most {
			if err := x.Append(a.k, a.v, min(left, most)); err != nil {
				return nil, fmt.Errorf("filling the cache: %w", err)
			}
		}
		a.sequences = append(a.sequences, x)
	}
	for i, x := range a.sequences {
		// Each sample meets all places of a page equally often, if it can.
		x.Truncate(i * s.PageKeys / sequences)
	}
	return a, nil
}

// written is n bytes that have pages of their own.
func written(n int) []byte {
	b := make([]byte, n)
	for i := 0; i < n; i += 4096 {
		b[i] = 1
	}
	return b
}

// append appends to every sequence.
func (a *Append) append() {
	for range a.rounds {
		for _, x := range a.sequences {
			if err := x.Append(a.k, a.v, a.spec.Tokens); err != nil {
				panic(err) // there is room
			}
		}
	}
}

// write writes as much.
func (a *Append) write() {
	for range a.rounds * len(a.sequences) {
		copy(a.ringK[a.next:], a.rowsK)
		copy(a.ringV[a.next:], a.rowsV)
		if a.next += len(a.rowsK); a.next+len(a.rowsK) > len(a.ringK) {
			a.next = 0
		}
	}
}

// sample times fn, on the thread's clock. What it copies from is in the processor's
// caches, if it fits.
func (a *Append) sample(fn func()) float64 {
	for _, x := range a.sequences {
		if x.Len()+a.rounds*a.spec.Tokens > a.keys {
			x.Free()
		}
	}
	touch(a.other)
	touch(a.rowsK)
	touch(a.rowsV)
	touch(a.k.Data[:a.spec.Tokens*a.spec.KVHeads*a.spec.Dim])
	touch(a.v.Data[:a.spec.Tokens*a.spec.KVHeads*a.spec.Dim])
	begin := peak.ThreadTime()
	fn()
	return float64(max(1, peak.ThreadTime()-begin)) / float64(a.rounds*len(a.sequences)*a.spec.Tokens)
}

// touch reads x, some of every 64 bytes.
func touch[E byte | float32](x []E) {
	var sum E
	step := 64
	if _, ok := any(sum).(float32); ok {
		step = 16
	}
	for i := 0; i < len(x); i += step {
		sum += x[i]
	}
	runtime.KeepAlive(sum)
}

// Measure takes samples of both for at least minTime. Every sample of appending
// lies between two of writing, and its ratio is to their mean.
func (a *Append) Measure(minTime time.Duration) AppendResult {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	runtime.GC()
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	var appends, writes, ratios []float64
	a.sample(a.append)
	begin, before := time.Now(), a.sample(a.write)
	for len(ratios) < minSamples || time.Since(begin) < minTime {
		x, after := a.sample(a.append), a.sample(a.write)
		write := (before + after) / 2
		appends, writes, ratios = append(appends, x), append(writes, write), append(ratios, x/write)
		before = after
	}
	return AppendResult{Samples: len(ratios), Nanos: median(appends), WriteNanos: median(writes), Ratio: median(ratios)}
}

// median is that of x, which is not empty, and sorts it.
func median(x []float64) float64 {
	slices.Sort(x)
	return (x[(len(x)-1)/2] + x[len(x)/2]) / 2
}
