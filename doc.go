// Package attention computes exact attention on CPUs, for ragged batches, in
// memory that grows with the tokens and not with their square.
//
//	att, err := attention.New(attention.Config{
//		QueryHeads: 32, KVHeads: 8, HeadDim: 128,
//		Mask: attention.Causal(),
//	})
//	...
//	err = att.Forward(
//		attention.Inputs{
//			Q: attention.Packed(q, 32, 128), // [tokens, 32, 128]
//			K: attention.Packed(k, 8, 128),
//			V: attention.Packed(v, 8, 128),
//		},
//		attention.Outputs{O: attention.Packed(o, 32, 128)},
//		attention.Ragged([]int{0, 17, 40}), // two sequences: 17 and 23 tokens
//	)
//
// For training, [Operator.Backward] takes the gradient of the loss with respect
// to O back to Q, K and V. What it needs of the forward pass is its arguments, O
// and LSE.
//
// For decoding, a [Cache] holds keys and values that grow token by token, and
// [Operator.ForwardCached] attends to them. What a cache or a [Tensor] holds may
// be stored in 16 bits, [BFloat16] or [Float16]; arithmetic is that of float32.
//
// An [Operator] says what a layer computes; it is made once and is safe for
// concurrent use. A [Batch] says which tokens form which sequence, a [Tensor]
// where they lie in memory. The caller allocates all outputs; after the first
// call of a size nothing else is allocated.
//
// # What is promised
//
// The same inputs give the same bits: on every processor, with any kernel and
// any number of workers, whatever else is in the batch, however the tensors are
// laid out, and whether tokens come at once or one by one.
//
// A query that sees no key has O = 0 and LSE = -Inf (or its sink), never NaN. What a mask
// hides, and whatever lies in memory between and behind the sequences, changes
// no bit of a result, NaN included; a NaN that is seen does propagate.
//
// Bad arguments give an error that names the argument, its value and the rule,
// before anything is written.
//
// # Glossary
//
// The code uses the letters of the papers (Vaswani et al. 2017; Dao et al.
// 2022; Dao 2023):
//
//	B         sequences of the batch, b one of them
//	nq, nk    queries and keys of a sequence; i is a query, j a key
//	Hq, Hkv   query heads and key/value heads, h a query head; its kv head is
//	          h / (Hq/Hkv)
//	G         group: the query heads that share a kv head, Hq/Hkv
//	dk, dv    channels of Q and K, and of V and O; c is a channel
//	p         position of query i in key coordinates, i + offset
//	q, k, v   a row of Q, K, V
//	s         a logit: scale * <q, k>, then softcap, ALiBi and bias
//	m         the greatest logit of a row so far
//	p (prob)  exp(s - m), and its quotient by l
//	l         the sum of the probabilities of a row so far
//	LSE       ln of the sum of exp(s) over the visible keys: m + ln(l)
//	o         the sum of p*v of a row; O is o/l
//	dX        the gradient of a loss with respect to X
//	delta     the sum of dO*O of a row, minus dLSE
//
// and, where it is about how the work is done:
//
//	lane      one query of one head, in one element of a vector register
//	strip     the lanes that one pass over the keys serves
//	tile      a strip and the keys of one block
//	block     128 keys, which share one maximum
//	span      1024 keys, accumulated from an empty state and then folded
//	panel     keys of K, or channels of V, that lie together once packed
//	group     in the backward pass, 96 rows of a sequence and kv head
//	cell      in the backward pass, the keys whose gradients are summed at a time
package attention
