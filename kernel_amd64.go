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
func hasAVX2() bool { return cpu.X86.HasAVX && cpu.X86.HasAVX2 && cpu.X86.HasFMA }

func hasAVX512() bool {
	return hasAVX2() && cpu.X86.HasAVX512F && cpu.X86.HasAVX512VL && cpu.X86.HasAVX512BW && cpu.X86.HasAVX512DQ
}

func avx2Table() kernel.Ops {
	t := generic()
	t.Name = "avx2"
	t.Panel = 4
	// Costs are the lanes over the measured share of the peak.
	t.Strips = []kernel.Strip{
		{Width: 24, Cost: 24500, Score: scoreAVX2_24, Accumulate: accumulateAVX2_24},
		{Width: 16, Cost: 18800, Score: scoreAVX2_16, Accumulate: accumulateAVX2_16},
		{Width: 8, Cost: 12500, Score: scoreAVX2_8, Accumulate: accumulateAVX2_8},
	}
	t.Gather, t.Scatter = gatherAVX, scatterAVX
	t.PackK, t.PackV = packKAVX2, packV4
	t.Softcap, t.ALiBi, t.Bias, t.Mask = softcapAVX2, alibiAVX2, biasAVX2, maskAVX2
	t.Softmax, t.Dropout, t.Fold, t.LogSum = softmaxAVX2, dropoutAVX2, foldAVX2, logSumAVX2
	return t
}

func avx512Table() kernel.Ops {
	t := generic()
	t.Name = "avx512"
	t.Panel = 8
	t.Strips = []kernel.Strip{
		{Width: 48, Cost: 49000, Score: scoreAVX512_48, Accumulate: accumulateAVX512_48},
		{Width: 32, Cost: 33000, Score: scoreAVX512_32, Accumulate: accumulateAVX512_32},
		{Width: 16, Cost: 19500, Score: scoreAVX512_16, Accumulate: accumulateAVX512_16},
	}
	t.Gather, t.Scatter = gatherAVX, scatterAVX
	t.PackK, t.PackV = packKAVX512, packV8
	t.Softcap, t.ALiBi, t.Bias, t.Mask = softcapAVX512, alibiAVX512, biasAVX512, maskAVX512
	t.Softmax, t.Dropout, t.Fold, t.LogSum = softmaxAVX512, dropoutAVX512, foldAVX512, logSumAVX512
	return t
}
