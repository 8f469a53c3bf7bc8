package attention_test

import (
	"math"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-091431b3/attention"
)

// TestNewErrors: every bad field of a Config has an error that names it.
func TestNewErrors(t *testing.T) {
	good := func() attention.Config { return attention.Config{QueryHeads: 4, KVHeads: 2, HeadDim: 8, ValueDim: 6} }
	_, err := attention.New(good())
	require.NoError(t, err)
	big := math.MaxFloat64
	tests := []struct {
		name string
		says []string
		bad  func(c *attention.Config)
	}{
		{"no heads", []string{"QueryHeads", "0"}, func(c *attention.Config) { c.QueryHeads, c.KVHeads = 0, 0 }},
		{"negative heads", []string{"QueryHeads", "-4"}, func(c *attention.Config) { c.QueryHeads = -4 }},
		{"too many heads", []string{"QueryHeads", "1048577"}, func(c *attention.Config) { c.QueryHeads = 1<<20 + 1 }},
		{"negative kv heads", []string{"KVHeads", "-1"}, func(c *attention.Config) { c.KVHeads = -1 }},
		{"heads that do not divide", []string{"QueryHeads", "4", "KVHeads", "3"}, func(c *attention.Config) { c.KVHeads = 3 }},
		{"more kv heads than heads", []string{"QueryHeads", "4", "KVHeads", "8"}, func(c *attention.Config) { c.KVHeads = 8 }},
		{"no channels", []string{"HeadDim", "0"}, func(c *attention.Config) { c.HeadDim = 0 }},
		{"negative channels", []string{"HeadDim", "-8"}, func(c *attention.Config) { c.HeadDim = -8 }},
		{"negative channels of V", []string{"ValueDim", "-1"}, func(c *attention.Config) { c.ValueDim = -1 }},
		{"too many channels", []string{"ValueDim", "2097152"}, func(c *attention.Config) { c.ValueDim = 1 << 21 }},
		{"scale NaN", []string{"Scale", "NaN"}, func(c *attention.Config) { c.Scale = attention.Scale(math.NaN()) }},
		{"scale infinite", []string{"Scale", "Inf"}, func(c *attention.Config) { c.Scale = attention.Scale(math.Inf(-1)) }},
		{"softcap negative", []string{"Softcap", "-1"}, func(c *attention.Config) { c.Softcap = -1 }},
		{"softcap NaN", []string{"Softcap", "NaN"}, func(c *attention.Config) { c.Softcap = math.NaN() }},
		{"softcap infinite", []string{"Softcap", "Inf"}, func(c *attention.Config) { c.Softcap = math.Inf(1) }},
		{"softcap beyond float32", []string{"Softcap"}, func(c *attention.Config) { c.Softcap = big }},
		{"softcap below float32", []string{"Softcap"}, func(c *attention.Config) { c.Softcap = 1e-50 }},
		{"slopes too few", []string{"ALiBi", "3", "4"}, func(c *attention.Config) { c.ALiBi = make([]float32, 3) }},
		{"slope NaN", []string{"ALiBi", "2", "NaN"}, func(c *attention.Config) { c.ALiBi = []float32{0, 0, nan, 0} }},
		{"workers negative", []string{"Workers", "-1"}, func(c *attention.Config) { c.Workers = -1 }},
		{"workers without bound", []string{"Workers", "must be"}, func(c *attention.Config) { c.Workers = math.MaxInt/4 + 1 }},
		{"kernel unknown", []string{"Kernel", "sse9", "generic"}, func(c *attention.Config) { c.Kernel = "sse9" }},
	}
	for _, x := range tests {
		t.Run(x.name, func(t *testing.T) {
			c := good()
			x.bad(&c)
			_, err := attention.New(c)
			requireSays(t, err, x.says)
		})
	}
}

// requireSays holds that an error is ours and names what it must.
func requireSays(t *testing.T, err error, says []string) {
	t.Helper()
	require.Error(t, err)
	assert.Regexp(t, `^attention: [A-Za-z_]+`, err.Error())
	for _, s := range says {
		assert.Contains(t, err.Error(), s)
	}
}

