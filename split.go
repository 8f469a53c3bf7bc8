package attention

import (
	"sync/atomic"
	"unsafe"

	"github.com/seed-091431b3/attention/kernel"
)

// splits are the chunks of few rows whose keys are shared out among tasks, by
// spans. Spans are independent until they are folded in order, so that it does
// not enter the results which task computes them; the last that is done folds.
type splits struct {
	all    []part
	size   int     // of states
	counts []int32 // parts of each split and kv head
	states []float32
	left   []atomic.Int32 // parts that are not done
}

// part is some spans of the keys of a chunk.
type part struct {
	first, last, spans int // of all spans
	state, size        int // where those of head 0 start, and the size of one
	left               int // the counter of head 0
}

func (x *splits) reset() { x.size, x.all, x.counts = 0, x.all[:0], x.counts[:0] }

// bytes is the memory that the splits of the plan take.
func (x *splits) bytes() int64 {
	return 4*int64(x.size) + 12*int64(cap(x.counts)) + 2*int64(cap(x.all))*int64(unsafe.Sizeof(part{}))
}

// start makes room for the states, and sets the counters.
func (x *splits) start() {
	x.states = grow(x.states, x.size)
	if cap(x.left) < len(x.counts) {
		x.left = make([]atomic.Int32, len(x.counts))
	}
	x.left = x.left[:len(x.counts)]
	for i, n := range x.counts {
		x.left[i].Store(n)
	}
}

// splitSpans shares out the keys of chunks of few rows that are too dear for one
// worker.
func (c *call) splitSpans(workers int) {
	var total int64
	for i := range c.chunks {
		total += c.chunks[i].cost
	}
	// Several tasks a worker, so that none waits long for the last.
	fair := max(total*int64(c.op.cfg.KVHeads)/int64(32*workers), 1)
	for i := range c.chunks {
		k := c.chunks[i]
		s := c.batch.sequence(k.sequence)
		spans := kernel.Spans(s.Keys)
		n := min(spans, int((k.cost+fair-1)/fair))
		if k.last-k.first > kernel.FewRows || n < 2 {
			continue
		}
		x := &c.splits
		p := part{spans: spans, state: x.size, size: kernel.StateSize(c.op.ops, k.last-k.first, c.op.cfg.ValueDim, c.cached != nil), left: len(x.counts)}
		x.size += spans * p.size * c.op.cfg.KVHeads
		for range c.op.cfg.KVHeads {
			x.counts = append(x.counts, int32(n))
		}
		k.cost /= int64(n)
		for j := range n {
			p.first, p.last = j*spans/n, (j+1)*spans/n
			x.all = append(x.all, p)
			k.part = len(x.all)
			if j == 0 {
				c.chunks[i] = k
			} else {
				c.chunks = append(c.chunks, k)
			}
		}
	}
}

// runPart computes a part of a chunk for a kv head, and folds them all if it is
// the last.
func (c *call) runPart(s *scratch, p *part, kv int) {
	states := c.splits.states[p.state+kv*p.spans*p.size:][:p.spans*p.size]
	kernel.ForwardSpans(c.op.ops, &s.ws, &s.task, p.first, p.last, states[p.first*p.size:p.last*p.size])
	if c.splits.left[p.left+kv].Add(-1) == 0 && !c.stop.Load() {
		kernel.FoldSpans(c.op.ops, &s.ws, &s.task, states)
	}
}
