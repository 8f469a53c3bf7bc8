package attention_test

import (
	"fmt"
	"log"
	"math"

	"github.com/seed-091431b3/attention"
)

// signal fills n numbers that stand for a model's activations.
func signal(n int, phase float64) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(math.Sin(phase + 0.7*float64(i)))
	}
	return x
}

// An encoder: every token sees all tokens of its own sequence. Two sequences of
// three and two tokens lie back to back, without padding.
func ExampleOperator_Forward_encoder() {
	const heads, dim = 2, 4
	att, err := attention.New(attention.Config{QueryHeads: heads, HeadDim: dim})
	if err != nil {
		log.Fatal(err)
	}
	batch := attention.Ragged([]int{0, 3, 5})
	q, k, v := signal(5*heads*dim, 0), signal(5*heads*dim, 1), signal(5*heads*dim, 2)
	o, lse := make([]float32, 5*heads*dim), make([]float64, 5*heads)
	err = att.Forward(
		attention.Inputs{
			Q: attention.Packed(q, heads, dim), K: attention.Packed(k, heads, dim), V: attention.Packed(v, heads, dim),
		},
		attention.Outputs{O: attention.Packed(o, heads, dim), LSE: lse},
		batch,
	)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("token 0, head 0: %.3f, LSE %.3f\n", o[:dim], lse[0])
	fmt.Printf("token 4, head 1: %.3f, LSE %.3f\n", o[len(o)-dim:], lse[9])
	// Output:
	// token 0, head 0: [0.821 0.801 0.405 -0.181], LSE 2.002
	// token 4, head 1: [0.713 0.142 -0.496 -0.900], LSE 1.077
}

// A decoder with grouped heads: four query heads share two key/value heads, and
// the batch mixes a prompt of three tokens with one new token of a sequence
// that has four keys in its cache.
func ExampleOperator_Forward_decoder() {
	const heads, kvHeads, dim = 4, 2, 4
	att, err := attention.New(attention.Config{
		QueryHeads: heads, KVHeads: kvHeads, HeadDim: dim, Mask: attention.Causal(),
	})
	if err != nil {
		log.Fatal(err)
	}
	batch := attention.RaggedQK([]int{0, 3, 4}, []int{0, 3, 7})
	q, k, v := signal(4*heads*dim, 0), signal(7*kvHeads*dim, 1), signal(7*kvHeads*dim, 2)
	o := make([]float32, 4*heads*dim)
	err = att.Forward(
		attention.Inputs{
			Q: attention.Packed(q, heads, dim), K: attention.Packed(k, kvHeads, dim), V: attention.Packed(v, kvHeads, dim),
		},
		attention.Outputs{O: attention.Packed(o, heads, dim)},
		batch,
	)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("the first token sees itself: %.3f\n", o[:dim])
	fmt.Printf("which has the value          %.3f\n", v[:dim])
	fmt.Printf("the new token, last head:    %.3f\n", o[len(o)-dim:])
	// Output:
	// the first token sees itself: [0.909 0.427 -0.256 -0.818]
	// which has the value          [0.909 0.427 -0.256 -0.818]
	// the new token, last head:    [0.699 0.565 0.166 -0.312]
}

// A sliding window: a token sees the two tokens before it and itself, and the
// first token of the sequence, its "sink", stays visible.
func ExampleSinkTokens() {
	att, err := attention.New(attention.Config{
		QueryHeads: 1, HeadDim: 1, Mask: attention.SinkTokens(1, 2, 0), Scale: attention.Scale(0),
	})
	if err != nil {
		log.Fatal(err)
	}
	// With a scale of 0 all visible keys have the same weight.
	v := []float32{100, 1, 2, 3, 4, 5, 6, 7}
	x := attention.Packed(v, 1, 1)
	o := make([]float32, len(v))
	err = att.Forward(attention.Inputs{Q: x, K: x, V: x}, attention.Outputs{O: attention.Packed(o, 1, 1)}, attention.Ragged([]int{0, len(v)}))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%.2f\n", o)
	// Output: [100.00 50.50 34.33 26.50 27.25 28.00 28.75 29.50]
}