// badCall is a call that is right until a test spoils it: two sequences of 3
// and 2 queries, 4 and 2 keys; 4 heads on 2, 8 and 6 channels.
type badCall struct {
	cfg   attention.Config
	in    attention.Inputs
	out   attention.Outputs
	batch attention.Batch
	q, o  []float32
	lse   []float64
}

func newBadCall() *badCall {
	c := &badCall{
		cfg:   attention.Config{QueryHeads: 4, KVHeads: 2, HeadDim: 8, ValueDim: 6},
		batch: attention.RaggedQK([]int{0, 3, 5}, []int{0, 4, 6}),
		q:     make([]float32, 5*4*8), o: make([]float32, 5*4*6), lse: make([]float64, 5*4),
	}
	c.in = attention.Inputs{
		Q: attention.Packed(c.q, 4, 8), K: attention.Packed(make([]float32, 6*2*8), 2, 8), V: attention.Packed(make([]float32, 6*2*6), 2, 6),
	}
	fill(c.o, 7)
	fill(c.lse, 7)
	c.out = attention.Outputs{O: attention.Packed(c.o, 4, 6), LSE: c.lse}
	return c
}

func (c *badCall) forward(t *testing.T) error {
	op, err := attention.New(c.cfg)
	require.NoError(t, err)
	return op.Forward(c.in, c.out, c.batch)
}

// mask gives sequence 1 (two queries, two keys) a mask.
func (c *badCall) mask(m attention.Mask) { c.batch.Masks = []attention.Mask{{}, m} }

