package attention

import (
	"context"
	"fmt"

	"github.com/seed-091431b3/attention/kernel"
)

// Inputs are what a call reads. It never writes to them.
type Inputs struct {
	Q Tensor // [query tokens, QueryHeads, HeadDim]
	K Tensor // [key tokens, KVHeads, HeadDim]
	V Tensor // [key tokens, KVHeads, ValueDim]
	// Bias, one a sequence, is added to the logits after softcap and ALiBi.
	// nil: none.
	Bias []Bias
	// Sinks, one a query head, are logits that take part in the softmax's sum
	// and have no value. nil: none.
	Sinks []float32
	// Dropout, if not nil, drops probabilities by a public hash.
	Dropout *Dropout
}

// Bias is an additive bias of one sequence: that of query i of head h and key j
// is Data[h*HeadStride + i*QueryStride + j]. A stride of 0 broadcasts. The
// sequence has none if Data is nil.
type Bias struct {
	Data                    []float32
	HeadStride, QueryStride int
}

// Dropout keeps the probability of key j for query i of head h of sequence b,
// divided by 1-rate, if
//
//	u(j) >= round(rate * 2^32)
//
// and makes it zero otherwise. u(j) is the low (j even) or high (j odd) half of
// number j/2 of the splitmix64 stream that starts at
//
//	mix(mix(mix(mix(Seed) ^ b) ^ h) ^ i)
//
// mix being splitmix64's finalizer; b is the sequence's entry in Batch.IDs, or
// its index. LSE is that of the probabilities before dropout.
type Dropout struct {
	Seed uint64
	// Rate applies to every query, 0 <= Rate < 1, unless Rates has a rate for
	// each query token.
	Rate  float64
	Rates []float32
}

// Outputs are what a forward pass writes. The caller allocates.
type Outputs struct {
	O Tensor // [query tokens, QueryHeads, ValueDim]
	// LSE is the natural logarithm of the softmax's sum: that of query token t
	// and head h is LSE[t*QueryHeads + h], where t counts through CuQ whatever
	// the layout of Q. nil: not wanted.
	LSE []float64
}

// Forward computes
//
//	O = softmax(logits) V,  LSE = ln(sum(exp(logits)))
//
// for every sequence of the batch, by the tiled online softmax of
// FlashAttention (Dao et al. 2022, algorithm 1; Dao 2023, section 3.1). A query
// that sees no key has O = 0 and LSE = -Inf, or its sink if there are Sinks.
// Hidden keys and their values, NaN and infinities included, change nothing.
// Sums of probabilities before normalization, which may be as many as there are
// keys, times values must lie within float32, divided by what dropout keeps, and
// so must products of q and k before they are scaled.
//
// The same inputs give the same bits whatever the kernel, the number of
// workers, the rest of the batch and the layout. On error nothing is written.
// If a mask function panics, Forward panics with its value and the outputs are
// unfinished.
func (op *Operator) Forward(in Inputs, out Outputs, batch Batch) error {
	return op.ForwardContext(context.Background(), in, out, batch)
}

// ForwardContext is Forward, but ends early with ctx's error once ctx is done;
// the outputs are then unfinished.
func (op *Operator) ForwardContext(ctx context.Context, in Inputs, out Outputs, batch Batch) error {
	c := op.acquire()
	defer op.release(c)
	c.in, c.out, c.batch = in, out, batch
	return c.forward(ctx)
}

// forward verifies the arguments in c and computes.
func (c *call) forward(ctx context.Context) error {
	if err := c.checkForward(); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("attention: %w", err)
	}
	c.plan(false)
	if err := c.execute(ctx); err != nil {
		return fmt.Errorf("attention: %w", err)
	}
	return nil
}

// Scratch bounds the bytes that a call with this batch needs besides its inputs
// and outputs. They are allocated by the first call of a size and kept.
func (op *Operator) Scratch(batch Batch) (int64, error) {
	if err := op.checkBatch(&batch); err != nil {
		return 0, err
	}
	c := call{op: op, batch: batch}
	c.plan(false)
	return int64(c.active())*op.ops.ScratchBytes(c.rows, op.cfg.HeadDim, op.cfg.ValueDim) + c.planBytes(), nil
}

func (c *call) checkForward() error {
	op, in, out, batch := c.op, &c.in, &c.out, &c.batch
	if err := op.checkBatch(batch); err != nil {
		return err
	}
	if batch.Sequences() == 0 {
		return nil
	}
	o := op.queries("O", &out.O, batch, op.cfg.ValueDim)
	if err := o.checkOutput(); err != nil {
		return err
	}
	if err := c.checkInputs(); err != nil {
		return err
	}
	if out.LSE != nil {
		if err := op.checkRows("LSE", out.LSE, batch); err != nil {
			return err
		}
	}
	outs := [...]region{o.region(), regionOf("LSE", out.LSE)}
	if outs[0].overlaps(outs[1]) {
		return fmt.Errorf("attention: O: overlaps LSE")
	}
	for _, s := range c.cached {
		for _, x := range [...]region{regionOf("K of the cache", s.cache.k), regionOf("V of the cache", s.cache.v)} {
			if err := apart(x, outs[:]); err != nil {
				return err
			}
		}
	}
	return op.checkApart(in, batch, outs[:])
}

