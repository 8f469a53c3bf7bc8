package attention_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-091431b3/attention"
)

// cached is a sequence of a cache, and what it should hold.
type cached struct {
	*attention.CachedSequence
	k, v []float32 // packed
	gone []bool    // of each key, whether it was dropped
}

// fork is a sequence with the same contents.
func (s *cached) fork() *cached {
	return &cached{s.Fork(), s.k, s.v, slices.Clone(s.gone)}
}

// cacheTest is random use of a cache of 2 heads of 8 and 5 channels.
type cacheTest struct {
	testing.TB
	*rand.Rand
	cache  *attention.Cache
	format attention.Format
	page   int
	total  int
	seqs   []*cached
}

const cacheHeads, cacheDim, cacheValueDim = 2, 8, 5

func newCacheTest(t testing.TB, r *rand.Rand, f attention.Format, page, pages int) *cacheTest {
	c, err := attention.NewCache(attention.CacheConfig{
		KVHeads: cacheHeads, HeadDim: cacheDim, ValueDim: cacheValueDim, PageKeys: page, Pages: pages, Format: f,
	})
	require.NoError(t, err)
	return &cacheTest{TB: t, Rand: r, cache: c, format: f, page: page, total: pages}
}

// grow appends n random tokens, and reports whether there was room; if not, no
// page is lost.
func (x *cacheTest) grow(s *cached, n int) bool {
	x.Helper()
	free := x.cache.FreePages()
	ok := s.append(x, n)
	require.True(x, ok || free == x.cache.FreePages(), "pages are lost when the cache is full")
	return ok
}

func (s *cached) append(x *cacheTest, n int) bool {
	x.Helper()
	k, v := random(x.Rand, n*cacheHeads*cacheDim), random(x.Rand, n*cacheHeads*cacheValueDim)
	if n > 0 && x.IntN(8) == 0 { // which a mask may hide
		k[x.IntN(len(k))], v[x.IntN(len(v))] = nan, float32(math.Inf(1))
	}
	before := s.Len()
	err := s.Append(attention.Packed(k, cacheHeads, cacheDim), attention.Packed(v, cacheHeads, cacheValueDim), n)
	if err != nil {
		require.ErrorIs(x, err, attention.ErrCacheFull)
		require.Equal(x, before, s.Len())
		return false
	}
	k, v = stored(x.format, k), stored(x.format, v)
	s.k, s.v = append(s.k[:len(s.k):len(s.k)], k...), append(s.v[:len(s.v):len(s.v)], v...)
	s.gone = append(s.gone, make([]bool, n)...)
	return true
}

// step does something to some sequence.
func (x *cacheTest) step() {
	if len(x.seqs) == 0 || x.IntN(6) == 0 {
		x.seqs = append(x.seqs, &cached{CachedSequence: x.cache.NewSequence()})
	}
	n := x.IntN(len(x.seqs))
	s := x.seqs[n]
	switch x.IntN(8) {
	case 0:
		x.seqs = append(x.seqs, s.fork())
	case 1:
		from := x.IntN(s.Len()+2) - 1
		to := from + x.IntN(2*x.page)
		free := x.cache.FreePages()
		s.Drop(from, to)
		require.GreaterOrEqual(x, x.cache.FreePages(), free)
		for j := max(from, 0); j < min(to, s.Len()); j++ {
			s.gone[j] = true
		}
	case 2:
		keep := x.IntN(s.Len() + 2)
		s.Truncate(keep)
		keep = min(keep, len(s.k)/(cacheHeads*cacheDim))
		s.k, s.v, s.gone = s.k[:keep*cacheHeads*cacheDim], s.v[:keep*cacheHeads*cacheValueDim], s.gone[:keep]
	case 3:
		s.Free()
		x.seqs = append(x.seqs[:n], x.seqs[n+1:]...)
	default:
		x.grow(s, [...]int{0, 1, 1, 1, 5, x.page, x.IntN(3 * x.page)}[x.IntN(7)])
	}
}

