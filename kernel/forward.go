package kernel

import "math"

// strip is a group of rows that lie in the lanes of one tile.
type strip struct {
	loops       *Strip
	first, rows int // rows of the task it holds; lanes past the last repeat it
	lane        int // of the workspace's arrays, where its lanes start
	q, o        int // where its tiles start
	// Some lane sees keys lo <= j < hi, every lane sees fullLo <= j < fullHi, as
	// far as intervals tell.
	lo, hi, fullLo, fullHi int
	span                   int // the first span that touched it, or -1
	second                 bool
}

// pass is one task on its way through the keys.
type pass struct {
	*Ops
	*Workspace
	t       *Task
	inGroup int // strips
	panels  int // of V and O
	vBlock  int // elements of one block of packed V
	perHead bool
}

// Forward computes the rows of t.
//
//	for each span of keys
//	  for each group of strips
//	    for each block of the span, for each strip: one tile
//	    fold the span into the strips' states
//
// The span is outermost so that its packed keys serve all rows of the task and
// scratch does not grow with the sequence.
func Forward(ops *Ops, ws *Workspace, t *Task) {
	p := pass{Ops: ops, Workspace: ws, t: t, perHead: t.Mask.perHead(), inGroup: ops.groupStrips()}
	p.panels = padded(t.DV, ops.Panel) / ops.Panel
	p.vBlock = p.panels * ops.vStep()
	lo, hi := p.layOut()
	last := max(hi-1, 0) / SpanKeys
	for span := lo / SpanKeys; span <= last; span++ {
		clear(ws.packed[:])
		start := span == lo/SpanKeys
		for g := 0; g < len(ws.strips); g += p.inGroup {
			if t.stopped() {
				return
			}
			group := ws.strips[g:min(g+p.inGroup, len(ws.strips))]
			if start {
				for i := range group {
					p.gatherQ(&group[i])
				}
			}
			p.runSpan(group, span, hi)
			if span == last {
				for i := range group {
					p.finish(&group[i])
				}
			}
		}
		if !start && span < last {
			span = max(span, min(p.nextVisible(span+1, hi), last)-1)
		}
	}
}

// nextVisible returns the first span from span on that some bitmap does not
// hide from all rows of the task.
func (p *pass) nextVisible(span, hi int) int {
	if len(p.t.Mask.Bitmaps) == 0 {
		return span
	}
	i0, i1 := p.t.First/p.t.Group, (p.t.Last-1)/p.t.Group+1
	v, next := p.t.Mask.tile(&p.t.Sequence, i0, i1, span*SpanKeys, min((span+1)*SpanKeys, p.t.Keys))
	if v == Hidden {
		return max(span, next/SpanKeys)
	}
	return span
}

// layOut cuts the task into strips, sizes the workspace and fills the arrays
// of lanes. It returns the interval of keys that any row may see.
func (p *pass) layOut() (lo, hi int) {
	t, ws := p.t, p.Workspace
	ws.widths = p.plan(ws.widths[:0], t.Last-t.First)
	ws.strips = ws.strips[:0]
	lanes, widest, row := 0, 0, t.First
	for _, i := range ws.widths {
		loops := &p.Strips[i]
		ws.strips = append(ws.strips, strip{
			loops: loops, first: row, rows: min(loops.Width, t.Last-row), lane: lanes,
			q: lanes * t.DK, o: lanes * p.panels * p.Panel, span: -1,
		})
		row += loops.Width
		lanes += loops.Width
		widest = max(widest, loops.Width)
	}
	p.reserve(lanes, widest)
	lo = t.Keys
	for i := range ws.strips {
		s := &ws.strips[i]
		p.fillLanes(s)
		if s.lo < s.hi {
			lo, hi = min(lo, s.lo), max(hi, s.hi)
		}
	}
	return min(lo, hi), hi
}

