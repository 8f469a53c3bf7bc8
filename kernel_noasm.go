//go:build purego || noasm || !(amd64 || arm64)

package attention

import "github.com/seed-091431b3/attention/kernel"

// tables lists the usable kernels, fastest first.
func tables() []kernel.Ops { return []kernel.Ops{generic()} }
