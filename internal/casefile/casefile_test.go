package casefile_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-091431b3/attention/internal/casefile"
)

// small returns a case of two sequences with every kind of array.
func small() *casefile.Case {
	seed := "18446744073709551615"
	h := casefile.Header{
		Name: "small", Note: "not ASCII: é 𝛿 <&>",
		Attrs: casefile.Attrs{
			Hq: 2, Hkv: 1, Dk: 1, Dv: 2, Scale: .5, DropoutP: .25, DropoutSeed: &seed,
			Seqs: []casefile.Seq{{Q: 1, KV: 2, Left: -1, Right: -1, Causal: true, Offset: 1}, {Q: 2, KV: 1, Left: 0, Right: -1}},
			CuQ:  []int{0, 1, 3}, CuKV: []int{0, 2, 3}, BiasHeads: 2, MaskHeads: 1,
		},
		Checks: casefile.Checks{F32NaiveErrUnits: map[string]float64{"O": 10}},
	}
	count := func(n int) []float32 {
		x := make([]float32, n)
		for i := range x {
			x[i] = float32(i)
		}
		return x
	}
	in, out, magnitude := casefile.Input, casefile.Output, casefile.Magnitude
	return casefile.New(h,
		casefile.NewArray("Q", in, []int{3, 2, 1}, count(6)),
		casefile.NewArray("K", in, []int{3, 1, 1}, count(3)),
		casefile.NewArray("V", in, []int{3, 1, 2}, count(6)),
		casefile.NewArray("dO", in, []int{3, 2, 2}, count(12)),
		casefile.NewArray("dLSE", in, []int{3, 2}, count(6)),
		casefile.NewArray("bias", in, []int{8}, count(8)),
		casefile.NewArray("mask", in, []int{4}, []bool{true, false, false, true}),
		casefile.NewArray("dropout_keep", in, []int{8}, make([]bool, 8)),
		casefile.NewArray("dropout_rates", in, []int{3}, []float32{0, .5, .25}),
		casefile.NewArray("sinks", in, []int{2}, count(2)),
		casefile.NewArray("alibi_slopes", in, []int{2}, count(2)),
		casefile.NewArray("O", out, []int{3, 2, 2}, []float64{1, 2, 3, math.Inf(-1), math.NaN(), 0, 7, 8, 9, 10, 11, 12}),
		casefile.NewArray("O", magnitude, []int{3, 2, 2}, []float32{1, 2, 3, 0, 1, 0, 7, 8, 9, 10, 11, 12}),
		casefile.NewArray("other", in, nil, []int64{-5}),
	)
}

// encode returns c as a file.
func encode(t testing.TB, c *casefile.Case) []byte {
	var buf bytes.Buffer
	require.NoError(t, c.Write(&buf))
	return buf.Bytes()
}

func TestWriteRead(t *testing.T) {
	want := small()
	file := encode(t, want)
	line, _, _ := bytes.Cut(file, []byte("\n"))
	assert.Zero(t, (len(line)+1)%64)
	assert.Zero(t, len(file)%64)

	got, err := casefile.Read(bytes.NewReader(file))
	require.NoError(t, err)
	assert.Equal(t, want.Note, got.Note)
	assert.Equal(t, want.Attrs, got.Attrs)
	assert.Equal(t, want.Checks, got.Checks)
	assert.Equal(t, []string{"O"}, got.Outputs())
	for _, e := range got.Arrays {
		assert.Zero(t, e.Offset%64)
		assert.Equal(t, want.Array(e.Name, e.Role).Data, got.Array(e.Name, e.Role).Data, e.Name)
	}
	assert.Nil(t, got.Array("Q", casefile.Output))
	assert.Equal(t, file, encode(t, got))

	path := filepath.Join(t.TempDir(), "small.case")
	require.NoError(t, want.WriteFile(path))
	again, err := casefile.ReadFile(path)
	require.NoError(t, err)
	assert.Equal(t, got, again)
	_, err = casefile.ReadFile(path + ".not")
	assert.Error(t, err)
}

