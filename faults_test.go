package attention_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-091431b3/attention"
	"github.com/seed-091431b3/attention/internal/faults"
)

// TestFaults puts every kernel to the faults that other libraries had.
func TestFaults(t *testing.T) {
	perKernel(t, func(t *testing.T, kernel string) {
		s := subject(kernel)
		for _, f := range faults.All() {
			t.Run(f.Name, func(t *testing.T) { require.NoError(t, f.Check(s)) })
		}
		t.Run("window of every length", func(t *testing.T) {
			for _, block := range []int{8, 32, 128, 1024} {
				for n := block - 1; n <= block+1; n++ {
					require.NoError(t, faults.SlidingWindow(s, n), "%d tokens", n)
				}
			}
		})
	})
}

// subject is the library as a subject of package faults.
func subject(kernel string) faults.Subject {
	return faults.Subject{
		Tolerance: 2e-6, // float32; the logits are small or differ exactly
		Run: func(p *faults.Problem) (*faults.Result, error) {
			op, err := attention.New(attention.Config{
				QueryHeads: p.Hq, KVHeads: p.Hkv, HeadDim: p.Dk, ValueDim: p.Dv, Scale: &p.Scale, Softcap: p.Softcap,
				ALiBi: p.Slopes, Mask: maskOf(p), Kernel: kernel,
			})
			if err != nil {
				return nil, err
			}
			batch := attention.RaggedQK(p.CuQ, p.CuK)
			batch.Offsets = p.Offset
			r := newResult(p.Problem)
			in := attention.Inputs{
				Q: attention.Packed(p.Q, p.Hq, p.Dk), K: attention.Packed(p.K, p.Hkv, p.Dk), V: attention.Packed(p.V, p.Hkv, p.Dv), Sinks: p.Sinks,
			}
			out := attention.Outputs{O: attention.Packed(r.o, p.Hq, p.Dv), LSE: r.lse}
			err = op.Forward(in, out, batch)
			result := &faults.Result{O: widen(r.o), LSE: r.lse}
			if err != nil || p.DO == nil && p.DLSE == nil {
				return result, err
			}
			x := problem{ref: p.Problem}
			if p.DO == nil {
				p.DO = make([]float32, len(r.o))
			}
			grad, g := x.backwardCall()
			err = op.Backward(in, out, grad, batch)
			result.DQ, result.DK, result.DV = widen(g.dq), widen(g.dk), widen(g.dv)
			return result, err
		},
		Merge: func(o1, lse1, o2, lse2 []float64) (o, lse []float64, err error) {
			a := attention.Part{O: narrow(o1), LSE: lse1}
			b := attention.Part{O: narrow(o2), LSE: lse2}
			dst := clonePart(a)
			err = attention.Merge(dst, a, b, len(o1)/len(lse1))
			return widen(dst.O), dst.LSE, err
		},
	}
}

func maskOf(p *faults.Problem) attention.Mask {
	m := attention.Window(p.Left, p.Right)
	if p.Causal {
		m = attention.And(m, attention.Causal())
	}
	if p.AddMask != nil {
		m = attention.And(m, attention.Func(p.AddMask, nil))
	}
	return m
}

func narrow(x []float64) []float32 {
	y := make([]float32, len(x))
	for i := range x {
		y[i] = float32(x[i])
	}
	return y
}
