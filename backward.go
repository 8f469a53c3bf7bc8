package attention

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/seed-091431b3/attention/kernel"
)

// Gradients are what a backward pass reads and writes besides the arguments of
// the forward pass. DO and DLSE are given; the others are written, and fully
// so: a key that no query sees has gradients of zero, and so has a query that
// sees no key. A tensor whose Data is nil, and a slice that is nil, is not
// wanted, and not computed. DO may be stored in 16 bits; what is written may not.
type Gradients struct {
	// DO is the gradient of the loss with respect to O.
	DO Tensor // [query tokens, QueryHeads, ValueDim]
	// DLSE is that with respect to LSE, and laid out like it. It is what training
	// through a [Merge] or a loss on LSE needs. nil: zero.
	DLSE []float64

	DQ Tensor // [query tokens, QueryHeads, HeadDim]
	DK Tensor // [key tokens, KVHeads, HeadDim], summed over the heads of a group
	DV Tensor // [key tokens, KVHeads, ValueDim], summed over the heads of a group
	// DBias, one a sequence, is the gradient of Bias. A stride of it is 0 where
	// that of Bias is, and sums over that axis then. Entries may have Data nil.
	DBias []Bias
	// DSinks, one a query head, is that of Sinks.
	DSinks []float32
}

// Backward computes the gradients of a loss from those with respect to O and
// LSE, by recomputing the probabilities tile by tile (FlashAttention, Dao et al.
// 2022, algorithm 4): of the forward pass it needs in, out and batch again, and
// nothing else. Out holds what Forward gave, LSE included; its mask functions
// are asked again and must answer as before.
//
// The gradients have the same bits whatever the kernel, the number of workers,
// the rest of the batch and the layout; DSinks is the sum over the batch. On
// error nothing is written. If a mask function panics, Backward panics with its
// value and the gradients are unfinished.
//
// Sums over P and over the gradients of the logits are carried times 2^32, and
// must lie within float32 so.
//
// A Bias that is broadcast over heads makes the heads of its sequence take
// turns if its gradient is wanted.
func (op *Operator) Backward(in Inputs, out Outputs, g Gradients, batch Batch) error {
	return op.BackwardContext(context.Background(), in, out, g, batch)
}

// BackwardContext is Backward, but ends early with ctx's error once ctx is done;
// the gradients are then unfinished.
func (op *Operator) BackwardContext(ctx context.Context, in Inputs, out Outputs, g Gradients, batch Batch) error {
	c := op.acquire()
	defer op.release(c)
	c.in, c.out, c.batch, c.given = in, out, batch, g
	c.gradients = &c.given
	if err := c.checkBackward(); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("attention: %w", err)
	}
	c.plan(true)
	if g.DSinks != nil && batch.Sequences() > 0 {
		c.sinkTerms = grow(c.sinkTerms, batch.CuQ[batch.Sequences()]*op.cfg.QueryHeads)
	}
	if err := c.execute(ctx); err != nil {
		return fmt.Errorf("attention: %w", err)
	}
	c.sumSinks()
	return nil
}

// BackwardScratch is [Operator.Scratch] for Backward. DSinks takes another 8
// bytes a query token and head.
func (op *Operator) BackwardScratch(batch Batch) (int64, error) {
	if err := op.checkBatch(&batch); err != nil {
		return 0, err
	}
	c := call{op: op, batch: batch}
	c.plan(true)
	rows := 0
	for b := range batch.Sequences() {
		// As much as there may be in one task; see sumsBias.
		rows = max(rows, min((batch.CuQ[b+1]-batch.CuQ[b])*op.group, backwardRows))
	}
	perTask := int64(4 * c.tasks())
	return int64(c.active())*op.ops.BackwardBytes(rows, op.cfg.HeadDim, op.cfg.ValueDim) + c.planBytes() + perTask, nil
}

// grow returns s with length n, its contents undefined.
func grow[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n)
	}
	return s[:n]
}

// sumSinks adds up what the rows give to the gradients of the sinks.
func (c *call) sumSinks() {
	out := c.gradients.DSinks
	for h := range out {
		sum := 0.0
		if n := c.batch.Sequences(); n > 0 {
			for t := range c.batch.CuQ[n] {
				sum += c.sinkTerms[t*len(out)+h]
			}
		}
		out[h] = float32(sum)
	}
}

