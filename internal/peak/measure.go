package peak

import (
	"fmt"
	"math"
	"runtime"
	"runtime/debug"
	"slices"
	"time"
)

// Result is what Measure found: medians over the samples.
type Result struct {
	Kernel      string  // whose loop was the peak
	Threads     int     // that the peak is that of
	Samples     int     // samples taken
	Batch       int     // calls of the function in a sample
	Millis      float64 // ms a call
	GFLOPS      float64 // 10⁹ flops a second
	PeakGFLOPS  float64 // the same of the peak loop, on all threads together
	PeakPercent float64 // median of the samples' ratios, in percent
}

func (r Result) String() string {
	return fmt.Sprintf("%.4g ms, %.4g GFLOP/s, %.1f %% of %s peak %.4g on %d threads (%d samples of %d)",
		r.Millis, r.GFLOPS, r.PeakPercent, r.Kernel, r.PeakGFLOPS, r.Threads, r.Samples, r.Batch)
}

const (
	// minSample is the least time of a sample. 20 µs were found too short by
	// 3 … 10 % for the peak loop, 0.7 ms long enough.
	minSample = time.Millisecond
	// aimSample leaves room for a clock that speeds up by 20 % after calibration.
	aimSample = minSample * 5 / 4
	// minSamples is the least number of samples.
	minSamples = 5
)

// Measure calls fn, of that many flops, for at least minTime and five samples
// and compares its rate with that of the kernel's loop on as many threads, or
// GOMAXPROCS if that is less.
//
// Each sample, of as many calls as take a millisecond, is bracketed by samples
// of the loop; its ratio is to the mean rate of these two, and the result is
// the median ratio. So a clock that wanders slowly, by whatever factor, does
// not count. With one worker, fn is measured in the processor time of the
// calling thread, in which it has to do all its work; with more, in wall time,
// and other programs slow it, but not the peak. The garbage collector is off
// meanwhile. A loop that cannot run here is a panic.
func Measure(kernel string, flops float64, workers int, minTime time.Duration, fn func()) Result {
	run, flopsPerIter := Loop(kernel)
	if run == nil {
		panic(fmt.Sprintf("peak: no loop for kernel %q runs here", kernel))
	}
	threads := min(workers, runtime.GOMAXPROCS(0))
	m := meter{flopsPerIter: float64(threads * flopsPerIter)}
	if workers == 1 {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		m.clock, m.loop = ThreadTime, timed(ThreadTime, run)
	} else {
		c := newCrew(threads, run)
		defer c.dismiss()
		m.clock, m.loop = wallTime, c.run
	}
	runtime.GC()
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	r := m.measure(flops, minTime, fn)
	r.Kernel, r.Threads = kernel, threads
	return r
}

// A meter measures by a clock against a loop.
type meter struct {
	clock        func() time.Duration
	loop         func(iters int) time.Duration // time that iters iterations took
	flopsPerIter float64                       // on all threads together
}

// measure is Measure by m.
func (m meter) measure(flops float64, minTime time.Duration, fn func()) Result {
	calls := timed(m.clock, func(n int) {
		for range n {
			fn()
		}
	})
	iters, batch := calibrate(m.loop), calibrate(calls)
	loopFlops, batchFlops := float64(iters)*m.flopsPerIter, float64(batch)*flops

	var rates, peaks, ratios []float64
	begin := m.clock()
	before := rate(loopFlops, m.loop(iters))
	for len(ratios) < minSamples || m.clock()-begin < minTime {
		r := rate(batchFlops, calls(batch))
		after := rate(loopFlops, m.loop(iters))
		peak := (before + after) / 2
		rates, peaks, ratios = append(rates, r), append(peaks, peak), append(ratios, r/peak)
		before = after
	}
	gflops := median(rates)
	return Result{
		Samples: len(ratios), Batch: batch,
		Millis: flops / gflops / 1e6, GFLOPS: gflops,
		PeakGFLOPS: median(peaks), PeakPercent: 100 * median(ratios),
	}
}

// calibrate returns the n for which run(n) takes aimSample, or 1 if that takes
// longer. It leaves caches and clock warm.
func calibrate(run func(n int) time.Duration) int {
	run(1)
	for n := 1; ; {
		t := run(n)
		if t >= aimSample {
			return n
		}
		grow := min(1.1*float64(aimSample)/max(1, float64(t)), 10)
		n = int(math.Ceil(float64(n) * grow))
	}
}

// timed returns run with the time it takes by clock.
func timed(clock func() time.Duration, run func(n int)) func(n int) time.Duration {
	return func(n int) time.Duration {
		t := clock()
		run(n)
		return clock() - t
	}
}

// rate returns flops in a time, in GFLOP/s.
func rate(flops float64, t time.Duration) float64 { return flops / float64(max(1, t)) }

// median returns the median of a, which is not empty, and sorts it.
func median(a []float64) float64 {
	slices.Sort(a)
	return (a[(len(a)-1)/2] + a[len(a)/2]) / 2
}

var start = time.Now()

// wallTime returns the time since the program began.
func wallTime() time.Duration { return time.Since(start) }
