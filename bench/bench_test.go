// Package bench measures the library: go test -bench . ./bench
//
// Every benchmark reports GFLOP/s of useful flops and %peak, the median ratio to
// the peak of the kernel's own multiply-add instruction, measured around every
// sample in the same process; but decoding, whose time is that of reading memory,
// reports GB/s of keys and values and %stream, the median ratio to a loop that
// only reads. Names are made for benchstat.
package bench

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/seed-091431b3/attention"
	"github.com/seed-091431b3/attention/internal/workload"
)

// measure runs a workload as a benchmark, and then against the peak.
func measure(b *testing.B, s workload.Spec) {
	b.Helper()
	w, err := workload.New(s)
	if err != nil {
		b.Fatal(err)
	}
	if err := w.Run(); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if err := w.Run(); err != nil {
			b.Fatal(err)
		}
	}
	b.StopTimer()
	r := w.Measure(500 * time.Millisecond)
	b.ReportMetric(r.GFLOPS, "GFLOP/s")
	b.ReportMetric(r.PeakPercent, "%peak")
}

// fast are the kernels worth a long benchmark.
func fast() []string {
	all := attention.Kernels()
	return all[:max(len(all)-1, 1)]
}

func BenchmarkForward(b *testing.B) { lengths(b, false) }

func BenchmarkBackward(b *testing.B) { lengths(b, true) }

// lengths measures single sequences.
func lengths(b *testing.B, backward bool) {
	for _, kernel := range attention.Kernels() {
		for _, mask := range []string{"full", "causal"} {
			for _, s := range []int{128, 512, 2048, 8192} {
				for _, d := range []int{64, 128, 256} {
					b.Run(fmt.Sprintf("%s/%s/s=%d/d=%d", kernel, mask, s, d), func(b *testing.B) {
						if kernel == "generic" && s > 512 {
							b.Skip("the portable kernel takes too long")
						}
						measure(b, workload.Spec{QueryHeads: max(2048/s, 1), Dim: d, Lengths: []int{s}, Causal: mask == "causal", Backward: backward, Kernel: kernel})
					})
				}
			}
		}
	}
}

// passes are the names of the forward pass and the backward pass.
var passes = []string{"forward", "backward"}

func BenchmarkGrouped(b *testing.B) {
	for _, kernel := range fast() {
		for _, pass := range passes {
			for _, workers := range []int{1, 2} {
				b.Run(fmt.Sprintf("%s/%s/causal/qheads=32/kvheads=8/s=1024/d=128/workers=%d", kernel, pass, workers), func(b *testing.B) {
					measure(b, workload.Spec{
						QueryHeads: 32, KVHeads: 8, Dim: 128, Lengths: []int{1024}, Causal: true,
						Backward: pass == "backward", Kernel: kernel, Workers: workers,
					})
				})
			}
		}
	}
}

func BenchmarkEncoder(b *testing.B) {
	for _, kernel := range fast() {
		for _, pass := range passes {
			b.Run(kernel+"/"+pass+"/full/ragged=64x8..512/qheads=12/d=64", func(b *testing.B) {
				measure(b, workload.Spec{QueryHeads: 12, Dim: 64, Lengths: workload.Ragged(64, 8, 512), Backward: pass == "backward", Kernel: kernel})
			})
		}
	}
}

// BenchmarkMemory reports what the first call of a backward pass allocates
// besides inputs and outputs, and what the matrices P and dS of a plain
// implementation would take.
func BenchmarkMemory(b *testing.B) {
	for _, tokens := range []int{1 << 10, 1 << 12, 1 << 14, 1 << 16} {
		b.Run(fmt.Sprintf("backward/causal/s=%d/d=64", tokens), func(b *testing.B) {
			var allocated float64
			for b.Loop() {
				w, err := workload.New(workload.Spec{QueryHeads: 1, Dim: 64, Lengths: []int{tokens}, Causal: true, Backward: true})
				if err != nil {
					b.Fatal(err)
				}
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				if err := w.Run(); err != nil {
					b.Fatal(err)
				}
				runtime.ReadMemStats(&after)
				allocated = float64(after.TotalAlloc - before.TotalAlloc)
			}
			b.ReportMetric(allocated/1e6, "scratch-MB")
			b.ReportMetric(2*4*float64(tokens)*float64(tokens)/1e6, "plain-MB")
		})
	}
}

