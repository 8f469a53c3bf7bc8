// Package kernel is the attention algorithm, free of any processor: tiles,
// masks, the running softmax and the order of every operation. It is written
// once against [Ops], a table holding one processor's few loops over a tile.
//
// The letters are those of the papers: q k v o are the matrices, s the scores
// of a tile, p the probabilities, m and l the running maximum and sum of a
// row. Lanes are queries: a vector lane computes one query row from start to
// end, so a vector's width never enters a result.
//
// The package trusts its arguments; the root package checks them.
package kernel

// The constants of the arithmetic. They enter the bits of every result and
// are therefore the same on every processor.
const (
	// BlockKeys keys share one maximum and one rescaling of the state.
	BlockKeys = 128
	// SpanKeys keys are accumulated from an empty state; spans are folded
	// left to right.
	SpanKeys = 8 * BlockKeys
	// GradRows rows are summed from zero into the gradients of a key, then added
	// to what the groups of rows after them gave. Strips of 8, 16, 24 and 32 fit.
	GradRows = 96
	// GradShift: the backward pass carries probabilities times 2^GradShift, and so
	// all sums over them, so that one down to 2^-157 counts beside a large sink.
	GradShift = 32
)

// NarrowRows rows at most are those of Ops.Narrow.
const NarrowRows = 8

// MaxLanes is the widest strip a table may have.
const MaxLanes = 48

// MaskWords is the number of 32-bit words that hold one lane's visibility of
// a block: bit k%32 of word k/32 belongs to key k of the block.
const MaskWords = BlockKeys / 32

