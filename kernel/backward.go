package kernel

import (
	"math"
	"slices"
)

// CellKeys keys at a time pass by all rows of a task. More make the rows pass by
// less often (D=128 S=8192: 91 % of the peak with 2 blocks, 93 with 4), fewer let
// more tasks work on one head. It does not enter the results.
const CellKeys = 4 * BlockKeys

// unshift takes 2^GradShift out again.
const unshift = 1. / (1 << GradShift)

// gradients is the scratch of the backward pass.
type gradients struct {
	// One cell of keys: K by channels, V by keys as K is, and their gradients.
	kc, vk, dk, dv []float32
	keyOff         [CellKeys]int

	groups []rowGroup
	// The task's strips, one after another, in the places of their q and o.
	do, dq []float32
	// The task's rows of Q and dO in panels, group by group.
	qRows, doRows []float32
	hi, lo, delta []float32 // one a lane of the task
	p, ds         []float32 // [BlockKeys][w] a strip, for one group
	keptTile      []float32 // one tile: 1/(1-rate) for a key that is kept, else 0
	capped        []float32 // one tile: logits after softcap
	biasRows      []float32 // one tile, transposed
	cuts          []cuts    // of the strips of a group
	groupWords    []uint32  // of the strips of a group
	rowOff        [GradRows]int
	ones          []float32 // one tile, for keptTile to start from
	sums          [MaxLanes]float32
}

// rowGroup is GradRows rows of a task, or what is left over, in strips of one
// width.
type rowGroup struct {
	strips            []strip
	first, rows       int // rows of the task
	w                 int
	qRows, doRows     int // where they start
	qFinite, doFinite bool
	lo, hi            int // keys that some row may see, as far as intervals tell
}

// Backward computes the gradients that the rows of t give.
//
//	for each cell of keys
//	  for each group of rows, from the last
//	    for each block of the cell
//	      for each strip: one tile of P and dS; dQ += dS K
//	      dV += P^T dO; dK += dS^T Q
//
// P is recomputed from LSE (Dao et al. 2022, algorithm 4). The keys are
// outermost, as in Forward, so that scratch does not grow with the sequence.
func Backward(ops *Ops, ws *Workspace, t *Task, g *Gradients) {
	p := newBackward(ops, ws, t, g)
	p.layOut()
	p.clearBias()
	for i := range p.groups {
		p.gatherGroup(&p.groups[i])
	}
	if p.wantsLogits() || g.DV.Data != nil {
		for cell := 0; cell*CellKeys < t.Keys; cell++ {
			if !p.cell(cell) {
				return
			}
		}
	}
	if g.DQ.Data == nil {
		return
	}
	for i := range ws.strips {
		p.storeDQ(&ws.strips[i])
	}
}

// backward is one task on its way through the keys.
type backward struct {
	pass
	g                  *Gradients
	kPanels            int // panels of K by channels
	kBlock             int // elements of one block of them
	qColumns, vColumns int // channels of Q and V, padded to panels of gradients
	cellRows, gStep    int // of the panels of gradients: rows, and elements between panels
}

func newBackward(ops *Ops, ws *Workspace, t *Task, g *Gradients) backward {
	p := backward{
		pass: newPass(ops, ws, t), g: g, kPanels: padded(t.DK, ops.Panel) / ops.Panel,
		qColumns: padded(t.DK, ops.Columns), vColumns: padded(t.DV, ops.Columns),
	}
	p.held, p.back = CellKeys, true
	p.cellRows = min(padded(t.Keys, BlockKeys), CellKeys)
	p.gStep = p.cellRows*ops.Columns + 16 // so that panels do not fall into the same cache sets
	p.kBlock = p.kPanels * ops.vStep()
	return p
}

// wantsLogits reports whether the gradients of the logits are needed.
func (p *backward) wantsLogits() bool {
	return p.g.DQ.Data != nil || p.g.DK.Data != nil || p.g.DBias.Data != nil
}

