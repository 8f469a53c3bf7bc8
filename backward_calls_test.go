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

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-091431b3/attention"
	"github.com/seed-091431b3/attention/ref"
)

// backwardReady runs p forward, and returns a function that runs it backward.
func (p *problem) backwardReady(t testing.TB, op *attention.Operator) func(ctx context.Context) error {
	t.Helper()
	in, out, _ := p.call()
	require.NoError(t, op.Forward(in, out, p.batch), p.name)
	g, _ := p.backwardCall()
	return func(ctx context.Context) error { return op.BackwardContext(ctx, in, out, g, p.batch) }
}

// TestBackwardEndsEarly: a mask function that panics or ends its goroutine, and
// a context that is done, end a call in which tasks wait for each other; nothing
// is left behind, and the operator works on.
func TestBackwardEndsEarly(t *testing.T) {
	r := rand.New(rand.NewPCG(31, 1))
	value := errors.New("the mask's own")
	for _, workers := range []int{1, 2, 4} {
		for _, how := range []string{"panic", "goexit", "cancel"} {
			t.Run(fmt.Sprintf("%s/workers=%d", how, workers), func(t *testing.T) {
				sameGoroutines(t)
				var armed atomic.Bool
				ctx, cancel := context.WithCancel(context.Background())
				defer cancel()
				p := newProblem(r, shape{1, 1, 8, 8, []int{900}, []int{1300}}).differentiable(r)
				p.cfg.Mask = attention.Func(func(_, _, i, j int) bool {
					if armed.Load() && i == 470 && j == 700 {
						switch how {
						case "panic":
							panic(value)
						case "goexit":
							runtime.Goexit()
						default:
							cancel()
						}
					}
					return j <= i+400
				}, nil)
				op := operator(t, p, "", workers)
				want := p.backwardOn(t, op)
				call := p.backwardReady(t, op)
				armed.Store(true)
				switch how {
				case "panic":
					assert.PanicsWithValue(t, value, func() { _ = call(ctx) })
				case "goexit":
					ended, returned := make(chan struct{}), false
					go func() {
						defer close(ended)
						_ = call(ctx)
						returned = true
					}()
					<-ended
					assert.False(t, returned, "Backward returned although its work is unfinished")
				default:
					require.ErrorIs(t, call(ctx), context.Canceled)
					require.ErrorIs(t, call(ctx), context.Canceled, "a context that is done before the call")
				}
				armed.Store(false)
				sameGradients(t, want, p.backwardOn(t, op), "after it ended early")
			})
		}
	}
}

// TestBackwardConcurrently: goroutines share an operator, forward and backward.
func TestBackwardConcurrently(t *testing.T) {
	sameGoroutines(t)
	r := rand.New(rand.NewPCG(31, 2))
	var problems []*problem
	var want []gradients
	for n := range 4 {
		p := newProblem(r, shape{4, 2, 12, 7, []int{1 + r.IntN(200), 3}, []int{1 + r.IntN(700), 40}}).differentiable(r)
		if n%2 == 0 {
			p.add(r, "bias", "sinks", "dropout")
		}
		p.setMasks(func(_, nq, nk, off int) (string, attention.Mask, ref.Mask) { return randomMask(r, 4, nq, nk, off) })
		problems, want = append(problems, p), append(want, p.backwardOn(t, operator(t, p, "", 1)))
	}
	for _, workers := range []int{1, 2, 5} {
		op := operator(t, problems[0], "", workers)
		var wait sync.WaitGroup
		for g := range 8 {
			wait.Add(1)
			go func() {
				defer wait.Done()
				for k := range 4 {
					n := (g + k) % len(problems)
					problems[(n+1)%len(problems)].runOn(t, op)
					sameGradients(t, want[n], problems[n].backwardOn(t, op), "goroutine", g)
				}
			}()
		}
		wait.Wait()
	}
}

