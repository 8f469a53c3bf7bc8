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
	// Keys and values, if they are in a cache, and the cumulative lengths.
	cached []*CachedSequence
	cuK    []int
	// What Backward has besides; nil in Forward.
	gradients *Gradients
	given     Gradients
	sinkTerms []float64 // what each row gives to the gradient of its sink
	spans     []region

	// A task is a chunk and a kv head: task n is chunk n/KVHeads, head
	// n%KVHeads. Workers take them in order.
	chunks []chunk
	splits splits
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
	order   order
}

// scratch belongs to one worker.
type scratch struct {
	ws      kernel.Workspace
	task    kernel.Task
	dropout kernel.Dropout
	grad    kernel.Gradients
	turn    turn
}

// chunk is some rows of a sequence, a row being a position and a head of the
// group.
type chunk struct {
	sequence    int
	first, last int
	cost        int64
	// In a backward pass, the first chunk of its sequence.
	head int
	// In a forward pass, the number of its part of a split from 1 on, or 0.
	part int
}

// taskRows bounds the rows of a task, and backwardRows those of the backward
// pass. Each task packs the keys it sees anew, which costs about 1/rows of the
// work; its scratch grows with rows.
const (
	taskRows     = 4096
	backwardRows = 22 * kernel.GradRows
)

// plan cuts the batch into chunks, the dearest first. How it is cut does not
// enter the results.
func (c *call) plan(backward bool) {
	group, workers := c.op.group, c.op.workers()
	unit, most := c.op.ops.GroupRows(), taskRows
	if backward {
		unit, most = kernel.GradRows, backwardRows
	}
	n := c.batch.Sequences()
	rows := most
	if n > 0 && workers > 1 {
		// Several tasks a worker, so that none waits long for the last.
		rows = min(rows, c.batch.CuQ[n]*c.op.cfg.QueryHeads/(8*workers))
	}
	rows = max(rows/unit, 1) * unit
	c.chunks, c.rows, c.keys = c.chunks[:0], 0, 0
	c.splits.reset()
	for b := range n {
		s := &c.sequence
		*s = c.batch.sequence(b)
		mask := c.mask(b, c.mask0)
		c.mask0 = mask
		start, size := len(c.chunks), rows
		if backward && c.sumsBias(b) {
			size = most
		}
		for first := 0; first < s.Queries*group; first += size {
			last := min(first+size, s.Queries*group)
			keys := mask.Extent(s, (first+last)/2/group)
			c.rows, c.keys = max(c.rows, last-first), max(c.keys, s.Keys)
			c.chunks = append(c.chunks, chunk{sequence: b, first: first, last: last, cost: int64(last-first) * int64(keys+1)})
		}
		if backward {
			if s.Queries == 0 && s.Keys > 0 {
				// Its gradients are to be cleared.
				c.keys = max(c.keys, s.Keys)
				c.chunks = append(c.chunks, chunk{sequence: b})
			}
			inOrder(c.chunks[start:])
		}
	}
	if workers > 1 {
		if !backward {
			c.splitSpans(workers)
		}
		slices.SortStableFunc(c.chunks, func(x, y chunk) int { return cmp.Compare(y.cost, x.cost) })
	}
	for i := range c.chunks {
		k := &c.chunks[i]
		if k.head = i; i > 0 && c.chunks[i-1].sequence == k.sequence {
			k.head = c.chunks[i-1].head
		}
	}
}

// inOrder brings the chunks of a sequence into the order in which they add to
// its gradients, from the last, and keeps them together.
func inOrder(chunks []chunk) {
	slices.Reverse(chunks)
	var sum int64
	for i := range chunks {
		sum += chunks[i].cost
	}
	for i := range chunks {
		chunks[i].cost = sum
	}
}

