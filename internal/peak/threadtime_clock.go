//go:build darwin || freebsd || linux || openbsd

package peak

import (
	"time"

	"golang.org/x/sys/unix"
)

// ThreadTime returns the processor time that the calling thread has used; the
// caller has locked its goroutine to the thread. Other programs on the
// processor do not count.
func ThreadTime() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		panic("peak: the thread's clock: " + err.Error())
	}
	return time.Duration(t.Nano())
}
