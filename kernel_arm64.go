//go:build !purego && !noasm

package attention

import "github.com/seed-091431b3/attention/kernel"

// tables lists the usable kernels, fastest first. Every arm64 processor has
// NEON.
func tables() []kernel.Ops { return []kernel.Ops{neonTable(), generic()} }

func neonTable() kernel.Ops {
	t := generic()
	t.Name = "neon"
	t.Panel, t.Columns = 8, 4
	// What the model of the loops says of narrower strips, whose accumulators are
	// fewer.
	t.Strips = []kernel.Strip{
		{Width: 12, Cost: 12100, Score: scoreNEON_12, Accumulate: accumulateNEON_12},
		{Width: 8, Cost: 8300, Score: scoreNEON_8, Accumulate: accumulateNEON_8},
		{Width: 4, Cost: 5100, Score: scoreNEON_4, Accumulate: accumulateNEON_4},
	}
	t.Gather, t.Scatter, t.Bits = gatherNEON, scatterNEON, bitsNEON
	t.PackK, t.PackV = packKNEON, packVNEON
	t.Softcap, t.ALiBi, t.Bias, t.Mask = softcapNEON, alibiNEON, biasNEON, maskNEON
	t.Softmax, t.Dropout, t.Fold, t.LogSum = softmaxNEON, dropoutNEON, foldNEON, logSumNEON
	t.PackRows, t.UnpackRows, t.AddOuter = packRowsNEON, unpackRowsNEON, addOuterNEON
	t.Dot, t.Gradient, t.Hide, t.Uncap = dotNEON, gradientNEON, hideNEON, uncapNEON
	t.Stored[kernel.Float32].Score, t.Stored[kernel.Float32].Accumulate = scoreF32NEON, accumulateF32NEON
	t.Stored[kernel.BFloat16] = kernel.Stored{Score: scoreBF16NEON, Accumulate: accumulateBF16NEON, Widen: widenBF16NEON, Narrow: narrowBF16NEON}
	t.Stored[kernel.Float16] = kernel.Stored{Score: scoreF16NEON, Accumulate: accumulateF16NEON, Widen: widenF16NEON, Narrow: narrowF16NEON}
	return t
}
