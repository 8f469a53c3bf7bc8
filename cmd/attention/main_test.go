package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-091431b3/attention"
	"github.com/seed-091431b3/attention/internal/casefile"
	"github.com/seed-091431b3/attention/internal/cases"
)

// call runs the command in this process.
func call(args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	code = dispatch(args, &out, &errs)
	return code, out.String(), errs.String()
}

// writeCase puts a built-in case, changed by edit, into a file.
func writeCase(t *testing.T, name string, edit func(*casefile.Case)) string {
	t.Helper()
	c, err := cases.Load(cases.Generated, name)
	require.NoError(t, err)
	if edit != nil {
		edit(c)
	}
	path := filepath.Join(t.TempDir(), name+".case")
	require.NoError(t, c.WriteFile(path))
	return path
}

func TestCheckPassesOnEveryKernel(t *testing.T) {
	code, stdout, stderr := call("check")
	assert.Zero(t, code, stderr)
	for _, k := range attention.Kernels() {
		assert.Contains(t, stdout, k)
	}
	assert.NotContains(t, stdout, "NO")
	assert.Contains(t, stdout, "Skipped dropout_given_keep:")
}

func TestCheckFailsOnAWrongResult(t *testing.T) {
	path := writeCase(t, "mha_basic", func(c *casefile.Case) {
		o := c.Array("O", casefile.Output)
		o.Data[7] ^= 0x10 // the exponent of the first float64
	})
	code, _, stderr := call("check", "-cases", filepath.Dir(path))
	assert.Equal(t, 1, code)
	assert.Contains(t, stderr, "mha_basic")
}

func TestRunWritesWhatCheckAccepts(t *testing.T) {
	for _, kernel := range attention.Kernels() {
		in := writeCase(t, "everything", nil)
		out := filepath.Join(t.TempDir(), "out.case")
		code, _, stderr := call("run", "-kernel", kernel, "-workers", "2", "-o", out, in)
		require.Zero(t, code, stderr)
		want, err := casefile.ReadFile(in)
		require.NoError(t, err)
		got, err := casefile.ReadFile(out)
		require.NoError(t, err)
		assert.Equal(t, want.Attrs, got.Attrs)
		assert.Equal(t, want.Inputs(), got.Inputs())
		assert.ElementsMatch(t, want.Outputs(), got.Outputs())
		for _, name := range want.Outputs() {
			values, err := got.Array(name, casefile.Output).Float64s()
			require.NoError(t, err)
			cmp, err := casefile.Compare(want, name, values)
			require.NoError(t, err)
			assert.True(t, cmp.OK, cmp)
		}
	}
}

func TestRunDoesNotReplaceItsInput(t *testing.T) {
	in := writeCase(t, "mha_basic", nil)
	code, _, stderr := call("run", "-o", in, in)
	assert.Equal(t, 1, code)
	assert.Contains(t, stderr, "itself")
}

func TestRunRefusesOutputsBeyondMemory(t *testing.T) {
	const queries, channels = 1 << 20, 1 << 20
	path := filepath.Join(t.TempDir(), "wide.case")
	c := casefile.New(casefile.Header{Attrs: casefile.Attrs{
		Hq: 1, Hkv: 1, Dk: 1, Dv: channels, Scale: 1,
		Seqs: []casefile.Seq{{Q: queries, Left: -1, Right: -1}}, CuQ: []int{0, queries}, CuKV: []int{0, 0},
	}},
		casefile.NewArray("Q", casefile.Input, []int{queries, 1, 1}, make([]float32, queries)),
		casefile.NewArray("K", casefile.Input, []int{0, 1, 1}, []float32{}),
		casefile.NewArray("V", casefile.Input, []int{0, 1, channels}, []float32{}))
	require.NoError(t, c.WriteFile(path))
	for _, args := range [][]string{{"run", "-o", path + ".out", path}, {"check", "-cases", filepath.Dir(path)}} {
		code, _, stderr := call(args...)
		assert.Equal(t, 1, code)
		assert.Contains(t, stderr, "must not pass")
	}
}

