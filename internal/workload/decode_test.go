package workload

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-091431b3/attention"
)

// allocated is how many bytes f allocates.
func allocated(f func()) float64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return float64(after.TotalAlloc - before.TotalAlloc)
}

// The caches are so small that their memory is the Go heap's, which can be measured.
func TestDecodeHoldsWhatItSays(t *testing.T) {
	for _, s := range []DecodeSpec{
		{QueryHeads: 2, Dim: 64, Lengths: []int{3000}},
		{QueryHeads: 4, KVHeads: 2, Dim: 40, Lengths: []int{5, 200, 129}, Queries: 3, Workers: 2, Bytes: 1 << 20},
		{QueryHeads: 4, KVHeads: 1, Dim: 128, Lengths: Ragged(64, 16, 64), PageKeys: 16, Format: attention.FormatBFloat16, Bytes: 2e6},
		{QueryHeads: 1, Dim: 8, Lengths: []int{1024}, PageKeys: 1024, Format: attention.FormatFloat16, Bytes: 1e6},
	} {
		var d *Decode
		got := allocated(func() {
			var err error
			d, err = NewDecode(s)
			require.NoError(t, err)
		})
		assert.LessOrEqual(t, got, s.Memory()*1.3+1<<18)
		assert.GreaterOrEqual(t, got, s.Memory()/4)
		assert.GreaterOrEqual(t, d.Bytes*float64(len(d.Batches)), s.Bytes)
		keys := 0
		for b, x := range d.Batches[len(d.Batches)-1] {
			assert.Equal(t, s.Lengths[b], x.Len())
			keys += x.Len()
		}
		s.defaults()
		assert.Equal(t, float64(2*keys*s.KVHeads*s.Dim*elementBytes(s.Format)), d.Bytes)
		for range len(d.Batches) + 1 {
			require.NoError(t, d.Step())
		}
	}
}

func TestAppendGrowsEverySequence(t *testing.T) {
	for _, s := range []AppendSpec{
		{KVHeads: 2, Dim: 40},
		{KVHeads: 2, Dim: 40, Bytes: 1 << 20},
		{KVHeads: 1, Dim: 16, Tokens: 7, PageKeys: 16, Format: attention.FormatBFloat16, Bytes: 1},
		{KVHeads: 1, Dim: 16, Tokens: 7, PageKeys: 16, Format: attention.FormatBFloat16},
		{KVHeads: 3, Dim: 64, Tokens: 100, PageKeys: 48, Bytes: 1 << 20},
		{KVHeads: 3, Dim: 64, Tokens: 128, Format: attention.FormatFloat16},
	} {
		var a *Append
		got := allocated(func() {
			var err error
			a, err = NewAppend(s)
			require.NoError(t, err)
		})
		assert.LessOrEqual(t, got, s.Memory()*1.3+1<<18)
		assert.GreaterOrEqual(t, got, s.Memory()/4)
		s.defaults()
		freed := 0
		grown := a.rounds * s.Tokens
		for range 3*a.keys/grown + 1 {
			var before []int
			for _, x := range a.sequences {
				before = append(before, x.Len())
			}
			a.sample(a.append)
			a.sample(a.write)
			for i, x := range a.sequences {
				switch x.Len() {
				case before[i] + grown:
				case grown, 0:
					freed++
				default:
					t.Fatalf("%d keys after %d", x.Len(), before[i])
				}
			}
		}
		assert.GreaterOrEqual(t, freed, 2*len(a.sequences))
		r := a.Measure(0)
		assert.GreaterOrEqual(t, r.Samples, minSamples)
		for _, x := range []float64{r.Nanos, r.WriteNanos, r.Ratio} {
			assert.Positive(t, x)
		}
	}
}