// operand is a tensor of a call, with the shape it must have.
type operand struct {
	name       string
	t          *Tensor
	cu         []int
	heads, dim int
}

// queries is an operand of the shape of Q or O.
func (op *Operator) queries(name string, t *Tensor, batch *Batch, dim int) operand {
	return operand{name, t, batch.CuQ, op.cfg.QueryHeads, dim}
}

// keys is an operand of the shape of K or V.
func (op *Operator) keys(name string, t *Tensor, batch *Batch, dim int) operand {
	return operand{name, t, batch.keys(), op.cfg.KVHeads, dim}
}

func (o *operand) check() error { return o.t.check(o.name, o.cu, o.heads, o.dim) }

func (o *operand) region() region { return o.t.region(o.name, o.cu, o.heads, o.dim) }

func (o *operand) checkOutput() error {
	if err := o.check(); err != nil {
		return err
	}
	return o.t.checkDistinct(o.name, o.cu, o.heads, o.dim)
}

// tensors are Q, K and V.
func (op *Operator) tensors(in *Inputs, batch *Batch) [3]operand {
	return [...]operand{
		op.queries("Q", &in.Q, batch, op.cfg.HeadDim),
		op.keys("K", &in.K, batch, op.cfg.HeadDim), op.keys("V", &in.V, batch, op.cfg.ValueDim),
	}
}

// checkRows verifies that x has a number for each query token and head.
func (op *Operator) checkRows(name string, x []float64, batch *Batch) error {
	tokens := batch.CuQ[len(batch.CuQ)-1]
	if want, ok := index(tokens, op.cfg.QueryHeads, 0, 0, 0, 0, 0); !ok || len(x) < want {
		return fmt.Errorf("attention: %s: has %d elements, %d query tokens of %d heads need %d", name, len(x), tokens, op.cfg.QueryHeads, want)
	}
	return nil
}

// checkInputs verifies the shapes of all inputs.
func (c *call) checkInputs() error {
	for i, x := range c.op.tensors(&c.in, &c.batch) {
		if i > 0 && c.cached != nil {
			break // K and V are in the cache
		}
		if err := x.check(); err != nil {
			return err
		}
	}
	return c.in.checkExtras(&c.op.cfg, &c.batch)
}

// checkApart verifies that no input overlaps an output.
func (op *Operator) checkApart(in *Inputs, batch *Batch, outs []region) error {
	if err := op.tensorsApart(in, batch, outs); err != nil {
		return err
	}
	for b := range in.Bias {
		if err := apart(regionOf("Bias", in.Bias[b].Data), outs); err != nil {
			return err
		}
	}
	return nil
}

// tensorsApart is checkApart but for Bias.
func (op *Operator) tensorsApart(in *Inputs, batch *Batch, outs []region) error {
	for _, x := range op.tensors(in, batch) {
		if !x.t.given() {
			continue // in a cache
		}
		if err := apart(x.region(), outs); err != nil {
			return err
		}
	}
	others := [...]region{regionOf("Sinks", in.Sinks), {}}
	if in.Dropout != nil {
		others[1] = regionOf("Rates", in.Dropout.Rates)
	}
	for _, r := range others {
		if err := apart(r, outs); err != nil {
			return err
		}
	}
	return nil
}

// apart verifies that an input overlaps none of the outputs.
func apart(in region, outs []region) error {
	for _, out := range outs {
		if out.overlaps(in) {
			return fmt.Errorf("attention: %s: overlaps the input %s", out.name, in.name)
		}
	}
	return nil
}

// checkExtras verifies bias, sinks and dropout.
func (in *Inputs) checkExtras(cfg *Config, batch *Batch) error {
	if in.Bias != nil && len(in.Bias) != batch.Sequences() {
		return fmt.Errorf("attention: Bias: has %d entries, the batch has %d sequences", len(in.Bias), batch.Sequences())
	}
	for b := range in.Bias {
		s := batch.sequence(b)
		if err := in.Bias[b].check("Bias", b, cfg.QueryHeads, &s); err != nil {
			return err
		}
	}
	if in.Sinks != nil && len(in.Sinks) != cfg.QueryHeads {
		return fmt.Errorf("attention: Sinks: has %d entries, there are %d query heads", len(in.Sinks), cfg.QueryHeads)
	}
	d := in.Dropout
	if d == nil {
		return nil
	}
	if !(d.Rate >= 0 && d.Rate < 1) {
		return fmt.Errorf("attention: Dropout: Rate is %v, must be at least 0 and below 1", d.Rate)
	}
	if tokens := batch.CuQ[len(batch.CuQ)-1]; d.Rates != nil && len(d.Rates) != tokens {
		return fmt.Errorf("attention: Dropout: Rates has %d entries, the batch has %d query tokens", len(d.Rates), tokens)
	}
	for t, r := range d.Rates {
		if !(r >= 0 && r < 1) {
			return fmt.Errorf("attention: Dropout: entry %d of Rates is %v, must be at least 0 and below 1", t, r)
		}
	}
	return nil
}

