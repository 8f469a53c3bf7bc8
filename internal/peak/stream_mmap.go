//go:build darwin || freebsd || linux || openbsd

package peak

import "golang.org/x/sys/unix"

// ordinary returns n bytes of new memory and what gives them back. The heap would
// reuse memory for which somebody else may have asked for huge pages.
func ordinary(n int) (data []byte, free func()) {
	b, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return make([]byte, n), func() {}
	}
	return b, func() { _ = unix.Munmap(b) }
}
