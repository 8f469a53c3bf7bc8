//go:build !linux

package kerneltest

// guarded allocates size bytes; here without pages around them that may not be
// touched, so that only writes next to an argument are seen.
func guarded(size int) ([]byte, func(), error) {
	const around = 4096
	all := make([]byte, size+2*around)
	return all[around : around+size : around+size], func() {}, nil
}
