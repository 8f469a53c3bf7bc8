// Package output writes what a generator builds: whole, or not at all.
package output

import (
	"os"

	"github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/pass"
	"github.com/mmcloughlin/avo/printer"
)

// Generate compiles what c declares and writes it as assembly and Go stubs of
// package pkg. Command, which makes the files, stands in their headers. Nothing
// is written if anything fails.
func Generate(c *build.Context, asmPath, stubsPath, pkg, command string) error {
	file, err := c.Result()
	if err != nil {
		return err
	}
	if err := pass.Compile.Execute(file); err != nil {
		return err
	}
	cfg := printer.Config{Pkg: pkg, Argv: []string{command}}
	assembly, err := printer.NewGoAsm(cfg).Print(file)
	if err != nil {
		return err
	}
	stubs, err := printer.NewStubs(cfg).Print(file)
	if err != nil {
		return err
	}
	if err := os.WriteFile(asmPath, assembly, 0o644); err != nil {
		return err
	}
	return os.WriteFile(stubsPath, stubs, 0o644)
}
