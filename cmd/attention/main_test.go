package main

import (
	"bytes"
	"encoding/json"
	"maps"
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
		m := object(t, stdout, "op kernel qheads kvheads dim seqlen causal workers ms gflops peak_gflops peak_percent")
		assert.Equal(t, kernel, m["kernel"])
		assert.Equal(t, 2.0, m["kvheads"])
		assert.Equal(t, true, m["causal"])
		assert.Greater(t, m["gflops"], 0.0)
	}
}

// object is a JSON object that has exactly these keys.
func object(t *testing.T, text, keys string) map[string]any {
	t.Helper()
	var m map[string]any
	require.NoError(t, json.Unmarshal([]byte(text), &m))
	assert.ElementsMatch(t, strings.Fields(keys), slices.Collect(maps.Keys(m)))
	return m
}

// tiny are the flags of a measurement that takes no time.
const tiny = " -cold 0 -time 0 -dim 16 -page 16 "

func TestBenchDecode(t *testing.T) {
	for _, kernel := range attention.Kernels() {
		for args, want := range map[string]map[string]any{
			"-seqlen 40 -qheads 4 -kvheads 2": {
				"qheads": 4.0, "kvheads": 2.0, "dim": 16.0, "seqlen": 40.0, "batch": 1.0, "queries": 1.0, "kvtype": "f32", "page": 16.0, "workers": 1.0,
			},
			"-seqlen 20 -batch 3 -queries 2 -kvtype bf16 -workers 2": {
				"kvheads": 8.0, "seqlen": 20.0, "batch": 3.0, "queries": 2.0, "kvtype": "bf16", "workers": 2.0,
			},
			"-ragged 5x7..7 -kvtype f16 -page 48 -cold 1": {"seqlen": 7.0, "batch": 5.0, "kvtype": "f16", "page": 48.0},
		} {
			code, stdout, stderr := call(strings.Fields("bench -op decode -json -kernel " + kernel + tiny + args)...)
			require.Zero(t, code, stderr)
			m := object(t, stdout, "op kernel qheads kvheads dim seqlen batch queries kvtype page workers ms tokens_per_second gbs stream_gbs stream_percent")
			assert.Equal(t, "decode", m["op"])
			assert.Equal(t, kernel, m["kernel"])
			assert.Subset(t, m, want, args)
			for _, k := range []string{"ms", "tokens_per_second", "gbs", "stream_gbs", "stream_percent"} {
				assert.Greater(t, m[k], 0.0, k)
			}
			number := func(k string) float64 { return m[k].(float64) }
			assert.InEpsilon(t, number("batch")*number("queries"), number("tokens_per_second")*number("ms")/1e3, 1e-9)
			if m["batch"] == 1.0 {
				assert.InEpsilon(t, 40*2*2*16*4, number("gbs")*number("ms")*1e6, 1e-9)
			}
		}
	}
	code, stdout, stderr := call(strings.Fields("bench -op decode -seqlen 32" + tiny)...)
	require.Zero(t, code, stderr)
	assert.Contains(t, stdout, "of reading at")
}

func TestBenchAppend(t *testing.T) {
	for _, kv := range []string{"f32", "bf16", "f16"} {
		for _, tokens := range []string{"1", "7", "128"} {
			code, stdout, stderr := call(strings.Fields("bench -op append -json -kvheads 3 -queries " + tokens + " -kvtype " + kv + tiny)...)
			require.Zero(t, code, stderr)
			m := object(t, stdout, "op kernel kvheads dim queries kvtype page ns_per_token write_ns_per_token ratio")
			assert.Subset(t, m, map[string]any{"op": "append", "kernel": attention.Kernels()[0], "kvheads": 3.0, "dim": 16.0, "kvtype": kv, "page": 16.0})
			for _, k := range []string{"queries", "ns_per_token", "write_ns_per_token", "ratio"} {
				assert.Greater(t, m[k], 0.0, k)
			}
		}
	}
	code, stdout, stderr := call(strings.Fields("bench -op append" + tiny + "-cold 1")...)
	require.Zero(t, code, stderr)
	assert.Contains(t, stdout, "ns of copying it")
}

func TestBenchRefusesFlagsOfOtherOperations(t *testing.T) {
	for op, flags := range map[string]string{
		"forward": "batch queries kvtype page cold", "backward": "batch queries kvtype page cold",
		"decode": "vdim", "append": "causal vdim kernel qheads seqlen ragged workers batch",
	} {
		for _, name := range strings.Fields(flags) {
			value := map[string]string{"causal": "true", "kernel": "generic", "kvtype": "f32", "ragged": "1x1..1", "page": "16"}[name]
			if value == "" {
				value = "1"
			}
			code, stdout, stderr := call("bench", "-op", op, "-"+name+"="+value)
			assert.Equal(t, 1, code, name)
			assert.Contains(t, stderr, "-"+name+": is not a flag of -op "+op)
			assert.Empty(t, stdout)
		}
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
		{"bench -op decode -batch 0", "-batch"},
		{"bench -op decode -batch 2 -ragged 2x8..8", "-batch"},
		{"bench -op decode -ragged 2x8", "-ragged"},
		{"bench -op decode -queries 0", "-queries"},
		{"bench -op decode -queries 9 -seqlen 8", "-queries"},
		{"bench -op decode -queries 9 -ragged 4x8..8", "-queries"},
		{"bench -op decode -kvtype int8", "-kvtype"},
		{"bench -op decode -page 0", "-page"},
		{"bench -op decode -page 24", "-page"},
		{"bench -op decode -cold -1", "-cold"},
		{"bench -op decode -qheads 3 -kvheads 2", "-kvheads"},
		{"bench -op decode -kernel fast", "-kernel"},
		{"bench -op decode -time -1s", "-time"},
		{"bench -op decode -seqlen 16777216 -dim 65536", "-seqlen"},
		{"bench -op decode -seqlen 1 -page 65536 -batch 1048576 -qheads 65536 -dim 65536", "-batch"},
		{"bench -op decode -cold 1048576", "-cold"},
		{"bench -op append -queries 65537", "-queries"},
		{"bench -op append -queries 65536 -kvheads 65536 -dim 65536", "-queries"},
		{"bench -op append -cold 1048576", "-cold"},
		{"bench -op append -page 8", "-page"},
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
