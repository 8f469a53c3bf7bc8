package attention_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-091431b3/attention"
	"github.com/seed-091431b3/attention/ref"
)

// sameGoroutines verifies at the end of a test that no goroutine is left.
func sameGoroutines(t *testing.T) {
	before := runtime.NumGoroutine()
	t.Cleanup(func() {
		assert.Eventually(t, func() bool { return runtime.NumGoroutine() <= before+1 }, 5*time.Second, time.Millisecond,
			"there were %d goroutines", before)
	})
}

// TestGoexitInMask ends a mask function the way t.FailNow does.
func TestGoexitInMask(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 1))
	for _, workers := range []int{1, 4} {
		t.Run(fmt.Sprintf("workers=%d", workers), func(t *testing.T) {
			sameGoroutines(t)
			var armed atomic.Bool
			p := newProblem(r, shape{4, 2, 8, 8, []int{200, 300}, []int{200, 300}})
			p.cfg.Mask = attention.Func(func(_, _, i, j int) bool {
				if armed.Load() && i == 70 && j == 3 {
					runtime.Goexit()
				}
				return j <= i
			}, nil)
			op := operator(t, p, "", workers)
			want := p.runOn(t, op)
			for range 3 {
				armed.Store(true)
				in, out, _ := p.call()
				ended, returned := make(chan struct{}), false
				go func() {
					defer close(ended)
					_ = op.Forward(in, out, p.batch)
					returned = true
				}()
				<-ended
				assert.False(t, returned, "Forward returned although its work is unfinished")
				armed.Store(false)
				sameBits(t, want, p.runOn(t, op), "after Goexit")
			}
		})
	}
}

// TestPanicInMask: a panic in a mask function reaches the caller's goroutine
// with its value, and the operator works on.
func TestPanicInMask(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	value := errors.New("the mask's own")
	for _, workers := range []int{1, 4} {
		for _, inTile := range []bool{false, true} {
			t.Run(fmt.Sprintf("workers=%d/tile=%v", workers, inTile), func(t *testing.T) {
				sameGoroutines(t)
				var armed atomic.Bool
				calls := func() {
					if armed.Load() {
						panic(value)
					}
				}
				p := newProblem(r, shape{4, 2, 8, 8, []int{200, 300}, []int{200, 300}})
				p.cfg.Mask = attention.Func(func(_, _, i, j int) bool {
					if !inTile && i == 70 && j == 3 {
						calls()
					}
					return j <= i
				}, func(_, i0, _, _, _ int) attention.Visibility {
					if inTile && i0 > 50 {
						calls()
					}
					return attention.Mixed
				})
				op := operator(t, p, "", workers)
				want := p.runOn(t, op)
				for range 3 {
					armed.Store(true)
					in, out, _ := p.call()
					assert.PanicsWithValue(t, value, func() { _ = op.Forward(in, out, p.batch) })
					armed.Store(false)
					sameBits(t, want, p.runOn(t, op), "after a panic")
				}
			})
		}
	}
}

// TestCancelBefore: a context that is done stops a call before it writes.
func TestCancelBefore(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	c := newBadCall()
	op, err := attention.New(c.cfg)
	require.NoError(t, err)
	err = op.ForwardContext(ctx, c.in, c.out, c.batch)
	require.ErrorIs(t, err, context.Canceled)
	for _, x := range c.o {
		require.Equal(t, float32(7), x)
	}
	late, cancel := context.WithDeadline(context.Background(), time.Now().Add(-time.Second))
	defer cancel()
	require.ErrorIs(t, op.ForwardContext(late, c.in, c.out, c.batch), context.DeadlineExceeded)
	require.NoError(t, op.ForwardContext(context.Background(), c.in, c.out, c.batch))
}

// TestCancelDuring: a call whose context is done stops early, says so, leaves
// no goroutine, and the operator works on.
func TestCancelDuring(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 2))
	for _, workers := range []int{1, 3} {
		t.Run(fmt.Sprintf("workers=%d", workers), func(t *testing.T) {
			sameGoroutines(t)
			p := newProblem(r, shape{2, 1, 8, 8, []int{600, 900}, []int{600, 900}})
			var asked atomic.Int64
			var stop atomic.Pointer[context.CancelFunc]
			p.cfg.Mask = attention.Func(func(_, _, i, j int) bool {
				if asked.Add(1) == 5000 {
					if f := stop.Load(); f != nil {
						(*f)()
					}
				}
				return j <= i
			}, nil)
			op := operator(t, p, "", workers)
			want := p.runOn(t, op)
			all := asked.Load()
			for range 3 {
				ctx, cancel := context.WithCancel(context.Background())
				stop.Store(&cancel)
				asked.Store(0)
				in, out, _ := p.call()
				require.ErrorIs(t, op.ForwardContext(ctx, in, out, p.batch), context.Canceled)
				require.Less(t, asked.Load(), all, "pairs of which the mask was asked, at all and before it ended early")
				stop.Store(nil)
				sameBits(t, want, p.runOn(t, op), "after it was cancelled")
			}
		})
	}
}

