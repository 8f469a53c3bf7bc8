package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-091431b3/attention"
)

var model = flag.String("model", filepath.Join("..", "..", "..", "shared", "models", "stories260K.bin"),
	"llama2.c's checkpoint stories260K.bin, whose tests are skipped where it is not")

// small has odd sizes, three query heads on a key head and a classifier of its
// own; shared has none of these.
var (
	small  = []int32{36, 22, 2, 6, 2, -40, 150}
	shared = []int32{32, 20, 3, 4, 4, 50, 150}
)

// trained returns the trained checkpoint. It is left out of short tests.
func trained(t *testing.T) []byte {
	if testing.Short() {
		t.Skip("the trained model takes longer")
	}
	file, err := os.ReadFile(*model)
	if os.IsNotExist(err) {
		t.Skipf("there is no trained model: %v", err)
	}
	require.NoError(t, err)
	return restored(file)
}

// restored undoes what happened to one known copy of the file: each matrix, of
// rows x cols, was transposed five times over as if it were of cols x rows. Any
// other file is returned as it is.
func restored(file []byte) []byte {
	if sum := sha256.Sum256(file); hex.EncodeToString(sum[:]) != "9414d5a285453a7eab631713d171753232c978f6f97654211469aff8be93c8d6" {
		return file
	}
	const dim, kvDim, hidden, layers, vocab = 64, 32, 172, 5, 512
	file = slices.Clone(file)
	at := headerSize + 4*vocab*dim
	for _, m := range [...]struct{ rows, cols int }{
		{1, dim}, {dim, dim}, {kvDim, dim}, {kvDim, dim}, {dim, dim}, {1, dim}, {hidden, dim}, {dim, hidden}, {hidden, dim},
	} {
		for range layers {
			n := m.rows * m.cols
			for range 5 {
				old := slices.Clone(file[at : at+4*n])
				for i := range n - 1 {
					copy(file[at+4*i:at+4*i+4], old[i*m.cols%(n-1)*4:])
				}
			}
			at += 4 * n
		}
	}
	return file
}

// eachModel runs f on random and trained models.
func eachModel(t *testing.T, f func(t *testing.T, file []byte)) {
	t.Run("random", func(t *testing.T) { f(t, random(small...)) })
	t.Run("shared", func(t *testing.T) { f(t, random(shared...)) })
	t.Run("trained", func(t *testing.T) { f(t, trained(t)) })
}

func parse(t *testing.T, file []byte) *checkpoint {
	t.Helper()
	c, err := read(bytes.NewReader(file), int64(len(file)))
	require.NoError(t, err)
	return c
}

func decoderOf(t *testing.T, c *checkpoint, workers int) *decoder {
	t.Helper()
	d, err := newDecoder(c, c.context, workers)
	require.NoError(t, err)
	return d
}

func cacheOf(t *testing.T, c *checkpoint, tokens, pageKeys int) []*attention.CachedSequence {
	t.Helper()
	cache, err := c.newCache(tokens, pageKeys)
	require.NoError(t, err)
	return cache
}

// greedy continues a prompt.
func greedy(t *testing.T, c *checkpoint, prompt []int, o options) []int {
	t.Helper()
	g, err := newGenerator(c, prompt, o)
	require.NoError(t, err)
	require.NoError(t, g.generate(o.tokens, o.chunk))
	return g.text
}

// sample is a text of n tokens: some at random, and what the model adds.
func sample(t *testing.T, c *checkpoint, n int) []int {
	r := rand.New(rand.NewPCG(3, 4))
	prompt := []int{1}
	for range 20 {
		prompt = append(prompt, r.IntN(c.vocab))
	}
	return greedy(t, c, prompt, options{tokens: n - len(prompt), cache: true, workers: 1})
}

// logitsOf returns the bits of the logits of each token, computed chunk at once.
func logitsOf(t *testing.T, d *decoder, tokens []int, cache []*attention.CachedSequence, chunk int) [][]uint32 {
	t.Helper()
	var all [][]uint32
	for part := range slices.Chunk(tokens, chunk) {
		require.NoError(t, d.forward(part, cache))
		for i := range part {
			var row []uint32
			for _, v := range d.logits(i) {
				row = append(row, math.Float32bits(v))
			}
			all = append(all, row)
		}
	}
	return all
}

