// Package peak measures speed as a share of what the processor can do: of the
// rate of the best loop of multiply-adds, timed next to what is measured.
package peak

// A loop does iters iterations of independent multiply-adds in registers, all
// of them normal numbers, and returns the sum of its accumulators (the first
// lane of each).
type loop func(iters int) (sum float32)

// Loop returns the loop of multiply-adds that bounds the kernel of that name,
// and its flops per iteration; nil, 0 if it cannot run here. "generic" is the
// ceiling of a loop of plain Go.
func Loop(kernel string) (run func(iters int), flopsPerIter int) {
	l, flops := find(kernel)
	if l == nil {
		return nil, 0
	}
	return func(iters int) { l(iters) }, flops
}

// find is Loop for a loop with a result.
func find(kernel string) (loop, int) {
	if kernel == "generic" {
		return genericLoop, genericFlops
	}
	return assembly(kernel)
}

// genericFlops is two for each of genericLoop's accumulators.
const genericFlops = 2 * 12

// genericLoop holds as many accumulators as amd64 has registers for (15 for
// floats in Go) besides the factor and the addend: a multiplication and the
// addition that needs it take 6 or 7 cycles, and two of each can start in one.
// Accumulators go from 2 … 13 to 1. Were they equal, or given equal products as
// in the assembly, the compiler would compute them once.
func genericLoop(iters int) (sum float32) {
	const part = 0.0217
	x, y := float32(1-part), float32(part)
	a, b, c, d, e, f := float32(2), float32(3), float32(4), float32(5), float32(6), float32(7)
	g, h, i, j, k, l := float32(8), float32(9), float32(10), float32(11), float32(12), float32(13)
	for range iters {
		a, b, c, d, e, f = a*x+y, b*x+y, c*x+y, d*x+y, e*x+y, f*x+y
		g, h, i, j, k, l = g*x+y, h*x+y, i*x+y, j*x+y, k*x+y, l*x+y
	}
	return a + b + c + d + e + f + g + h + i + j + k + l
}