// width is the width of the strips that cover rows rows at the least cost.
func (ops *Ops) width(rows int) *Strip {
	if rows == GradRows {
		return &ops.Strips[0]
	}
	best, least := &ops.Strips[0], 0
	for i := range ops.Strips {
		s := &ops.Strips[i]
		if cost := (rows + s.Width - 1) / s.Width * s.Cost; i == 0 || cost < least {
			best, least = s, cost
		}
	}
	return best
}

// layOut cuts the task into groups and strips, sizes the workspace and fills
// the arrays of lanes.
func (p *backward) layOut() {
	t, ws := p.t, p.Workspace
	p.reserve(t.Last - t.First)
	ws.strips, ws.groups = ws.strips[:0], ws.groups[:0]
	lanes := 0
	for first := t.First; first < t.Last; first += GradRows {
		g := rowGroup{
			first: first, rows: min(GradRows, t.Last-first), lo: t.Keys,
			qRows: (first - t.First) * p.qColumns, doRows: (first - t.First) * p.vColumns,
		}
		loops, start := p.width(g.rows), len(ws.strips)
		g.w = loops.Width
		for row := first; row < first+g.rows; row += g.w {
			ws.strips = append(ws.strips, strip{
				loops: loops, first: row, rows: min(g.w, first+g.rows-row), lane: lanes,
				q: lanes * t.DK, o: lanes * t.DV, span: -1,
			})
			lanes += g.w
		}
		g.strips = ws.strips[start:]
		for i := range g.strips {
			s := &g.strips[i]
			p.fillLanes(s)
			if s.lo < s.hi {
				g.lo, g.hi = min(g.lo, s.lo), max(g.hi, s.hi)
			}
		}
		ws.groups = append(ws.groups, g)
	}
}

// reserve sizes the workspace for rows rows.
func (p *backward) reserve(rows int) {
	t, ws := p.t, p.Workspace
	narrowest, widest := p.Ops.widths()
	// Only the last group may leave lanes over, fewer than a strip's.
	lanes, group := rows+widest, min(rows, GradRows)+widest
	// Groups point to their strips, which must not move.
	ws.strips = slices.Grow(ws.strips[:0], rows/narrowest+rows/GradRows+1)
	ws.groups = grow(ws.groups, rows/GradRows+1)
	cell := p.cellRows
	ws.k, ws.vk = grow(ws.k, cell*t.DK), grow(ws.vk, cell*t.DV)
	ws.kc = grow(ws.kc, cell/BlockKeys*p.kBlock)
	ws.dk, ws.dv = grow(ws.dk, p.qColumns/p.Columns*p.gStep), grow(ws.dv, p.vColumns/p.Columns*p.gStep)
	ws.q, ws.dq = grow(ws.q, lanes*t.DK), grow(ws.dq, lanes*p.kPanels*p.Panel)
	ws.do = grow(ws.do, lanes*t.DV)
	ws.qRows, ws.doRows = grow(ws.qRows, rows*p.qColumns), grow(ws.doRows, rows*p.vColumns)
	ws.lanes = grow(ws.lanes, lanes)
	ws.hi, ws.lo, ws.delta = grow(ws.hi, lanes), grow(ws.lo, lanes), grow(ws.delta, lanes)
	ws.p, ws.ds = grow(ws.p, group*BlockKeys), grow(ws.ds, group*BlockKeys)
	ws.cuts = grow(ws.cuts, group)
	ws.words, ws.groupWords = grow(ws.words, MaskWords*widest), grow(ws.groupWords, MaskWords*group)
	p.reserveWide()
	// O is gathered next to dO, once.
	ws.o2 = grow(ws.o2, widest*t.DV)
	tile := BlockKeys * widest
	if t.Score.softcap > 0 {
		ws.capped = grow(ws.capped, tile)
	}
	if t.Slopes != nil {
		ws.pos, ws.slope = grow(ws.pos, lanes), grow(ws.slope, lanes)
	}
	if t.Bias.Data != nil {
		ws.bias = grow(ws.bias, tile)
		ws.biasRows = grow(ws.biasRows, tile)
	}
	if t.Dropout != nil {
		ws.key, ws.threshold, ws.keep = grow(ws.key, lanes), grow(ws.threshold, lanes), grow(ws.keep, lanes)
		ws.keptTile = grow(ws.keptTile, tile)
		if len(ws.ones) < tile {
			ws.ones = slices.Repeat([]float32{1}, tile)
		}
	}
}

