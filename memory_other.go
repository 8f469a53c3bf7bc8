//go:build !linux

package attention

// allocate returns n bytes of zeros.
func allocate(n int) []byte { return make([]byte, n) }