// same is assert.Equal without the printing of thousands of numbers.
func same(t *testing.T, want, got [][]uint32, format string, args ...any) {
	t.Helper()
	require.Len(t, got, len(want))
	for i := range want {
		if !slices.Equal(want[i], got[i]) {
			t.Errorf("the logits of token %d differ: %s", i, fmt.Sprintf(format, args...))
			return
		}
	}
}

// TestCacheKeepsTheBits compares the logits of every token of a text computed at
// once, without a cache, to those computed in other ways.
func TestCacheKeepsTheBits(t *testing.T) {
	eachModel(t, func(t *testing.T, file []byte) {
		c := parse(t, file)
		text := sample(t, c, 150)
		want := logitsOf(t, decoderOf(t, c, 1), text, nil, len(text))
		for _, workers := range []int{1, 3} {
			d := decoderOf(t, c, workers)
			for _, n := range []int{1, 2, 17, 64, 129, len(text)} {
				same(t, want[:n], logitsOf(t, d, text[:n], nil, n), "%d tokens without a cache, %d workers", n, workers)
			}
			for _, pageKeys := range []int{16, 48, 128} {
				for _, chunk := range []int{1, 3, 16, 17, 64, len(text)} {
					cache := cacheOf(t, c, len(text), pageKeys)
					same(t, want, logitsOf(t, d, text, cache, chunk), "chunks of %d, pages of %d, %d workers", chunk, pageKeys, workers)
				}
			}
		}
	})
}

// TestForksKeepTheBits lets two texts part in the middle of a page, and takes
// one of them back.
func TestForksKeepTheBits(t *testing.T) {
	eachModel(t, func(t *testing.T, file []byte) {
		c := parse(t, file)
		text := sample(t, c, 120)
		const parting = 55
		other := slices.Clone(text)
		slices.Reverse(other[parting:])
		for _, workers := range []int{1, 3} {
			d := decoderOf(t, c, workers)
			want, wantOther := logitsOf(t, d, text, nil, len(text)), logitsOf(t, d, other, nil, len(other))
			for _, pageKeys := range []int{16, 128} {
				cache := cacheOf(t, c, 3*len(text), pageKeys)
				logitsOf(t, d, text[:parting], cache, 9)
				var fork []*attention.CachedSequence
				for _, s := range cache {
					fork = append(fork, s.Fork())
				}
				for i := parting; i < len(text); i++ {
					same(t, want[i:i+1], logitsOf(t, d, text[i:i+1], cache, 1), "the first text at %d, pages of %d, %d workers", i, pageKeys, workers)
					same(t, wantOther[i:i+1], logitsOf(t, d, other[i:i+1], fork, 1), "its fork at %d, pages of %d, %d workers", i, pageKeys, workers)
				}
				for _, s := range cache {
					s.Free()
				}
				for _, s := range fork {
					s.Truncate(parting + 3)
					s.Truncate(parting)
				}
				same(t, want[parting:], logitsOf(t, d, text[parting:], fork, 7), "the fork cut back, pages of %d, %d workers", pageKeys, workers)
			}
		}
	})
}

// TestGreedyTokensAgree is the same for what the program prints.
func TestGreedyTokensAgree(t *testing.T) {
	eachModel(t, func(t *testing.T, file []byte) {
		c := parse(t, file)
		prompt := sample(t, c, 40)
		want := greedy(t, c, prompt, options{tokens: 60, workers: 1})
		assert.Len(t, want, 100)
		for _, workers := range []int{0, 1, 3} {
			for _, chunk := range []int{0, 1, 7, 16, 39, 64} {
				got := greedy(t, c, prompt, options{tokens: 60, cache: true, chunk: chunk, workers: workers})
				assert.Equal(t, want, got, "chunks of %d, %d workers", chunk, workers)
			}
		}
	})
}