// reserve sizes the workspace for lanes lanes in strips of at most widest.
func (p *pass) reserve(lanes, widest int) {
	t, ws := p.t, p.Workspace
	channels := p.panels * p.Panel
	span := min(padded(t.Keys, BlockKeys), SpanKeys)
	ws.k = grow(ws.k, span*t.DK)
	ws.v = grow(ws.v, max(span/BlockKeys, 1)*p.vBlock)
	ws.q = grow(ws.q, lanes*t.DK)
	ws.o = grow(ws.o, lanes*channels)
	ws.o2 = grow(ws.o2, p.inGroup*widest*channels)
	ws.m, ws.l = grow(ws.m, lanes), grow(ws.l, lanes)
	ws.m2, ws.l2 = grow(ws.m2, lanes), grow(ws.l2, lanes)
	ws.lo, ws.hi = grow(ws.lo, lanes), grow(ws.hi, lanes)
	ws.s = grow(ws.s, BlockKeys*widest)
	ws.words = grow(ws.words, MaskWords*widest)
	if t.Slopes != nil {
		ws.pos, ws.slope = grow(ws.pos, lanes), grow(ws.slope, lanes)
	}
	if t.Bias.Data != nil {
		ws.bias = grow(ws.bias, BlockKeys*widest)
	}
	if t.Dropout != nil {
		ws.key, ws.threshold, ws.keep = grow(ws.key, lanes), grow(ws.threshold, lanes), grow(ws.keep, lanes)
	}
}

// row returns position and head within the group of lane r of s.
func (p *pass) row(s *strip, r int) (i, h int) {
	row := s.first + min(r, s.rows-1)
	return row / p.t.Group, row % p.t.Group
}

// fillLanes fills the arrays of lanes for s, and its intervals.
func (p *pass) fillLanes(s *strip) {
	t, ws := p.t, p.Workspace
	s.lo, s.hi, s.fullLo, s.fullHi = t.Keys, 0, 0, t.Keys
	last := -1
	for r := range s.loops.Width {
		i, h := p.row(s, r)
		n := s.lane + r
		if i != last {
			ws.lo[n], ws.hi[n] = t.Mask.rangeOf(&t.Sequence, i)
			last = i
		} else {
			ws.lo[n], ws.hi[n] = ws.lo[n-1], ws.hi[n-1]
		}
		lo, hi := ws.lo[n], ws.hi[n]
		s.fullLo, s.fullHi = max(s.fullLo, lo), min(s.fullHi, hi)
		if lo < hi {
			s.lo, s.hi = min(s.lo, lo), max(s.hi, hi)
		}
		if t.Slopes != nil {
			ws.pos[n], ws.slope[n] = int32(i+t.Offset), t.Slopes[h]
		}
		if t.Dropout != nil {
			ws.key[n], ws.threshold[n], ws.keep[n] = t.Dropout.lane(t.FirstHead+h, i)
		}
	}
}

// offsets fills off with where each lane's row of a view starts.
func (p *pass) offsets(s *strip, v *Rows, first int) {
	for r := range s.loops.Width {
		i, h := p.row(s, r)
		p.off[r] = i*v.Row + h*v.Head + first
	}
}

func (p *pass) gatherQ(s *strip) {
	p.offsets(s, &p.t.Q, 0)
	p.Gather(&p.q[s.q], &p.t.Q.Data[0], &p.off[0], p.t.DK, s.loops.Width, p.t.Score.qmul)
}

// runSpan runs a group of strips over the keys of a span, of which none from
// hi on is visible.
func (p *pass) runSpan(group []strip, span, hi int) {
	t := p.t
	end := min((span+1)*SpanKeys, t.Keys)
	i0, _ := p.row(&group[0], 0)
	i1, _ := p.row(&group[len(group)-1], MaxLanes)
	for b := span * SpanKeys; b < min(end, hi); b += BlockKeys {
		if len(t.Mask.Bitmaps) > 0 {
			v, next := t.Mask.tile(&t.Sequence, i0, i1+1, b, min(b+BlockKeys, end))
			if v == Hidden {
				b += max(next-b, BlockKeys)/BlockKeys*BlockKeys - BlockKeys
				continue
			}
		}
		for i := range group {
			p.tile(&group[i], i, span, b, min(b+BlockKeys, end))
		}
	}
	for i := range group {
		p.foldSpan(&group[i], i)
	}
}