func TestDecoding(t *testing.T) {
	half := casefile.Array{Name: "h", DType: casefile.F16, Data: []byte{
		0x00, 0x3c, 0x01, 0xc0, 0xff, 0x7b, 0x01, 0x00, 0xff, 0x83, 0x00, 0x00, 0x00, 0x7c, 0x00, 0xfc, 0x00, 0x04,
	}}
	x, err := half.Float64s()
	require.NoError(t, err)
	assert.Equal(t, []float64{
		1, -2 - 1.0/512, 65504, 0x1p-24, -0x3ffp-24, 0, math.Inf(1), math.Inf(-1), 0x1p-14,
	}, x)
	assert.Equal(t, 9, half.Len())
	nan := casefile.Array{DType: casefile.F16, Data: []byte{0x01, 0x7e, 0x00, 0x80}}
	y, err := nan.Float32s()
	require.NoError(t, err)
	assert.True(t, math.IsNaN(float64(y[0])))
	assert.Equal(t, uint32(1)<<31, math.Float32bits(y[1]), "-0")

	for _, a := range []casefile.Array{
		casefile.NewArray("a", casefile.Input, []int{2}, []int64{-1, 2}),
		casefile.NewArray("a", casefile.Input, []int{2}, []int32{-1, 2}),
	} {
		n, err := a.Int64s()
		require.NoError(t, err)
		assert.Equal(t, []int64{-1, 2}, n)
		_, err = a.Float64s()
		assert.ErrorContains(t, err, "cannot be read as float64")
		_, err = a.Bools()
		assert.Error(t, err)
	}
	bytes := casefile.NewArray("a", casefile.Input, []int{1, 1}, []uint8{200})
	n, err := bytes.Int64s()
	require.NoError(t, err)
	assert.Equal(t, []int64{200}, n)
	wide := casefile.NewArray("a", casefile.Input, []int{1}, []float64{.1})
	_, err = wide.Float32s()
	assert.Error(t, err, "rounding is not decoding")
	_, err = wide.Int64s()
	assert.Error(t, err)
	assert.Panics(t, func() { casefile.NewArray("a", casefile.Input, []int{2}, []bool{true}) })
}

// raw returns a file with the header line given as JSON, and data.
func raw(header string, data []byte) []byte {
	n := (64 - (len(header)+1)%64) % 64
	return append([]byte(header+strings.Repeat(" ", n)+"\n"), data...)
}

// entries returns a header with the arrays given as JSON.
func entries(arrays ...string) string {
	return `{"format": "attn-oracle-1", "unknown": [1], "arrays": [` + strings.Join(arrays, ",") + `]}`
}

// entry returns an array as JSON.
func entry(name, dtype, shape string, offset, nbytes int64) string {
	return fmt.Sprintf(`{"name": %q, "role": "input", "dtype": %q, "shape": %s, "offset": %d, "nbytes": %d, "unknown": {}}`,
		name, dtype, shape, offset, nbytes)
}

func TestReadRejects(t *testing.T) {
	data := make([]byte, 128)
	ok := entry("a", "f32", "[4]", 0, 16)
	_, err := casefile.Read(bytes.NewReader(raw(entries(ok), data[:64])))
	require.NoError(t, err)
	for _, c := range []struct {
		file []byte
		says string
	}{
		{nil, "does not end"},
		{[]byte(`{"format"`), "does not end"},
		{bytes.Repeat([]byte(" "), 2<<20), "longer than"},
		{append(bytes.Repeat([]byte(" "), 2<<20), '\n'), "longer than"},
		{[]byte("{}\n"), "not a multiple of 64"},
		{raw("{", nil), "header"},
		{raw("{} {}", nil), "header"},
		{raw(`{"note": "é"}`, nil), "non-ASCII"},
		{raw(`{"format": "other"}`, nil), `format is "other"`},
		{raw(`{"attrs": {"hq": 1.5}}`, nil), "hq"},
		{raw(`{"attrs": {"scale": 1e999}}`, nil), "scale"},
		{raw(entries(entry("", "f32", "[4]", 0, 16)), data), "name is empty"},
		{raw(entries(strings.Replace(ok, "input", "in", 1)), data), "unknown role"},
		{raw(entries(entry("a", "f8", "[4]", 0, 16)), data), `unknown dtype "f8"`},
		{raw(entries(entry("a", "f32", "[-4]", 0, 16)), data), "negative size"},
		{raw(entries(entry("a", "f32", "[-2, -2]", 0, 16)), data), "negative size"},
		{raw(entries(entry("a", "f32", "[2147483647, 2147483647, 2147483647, 2]", 0, 0)), data), "too large"},
		{raw(entries(entry("a", "f64", "[0, 2147483647, 2147483647, 2147483647]", 0, 0)), data), "too large"},
		{raw(entries(entry("a", "f32", "[9223372036854775808]", 0, 0)), data), "shape"},
		{raw(entries(entry("a", "f32", "[4]", 0, 15)), data), "nbytes is 15"},
		{raw(entries(entry("a", "f32", "[4]", 0, -16)), data), "nbytes is -16"},
		{raw(entries(entry("a", "f32", "[4]", 4, 16)), data), "offset 4 is not a multiple"},
		{raw(entries(entry("a", "f32", "[4]", -64, 16)), data), "offset -64"},
		{raw(entries(entry("a", "f32", "[4]", 128, 16)), data), "beyond the 128 bytes"},
		{raw(entries(entry("a", "f32", "[0]", 192, 0)), data), "beyond the 128 bytes"},
		{raw(entries(entry("a", "f32", "[100000000]", 0, 400000000)), data), "beyond the 128 bytes"},
		{raw(entries(entry("a", "f32", "[4]", math.MaxInt64-63, 16)), data), "beyond the 128 bytes"},
		{raw(entries(ok, ok), data), `two input arrays "a"`},
		{raw(entries(ok, entry("b", "f32", "[4]", 0, 16)), data), "before the end"},
		{raw(entries(ok), data), "follow the last array"},
		{raw(entries(entry("a", "bool", "[2]", 0, 2)), []byte{1, 2}), "element 1 is 2"},
	} {
		_, err := casefile.Read(bytes.NewReader(c.file))
		assert.ErrorContains(t, err, c.says)
	}
	broken := io.MultiReader(bytes.NewReader(raw(entries(), nil)), failing{})
	_, err = casefile.Read(broken)
	assert.ErrorIs(t, err, io.ErrClosedPipe)
	_, err = casefile.Read(failing{})
	assert.ErrorIs(t, err, io.ErrClosedPipe)
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, io.ErrClosedPipe }

