//go:build !purego && !noasm

package attention

import (
	"golang.org/x/sys/cpu"

	"github.com/seed-091431b3/attention/kernel"
)

// tables lists the usable kernels, fastest first.
func tables() []kernel.Ops {
	var t []kernel.Ops
	if hasAVX512() {
		t = append(t, avx512Table())
	}
	if hasAVX2() {
		t = append(t, avx2Table())
	}
	return append(t, generic())
}

// hasAVX2 and hasAVX512 are the conjunction of what the tables' functions
// require.
func hasAVX2() bool {
	return cpu.X86.HasAVX && cpu.X86.HasAVX2 && cpu.X86.HasFMA && cpu.X86.HasBMI2 && cpuHasF16C()
}

func hasAVX512() bool {
	return hasAVX2() && cpu.X86.HasAVX512F && cpu.X86.HasAVX512VL && cpu.X86.HasAVX512BW && cpu.X86.HasAVX512DQ
}

func avx2Table() kernel.Ops {
	t := generic()
	t.Name = "avx2"
	t.Panel = 4
	// 4x24 hides the latency of multiply-adds best on processors of the kind
	// that have AVX-512 (Zen 5: 98 % of the peak, and 85 % with 4x16), but on
	// Zen 3 storing its twelve accumulators takes 2 cycles each (93 to 98 %, and
	// 99 % with 4x16).
	wide := kernel.Strip{Width: 24, Cost: 25600, Score: scoreAVX2_24, Accumulate: accumulateAVX2_24}
	half := kernel.Strip{Width: 16, Cost: 16300, Score: scoreAVX2_16, Accumulate: accumulateAVX2_16}
	narrow := kernel.Strip{Width: 8, Cost: 9200, Score: scoreAVX2_8, Accumulate: accumulateAVX2_8}
	t.Strips = []kernel.Strip{half, wide, narrow}
	if hasAVX512() {
		wide.Cost, half.Cost, narrow.Cost = 24500, 18800, 9900
		t.Strips = []kernel.Strip{wide, half, narrow}
	}
	t.Gather, t.Scatter = gatherAVX, scatterAVX
	t.PackK, t.PackV, t.Bits = packKAVX2, packV4, bitsAVX2
	t.Softcap, t.ALiBi, t.Bias, t.Mask = softcapAVX2, alibiAVX2, biasAVX2, maskAVX2
	t.Softmax, t.Dropout, t.Fold, t.LogSum = softmaxAVX2, dropoutAVX2, foldAVX2, logSumAVX2
	t.Columns = 8
	t.PackRows, t.UnpackRows, t.AddOuter = packRowsAVX2, unpackRowsAVX2, addOuterAVX2
	t.Dot, t.Gradient, t.Hide, t.Uncap = dotAVX2, gradientAVX2, hideAVX2, uncapAVX2
	t.Stored[kernel.Float32].Score, t.Stored[kernel.Float32].Accumulate = scoreF32AVX2, accumulateF32AVX2
	t.Stored[kernel.BFloat16] = kernel.Stored{Score: scoreBF16AVX2, Accumulate: accumulateBF16AVX2, Widen: widenBF16, Narrow: narrowBF16}
	t.Stored[kernel.Float16] = kernel.Stored{Score: scoreF16AVX2, Accumulate: accumulateF16AVX2, Widen: widenF16, Narrow: narrowF16}
	return t
}

func avx512Table() kernel.Ops {
	t := generic()
	t.Name = "avx512"
	t.Panel = 8
	t.Strips = []kernel.Strip{
		{Width: 32, Cost: 33000, Score: scoreAVX512_32, Accumulate: accumulateAVX512_32},
		{Width: 48, Cost: 49000, Score: scoreAVX512_48, Accumulate: accumulateAVX512_48},
		{Width: 16, Cost: 18400, Score: scoreAVX512_16, Accumulate: accumulateAVX512_16},
	}
	t.Gather, t.Scatter = gatherAVX, scatterAVX
	t.PackK, t.PackV, t.Bits = packKAVX512, packV8, bitsAVX2
	t.Softcap, t.ALiBi, t.Bias, t.Mask = softcapAVX512, alibiAVX512, biasAVX512, maskAVX512
	t.Softmax, t.Dropout, t.Fold, t.LogSum = softmaxAVX512, dropoutAVX512, foldAVX512, logSumAVX512
	t.Columns = 16
	t.PackRows, t.UnpackRows, t.AddOuter = packRowsAVX512, unpackRowsAVX512, addOuterAVX512
	t.Dot, t.Gradient, t.Hide, t.Uncap = dotAVX512, gradientAVX512, hideAVX512, uncapAVX512
	t.Stored[kernel.Float32].Score, t.Stored[kernel.Float32].Accumulate = scoreF32AVX512, accumulateF32AVX512
	t.Stored[kernel.BFloat16] = kernel.Stored{Score: scoreBF16AVX512, Accumulate: accumulateBF16AVX512, Widen: widenBF16, Narrow: narrowBF16}
	t.Stored[kernel.Float16] = kernel.Stored{Score: scoreF16AVX512, Accumulate: accumulateF16AVX512, Widen: widenF16, Narrow: narrowF16}
	// Rows that fill no more than half a vector: what is done to each score costs
	// twice as much in a whole one, where that is two operations (Zen 4).
	narrow := avx2Table()
	narrow.Stored = t.Stored
	t.Narrow = &narrow
	return t
}