// gatherGroup brings the rows of g into lanes and panels, and prepares what
// Gradient needs of them.
func (p *backward) gatherGroup(g *rowGroup) {
	t := p.t
	for i := range g.strips {
		s := &g.strips[i]
		p.gatherQ(s)
		do := &p.do[s.o]
		p.gather(do, &p.g.DO, s, t.DV, 1)
		p.gather(&p.o2[0], &t.O, s, t.DV, 1)
		p.Dot(&p.delta[s.lane], do, &p.o2[0], t.DV, g.w)
		for r, x := range p.lanesOf(s) {
			n, lse := s.lane+r, t.lse(&x)
			if p.g.DLSE != nil {
				p.delta[n] = float32(float64(p.delta[n]) - p.g.DLSE[x.i*t.LSERow+x.h])
			}
			p.hi[n], p.lo[n] = t.Score.split(lse)
			if p.g.DSinks != nil && r < s.rows {
				p.g.DSinks[x.i*t.LSERow+x.h] = sinkGradient(float64(t.Sinks[x.h]), lse, float64(p.delta[n]))
			}
		}
	}
	if p.g.DV.Data != nil {
		p.rowOffsets(g, &p.g.DO)
		src := p.source(&p.g.DO, p.rowOff[:g.rows], t.DV)
		g.doFinite = p.PackRows(&p.doRows[g.doRows], src, &p.rowOff[0], g.rows, t.DV, g.rows*p.Columns)
	}
	if p.g.DK.Data != nil {
		p.rowOffsets(g, &t.Q)
		src := p.source(&t.Q, p.rowOff[:g.rows], t.DK)
		g.qFinite = p.PackRows(&p.qRows[g.qRows], src, &p.rowOff[0], g.rows, t.DK, g.rows*p.Columns)
	}
}

// sinkGradient is what a row gives to the gradient of its sink: the weight of
// the sink times -delta.
func sinkGradient(sink, lse, delta float64) float64 {
	if math.IsInf(lse, -1) {
		return 0
	}
	return -Exp(math.Min(sink-lse, 0)) * delta
}

// rowOffsets fills rowOff with where each row of g starts in a view.
func (p *backward) rowOffsets(g *rowGroup, v *Rows) {
	i, h := g.first/p.t.Group, g.first%p.t.Group
	for r := range g.rows {
		p.rowOff[r] = i*v.Row + h*v.Head
		if h++; h == p.t.Group {
			i, h = i+1, 0
		}
	}
}

// cell takes the rows past one cell of keys. It returns false if the task is to
// end.
func (p *backward) cell(cell int) bool {
	t, g := p.t, p.g
	b, end := cell*CellKeys, min((cell+1)*CellKeys, t.Keys)
	seen := false
	for i := range p.groups {
		seen = seen || p.groups[i].lo < end && p.groups[i].hi > b
	}
	if !seen && !g.First && !g.Last {
		p.done(cell)
		return true
	}
	if g.Order != nil && !g.Order.Wait(cell) {
		return false
	}
	p.load(p.dk, &g.DK, b, end, t.DK, p.qColumns)
	p.load(p.dv, &g.DV, b, end, t.DV, p.vColumns)
	clear(p.packed[:])
	for i := len(p.groups) - 1; i >= 0 && seen; i-- {
		for k := b; k < end; k += BlockKeys {
			if t.stopped() {
				return false
			}
			p.block(&p.groups[i], k, min(k+BlockKeys, end))
		}
	}
	kScale, vScale := float32(1), float32(1)
	if g.Last {
		kScale, vScale = t.Score.grad, unshift
		p.prescale(p.dk)
	}
	p.store(p.dk, &g.DK, b, end, t.DK, kScale)
	p.store(p.dv, &g.DV, b, end, t.DV, vScale)
	p.done(cell)
	return true
}