func TestProblem(t *testing.T) {
	p, err := small().Problem()
	require.NoError(t, err)
	assert.Equal(t, uint64(math.MaxUint64), *p.Seed)
	assert.True(t, p.Dropout())
	assert.False(t, p.GivenKeep())
	assert.Equal(t, []float32{0, 1, 2, 3}, p.BiasOf(0))
	assert.Equal(t, []float32{4, 5, 6, 7}, p.BiasOf(1))
	assert.Equal(t, []bool{false, true}, p.MaskOf(1))
	assert.Len(t, p.KeepOf(1), 4)
	r := p.Ref()
	require.NoError(t, r.Check())
	assert.True(t, r.Masks[0](0, 1, 0, 0))
	assert.False(t, r.Masks[0](0, 1, 0, 1), "hidden by the mask array")
	assert.False(t, r.Masks[1](1, 0, 1, 0), "hidden by the window")

	p.Seed = nil
	p.Keep[5] = true
	assert.True(t, p.GivenKeep())
	assert.True(t, p.Ref().Dropout.Keep(1, 0, 1, 0))
	assert.False(t, p.Ref().Dropout.Keep(1, 1, 1, 0))
}

func TestProblemRejects(t *testing.T) {
	for _, c := range []struct {
		spoil func(*casefile.Case)
		says  string
	}{
		{func(c *casefile.Case) { c.Attrs.Hq = 0 }, "hq is 0"},
		{func(c *casefile.Case) { c.Attrs.Dk = 1 << 30 }, "dk is"},
		{func(c *casefile.Case) { c.Attrs.Hkv = 3 }, "does not divide"},
		{func(c *casefile.Case) { c.Attrs.Softcap = -1 }, "softcap"},
		{func(c *casefile.Case) { c.Attrs.DropoutP = 1 }, "dropout_p"},
		{func(c *casefile.Case) { c.Attrs.BiasHeads = 3 }, "bias_heads"},
		{func(c *casefile.Case) { c.Attrs.MaskHeads = -1 }, "mask_heads"},
		{func(c *casefile.Case) { c.Attrs.CuQ = c.Attrs.CuQ[:2] }, "cu_q has 2 entries"},
		{func(c *casefile.Case) { c.Attrs.CuKV[0] = -1 }, "start at 0"},
		{func(c *casefile.Case) { c.Attrs.CuKV[1]++ }, "do not agree"},
		{func(c *casefile.Case) { c.Attrs.Seqs[1].Q = -1 }, "outside 0"},
		{func(c *casefile.Case) { c.Attrs.Seqs[1].Offset = math.MinInt }, "offset"},
		{func(c *casefile.Case) { c.Attrs.Seqs[1].Left = math.MaxInt }, "left"},
		{func(c *casefile.Case) {
			many := math.MaxInt / 8
			for b := range 9 {
				c.Attrs.Seqs = append(c.Attrs.Seqs[:b:b], casefile.Seq{Q: many})
			}
			c.Attrs.CuQ, c.Attrs.CuKV = make([]int, 10), make([]int, 10)
			for b := range 9 {
				c.Attrs.CuQ[b+1] = c.Attrs.CuQ[b] + many
			}
		}, "sum of lengths"},
		{func(c *casefile.Case) { *c.Attrs.DropoutSeed = "-1" }, "dropout_seed"},
		{func(c *casefile.Case) { c.Attrs.Dv = 1 }, `input "V" has shape [3 1 2], but attrs say [3 1 1]`},
		{func(c *casefile.Case) { c.Attrs.BiasHeads = 1 }, `input "bias"`},
		{func(c *casefile.Case) { c.Attrs.MaskHeads = 2 }, `input "mask"`},
		{func(c *casefile.Case) { c.Array("K", casefile.Input).Name = "k" }, `input "K" is missing`},
		{func(c *casefile.Case) { c.Array("Q", casefile.Input).DType = casefile.I32 }, "cannot be read as float32"},
		{func(c *casefile.Case) { c.Array("mask", casefile.Input).DType = casefile.U8 }, "cannot be read as bool"},
		{func(c *casefile.Case) { c.Array("O", casefile.Output).Shape = []int{12} }, `output "O"`},
		{func(c *casefile.Case) { c.Array("O", casefile.Magnitude).Shape = []int{12} }, `magnitude "O"`},
		{func(c *casefile.Case) {
			c.Array("dropout_rates", casefile.Input).Data[7] = 0x3f
			c.Array("dropout_rates", casefile.Input).Data[6] = 0x80
		}, "dropout_rates: entry 1 is 1"},
		{func(c *casefile.Case) {
			c.Attrs.DropoutSeed = nil
			c.Array("dropout_keep", casefile.Input).Name = "keep"
		}, "neither dropout_seed"},
		{func(c *casefile.Case) {
			c.Attrs.Seqs = []casefile.Seq{{Q: math.MaxInt / 8, KV: math.MaxInt / 8}}
			c.Attrs.CuQ, c.Attrs.CuKV = []int{0, math.MaxInt / 8}, []int{0, math.MaxInt / 8}
		}, `input "Q"`},
	} {
		s := small()
		c.spoil(s)
		_, err := s.Problem()
		assert.ErrorContains(t, err, c.says)
	}
}

