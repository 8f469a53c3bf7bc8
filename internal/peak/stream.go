package peak

import (
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"time"
	"unsafe"
)

// Stream is what MeasureStream found: medians over the samples.
type Stream struct {
	Millis  float64 // ms a call
	GBs     float64 // 10⁹ bytes a second
	Stream  float64 // the same of a loop that only reads, on all threads together
	Percent float64 // median of the samples' ratios, in percent
}

const (
	streamBytes = 512 << 20 // no cache holds as much
	chunkBytes  = 1 << 20
)

// reader reads a buffer round and round, a chunk an iteration.
type reader struct {
	data  []byte
	next  atomic.Int64
	ahead int // bytes that are fetched ahead, or 0
}

func newReader() *reader {
	r := &reader{data: make([]byte, streamBytes)}
	for i := 0; i < len(r.data); i += 4096 {
		r.data[i] = 1 // a page of its own
	}
	// Whether it helps to fetch ahead depends on the processor.
	best := time.Duration(0)
	for range 3 {
		for _, ahead := range [...]int{0, 4096, 8192} {
			trial := reader{data: r.data, ahead: ahead}
			trial.next.Store(r.next.Load())
			begin := ThreadTime()
			trial.read(48)
			if t := ThreadTime() - begin; best == 0 || t < best {
				best, r.ahead = t, ahead
			}
			r.next.Store(trial.next.Load())
		}
	}
	return r
}

func (r *reader) read(chunks int) {
	for range chunks {
		at := int(r.next.Add(1)) * chunkBytes % len(r.data)
		readLines(&r.data[at], chunkBytes/64, r.ahead)
	}
}

// readGeneric is a loop of plain Go that reads lines of 64 bytes.
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
// that many bytes, and is compared with a loop that reads a buffer no cache holds.
func MeasureStream(bytes float64, workers int, minTime time.Duration, fn func()) Stream {
	threads := min(workers, runtime.GOMAXPROCS(0))
	r := newReader()
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
	runtime.GC()
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	x := m.measure(bytes, minTime, fn)
	return Stream{Millis: x.Millis, GBs: x.GFLOPS, Stream: x.PeakGFLOPS, Percent: x.PeakPercent}
}
