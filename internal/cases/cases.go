// Package cases embeds attention problems with expected values that this module
// did not compute, in the format of package casefile.
//
//   - generated: computed in extended precision by an independent program
//     from the definition of attention, and checked against 60-digit
//     arithmetic and finite differences; with all gradients.
//   - real: the attention block of a trained model, run by another library;
//     output only.
package cases

import (
	"embed"
	"fmt"
	"io/fs"
	"path"
	"strings"

	"github.com/seed-091431b3/attention/internal/casefile"
)

// The folders of FS.
const (
	Generated = "generated"
	Real      = "real"
)

const extension = ".case"

// FS holds the folders of case files.
//
//go:embed generated/*.case real/*.case
var FS embed.FS

// Names returns the names of the cases in a folder, sorted, without extension.
func Names(folder string) []string {
	entries, err := fs.ReadDir(FS, folder)
	if err != nil {
		return nil
	}
	var names []string
	for _, e := range entries {
		if name, ok := strings.CutSuffix(e.Name(), extension); ok {
			names = append(names, name)
		}
	}
	return names
}

// Load reads one case.
func Load(folder, name string) (*casefile.Case, error) {
	file := path.Join(folder, name+extension)
	f, err := FS.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	c, err := casefile.Read(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return c, nil
}