func BenchmarkFeature(b *testing.B) {
	for _, kernel := range fast() {
		for _, f := range workload.Features(4, 2048) {
			b.Run(fmt.Sprintf("%s/%s/s=2048/d=64", kernel, f.Name), func(b *testing.B) {
				measure(b, workload.Spec{QueryHeads: 4, Dim: 64, Lengths: []int{2048}, Kernel: kernel, Modify: f.Modify, Pairs: f.Pairs})
			})
		}
		b.Run(kernel+"/window=256/s=32768/d=64", func(b *testing.B) {
			measure(b, workload.Window(32768, 256, kernel))
		})
	}
}

// BenchmarkLong is one sequence of a million tokens under a causal window. It
// reports the memory that the first call takes besides inputs and outputs.
func BenchmarkLong(b *testing.B) {
	const tokens, window = 1_000_000, 512
	for _, kernel := range fast() {
		b.Run(fmt.Sprintf("%s/window=%d/s=%d/d=64", kernel, window, tokens), func(b *testing.B) {
			if testing.Short() {
				b.Skip("takes a gigabyte of inputs and outputs")
			}
			w, err := workload.New(workload.Window(tokens, window, kernel))
			if err != nil {
				b.Fatal(err)
			}
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			if err := w.Run(); err != nil {
				b.Fatal(err)
			}
			runtime.ReadMemStats(&after)
			for b.Loop() {
				if err := w.Run(); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(after.TotalAlloc-before.TotalAlloc)/1e6, "scratch-MB")
			b.ReportMetric(w.Flops*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFLOP/s")
		})
	}
}

// kvTypes are the formats of a cache.
var kvTypes = []struct {
	name   string
	format attention.Format
}{{"f32", attention.FormatFloat32}, {"bf16", attention.FormatBFloat16}, {"f16", attention.FormatFloat16}}

// BenchmarkDecode is a step of one query a sequence, of one long sequence and of
// a batch of short ones.
func BenchmarkDecode(b *testing.B) {
	batches := []struct {
		name    string
		lengths []int
	}{
		{"keys=1024", []int{1024}}, {"keys=8192", []int{8192}}, {"keys=32768", []int{32768}},
		{"ragged=64x16..512", workload.Ragged(64, 16, 512)},
	}
	for _, kernel := range fast() {
		for _, batch := range batches {
			for _, d := range []int{64, 128} {
				for _, kv := range kvTypes {
					for _, workers := range []int{1, 2} {
						b.Run(fmt.Sprintf("%s/%s/qheads=32/kvheads=8/d=%d/%s/workers=%d", kernel, batch.name, d, kv.name, workers), func(b *testing.B) {
							decode(b, workload.DecodeSpec{
								QueryHeads: 32, KVHeads: 8, Dim: d, Lengths: batch.lengths, Format: kv.format,
								Kernel: kernel, Workers: workers, Bytes: workload.ColdBytes,
							})
						})
					}
				}
			}
		}
	}
}

// decode runs decoding as a benchmark, and then against reading memory.
func decode(b *testing.B, s workload.DecodeSpec) {
	b.Helper()
	d, err := workload.NewDecode(s)
	if err != nil {
		b.Fatal(err)
	}
	step := func() {
		if err := d.Step(); err != nil {
			b.Fatal(err)
		}
	}
	step()
	b.ReportAllocs()
	for b.Loop() {
		step()
	}
	b.StopTimer()
	r := d.Measure(500 * time.Millisecond)
	b.ReportMetric(r.GBs, "GB/s")
	b.ReportMetric(r.Percent, "%stream")
}

// BenchmarkAppend grows cached sequences, and reports how many times longer it
// takes than copying rows of as many bytes. Neither writes to what is in a
// processor's cache.
func BenchmarkAppend(b *testing.B) {
	for _, tokens := range []int{1, 128} {
		for _, d := range []int{64, 128} {
			for _, kv := range kvTypes {
				b.Run(fmt.Sprintf("tokens=%d/kvheads=8/d=%d/%s", tokens, d, kv.name), func(b *testing.B) {
					a, err := workload.NewAppend(workload.AppendSpec{KVHeads: 8, Dim: d, Tokens: tokens, Format: kv.format, Bytes: workload.ColdBytes})
					if err != nil {
						b.Fatal(err)
					}
					var r workload.AppendResult
					for b.Loop() {
						r = a.Measure(0)
					}
					b.ReportMetric(0, "ns/op")
					b.ReportMetric(r.Nanos, "ns/token")
					b.ReportMetric(r.Ratio, "x-write")
				})
			}
		}
	}
}
