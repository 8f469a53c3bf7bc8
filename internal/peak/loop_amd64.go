//go:build !purego && !noasm

package peak

import "golang.org/x/sys/cpu"

// assembly returns the loop in assembly for a kernel and its flops per
// iteration; nil, 0 if there is none that runs here.
func assembly(kernel string) (loop, int) {
	switch {
	case kernel == "avx2" && cpu.X86.HasAVX2 && cpu.X86.HasFMA:
		return fmaPeakAVX2, 2 * 12 * 8
	case kernel == "avx512" && cpu.X86.HasAVX2 && cpu.X86.HasAVX512F:
		return fmaPeakAVX512, 2 * 24 * 16
	}
	return nil, 0
}

// readLines reads lines of 64 bytes, fetching those that lie ahead bytes further
// on unless that is 0.
func readLines(data *byte, lines, ahead int) {
	if cpu.X86.HasAVX {
		streamAVX(data, lines, ahead)
	} else {
		readGeneric(data, lines)
	}
}
