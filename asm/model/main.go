// Model asks llvm-mca how fast the inner loops of the NEON kernels would run on
// several cores, as they stand in a linked binary. What it says is a model of
// ports, latencies and dispatch with all data in the first-level cache: modelled,
// never measured.
//
//	GOARCH=arm64 go test -c -o attention.test . && go -C asm run ./model ../attention.test
//
// It needs llvm-mca-19 (earlier versions take some of these cores for others)
// and aarch64-linux-gnu-objdump, prints a table in Markdown, and fails where a
// loop of multiply-adds falls below its floor.
package main

import (
	"bytes"
	"fmt"
	"log"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
)

// core is a processor core with its front end and its multiply-adds a cycle.
type core struct {
	name            string
	dispatch, pipes int
	floor           float64 // percent of the peak that tile loops must reach
}

var cores = []core{
	{"neoverse-n1", 4, 2, 97}, {"neoverse-v1", 5, 4, 92}, {"neoverse-v1", 8, 4, 97}, {"neoverse-v2", 8, 4, 97},
}

// loops are the functions whose inner loop is shown. Those of multiply-adds are
// held to the floors, at the widest strip and for pairs of panels, or to a part of
// them: those for few rows have fewer multiply-adds for each load, and what widens
// 16-bit formats takes their pipes.
var loops = []struct {
	function string
	held     float64 // part of the floors
}{
	{"scoreNEON_12", 1}, {"accumulateNEON_12", 1}, {"addOuterNEON", 1},
	{"scoreF32NEON", .85}, {"accumulateF32NEON", .85},
	{"scoreBF16NEON", .78}, {"accumulateBF16NEON", .78},
	{"scoreF16NEON", .54}, {"accumulateF16NEON", .54},
	{"scoreNEON_8", 0}, {"scoreNEON_4", 0},
	{"softmaxNEON", 0}, {"gradientNEON", 0}, {"softcapNEON", 0},
}

func main() {
	log.SetFlags(0)
	if len(os.Args) != 2 {
		log.Fatal("usage: model BINARY")
	}
	version, err := exec.Command("llvm-mca-19", "--version").Output()
	if err != nil || !bytes.Contains(version, []byte("LLVM version 19.")) {
		log.Fatalf("model: needs llvm-mca-19 (%v)", err)
	}
	fmt.Print("| loop | instructions | multiply-adds |")
	for _, c := range cores {
		fmt.Printf(" %s, dispatch %d |", c.name, c.dispatch)
	}
	fmt.Print("\n|---|---|---|" + strings.Repeat("---|", len(cores)) + "\n")
	failed := false
	for _, l := range loops {
		body := innerLoop(os.Args[1], l.function)
		fma := count(body, "fmla") + count(body, "fmls")
		fmt.Printf("| %s | %d | %d |", l.function, len(body), fma)
		for _, c := range cores {
			cycles := c.cycles(body)
			percent := 100 * float64(fma) / float64(c.pipes) / cycles
			if l.held > 0 {
				fmt.Printf(" %.1f %% |", percent)
			} else {
				fmt.Printf(" %.1f cycles, %.1f %% |", cycles, percent)
			}
			if floor := l.held * c.floor; percent < floor {
				failed = true
				log.Printf("model: %s reaches %.1f %% of the multiply-adds of %s at dispatch %d, must %.0f", l.function, percent, c.name, c.dispatch, floor)
			}
		}
		fmt.Println()
	}
	if failed {
		os.Exit(1)
	}
}

func count(body []string, mnemonic string) int {
	n := 0
	for _, s := range body {
		if strings.HasPrefix(s, mnemonic+"\t") || strings.HasPrefix(s, mnemonic+" ") {
			n++
		}
	}
	return n
}

var (
	instruction = regexp.MustCompile(`^\s*([0-9a-f]+):\t(.*)$`)
	branch      = regexp.MustCompile(`^(b\.\w+|cbn?z)\s.*?([0-9a-f]+) <`)
	place       = regexp.MustCompile(`(0x)?[0-9a-f]+ <[^>]*>`)
)

// innerLoop is the loop of a function that holds no other and has the most
// multiply-adds.
func innerLoop(binary, function string) []string {
	symbol := "github.com/seed-091431b3/attention." + function + ".abi0"
	out, err := exec.Command("aarch64-linux-gnu-objdump", "-d", "--no-show-raw-insn", "--disassemble="+symbol, binary).Output()
	if err != nil {
		log.Fatal("model: objdump: ", err)
	}
	var addresses []uint64
	var code []string
	for _, line := range strings.Split(string(out), "\n") {
		if m := instruction.FindStringSubmatch(line); m != nil {
			a, err := strconv.ParseUint(m[1], 16, 64)
			if err != nil {
				log.Fatal(err)
			}
			text, _, _ := strings.Cut(m[2], "//")
			addresses, code = append(addresses, a), append(code, strings.TrimSpace(text))
		}
	}
	var best []string
	last := -1 // where the loop that was found before starts
	for i, text := range code {
		m := branch.FindStringSubmatch(text)
		if m == nil {
			continue
		}
		target, err := strconv.ParseUint(m[2], 16, 64)
		if err != nil || target >= addresses[i] {
			continue
		}
		for start, a := range addresses[:i] {
			if a != target || start <= last {
				continue
			}
			last = start
			body := append([]string(nil), code[start:i+1]...)
			for k := range body {
				body[k] = place.ReplaceAllString(body[k], "elsewhere")
			}
			if best == nil || count(body, "fmla") > count(best, "fmla") {
				best = body
			}
		}
	}
	if best == nil {
		log.Fatalf("model: no loop in %s", symbol)
	}
	return best
}

var total = regexp.MustCompile(`Total Cycles:\s+(\d+)`)

// cycles is what the model says an iteration takes.
func (c core) cycles(body []string) float64 {
	const iterations = 1000
	cmd := exec.Command("llvm-mca-19", "-mtriple=aarch64", "-mcpu="+c.name, fmt.Sprintf("-dispatch=%d", c.dispatch),
		fmt.Sprintf("-iterations=%d", iterations))
	cmd.Stdin = strings.NewReader(strings.Join(body, "\n") + "\nelsewhere:\n")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		log.Fatalf("model: llvm-mca-19: %v\n%s", err, stderr.String())
	}
	m := total.FindSubmatch(out)
	if m == nil {
		log.Fatalf("model: no cycles in\n%s", out)
	}
	n, err := strconv.ParseFloat(string(m[1]), 64)
	if err != nil {
		log.Fatal(err)
	}
	return n / iterations
}
