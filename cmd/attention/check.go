package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/seed-091431b3/attention"
	"github.com/seed-091431b3/attention/internal/casefile"
	"github.com/seed-091431b3/attention/internal/caserun"
	"github.com/seed-091431b3/attention/internal/cases"
	"github.com/seed-091431b3/attention/internal/peak"
	"github.com/seed-091431b3/attention/internal/workload"
)

// namedCase is a case with where it comes from.
type namedCase struct {
	name string
	*casefile.Case
}

// check runs cases on every kernel and prints a table.
func check(args []string, stdout, _ io.Writer) error {
	f := newFlags("check", "", `Computes cases with known results on every kernel this machine has, compares them
with those results and with the portable kernel bit for bit, and measures short
passes forward and backward. Fails if any case does.`, stdout)
	dir := f.String("cases", "", "folder of .case files, searched with its subfolders (default: the built-in cases)")
	only := f.String("kernel", "", "check this kernel only")
	if err := parse(f, args, 0); err != nil {
		return err
	}
	kernels := attention.Kernels()
	if *only != "" {
		if !slices.Contains(kernels, *only) {
			return fmt.Errorf("-kernel: %q is not one this processor runs, which are %s", *only, strings.Join(kernels, ", "))
		}
		kernels = []string{*only}
	}
	all, err := load(*dir)
	if err != nil {
		return err
	}
	reports := make([]report, len(kernels))
	for i, k := range kernels {
		reports[i] = checkKernel(k, all)
	}
	return printReports(stdout, reports, all)
}

// load reads the cases of a folder, or the built-in ones.
func load(dir string) ([]namedCase, error) {
	var all []namedCase
	if dir == "" {
		for _, folder := range []string{cases.Generated, cases.Real} {
			for _, name := range cases.Names(folder) {
				c, err := cases.Load(folder, name)
				if err != nil {
					return nil, err
				}
				all = append(all, namedCase{name, c})
			}
		}
		return all, nil
	}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".case" {
			return err
		}
		c, err := casefile.ReadFile(path)
		all = append(all, namedCase{strings.TrimSuffix(filepath.Base(path), ".case"), c})
		return err
	})
	if err == nil && len(all) == 0 {
		err = fmt.Errorf("-cases: there are no .case files in %s", dir)
	}
	return all, err
}

// report is what came of the cases on one kernel.
type report struct {
	kernel          string
	passed          int
	skipped, failed []string // with reasons
	worst           float64
	worstCase       string
	same            bool // bits equal to the portable kernel's
	// Of a forward pass and a backward pass.
	forward, backward peak.Result
}

func checkKernel(kernel string, all []namedCase) report {
	r := report{kernel: kernel, same: true}
	for _, c := range all {
		p, err := c.Problem()
		if err == nil && p.GivenKeep() {
			r.skipped = append(r.skipped, c.name+": brings a dropout mask of its own, the library's is a hash of a seed")
			continue
		}
		if err == nil {
			err = r.checkCase(c, p)
		}
		if err != nil {
			r.failed = append(r.failed, fmt.Sprintf("%s: %s: %v", kernel, c.name, err))
			continue
		}
		r.passed++
	}
	r.forward, r.backward = speed(kernel, false), speed(kernel, true)
	return r
}

// checkCase computes a case and takes its errors into r.
func (r *report) checkCase(c namedCase, p *casefile.Problem) error {
	got, err := compute(p, r.kernel, 1)
	if err != nil {
		return err
	}
	portable, err := compute(p, "generic", 1)
	if err != nil {
		return err
	}
	if !caserun.Same(got, portable) {
		r.same = false
		return errors.New("bits differ from the portable kernel's")
	}
	for i := range got.Results {
		if c.Array(got.Results[i].Name, casefile.Output) == nil {
			continue
		}
		x, err := got.Results[i].Compare(c.Case)
		if err != nil {
			return err
		}
		if share := x.Worst / x.Limit; share > r.worst || r.worstCase == "" {
			r.worst, r.worstCase = share, fmt.Sprintf("%.3g of %.3g, %s of %s", x.Worst, x.Limit, x.Name, c.name)
		}
		if !x.OK {
			return errors.New(x.String())
		}
	}
	return nil
}

// speed measures a pass of two heads of 64 channels.
func speed(kernel string, backward bool) peak.Result {
	length := 1024
	if kernel == "generic" {
		length = 256
	}
	w, err := workload.New(workload.Spec{QueryHeads: 2, Dim: 64, Lengths: []int{length}, Backward: backward, Kernel: kernel, Workers: 1})
	if err != nil {
		panic(err) // the specification is ours
	}
	return w.Measure(300 * time.Millisecond)
}

func printReports(stdout io.Writer, reports []report, all []namedCase) error {
	t := tabwriter.NewWriter(stdout, 0, 0, 3, ' ', 0)
	fmt.Fprintln(t, "kernel\tcases\tsame bits\tGFLOP/s\tof peak\tbackward\tof peak\tnearest to its limit")
	var failed []string
	for _, r := range reports {
		same := "yes"
		if !r.same {
			same = "NO"
		}
		fmt.Fprintf(t, "%s\t%d of %d\t%s\t%.1f\t%.0f %%\t%.1f\t%.0f %%\t%s\n", r.kernel, r.passed, len(all)-len(r.skipped), same,
			r.forward.GFLOPS, r.forward.PeakPercent, r.backward.GFLOPS, r.backward.PeakPercent, r.worstCase)
		failed = append(failed, r.failed...)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(stdout, "\nErrors are in units of 2^-24 of an output's magnitude, or of a case's own tolerance.")
	for _, s := range reports[0].skipped {
		fmt.Fprintf(stdout, "Skipped %s.\n", s)
	}
	if len(failed) > 0 {
		return fmt.Errorf("%d failures:\n  %s", len(failed), strings.Join(failed, "\n  "))
	}
	return nil
}