// TestAgainstFloat64 holds the logits to a computation that shares no code.
func TestAgainstFloat64(t *testing.T) {
	eachModel(t, func(t *testing.T, file []byte) {
		c := parse(t, file)
		text := sample(t, c, 150)
		d, m := decoderOf(t, c, 1), newNaive(file)
		cache := cacheOf(t, c, len(text), 16)
		var worst, size float64
		for _, token := range text {
			require.NoError(t, d.forward([]int{token}, cache))
			got := d.logits(0)
			for i, want := range m.next(token) {
				worst = max(worst, math.Abs(float64(got[i])-want))
				size = max(size, math.Abs(want))
			}
		}
		t.Logf("logits up to %.1f differ by %.1e at most", size, worst)
		assert.Less(t, worst, 1e-4)
	})
}

// TestTrained says whether the model is one: "Once upon a time, there was a
// little girl" is how it begins by llama2.c's documentation, and as the likeliest
// tokens are all there is to tell it from a model that is sure of nonsense, the
// ids are compared, too.
func TestTrained(t *testing.T) {
	c := parse(t, trained(t))
	text := greedy(t, c, []int{1}, options{tokens: 256, cache: true})
	assert.Equal(t, []int{1, 403, 407, 261, 378, 432, 383, 286, 261, 376, 298, 315, 421}, text[:13])
	d := decoderOf(t, c, 0)
	require.NoError(t, d.forward(text, nil))
	var loss float64
	for i, next := range text[1:] {
		var sum float64
		logits := d.logits(i)
		for _, v := range logits {
			sum += math.Exp(float64(v - logits[next]))
		}
		loss += math.Log(sum) / 256
	}
	t.Logf("%.3f nats a token; by chance %.2f", loss, math.Log(float64(c.vocab)))
	assert.Less(t, loss, 0.5)
}

// write writes a checkpoint to a file.
func write(t *testing.T, file []byte) string {
	path := filepath.Join(t.TempDir(), "model.bin")
	require.NoError(t, os.WriteFile(path, file, 0o600))
	return path
}

// TestRun is the command from end to end.
func TestRun(t *testing.T) {
	o := options{model: write(t, random(small...)), prompt: "1, 7 39,0", tokens: 20, chunk: 3, cache: true}
	var out bytes.Buffer
	require.NoError(t, run(o, &out))
	lines := strings.Split(out.String(), "\n")
	assert.Contains(t, lines[0], "2 layers, 6 query and 2 key heads of 6 channels, attention kernel ")
	assert.True(t, strings.HasPrefix(lines[1], "1 7 39 0 "), lines[1])
	assert.Len(t, strings.Fields(lines[1]), 24)
	assert.Regexp(t, `^prefill: 4 tokens, \d+ tokens/s$`, lines[2])
	assert.Regexp(t, `^decode:  19 tokens, \d+ tokens/s$`, lines[3])
	o.cache, o.chunk = false, 0
	out.Reset()
	require.NoError(t, run(o, &out))
	assert.Equal(t, lines[1], strings.Split(out.String(), "\n")[1])
	o.tokens = 1
	require.NoError(t, run(o, &out))
}

func TestBadArgumentsGiveErrors(t *testing.T) {
	good := options{model: write(t, random(small...)), prompt: "1", tokens: 20, cache: true}
	for want, edit := range map[string]func(*options){
		"-model: a checkpoint must be given":  func(o *options) { o.model = "" },
		"nowhere.bin":                         func(o *options) { o.model = "nowhere.bin" },
		"-tokens: 0, must be at least 1":      func(o *options) { o.tokens = 0 },
		"more than the context of 150":        func(o *options) { o.tokens = 150 },
		"must be from 0 to 39":                func(o *options) { o.prompt = "1 40" },
		"token 2 is -1":                       func(o *options) { o.prompt = "1,2,-1" },
		`"one" is not a token id`:             func(o *options) { o.prompt = "one" },
		"-prompt: has no token":               func(o *options) { o.prompt = " , " },
		"after a prompt of 151 are more than": func(o *options) { o.prompt = strings.Repeat("1 ", 151) },
		"-chunk: -1, must not be negative":    func(o *options) { o.chunk = -1 },
		"-chunk: needs the cache":             func(o *options) { o.chunk, o.cache = 2, false },
		"Workers: -1, must be from 0":         func(o *options) { o.workers = -1 },
		"after a prompt of 1 are more than":   func(o *options) { o.tokens = math.MaxInt },
	} {
		o := good
		edit(&o)
		assert.ErrorContains(t, run(o, &bytes.Buffer{}), want)
	}
}

