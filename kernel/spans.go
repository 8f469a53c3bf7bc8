package kernel

// FewRows rows at most read stored keys and values as they lie; more are worth
// packing them for wide strips. So few are one group of strips, and may be computed
// span by span in several places.
const FewRows = 32

// StateSize is the number of elements of the state of a task of few rows over one
// span: O, m and l of its lanes. Its keys may be cached.
func StateSize(ops *Ops, rows, dv int, cached bool) int {
	ops = ops.serving(rows, cached)
	var widths [FewRows]uint8
	var covers [2*MaxLanes + 1]cover
	lanes := 0
	for _, i := range ops.plan(widths[:0], rows, &covers) {
		lanes += ops.Strips[i].Width
	}
	return lanes * (padded(dv, ops.Panel) + 2)
}

// Spans is the number of spans of a sequence of that many keys.
func Spans(keys int) int { return (keys + SpanKeys - 1) / SpanKeys }

// ForwardSpans computes the states of the few rows of t over the spans first <=
// span < last, one after another.
func ForwardSpans(ops *Ops, ws *Workspace, t *Task, first, last int, states []float32) {
	p := newPass(ops, ws, t)
	_, hi := p.layOut()
	for i := range ws.strips {
		p.gatherQ(&ws.strips[i])
	}
	size := len(states) / (last - first)
	for span := first; span < last && !t.stopped(); span++ {
		clear(ws.packed[:])
		for i := range ws.strips {
			ws.strips[i].span = -1
		}
		p.runSpan(ws.strips, span, hi)
		for i := range ws.strips {
			p.settle(&ws.strips[i])
		}
		o, m, l := p.split(states[(span-first)*size:][:size])
		copy(o, ws.o)
		copy(m, ws.m)
		copy(l, ws.l)
	}
}

// FoldSpans folds the states of all spans of t in order, and writes the rows. It
// destroys states.
func FoldSpans(ops *Ops, ws *Workspace, t *Task, states []float32) {
	p := newPass(ops, ws, t)
	p.layOut()
	spans := Spans(t.Keys)
	size := len(states) / spans
	for span := range spans {
		o, m, l := p.split(states[span*size:][:size])
		if span == 0 {
			copy(ws.o, o)
			copy(ws.m, m)
			copy(ws.l, l)
			continue
		}
		for i := range ws.strips {
			s := &ws.strips[i]
			p.Fold(&p.o[s.o], &p.m[s.lane], &p.l[s.lane], &o[s.o], &m[s.lane], &l[s.lane],
				p.panels*p.Panel, s.loops.Width, t.Score.unit())
		}
	}
	for i := range ws.strips {
		ws.strips[i].span = 0
		p.finish(&ws.strips[i])
	}
}

// split is a state's O, m and l.
func (p *pass) split(state []float32) (o, m, l []float32) {
	n := len(state) / (p.panels*p.Panel + 2)
	return state[:len(state)-2*n], state[len(state)-2*n : len(state)-n], state[len(state)-n:]
}
