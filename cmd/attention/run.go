package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/seed-091431b3/attention/internal/casefile"
	"github.com/seed-091431b3/attention/internal/caserun"
)

// run computes the outputs of a case file.
func run(args []string, stdout, _ io.Writer) error {
	f := newFlags("run", " IN.case", `Computes O (float32) and LSE (float64) of a case in the format attn-oracle-1,
and if it has dO or dLSE the gradients dQ, dK, dV, dBias and dSinks (float32), and
writes a case with the same attributes and inputs and these outputs.`, stdout)
	kernel := f.String("kernel", "", "kernel to use (default: the fastest)")
	workers := f.Int("workers", 0, "goroutines; 0: one for each processor")
	out := f.String("o", "", "the file to write")
	if err := parse(f, args, 1); err != nil {
		return err
	}
	if *out == "" {
		return errors.New("-o: a file to write must be given")
	}
	in, err := casefile.ReadFile(f.Arg(0))
	if err != nil {
		return err
	}
	if a, err := os.Stat(f.Arg(0)); err == nil {
		if b, err := os.Stat(*out); err == nil && os.SameFile(a, b) {
			return fmt.Errorf("-o: %s is the case itself, whose results it would replace", *out)
		}
	}
	p, err := in.Problem()
	if err != nil {
		return fmt.Errorf("%s: %w", f.Arg(0), err)
	}
	call, err := compute(p, *kernel, *workers)
	if err != nil {
		return fmt.Errorf("%s: %w", f.Arg(0), err)
	}
	return withResults(in, call).WriteFile(*out)
}

// compute computes the outputs of a case. A small file can ask for more of them
// than memory holds: a row of O is as wide as V, of which there may be no row.
func compute(p *casefile.Problem, kernel string, workers int) (*caserun.Call, error) {
	tokens := p.CuQ[len(p.CuQ)-1]
	// O, LSE, and a gradient of O that may not be in the file.
	if bytes := float64(tokens) * float64(p.Hq) * (8*float64(p.Dv) + 8); bytes > maxBytes() {
		return nil, fmt.Errorf("outputs of %d tokens, %d heads and %d channels take %.0f bytes, must not pass %.0f",
			tokens, p.Hq, p.Dv, bytes, maxBytes())
	}
	call, err := caserun.New(p, kernel, workers)
	if err != nil {
		return nil, err
	}
	return call, call.Run()
}

// withResults is the case in with its inputs and the results of call.
func withResults(in *casefile.Case, call *caserun.Call) *casefile.Case {
	arrays := in.Inputs()
	for i := range call.Results {
		arrays = append(arrays, call.Results[i].Array())
	}
	return casefile.New(in.Header, arrays...)
}
