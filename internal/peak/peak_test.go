package peak

import (
	"math"
	"runtime/debug"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestLoops checks the sum of the accumulators and so their number, which the
// flops per iteration follow from.
func TestLoops(t *testing.T) {
	generic := func(n int) float64 { return 12 + 78*math.Pow(1-0.0217, float64(n)) }
	avx := func(accs float64) func(n int) float64 {
		return func(n int) float64 { return accs * (1 + 0.0217*0.0211*float64(n)) }
	}
	for _, c := range []struct {
		kernel string
		flops  int
		sum    func(n int) float64
	}{
		{"generic", 2 * 12, generic},
		{"avx2", 2 * 12 * 8, avx(12)},
		{"avx512", 2 * 24 * 16, avx(24)},
	} {
		t.Run(c.kernel, func(t *testing.T) {
			l, _ := find(c.kernel)
			run, flops := Loop(c.kernel)
			if run == nil {
				t.Skip("does not run here")
			}
			run(1)
			assert.Equal(t, c.flops, flops)
			for _, n := range []int{0, 1, 1000, 100_000} {
				assert.InEpsilon(t, c.sum(n), l(n), 1e-3, n)
			}
			assert.Equal(t, l(0), l(-1))
		})
	}
	run, flops := Loop("unknown")
	assert.Nil(t, run)
	assert.Zero(t, flops)
}

// TestMeter measures work at 40 % of a peak whose clock wanders, by a clock
// that the work itself moves.
func TestMeter(t *testing.T) {
	for name, c := range map[string]struct {
		call, minTime time.Duration // call at full speed
		least         int
	}{
		"short": {100 * time.Microsecond, 0, minSamples},
		"long":  {7 * time.Millisecond, 100 * time.Millisecond, 10},
	} {
		t.Run(name, func(t *testing.T) {
			var now time.Duration
			clock := func() time.Duration { return now }
			slow, samples := 1.0, 0
			spend := func(d time.Duration) { now += time.Duration(float64(d) * slow) }
			m := meter{clock, timed(clock, func(iters int) {
				if samples++; samples%7 == 0 { // between the samples of fn
					slow = 2.5 - slow
				}
				spend(time.Duration(iters) * 10 * time.Nanosecond)
			}), 1000} // 100 GFLOP/s
			r := m.measure(float64(c.call)*40, c.minTime, func() { spend(c.call) })
			assert.InDelta(t, 40, r.PeakPercent, 0.01)
			assert.GreaterOrEqual(t, r.Samples, c.least)
			assert.GreaterOrEqual(t, c.call*time.Duration(r.Batch)*3/2, aimSample)
			assert.LessOrEqual(t, c.call*time.Duration(r.Batch-1), 2*aimSample)
			assert.InEpsilon(t, 0.4, r.GFLOPS/r.PeakGFLOPS, 0.7)
			assert.InEpsilon(t, float64(c.call)*40/r.GFLOPS/1e6, r.Millis, 1e-9)
		})
	}
}

// TestMeasure checks that real clocks and threads give numbers, not which.
func TestMeasure(t *testing.T) {
	percent := debug.SetGCPercent(70)
	defer debug.SetGCPercent(percent)
	for _, workers := range []int{1, 2, 5} {
		run, flops := Loop("generic")
		r := Measure("generic", float64(1000*flops), workers, 0, func() { run(1000) })
		t.Log(r)
		assert.GreaterOrEqual(t, r.Samples, minSamples)
		for _, x := range []float64{r.Millis, r.GFLOPS, r.PeakGFLOPS, r.PeakPercent} {
			assert.Positive(t, x)
		}
	}
	require.Equal(t, 70, debug.SetGCPercent(70), "Measure put the collector back")
	assert.Panics(t, func() { Measure("unknown", 1, 1, 0, func() {}) })
}

func TestMedian(t *testing.T) {
	assert.Equal(t, 2.0, median([]float64{3, 1, 2}))
	assert.Equal(t, 2.5, median([]float64{4, 1, 3, 2}))
}

// TestThreadTime checks that the clock runs while the thread does.
func TestThreadTime(t *testing.T) {
	run, _ := Loop("generic")
	for begin := ThreadTime(); ThreadTime() <= begin; {
		run(1000)
	}
}
