package ref

// Mask reports whether query i of head h in sequence b sees key j. It must be
// pure. i and j count within the sequence.
type Mask func(b, h, i, j int) bool

// Unbounded, as a side of Window, leaves that side open.
const Unbounded = -1

// And sees what all of masks see. Nil masks hide nothing.
func And(masks ...Mask) Mask {
	return func(b, h, i, j int) bool {
		for _, m := range masks {
			if m != nil && !m(b, h, i, j) {
				return false
			}
		}
		return true
	}
}

// Causal sees keys up to the query's own position p = i + off.
func Causal(off int) Mask {
	return func(_, _, i, j int) bool { return j <= i+off }
}

// Window sees p-left ≤ j ≤ p+right with p = i + off: the query's own position
// and left keys before it and right keys after it.
func Window(off, left, right int) Mask {
	return func(_, _, i, j int) bool { return inWindow(i+off, j, left, right) }
}

// inWindow reports whether key j lies in the window around position p.
func inWindow(p, j, left, right int) bool {
	return (left < 0 || p-left <= j) && (right < 0 || j <= p+right)
}

// PrefixLM sees the first n keys from everywhere and is causal beyond them.
func PrefixLM(off, n int) Mask {
	return func(_, _, i, j int) bool { return j < n || j <= i+off }
}

// SinkTokens sees the first n keys from everywhere, and a window besides.
// Conjoin it with Causal where the first keys must not be seen too early.
func SinkTokens(off, n, left, right int) Mask {
	return func(_, _, i, j int) bool { return j < n || inWindow(i+off, j, left, right) }
}

// Documents sees keys of the query's own document. doc: [nk], the document of
// each key; the query's is that of position p. Queries at a position outside
// [0, nk) see nothing.
func Documents(off int, doc []int) Mask {
	return func(_, _, i, j int) bool {
		p := i + off
		return p >= 0 && p < len(doc) && doc[p] == doc[j]
	}
}

// KeyRanges sees lo[i] ≤ j < hi[i]. lo, hi: [nq].
func KeyRanges(lo, hi []int) Mask {
	return func(_, _, i, j int) bool { return lo[i] <= j && j < hi[i] }
}

// Dense sees what bits says: [heads, nq, nk], where heads is 1, shared by all,
// or Hq.
func Dense(heads, nq, nk int, bits []bool) Mask {
	return func(_, h, i, j int) bool {
		if heads == 1 {
			h = 0
		}
		return bits[(h*nq+i)*nk+j]
	}
}

// Tree is the mask of speculative decoding. The last len(parents) keys of the
// nk are a tree of draft tokens, parents[t] < t being the token that t
// continues, or -1 for one that continues the prefix; query i is draft token
// i. It sees the whole prefix, its ancestors and itself.
func Tree(nk int, parents []int) Mask {
	prefix := nk - len(parents)
	return func(_, _, i, j int) bool {
		if j < prefix {
			return true
		}
		for t := i; t >= 0; t = parents[t] {
			if t == j-prefix {
				return true
			}
		}
		return false
	}
}

// Block names a tile of a BlockSparse mask by its row and column of tiles.
type Block struct{ Row, Col int }

// BlockSparse sees the keys of the tiles listed, each of bq queries by bk keys.
func BlockSparse(bq, bk int, listed []Block) Mask {
	set := make(map[Block]bool, len(listed))
	for _, t := range listed {
		set[t] = true
	}
	return func(_, _, i, j int) bool { return set[Block{i / bq, j / bk}] }
}
