package attention

import (
	"fmt"
	"testing"

	"github.com/seed-091431b3/attention/kernel"
	"github.com/seed-091431b3/attention/kernel/kerneltest"
)

// TestKernels holds every table to the bits of the portable one.
func TestKernels(t *testing.T) {
	want := generic()
	for _, got := range tables() {
		t.Run(got.Name, func(t *testing.T) { kerneltest.Run(t, &want, &got) })
	}
	t.Run("portable with other tiles", func(t *testing.T) {
		got := otherTiles(8, 5, 24, 5)
		kerneltest.Run(t, &want, &got)
	})
}

// otherTiles is the portable table with other panels and strips.
func otherTiles(panel, columns int, widths ...int) kernel.Ops {
	ops := generic()
	ops.Name = fmt.Sprintf("generic-%d", panel)
	ops.Panel, ops.Strips = panel, nil
	for _, w := range widths {
		ops.Strips = append(ops.Strips, kernel.Strip{
			Width: w, Cost: 1000 * w,
			Score: func(s, max, k, q *float32, dk, tiles int) { scoreGeneric(s, max, k, q, dk, tiles, panel, w) },
			Accumulate: func(o, v, p, alpha *float32, n, step, tiles int) {
				accumulateGeneric(o, v, p, alpha, nil, n, step, tiles, panel, w)
			},
		})
	}
	ops.PackK = func(dst, src *float32, stride, n, d int) { packKGeneric(dst, src, stride, n, d, panel) }
	ops.PackV = func(dst, src *float32, stride, n, d, step int) bool {
		return packVGeneric(dst, src, stride, n, d, step, panel)
	}
	ops.Columns = columns
	ops.PackRows = func(dst, src *float32, off *int, n, d, step int) bool {
		return packRowsGeneric(dst, src, off, n, d, step, columns)
	}
	ops.UnpackRows = func(dst *float32, off *int, src *float32, n, d, step int, mul float32) {
		unpackRowsGeneric(dst, off, src, n, d, step, columns, mul)
	}
	ops.AddOuter = func(g, p, x *float32, tiles, rows, w, pStep, panels, gStep, xStep int) {
		addOuterGeneric(g, p, x, tiles*panel, rows, w, pStep, panels, gStep, xStep, columns)
	}
	return ops
}
