package kernel

// groupRows rows, in several strips, share one pass over the keys of a span, so
// that a block of K and V is read from the second-level cache once for all of
// them: one strip alone loses 3 to 10 percent at 8192 keys.
const groupRows = 128

// groupStrips is the number of strips in a group.
func (ops *Ops) groupStrips() int { return max(groupRows/ops.Strips[0].Width, 1) }

// GroupRows is the number of rows that tasks should be cut into multiples of.
func (ops *Ops) GroupRows() int { return ops.groupStrips() * ops.Strips[0].Width }

// Workspace is the scratch of one worker. Its buffers grow to what the largest
// task needs, and are then reused.
type Workspace struct {
	// One span of packed keys; a block is packed when the first tile needs it.
	k, v           []float32
	packed, finite [SpanKeys / BlockKeys]bool

	// The task's strips, one after another.
	strips   []strip
	widths   []uint8
	covers   [2*MaxLanes + 1]cover
	covering *Ops      // the table of covers
	q        []float32 // [dk][w] a strip
	o        []float32 // [dv panels][w] a strip
	o2       []float32 // like o, the span at hand of one group of strips
	rows     []float32 // [dv] a lane: o of the span at hand, if rows are few
	wide     []float32 // rows of 16 bits, or a stored panel, as float32
	open     []float32 // a panel of K that is stored as rows

	// One element a lane of the task.
	lanes        []lane
	m, l, m2, l2 []float32
	pos          []int32
	slope        []float32
	key          []uint64
	threshold    []uint32
	keep         []float32 // 1/(1-rate)

	// One tile.
	s, bias         []float32
	words           []uint32
	row             [MaskWords]uint32 // one lane of words
	max, alpha, inv [MaxLanes]float32
	unused          [MaxLanes]float32 // maxima of scores that are not yet logits
	one             [MaxLanes]float32 // ones
	dist            [MaxLanes]int32
	lse             [MaxLanes]float64
	off             [MaxLanes]int

	gradients
}

// grow returns s with length n, its contents undefined. Buffers are rounded up
// so that sizes that creep do not allocate each time.
func grow[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n, n+n/8)
	}
	return s[:n]
}

// padded rounds n up to a multiple of m.
func padded(n, m int) int { return (n + m - 1) / m * m }

// vStep is the distance in elements between two panels of packed V: a block of
// keys, and a cache line so that panels do not fall into the same cache sets.
func (ops *Ops) vStep() int { return BlockKeys*ops.Panel + 16 }

// vBlock is the number of elements of a block of packed V.
func (ops *Ops) vBlock(dv int) int { return padded(dv, ops.Panel) / ops.Panel * ops.vStep() }

// ScratchBytes bounds the workspace of any task of at most rows rows.
func (ops *Ops) ScratchBytes(rows, dk, dv int) int64 {
	lanes, group := int64(rows+2*MaxLanes), int64(ops.groupStrips()*MaxLanes)
	dvp := int64(padded(dv, ops.Panel))
	vBlock := ops.vBlock(dv)
	if ops.Narrow != nil {
		vBlock = max(vBlock, ops.Narrow.vBlock(dv))
	}
	floats := SpanKeys*int64(dk) + SpanKeys/BlockKeys*int64(vBlock) +
		lanes*(int64(dk)+dvp) + group*dvp +
		2*BlockKeys*MaxLanes + wideFloats(dk, dv) +
		(FewRows+MaxLanes)*int64(padded(dv, Run)) + Run*int64(dk)
	const perLane = 32 + 4*4 + 4*4 + 8 + 16
	return withRounding(4*floats + lanes*perLane + 4*MaskWords*MaxLanes)
}

// wideFloats is what reserveWide takes.
func wideFloats(dk, dv int) int64 { return wideRows * int64(max(dk, dv, Run)) }

// withRounding adds what grow and the allocator round up.
func withRounding(bytes int64) int64 { return bytes + bytes/4 }

// BackwardBytes bounds the workspace of the backward pass of any task of at most
// rows rows.
func (ops *Ops) BackwardBytes(rows, dk, dv int) int64 {
	_, widest := ops.widths()
	lanes, group := int64(rows+widest), int64(GradRows+widest)
	dkp, q, v := int64(padded(dk, ops.Panel)), int64(padded(dk, ops.Columns)), int64(padded(dv, ops.Columns))
	floats := CellKeys*(int64(dk)+int64(dv)+q+v) + 16*(q+v)/int64(ops.Columns) + CellKeys/BlockKeys*dkp/int64(ops.Panel)*int64(ops.vStep()) +
		lanes*(int64(dk)+int64(dv)+dkp+q+v) + int64(widest*dv) +
		2*BlockKeys*group + int64(5*BlockKeys*widest) + MaskWords*(group+int64(widest)) + wideFloats(dk, dv)
	// A strip has at least a lane, a group at most GradRows rows.
	const perLane = 32 + 3*4 + 2*4 + 8 + 8 + 104 + 8
	return withRounding(4*floats + lanes*perLane + 40*group)
}