func TestCompare(t *testing.T) {
	c := small()
	want := []float64{1, 2, 3, math.Inf(-1), math.NaN(), 0, 7, 8, 9, 10, 11, 12}
	with := func(i int, x float64) []float64 {
		got := append([]float64(nil), want...)
		got[i] = x
		return got
	}
	for _, x := range []struct {
		got   []float64
		worst float64
	}{
		{want, 0},
		{with(1, 2+40*2*0x1p-24), 40},
		{with(0, 1-90*0x1p-24), 90},
		{with(3, -1e30), math.Inf(1)},
		{with(4, 5), math.Inf(1)},
		{with(5, 1e-300), math.Inf(1)},
		{with(6, math.NaN()), math.Inf(1)},
		{with(6, math.Inf(1)), math.Inf(1)},
	} {
		r, err := casefile.Compare(c, "O", x.got)
		require.NoError(t, err)
		assert.Equal(t, 80.0, r.Limit)
		assert.InDelta(t, x.worst, r.Worst, 1e-6)
		assert.Equal(t, x.worst <= 80, r.OK, r)
	}
	r, err := casefile.CompareUnit(c, "O", with(1, 2.25), casefile.UnitBFloat16)
	require.NoError(t, err)
	assert.InDelta(t, 32, r.Worst, 1e-6)
	assert.Equal(t, "O: ok: worst error 32, limit 80 (element 1: got 2.25, want 2)", r.String())

	c.ToleranceAbs = .5
	r, err = casefile.Compare(c, "O", with(1, 2.25))
	require.NoError(t, err)
	assert.Equal(t, .5, r.Worst)
	assert.True(t, r.OK)
	r, err = casefile.Compare(c, "O", with(1, 2.75))
	require.NoError(t, err)
	assert.False(t, r.OK)
	assert.Contains(t, r.String(), "FAIL")

	_, err = casefile.Compare(c, "O", want[1:])
	assert.ErrorContains(t, err, "has 12 elements, not 11")
	_, err = casefile.Compare(c, "dQ", want)
	assert.ErrorContains(t, err, "no output")
	c = small()
	c.Array("O", casefile.Magnitude).Name = "M"
	_, err = casefile.Compare(c, "O", want)
	assert.ErrorContains(t, err, "neither a magnitude nor tolerance_abs")
}