func TestBenchJSONHasTheKeysOthersRead(t *testing.T) {
	for _, kernel := range attention.Kernels() {
		code, stdout, stderr := call("bench", "-op", "forward", "-kernel", kernel, "-qheads", "4", "-kvheads", "2",
			"-dim", "32", "-vdim", "16", "-seqlen", "64", "-causal", "-workers", "1", "-time", "1ms", "-json")
		require.Zero(t, code, stderr)
		var m map[string]any
		require.NoError(t, json.Unmarshal([]byte(stdout), &m))
		var keys []string
		for k := range m {
			keys = append(keys, k)
		}
		assert.ElementsMatch(t, strings.Fields("op kernel qheads kvheads dim seqlen causal workers ms gflops peak_gflops peak_percent"), keys)
		assert.Equal(t, kernel, m["kernel"])
		assert.Equal(t, 2.0, m["kvheads"])
		assert.Equal(t, true, m["causal"])
		assert.Greater(t, m["gflops"], 0.0)
	}
}

func TestRaggedLengthsStayInRange(t *testing.T) {
	n, err := parseRagged("64x8..512")
	require.NoError(t, err)
	assert.Len(t, n, 64)
	assert.GreaterOrEqual(t, slices.Min(n), 8)
	assert.LessOrEqual(t, slices.Max(n), 512)
}

func TestMasksDrawsTiles(t *testing.T) {
	code, stdout, stderr := call("masks", "-mask", "causal", "-queries", "512", "-kernel", "generic")
	require.Zero(t, code, stderr)
	assert.Contains(t, stdout, "     504 ###+\n")
	assert.Contains(t, stdout, "       0 +...\n")
	path := filepath.Join(t.TempDir(), "mask.svg")
	code, stdout, stderr = call("masks", "-mask", "window:100,0 & documents:300,212", "-queries", "512", "-svg", path)
	require.Zero(t, code, stderr)
	assert.Contains(t, stdout, "of the work without a mask")
	svg, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Contains(t, string(svg), "</svg>")
}

func TestBadArgumentsExitWithOneAndSayWhy(t *testing.T) {
	for _, x := range []struct {
		args string
		want string
	}{
		{"", "usage"},
		{"train", `no command "train"`},
		{"check -kernel fast", "-kernel"},
		{"check -cases nowhere", "nowhere"},
		{"check extra", "extra"},
		{"run", "takes 1 arguments"},
		{"run in.case", "-o"},
		{"run -o out.case missing.case", "missing.case"},
		{"bench -op sideways", "-op"},
		{"bench -kernel fast", "-kernel"},
		{"bench -qheads 0", "-qheads"},
		{"bench -qheads 3 -kvheads 2", "-kvheads"},
		{"bench -dim -1", "-dim"},
		{"bench -vdim -1", "-vdim"},
		{"bench -seqlen 0", "-seqlen"},
		{"bench -workers 0", "-workers"},
		{"bench -seqlen 16777216 -qheads 65536 -dim 65536", "-seqlen"},
		{"bench -time -1s", "-time"},
		{"bench -ragged 64", "-ragged"},
		{"bench -ragged 4x9..8", "-ragged"},
		{"bench -ragged 4x1..8y", "-ragged"},
		{"bench -no-such-flag", "no-such-flag"},
		{"masks -mask round", "-mask"},
		{"masks -mask window:1", "window"},
		{"masks -mask window:1,x", "not a number"},
		{"masks -mask window:-2,0", "Window"},
		{"masks -mask documents:1,2", "add up"},
		{"masks -mask blocks:8:1", "Q-K"},
		{"masks -queries 0", "-queries"},
		{"masks -queries 1048576", "must not pass"},
	} {
		code, stdout, stderr := call(strings.Fields(x.args)...)
		assert.Equal(t, 1, code, x.args)
		assert.Contains(t, stderr, x.want, x.args)
		assert.Empty(t, stdout, x.args)
	}
}

func TestHelpGoesToStdout(t *testing.T) {
	for _, args := range []string{"help", "check -h", "run -h", "bench -h", "masks -h"} {
		code, stdout, stderr := call(strings.Fields(args)...)
		assert.Zero(t, code, args)
		assert.Contains(t, stdout, "usage: attention", args)
		assert.Empty(t, stderr, args)
	}
}
