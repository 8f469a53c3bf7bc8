package attention

import (
	"fmt"

	"github.com/seed-091431b3/attention/kernel"
)

// Format is how numbers are stored. Arithmetic is that of float32 throughout.
type Format uint8

// The formats of a [Cache].
const (
	FormatFloat32  = Format(kernel.Float32)
	FormatBFloat16 = Format(kernel.BFloat16)
	FormatFloat16  = Format(kernel.Float16)
)

var formatNames = [...]string{"float32", "bfloat16", "float16"}

func (f Format) String() string {
	if int(f) < len(formatNames) {
		return formatNames[f]
	}
	return fmt.Sprintf("Format(%d)", uint8(f))
}