// check verifies that entry b holds a bias for its sequence, s.
func (x *Bias) check(name string, b, heads int, s *kernel.Sequence) error {
	if x.HeadStride < 0 || x.QueryStride < 0 {
		return fmt.Errorf("attention: %s: strides of entry %d are %d (head) and %d (query), must not be negative", name, b, x.HeadStride, x.QueryStride)
	}
	if x.Data == nil || s.Queries == 0 || s.Keys == 0 {
		return nil
	}
	end, ok := index(heads-1, x.HeadStride, s.Queries-1, x.QueryStride, 0, 0, s.Keys)
	if !ok || end > len(x.Data) {
		return fmt.Errorf("attention: %s: entry %d has %d elements, its strides need %d", name, b, len(x.Data), end)
	}
	return nil
}

// fill prepares t, which keeps its buffers, for rows of one sequence and kv
// head.
func (c *call) fill(t *kernel.Task, d *kernel.Dropout, k *chunk, kv int) {
	op, cfg := c.op, &c.op.cfg
	b, head := k.sequence, kv*op.group
	cuQ, cuK := c.batch.CuQ, c.batch.keys()
	masks := t.Mask
	*t = kernel.Task{
		Sequence: c.batch.sequence(b), FirstHead: head, Group: op.group,
		DK: cfg.HeadDim, DV: cfg.ValueDim, First: k.first, Last: k.last, Wide: c.wide(),
		LSERow: cfg.QueryHeads, Stop: &c.stop, Done: c.done,
	}
	t.Mask = c.mask(b, masks)
	if t.Queries > 0 {
		t.Q, t.O = c.in.Q.rows(cuQ, b, head), c.out.O.rows(cuQ, b, head)
		t.LSE = c.ofRows(c.out.LSE, b, head)
	}
	switch {
	case t.Keys == 0:
	case c.cached != nil:
		t.Pages = c.cached[b].view(kv)
	default:
		t.K, t.V = c.in.K.rows(cuK, b, kv), c.in.V.rows(cuK, b, kv)
	}
	if cfg.ALiBi != nil {
		t.Slopes = cfg.ALiBi[head : head+op.group]
	}
	if c.in.Sinks != nil {
		t.Sinks = c.in.Sinks[head : head+op.group]
	}
	if c.in.Bias != nil && t.Queries > 0 && t.Keys > 0 {
		t.Bias = c.in.Bias[b].rows(head)
	}
	t.Score = kernel.NewScore(op.scale, float32(cfg.Softcap), t.Slopes != nil || t.Bias.Data != nil)
	if c.in.Dropout != nil {
		*d = c.dropout(b)
		t.Dropout = d
	}
}

// wide reports whether some tensor holds numbers of 16 bits.
func (c *call) wide() bool {
	for _, t := range [...]*Tensor{&c.in.Q, &c.in.K, &c.in.V, &c.out.O, &c.given.DO} {
		if t.format() != kernel.Float32 {
			return true
		}
	}
	return false
}

// ofRows is the part of x, a number for each query token and head, that starts
// with a head of sequence b.
func (c *call) ofRows(x []float64, b, head int) []float64 {
	if x == nil {
		return nil
	}
	return x[c.batch.CuQ[b]*c.op.cfg.QueryHeads+head:]
}

// rows views the bias from a head on.
func (x *Bias) rows(head int) kernel.Rows {
	if x.Data == nil {
		return kernel.Rows{}
	}
	return kernel.Rows{Data: x.Data[head*x.HeadStride:], Row: x.QueryStride, Head: x.HeadStride}
}

// rows views the tokens of sequence b from a head on.
func (t *Tensor) rows(cu []int, b, head int) kernel.Rows {
	return t.from(t.start(cu, b) + head*t.HeadStride)
}

// mask is the conjunction of the operator's mask and that of sequence b, in the
// buffers of m.
func (c *call) mask(b int, m kernel.Mask) kernel.Mask {
	m = kernel.Mask{Rangers: m.Rangers[:0], Bitmaps: m.Bitmaps[:0], Dense: m.Dense[:0]}
	c.op.cfg.Mask.compile(&m)
	if c.batch.Masks != nil {
		c.batch.Masks[b].compile(&m)
	}
	if c.cached != nil && len(c.cached[b].gone) > 0 {
		m.Bitmaps = append(m.Bitmaps, &c.cached[b].gone)
	}
	return m
}

func (c *call) dropout(b int) kernel.Dropout {
	d := c.in.Dropout
	id := uint64(b)
	if c.batch.IDs != nil {
		id = c.batch.IDs[b]
	}
	k := kernel.Dropout{Key: kernel.SequenceKey(d.Seed, id), Rate: d.Rate}
	if d.Rates != nil {
		k.Rates = d.Rates[c.batch.CuQ[b]:]
	}
	return k
}