// state returns o, m, l of the span for strip s, the i-th of its group, and
// whether they are still empty. The first span is the state itself; a later
// one has its own until it is folded.
func (p *pass) state(s *strip, i, span int) (o, m, l *float32, empty bool) {
	n := s.lane
	if s.span < 0 || s.span == span {
		o, m, l, empty = &p.o[s.o], &p.m[n], &p.l[n], s.span < 0
		if empty {
			s.span = span
			p.clearState(p.m[n:], p.l[n:], s.loops.Width)
		}
		return o, m, l, empty
	}
	o, m, l, empty = &p.o2[i*len(p.o2)/p.inGroup], &p.m2[n], &p.l2[n], !s.second
	if empty {
		s.second = true
		p.clearState(p.m2[n:], p.l2[n:], s.loops.Width)
	}
	return o, m, l, empty
}

func (p *pass) clearState(m, l []float32, w int) {
	for r := range w {
		m[r], l[r] = float32(math.Inf(-1)), 0
	}
}

// foldSpan folds the second state of s into its first.
func (p *pass) foldSpan(s *strip, i int) {
	if !s.second {
		return
	}
	s.second = false
	n := s.lane
	p.Fold(&p.o[s.o], &p.m[n], &p.l[n], &p.o2[i*len(p.o2)/p.inGroup], &p.m2[n], &p.l2[n],
		p.panels*p.Panel, s.loops.Width, p.t.Score.unit())
}

// tile takes the keys b <= j < end of one block into the state of strip s, the
// i-th of its group.
func (p *pass) tile(s *strip, i, span, b, end int) {
	t, w := p.t, s.loops.Width
	from, to := max(b, s.lo), min(end, s.hi)
	if from >= to {
		return
	}
	from -= (from - b) % p.Panel
	masked, visible := p.visibility(s, b, from, to, end)
	if !visible {
		return
	}
	block := b % SpanKeys / BlockKeys
	p.pack(block, b, end)
	n := to - from
	for r := range w {
		p.max[r] = float32(math.Inf(-1))
	}
	s.loops.Score(&p.s[0], &p.max[0], &p.k[(b%SpanKeys+from-b)*t.DK], &p.q[s.q], t.DK, (n+p.Panel-1)/p.Panel)
	p.modify(s, from, n)
	if masked {
		p.Mask(&p.s[0], &p.max[0], &p.words[0], n, w)
	}
	o, m, l, empty := p.state(s, i, span)
	p.Softmax(&p.s[0], &p.max[0], m, l, &p.alpha[0], n, w, t.Score.unit())
	if t.Dropout != nil {
		p.Ops.Dropout(&p.s[0], &p.key[s.lane], &p.threshold[s.lane], &p.keep[s.lane], from, n, w)
	}
	alpha := &p.alpha[0]
	if empty {
		alpha = nil
	}
	v := &p.v[block*p.vBlock+(from-b)*p.Panel]
	if masked && !p.finite[block] {
		p.AccumulateVisible(o, v, &p.s[0], alpha, &p.words[0], n, p.vStep(), p.panels, p.Panel, w)
		return
	}
	s.loops.Accumulate(o, v, &p.s[0], alpha, n, p.vStep(), p.panels)
}

// visibility decides whether a tile holds anything visible and whether it must
// be masked, in which case words hold what each lane sees.
func (p *pass) visibility(s *strip, b, from, to, end int) (masked, visible bool) {
	t := p.t
	// A panel that is cut short holds real keys that nobody here sees, and the
	// maximum that Score takes would include them.
	cut := to < end && (to-b)%p.Panel != 0
	masked = cut || from < s.fullLo || to > s.fullHi
	if len(t.Mask.Bitmaps) > 0 {
		i0, _ := p.row(s, 0)
		i1, _ := p.row(s, MaxLanes)
		switch v, _ := t.Mask.tile(&t.Sequence, i0, i1+1, from, to); v {
		case Hidden:
			return false, false
		case Mixed:
			masked = true
		}
	}
	if !masked {
		return false, true
	}
	switch p.fillWords(s, from, to-from) {
	case Hidden:
		return false, false
	case Visible:
		return cut, true
	}
	return true, true
}

