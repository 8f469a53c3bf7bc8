package attention

import (
	"cmp"
	"context"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/seed-091431b3/attention/kernel"
)

// call is the state of one call, reused by later ones.
type call struct {
	op    *Operator
	in    Inputs
	out   Outputs
	batch Batch

	// A task is a chunk and a kv head: task n is chunk n/KVHeads, head
	// n%KVHeads. Workers take them in order.
	chunks []chunk
	// What the largest task needs, so that every worker has it from the start.
	rows, keys int
	// What the plan is made with: they are here because what a mask is given
	// escapes.
	mask0    kernel.Mask
	sequence kernel.Sequence
	next     atomic.Int64
	stop     atomic.Bool
	done     <-chan struct{}

	run     func() // worker, bound once so that starting it allocates nothing
	scratch []*scratch
	started atomic.Int32
	wait    sync.WaitGroup
	caught  panicked
}

// scratch belongs to one worker.
type scratch struct {
	ws      kernel.Workspace
	task    kernel.Task
	dropout kernel.Dropout
}

// chunk is some rows of a sequence, a row being a position and a head of the
// group.
type chunk struct {
	sequence    int
	first, last int
	cost        int64
}

// taskRows bounds the rows of a task. Each task packs the keys it sees anew,
// which costs about 1/rows of the work; its scratch grows with rows.
const taskRows = 4096

// plan cuts the batch into chunks, the dearest first. How it is cut does not
// enter the results.
func (c *call) plan() {
	group, workers := c.op.group, c.op.workers()
	unit := c.op.ops.GroupRows()
	n := c.batch.Sequences()
	rows := taskRows
	if n > 0 && workers > 1 {
		// Several tasks a worker, so that none waits long for the last.
		rows = min(rows, c.batch.CuQ[n]*c.op.cfg.QueryHeads/(8*workers))
	}
	rows = max(rows/unit, 1) * unit
	c.chunks, c.rows, c.keys = c.chunks[:0], 0, 0
	for b := range n {
		s := &c.sequence
		*s = c.batch.sequence(b)
		mask := c.mask(b, c.mask0)
		c.mask0 = mask
		for first := 0; first < s.Queries*group; first += rows {
			last := min(first+rows, s.Queries*group)
			keys := mask.Extent(s, (first+last)/2/group)
			c.rows, c.keys = max(c.rows, last-first), max(c.keys, s.Keys)
			c.chunks = append(c.chunks, chunk{b, first, last, int64(last-first) * int64(keys+1)})
		}
	}
	if workers > 1 {
		slices.SortStableFunc(c.chunks, func(x, y chunk) int { return cmp.Compare(y.cost, x.cost) })
	}
}

// planBytes is the memory that the plan and the lists of masks take.
func (c *call) planBytes() int64 {
	const term = 2 * int64(unsafe.Sizeof(kernel.Ranger(nil)))
	// Lists that grow by appending leave their earlier selves behind.
	return 2*int64(cap(c.chunks))*int64(unsafe.Sizeof(chunk{})) + 2*term*int64(c.terms()*(c.active()+1))
}

func (c *call) tasks() int { return len(c.chunks) * c.op.cfg.KVHeads }

// active is the number of workers that have something to do.
func (c *call) active() int { return max(min(c.op.workers(), c.tasks()), 1) }

// execute runs all tasks and waits for them. What ended a worker, a panic or
// runtime.Goexit, ends it too.
func (c *call) execute(ctx context.Context) error {
	n := c.active()
	for len(c.scratch) < n {
		c.scratch = append(c.scratch, new(scratch))
	}
	c.next.Store(0)
	c.started.Store(0)
	c.stop.Store(false)
	c.caught.ended, c.caught.value = false, nil
	c.done = ctx.Done()
	c.wait.Add(n)
	for range n - 1 {
		go c.run()
	}
	func() {
		// Deferred, as a mask function may end this goroutine too.
		defer c.wait.Wait()
		c.run()
	}()
	c.caught.rethrow()
	if c.stop.Load() {
		return ctx.Err()
	}
	return nil
}

// worker runs tasks until there are none left.
func (c *call) worker() {
	defer c.wait.Done()
	returned := false
	defer func() { c.caught.take(recover(), returned, &c.stop) }()
	s := c.scratch[c.started.Add(1)-1]
	heads := c.op.cfg.KVHeads
	c.reserve(s)
	for !c.stop.Load() {
		n := int(c.next.Add(1)) - 1
		if n >= c.tasks() {
			break
		}
		c.fill(&s.task, &s.dropout, c.chunks[n/heads], n%heads)
		kernel.Forward(c.op.ops, &s.ws, &s.task)
	}
	returned = true
}

// reserve gives a worker the scratch of the largest task, so that which tasks
// fall to it in later calls does not matter.
func (c *call) reserve(s *scratch) {
	t, cfg := &s.task, &c.op.cfg
	terms := c.terms()
	masks := kernel.Mask{
		Rangers: slices.Grow(t.Mask.Rangers[:0], terms), Bitmaps: slices.Grow(t.Mask.Bitmaps[:0], terms),
		Dense: slices.Grow(t.Mask.Dense[:0], terms),
	}
	*t = kernel.Task{DK: cfg.HeadDim, DV: cfg.ValueDim, Last: c.rows, Slopes: cfg.ALiBi, Mask: masks}
	t.Keys = c.keys
	for b := range c.in.Bias {
		if c.in.Bias[b].Data != nil {
			t.Bias.Data = c.in.Bias[b].Data
		}
	}
	if c.in.Dropout != nil {
		t.Dropout = &s.dropout
	}
	kernel.Reserve(c.op.ops, &s.ws, t)
}

// terms is the number of masks that a sequence has at most.
func (c *call) terms() int {
	n := 0
	for b := range c.batch.Masks {
		n = max(n, len(c.batch.Masks[b].terms))
	}
	return n + len(c.op.cfg.Mask.terms)
}

// forget drops what c holds of the caller's.
func (c *call) forget() {
	c.in, c.out, c.batch, c.done, c.caught.value = Inputs{}, Outputs{}, Batch{}, nil, nil
	for _, s := range c.scratch {
		masks := s.task.Mask
		masks.Forget()
		s.task, s.dropout = kernel.Task{Mask: masks}, kernel.Dropout{}
	}
	c.mask0.Forget()
}

// panicked carries how a mask function ended one of several goroutines, by a
// panic or by runtime.Goexit, to the caller's.
type panicked struct {
	mu    sync.Mutex
	ended bool
	value any // nil: Goexit
}

// take notes how a worker ended that did not return, recovered being what it
// recovered, and sets stop.
func (p *panicked) take(recovered any, returned bool, stop *atomic.Bool) {
	if returned {
		return
	}
	stop.Store(true)
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.ended {
		p.ended, p.value = true, recovered
	}
}

// rethrow ends the caller's goroutine as a worker ended, if one did.
func (p *panicked) rethrow() {
	if !p.ended {
		return
	}
	if p.value == nil {
		runtime.Goexit()
	}
	panic(p.value)
}