// check holds a decoding step over all sequences to a forward pass over what
// they should hold, and counts pages.
func (x *cacheTest) check(kernel string, workers int) {
	x.Helper()
	p := newProblem(x.Rand, shape{hq: 4, hkv: cacheHeads, dk: cacheDim, dv: cacheValueDim})
	r := p.ref
	r.CuQ, r.CuK = []int{0}, []int{0}
	var seqs []*attention.CachedSequence
	for _, s := range x.seqs {
		seqs = append(seqs, s.CachedSequence)
		require.Equal(x, len(s.k), s.Len()*cacheHeads*cacheDim)
		r.CuQ = append(r.CuQ, r.CuQ[len(r.CuQ)-1]+x.IntN(min(s.Len(), 4)+1))
		r.CuK = append(r.CuK, r.CuK[len(r.CuK)-1]+s.Len())
		p.k, p.v = append(p.k, s.k...), append(p.v, s.v...)
	}
	p.q = random(x.Rand, r.CuQ[len(seqs)]*4*cacheDim)
	p.batch = attention.RaggedQK(r.CuQ, r.CuK)
	p.cfg.Mask = [...]attention.Mask{{}, attention.Causal(), attention.Window(30, 0), attention.SinkTokens(20, 50, 0)}[x.IntN(4)]
	for _, s := range x.seqs {
		seen := make([]bool, len(s.gone))
		for j, gone := range s.gone {
			seen[j] = !gone
		}
		p.batch.Masks = append(p.batch.Masks, attention.Bool(seen, 0, 0))
	}
	want := p.run(x, kernel, 1)
	in, out, got := p.call()
	in.K, in.V = attention.Tensor{}, attention.Tensor{}
	p.batch.CuK, p.batch.Masks = nil, nil
	require.NoError(x, operator(x, p, kernel, workers).ForwardCached(in, out, p.batch, seqs))
	sameBits(x, want, got, kernel, workers, "page of", x.page)
}

// end frees all sequences, and holds that no page is lost.
func (x *cacheTest) end() {
	x.Helper()
	for _, s := range x.seqs {
		s.Free()
		s.Free()
		require.Zero(x, s.Len())
	}
	require.Equal(x, x.total, x.cache.FreePages(), "free pages after all sequences are")
}

// TestCache: random use of a cache, in which decoding gives the bits of a
// forward pass over the same keys in one piece, and no page is lost.
func TestCache(t *testing.T) {
	rounds := 40
	if testing.Short() {
		rounds = 6
	}
	perKernel(t, func(t *testing.T, kernel string) {
		for n, page := range []int{16, 48, 128, 272} {
			t.Run(fmt.Sprintf("page=%d", page), func(t *testing.T) {
				x := newCacheTest(t, rand.New(rand.NewPCG(uint64(page), 41)), formats[n%3], page, 3000/page)
				for n := range rounds {
					for range 8 {
						x.step()
					}
					x.check(kernel, 1+n%3)
				}
				x.end()
			})
		}
	})
}

// FuzzCache is TestCache by what the fuzzer draws.
func FuzzCache(f *testing.F) {
	for seed := range uint64(8) {
		f.Add(seed, seed+1, uint8(seed), uint8(3*seed), uint8(40))
	}
	f.Fuzz(func(t *testing.T, seed1, seed2 uint64, format, page, steps uint8) {
		r := rand.New(rand.NewPCG(seed1, seed2))
		kernels := attention.Kernels()
		size := 16 * (1 + int(page)%20)
		x := newCacheTest(t, r, formats[int(format)%3], size, 1+r.IntN(2000/size))
		for n := range int(steps) {
			x.step()
			if n%8 == 7 {
				x.check(kernels[r.IntN(len(kernels))], 1+r.IntN(3))
			}
		}
		x.end()
	})
}

// TestCachePrefillAndDecode: a prompt and then tokens one by one give the bits
// of all at once, over several spans and pages.
func TestCachePrefillAndDecode(t *testing.T) {
	n := 1100
	if testing.Short() {
		n = 150
	}
	r := rand.New(rand.NewPCG(42, 42))
	p := newProblem(r, shape{4, 2, 16, 16, []int{n}, []int{n}})
	p.cfg.Mask = attention.Causal()
	want := p.run(t, "generic", 1)
	perKernel(t, func(t *testing.T, kernel string) {
		cache, err := attention.NewCache(attention.CacheConfig{KVHeads: 2, HeadDim: 16, PageKeys: 64, Pages: n/64 + 1})
		require.NoError(t, err)
		s := cache.NewSequence()
		op := operator(t, p, kernel, 2)
		in, out, got := p.call()
		q, k, v, o := in.Q.Data, in.K, in.V, out.O.Data
		in.K, in.V = attention.Tensor{}, attention.Tensor{}
		for at, step := 0, n-40; at < n; at, step = at+step, 1 {
			tokens := func(x attention.Tensor) attention.Tensor { x.Data = x.Data[at*x.TokenStride:]; return x }
			require.NoError(t, s.Append(tokens(k), tokens(v), step))
			in.Q.Data, out.O.Data, out.LSE = q[at*64:], o[at*64:], got.lse[at*4:]
			require.NoError(t, op.ForwardCached(in, out, attention.Ragged([]int{0, step}), []*attention.CachedSequence{s}))
		}
		sameBits(t, want, got, kernel)
	})
}

