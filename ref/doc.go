// Package ref is exact attention in float64 with naive loops: the yardstick
// that every kernel of this module is measured against.
//
// It is written to be read beside the mathematics, not to be fast. It computes
// one row of scores at a time, takes its softmax, and moves on; nothing is
// tiled, vectorised or approximated. It depends on the standard library alone.
//
// # Glossary
//
//	B        sequences in the ragged batch
//	Tq, Tk   query rows and keys of all sequences together (CuQ[B], CuK[B])
//	nq, nk   query rows and keys of one sequence
//	Hq, Hkv  query heads and key/value heads; head h reads kv head h/(Hq/Hkv)
//	Dk, Dv   channels of Q and K, and of V and O
//	p        position of query i in key coordinates: p = i + off
//	z        score of a (query, key) pair after scale, softcap, ALiBi and bias
//	P        softmax of z over the visible keys
//	A        P after dropout; the weights that V is summed with
//
// # Hidden and visible
//
// A key that the mask hides from a query is not read for that query: whatever
// its K row, V row or bias holds, NaN included, reaches no output. A visible
// NaN propagates. A query with no visible key, or whose visible scores are all
// -Inf, has LSE = -Inf and P = 0, and no gradient flows through it.
package ref
