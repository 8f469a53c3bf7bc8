//go:build linux && (amd64 || arm64 || riscv64 || s390x)

package attention_test

import (
	"math/rand/v2"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/seed-091431b3/attention"
)

// far is a stride that 32 bits do not hold, as elements or as bytes.
const far = 1<<32 + 3

// mapped is memory for n elements of which only what is written takes any.
func mapped(t *testing.T, n int) []float32 {
	all, err := syscall.Mmap(-1, 0, 4*n, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE|syscall.MAP_NORESERVE)
	if err != nil {
		t.Skipf("no room for %d elements of address space: %v", n, err)
	}
	t.Cleanup(func() { _ = syscall.Munmap(all) })
	return unsafe.Slice((*float32)(unsafe.Pointer(&all[0])), n)
}

// TestBeyond32Bits: tensors of more than 2^32 elements are indexed rightly,
// whichever stride is so large.
func TestBeyond32Bits(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	const hq, hkv, dim = 4, 2, 5
	p := newProblem(r, shape{hq, hkv, dim, dim, []int{3, 2}, []int{3, 2}})
	want := p.run(t, "generic", 1)
	cu := p.ref.CuQ
	perKernel(t, func(t *testing.T, kernel string) {
		for name, x := range map[string]attention.Tensor{
			"token":    {TokenStride: far, HeadStride: dim},
			"head":     {TokenStride: dim, HeadStride: far},
			"sequence": {TokenStride: hq * dim, HeadStride: dim, SequenceStride: far},
		} {
			t.Run(name, func(t *testing.T) {
				place := func(heads int) attention.Tensor {
					end := 0
					eachRow(cu, heads, dim, x, func(_, s int) { end = max(end, s+dim) })
					y := x
					y.Data = mapped(t, end)
					return y
				}
				in, out, got := p.call()
				in.Q, in.K, in.V, out.O = place(hq), place(hkv), place(hkv), place(hq)
				put(cu, hq, dim, in.Q, p.q)
				put(cu, hkv, dim, in.K, p.k)
				put(cu, hkv, dim, in.V, p.v)
				require.NoError(t, operator(t, p, kernel, 2).Forward(in, out, p.batch))
				got.o = get(cu, hq, dim, out.O)
				sameBits(t, want, got, name)
			})
		}
	})
}
