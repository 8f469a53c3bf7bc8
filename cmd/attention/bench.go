package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/seed-091431b3/attention"
	"github.com/seed-091431b3/attention/internal/workload"
)

// measurement is the result of bench for a pass, in the order of its JSON keys.
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

// decodeMeasurement is that of bench -op decode.
type decodeMeasurement struct {
	Op              string  `json:"op"`
	Kernel          string  `json:"kernel"`
	QHeads          int     `json:"qheads"`
	KVHeads         int     `json:"kvheads"`
	Dim             int     `json:"dim"`
	SeqLen          int     `json:"seqlen"`
	Batch           int     `json:"batch"`
	Queries         int     `json:"queries"`
	KVType          string  `json:"kvtype"`
	Page            int     `json:"page"`
	Workers         int     `json:"workers"`
	MS              float64 `json:"ms"`
	TokensPerSecond float64 `json:"tokens_per_second"`
	GBs             float64 `json:"gbs"`
	StreamGBs       float64 `json:"stream_gbs"`
	StreamPercent   float64 `json:"stream_percent"`
}

// appendMeasurement is that of bench -op append.
type appendMeasurement struct {
	Op              string  `json:"op"`
	Kernel          string  `json:"kernel"`
	KVHeads         int     `json:"kvheads"`
	Dim             int     `json:"dim"`
	Queries         int     `json:"queries"`
	KVType          string  `json:"kvtype"`
	Page            int     `json:"page"`
	NsPerToken      float64 `json:"ns_per_token"`
	WriteNsPerToken float64 `json:"write_ns_per_token"`
	Ratio           float64 `json:"ratio"`
}

const benchDoc = `Measures an operation; flags that are not of the operation are refused.

forward, backward: self-attention of one sequence, or of a ragged batch. The
speed counts useful flops only, and is compared with the peak of the kernel's own
multiply-add instruction, measured before and after every sample in the same
process: on the thread's clock for one worker, on the wall clock for more.
Packing and everything else is included. The percentage is the median of the
samples' ratios.

decode: a step of decoding with a KV cache, of a batch of sequences of -seqlen
cached keys. The speed, gbs, counts the bytes of the keys and values of the
step, each read once however many query heads and queries share it, and nothing
else. It is compared with stream_gbs, a loop that only reads ordinary memory as
fast as it can, on as many threads, measured before and after every sample in
the same process, by the same clocks as above. Steps take turns with caches of
-cold megabytes in all, so that it is in no processor's cache. The KV cache is
allocated in huge pages where the system grants them, ordinary memory is not, so
more than 100 % is possible.

append: growing of sequences in a KV cache, that take turns, by -queries tokens
at a time on one thread. It is compared with merely copying rows of as many
bytes, in the cache's format already, into ordinary memory that was allocated
before, one after the other, K and V each round and round a buffer as large as
the cache. Before every sample of either, -cold megabytes of other memory are
read: both then write to memory that is in no processor's cache. With -cold 0 a
single sequence grows, and both write to memory that is, if it fits. What they
copy from always is.`

// opFlags are the flags that only some operations have.
var opFlags = map[string][]string{
	"kernel":  {"forward", "backward", "decode"},
	"qheads":  {"forward", "backward", "decode"},
	"vdim":    {"forward", "backward"},
	"seqlen":  {"forward", "backward", "decode"},
	"causal":  {"forward", "backward", "decode"},
	"ragged":  {"forward", "backward", "decode"},
	"workers": {"forward", "backward", "decode"},
	"batch":   {"decode"},
	"queries": {"decode", "append"},
	"kvtype":  {"decode", "append"},
	"page":    {"decode", "append"},
	"cold":    {"decode", "append"},
}

var ops = []string{"forward", "backward", "decode", "append"}

// kvTypes are the formats of a cache by the names of -kvtype.
var kvTypes = map[string]attention.Format{
	"f32": attention.FormatFloat32, "bf16": attention.FormatBFloat16, "f16": attention.FormatFloat16,
}

// benchFlags are the flags of bench.
type benchFlags struct {
	op, kernel, kvType, ragged              string
	qHeads, kvHeads, dim, vDim, seqLen      int
	batch, queries, page, workers, coldMega int
	causal, asJSON                          bool
	minTime                                 time.Duration

	given map[string]bool
}

// bench measures a workload.
func bench(args []string, stdout, _ io.Writer) error {
	f := newFlags("bench", "", benchDoc, stdout)
	b := benchFlags{given: map[string]bool{}}
	b.define(f)
	if err := parse(f, args, 0); err != nil {
		return err
	}
	f.Visit(func(x *flag.Flag) { b.given[x.Name] = true })
	if b.kvHeads == 0 {
		b.kvHeads = b.qHeads
	}
	if err := b.check(); err != nil {
		return err
	}
	lengths, err := b.lengths()
	if err != nil {
		return err
	}
	result, text, err := any(nil), "", error(nil)
	switch b.op {
	case "decode":
		result, text, err = b.decode(lengths)
	case "append":
		result, text, err = b.append()
	default:
		result, text, err = b.pass(lengths)
	}
	if err != nil {
		return err
	}
	if b.asJSON {
		return json.NewEncoder(stdout).Encode(result)
	}
	_, err = fmt.Fprintln(stdout, text)
	return err
}