// TestWindowInFewPages: what a window has left can be dropped, so that a few pages
// are enough for any number of tokens, sink tokens included.
func TestWindowInFewPages(t *testing.T) {
	const n, sinks, left = 700, 5, 50
	r := rand.New(rand.NewPCG(44, 44))
	p := newProblem(r, shape{4, 2, 16, 16, []int{n}, []int{n}})
	p.cfg.Mask = attention.And(attention.Causal(), attention.SinkTokens(sinks, left, 0))
	want := p.run(t, "generic", 1)
	cache, err := attention.NewCache(attention.CacheConfig{KVHeads: 2, HeadDim: 16, PageKeys: 16, Pages: 1 + left/16 + 2})
	require.NoError(t, err)
	s := cache.NewSequence()
	op := operator(t, p, "", 2)
	in, out, got := p.call()
	q, k, v, o := in.Q.Data, in.K, in.V, out.O.Data
	in.K, in.V = attention.Tensor{}, attention.Tensor{}
	for at := range n {
		tokens := func(x attention.Tensor) attention.Tensor { x.Data = x.Data[at*x.TokenStride:]; return x }
		require.NoError(t, s.Append(tokens(k), tokens(v), 1), "token %d", at)
		in.Q.Data, out.O.Data, out.LSE = q[at*64:], o[at*64:], got.lse[at*4:]
		require.NoError(t, op.ForwardCached(in, out, attention.Ragged([]int{0, 1}), []*attention.CachedSequence{s}))
		s.Drop(sinks, at-left+1)
	}
	require.Equal(t, n, s.Len())
	sameBits(t, want, got)
	s.Truncate(3)
	require.NoError(t, s.Append(k, v, 16), "which appends to keys that were dropped")
	s.Free()
	require.Equal(t, 1+left/16+2, cache.FreePages())
}

// TestDraftTreeInCache: several draft tokens at once, by the mask of their tree,
// have the bits that each would have had after its own ancestors alone.
func TestDraftTreeInCache(t *testing.T) {
	const prefix = 1050
	r := rand.New(rand.NewPCG(45, 45))
	parents := []int{-1, 0, 0, 1, 2, -1, 5, 3}
	n := len(parents)
	p := newProblem(r, shape{4, 2, 16, 16, []int{n}, []int{prefix + n}})
	for _, f := range formats {
		cache, err := attention.NewCache(attention.CacheConfig{KVHeads: 2, HeadDim: 16, PageKeys: 32, Pages: 100, Format: f})
		require.NoError(t, err)
		in, out, got := p.call()
		token := func(x attention.Tensor, j int) attention.Tensor { x.Data = x.Data[j*x.TokenStride:]; return x }
		s := cache.NewSequence()
		require.NoError(t, s.Append(in.K, in.V, prefix))
		paths := []*attention.CachedSequence{}
		op := operator(t, p, "", 1)
		want := newResult(p.ref)
		for i, parent := range parents {
			from := s
			if parent >= 0 {
				from = paths[parent]
			}
			path := from.Fork()
			paths = append(paths, path)
			require.NoError(t, path.Append(token(in.K, prefix+i), token(in.V, prefix+i), 1))
			one := attention.Outputs{O: token(attention.Packed(want.o, 4, 16), i), LSE: want.lse[4*i:]}
			require.NoError(t, op.ForwardCached(attention.Inputs{Q: token(in.Q, i)}, one, attention.Ragged([]int{0, 1}), []*attention.CachedSequence{path}))
		}
		require.NoError(t, s.Append(token(in.K, prefix), token(in.V, prefix), n))
		batch := attention.Ragged([]int{0, n})
		batch.Masks = []attention.Mask{attention.Tree(parents)}
		require.NoError(t, op.ForwardCached(attention.Inputs{Q: in.Q}, out, batch, []*attention.CachedSequence{s}))
		for i := range got.lse {
			require.Equal(t, want.lse[i], got.lse[i], "LSE %d", i)
		}
		sameBits(t, want, got, f)
	}
}

