// Attention checks, runs, measures and draws the attention of package
// attention.
//
//	attention check    hold every kernel of this machine to known results
//	attention run      compute the outputs of a case file
//	attention bench    measure a workload against the machine's peak
//	attention masks    draw what a mask costs
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
)

// command is one subcommand. It returns errHelp if it only printed its usage.
type command struct {
	name, summary string
	run           func(args []string, stdout, stderr io.Writer) error
}

var commands = []command{
	{"check", "hold every kernel of this machine to known results", check},
	{"run", "compute the outputs of a case file", run},
	{"bench", "measure a workload against what the machine can do", bench},
	{"masks", "draw which tiles a mask shows, mixes and skips", masks},
}

// maxBytes bounds what a command allocates for tensors, so that a slip of the
// finger is an error and not a crash.
func maxBytes() float64 { return min(16<<30, float64(math.MaxInt)/4) }

func main() { os.Exit(dispatch(os.Args[1:], os.Stdout, os.Stderr)) }

// dispatch runs a subcommand and returns the exit code: 0, or 1 with an error on
// stderr.
func dispatch(args []string, stdout, stderr io.Writer) int {
	if len(args) == 0 {
		usage(stderr)
		return 1
	}
	switch args[0] {
	case "help", "-h", "-help", "--help":
		usage(stdout)
		return 0
	}
	for _, c := range commands {
		if c.name != args[0] {
			continue
		}
		switch err := c.run(args[1:], stdout, stderr); {
		case err == nil, errors.Is(err, flag.ErrHelp):
			return 0
		default:
			fmt.Fprintf(stderr, "attention %s: %v\n", c.name, err)
			return 1
		}
	}
	fmt.Fprintf(stderr, "attention: there is no command %q\n", args[0])
	usage(stderr)
	return 1
}

func usage(w io.Writer) {
	fmt.Fprintf(w, "usage: attention COMMAND [flags]\n\n")
	for _, c := range commands {
		fmt.Fprintf(w, "  %-6s %s\n", c.name, c.summary)
	}
	fmt.Fprintf(w, "\nattention COMMAND -h lists a command's flags.\n")
}

// newFlags returns the flags of a subcommand. Errors of parsing are the
// caller's to print.
func newFlags(name, arguments, doc string, stdout io.Writer) *flag.FlagSet {
	f := flag.NewFlagSet(name, flag.ContinueOnError)
	f.SetOutput(io.Discard)
	f.Usage = func() {
		f.SetOutput(stdout)
		fmt.Fprintf(stdout, "usage: attention %s [flags]%s\n\n%s\n\n", name, arguments, doc)
		f.PrintDefaults()
		f.SetOutput(io.Discard)
	}
	return f
}

// parse parses args, of which exactly want may be no flags.
func parse(f *flag.FlagSet, args []string, want int) error {
	// The package prints its usage with every error; only help deserves it.
	help := f.Usage
	f.Usage = func() {}
	if err := f.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			help()
		}
		return err
	}
	if f.NArg() != want {
		return fmt.Errorf("takes %d arguments besides flags, not %d: %q", want, f.NArg(), f.Args())
	}
	return nil
}