// A window of three keys: the token itself and the two before it.
func ExampleWindow() {
	att, err := attention.New(attention.Config{
		QueryHeads: 1, HeadDim: 1, Mask: attention.Window(2, 0), Scale: attention.Scale(0),
	})
	if err != nil {
		log.Fatal(err)
	}
	v := []float32{1, 2, 3, 4, 5, 6, 7, 8}
	x := attention.Packed(v, 1, 1)
	o := make([]float32, len(v))
	err = att.Forward(attention.Inputs{Q: x, K: x, V: x}, attention.Outputs{O: attention.Packed(o, 1, 1)}, attention.Ragged([]int{0, len(v)}))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(o)
	// Output: [1 1.5 2 3 4 5 6 7]
}

// A mask of one's own: a token sees the tokens of its own colour that come
// before it. The second function spares the question where a whole tile is
// hidden.
func ExampleFunc() {
	colour := func(token int) int { return token % 3 }
	mask := attention.Func(
		func(b, h, i, j int) bool { return j <= i && colour(i) == colour(j) },
		func(b, i0, i1, j0, j1 int) attention.Visibility {
			if j0 >= i1 {
				return attention.Hidden
			}
			return attention.Mixed
		},
	)
	att, err := attention.New(attention.Config{QueryHeads: 1, HeadDim: 1, Mask: mask, Scale: attention.Scale(0)})
	if err != nil {
		log.Fatal(err)
	}
	v := []float32{1, 2, 3, 4, 5, 6, 7, 8, 9}
	x := attention.Packed(v, 1, 1)
	o := make([]float32, len(v))
	err = att.Forward(attention.Inputs{Q: x, K: x, V: x}, attention.Outputs{O: attention.Packed(o, 1, 1)}, attention.Ragged([]int{0, len(v)}))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(o)
	// Output: [1 2 3 2.5 3.5 4.5 4 5 6]
}

// Keys in two places: attention over each half by itself, then merged.
func ExampleMerge() {
	const dim, tokens = 4, 6
	att, err := attention.New(attention.Config{QueryHeads: 1, HeadDim: dim})
	if err != nil {
		log.Fatal(err)
	}
	q, k, v := signal(dim, 0), signal(tokens*dim, 1), signal(tokens*dim, 2)
	over := func(from, to int) attention.Part {
		p := attention.Part{O: make([]float32, dim), LSE: make([]float64, 1)}
		err := att.Forward(
			attention.Inputs{
				Q: attention.Packed(q, 1, dim),
				K: attention.Packed(k[from*dim:], 1, dim),
				V: attention.Packed(v[from*dim:], 1, dim),
			},
			attention.Outputs{O: attention.Packed(p.O, 1, dim), LSE: p.LSE},
			attention.RaggedQK([]int{0, 1}, []int{0, to - from}),
		)
		if err != nil {
			log.Fatal(err)
		}
		return p
	}
	first, second, all := over(0, 3), over(3, tokens), over(0, tokens)
	if err := attention.Merge(first, first, second, dim); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("merged %.4f, LSE %.4f\n", first.O, first.LSE)
	fmt.Printf("all    %.4f, LSE %.4f\n", all.O, all.LSE)
	// Output:
	// merged [0.6084 0.5683 0.2609 -0.1692], LSE [2.1552]
	// all    [0.6084 0.5683 0.2609 -0.1692], LSE [2.1552]
}

// A batch padded to three tokens, packed and back.
func ExamplePack() {
	padded := []float32{
		1, 2, 0,
		3, 4, 5,
	}
	cu := attention.CuSeqlens([]int{2, 3})
	ragged := make([]float32, cu[2])
	if err := attention.Pack(ragged, padded, cu, 3, 1); err != nil {
		log.Fatal(err)
	}
	fmt.Println(ragged)
	if err := attention.Unpack(padded, ragged, cu, 3, 1); err != nil {
		log.Fatal(err)
	}
	fmt.Println(padded)
	// Output:
	// [1 2 3 4 5]
	// [1 2 0 3 4 5]
}