// TestCompareUnderflow: a value below what float32 holds may be 0.
func TestCompareUnderflow(t *testing.T) {
	c := casefile.New(casefile.Header{},
		casefile.NewArray("O", casefile.Output, []int{1}, []float64{1e-60}),
		casefile.NewArray("O", casefile.Magnitude, []int{1}, []float32{0}))
	for got, ok := range map[float32]bool{0: true, math.SmallestNonzeroFloat32: true, 1e-40: false} {
		r, err := casefile.Compare(c, "O", []float32{got})
		require.NoError(t, err)
		assert.Equal(t, ok, r.OK, r)
	}
}

// TestCompareSubnormal: below 2^-126 a float32 has fewer bits, and is given
// units of 2^-150; a float64 is not.
func TestCompareSubnormal(t *testing.T) {
	const unit, want = 0x1p-150, 0x1p-140
	c := casefile.New(casefile.Header{},
		casefile.NewArray("O", casefile.Output, []int{1}, []float64{want}),
		casefile.NewArray("O", casefile.Magnitude, []int{1}, []float64{want}))
	for units, ok := range map[float64]bool{2: true, 66: true, 67: false} {
		got := []float64{want + units*unit} // of which 2 are what rounding to a float32 may cost
		r, err := casefile.Compare(c, "O", got)
		require.NoError(t, err)
		assert.Equal(t, ok, r.OK, r)
		r, err = casefile.CompareUnit(c, "O", got, 0x1p-53)
		require.NoError(t, err)
		assert.Equal(t, units <= 2, r.OK, r)
	}
}

func TestWriteRejects(t *testing.T) {
	c := casefile.New(casefile.Header{Attrs: casefile.Attrs{Scale: math.NaN()}})
	assert.Error(t, c.Write(io.Discard))
	c = casefile.New(casefile.Header{Note: strings.Repeat("x", 1<<20)})
	assert.ErrorContains(t, c.Write(io.Discard), "longer than")
	c = casefile.New(casefile.Header{}, casefile.Array{Name: "a", Role: "no"})
	assert.ErrorContains(t, c.Write(io.Discard), "unknown role")
}

func FuzzRead(f *testing.F) {
	file := encode(f, small())
	f.Add(file)
	f.Add(file[:len(file)-1])
	f.Add(raw(entries(), nil))
	f.Add(raw(entries(entry("a", "f64", "[4294967296, 4294967296]", 0, 0)), nil))
	f.Add(raw(entries(entry("a", "f16", "[]", 64, 2)), make([]byte, 66)))
	f.Fuzz(func(t *testing.T, file []byte) {
		c, err := casefile.Read(bytes.NewReader(file))
		if err != nil {
			return
		}
		total := 0
		for _, e := range c.Arrays {
			a := c.Array(e.Name, e.Role)
			total += len(a.Data)
			require.Equal(t, len(a.Data), a.Len()*a.DType.Size())
		}
		require.LessOrEqual(t, total, len(file))
		if p, err := c.Problem(); err == nil {
			require.NoError(t, p.Ref().Check())
			for b := range p.Batch() {
				p.BiasOf(b)
				p.MaskOf(b)
				p.KeepOf(b)
			}
		}
		for _, name := range c.Outputs() {
			casefile.Compare(c, name, make([]float32, c.Array(name, casefile.Output).Len()))
		}
		roundTrip(t, c)
	})
}

// roundTrip checks that c is the same after it is written and read.
func roundTrip(t *testing.T, c *casefile.Case) {
	var buf bytes.Buffer
	if c.Write(&buf) != nil {
		return // the header line grew too long
	}
	again, err := casefile.Read(&buf)
	require.NoError(t, err)
	want, err := json.Marshal(c.Attrs)
	require.NoError(t, err)
	got, err := json.Marshal(again.Attrs)
	require.NoError(t, err)
	require.Equal(t, string(want), string(got))
	for _, e := range c.Arrays {
		require.Equal(t, c.Array(e.Name, e.Role).Data, again.Array(e.Name, e.Role).Data)
	}
}