func (b *benchFlags) define(f *flag.FlagSet) {
	f.StringVar(&b.op, "op", "forward", "operation: forward, backward, which counts 2.5 times the flops, decode or append")
	f.StringVar(&b.kernel, "kernel", attention.Kernels()[0], "kernel: "+strings.Join(attention.Kernels(), ", "))
	f.IntVar(&b.qHeads, "qheads", 8, "query heads")
	f.IntVar(&b.kvHeads, "kvheads", 0, "key/value heads; 0: as many as query heads")
	f.IntVar(&b.dim, "dim", 64, "channels of a head")
	f.IntVar(&b.vDim, "vdim", 0, "channels of a head of V; 0: as many as of K")
	f.IntVar(&b.seqLen, "seqlen", 2048, "tokens of the sequence; decode: cached keys of each sequence, those of its queries included")
	f.BoolVar(&b.causal, "causal", false, "causal mask; decode always has it")
	f.StringVar(&b.ragged, "ragged", "", "instead of -seqlen and -batch, NxLO..HI: N sequences of LO to HI tokens, drawn uniformly by a fixed seed")
	f.IntVar(&b.batch, "batch", 1, "decode: sequences of a step")
	f.IntVar(&b.queries, "queries", 1, "decode: queries of each sequence in a step; append: tokens at a time")
	f.StringVar(&b.kvType, "kvtype", "f32", "decode, append: type of the cache's numbers: f32, bf16 or f16")
	f.IntVar(&b.page, "page", workload.DefaultPageKeys, "decode, append: keys of a page of the cache, a multiple of 16")
	f.IntVar(&b.coldMega, "cold", min(workload.ColdBytes, int(maxBytes()/4))>>20,
		"decode: megabytes that the caches of all steps hold at least; append: that are read before a sample.\nWith fewer than they hold, a processor's caches are measured")
	f.IntVar(&b.workers, "workers", 1, "goroutines")
	f.BoolVar(&b.asJSON, "json", false, "print one JSON object")
	f.DurationVar(&b.minTime, "time", time.Second, "measure for at least this long")
}

// check verifies the flags that the library would not, or would not name.
func (b *benchFlags) check() error {
	if !slices.Contains(ops, b.op) {
		return fmt.Errorf("-op: %q is not an operation, which are: %s", b.op, strings.Join(ops, ", "))
	}
	for _, name := range slices.Sorted(maps.Keys(opFlags)) {
		if have := opFlags[name]; b.given[name] && !slices.Contains(have, b.op) {
			return fmt.Errorf("-%s: is not a flag of -op %s, only of %s", name, b.op, strings.Join(have, ", "))
		}
	}
	if !slices.Contains(attention.Kernels(), b.kernel) {
		return fmt.Errorf("-kernel: %q is not one this processor runs, which are %s", b.kernel, strings.Join(attention.Kernels(), ", "))
	}
	if _, ok := kvTypes[b.kvType]; !ok {
		return fmt.Errorf("-kvtype: %q is not a type, which are: f32, bf16, f16", b.kvType)
	}
	for _, x := range []struct {
		flag           string
		n, least, most int
	}{
		{"qheads", b.qHeads, 1, 1 << 16}, {"kvheads", b.kvHeads, 1, 1 << 16}, {"dim", b.dim, 1, 1 << 16}, {"vdim", b.vDim, 0, 1 << 16},
		{"seqlen", b.seqLen, 1, 1 << 24}, {"workers", b.workers, 1, 1 << 10}, {"batch", b.batch, 1, 1 << 20},
		{"queries", b.queries, 1, 1 << 16}, {"page", b.page, 1, 1 << 16}, {"cold", b.coldMega, 0, 1 << 20},
	} {
		if x.n < x.least || x.n > x.most {
			return fmt.Errorf("-%s: %d, must be from %d to %d", x.flag, x.n, x.least, x.most)
		}
	}
	if b.op != "append" && b.qHeads%b.kvHeads != 0 {
		return fmt.Errorf("-qheads: %d, must be a multiple of -kvheads, which is %d", b.qHeads, b.kvHeads)
	}
	if b.page%16 != 0 {
		return fmt.Errorf("-page: %d, must be a multiple of 16", b.page)
	}
	if b.minTime < 0 {
		return fmt.Errorf("-time: %v, must not be negative", b.minTime)
	}
	return nil
}

