package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/seed-091431b3/attention"
	"github.com/seed-091431b3/attention/internal/workload"
)

// measurement is the result of bench, in the order of its JSON keys.
type measurement struct {
	Op          string  `json:"op"`
	Kernel      string  `json:"kernel"`
	QHeads      int     `json:"qheads"`
	KVHeads     int     `json:"kvheads"`
	Dim         int     `json:"dim"`
	SeqLen      int     `json:"seqlen"`
	Causal      bool    `json:"causal"`
	Workers     int     `json:"workers"`
	MS          float64 `json:"ms"`
	GFLOPS      float64 `json:"gflops"`
	PeakGFLOPS  float64 `json:"peak_gflops"`
	PeakPercent float64 `json:"peak_percent"`
}

// bench measures a workload.
func bench(args []string, stdout, _ io.Writer) error {
	f := newFlags("bench", "", `Measures self-attention of one sequence, or of a ragged batch. The speed counts
useful flops only, and is compared with the peak of the kernel's own
multiply-add instruction, measured before and after every sample in the same
process: on the thread's clock for one worker, on the wall clock for more.
Packing and everything else is included. The percentage is the median of the
samples' ratios.`, stdout)
	m := measurement{}
	f.StringVar(&m.Op, "op", "forward", "operation: forward or backward, which counts 2.5 times the flops")
	f.StringVar(&m.Kernel, "kernel", attention.Kernels()[0], "kernel: "+strings.Join(attention.Kernels(), ", "))
	f.IntVar(&m.QHeads, "qheads", 8, "query heads")
	f.IntVar(&m.KVHeads, "kvheads", 0, "key/value heads; 0: as many as query heads")
	f.IntVar(&m.Dim, "dim", 64, "channels of a head")
	vdim := f.Int("vdim", 0, "channels of a head of V; 0: as many as of K")
	f.IntVar(&m.SeqLen, "seqlen", 2048, "tokens of the sequence")
	f.BoolVar(&m.Causal, "causal", false, "causal mask")
	ragged := f.String("ragged", "", "instead of -seqlen, NxLO..HI: N sequences of LO to HI tokens, drawn uniformly by a fixed seed")
	f.IntVar(&m.Workers, "workers", 1, "goroutines")
	asJSON := f.Bool("json", false, "print one JSON object")
	minTime := f.Duration("time", time.Second, "measure for at least this long")
	if err := parse(f, args, 0); err != nil {
		return err
	}
	if m.KVHeads == 0 {
		m.KVHeads = m.QHeads
	}
	spec := workload.Spec{
		QueryHeads: m.QHeads, KVHeads: m.KVHeads, Dim: m.Dim, ValueDim: *vdim,
		Lengths: []int{m.SeqLen}, Causal: m.Causal, Backward: m.Op == "backward", Kernel: m.Kernel, Workers: m.Workers,
	}
	if err := m.check(*vdim); err != nil {
		return err
	}
	if *ragged != "" {
		lengths, err := parseRagged(*ragged)
		if err != nil {
			return err
		}
		spec.Lengths, m.SeqLen = lengths, slices.Max(lengths)
	}
	if err := checkMemory(spec); err != nil {
		return err
	}
	if *minTime < 0 {
		return fmt.Errorf("-time: %v, must not be negative", *minTime)
	}
	w, err := workload.New(spec)
	if err != nil {
		return err
	}
	r := w.Measure(*minTime)
	m.MS, m.GFLOPS, m.PeakGFLOPS, m.PeakPercent = r.Millis, r.GFLOPS, r.PeakGFLOPS, r.PeakPercent
	if *asJSON {
		return json.NewEncoder(stdout).Encode(m)
	}
	_, err = fmt.Fprintf(stdout, "%s, %s kernel, %d workers: %.4g ms, %.1f GFLOP/s, %.1f %% of the peak of %.1f GFLOP/s\n",
		m.Op, m.Kernel, m.Workers, m.MS, m.GFLOPS, m.PeakPercent, m.PeakGFLOPS)
	return err
}

// check verifies the flags that the library would not, or would not name.
func (m *measurement) check(vdim int) error {
	if m.Op != "forward" && m.Op != "backward" {
		return fmt.Errorf("-op: %q is not an operation, which are: forward, backward", m.Op)
	}
	if !slices.Contains(attention.Kernels(), m.Kernel) {
		return fmt.Errorf("-kernel: %q is not one this processor runs, which are %s", m.Kernel, strings.Join(attention.Kernels(), ", "))
	}
	for _, x := range []struct {
		flag    string
		n, most int
	}{
		{"qheads", m.QHeads, 1 << 16}, {"kvheads", m.KVHeads, 1 << 16}, {"dim", m.Dim, 1 << 16},
		{"seqlen", m.SeqLen, 1 << 24}, {"workers", m.Workers, 1 << 10},
	} {
		if x.n < 1 || x.n > x.most {
			return fmt.Errorf("-%s: %d, must be from 1 to %d", x.flag, x.n, x.most)
		}
	}
	if vdim < 0 || vdim > 1<<16 {
		return fmt.Errorf("-vdim: %d, must be from 0 to %d", vdim, 1<<16)
	}
	if m.QHeads%m.KVHeads != 0 {
		return fmt.Errorf("-qheads: %d, must be a multiple of -kvheads, which is %d", m.QHeads, m.KVHeads)
	}
	return nil
}

// checkMemory bounds the tensors of a workload, counted in float64, which does
// not overflow.
func checkMemory(s workload.Spec) error {
	var tokens float64
	for _, n := range s.Lengths {
		tokens += float64(n)
	}
	vdim := s.ValueDim
	if vdim == 0 {
		vdim = s.Dim
	}
	perToken := 4*float64(s.QueryHeads+s.KVHeads)*float64(s.Dim+vdim) + 8*float64(s.QueryHeads)
	if limit := maxBytes(); tokens*perToken > limit {
		return fmt.Errorf("-seqlen or -ragged: %.0f tokens of %.0f bytes each (-qheads, -kvheads, -dim, -vdim), must not pass %.0f bytes in all",
			tokens, perToken, limit)
	}
	return nil
}

// parseRagged draws the lengths that NxLO..HI describes.
func parseRagged(s string) ([]int, error) {
	var n, lo, hi int
	var rest string
	if k, _ := fmt.Sscanf(s, "%dx%d..%d%s", &n, &lo, &hi, &rest); k != 3 {
		return nil, fmt.Errorf("-ragged: %q, must be NxLO..HI, as in 64x8..512", s)
	}
	if n < 1 || n > 1<<20 || lo < 1 || hi < lo || hi > 1<<24 {
		return nil, fmt.Errorf("-ragged: %q, must have 1 <= N <= %d and 1 <= LO <= HI <= %d", s, 1<<20, 1<<24)
	}
	return workload.Ragged(n, lo, hi), nil
}
