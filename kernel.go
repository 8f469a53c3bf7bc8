package attention

import (
	"fmt"
	"strings"

	"github.com/seed-091431b3/attention/kernel"
)

// Kernels names the kernels that this processor can run, fastest first. The
// last is always "generic", portable Go. All give the same bits.
func Kernels() []string {
	var names []string
	for _, t := range tables() {
		names = append(names, t.Name)
	}
	return names
}

// table returns the kernel called name, or the fastest for "".
func table(name string) (*kernel.Ops, error) {
	all := tables()
	for i := range all {
		if name == "" || all[i].Name == name {
			return &all[i], nil
		}
	}
	return nil, fmt.Errorf("attention: Kernel: %q is not one this processor runs, which are %s",
		name, strings.Join(Kernels(), ", "))
}
