package peak

import (
	"encoding/binary"
	"math/rand/v2"
	"runtime/debug"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestMeasureStream checks that real clocks and threads give numbers, not which,
// from a buffer that is small.
func TestMeasureStream(t *testing.T) {
	percent := debug.SetGCPercent(70)
	defer debug.SetGCPercent(percent)
	r := newReader(0)
	defer r.free()
	for _, workers := range []int{1, 2, 5} {
		s := MeasureStream(chunkBytes, workers, 2*chunkBytes, 0, func() { r.read(1) })
		t.Logf("%+v", s)
		assert.GreaterOrEqual(t, s.Samples, minSamples)
		for _, x := range []float64{s.Millis, s.GBs, s.Stream, s.Percent} {
			assert.Positive(t, x)
		}
	}
	require.Equal(t, 70, debug.SetGCPercent(70), "MeasureStream put the collector back")
}

func TestReaderReadsAllOfItsBuffer(t *testing.T) {
	for size, chunks := range map[int]int{0: 1, chunkBytes - 1: 1, 3*chunkBytes + 5: 3} {
		r := newReader(size)
		assert.Len(t, r.data, chunks*chunkBytes)
		for _, ahead := range []int{0, 8192} { // behind the end, too
			r.ahead = ahead
			r.read(2*chunks + 1)
		}
		assert.Equal(t, int64(4*chunks+2), r.next.Load())
		r.free()
	}
	// Where int has 32 bits, chunks are counted beyond it.
	r := newReader(0)
	defer r.free()
	r.next.Store(1 << 33)
	r.read(1)
}

// TestTune gives every distance a speed of its own, and a lot of noise.
func TestTune(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, best := range []int{0, 4096, 8192} {
		r := &reader{}
		r.tune(func(chunks int) time.Duration {
			x := 1 + rng.Float64()/3
			if r.ahead != best {
				x *= 1.15
			}
			if rng.IntN(5) == 0 {
				x *= 3 * rng.Float64() // interrupted, or by a clock gone wild
			}
			return time.Duration(x * float64(chunks*100_000))
		})
		assert.Equal(t, best, r.ahead)
	}
}

func TestReadGeneric(t *testing.T) {
	var data [4 * 64]byte
	for i := range data {
		data[i] = byte(i*i>>3 + i)
	}
	var want [8]byte
	for i, x := range data {
		want[i%8] ^= x
	}
	assert.Equal(t, binary.NativeEndian.Uint64(want[:]), readGeneric(&data[0], 4))
}