// TestBackwardAllocatesNothing: after the first call of a size.
func TestBackwardAllocatesNothing(t *testing.T) {
	r := rand.New(rand.NewPCG(31, 3))
	s := shape{4, 2, 16, 24, []int{100, 1, 0, 70}, []int{100, 1100, 3, 70}}
	if testing.Short() {
		s.nq, s.nk = []int{20, 1, 0, 9}, []int{20, 200, 3, 9}
	}
	everything := newProblem(r, s).add(r, "softcap", "alibi", "bias", "sinks", "dropout by rows").differentiable(r)
	everything.setMasks(func(_, nq, nk, off int) (string, attention.Mask, ref.Mask) { return randomMask(r, 4, nq, nk, off) })
	plain := newProblem(r, s).differentiable(r)
	perKernel(t, func(t *testing.T, kernel string) {
		for _, p := range []*problem{plain, everything} {
			for _, workers := range []int{1, 2} {
				call := p.backwardReady(t, operator(t, p, kernel, workers))
				runs := 10
				if testing.Short() {
					runs = 2
				}
				for range 4 { // the runtime keeps the goroutines of earlier calls, too
					require.NoError(t, call(context.Background()))
				}
				n := testing.AllocsPerRun(runs, func() {
					if err := call(context.Background()); err != nil {
						t.Fatal(err)
					}
				})
				assert.Zero(t, n, "allocations a call; %d workers, %s", workers, p.name)
			}
		}
	})
}

// TestBackwardScratch: a call allocates no more than BackwardScratch says, which
// grows with the plan of a sequence alone.
func TestBackwardScratch(t *testing.T) {
	r := rand.New(rand.NewPCG(31, 4))
	perKernel(t, func(t *testing.T, kernel string) {
		op, err := attention.New(attention.Config{QueryHeads: 1, HeadDim: 128, Workers: 1, Kernel: kernel})
		require.NoError(t, err)
		few, err := op.BackwardScratch(attention.Dense(1, 8192, 8192))
		require.NoError(t, err)
		require.Less(t, few, int64(12<<20), "bytes for 8192 tokens of 128 channels")
		many, err := op.BackwardScratch(attention.Dense(1, 1<<20, 1<<20))
		require.NoError(t, err)
		require.Less(t, many, few+1<<20/8, "bytes for a million tokens")
		problems := 40
		if testing.Short() {
			problems = 3
		}
		for range problems {
			p := randomProblem(r, 50_000).differentiable(r)
			op := operator(t, p, kernel, 1+r.IntN(3))
			bound, err := op.BackwardScratch(p.batch)
			require.NoError(t, err)
			if p.in.Sinks != nil {
				bound += 8 * int64(p.ref.CuQ[p.ref.Batch()]*p.ref.Hq)
			}
			in, out, _ := p.call()
			forward := operator(t, p, kernel, 1)
			require.NoError(t, forward.Forward(in, out, p.batch), p.name)
			g, _ := p.backwardCall()
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			err = op.Backward(in, out, g, p.batch)
			runtime.ReadMemStats(&after)
			require.NoError(t, err)
			require.LessOrEqual(t, int64(after.TotalAlloc-before.TotalAlloc), bound+4096, "bytes allocated: %s", p.name)
		}
	})
}

