// Table measures the rows by which the library is judged, percent of the
// multiply-add peak of each kernel in assembly, for decoding of the speed of a
// loop that only reads memory, and prints them as Markdown.
//
//	go run ./bench/table [-time 2s] [-kernel avx2] [-decode]
package main

import (
	"flag"
	"fmt"
	"log"
	"runtime"
	"time"

	"github.com/seed-091431b3/attention"
	"github.com/seed-091431b3/attention/internal/workload"
)

func main() {
	log.SetFlags(0)
	minTime := flag.Duration("time", time.Second, "measure each row for at least this long")
	kernel := flag.String("kernel", "", "measure this kernel only (default: all but generic, which is slow)")
	decoding := flag.Bool("decode", false, "measure decoding only")
	flag.Parse()
	kernels := attention.Kernels()
	if *kernel != "" {
		kernels = []string{*kernel}
	} else if len(kernels) > 1 {
		kernels = kernels[:len(kernels)-1]
	}
	fmt.Printf("%s/%s, %d processors, %s\n\n", runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), runtime.Version())
	// First, while the heap has no small pages that caches could be given.
	for _, k := range kernels {
		table{kernel: k, minTime: *minTime}.decoding()
	}
	appending(*minTime)
	if *decoding {
		return
	}
	for _, k := range kernels {
		fmt.Printf("\nForward, kernel %s:\n\n", k)
		t := table{kernel: k, minTime: *minTime}
		t.lengths()
		t.shapes()
		t.features()
		fmt.Printf("\nBackward, kernel %s:\n\n", k)
		t.backward = true
		t.lengths()
		t.shapes()
		t.features()
	}
}

type table struct {
	kernel   string
	minTime  time.Duration
	backward bool
}

func (t table) percent(s workload.Spec) float64 {
	s.Kernel, s.Backward = t.kernel, t.backward
	w, err := workload.New(s)
	if err != nil {
		log.Fatal(err)
	}
	return w.Measure(t.minTime).PeakPercent
}

// lengths prints full / causal for each length and number of channels.
func (t table) lengths() {
	fmt.Println("| one worker, % of peak, full / causal | D=64 | D=128 | D=256 |\n|---|---|---|---|")
	for _, s := range []int{128, 512, 2048, 8192} {
		fmt.Printf("| S=%d |", s)
		for _, d := range []int{64, 128, 256} {
			spec := workload.Spec{QueryHeads: min(max(16384/s, 1), 8), Dim: d, Lengths: []int{s}}
			full := t.percent(spec)
			spec.Causal = true
			fmt.Printf(" %.0f / %.0f |", full, t.percent(spec))
		}
		fmt.Println()
	}
}

// shapes prints grouped heads, the ragged encoder batch and two workers.
func (t table) shapes() {
	fmt.Println("\n| shape | % of peak |\n|---|---|")
	row := func(name string, s workload.Spec) { fmt.Printf("| %s | %.0f |\n", name, t.percent(s)) }
	for _, d := range []int{64, 128} {
		row(fmt.Sprintf("S=128 D=%d, 8 query heads, 2 kv heads", d), workload.Spec{QueryHeads: 8, KVHeads: 2, Dim: d, Lengths: []int{128}})
	}
	grouped := workload.Spec{QueryHeads: 32, KVHeads: 8, Dim: 128, Lengths: []int{1024}, Causal: true}
	row("32 query / 8 kv heads, S=1024 D=128 causal", grouped)
	grouped.Workers = 2
	row("the same, two workers, of two threads' peak", grouped)
	long := workload.Spec{QueryHeads: 1, Dim: 64, Lengths: []int{8192}, Workers: 2}
	row("one sequence, one head, S=8192 D=64, two workers", long)
	long.Causal = true
	row("the same, causal", long)
	row("encoder: 64 sequences of 8..512, 12 heads, D=64", workload.Spec{QueryHeads: 12, Dim: 64, Lengths: workload.Ragged(64, 8, 512)})
	row("window of 256 keys over 32768 tokens, D=64", workload.Window(32768, 256, t.kernel))
}

// kvTypes are the formats of a cache.
var kvTypes = []attention.Format{attention.FormatFloat32, attention.FormatBFloat16, attention.FormatFloat16}

// decoding prints percent of reading / GB/s of keys and values for each format.
func (t table) decoding() {
	fmt.Printf("| %s, 32 query / 8 kv heads, %% of reading / GB/s | f32 | bf16 | f16 |\n|---|---|---|---|\n", t.kernel)
	row := func(name string, dim, workers int, lengths []int) {
		fmt.Printf("| %s, D=%d, %d workers |", name, dim, workers)
		for _, f := range kvTypes {
			d, err := workload.NewDecode(workload.DecodeSpec{
				QueryHeads: 32, KVHeads: 8, Dim: dim, Lengths: lengths, Format: f,
				Kernel: t.kernel, Workers: workers, Bytes: workload.ColdBytes,
			})
			if err != nil {
				log.Fatal(err)
			}
			r := d.Measure(t.minTime)
			fmt.Printf(" %.0f / %.1f |", r.Percent, r.GBs)
		}
		fmt.Println()
	}
	for _, dim := range []int{64, 128} {
		for _, workers := range []int{1, 2} {
			row("8192 keys", dim, workers, []int{8192})
		}
	}
	for _, dim := range []int{64, 128} {
		for _, workers := range []int{1, 2} {
			row("64 sequences of 16..512 keys", dim, workers, workload.Ragged(64, 16, 512))
		}
	}
	fmt.Println()
}

// appending prints times a plain copy / ns a token for each format.
func appending(minTime time.Duration) {
	fmt.Println("| appending to 8 kv heads, D=128, × a copy / ns a token | f32 | bf16 | f16 |\n|---|---|---|---|")
	for _, tokens := range []int{1, 128} {
		fmt.Printf("| %d tokens at a time |", tokens)
		for _, f := range kvTypes {
			a, err := workload.NewAppend(workload.AppendSpec{KVHeads: 8, Dim: 128, Tokens: tokens, Format: f, Bytes: workload.ColdBytes})
			if err != nil {
				log.Fatal(err)
			}
			r := a.Measure(minTime)
			fmt.Printf(" %.1f / %.0f |", r.Ratio, r.Nanos)
		}
		fmt.Println()
	}
}

// features prints the time of each feature relative to none, S=2048, D=64.
func (t table) features() {
	fmt.Println("\n| S=2048 D=64 with | time |\n|---|---|")
	const heads, n = 4, 2048
	var none float64
	for _, f := range workload.Features(heads, n) {
		// Counting all pairs makes the percentages comparable as times.
		p := t.percent(workload.Spec{QueryHeads: heads, Dim: 64, Lengths: []int{n}, Modify: f.Modify})
		if none == 0 {
			none = p
		}
		fmt.Printf("| %s | × %.2f |\n", f.Name, none/p)
	}
}