// TestConcurrentCalls: many goroutines share one operator.
func TestConcurrentCalls(t *testing.T) {
	sameGoroutines(t)
	r := rand.New(rand.NewPCG(3, 3))
	for _, workers := range []int{1, 2} {
		var problems []*problem
		var want []result
		for n := range 6 {
			nq, nk := 1+r.IntN(200), 1+r.IntN(300)
			p := newProblem(r, shape{4, 2, 12, 7, []int{nq, 3}, []int{nk, 40}})
			if n%2 == 0 {
				p.add(r, "bias", "sinks", "dropout")
			}
			p.setMasks(func(_, nq, nk, off int) (string, attention.Mask, ref.Mask) { return randomMask(r, 4, nq, nk, off) })
			problems, want = append(problems, p), append(want, p.run(t, "", 1))
		}
		op := operator(t, problems[0], "", workers)
		var wait sync.WaitGroup
		for g := range 12 {
			wait.Add(1)
			go func() {
				defer wait.Done()
				for k := range 5 {
					n := (g + k) % len(problems)
					sameBits(t, want[n], problems[n].runOn(t, op), "goroutine", g)
				}
			}()
		}
		wait.Wait()
	}
}

// TestNoAllocations: after the first call of a size, calls allocate nothing.
func TestNoAllocations(t *testing.T) {
	r := rand.New(rand.NewPCG(4, 4))
	s := shape{4, 2, 16, 24, []int{100, 1, 0, 70}, []int{100, 1100, 3, 70}}
	if testing.Short() {
		s.nq, s.nk = []int{20, 1, 0, 9}, []int{20, 200, 3, 9}
	}
	everything := newProblem(r, s).add(r, "softcap", "alibi", "bias", "sinks", "dropout by rows")
	everything.setMasks(func(_, nq, nk, off int) (string, attention.Mask, ref.Mask) { return randomMask(r, 4, nq, nk, off) })
	causal := newProblem(r, s)
	causal.cfg.Mask = attention.Causal()
	perKernel(t, func(t *testing.T, kernel string) {
		for _, p := range []*problem{newProblem(r, s), causal, everything} {
			for _, workers := range []int{1, 2} {
				op := operator(t, p, kernel, workers)
				in, out, _ := p.call()
				runs := 20
				if testing.Short() {
					runs = 4
				}
				for range 4 { // the runtime keeps the goroutines of earlier calls, too
					require.NoError(t, op.Forward(in, out, p.batch))
				}
				n := testing.AllocsPerRun(runs, func() {
					if err := op.Forward(in, out, p.batch); err != nil {
						t.Fatal(err)
					}
				})
				assert.Zero(t, n, "allocations a call; %d workers, %s", workers, p.name)
			}
		}
	})
}

// firstCall is the memory that the first call of an operator allocates.
func firstCall(t *testing.T, op *attention.Operator, p *problem) int64 {
	t.Helper()
	in, out, _ := p.call()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	err := op.Forward(in, out, p.batch)
	runtime.ReadMemStats(&after)
	require.NoError(t, err)
	return int64(after.TotalAlloc - before.TotalAlloc)
}