// fillGradients prepares the gradients of task n, which are those of a chunk
// and a kv head.
func (c *call) fillGradients(s *scratch, n int, k *chunk, kv int) {
	g, d, heads := c.gradients, &s.grad, c.op.cfg.KVHeads
	b, head := k.sequence, kv*c.op.group
	cuQ, cuK := c.batch.CuQ, c.batch.keys()
	last := n/heads+1 == len(c.chunks) || c.chunks[n/heads+1].sequence != b
	*d = kernel.Gradients{First: n/heads == k.head, Last: last}
	if s.task.Queries > 0 {
		d.DO, d.DLSE = g.DO.rows(cuQ, b, head), c.ofRows(g.DLSE, b, head)
		if g.DQ.Data != nil {
			d.DQ = g.DQ.rows(cuQ, b, head)
		}
		if g.DSinks != nil {
			d.DSinks = c.ofRows(c.sinkTerms, b, head)
		}
	}
	if s.task.Keys > 0 {
		if g.DK.Data != nil {
			d.DK = g.DK.rows(cuK, b, kv)
		}
		if g.DV.Data != nil {
			d.DV = g.DV.rows(cuK, b, kv)
		}
	}
	// Tasks of other heads have sums of their own, but for a bias they share.
	s.turn = turn{order: &c.order, stop: &c.stop, task: n, first: k.head*heads + kv, step: heads}
	if x := c.dBias(b); x != nil {
		d.DBias = x.rows(head)
		d.ClearBias = (x.HeadStride != 0 || kv == 0) && (x.QueryStride != 0 || d.First)
		if x.HeadStride == 0 {
			s.turn.first, s.turn.step = k.head*heads, 1
		}
	}
	if c.active() > 1 && (d.DK.Data != nil || d.DV.Data != nil || d.DBias.Data != nil) {
		d.Order = &s.turn
	}
}

// dBias is the gradient of the bias of sequence b, or nil if there is nothing to
// write. Broadcast over queries it is there, and zero, even if there are none.
func (c *call) dBias(b int) *Bias {
	if c.gradients == nil || c.gradients.DBias == nil {
		return nil
	}
	x, s := &c.gradients.DBias[b], c.batch.sequence(b)
	if len(x.Data) == 0 || s.Keys == 0 || s.Queries == 0 && x.QueryStride != 0 {
		return nil
	}
	return x
}

// sumsBias reports whether the gradient of the bias of sequence b is a sum over
// heads. Tasks of several heads then add to it in turn, and as the rows of a
// query may be parts of two, how a sequence is cut must not depend on the
// number of workers.
func (c *call) sumsBias(b int) bool {
	x := c.dBias(b)
	return x != nil && x.HeadStride == 0
}

func (c *call) checkBackward() error {
	op, cfg, in, g, batch := c.op, &c.op.cfg, &c.in, c.gradients, &c.batch
	if err := op.checkBatch(batch); err != nil {
		return err
	}
	if g.DSinks != nil && in.Sinks == nil {
		return fmt.Errorf("attention: DSinks: is given, but there are no Sinks")
	}
	if g.DSinks != nil && len(g.DSinks) != cfg.QueryHeads {
		return fmt.Errorf("attention: DSinks: has %d entries, there are %d query heads", len(g.DSinks), cfg.QueryHeads)
	}
	if batch.Sequences() == 0 {
		return nil
	}
	if err := c.checkInputs(); err != nil {
		return err
	}
	given := [...]operand{
		op.queries("O", &c.out.O, batch, cfg.ValueDim), op.queries("DO", &g.DO, batch, cfg.ValueDim),
	}
	for _, x := range given {
		if err := x.check(); err != nil {
			return err
		}
	}
	if err := op.checkRows("LSE", c.out.LSE, batch); err != nil {
		return err
	}
	if g.DLSE != nil {
		if err := op.checkRows("DLSE", g.DLSE, batch); err != nil {
			return err
		}
	}
	outs, n := [4]region{}, 0
	for _, x := range [...]operand{
		op.queries("DQ", &g.DQ, batch, cfg.HeadDim),
		op.keys("DK", &g.DK, batch, cfg.HeadDim), op.keys("DV", &g.DV, batch, cfg.ValueDim),
	} {
		if !x.t.given() {
			continue
		}
		if x.t.format() != kernel.Float32 {
			return fmt.Errorf("attention: %s: has elements of 16 bits, must be float32", x.name)
		}
		if err := x.checkOutput(); err != nil {
			return err
		}
		outs[n] = x.region()
		n++
	}
	outs[n] = regionOf("DSinks", g.DSinks)
	n++
	for i := range n {
		for j := range i {
			if outs[i].overlaps(outs[j]) {
				return fmt.Errorf("attention: %s: overlaps %s", outs[i].name, outs[j].name)
			}
		}
	}
	if err := op.checkApart(in, batch, outs[:n]); err != nil {
		return err
	}
	others := [...]region{given[0].region(), given[1].region(), regionOf("LSE", c.out.LSE), regionOf("DLSE", g.DLSE)}
	for _, r := range others {
		if err := apart(r, outs[:n]); err != nil {
			return err
		}
	}
	return c.checkDBias(outs[:n], others[:])
}

