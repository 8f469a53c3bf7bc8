package attention

import (
	"fmt"

	"github.com/seed-091431b3/attention/kernel"
)

// Alignment says where the queries of a sequence sit among its keys when their
// numbers differ.
type Alignment int

const (
	// BottomRight puts the last query at the last key: query i of nq sits at
	// position i + nk - nq. It is what decoding with a cache means, and
	// FlashAttention since 2.1.
	BottomRight Alignment = iota
	// TopLeft puts query 0 at key 0, as PyTorch and JAX do.
	TopLeft
)

// Batch says which tokens form which sequence. The zero Batch is empty.
type Batch struct {
	// CuQ and CuK are cumulative lengths ("cu_seqlens"): sequence b owns query
	// tokens CuQ[b] <= t < CuQ[b+1], and so for keys. Both start at 0, and have
	// one more entry than there are sequences. CuK nil means CuQ.
	CuQ, CuK []int
	// Align gives the position of query 0 of every sequence in key coordinates,
	// unless Offsets, one entry a sequence, gives it as a number.
	Align   Alignment
	Offsets []int
	// Masks, one a sequence, apply besides the operator's own mask.
	Masks []Mask
	// IDs name the sequences to the dropout hash, so that one keeps its dropout
	// whatever it is batched with. nil: the index in the batch.
	IDs []uint64
}

// Ragged is a batch of self-attention: sequence b has the tokens
// cu[b] <= t < cu[b+1].
func Ragged(cu []int) Batch { return Batch{CuQ: cu} }

// RaggedQK is a batch whose queries and keys differ in number: cross-attention,
// or queries that follow cached keys.
func RaggedQK(cuQ, cuK []int) Batch { return Batch{CuQ: cuQ, CuK: cuK} }

// Dense is a batch of n sequences that all have nq queries and nk keys.
func Dense(n, nq, nk int) Batch {
	cu := func(length int) []int {
		cu := make([]int, max(n, 0)+1)
		for b := range cu {
			cu[b] = b * length
		}
		return cu
	}
	return Batch{CuQ: cu(nq), CuK: cu(nk)}
}

// CuSeqlens returns the cumulative lengths of sequences of the given lengths.
func CuSeqlens(lengths []int) []int {
	cu := make([]int, len(lengths)+1)
	for b, n := range lengths {
		cu[b+1] = cu[b] + n
	}
	return cu
}

// Sequences is the number of sequences.
func (b *Batch) Sequences() int { return max(len(b.CuQ)-1, 0) }

// keys is CuK or what stands for it.
func (b *Batch) keys() []int {
	if b.CuK == nil {
		return b.CuQ
	}
	return b.CuK
}

// sequence describes sequence n.
func (b *Batch) sequence(n int) kernel.Sequence {
	cuK := b.keys()
	s := kernel.Sequence{Index: n, Queries: b.CuQ[n+1] - b.CuQ[n], Keys: cuK[n+1] - cuK[n]}
	switch {
	case b.Offsets != nil:
		s.Offset = b.Offsets[n]
	case b.Align == BottomRight:
		s.Offset = s.Keys - s.Queries
	}
	return s
}

// maxLength bounds the queries, the keys and the offset of one sequence, so
// that a distance between positions fits 32 bits.
const maxLength = 1 << 29

func checkCu(name string, cu []int) error {
	if cu[0] != 0 {
		return fmt.Errorf("attention: %s: entry 0 is %d, must be 0", name, cu[0])
	}
	for i := 1; i < len(cu); i++ {
		if cu[i] < cu[i-1] {
			return fmt.Errorf("attention: %s: entry %d is %d, below entry %d, which is %d", name, i, cu[i], i-1, cu[i-1])
		}
		if n := cu[i] - cu[i-1]; n > maxLength {
			return fmt.Errorf("attention: %s: sequence %d has %d tokens, at most %d are possible", name, i-1, n, maxLength)
		}
	}
	return nil
}

// check verifies everything that does not need the data. A batch without CuQ is
// empty.
func (b *Batch) check(heads int, own Mask) error {
	if len(b.CuQ) == 0 && len(b.CuK) == 0 {
		return nil
	}
	cuK := b.keys()
	if len(b.CuQ) != len(cuK) {
		return fmt.Errorf("attention: cu_seqlens: Q has %d entries, K has %d, must be the same", len(b.CuQ), len(cuK))
	}
	if err := checkCu("cu_seqlens of Q", b.CuQ); err != nil {
		return err
	}
	if err := checkCu("cu_seqlens of K", cuK); err != nil {
		return err
	}
	n := b.Sequences()
	for _, l := range [...]struct {
		name string
		n    int
		nil  bool
	}{{"Offsets", len(b.Offsets), b.Offsets == nil}, {"Masks", len(b.Masks), b.Masks == nil}, {"IDs", len(b.IDs), b.IDs == nil}} {
		if !l.nil && l.n != n {
			return fmt.Errorf("attention: %s: has %d entries, the batch has %d sequences", l.name, l.n, n)
		}
	}
	if b.Align != BottomRight && b.Align != TopLeft {
		return fmt.Errorf("attention: Align: %d is not an alignment", b.Align)
	}
	for i := range n {
		s := b.sequence(i)
		if s.Offset > maxLength || s.Offset < -maxLength {
			return fmt.Errorf("attention: Offsets: entry %d is %d, must be within ±%d", i, s.Offset, maxLength)
		}
		if err := own.check(s, heads); err != nil {
			return err
		}
		if b.Masks != nil {
			if err := b.Masks[i].check(s, heads); err != nil {
				return err
			}
		}
	}
	return nil
}
