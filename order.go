package attention

import (
	"math"
	"sync"
	"sync/atomic"
)

// order lets the tasks of a backward pass that add to the same gradients take
// turns: a task enters a cell of keys once all earlier ones have left it. As
// workers take tasks in their order, the earliest that is not done never waits.
type order struct {
	// left is, for each task, how many cells it is done with.
	left []atomic.Int32
	mu   sync.Mutex
	some sync.Cond
}

// start prepares for n tasks.
func (o *order) start(n int) {
	if cap(o.left) < n {
		o.left = make([]atomic.Int32, n)
	}
	o.left = o.left[:n]
	for i := range o.left {
		o.left[i].Store(0)
	}
	o.some.L = &o.mu
}

// leave notes that a task is done with n cells.
func (o *order) leave(task int, n int32) {
	o.left[task].Store(n)
	o.wake()
}

// finish notes that a task is done.
func (o *order) finish(task int) { o.leave(task, math.MaxInt32) }

// wake lets those that wait look again.
func (o *order) wake() {
	if o.some.L == nil {
		return
	}
	o.mu.Lock()
	o.some.Broadcast()
	o.mu.Unlock()
}

// turn is the place of a task in the order; it is its kernel.Order.
type turn struct {
	*order
	stop *atomic.Bool
	// It follows the tasks first, first+step … before task.
	task, first, step int
}

// Wait returns once all earlier tasks have left the cell, or false if the call
// has been stopped.
func (t *turn) Wait(cell int) bool {
	for before := t.first; before < t.task; before += t.step {
		if t.left[before].Load() > int32(cell) {
			continue
		}
		t.mu.Lock()
		for t.left[before].Load() <= int32(cell) && !t.stop.Load() {
			t.some.Wait()
		}
		t.mu.Unlock()
	}
	return !t.stop.Load()
}

// Done notes that the task has left the cell.
func (t *turn) Done(cell int) { t.leave(t.task, int32(cell)+1) }