// fillWords fills words [MaskWords][w] for n keys from key j0, and classifies
// them.
func (p *pass) fillWords(s *strip, j0, n int) Visibility {
	t, w := p.t, s.loops.Width
	row := &p.Workspace.row // masks are given it, and it would escape
	var full [MaskWords]uint32
	setRange(&full, j0, j0+n, j0)
	last := -1
	var all, any [MaskWords]uint32
	all = full
	for r := range w {
		i, h := p.row(s, r)
		if i != last || p.perHead {
			setRange(row, max(p.lo[s.lane+r], j0), min(p.hi[s.lane+r], j0+n), j0)
			for _, b := range t.Mask.Bitmaps {
				b.Row(&t.Sequence, t.FirstHead+h, i, j0, n, row)
			}
			last = i
		}
		for k := range row {
			p.words[k*w+r] = row[k]
			all[k] &= row[k]
			any[k] |= row[k]
		}
	}
	switch {
	case any == [MaskWords]uint32{}:
		return Hidden
	case all == full:
		return Visible
	}
	return Mixed
}

// pack packs a block of the span, keys b <= j < end, if no tile has yet.
func (p *pass) pack(block, b, end int) {
	if p.packed[block] {
		return
	}
	t := p.t
	p.packed[block] = true
	p.PackK(&p.k[block*BlockKeys*t.DK], &t.K.Data[b*t.K.Row], t.K.Row, end-b, t.DK)
	p.finite[block] = p.PackV(&p.v[block*p.vBlock], &t.V.Data[b*t.V.Row], t.V.Row, end-b, t.DV, p.vStep())
}

// modify turns the raw scores of n keys from key j0 into logits.
func (p *pass) modify(s *strip, j0, n int) {
	t, w, mul := p.t, s.loops.Width, p.t.Score.mul
	if c := t.Score.softcap; c > 0 {
		p.Softcap(&p.s[0], &p.max[0], n, w, mul/c, c)
		mul = 1
	}
	if t.Slopes != nil {
		for r := range w {
			p.dist[r] = p.pos[s.lane+r] - int32(j0)
		}
		p.ALiBi(&p.s[0], &p.max[0], &p.slope[s.lane], &p.dist[0], n, w, mul)
		mul = 1
	}
	if t.Bias.Data != nil {
		p.offsets(s, &t.Bias, j0)
		p.Gather(&p.bias[0], &t.Bias.Data[0], &p.off[0], n, w, 1)
		p.Bias(&p.s[0], &p.max[0], &p.bias[0], n, w, mul)
	}
}

// finish writes the rows of s.
func (p *pass) finish(s *strip) {
	t, w, n := p.t, s.loops.Width, s.lane
	o, m, l := p.o[s.o:s.o+p.panels*p.Panel*w], p.m[n:n+w], p.l[n:n+w]
	if s.span < 0 {
		clear(o)
		p.clearState(m, l, w)
	}
	scale := t.Score.scale
	if t.Score.natural {
		scale = 1
	}
	p.LogSum(&p.lse[0], &p.inv[0], &m[0], &l[0], w, scale)
	if t.Sinks != nil {
		p.foldSinks(s, m, l)
	}
	p.offsets(s, &t.O, 0)
	p.Scatter(&t.O.Data[0], &p.off[0], &o[0], &p.inv[0], t.DV, w)
	for r := range s.rows {
		if t.LSE == nil {
			break
		}
		i, h := p.row(s, r)
		t.LSE[i*t.LSERow+h] = p.lse[r]
	}
}

// foldSinks takes each lane's sink into the state, which is brought to natural
// units first. It leaves o divided by the sum before the sink, and in inv what
// that is worth after it.
func (p *pass) foldSinks(s *strip, m, l []float32) {
	t, w := p.t, s.loops.Width
	s.loops.Accumulate(&p.o[s.o], &p.v[0], &p.s[0], &p.inv[0], 0, p.vStep(), p.panels)
	for r := range w {
		_, h := p.row(s, r)
		if !t.Score.natural {
			m[r] *= t.Score.mul
		}
		p.alpha[r] = t.Sinks[h]
	}
	p.Sink(&m[0], &l[0], &p.inv[0], &p.alpha[0], w)
	// inv is the weight now, and LogSum has no use for it.
	p.LogSum(&p.lse[0], &p.max[0], &m[0], &l[0], w, 1)
}
