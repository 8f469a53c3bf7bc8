package peak

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// A crew is the caller and other threads, which run a loop at the same time.
type crew struct {
	loop    func(iters int)
	iters   []chan int         // one for each of the others; closed by dismiss
	times   chan time.Duration // that the loops of the others took
	waiting atomic.Int64
	others  sync.WaitGroup
}

// newCrew returns a crew of the caller and threads-1 sleeping threads.
func newCrew(threads int, loop func(iters int)) *crew {
	c := &crew{loop: loop, iters: make([]chan int, threads-1), times: make(chan time.Duration, threads-1)}
	c.others.Add(threads - 1)
	for i := range c.iters {
		ch := make(chan int)
		c.iters[i] = ch
		go func() {
			defer c.others.Done()
			for n := range ch {
				c.times <- c.join(n)
			}
		}()
	}
	return c
}

// run returns the time in which all members together do as many iterations as
// each was to do, times their number: that of their mean rate. Each is timed by
// its thread's clock, since even an idle system was seen to wake two threads
// on one processor and leave them there for the length of a sample.
func (c *crew) run(iters int) time.Duration {
	c.waiting.Store(int64(len(c.iters)) + 1)
	for _, ch := range c.iters {
		ch <- iters
	}
	rates := 1 / float64(max(1, c.join(iters)))
	for range c.iters {
		rates += 1 / float64(max(1, <-c.times))
	}
	return time.Duration(float64(len(c.iters)+1) / rates)
}

// join runs the loop once all members have joined and returns its time.
func (c *crew) join(iters int) time.Duration {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	c.waiting.Add(-1)
	for spins := 0; c.waiting.Load() > 0; spins++ {
		if spins > 10_000 { // other goroutines may be in the way
			runtime.Gosched()
		}
	}
	begin := ThreadTime()
	c.loop(iters)
	return ThreadTime() - begin
}

// dismiss ends the other threads.
func (c *crew) dismiss() {
	for _, ch := range c.iters {
		close(ch)
	}
	c.others.Wait()
}
