package kernel

import "slices"

// Reserve grows ws to what Forward needs for any task like t with at most as
// many rows and keys. Of t it looks at the sizes, and at which of Slopes, Bias
// and Dropout there are.
func Reserve(ops *Ops, ws *Workspace, t *Task) {
	p := newPass(ops, ws, t)
	if t.Pages.Table != nil && ops.Narrow != nil && p.Ops != ops.Narrow {
		few := *t
		few.Last = min(t.Last, t.First+NarrowRows)
		Reserve(ops, ws, &few)
	}
	narrowest, widest := p.Ops.widths()
	// Strips cover the rows, and none starts behind them.
	rows := t.Last - t.First
	strips := rows/narrowest + 1
	ws.widths = slices.Grow(ws.widths[:0], strips)
	ws.strips = slices.Grow(ws.strips[:0], strips)
	p.reserve(rows+widest-1, widest)
}

// ReserveBackward is Reserve for Backward.
func ReserveBackward(ops *Ops, ws *Workspace, t *Task) {
	p := newBackward(ops, ws, t, nil)
	p.reserve(t.Last - t.First)
}

// widths are those of the narrowest strip and the widest.
func (ops *Ops) widths() (narrowest, widest int) {
	narrowest = MaxLanes
	for i := range ops.Strips {
		narrowest, widest = min(narrowest, ops.Strips[i].Width), max(widest, ops.Strips[i].Width)
	}
	return narrowest, widest
}