// TestForkedSequencesPart: what one of two appends, the other does not see.
func TestForkedSequencesPart(t *testing.T) {
	x := newCacheTest(t, rand.New(rand.NewPCG(43, 43)), attention.FormatFloat32, 16, 4)
	a := &cached{CachedSequence: x.cache.NewSequence()}
	require.True(t, x.grow(a, 20))
	b := a.fork()
	require.Equal(t, 2, x.cache.FreePages())
	require.True(t, x.grow(a, 1), "which copies a page")
	require.Equal(t, 1, x.cache.FreePages())
	require.True(t, x.grow(b, 1), "which need not")
	require.Equal(t, 1, x.cache.FreePages())
	x.seqs = []*cached{a, b}
	x.check("", 1)
	c := b.fork()
	require.True(t, x.grow(c, 1))
	require.Zero(t, x.cache.FreePages())
	require.False(t, x.grow(a, 12), "there are no pages left")
	x.seqs = []*cached{a, b, c}
	x.check("", 2)
}

// TestCacheErrors: everything that can be wrong has an error that names it.
func TestCacheErrors(t *testing.T) {
	good := attention.CacheConfig{KVHeads: 2, HeadDim: 8, ValueDim: 6, PageKeys: 32, Pages: 2}
	for name, bad := range map[string]func(c *attention.CacheConfig){
		"KVHeads":  func(c *attention.CacheConfig) { c.KVHeads = 0 },
		"HeadDim":  func(c *attention.CacheConfig) { c.HeadDim = -1 },
		"ValueDim": func(c *attention.CacheConfig) { c.ValueDim = -1 },
		"PageKeys": func(c *attention.CacheConfig) { c.PageKeys = 24 },
		"Format":   func(c *attention.CacheConfig) { c.Format = 3 },
		"Pages":    func(c *attention.CacheConfig) { c.Pages = 1 << 30; c.HeadDim = 1 << 20 },
	} {
		c := good
		bad(&c)
		_, err := attention.NewCache(c)
		requireSays(t, err, []string{name})
	}
	cache, err := attention.NewCache(good)
	require.NoError(t, err)
	s := cache.NewSequence()
	k, v := attention.Packed(make([]float32, 3*16), 2, 8), attention.Packed(make([]float32, 3*12), 2, 6)
	requireSays(t, s.Append(k, v, 4), []string{"K", "48", "64"})
	requireSays(t, s.Append(k, attention.Packed(v.Data[:30], 2, 6), 3), []string{"V", "30", "36"})
	requireSays(t, s.Append(k, v, -1), []string{"n", "-1"})
	require.NoError(t, s.Append(k, v, 3))
	s.Truncate(-1)
	s.Truncate(5)
	require.Equal(t, 3, s.Len())

	other, err := attention.NewCache(attention.CacheConfig{KVHeads: 1, HeadDim: 8, ValueDim: 6, Pages: 1})
	require.NoError(t, err)
	for _, x := range []struct {
		name string
		says []string
		bad  func(c *badCall, seqs *[]*attention.CachedSequence)
	}{
		{"K given", []string{"K", "empty"}, func(c *badCall, _ *[]*attention.CachedSequence) { c.in.K = k }},
		{"CuK given", []string{"cu_seqlens of K", "nil"}, func(c *badCall, _ *[]*attention.CachedSequence) { c.batch.CuK = c.batch.CuQ }},
		{"sequences missing", []string{"sequences", "1", "2"}, func(_ *badCall, s *[]*attention.CachedSequence) { *s = (*s)[:1] }},
		{"a sequence nil", []string{"sequences", "entry 1", "nil"}, func(_ *badCall, s *[]*attention.CachedSequence) { (*s)[1] = nil }},
		{"another shape", []string{"sequences", "entry 0", "1 heads"}, func(_ *badCall, s *[]*attention.CachedSequence) { (*s)[0] = other.NewSequence() }},
		{"Q too short", []string{"Q", "159", "160"}, func(c *badCall, _ *[]*attention.CachedSequence) { c.in.Q.Data = c.in.Q.Data[:159] }},
	} {
		t.Run(x.name, func(t *testing.T) {
			c := newBadCall()
			c.in.K, c.in.V, c.batch.CuK = attention.Tensor{}, attention.Tensor{}, nil
			seqs := []*attention.CachedSequence{s, s.Fork()}
			op, err := attention.New(c.cfg)
			require.NoError(t, err)
			require.NoError(t, op.ForwardCached(c.in, c.out, c.batch, seqs))
			fill(c.o, 7)
			x.bad(c, &seqs)
			requireSays(t, op.ForwardCached(c.in, c.out, c.batch, seqs), x.says)
			for _, v := range c.o {
				assert.Equal(t, float32(7), v, "something was written")
			}
		})
	}
}