// Ops is one processor: its loops over a tile and the tile sizes they were
// written for. Every function computes the same bits as the portable table's.
//
// A strip is a group of query rows that lie in the lanes of a tile; w is its
// width in lanes. All tiles are [rows][w], contiguous, and a pointer of this
// table is never nil unless its comment says so. Strides count elements. No
// function keeps a pointer, allocates, or reads or writes outside the shapes
// named in its comment, except that Gather, PackK and PackV never read but may
// leave unwritten what their comments exclude.
type Ops struct {
	Name string

	// Panel is the number of keys in a panel of K, and of channels in a panel
	// of V: the rows of the register tile.
	Panel int
	// Strips holds the loops for each strip width: first the one for most rows,
	// then those that serve what it leaves over.
	Strips []Strip
	// Narrow, if not nil, is the table for what has at most NarrowRows rows and keys
	// in a cache, as its vectors are not emptier than they need be.
	Narrow *Ops

	// Gather transposes rows into lanes, q to a tile and a bias to a tile:
	//
	//	dst[c][r] = src[off[r]+c] * mul     c < n, r < w
	Gather func(dst, src *float32, off *int, n, w int, mul float32)
	// Scatter transposes lanes into rows, the inverse of Gather. Lanes with equal
	// offsets hold equal values.
	//
	//	dst[off[r]+c] = src[c][r] * inv[r] + 0     c < n, r < w
	Scatter func(dst *float32, off *int, src, inv *float32, n, w int)
	// PackK packs n >= 1 rows of K into panels [ceil(n/Panel)][d][Panel]. Rows
	// past the end repeat the last row, so that they do not raise a maximum.
	PackK func(dst, src *float32, stride, n, d int)
	// PackV packs n rows of V into panels: channel c of key j goes to
	// dst[c/Panel*step + j*Panel + c%Panel]. Channels between d and the end of
	// their panel are zero. It reports whether all values are finite.
	PackV func(dst, src *float32, stride, n, d, step int) (finite bool)

	// Softcap, ALiBi and Bias turn raw scores into logits, Mask hides keys.
	// Each works in place on the n rows (keys) of a score tile, and raises max[r]
	// to the greatest value of lane r (NaN as it may).
	//
	//	Softcap: s = softcap * tanh(s*mul)
	Softcap func(s, max *float32, n, w int, mul, softcap float32)
	// ALiBi: s[j][r] = fma(-slope[r], float32(|pos[r]-j|), s*mul), where j
	// counts from zero.
	ALiBi func(s, max, slope *float32, pos *int32, n, w int, mul float32)
	// Bias: s = fma(s, mul, bias), bias being a tile like s.
	Bias func(s, max, bias *float32, n, w int, mul float32)
	// Mask: s[j][r] = -Inf where bit j%32 of words[j/32][r] is clear.
	Mask func(s, max *float32, words *uint32, n, w int)
	// Softmax turns n rows of logits into probabilities, in place, and takes
	// them into the state of the lanes. max is the greatest logit of the tile:
	//
	//	M = max(m, max); alpha = exp2((m-M)*unit); p = exp2((s-M)*unit)
	//	l = fma(l, alpha, sum of p over j ascending); m = M
	//
	// with -MaxFloat32 in place of M = -Inf inside the subtractions. Meanwhile it may
	// fetch what lies from fetch on, any address, so that memory is not idle.
	Softmax func(s, max, m, l, alpha *float32, n, w int, unit float32, fetch *byte)
	// Bits clears the bits of keys that rows of booleans hide:
	//
	//	words[j/32][r] &^= 1<<(j%32) unless src[off[r]+j]     j < n, r < w
	Bits func(words *uint32, src *bool, off *int, n, w int)
	// Dropout: p[j][r] = p*inv[r] if draw(key[r], first+j) >= threshold[r], else
	// 0; first is even. The draw is the 32-bit number of the public hash.
	Dropout func(p *float32, key *uint64, threshold *uint32, inv *float32, first, n, w int)

	// Fold adds the state (o2, m2, l2) to (o, m, l), o and o2 being [n][w]:
	//
	//	M = max(m, m2); a1 = exp2((m-M)*unit); a2 = exp2((m2-M)*unit)
	//	l = fma(l, a1, l2*a2); o = fma(o, a1, o2*a2); m = M
	Fold func(o, m, l, o2, m2, l2 *float32, n, w int, unit float32)
	// LogSum: lse[r] = float64(m[r])*scale + ln(l[r]) and inv[r] = 1/l[r]; a
	// lane with l = 0 has seen nothing: lse = -Inf, inv = 0.
	LogSum func(lse *float64, inv, m, l *float32, w int, scale float64)

	// Sink folds a key with the logit sink[r] and no value, logits being in
	// natural units:
	//
	//	M = max(m, sink); a = exp2((m-M)*log2e); b = exp2((sink-M)*log2e)
	//	weight = l*a / fma(l, a, b); l = fma(l, a, b); m = M
	//
	// weight is what the output before the sink, o/l, is worth after it. A sink
	// may exceed all logits by so much that it is subnormal.
	Sink func(m, l, weight, sink *float32, w int)

	// The backward pass. Gradients of keys, and the rows they are sums of, lie in
	// panels [channels/Columns][row][Columns], so that lanes are channels there.

	// Columns is the number of channels of such a panel: a vector.
	Columns int
	// PackRows packs n rows: dst[c/Columns*step + i*Columns + c%Columns] =
	// src[off[i]+c], and zeros from channel d to the end of its panel. It reports
	// whether all values are finite.
	PackRows func(dst, src *float32, off *int, n, d, step int) (finite bool)
	// UnpackRows is its inverse; no two rows are one:
	//
	//	dst[off[i]+c] = src[c/Columns*step + i*Columns + c%Columns]*mul + 0
	UnpackRows func(dst *float32, off *int, src *float32, n, d, step int, mul float32)
	// Dot: d[r] = fma chain over c ascending of a[c][r]*b[c][r], from 0     c < n
	Dot func(d, a, b *float32, n, w int)
	// Gradient turns n rows of logits into probabilities, times 2^GradShift, and the
	// gradients dp of what multiplies V into those of the logits, in place:
	//
	//	p = 2^(GradShift + ((s-hi[r])-lo[r]) * (unit+rest))
	//	dp = p * fma(dp, keep, -delta[r]); s = p*keep
	//
	// keep, a tile like s, is nil for ones. p is 0 up to 2^-125.5, and at most about
	// 2^127. unit is positive, and rest at most half an ulp of it.
	Gradient func(s, dp, keep, hi, lo, delta *float32, n, w int, unit, rest float32)
	// Hide makes a and b zero where bit j%32 of words[j/32][r] is clear.
	Hide func(a, b *float32, words *uint32, n, w int)
	// Uncap takes gradients back through a softcap: ds = ds * fma(-t, t, 1), where
	// t = capped*inv, capped being a tile of capped logits.
	Uncap func(ds, capped *float32, n, w int, inv float32)
	// AddOuter adds to the gradients g of tiles*Panel keys what some query rows
	// give:
	//
	//	g[j][c] += fma chain over rows i ascending of p[j][i]*x[i][c], from 0
	//
	// g and x are panels, gStep and xStep elements apart. Row i lies in lane i%w of
	// the tile [keys][w] that starts at p + i/w*pStep.
	AddOuter func(g, p, x *float32, tiles, rows, w, pStep, panels, gStep, xStep int)

	// Stored holds the loops over what is stored in each format.
	Stored [Formats]Stored

	// AccumulateVisible is Strip.Accumulate for a tile that is partly masked
	// and whose V holds NaN or Inf: it leaves hidden keys out instead of
	// multiplying them by zero. Rare, so that portable code does.
	AccumulateVisible func(o, v, p, alpha *float32, words *uint32, n, step, tiles, panel, w int)
}

// serving is the table for rows of a task, whose keys may be cached.
func (ops *Ops) serving(rows int, cached bool) *Ops {
	if cached && rows <= NarrowRows && ops.Narrow != nil {
		return ops.Narrow
	}
	return ops
}

// Strip holds the loops for one width of strip, a multiple of the vector.
type Strip struct {
	Width int
	// Cost of one strip relative to the others, in thousandths of a lane at the
	// full speed of a multiply-add.
	Cost int

	// Score computes raw scores of tiles panels of K against q [dk][w], and
	// raises max[r] to the greatest of lane r:
	//
	//	s[j][r] = fma chain over c ascending of k[j][c]*q[c][r], from 0
	//
	// k is packed by PackK; s has tiles*Panel rows.
	Score func(s, max, k, q *float32, dk, tiles int)
	// Accumulate adds n keys to o [tiles*Panel][w]:
	//
	//	o[c][r] = o*alpha[r], then fma chain over j ascending of v[j][c]*p[j][r]
	//
	// alpha nil starts from zero instead of o; n may be 0. v is packed by PackV, tiles
	// panels step elements apart.
	Accumulate func(o, v, p, alpha *float32, n, step, tiles int)
}