// lengths are those of the sequences.
func (b *benchFlags) lengths() ([]int, error) {
	if b.ragged == "" {
		return slices.Repeat([]int{b.seqLen}, b.batch), nil
	}
	if b.given["batch"] {
		return nil, errors.New("-batch: is not for -ragged, which has a number of sequences itself")
	}
	return parseRagged(b.ragged)
}

// pass measures the forward or the backward pass.
func (b *benchFlags) pass(lengths []int) (result any, text string, err error) {
	spec := workload.Spec{
		QueryHeads: b.qHeads, KVHeads: b.kvHeads, Dim: b.dim, ValueDim: b.vDim,
		Lengths: lengths, Causal: b.causal, Backward: b.op == "backward", Kernel: b.kernel, Workers: b.workers,
	}
	if err := checkMemory(spec); err != nil {
		return nil, "", err
	}
	w, err := workload.New(spec)
	if err != nil {
		return nil, "", err
	}
	r := w.Measure(b.minTime)
	return measurement{
			Op: b.op, Kernel: b.kernel, QHeads: b.qHeads, KVHeads: b.kvHeads, Dim: b.dim, SeqLen: slices.Max(lengths),
			Causal: b.causal, Workers: b.workers,
			MS: r.Millis, GFLOPS: r.GFLOPS, PeakGFLOPS: r.PeakGFLOPS, PeakPercent: r.PeakPercent,
		}, fmt.Sprintf("%s, %s kernel, %d workers: %.4g ms, %.1f GFLOP/s, %.1f %% of the peak of %.1f GFLOP/s",
			b.op, b.kernel, b.workers, r.Millis, r.GFLOPS, r.PeakPercent, r.PeakGFLOPS), nil
}

// decode measures a step of decoding.
func (b *benchFlags) decode(lengths []int) (result any, text string, err error) {
	if least := slices.Min(lengths); b.queries > least {
		return nil, "", fmt.Errorf("-queries: %d, must be at most %d, the keys of the shortest sequence", b.queries, least)
	}
	spec := workload.DecodeSpec{
		QueryHeads: b.qHeads, KVHeads: b.kvHeads, Dim: b.dim, Lengths: lengths, Queries: b.queries,
		Format: kvTypes[b.kvType], PageKeys: b.page, Kernel: b.kernel, Workers: b.workers, Bytes: float64(b.coldMega) * (1 << 20),
	}
	if have, limit := spec.Memory(), maxBytes(); have > limit {
		return nil, "", fmt.Errorf("-seqlen, -batch or -ragged: caches of %.0f bytes (-kvheads, -dim, -kvtype, -page, -cold) and queries, "+
			"must not pass %.0f bytes in all", have, limit)
	}
	d, err := workload.NewDecode(spec)
	if err != nil {
		return nil, "", err
	}
	r := d.Measure(b.minTime)
	m := decodeMeasurement{
		Op: b.op, Kernel: b.kernel, QHeads: b.qHeads, KVHeads: b.kvHeads, Dim: b.dim, SeqLen: slices.Max(lengths),
		Batch: len(lengths), Queries: b.queries, KVType: b.kvType, Page: b.page, Workers: b.workers,
		MS: r.Millis, TokensPerSecond: float64(len(lengths)*b.queries) / r.Millis * 1e3,
		GBs: r.GBs, StreamGBs: r.Stream, StreamPercent: r.Percent,
	}
	return m, fmt.Sprintf("%s, %s kernel, %d workers, %s: %.4g ms, %.4g tokens/s, %.1f GB/s, %.1f %% of reading at %.1f GB/s",
		b.op, b.kernel, b.workers, b.kvType, m.MS, m.TokensPerSecond, m.GBs, m.StreamPercent, m.StreamGBs), nil
}

// append measures the growing of sequences.
func (b *benchFlags) append() (result any, text string, err error) {
	spec := workload.AppendSpec{
		KVHeads: b.kvHeads, Dim: b.dim, Tokens: b.queries,
		Format: kvTypes[b.kvType], PageKeys: b.page, Bytes: float64(b.coldMega) * (1 << 20),
	}
	if have, limit := spec.Memory(), maxBytes(); have > limit {
		return nil, "", fmt.Errorf("-queries: a cache and a buffer of %.0f bytes (-kvheads, -dim, -kvtype, -page, -cold), must not pass %.0f bytes in all",
			have, limit)
	}
	a, err := workload.NewAppend(spec)
	if err != nil {
		return nil, "", err
	}
	r := a.Measure(b.minTime)
	return appendMeasurement{
			Op: b.op, Kernel: attention.Kernels()[0], KVHeads: b.kvHeads, Dim: b.dim, Queries: b.queries, KVType: b.kvType, Page: b.page,
			NsPerToken: r.Nanos, WriteNsPerToken: r.WriteNanos, Ratio: r.Ratio,
		}, fmt.Sprintf("%s, %d tokens at a time, %s: %.4g ns a token, %.3g times the %.4g ns of copying it",
			b.op, b.queries, b.kvType, r.Nanos, r.Ratio, r.WriteNanos), nil
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