// TestDecodingAllocatesNothing: neither a token that finds room in its page nor
// the pass over the cache.
func TestDecodingAllocatesNothing(t *testing.T) {
	for _, f := range formats {
		x := newCacheTest(t, rand.New(rand.NewPCG(44, 44)), f, 128, 40)
		a := &cached{CachedSequence: x.cache.NewSequence()}
		require.True(t, x.grow(a, 2200))
		for workers := 1; workers <= 2; workers++ {
			op, err := attention.New(attention.Config{QueryHeads: 4, KVHeads: 2, HeadDim: cacheDim, ValueDim: cacheValueDim, Workers: workers})
			require.NoError(t, err)
			k := attention.Packed(random(x.Rand, 16), 2, cacheDim)
			v := attention.Packed(random(x.Rand, 10), 2, cacheValueDim)
			in := attention.Inputs{Q: attention.Packed(random(x.Rand, 32), 4, cacheDim)}
			out := attention.Outputs{O: attention.Packed(make([]float32, 20), 4, cacheValueDim)}
			batch, seqs := attention.Ragged([]int{0, 1}), []*attention.CachedSequence{a.CachedSequence}
			step := func() {
				if err := errorOf(a.Append(k, v, 1), op.ForwardCached(in, out, batch, seqs)); err != nil {
					t.Fatal(err)
				}
			}
			step()
			assert.Zero(t, testing.AllocsPerRun(20, step), "%v, %d workers", f, workers)
		}
	}
}

func errorOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// TestCacheConcurrently: goroutines fork one sequence, and each appends to its
// fork and attends to it.
func TestCacheConcurrently(t *testing.T) {
	sameGoroutines(t)
	x := newCacheTest(t, rand.New(rand.NewPCG(45, 45)), attention.FormatFloat32, 16, 200)
	prompt := &cached{CachedSequence: x.cache.NewSequence()}
	require.True(t, x.grow(prompt, 40), "which ends within a page")
	var wait sync.WaitGroup
	for g := range 8 {
		wait.Add(1)
		go func() {
			defer wait.Done()
			y := *x
			y.Rand = rand.New(rand.NewPCG(46, uint64(g)))
			y.seqs = []*cached{prompt.fork()}
			for range 10 {
				if s := y.seqs[0]; !s.append(&y, 1+y.IntN(20)) {
					t.Error("the cache is full")
				}
				y.check("", 1+g%2)
			}
			y.seqs[0].Free()
		}()
	}
	wait.Wait()
	prompt.Free()
	require.Equal(t, x.total, x.cache.FreePages())
}

// TestZeroCache: what nobody made holds nothing, and says so.
func TestZeroCache(t *testing.T) {
	op, err := attention.New(attention.Config{QueryHeads: 1, HeadDim: 4})
	require.NoError(t, err)
	x := attention.Packed(make([]float32, 4), 1, 4)
	for _, s := range []*attention.CachedSequence{{}, new(attention.Cache).NewSequence(), new(attention.CachedSequence).Fork()} {
		require.ErrorContains(t, s.Append(x, x, 1), "zero Cache")
		require.ErrorContains(t, op.ForwardCached(attention.Inputs{Q: x}, attention.Outputs{O: attention.Packed(make([]float32, 4), 1, 4)},
			attention.Ragged([]int{0, 1}), []*attention.CachedSequence{s}), "sequences: entry 0: the zero Cache")
		s.Truncate(0)
		s.Drop(0, 1)
		s.Free()
		require.Zero(t, s.Len())
	}
}
