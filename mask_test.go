package attention

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-091431b3/attention/kernel"
	"github.com/seed-091431b3/attention/ref"
)

// someMasks are one mask of every kind for a sequence, and the same by
// definition.
func someMasks(r *rand.Rand, s *kernel.Sequence, heads int) map[string]struct {
	mask Mask
	ref  ref.Mask
} {
	type pair = struct {
		mask Mask
		ref  ref.Mask
	}
	nq, nk, off := s.Queries, s.Keys, s.Offset
	side := func() int { return [...]int{Unbounded, 0, r.IntN(nk + 5), r.IntN(20)}[r.IntN(4)] }
	l, rt, n := side(), side(), r.IntN(nk+30)
	all := map[string]pair{
		"causal":      {Causal(), ref.Causal(off)},
		"window":      {Window(l, rt), ref.Window(off, l, rt)},
		"prefix":      {PrefixLM(n), ref.PrefixLM(off, n)},
		"sink tokens": {SinkTokens(n/4, l, rt), ref.SinkTokens(off, n/4, l, rt)},
	}
	lo, hi := make([]int, nq), make([]int, nq)
	for i := range nq {
		lo[i], hi[i] = r.IntN(nk+8)-4, r.IntN(nk+8)-4
	}
	all["ranges"] = pair{KeyRanges(lo, hi), ref.KeyRanges(lo, hi)}
	if off >= 0 && off+nq <= nk {
		for _, kinds := range []int{1, 2, nk} {
			doc, wide := make([]int32, nk), make([]int, nk)
			for j := range doc {
				wide[j] = r.IntN(kinds)
				if kinds == nk {
					wide[j] = j / 7
				}
				doc[j] = int32(wide[j])
			}
			all[fmt.Sprintf("documents %d", kinds)] = pair{Documents(doc), ref.Documents(off, wide)}
		}
	}
	bits := make([]bool, heads*nq*nk)
	for i := range bits {
		bits[i] = r.IntN(2) == 0
	}
	all["bool"] = pair{Bool(bits, nq*nk, nk), ref.Dense(heads, nq, nk, bits)}
	all["bool for all heads"] = pair{Bool(bits, 0, nk), ref.Dense(1, nq, nk, bits)}
	all["bool for all queries"] = pair{Bool(bits, nk, 0), func(_, h, _, j int) bool { return bits[h*nk+j] }}
	if nq <= nk {
		parents := make([]int, nq)
		for i := range parents {
			parents[i] = r.IntN(i+1) - 1
		}
		all["tree"] = pair{Tree(parents), ref.Tree(nk, parents)}
	}
	bq, bk := 1+r.IntN(40), 1+r.IntN(200)
	var blocks []Block
	var listed []ref.Block
	for range r.IntN(30) {
		i, j := r.IntN(nq/bq+2), r.IntN(nk/bk+2)
		blocks, listed = append(blocks, Block{i, j}), append(listed, ref.Block{Row: i, Col: j})
	}
	all["blocks"] = pair{BlockSparse(bq, bk, blocks), ref.BlockSparse(bq, bk, listed)}
	f := func(b, h, i, j int) bool { return (b+h*3+i*5+j*7)%4 > 0 }
	all["function"] = pair{Func(f, nil), f}
	return all
}

// TestMaskTiles: what a mask says of a tile agrees with what it says of its
// rows, and that with its definition.
func TestMaskTiles(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	const heads = 3
	rounds, tiles := 60, 40
	if testing.Short() {
		rounds, tiles = 4, 5
	}
	seen := map[string]map[Visibility]bool{}
	for range rounds {
		s := &kernel.Sequence{Index: r.IntN(3), Queries: 1 + r.IntN(60), Keys: 1 + r.IntN(400)}
		s.Offset = [...]int{0, s.Keys - s.Queries, r.IntN(40) - 20}[r.IntN(3)]
		for name, m := range someMasks(r, s, heads) {
			require.NoError(t, m.mask.check(*s, heads), name)
			var c kernel.Mask
			m.mask.compile(&c)
			visible := func(h, i, j int) bool { return m.ref(s.Index, h, i, j) }
			if seen[name] == nil {
				seen[name] = map[Visibility]bool{}
			}
			for range tiles {
				i0, j0 := r.IntN(s.Queries), r.IntN(s.Keys)
				i1, j1 := i0+1+r.IntN(min(s.Queries-i0, 48)), j0+1+r.IntN(min(s.Keys-j0, kernel.BlockKeys))
				for _, b := range c.Bitmaps {
					seen[name][checkTile(t, name, b, s, i0, i1, j0, j1, heads, visible)] = true
				}
				for _, ranger := range c.Rangers {
					for i := i0; i < i1; i++ {
						lo, hi := ranger.Range(s, i)
						for j := range s.Keys {
							if visible(0, i, j) != (lo <= j && j < hi) {
								t.Fatalf("%s, %+v: query %d key %d, range %d to %d", name, *s, i, j, lo, hi)
							}
						}
					}
				}
			}
		}
	}
	if !testing.Short() {
		for _, name := range []string{"sink tokens", "tree", "blocks"} {
			require.Len(t, seen[name], 3, "%s: kinds of tiles it told", name)
		}
	}
}

// checkTile holds Tile and Row of a bitmap to the mask's definition.
func checkTile(t *testing.T, name string, b kernel.Bitmap, s *kernel.Sequence, i0, i1, j0, j1, heads int, visible func(h, i, j int) bool) Visibility {
	t.Helper()
	v, next := b.Tile(s, i0, i1, j0, j1)
	if v == Hidden {
		require.GreaterOrEqual(t, next, j1, "%s: next", name)
		for h := range heads {
			for i := i0; i < i1; i++ {
				for j := j0; j < min(next, s.Keys); j++ {
					if visible(h, i, j) {
						t.Fatalf("%s, %+v: queries %d to %d, keys %d to %d are told hidden up to key %d; query %d sees %d",
							name, *s, i0, i1, j0, j1, next, i, j)
					}
				}
			}
		}
	}
	n := j1 - j0
	for h := range heads {
		for i := i0; i < i1; i++ {
			var words [kernel.MaskWords]uint32
			for k := range n {
				if (i+k)%5 > 0 { // bits that are clear stay so
					words[k/32] |= 1 << (k % 32)
				}
			}
			b.Row(s, h, i, j0, n, &words)
			for k := range n {
				want := visible(h, i, j0+k)
				switch told := words[k/32]>>(k%32)&1 == 1; {
				case told != (want && (i+k)%5 > 0):
					t.Fatalf("%s, %+v: head %d query %d key %d of a row from key %d is %v", name, *s, h, i, j0+k, j0, told)
				case !want && v == Visible:
					t.Fatalf("%s, %+v: queries %d to %d, keys %d to %d are told visible; query %d does not see %d", name, *s, i0, i1, j0, j1, i, j0+k)
				case !b.PerHead() && want != visible(0, i, j0+k):
					t.Fatalf("%s: is told the same for all heads", name)
				}
			}
		}
	}
	return v
}