// checkDBias verifies DBias: it must fit Bias, and overlap neither inputs nor
// other gradients.
func (c *call) checkDBias(outs, ins []region) error {
	op, cfg, in, g, batch := c.op, &c.op.cfg, &c.in, c.gradients, &c.batch
	if g.DBias == nil {
		return nil
	}
	if in.Bias == nil {
		return fmt.Errorf("attention: DBias: is given, but there is no Bias")
	}
	if len(g.DBias) != batch.Sequences() {
		return fmt.Errorf("attention: DBias: has %d entries, the batch has %d sequences", len(g.DBias), batch.Sequences())
	}
	c.spans = c.spans[:0]
	for b := range g.DBias {
		x, bias, s := c.dBias(b), &in.Bias[b], batch.sequence(b)
		if x == nil {
			if x := &g.DBias[b]; x.Data != nil && s.Queries > 0 && s.Keys > 0 {
				return fmt.Errorf("attention: DBias: entry %d is empty, sequence %d has %d queries and %d keys", b, b, s.Queries, s.Keys)
			}
			continue
		}
		s.Queries = max(s.Queries, 1)
		if bias.Data == nil {
			return fmt.Errorf("attention: DBias: entry %d is given, but sequence %d has no Bias", b, b)
		}
		heads, rows := cfg.QueryHeads, s.Queries
		if (x.HeadStride == 0) != (bias.HeadStride == 0) && heads > 1 || (x.QueryStride == 0) != (bias.QueryStride == 0) && rows > 1 {
			return fmt.Errorf("attention: DBias: strides of entry %d are %d (head) and %d (query), must be 0 where those of Bias are, which are %d and %d",
				b, x.HeadStride, x.QueryStride, bias.HeadStride, bias.QueryStride)
		}
		if err := x.check("DBias", b, heads, &s); err != nil {
			return err
		}
		if x.HeadStride == 0 {
			heads = 1
		}
		if x.QueryStride == 0 {
			rows = 1
		}
		if !distinct(rows, x.QueryStride, heads, x.HeadStride, s.Keys) {
			return fmt.Errorf("attention: DBias: strides of entry %d, %d (head) and %d (query), make rows of %d keys overlap", b, x.HeadStride, x.QueryStride, s.Keys)
		}
		c.spans = append(c.spans, regionOf("DBias", x.Data[:(heads-1)*x.HeadStride+(rows-1)*x.QueryStride+s.Keys]))
		span := c.spans[len(c.spans)-1:]
		for i := range outs {
			if span[0].overlaps(outs[i]) {
				return fmt.Errorf("attention: DBias: entry %d overlaps %s", b, outs[i].name)
			}
		}
		for _, r := range ins {
			if err := apart(r, span); err != nil {
				return err
			}
		}
		if err := op.tensorsApart(in, batch, span); err != nil {
			return err
		}
	}
	// Entries must not overlap each other, nor any of Bias, which may.
	for b := range in.Bias {
		c.spans = append(c.spans, regionOf("Bias", in.Bias[b].Data))
	}
	slices.SortFunc(c.spans, func(x, y region) int { return cmp.Compare(x.start, y.start) })
	var all, outputs uintptr // where they end so far
	for _, r := range c.spans {
		output := r.name == "DBias"
		if r.start < outputs || output && r.start < all {
			return fmt.Errorf("attention: DBias: entries overlap each other, or Bias")
		}
		if all = max(all, r.end); output {
			outputs = max(outputs, r.end)
		}
	}
	return nil
}