func (p *backward) done(cell int) {
	if p.g.Order != nil {
		p.g.Order.Done(cell)
	}
}

// load brings the gradients of the keys b <= j < end into panels: what earlier
// tasks gave, or zero.
func (p *backward) load(panels []float32, v *Rows, b, end, d, columns int) {
	switch {
	case v.Data == nil:
	case p.g.First:
		clear(panels[:columns/p.Columns*p.gStep])
	default:
		p.keyOffsets(v, b, end)
		p.PackRows(&panels[0], &v.Data[0], &p.keyOff[0], end-b, d, p.gStep)
	}
}

// store writes the gradients of the keys b <= j < end.
func (p *backward) store(panels []float32, v *Rows, b, end, d int, mul float32) {
	if v.Data == nil {
		return
	}
	p.keyOffsets(v, b, end)
	p.UnpackRows(&v.Data[0], &p.keyOff[0], &panels[0], end-b, d, p.gStep, mul)
}

// keyOffsets fills keyOff with where the rows b <= j < end of a view start.
func (p *backward) keyOffsets(v *Rows, b, end int) {
	for j := range end - b {
		p.keyOff[j] = (b + j) * v.Row
	}
}

// block takes the rows of g past the keys b <= j < end of one block.
func (p *backward) block(g *rowGroup, b, end int) {
	t := p.t
	if g.lo >= end || g.hi <= b {
		return
	}
	if !t.Mask.intervals() {
		i0, i1 := g.first/t.Group, (g.first+g.rows-1)/t.Group+1
		if v, _ := t.Mask.tile(&t.Sequence, i0, i1, b, end); v == Hidden {
			return
		}
	}
	cuts := p.cuts[:len(g.strips)]
	from, to, whole := end, b, true
	for i := range g.strips {
		c := p.cut(&g.strips[i], b, end)
		cuts[i] = c
		if c.from < c.to {
			p.tile(g, i, &c, b, end)
			from, to = min(from, c.from), max(to, c.to)
		}
		whole = whole && c.full == b && c.rest == end
	}
	if from >= to {
		return
	}
	if p.g.DV.Data != nil {
		p.sum(product{p.dv, p.p, p.doRows[g.doRows:], p.vColumns, whole || g.doFinite}, g, from, to, b, end)
	}
	if p.g.DK.Data != nil {
		p.sum(product{p.dk, p.ds, p.qRows[g.qRows:], p.qColumns, whole || g.qFinite}, g, from, to, b, end)
	}
}

// product is dV += P^T dO or dK += dS^T Q, for a group of rows.
type product struct {
	sums, tiles, rows []float32
	columns           int  // channels, padded to panels
	plain             bool // nothing that is hidden meets what is not finite
}

