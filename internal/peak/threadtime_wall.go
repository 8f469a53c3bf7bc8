//go:build !(darwin || freebsd || linux || openbsd)

package peak

import "time"

// ThreadTime returns a wall clock's time: there is no clock of a thread here.
func ThreadTime() time.Duration { return wallTime() }