// TestScratch: a call allocates no more than Scratch says, which does not grow
// with the sequence.
func TestScratch(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 5))
	long := newProblem(r, shape{1, 1, 128, 128, []int{8192}, []int{8192}})
	long.cfg.Mask = attention.Window(30, 0)
	perKernel(t, func(t *testing.T, kernel string) {
		op := operator(t, long, kernel, 1)
		bound, err := op.Scratch(long.batch)
		require.NoError(t, err)
		require.Less(t, bound, int64(12<<20), "bytes for 8192 tokens of 128 channels")
		four, err := op.Scratch(attention.Dense(1, 4*8192, 4*8192))
		require.NoError(t, err)
		require.Less(t, four, bound+2<<10, "bytes for four times as many tokens: only the list of tasks grows")
		if !testing.Short() {
			require.LessOrEqual(t, firstCall(t, op, long), bound, "bytes allocated")
		}
		problems := 40
		if testing.Short() {
			problems = 3
		}
		for range problems {
			p := randomProblem(r, 100_000)
			op := operator(t, p, kernel, 1+r.IntN(3))
			bound, err := op.Scratch(p.batch)
			require.NoError(t, err)
			require.LessOrEqual(t, firstCall(t, op, p), bound, "bytes allocated: %s", p.name)
		}
	})
}

// TestEmptyBatches: batches with nothing in them.
func TestEmptyBatches(t *testing.T) {
	op, err := attention.New(attention.Config{QueryHeads: 2, HeadDim: 4})
	require.NoError(t, err)
	for name, b := range map[string]attention.Batch{
		"the zero batch":           {},
		"no sequence":              attention.Ragged([]int{0}),
		"no sequence, both":        attention.RaggedQK([]int{0}, []int{0}),
		"one empty sequence":       attention.Ragged([]int{0, 0}),
		"empty sequences":          attention.Dense(5, 0, 0),
		"empty slices":             {CuQ: []int{}, CuK: []int{}},
		"no sequences, everything": {CuQ: []int{0}, Offsets: []int{}, Masks: []attention.Mask{}, IDs: []uint64{}},
	} {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, op.Forward(attention.Inputs{}, attention.Outputs{}, b))
			require.NoError(t, op.Forward(attention.Inputs{Bias: make([]attention.Bias, max(len(b.CuQ)-1, 0)), Sinks: make([]float32, 2)},
				attention.Outputs{LSE: []float64{}}, b))
			_, err := op.Scratch(b)
			require.NoError(t, err)
		})
	}
}

// TestManySequences: a batch of very many short sequences.
func TestManySequences(t *testing.T) {
	r := rand.New(rand.NewPCG(6, 6))
	n := 20_000
	if testing.Short() {
		n = 500
	}
	s := shape{2, 1, 4, 3, make([]int, n), make([]int, n)}
	for b := range n {
		s.nq[b], s.nk[b] = r.IntN(3), r.IntN(5)
	}
	p := newProblem(r, s)
	p.name = "many sequences"
	p.cfg.Mask = attention.Causal()
	for b := range n {
		_, _, off := p.sequence(b)
		p.ref.Masks[b] = ref.Causal(off)
	}
	for _, workers := range []int{1, 3} {
		checkReference(t, p, p.run(t, "", workers))
	}
}

// TestLongSequence: a long sequence with a narrow mask takes time and memory in
// proportion to its tokens, and gives the bits of its parts.
func TestLongSequence(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 7))
	n := 100_000
	if testing.Short() {
		n = 5000
	}
	p := newProblem(r, shape{2, 1, 8, 8, []int{n}, []int{n}})
	p.name = "long"
	for name, m := range map[string]attention.Mask{
		"window":      attention.Window(20, 0),
		"sink tokens": attention.And(attention.SinkTokens(4, 20, 0), attention.Causal()),
	} {
		t.Run(name, func(t *testing.T) {
			p.cfg.Mask = m
			op := operator(t, p, "", 2)
			want := p.runOn(t, op)
			for _, first := range []int{0, n/2 - 3, n - 40} {
				in, out, got := p.call()
				const rows = 40
				in.Q.Data = in.Q.Data[first*16:]
				batch := attention.RaggedQK([]int{0, rows}, []int{0, first + rows})
				require.NoError(t, op.Forward(in, out, batch))
				sameBits(t, result{want.o[first*16 : (first+rows)*16], want.lse[first*2 : (first+rows)*2]}, result{got.o[:rows*16], got.lse[:rows*2]})
			}
			// The rows whose keys are all among the first.
			few := p.choose([]int{0})
			few.ref.CuQ, few.ref.CuK = []int{0, 300}, []int{0, 300}
			few.ref.Masks = []ref.Mask{ref.And(ref.Causal(0), ref.Window(0, 20, 0))}
			if name == "sink tokens" {
				few.ref.Masks[0] = ref.And(ref.Causal(0), ref.SinkTokens(0, 4, 20, 0))
			}
			checkReference(t, few, result{want.o[:300*16], want.lse[:600]})
		})
	}
}