// tile computes P and dS of strip i of g for the keys that c cuts from a block,
// and adds to dQ.
func (p *backward) tile(g *rowGroup, i int, c *cuts, b, end int) {
	t, s, w, n := p.t, &g.strips[i], g.w, c.to-c.from
	p.pack(b, end)
	first := (i*BlockKeys + c.from - b) * w
	prob, ds := p.p[first:first+padded(n, p.Panel)*w], p.ds[first:first+padded(n, p.Panel)*w]
	lanes := s.lane
	p.logits(prob, s, c, b, c.from, c.to, false)
	if p.wantsLogits() {
		s.loops.Score(&ds[0], &p.unused[0], &p.vk[(b%CellKeys+c.from-b)*t.DV], &p.do[s.o], t.DV, padded(n, p.Panel)/p.Panel)
	} // else they come out as anything
	var keep *float32
	if t.Dropout != nil {
		keep = &p.keptTile[0]
		copy(p.keptTile[:n*w], p.ones)
		p.Ops.Dropout(keep, &p.key[lanes], &p.threshold[lanes], &p.keep[lanes], c.from, n, w)
	}
	unit, rest := t.Score.exactUnit()
	p.Gradient(&prob[0], &ds[0], keep, &p.hi[lanes], &p.lo[lanes], &p.delta[lanes], n, w, unit, rest)
	for _, part := range [...][2]int{{c.from, c.full}, {c.rest, c.to}} {
		if a, z := part[0], part[1]; a < z {
			p.wordsOf(s, c, a, z)
			at := (a - c.from) * w
			p.Hide(&prob[at], &ds[at], &p.words[0], z-a, w)
			if t.Score.softcap > 0 {
				p.Hide(&p.capped[at], &ds[at], &p.words[0], z-a, w) // Uncap multiplies with it
			}
		}
	}
	if p.g.DBias.Data != nil {
		p.addBias(s, ds, c.from, n)
	}
	if t.Score.softcap > 0 {
		p.Uncap(&ds[0], &p.capped[0], n, w, 1/t.Score.softcap)
	}
	if p.g.DQ.Data == nil {
		return
	}
	alpha := &p.one[0]
	if s.span < 0 {
		s.span, alpha = 0, nil
	}
	block := b % CellKeys / BlockKeys
	dq, k := &p.dq[p.dqAt(s)], &p.kc[block*p.kBlock+(c.from-b)*p.Panel]
	if !p.finite[block] && c.rest-c.full < n {
		p.wordsOf(s, c, c.from, c.to)
		p.AccumulateVisible(dq, k, &ds[0], alpha, &p.words[0], n, p.vStep(), p.kPanels, p.Panel, w)
		return
	}
	s.loops.Accumulate(dq, k, &ds[0], alpha, n, p.vStep(), p.kPanels)
}

// dqAt is where the dQ of a strip starts.
func (p *backward) dqAt(s *strip) int { return s.lane * p.kPanels * p.Panel }

// pack packs a block of the cell, keys b <= j < end, if no tile has yet.
func (p *backward) pack(b, end int) {
	block := b % CellKeys / BlockKeys
	if p.packed[block] {
		return
	}
	t := p.t
	p.packed[block] = true
	k, stride := p.keyRows(&t.K, b, end, t.DK)
	p.PackK(&p.k[block*BlockKeys*t.DK], k, stride, end-b, t.DK)
	if p.g.DQ.Data != nil {
		p.finite[block] = p.PackV(&p.kc[block*p.kBlock], k, stride, end-b, t.DK, p.vStep())
	}
	if p.wantsLogits() {
		v, stride := p.keyRows(&t.V, b, end, t.DV)
		p.PackK(&p.vk[block*BlockKeys*t.DV], v, stride, end-b, t.DV)
	}
}

// sum adds to the gradients of the keys from <= j < to what the rows of g give.
// Strips see different keys, so the keys
// are taken in segments that the same strips see; a strip between two that see
// a segment counts with zeros.
func (p *backward) sum(x product, g *rowGroup, from, to, b, end int) {
	if !x.plain {
		p.sumVisible(x, g, from, to, b, end)
		return
	}
	w, cuts := g.w, p.cuts[:len(g.strips)]
	for next := to; from < to; from, next = next, to {
		first, last := -1, -1
		for i := range cuts {
			c := &cuts[i]
			switch {
			case c.from >= c.to:
			case c.from <= from && from < c.to:
				if first < 0 {
					first = i
				}
				last = i
				next = min(next, c.to)
			case c.from > from:
				next = min(next, c.from)
			}
		}
		if first < 0 {
			continue
		}
		for i := first; i < last; i++ {
			if c := &cuts[i]; from < c.from || from >= c.to {
				clear(x.tiles[(i*BlockKeys+from-b)*w : (i*BlockKeys+next-b)*w])
			}
		}
		p.AddOuter(&x.sums[(b%CellKeys+from-b)*p.Columns], &x.tiles[(first*BlockKeys+from-b)*w], &x.rows[first*w*p.Columns],
			padded(next-from, p.Panel)/p.Panel, min(g.rows-first*w, (last+1-first)*w), w, BlockKeys*w,
			x.columns/p.Columns, p.gStep, g.rows*p.Columns)
	}
}