// TestBackwardErrors: everything that can be wrong with a call has an error that
// names it, and then nothing is written.
func TestBackwardErrors(t *testing.T) {
	type call struct {
		*badCall
		g          attention.Gradients
		do, dq     []float32
		dk, dv     []float32
		bias, grad []float32 // [4][3][4] of the first sequence
	}
	fresh := func() *call {
		c := &call{
			badCall: newBadCall(), do: make([]float32, 5*4*6), dq: make([]float32, 5*4*8),
			dk: make([]float32, 6*2*8), dv: make([]float32, 6*2*6), bias: make([]float32, 48), grad: make([]float32, 48),
		}
		c.in.Sinks = make([]float32, 4)
		c.in.Bias = []attention.Bias{{Data: c.bias, HeadStride: 12, QueryStride: 4}, {}}
		c.g = attention.Gradients{
			DO: attention.Packed(c.do, 4, 6), DQ: attention.Packed(c.dq, 4, 8),
			DK: attention.Packed(c.dk, 2, 8), DV: attention.Packed(c.dv, 2, 6),
			DBias: []attention.Bias{{Data: c.grad, HeadStride: 12, QueryStride: 4}, {}}, DSinks: make([]float32, 4),
		}
		return c
	}
	run := func(t *testing.T, c *call) error {
		t.Helper()
		op, err := attention.New(c.cfg)
		require.NoError(t, err)
		return op.Backward(c.in, c.out, c.g, c.batch)
	}
	require.NoError(t, run(t, fresh()))
	for _, test := range []struct {
		name string
		says []string
		bad  func(c *call)
	}{
		{"lengths fall", []string{"cu_seqlens of Q", "entry 2"}, func(c *call) { c.batch.CuQ = []int{0, 3, 2} }},
		{"no LSE", []string{"LSE", "0", "20"}, func(c *call) { c.out.LSE = nil }},
		{"LSE too short", []string{"LSE", "19", "20"}, func(c *call) { c.out.LSE = c.lse[:19] }},
		{"no O", []string{"O", "0"}, func(c *call) { c.out.O = attention.Tensor{} }},
		{"no DO", []string{"DO", "0"}, func(c *call) { c.g.DO = attention.Tensor{} }},
		{"DO too short", []string{"DO", "119", "120"}, func(c *call) { c.g.DO.Data = c.do[:119] }},
		{"DO with a negative stride", []string{"DO", "HeadStride", "-6"}, func(c *call) { c.g.DO.HeadStride = -6 }},
		{"DLSE too short", []string{"DLSE", "3", "20"}, func(c *call) { c.g.DLSE = make([]float64, 3) }},
		{"DQ too short", []string{"DQ", "159", "160"}, func(c *call) { c.g.DQ.Data = c.dq[:159] }},
		{"DK too short", []string{"DK", "95", "96"}, func(c *call) { c.g.DK.Data = c.dk[:95] }},
		{"DV too short", []string{"DV", "71", "72"}, func(c *call) { c.g.DV.Data = c.dv[:71] }},
		{"rows of DQ overlap", []string{"DQ", "overlap"}, func(c *call) { c.g.DQ.TokenStride = 8 }},
		{"heads of DK overlap", []string{"DK", "overlap"}, func(c *call) { c.g.DK.HeadStride = 7 }},
		{"DSinks without sinks", []string{"DSinks", "Sinks"}, func(c *call) { c.in.Sinks = nil }},
		{"DSinks too short", []string{"DSinks", "3", "4"}, func(c *call) { c.g.DSinks = c.g.DSinks[:3] }},
		{"DBias without bias", []string{"DBias", "Bias"}, func(c *call) { c.in.Bias = nil }},
		{"DBias of too few", []string{"DBias", "1", "2"}, func(c *call) { c.g.DBias = c.g.DBias[:1] }},
		{"DBias where there is no bias", []string{"DBias", "entry 1", "no Bias"}, func(c *call) {
			c.g.DBias[1] = attention.Bias{Data: make([]float32, 16), HeadStride: 4, QueryStride: 2}
		}},
		{"DBias too short", []string{"DBias", "entry 0", "47", "48"}, func(c *call) { c.g.DBias[0].Data = c.grad[:47] }},
		{"DBias empty", []string{"DBias", "entry 0", "empty"}, func(c *call) { c.g.DBias[0].Data = []float32{} }},
		{"DBias broadcast, Bias not", []string{"DBias", "entry 0", "strides", "12"}, func(c *call) { c.g.DBias[0].HeadStride = 0 }},
		{"Bias broadcast, DBias not", []string{"DBias", "entry 0", "strides"}, func(c *call) { c.in.Bias[0].QueryStride = 0 }},
		{"rows of DBias overlap", []string{"DBias", "entry 0", "overlap"}, func(c *call) { c.g.DBias[0].QueryStride = 3 }},
		{"a stride of DBias negative", []string{"DBias", "entry 0", "-1"}, func(c *call) { c.g.DBias[0].QueryStride = -1 }},
		{"DQ is Q", []string{"DQ", "overlaps the input Q"}, func(c *call) { c.g.DQ.Data = c.q }},
		{"DQ overlaps DO", []string{"DQ", "overlaps the input DO"}, func(c *call) { c.g.DO.Data = c.dq }},
		{"DV overlaps O", []string{"DV", "overlaps the input O"}, func(c *call) { c.g.DV.Data = c.o }},
		{"DK overlaps DQ", []string{"DK", "overlaps DQ"}, func(c *call) { c.g.DK.Data = c.dq }},
		{"DSinks is Sinks", []string{"DSinks", "overlaps the input Sinks"}, func(c *call) { c.g.DSinks = c.in.Sinks }},
		{"DBias is Bias", []string{"DBias", "overlap", "Bias"}, func(c *call) { c.g.DBias[0].Data = c.bias }},
		{"DBias overlaps DQ", []string{"DBias", "overlaps", "DQ"}, func(c *call) { c.g.DBias[0].Data = c.dq }},
		{"DBias overlaps K", []string{"DBias", "overlaps", "K"}, func(c *call) { c.g.DBias[0].Data = c.in.K.Data }},
		{"entries of DBias overlap", []string{"DBias", "overlap each other"}, func(c *call) {
			c.in.Bias[1] = attention.Bias{Data: make([]float32, 16), HeadStride: 4, QueryStride: 2}
			c.g.DBias[1] = attention.Bias{Data: c.grad[40:], HeadStride: 2, QueryStride: 2}
			c.g.DBias[1].HeadStride, c.g.DBias[1].Data = 4, c.grad[32:]
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := fresh()
			written := [][]float32{c.dq, c.dk, c.dv, c.grad, c.g.DSinks}
			for _, x := range written {
				fill(x, 7)
			}
			test.bad(c)
			requireSays(t, run(t, c), test.says)
			for _, x := range written {
				for _, v := range x {
					require.Equal(t, float32(7), v, "something was written")
				}
			}
		})
	}
}

