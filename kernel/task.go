package kernel

import "sync/atomic"

// Rows is a strided view of one sequence's rows: channel c of row i of head h
// is Data[i*Row + h*Head + c], or that of Half in a 16-bit format.
type Rows struct {
	Data      []float32
	Half      []uint16
	Format    Format
	Row, Head int
}

// Pages are keys and values that are stored already, in pages of Keys keys, a
// multiple of Run: key j is key j%Keys of page Table[j/Keys]. A page holds K in
// panels [key/Run][channel][Run], of which those that end behind the first Filled
// keys are still rows, [key][channel], and V in panels [channel/Run][key][Run],
// VStep keys apart; pages are KPage and VPage bytes apart. Finite says of a page,
// FStride elements from the last, that all its values are.
type Pages struct {
	Format             Format
	K, V               []byte
	Filled             []int32
	Finite             []bool
	Table              []int32
	Keys, KPage, VPage int
	VStep, FStride     int
}

// keys is where stored K goes on from key j, the start of a panel of dk channels.
func (x *Pages) keys(j, dk int) *byte {
	return &x.K[int(x.Table[j/x.Keys])*x.KPage+j%x.Keys*dk*x.Format.Size()]
}

// packed is how many of the n keys from j on, the start of a panel, lie in panels
// of one page that are not rows.
func (x *Pages) packed(j, n int) int {
	at := j % x.Keys
	return min(n, max(int(x.Filled[x.Table[j/x.Keys]])/Run*Run-at, 0))
}

// values is where a panel of stored V goes on from key j.
func (x *Pages) values(j, panel int) *byte {
	return &x.V[int(x.Table[j/x.Keys])*x.VPage+(panel*x.VStep+j%x.Keys)*Run*x.Format.Size()]
}

// together is how many of the keys j <= ... < end lie in one page.
func (x *Pages) together(j, end int) int { return min(end-j, x.Keys-j%x.Keys) }

// finite reports whether all values are.
func (x *Pages) finite() bool {
	for _, page := range x.Table {
		if !x.Finite[int(page)*x.FStride] {
			return false
		}
	}
	return true
}

// Dropout is the part of the public hash that a task needs: Key is the hash of
// seed and sequence, before head and row are mixed in.
type Dropout struct {
	Key  uint64
	Rate float64
	// Rates, if not nil, holds one rate per query row instead of Rate.
	Rates []float32
}

// Task is the forward or backward pass of some rows of one sequence and one kv head. A row
// is a pair of position and head within the group of Group query heads, and
// rows are numbered position-major: row = position*Group + head. All views
// start at the first token of the sequence and the first head of the group.
type Task struct {
	Sequence
	FirstHead   int // query head of row 0
	Group       int
	DK, DV      int
	First, Last int // rows First <= r < Last

	Q, O Rows
	K, V Rows // Head unused
	// Wide says that some of these views, or that of DO, may be of 16 bits.
	Wide bool
	// Pages hold the keys and values instead of K and V, if there is a Table. Next is
	// memory to fetch at the end, as the next task begins with it; nil: none.
	Pages Pages
	Next  *byte
	// LSE of row (i, h) is LSE[i*LSERow + h].
	LSE    []float64
	LSERow int

	Mask  Mask
	Score Score
	// Slopes (ALiBi) and Sinks hold one number per head of the group; nil: none.
	Slopes, Sinks []float32
	// Bias of row (i, h) and key j is Bias.Data[i*Row + h*Head + j]; Data nil: none.
	Bias    Rows
	Dropout *Dropout // nil: none

	// The task ends early, its outputs unfinished, once Stop is set, and sets it
	// once Done is closed. Either may be nil.
	Stop *atomic.Bool
	Done <-chan struct{}
}

// Gradients is what the backward pass of a task reads and writes besides. Views
// are like those of what they are gradients of; where Data is nil a gradient is
// not wanted.
type Gradients struct {
	DO   Rows
	DLSE []float64 // of row (i, h): DLSE[i*LSERow+h]; nil: zero
	DQ   Rows
	// DK and DV are sums over all rows of the sequence. Its tasks add to them from
	// the last rows to the first; First and Last say whether no task comes before
	// or after.
	DK, DV      Rows
	First, Last bool
	// DBias is added to, after ClearBias says whether to clear the rows of the task
	// or, with a Row of 0, those of its heads.
	DBias     Rows
	ClearBias bool
	// DSinks takes what row (i, h) gives to the gradient of its sink, at i*LSERow+h.
	DSinks []float64
	Order  Order
}

// Order makes the tasks that add to the same gradients take turns. A cell is
// CellKeys keys.
type Order interface {
	// Wait returns once all earlier tasks are done with a cell, or false if the
	// task is to end.
	Wait(cell int) bool
	// Done says that the task is done with a cell and all before it.
	Done(cell int)
}

// lse is the LSE of a row.
func (t *Task) lse(x *lane) float64 { return t.LSE[x.i*t.LSERow+x.h] }

// stopped reports whether the task is to end early.
func (t *Task) stopped() bool {
	if t.Stop == nil {
		return false
	}
	select {
	case <-t.Done:
		t.Stop.Store(true)
	default:
	}
	return t.Stop.Load()
}
