//go:build !purego && !noasm

package peak

// assembly returns the loop in assembly for a kernel and its flops per
// iteration; nil, 0 if there is none that runs here.
func assembly(kernel string) (loop, int) {
	if kernel == "neon" {
		return fmaPeakNEON, 2 * 24 * 4
	}
	return nil, 0
}

// readLines reads lines of 64 bytes.
func readLines(data *byte, lines, _ int) { readGeneric(data, lines) }
