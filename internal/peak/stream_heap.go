//go:build !(darwin || freebsd || linux || openbsd)

package peak

// ordinary returns n bytes of new memory and what gives them back.
func ordinary(n int) (data []byte, free func()) { return make([]byte, n), func() {} }