// sumVisible is sum for rows that are not all finite and keys that not all of
// them see: pairs that are hidden are left out, instead of multiplied by zero.
// Rare, and therefore plain.
func (p *backward) sumVisible(x product, g *rowGroup, from, to, b, end int) {
	w := g.w
	for i := range g.strips {
		p.fillWords(&g.strips[i], b, end-b)
		copy(p.groupWords[i*MaskWords*w:], p.words[:MaskWords*w])
	}
	sum := p.sums[:p.Columns]
	for panel := range x.columns / p.Columns {
		for j := from - b; j < to-b; j++ {
			clear(sum)
			for r := range g.rows {
				i, lane := r/w, r%w
				if p.groupWords[(i*MaskWords+j/32)*w+lane]>>(j%32)&1 != 0 {
					AddScaled(sum, x.tiles[(i*BlockKeys+j)*w+lane], x.rows[(panel*g.rows+r)*p.Columns:])
				}
			}
			for c, s := range sum {
				x.sums[panel*p.gStep+(b%CellKeys+j)*p.Columns+c] += s
			}
		}
	}
}

// clearBias clears the rows of dBias that are this task's to clear: of several
// that share one, the last.
func (p *backward) clearBias() {
	t, v := p.t, &p.g.DBias
	if v.Data == nil || !p.g.ClearBias {
		return
	}
	first, last := t.First, t.Last
	if v.Row == 0 {
		first, last = 0, t.Group
	}
	for r := first; r < last; r++ {
		if i, h := r/t.Group, r%t.Group; v.Head != 0 || h == t.Group-1 {
			clear(v.Data[i*v.Row+h*v.Head:][:t.Keys])
		}
	}
}

// addBias adds the gradients of n logits from key j on, those of the lanes of s,
// to dBias.
func (p *backward) addBias(s *strip, ds []float32, j, n int) {
	v, w := &p.g.DBias, s.loops.Width
	for r := range w {
		p.off[r], p.inv[r] = r*n, unshift
	}
	p.Scatter(&p.biasRows[0], &p.off[0], &ds[0], &p.inv[0], n, w)
	for r, x := range p.lanesOf(s)[:s.rows] {
		row := p.biasRows[r*n : (r+1)*n]
		for k := range v.Data[x.i*v.Row+x.h*v.Head+j:][:n] {
			v.Data[x.i*v.Row+x.h*v.Head+j+k] += row[k]
		}
	}
}

// storeDQ writes the rows of dQ of a strip.
func (p *backward) storeDQ(s *strip) {
	t, w := p.t, s.loops.Width
	dq := p.dq[p.dqAt(s):][:p.kPanels*p.Panel*w]
	if s.span < 0 {
		clear(dq)
	}
	p.prescale(dq)
	for r := range w {
		p.inv[r] = t.Score.grad
	}
	p.scatter(&p.g.DQ, s, &dq[0], t.DK)
}

// prescale multiplies sums of dS by the powers of two that go before grad; see
// Score.
func (p *backward) prescale(sums []float32) {
	for _, f := range p.t.Score.powers {
		if f != 1 {
			for i := range sums {
				sums[i] *= f
			}
		}
	}
}