// TestFusedGradients: gradients of Q, K and V in one buffer.
func TestFusedGradients(t *testing.T) {
	r := rand.New(rand.NewPCG(31, 5))
	const hq, hkv, dim = 6, 2, 17
	p := newProblem(r, shape{hq, hkv, dim, dim, []int{70, 3, 0, 129}, []int{70, 3, 0, 129}}).differentiable(r)
	p.cfg.Mask = attention.Causal()
	op := operator(t, p, "", 2)
	want := p.backwardOn(t, op)
	in, out, _ := p.call()
	require.NoError(t, op.Forward(in, out, p.batch))
	g, got := p.backwardCall()
	cu := p.ref.CuQ
	g.DQ, g.DK, g.DV = attention.FusedQKV(make([]float32, cu[4]*(hq+2*hkv)*dim), hq, hkv, dim)
	require.NoError(t, op.Backward(in, out, g, p.batch))
	got.dq, got.dk, got.dv = get(cu, hq, dim, g.DQ), get(cu, hkv, dim, g.DK), get(cu, hkv, dim, g.DV)
	sameGradients(t, want, got)
}

// TestBackwardInputsStay: a call writes to none of its inputs.
func TestBackwardInputsStay(t *testing.T) {
	r := rand.New(rand.NewPCG(31, 6))
	for n := range 8 {
		p := randomProblem(r, 30_000).add(r, "bias", "sinks", "alibi", "dropout by rows").differentiable(r)
		op := operator(t, p, "", 1+n%3)
		in, out, forward := p.call()
		require.NoError(t, op.Forward(in, out, p.batch))
		g, _ := p.backwardCall()
		show := func() string {
			return fmt.Sprint(p.q, p.k, p.v, p.in, p.cfg.ALiBi, p.batch, *p.in.Dropout, forward, p.ref.DO, g.DLSE)
		}
		before := show()
		require.NoError(t, op.Backward(in, out, g, p.batch))
		require.Equal(t, before, show())
	}
}
