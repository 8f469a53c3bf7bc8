package attention_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-091431b3/attention"
)

// TestCacheIsGivenBack: the memory of a cache goes back to the system once neither
// it nor a sequence is left, and not before.
func TestCacheIsGivenBack(t *testing.T) {
	const tokens, rounds = 8 << 10, 60
	op, err := attention.New(attention.Config{QueryHeads: 2, HeadDim: 64})
	require.NoError(t, err)
	k := attention.Packed(random(rand.New(rand.NewPCG(47, 47)), tokens*2*64), 2, 64)
	var want []float32
	before := virtualPages(t)
	for range rounds { // 8 MB each
		c, err := attention.NewCache(attention.CacheConfig{KVHeads: 2, HeadDim: 64, Pages: tokens / 128})
		require.NoError(t, err)
		s := c.NewSequence()
		require.NoError(t, s.Append(k, k, tokens))
		runtime.GC()
		o := make([]float32, 2*64)
		require.NoError(t, op.ForwardCached(attention.Inputs{Q: k}, attention.Outputs{O: attention.Packed(o, 2, 64)},
			attention.Ragged([]int{0, 1}), []*attention.CachedSequence{s}))
		if want == nil {
			want = o
		}
		require.Equal(t, want, o)
	}
	grown := (virtualPages(t) - before) * os.Getpagesize()
	require.Less(t, grown, rounds*8<<20/3, "bytes of address space that %d caches have left", rounds)
}

// virtualPages is the size of the address space of this process.
func virtualPages(t *testing.T) int {
	text, err := os.ReadFile("/proc/self/statm")
	require.NoError(t, err)
	var pages int
	_, err = fmt.Sscan(string(text), &pages)
	require.NoError(t, err)
	return pages
}
