package kernel

import "slices"

// Reserve grows ws to what Forward needs for any task like t with at most as
// many rows and keys. Of t it looks at the sizes, and at which of Slopes, Bias
// and Dropout there are.
func Reserve(ops *Ops, ws *Workspace, t *Task) {
	p := pass{Ops: ops, Workspace: ws, t: t, panels: padded(t.DV, ops.Panel) / ops.Panel}
	p.vBlock = p.panels * ops.vStep()
	rows, widest := t.Last-t.First, ops.Strips[0].Width
	// Strips cover the rows, and none starts behind them.
	strips := rows/ops.Strips[len(ops.Strips)-1].Width + 1
	ws.widths = slices.Grow(ws.widths[:0], strips)
	ws.strips = slices.Grow(ws.strips[:0], strips)
	p.reserve(rows+widest-1, widest)
}