func TestDecoderRefusesBadTokens(t *testing.T) {
	c := parse(t, random(small...))
	d, err := newDecoder(c, 149, 1)
	require.NoError(t, err)
	cache := cacheOf(t, c, 140, 16)
	assert.ErrorContains(t, d.forward(nil, cache), "0 tokens at once, must be from 1 to 149")
	assert.ErrorContains(t, d.forward(make([]int, 150), nil), "150 tokens at once")
	assert.ErrorContains(t, d.forward([]int{1, 40}, cache), "token 1 is 40, must be from 0 to 39")
	require.NoError(t, d.forward(make([]int, 140), cache))
	assert.ErrorContains(t, d.forward([]int{-1}, cache), "token 140 is -1")
	assert.ErrorContains(t, d.forward(make([]int, 11), cache), "11 tokens after 140 are more than the context of 150")
	err = d.forward(make([]int, 10), cache)
	assert.ErrorIs(t, err, attention.ErrCacheFull)
	for _, s := range cache {
		assert.Equal(t, 140, s.Len(), "keys after an error")
	}
}

func TestCorruptFilesGiveErrors(t *testing.T) {
	file := random(small...)
	with := func(field int, n int32) []byte {
		f := slices.Clone(file)
		binary.LittleEndian.PutUint32(f[4*field:], uint32(n))
		return f
	}
	for _, x := range []struct {
		file []byte
		want string
	}{
		{nil, "has 0 bytes, the header alone has 28"},
		{file[:27], "has 27 bytes, the header alone has 28"},
		{file[:28], "has 28 bytes, a model of its header has "},
		{file[:len(file)-1], "a model of its header has "},
		{append(slices.Clone(file), 0, 0, 0, 0), "a model of its header has "},
		{with(0, magic), "version 0"},
		{with(0, 0), "dim: 0, must be from 1"},
		{with(0, 48), "a model of its header has "},
		{with(0, 38), "dim: 38, must be a multiple of twice n_heads, which is 6"},
		{with(1, -1), "hidden_dim: -1, must be from 1"},
		{with(1, 1<<18), "a model of its header has "},
		{with(2, math.MaxInt32), "n_layers: 2147483647, must be from 1"},
		{with(2, 1<<18), "a model of its header has "},
		{with(3, 0), "n_heads: 0, must be from 1"},
		{with(4, 4), "n_heads: 6, must be a multiple of n_kv_heads, which is 4"},
		{with(4, 12), "n_heads: 6, must be a multiple of n_kv_heads, which is 12"},
		{with(5, 0), "vocab_size: 0, must be from 1"},
		{with(5, math.MinInt32), "vocab_size: -2147483648, must be from 1"},
		{with(5, 40), "a model of its header has "},
		{with(6, -150), "seq_len: -150, must be from 1"},
		{with(9, 0x7fc00000), "token_embedding_table: weight 2 is NaN, must be finite"},
		{with(len(file)/4-1, -0x00800000), "wcls: weight 1439 is -Inf, must be finite"},
	} {
		_, err := load(write(t, x.file))
		assert.ErrorContains(t, err, x.want)
		assert.ErrorContains(t, err, "model.bin")
	}
	// All numbers as large as they may be: no size overflows, nothing is allocated.
	f := slices.Clone(file)
	for field := range 7 {
		binary.LittleEndian.PutUint32(f[4*field:], most)
	}
	binary.LittleEndian.PutUint32(f[4*3:], 1)
	binary.LittleEndian.PutUint32(f[4*4:], 1)
	_, err := read(bytes.NewReader(f), int64(len(f)))
	assert.ErrorContains(t, err, "a model of its header has ")
	// A file that shrinks while it is read.
	_, err = read(bytes.NewReader(file[:len(file)/2]), int64(len(file)))
	assert.ErrorContains(t, err, "EOF")
}