// TestForwardErrors: everything that can be wrong with a call has an error that
// names it, and then nothing is written.
func TestForwardErrors(t *testing.T) {
	require.NoError(t, newBadCall().forward(t))
	const huge = math.MaxInt/2 + 1
	tests := []struct {
		name string
		says []string
		bad  func(c *badCall)
	}{
		{"lengths start late", []string{"cu_seqlens of Q", "entry 0", "1"}, func(c *badCall) { c.batch.CuQ = []int{1, 3, 5} }},
		{"lengths fall", []string{"cu_seqlens of Q", "entry 2", "2", "entry 1", "3"}, func(c *badCall) { c.batch.CuQ = []int{0, 3, 2} }},
		{"lengths negative", []string{"cu_seqlens of K", "entry 1", "-4"}, func(c *badCall) { c.batch.CuK = []int{0, -4, 6} }},
		{"lengths of K start late", []string{"cu_seqlens of K", "entry 0", "2"}, func(c *badCall) { c.batch.CuK = []int{2, 4, 6} }},
		{"lengths past the data of Q", []string{"Q", "160", "192"}, func(c *badCall) { c.batch.CuQ = []int{0, 3, 6}; c.out.O.Data = make([]float32, 1000) }},
		{"lengths past the data of O", []string{"O", "120", "144"}, func(c *badCall) { c.batch.CuQ = []int{0, 3, 6} }},
		{"lengths past the data of K", []string{"K", "96", "112"}, func(c *badCall) { c.batch.CuK = []int{0, 4, 7} }},
		{"lengths that differ in number", []string{"cu_seqlens", "3", "2"}, func(c *badCall) { c.batch.CuK = []int{0, 6} }},
		{"no lengths of Q", []string{"cu_seqlens"}, func(c *badCall) { c.batch.CuQ = nil }},
		{"a sequence too long", []string{"cu_seqlens of Q", "sequence 1"}, func(c *badCall) { c.batch.CuQ = []int{0, 3, 1<<30 + 3} }},
		{"lengths near the end of int", []string{"cu_seqlens of Q", "sequence 1"}, func(c *badCall) { c.batch.CuQ = []int{0, 3, math.MaxInt} }},
		{"offsets too few", []string{"Offsets", "1", "2"}, func(c *badCall) { c.batch.Offsets = []int{1} }},
		{"offset too large", []string{"Offsets", "entry 1"}, func(c *badCall) { c.batch.Offsets = []int{0, 1<<29 + 1} }},
		{"offset too small", []string{"Offsets", "entry 0"}, func(c *badCall) { c.batch.Offsets = []int{math.MinInt, 0} }},
		{"masks too many", []string{"Masks", "3", "2"}, func(c *badCall) { c.batch.Masks = make([]attention.Mask, 3) }},
		{"ids too few", []string{"IDs", "0", "2"}, func(c *badCall) { c.batch.IDs = []uint64{} }},
		{"alignment unknown", []string{"Align", "2"}, func(c *badCall) { c.batch.Align = 2 }},

		{"token stride negative", []string{"Q", "TokenStride", "-32"}, func(c *badCall) { c.in.Q.TokenStride = -32 }},
		{"head stride negative", []string{"K", "HeadStride", "-8"}, func(c *badCall) { c.in.K.HeadStride = -8 }},
		{"sequence stride negative", []string{"V", "SequenceStride", "-1"}, func(c *badCall) { c.in.V.SequenceStride = -1 }},
		{"token stride overflows", []string{"Q", "overflows"}, func(c *badCall) { c.in.Q.TokenStride = huge }},
		{"head stride overflows", []string{"V", "overflows"}, func(c *badCall) { c.in.V.HeadStride = math.MaxInt }},
		{"sequence stride overflows", []string{"K", "overflows"}, func(c *badCall) { c.in.K.SequenceStride = math.MaxInt }},
		{"strides of O overflow", []string{"O", "overflows"}, func(c *badCall) { c.out.O.TokenStride = huge }},
		{"Q too short", []string{"Q", "159", "160"}, func(c *badCall) { c.in.Q.Data = c.in.Q.Data[:159] }},
		{"Q missing", []string{"Q", "0"}, func(c *badCall) { c.in.Q = attention.Tensor{} }},
		{"K too short", []string{"K", "95", "96"}, func(c *badCall) { c.in.K.Data = c.in.K.Data[:95] }},
		{"K of another width", []string{"K", "96", "118"}, func(c *badCall) { c.in.K = attention.Packed(c.in.K.Data, 2, 10) }},
		{"V too short", []string{"V", "71", "72"}, func(c *badCall) { c.in.V.Data = c.in.V.Data[:71] }},
		{"V missing", []string{"V"}, func(c *badCall) { c.in.V.Data = nil }},
		{"O too short", []string{"O", "119", "120"}, func(c *badCall) { c.out.O.Data = c.out.O.Data[:119] }},
		{"O missing", []string{"O"}, func(c *badCall) { c.out.O = attention.Tensor{} }},
		{"LSE too short", []string{"LSE", "19", "20"}, func(c *badCall) { c.out.LSE = c.lse[:19] }},
		{"LSE empty", []string{"LSE", "0", "20"}, func(c *badCall) { c.out.LSE = []float64{} }},
		{"padded Q too short", []string{"Q", "sequence 1"}, func(c *badCall) { c.in.Q = attention.BSHD(c.q, 4, 4, 8) }},

		{"O is Q", []string{"O", "overlaps", "Q"}, func(c *badCall) { c.out.O.Data = c.q }},
		{"O overlaps the end of K", []string{"O", "overlaps", "K"}, func(c *badCall) {
			all := make([]float32, 96+120)
			c.in.K.Data, c.out.O.Data = all[:96], all[95:]
		}},
		{"O overlaps V", []string{"O", "overlaps", "V"}, func(c *badCall) { c.in.V.Data = c.out.O.Data[48:] }},
		{"O overlaps sinks", []string{"O", "overlaps", "Sinks"}, func(c *badCall) { c.in.Sinks = c.o[100:104] }},
		{"O overlaps a bias", []string{"O", "overlaps", "Bias"}, func(c *badCall) {
			c.in.Bias = []attention.Bias{{}, {Data: c.o[4:8], QueryStride: 2}}
		}},
		{"O overlaps rates", []string{"O", "overlaps", "Rates"}, func(c *badCall) {
			fill(c.o, 0.5)
			c.in.Dropout = &attention.Dropout{Rates: c.o[:5]}
		}},
		{"O overlaps Q in a fused buffer", []string{"O", "overlaps", "Q"}, func(c *badCall) {
			all := make([]float32, 5*56)
			c.in.Q = attention.Tensor{Data: all, TokenStride: 56, HeadStride: 8}
			c.out.O = attention.Tensor{Data: all[31:], TokenStride: 56, HeadStride: 6}
		}},
		{"rows of O overlap", []string{"O", "stride"}, func(c *badCall) { c.out.O.HeadStride = 5 }},
		{"tokens of O overlap", []string{"O", "stride"}, func(c *badCall) { c.out.O.TokenStride = 20 }},
		{"O broadcast over tokens", []string{"O", "stride"}, func(c *badCall) { c.out.O.TokenStride = 0 }},
		{"O broadcast over heads", []string{"O", "stride"}, func(c *badCall) { c.out.O.HeadStride = 0 }},
		{"sequences of O overlap", []string{"O", "SequenceStride"}, func(c *badCall) { c.out.O.SequenceStride = 48 }},

		{"bias too few", []string{"Bias", "1", "2"}, func(c *badCall) { c.in.Bias = make([]attention.Bias, 1) }},
		{"bias too short", []string{"Bias", "entry 1", "3", "4"}, func(c *badCall) {
			c.in.Bias = []attention.Bias{{}, {Data: make([]float32, 3), QueryStride: 2}}
		}},
		{"bias of all heads too short", []string{"Bias", "entry 0", "47", "48"}, func(c *badCall) {
			c.in.Bias = []attention.Bias{{Data: make([]float32, 47), HeadStride: 12, QueryStride: 4}, {}}
		}},
		{"bias stride negative", []string{"Bias", "entry 0", "-1"}, func(c *badCall) {
			c.in.Bias = []attention.Bias{{Data: make([]float32, 12), QueryStride: -1}, {}}
		}},
		{"bias stride overflows", []string{"Bias", "entry 0"}, func(c *badCall) {
			c.in.Bias = []attention.Bias{{Data: make([]float32, 12), QueryStride: math.MaxInt}, {}}
		}},
		{"sinks too few", []string{"Sinks", "2", "4"}, func(c *badCall) { c.in.Sinks = make([]float32, 2) }},
		{"rate negative", []string{"Dropout", "Rate", "-0.1"}, func(c *badCall) { c.in.Dropout = &attention.Dropout{Rate: -0.1} }},
		{"rate 1", []string{"Dropout", "Rate", "1"}, func(c *badCall) { c.in.Dropout = &attention.Dropout{Rate: 1} }},
		{"rate NaN", []string{"Dropout", "Rate", "NaN"}, func(c *badCall) { c.in.Dropout = &attention.Dropout{Rate: math.NaN()} }},
		{"rates too few", []string{"Dropout", "Rates", "4", "5"}, func(c *badCall) { c.in.Dropout = &attention.Dropout{Rates: make([]float32, 4)} }},
		{"a rate of 1", []string{"Dropout", "Rates", "entry 3", "1"}, func(c *badCall) { c.in.Dropout = &attention.Dropout{Rates: []float32{0, 0, 0, 1, 0}} }},
		{"a rate NaN", []string{"Dropout", "Rates", "entry 0"}, func(c *badCall) { c.in.Dropout = &attention.Dropout{Rates: []float32{nan, 0, 0, 0, 0}} }},

		{"window", []string{"Window", "-2"}, func(c *badCall) { c.mask(attention.Window(-2, 0)) }},
		{"window of the operator", []string{"Window", "-7"}, func(c *badCall) { c.cfg.Mask = attention.Window(0, -7) }},
		{"prefix", []string{"PrefixLM", "-1"}, func(c *badCall) { c.mask(attention.PrefixLM(-1)) }},
		{"sink tokens", []string{"SinkTokens", "-3"}, func(c *badCall) { c.mask(attention.SinkTokens(-3, 0, 0)) }},
		{"sink tokens' window", []string{"SinkTokens", "-5"}, func(c *badCall) { c.mask(attention.SinkTokens(1, -5, 0)) }},
		{"ranges that differ in number", []string{"KeyRanges", "2", "1"}, func(c *badCall) { c.mask(attention.KeyRanges([]int{0, 0}, []int{1})) }},
		{"ranges too few", []string{"KeyRanges", "1", "2", "sequence 1"}, func(c *badCall) { c.mask(attention.KeyRanges([]int{0}, []int{1})) }},
		{"documents too few", []string{"Documents", "1", "2"}, func(c *badCall) { c.mask(attention.Documents([]int32{0})) }},
		{"documents, scattered, too many", []string{"Documents", "3", "2"}, func(c *badCall) { c.mask(attention.Documents([]int32{0, 1, 0})) }},
		{"queries before the documents", []string{"Documents", "-1"}, func(c *badCall) {
			c.batch.Offsets = []int{0, -1}
			c.mask(attention.Documents([]int32{0, 0}))
		}},
		{"queries behind the documents", []string{"Documents", "positions 1 to 2"}, func(c *badCall) {
			c.batch.Offsets = []int{0, 1}
			c.mask(attention.Documents([]int32{0, 0}))
		}},
		{"bool too short", []string{"Bool", "3", "4"}, func(c *badCall) { c.mask(attention.Bool(make([]bool, 3), 0, 2)) }},
		{"bool of all heads too short", []string{"Bool", "15", "16"}, func(c *badCall) { c.mask(attention.Bool(make([]bool, 15), 4, 2)) }},
		{"bool stride", []string{"Bool", "-4"}, func(c *badCall) { c.mask(attention.Bool(make([]bool, 16), -4, 2)) }},
		{"bool overflows", []string{"Bool", "overflows"}, func(c *badCall) { c.mask(attention.Bool(make([]bool, 16), math.MaxInt, 2)) }},
		{"tree too small", []string{"Tree", "1", "2"}, func(c *badCall) { c.mask(attention.Tree([]int{-1})) }},
		{"tree that grows backwards", []string{"Tree", "token 0", "1"}, func(c *badCall) { c.mask(attention.Tree([]int{1, -1})) }},
		{"tree below the prefix", []string{"Tree", "token 1", "-2"}, func(c *badCall) { c.mask(attention.Tree([]int{-1, -2})) }},
		{"tree with more tokens than keys", []string{"Tree", "3", "2"}, func(c *badCall) {
			c.batch = attention.RaggedQK([]int{0, 0, 3}, []int{0, 0, 2})
			c.mask(attention.Tree([]int{-1, 0, 1}))
		}},
		{"blocks without size", []string{"BlockSparse", "0"}, func(c *badCall) { c.mask(attention.BlockSparse(0, 4, nil)) }},
		{"block negative", []string{"BlockSparse", "-1"}, func(c *badCall) { c.mask(attention.BlockSparse(1, 1, []attention.Block{{Q: 0, K: -1}})) }},
		{"function nil", []string{"Func", "nil"}, func(c *badCall) { c.mask(attention.Func(nil, nil)) }},
		{"one of two masks", []string{"PrefixLM"}, func(c *badCall) { c.mask(attention.And(attention.Causal(), attention.PrefixLM(-1))) }},
	}
	for _, x := range tests {
		t.Run(x.name, func(t *testing.T) {
			c := newBadCall()
			x.bad(c)
			before := append([]float32(nil), c.out.O.Data...)
			err := c.forward(t)
			requireSays(t, err, x.says)
			assert.Equal(t, before, append([]float32(nil), c.out.O.Data...), "O is written")
			for _, l := range c.lse {
				assert.Equal(t, 7.0, l, "LSE is written")
			}
			op, err := attention.New(c.cfg)
			require.NoError(t, err)
			if _, err := op.Scratch(c.batch); err != nil {
				requireSays(t, err, x.says)
			}
		})
	}
}

