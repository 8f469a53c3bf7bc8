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

// lane is a row of the task and the interval of keys it sees, as far as
// intervals tell.
type lane struct {
	i, h   int // position, and head within the group
	lo, hi int
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
	held    int // keys whose panels are held at a time
	// A task of few rows reads stored keys and values as they are, unless a value is
	// not finite.
	few    bool
	unit   int     // keys of a panel as Score reads them
	stored *Stored // the loops over t.Pages, if there are any
	// In the backward pass tiles end with a panel or with the sequence, rows whose
	// LSE is -Inf see nothing, and logits are kept as they are after a softcap.
	back bool
}

func newPass(ops *Ops, ws *Workspace, t *Task) pass {
	ops = ops.serving(t.Last-t.First, t.Pages.Table != nil)
	panels := padded(t.DV, ops.Panel) / ops.Panel
	for r := range ws.one {
		ws.one[r] = 1
	}
	p := pass{
		Ops: ops, Workspace: ws, t: t, inGroup: ops.groupStrips(),
		panels: panels, vBlock: ops.vBlock(t.DV), perHead: t.Mask.perHead(), held: SpanKeys, unit: ops.Panel,
	}
	if x := &t.Pages; x.Table != nil {
		p.stored = &ops.Stored[x.Format]
		if t.Last-t.First <= FewRows && x.finite() {
			p.few, p.unit = true, Run
		}
	}
	return p
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
	p := newPass(ops, ws, t)
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
	if p.t.Mask.intervals() {
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
	if ws.covering != p.Ops {
		ws.covering = p.Ops
		clear(ws.covers[:])
	}
	ws.widths = p.plan(ws.widths[:0], t.Last-t.First, &ws.covers)
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
	ws.lanes = grow(ws.lanes, lanes)
	ws.s = grow(ws.s, BlockKeys*widest)
	ws.words = grow(ws.words, MaskWords*widest)
	if t.Slopes != nil {
		ws.pos, ws.slope = grow(ws.pos, lanes), grow(ws.slope, lanes)
	}
	if t.Bias.Data != nil {
		ws.bias = grow(ws.bias, BlockKeys*widest)
	}
	if p.stored != nil {
		ws.rows = grow(ws.rows, min(lanes, FewRows+MaxLanes)*padded(t.DV, Run))
		ws.open = grow(ws.open, t.DK*Run)
	}
	p.reserveWide()
	if t.Dropout != nil {
		ws.key, ws.threshold, ws.keep = grow(ws.key, lanes), grow(ws.threshold, lanes), grow(ws.keep, lanes)
	}
}

// fillLanes fills the arrays of lanes for s, and its intervals. Lanes past the
// last row repeat it.
func (p *pass) fillLanes(s *strip) {
	t, ws := p.t, p.Workspace
	s.lo, s.hi, s.fullLo, s.fullHi = t.Keys, 0, 0, t.Keys
	x := lane{i: s.first / t.Group, h: s.first % t.Group}
	lo, hi := t.Mask.rangeOf(&t.Sequence, x.i)
	for r := range s.loops.Width {
		n := s.lane + r
		x.lo, x.hi = lo, hi
		if p.back && math.IsInf(t.lse(&x), -1) {
			// It has seen nothing, if only for a bias of -Inf.
			x.lo, x.hi = 0, 0
		}
		ws.lanes[n] = x
		s.fullLo, s.fullHi = max(s.fullLo, x.lo), min(s.fullHi, x.hi)
		if x.lo < x.hi {
			s.lo, s.hi = min(s.lo, x.lo), max(s.hi, x.hi)
		}
		if t.Slopes != nil {
			ws.pos[n], ws.slope[n] = int32(x.i+t.Offset), t.Slopes[x.h]
		}
		if t.Dropout != nil {
			ws.key[n], ws.threshold[n], ws.keep[n] = t.Dropout.lane(t.FirstHead+x.h, x.i)
		}
		if r+1 >= s.rows {
			continue
		}
		if x.h++; x.h == t.Group {
			x.i, x.h = x.i+1, 0
			lo, hi = t.Mask.rangeOf(&t.Sequence, x.i)
		}
	}
}

// lanesOf are the lanes of s.
func (p *pass) lanesOf(s *strip) []lane { return p.lanes[s.lane : s.lane+s.loops.Width] }

// positions returns the interval of positions in s.
func (p *pass) positions(s *strip) (i0, i1 int) {
	lanes := p.lanesOf(s)
	return lanes[0].i, lanes[len(lanes)-1].i + 1
}

// offsets fills off with where each lane's row of a view starts, from its
// element first on.
func (p *pass) offsets(s *strip, v *Rows, first int) {
	for r, x := range p.lanesOf(s) {
		p.off[r] = x.i*v.Row + x.h*v.Head + first
	}
}

func (p *pass) gatherQ(s *strip) {
	p.gather(&p.q[s.q], &p.t.Q, s, p.t.DK, p.t.Score.qmul)
}

// runSpan runs a group of strips over the keys of a span, of which none from
// hi on is visible.
func (p *pass) runSpan(group []strip, span, hi int) {
	t := p.t
	end := min((span+1)*SpanKeys, t.Keys)
	i0, _ := p.positions(&group[0])
	_, i1 := p.positions(&group[len(group)-1])
	for b := span * SpanKeys; b < min(end, hi); b += BlockKeys {
		if !t.Mask.intervals() {
			v, next := t.Mask.tile(&t.Sequence, i0, i1, b, min(b+BlockKeys, end))
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
		s := &group[i]
		if p.few {
			p.fromRows(s, i, span)
		}
		p.foldSpan(s, i)
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
	c := p.cut(s, b, end)
	if c.from >= c.to {
		return
	}
	if !p.few {
		p.pack(b%SpanKeys/BlockKeys, b, end)
	}
	for r := range w {
		p.max[r] = float32(math.Inf(-1))
		if p.few && r >= s.rows {
			p.max[r] = float32(math.Inf(1)) // what the lane holds gives zeros
		}
	}
	p.logits(p.s, s, &c, b, c.from, c.full, true)
	p.logits(p.s, s, &c, b, c.full, c.rest, false)
	p.logits(p.s, s, &c, b, c.rest, c.to, true)
	n := c.to - c.from
	o, m, l, empty := p.state(s, i, span)
	p.Softmax(&p.s[0], &p.max[0], m, l, &p.alpha[0], n, w, t.Score.unit(), p.nextValues(b, c.from))
	if t.Dropout != nil {
		p.Ops.Dropout(&p.s[0], &p.key[s.lane], &p.threshold[s.lane], &p.keep[s.lane], c.from, n, w)
	}
	alpha := &p.alpha[0]
	if empty {
		alpha = nil
	}
	if p.few {
		p.accumulateStored(s, &c, b, alpha)
		return
	}
	v, finite := p.valuesAt(b, c.from)
	if !finite && c.rest-c.full < n {
		p.wordsOf(s, &c, c.from, c.to)
		p.AccumulateVisible(o, v, &p.s[0], alpha, &p.words[0], n, p.vStep(), p.panels, p.Panel, w)
	} else {
		s.loops.Accumulate(o, v, &p.s[0], alpha, n, p.vStep(), p.panels)
	}
}

// cuts divide the keys of a tile: those from full to rest are visible to every
// lane, those before and after must be masked. All but to lie between panels.
type cuts struct {
	from, full, rest, to int
	filled               bool // words hold what the lanes see of from to to
}

// cut decides which keys of the block b <= j < end strip s visits. If it sees
// none, to is not above from.
func (p *pass) cut(s *strip, b, end int) cuts {
	c := cuts{from: max(b, s.lo), to: min(end, s.hi)}
	if c.from >= c.to {
		return c
	}
	c.from -= (c.from - b) % p.unit
	if p.back {
		c.to = min(b+padded(c.to-b, p.unit), end)
	}
	c.full = min(b+padded(max(c.from, s.fullLo)-b, p.unit), c.to)
	c.rest = min(c.to, s.fullHi)
	if c.rest < end || p.t.Pages.Table != nil {
		// A panel that is cut short holds real keys that not all lanes see, and
		// the maximum that Score takes would include them.
		c.rest -= (c.rest - b) % p.unit
	}
	c.rest = max(c.rest, c.full)
	if !p.t.Mask.intervals() {
		i0, i1 := p.positions(s)
		v, _ := p.t.Mask.tile(&p.t.Sequence, i0, i1, c.from, c.to)
		if v == Mixed {
			v, c.filled = p.fillWords(s, c.from, c.to-c.from), true
		}
		switch v {
		case Hidden:
			return cuts{}
		case Mixed:
			c.full, c.rest = c.to, c.to
		}
	}
	if c.full == c.rest && !p.sees(s, c.from, c.to) {
		return cuts{}
	}
	return c
}

// sees reports whether the interval of some lane of s has keys in from <= j <
// to.
func (p *pass) sees(s *strip, from, to int) bool {
	for _, x := range p.lanesOf(s) {
		if x.lo < to && x.hi > from {
			return true
		}
	}
	return false
}

// logits computes the logits of the keys a <= j < z, one part of the tile that
// c cuts from the block that starts at b. The tile starts with key c.from.
func (p *pass) logits(tile []float32, s *strip, c *cuts, b, a, z int, masked bool) {
	if a >= z {
		return
	}
	t, w, n := p.t, s.loops.Width, z-a
	part := &tile[(a-c.from)*w]
	// Only the last pass over the tile sees what the maximum is to be taken of.
	maximum := func(last bool) *float32 {
		if last {
			return &p.max[0]
		}
		return &p.unused[0]
	}
	softcap, alibi, bias := t.Score.softcap > 0, t.Slopes != nil, t.Bias.Data != nil
	max := maximum(!softcap && !alibi && !bias && !masked)
	if p.few {
		p.scoreStored(s, c, max, a, z)
	} else {
		s.loops.Score(part, max, p.keysAt(b, a), &p.q[s.q], t.DK, (n+p.Panel-1)/p.Panel)
	}
	mul := t.Score.mul
	if softcap {
		p.Softcap(part, maximum(!alibi && !bias && !masked), n, w, t.Score.capMul, t.Score.softcap)
		mul = 1
		if p.back {
			copy(p.capped[(a-c.from)*w:], tile[(a-c.from)*w:(z-c.from)*w])
		}
	}
	if alibi {
		for r := range w {
			p.dist[r] = p.pos[s.lane+r] - int32(a)
		}
		p.ALiBi(part, maximum(!bias && !masked), &p.slope[s.lane], &p.dist[0], n, w, mul)
		mul = 1
	}
	if bias {
		p.offsets(s, &t.Bias, a)
		p.Gather(&p.bias[0], &t.Bias.Data[0], &p.off[0], n, w, 1)
		p.Bias(part, maximum(!masked), &p.bias[0], n, w, mul)
	}
	if masked {
		p.wordsOf(s, c, a, z)
		p.Mask(part, maximum(true), &p.words[0], n, w)
	}
}

// wordsOf fills words for the keys a <= j < z of the tile that c cuts.
func (p *pass) wordsOf(s *strip, c *cuts, a, z int) {
	if whole := a == c.from && z == c.to; !c.filled || !whole {
		p.fillWords(s, a, z-a)
		c.filled = whole
	}
}

// fillWords fills words [MaskWords][w] with what each lane sees of n keys from
// key j0, and classifies them.
func (p *pass) fillWords(s *strip, j0, n int) Visibility {
	t, w := p.t, s.loops.Width
	row := &p.Workspace.row // masks are given it, and it would escape
	count := (n + 31) / 32
	var last lane
	for r, x := range p.lanesOf(s) {
		if r == 0 || x.i != last.i || x.hi != last.hi || p.perHead {
			last = x
			setRange(row[:count], x.lo, min(x.hi, j0+n), j0)
			for _, b := range t.Mask.Bitmaps {
				b.Row(&t.Sequence, t.FirstHead+x.h, x.i, j0, n, row)
			}
		}
		for k, bits := range row[:count] {
			p.words[k*w+r] = bits
		}
	}
	for _, d := range t.Mask.Dense {
		p.offsets(s, &Rows{Row: d.Query, Head: d.Head}, t.FirstHead*d.Head+j0)
		p.Bits(&p.words[0], &d.Data[0], &p.off[0], n, w)
	}
	return classify(p.words[:count*w], n, w)
}

// classify says what words hold of n keys.
func classify(words []uint32, n, w int) Visibility {
	visible, hidden := true, true
	for k := 0; k*32 < n; k++ {
		full := ones(n - 32*k)
		for _, x := range words[k*w : (k+1)*w] {
			visible, hidden = visible && x == full, hidden && x == 0
		}
	}
	switch {
	case hidden:
		return Hidden
	case visible:
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
	k, v := p.k[block*BlockKeys*t.DK:], p.v[block*p.vBlock:]
	if p.stored != nil {
		p.finite[block] = p.unpack(k, v, b, end)
		return
	}
	src, stride := p.keyRows(&t.K, b, end, t.DK)
	p.PackK(&k[0], src, stride, end-b, t.DK)
	src, stride = p.keyRows(&t.V, b, end, t.DV)
	p.finite[block] = p.PackV(&v[0], src, stride, end-b, t.DV, p.vStep())
}

// keysAt is packed K from key j on, the start of a panel in the block that
// starts at b.
func (p *pass) keysAt(b, j int) *float32 { return &p.k[(b%p.held+j-b)*p.t.DK] }

// valuesAt is packed V from key j on, and whether all values of the block are
// finite.
func (p *pass) valuesAt(b, j int) (v *float32, finite bool) {
	block := b % p.held / BlockKeys
	return &p.v[block*p.vBlock+(j-b)*p.Panel], p.finite[block]
}

// settle returns the state of s, which is that of no keys if none was seen.
func (p *pass) settle(s *strip) (o, m, l []float32) {
	w, n := s.loops.Width, s.lane
	o, m, l = p.o[s.o:s.o+p.panels*p.Panel*w], p.m[n:n+w], p.l[n:n+w]
	if s.span < 0 {
		clear(o)
		p.clearState(m, l, w)
	}
	return o, m, l
}

// finish writes the rows of s.
func (p *pass) finish(s *strip) {
	t, w := p.t, s.loops.Width
	o, m, l := p.settle(s)
	scale := t.Score.scale
	if t.Score.natural {
		scale = 1
	}
	p.LogSum(&p.lse[0], &p.inv[0], &m[0], &l[0], w, scale)
	if t.Sinks != nil {
		p.foldSinks(s, m, l)
	}
	p.scatter(&t.O, s, &o[0], t.DV)
	if t.LSE != nil {
		for r, x := range p.lanesOf(s)[:s.rows] {
			t.LSE[x.i*t.LSERow+x.h] = p.lse[r]
		}
	}
}

// foldSinks takes each lane's sink into the state, which is brought to natural
// units first. It leaves o divided by the sum before the sink, and in inv what
// that is worth after it.
func (p *pass) foldSinks(s *strip, m, l []float32) {
	t, w := p.t, s.loops.Width
	s.loops.Accumulate(&p.o[s.o], &p.v[0], &p.s[0], &p.inv[0], 0, p.vStep(), p.panels)
	for r, x := range p.lanesOf(s) {
		if !t.Score.natural {
			m[r] *= t.Score.mul
		}
		p.alpha[r] = t.Sinks[x.h]
	}
	p.Sink(&m[0], &l[0], &p.inv[0], &p.alpha[0], w)
	// inv is the weight now, and LogSum has no use for it.
	p.LogSum(&p.lse[0], &p.max[0], &m[0], &l[0], w, 1)
}
