package peak

import (
	"runtime"
	"runtime/debug"
	"slices"
	"sync/atomic"
	"time"
	"unsafe"
)

// Stream is what MeasureStream found: medians over the samples.
type Stream struct {
	Samples int     // samples taken
	Millis  float64 // ms a call
	GBs     float64 // 10⁹ bytes a second
	Stream  float64 // the same of a loop that only reads, on all threads together
	Percent float64 // median of the samples' ratios, in percent
}

const (
	chunkBytes = 1 << 20
	// trials of each distance, whose lower quartiles are compared, as disturbances
	// only slow them. Beside another program that reads memory 128 choices of 128
	// were the same; by medians of 15 trials 122.
	trials      = 41
	trialChunks = 4
)

// reader reads a buffer round and round, a chunk an iteration.
type reader struct {
	data  []byte
	free  func()
	next  atomic.Int64
	ahead int // bytes that are fetched ahead, or 0
}

// newReader has a buffer of so many bytes, rounded to chunks, one at least.
func newReader(size int) *reader {
	r := &reader{}
	r.data, r.free = ordinary(max(size/chunkBytes, 1) * chunkBytes)
	for i := 0; i < len(r.data); i += 4096 {
		r.data[i] = 1 // a page of its own
	}
	return r
}

// tune sets how far ahead the buffer is fetched. Whether it helps, and how far,
// depends on the processor, and on how many threads share the memory; loop reads
// with all of them.
func (r *reader) tune(loop func(chunks int) time.Duration) {
	distances := [...]int{0, 4096, 8192}
	var times [len(distances)][]float64
	for range trials {
		for i, ahead := range distances {
			r.ahead = ahead
			times[i] = append(times[i], float64(loop(trialChunks)))
		}
	}
	best := quartile(times[0])
	r.ahead = distances[0]
	for i := 1; i < len(distances); i++ {
		if t := quartile(times[i]); t < best {
			best, r.ahead = t, distances[i]
		}
	}
}

// quartile returns the lower quartile of a, which is not empty, and sorts it.
func quartile(a []float64) float64 {
	slices.Sort(a)
	return a[(len(a)-1)/4]
}

func (r *reader) read(chunks int) {
	for range chunks {
		at := r.next.Add(1) % int64(len(r.data)/chunkBytes) * chunkBytes
		readLines(&r.data[at], chunkBytes/64, r.ahead)
	}
}

// readGeneric is a loop of plain Go that reads lines of 64 bytes. Inlined where
// nobody wants the sum it might read nothing.
//
//go:noinline
func readGeneric(data *byte, lines int) (sum uint64) {
	var a, b, c, d uint64
	x := unsafe.Slice((*[8]uint64)(unsafe.Pointer(data)), lines)
	for i := range x {
		l := &x[i]
		a, b, c, d = a^l[0]^l[4], b^l[1]^l[5], c^l[2]^l[6], d^l[3]^l[7]
	}
	return a ^ b ^ c ^ d
}

// MeasureStream is Measure for work that is limited by reading memory: fn reads
// that many bytes, and is compared with a loop that reads a buffer round and
// round, as fast as it can. To compare memory with memory, neither what fn reads
// in turn nor the buffer may fit into a cache. The buffer is memory as the system
// gives it unasked, and is given back at the end.
func MeasureStream(bytes float64, workers, buffer int, minTime time.Duration, fn func()) Stream {
	threads := min(workers, runtime.GOMAXPROCS(0))
	runtime.GC() // before the buffer is added to what others left
	r := newReader(buffer)
	defer r.free()
	m := meter{flopsPerIter: float64(threads * chunkBytes)}
	if workers == 1 {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		m.clock, m.loop = ThreadTime, timed(ThreadTime, r.read)
	} else {
		c := newCrew(threads, r.read)
		defer c.dismiss()
		m.clock, m.loop = wallTime, c.run
	}
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	r.tune(m.loop)
	x := m.measure(bytes, minTime, fn)
	return Stream{Samples: x.Samples, Millis: x.Millis, GBs: x.GFLOPS, Stream: x.PeakGFLOPS, Percent: x.PeakPercent}
}