// TestOverlapOfLSE: LSE is float64, so it takes some care to overlap it.
func TestOverlapOfLSE(t *testing.T) {
	c := newBadCall()
	floats := asFloat32(make([]float64, 200))
	c.out.O.Data, c.out.LSE = floats[:120], asFloat64(floats[116:156])
	requireSays(t, c.forward(t), []string{"O", "overlaps", "LSE"})
	c.out.O.Data = c.o
	c.in.K.Data = floats[20:116]
	c.out.LSE = asFloat64(floats[114:154])
	requireSays(t, c.forward(t), []string{"LSE", "overlaps", "K"})
	c.out.LSE = asFloat64(floats[116:156])
	require.NoError(t, c.forward(t))
}

// TestWhatIsAllowed are calls that look wrong and are not.
func TestWhatIsAllowed(t *testing.T) {
	for name, change := range map[string]func(c *badCall){
		"K and V are one":          func(c *badCall) { c.in.V.Data = c.in.K.Data },
		"Q and K overlap":          func(c *badCall) { c.in.K.Data = c.q[10:] },
		"one key for all":          func(c *badCall) { c.in.K.TokenStride = 0 },
		"one query head for all":   func(c *badCall) { c.in.Q.HeadStride = 0 },
		"no LSE":                   func(c *badCall) { c.out.LSE = nil },
		"LSE with room to spare":   func(c *badCall) { c.out.LSE = make([]float64, 100) },
		"an infinite sink":         func(c *badCall) { c.in.Sinks = []float32{float32(math.Inf(-1)), 0, 0, 0} },
		"a window beyond int":      func(c *badCall) { c.mask(attention.Window(math.MaxInt, math.MaxInt)) },
		"a prefix beyond the keys": func(c *badCall) { c.mask(attention.PrefixLM(math.MaxInt)) },
		"blocks beyond the keys": func(c *badCall) {
			c.mask(attention.BlockSparse(math.MaxInt, math.MaxInt, []attention.Block{{Q: 5, K: 5}}))
		},
		"ranges beyond the keys":    func(c *badCall) { c.mask(attention.KeyRanges([]int{math.MinInt, 0}, []int{math.MaxInt, -3})) },
		"the farthest offset":       func(c *badCall) { c.batch.Offsets = []int{1 << 29, -1 << 29} },
		"a bias for nobody":         func(c *badCall) { c.in.Bias = []attention.Bias{{}, {}} },
		"sequences without queries": func(c *badCall) { c.batch.CuQ = []int{0, 0, 0}; c.in.Q.Data, c.out.O.Data = nil, nil },
		"sequences without keys":    func(c *badCall) { c.batch.CuK = []int{0, 0, 0}; c.in.K.Data, c.in.V.Data = nil, nil },
		"sinks tokens of everything": func(c *badCall) {
			c.mask(attention.SinkTokens(math.MaxInt, math.MaxInt, attention.Unbounded))
		},
		"heads of O behind each other": func(c *badCall) { c.out.O.TokenStride, c.out.O.HeadStride = 6, 30 },
		"O between the tokens of K": func(c *badCall) {
			all := make([]float32, 6*(2*8+4*6))
			c.in.K = attention.Tensor{Data: all, TokenStride: 40, HeadStride: 8}
			c.out.O = attention.Tensor{Data: all[16:], TokenStride: 40, HeadStride: 6}
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newBadCall()
			change(c)
			require.NoError(t, c.forward(t))
		})
	}
}

func asFloat32(x []float64) []float32 {
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(x))), 2*len(x))
}

func asFloat64(x []float32) []float64 {
	return unsafe.Slice((*float64)(unsafe.Pointer(unsafe.SliceData(x))), len(x)/2)
}

// TestZeroOperator: an operator that New did not make says so.
func TestZeroOperator(t *testing.T) {
	var op attention.Operator
	c := newBadCall()
	requireSays(t, op.Forward(c.in, c.out, c.batch), []string{"Operator", "New"})
	requireSays(t, op.Backward(c.in, c.out, attention.Gradients{}, c.batch), []string{"Operator", "New"})
	_, err := op.Scratch(c.batch)
	requireSays(t, err, []string{"Operator", "New"})
}