// One training step of an attention layer: forward, the gradient of a loss with
// respect to O, backward, and a step against the gradients. The loss is half the
// squared distance of O from a target.
func ExampleOperator_Backward() {
	const heads, kvHeads, dim, tokens = 4, 2, 4, 5
	att, err := attention.New(attention.Config{
		QueryHeads: heads, KVHeads: kvHeads, HeadDim: dim, Mask: attention.Causal(),
	})
	if err != nil {
		log.Fatal(err)
	}
	batch := attention.Ragged([]int{0, 3, tokens})
	q, k, v := signal(tokens*heads*dim, 0), signal(tokens*kvHeads*dim, 1), signal(tokens*kvHeads*dim, 2)
	dq, dk, dv := make([]float32, len(q)), make([]float32, len(k)), make([]float32, len(v))
	target := signal(len(q), 3)
	o, dO, lse := make([]float32, len(q)), make([]float32, len(q)), make([]float64, tokens*heads)
	in := attention.Inputs{
		Q: attention.Packed(q, heads, dim), K: attention.Packed(k, kvHeads, dim), V: attention.Packed(v, kvHeads, dim),
	}
	out := attention.Outputs{O: attention.Packed(o, heads, dim), LSE: lse}
	grad := attention.Gradients{
		DO: attention.Packed(dO, heads, dim),
		DQ: attention.Packed(dq, heads, dim), DK: attention.Packed(dk, kvHeads, dim), DV: attention.Packed(dv, kvHeads, dim),
	}
	for step := range 4 {
		if err := att.Forward(in, out, batch); err != nil {
			log.Fatal(err)
		}
		var loss float64
		for i := range o {
			dO[i] = o[i] - target[i]
			loss += float64(dO[i]*dO[i]) / 2
		}
		fmt.Printf("step %d: loss %.3f\n", step, loss)
		if err := att.Backward(in, out, grad, batch); err != nil {
			log.Fatal(err)
		}
		for _, x := range []struct{ w, dw []float32 }{{q, dq}, {k, dk}, {v, dv}} {
			for i := range x.w {
				x.w[i] -= 0.2 * x.dw[i]
			}
		}
	}
	// Output:
	// step 0: loss 38.354
	// step 1: loss 23.304
	// step 2: loss 19.977
	// step 3: loss 18.815
}

// Decoding with a cache: a prompt of four tokens, then two tokens one by one,
// and a fork that goes its own way.
func ExampleOperator_ForwardCached() {
	const heads, kvHeads, dim = 4, 2, 4
	att, err := attention.New(attention.Config{QueryHeads: heads, KVHeads: kvHeads, HeadDim: dim, Mask: attention.Causal()})
	if err != nil {
		log.Fatal(err)
	}
	cache, err := attention.NewCache(attention.CacheConfig{KVHeads: kvHeads, HeadDim: dim, Pages: 8})
	if err != nil {
		log.Fatal(err)
	}
	// step appends n tokens and attends from them to all keys so far.
	step := func(s *attention.CachedSequence, n int, phase float64) {
		q, k, v := signal(n*heads*dim, phase), signal(n*kvHeads*dim, phase+1), signal(n*kvHeads*dim, phase+2)
		if err := s.Append(attention.Packed(k, kvHeads, dim), attention.Packed(v, kvHeads, dim), n); err != nil {
			log.Fatal(err)
		}
		o := make([]float32, n*heads*dim)
		err := att.ForwardCached(
			attention.Inputs{Q: attention.Packed(q, heads, dim)},
			attention.Outputs{O: attention.Packed(o, heads, dim)},
			attention.Ragged([]int{0, n}), []*attention.CachedSequence{s},
		)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%d keys, head 0 of the last token: %.3f\n", s.Len(), o[(n-1)*heads*dim:][:dim])
	}
	s := cache.NewSequence()
	step(s, 4, 0)
	other := s.Fork()
	step(s, 1, 5)
	step(s, 1, 6)
	step(other, 1, 7)
	s.Free()
	other.Free()
	fmt.Println(cache.FreePages(), "pages are free")
	// Output:
	// 4 keys, head 0 of the last token: [0.740 0.658 0.266 -0.250]
	// 5 keys, head 0 of the last token: [0.466 0.802 0.761 0.362]
	// 6 keys, head 0 of the last token: [0.678 0.802 0.549 0.038]
	// 5 keys, head 0 of the last token: [0.704 0.550 0.137 -0.340]
	// 8 pages are free
}