// planBytes is the memory that the plan and the lists of masks take.
func (c *call) planBytes() int64 {
	const term = 2 * int64(unsafe.Sizeof(kernel.Ranger(nil)))
	// Lists that grow by appending leave their earlier selves behind.
	return 2*int64(cap(c.chunks))*int64(unsafe.Sizeof(chunk{})) + 2*term*int64(c.maskTerms()*(c.active()+1)) + c.splits.bytes()
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
	if c.gradients != nil {
		c.order.start(c.tasks())
	}
	c.splits.start()
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
	defer func() {
		c.caught.take(recover(), returned, &c.stop)
		c.order.wake()
	}()
	s := c.scratch[c.started.Add(1)-1]
	heads := c.op.cfg.KVHeads
	c.reserve(s)
	for !c.stop.Load() {
		n := int(c.next.Add(1)) - 1
		if n >= c.tasks() {
			break
		}
		k, kv := &c.chunks[n/heads], n%heads
		c.fill(&s.task, &s.dropout, k, kv)
		s.task.Next = c.firstKey(n + c.active())
		if k.part > 0 {
			c.runPart(s, &c.splits.all[k.part-1], kv)
			continue
		}
		if c.gradients == nil {
			kernel.Forward(c.op.ops, &s.ws, &s.task)
			continue
		}
		c.fillGradients(s, n, k, kv)
		kernel.Backward(c.op.ops, &s.ws, &s.task, &s.grad)
		c.order.finish(n)
	}
	returned = true
}

// reserve gives a worker the scratch of the largest task, so that which tasks
// fall to it in later calls does not matter.
func (c *call) reserve(s *scratch) {
	t, cfg := &s.task, &c.op.cfg
	terms := c.maskTerms()
	masks := kernel.Mask{
		Rangers: slices.Grow(t.Mask.Rangers[:0], terms), Bitmaps: slices.Grow(t.Mask.Bitmaps[:0], terms),
		Dense: slices.Grow(t.Mask.Dense[:0], terms),
	}
	*t = kernel.Task{DK: cfg.HeadDim, DV: cfg.ValueDim, Last: c.rows, Slopes: cfg.ALiBi, Mask: masks, Wide: c.wide()}
	t.Keys = c.keys
	if c.cached != nil {
		t.Pages.Table = []int32{} // no pages yet, but there will be
	}
	for b := range c.in.Bias {
		if c.in.Bias[b].Data != nil {
			t.Bias.Data = c.in.Bias[b].Data
		}
	}
	if c.in.Dropout != nil {
		t.Dropout = &s.dropout
	}
	if c.gradients == nil {
		kernel.Reserve(c.op.ops, &s.ws, t)
		return
	}
	t.Score = kernel.NewScore(1, float32(cfg.Softcap), false)
	kernel.ReserveBackward(c.op.ops, &s.ws, t)
}

// maskTerms is the number of masks that a sequence has at most.
func (c *call) maskTerms() int {
	n := 0
	for b := range c.batch.Masks {
		n = max(n, len(c.batch.Masks[b].terms))
	}
	if c.cached != nil {
		n++ // what is dropped
	}
	return n + len(c.op.cfg.Mask.terms)
}

// forget drops what c holds of the caller's.
func (c *call) forget() {
	c.in, c.out, c.batch, c.done, c.caught.value = Inputs{}, Outputs{}, Batch{}, nil, nil
	c.gradients, c.given, c.cached = nil, Gradients{}, nil
	for _, s := range c.scratch {
		masks := s.task.Mask
		masks.Forget()
		s.task, s.dropout, s.grad = kernel.Task{Mask: masks}, kernel.Dropout{}, kernel.Gradients{}
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

// firstKey is where the stored keys of task n begin, or nil.
func (c *call) firstKey(n int) *byte {
	if c.cached == nil || n >= c.tasks() {
		return nil
	}
	heads := c.op.cfg.KVHeads
	s := c.cached[c.chunks[n/heads].sequence]
	if s.n == 0 {
		return nil
	}
	return &s.cache.k[(int(s.pages[0])*heads+n%heads)*s.cache.kHead]
}
