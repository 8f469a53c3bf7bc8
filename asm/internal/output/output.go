// Package output writes what a generator builds: whole, or not at all.
package output

import (
	"os"

	"github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/pass"
	"github.com/mmcloughlin/avo/printer"
)

// Generate compiles what c declares and writes base+".s" and base+"_stubs.go"
// for package pkg, naming generator, the folder of the generating command, in
// their headers. Nothing is written if anything fails.
func Generate(c *build.Context, base, pkg, generator string) error {
	file, err := c.Result()
	if err != nil {
		return err
	}
	if err := pass.Compile.Execute(file); err != nil {
		return err
	}
	cfg := printer.Config{Pkg: pkg, Argv: []string{"go generate (" + generator + ")"}}
	assembly, err := printer.NewGoAsm(cfg).Print(file)
	if err != nil {
		return err
	}
	stubs, err := printer.NewStubs(cfg).Print(file)
	if err != nil {
		return err
	}
	if err := os.WriteFile(base+".s", assembly, 0o644); err != nil {
		return err
	}
	return os.WriteFile(base+"_stubs.go", stubs, 0o644)
}
