package kerneltest

import (
	"fmt"
	"math"
	"testing"

	"github.com/seed-091431b3/attention/kernel"
)

// inPlace holds a function that changes the n rows of a score tile and raises
// their maxima. call gets the table and copies of the tile and of max.
func (x *test) inPlace(label string, tile []float32, call func(ops *kernel.Ops, s, max []float32)) {
	x.Helper()
	before := x.maxima()
	want, wantMax := clone(tile), clone(before)
	call(x.want, want, wantMax)
	x.each(label, func() {
		s, max := inout(x.mem, "s", tile), inout(x.mem, "max", before)
		call(x.got, s, max)
		x.same("s", want, s, x.w)
		x.sameMax(wantMax, max, want)
	})
}

// maxima are what earlier tiles may have left in max.
func (x *test) maxima() []float32 {
	max := repeat(-inf, x.w)
	for r := range max {
		if x.IntN(4) == 0 {
			max[r] = float32(x.NormFloat64())
		}
	}
	return max
}

// placed returns v for the portable table, and a guarded copy for the other.
func placed[T any](x *test, ops *kernel.Ops, name string, v []T) *T {
	if ops == x.want {
		return ptr(v)
	}
	return input(x.mem, name, v)
}

// softcap: s = softcap * tanh(s*mul).
func (s *suite) softcap(t *testing.T) {
	s.perWidth(t, func(x *test) {
		try := func(x *test, tile []float32, mul, softcap float32) {
			n := len(tile) / x.w
			x.inPlace(fmt.Sprintf("n=%d mul=%g softcap=%g", n, mul, softcap), tile, func(ops *kernel.Ops, s, max []float32) {
				ops.Softcap(&s[0], &max[0], n, x.w, mul, softcap)
			})
		}
		x.sizes(func(x *test, n int, k kind) {
			try(x, k.fill(x.Rand, n*x.w), 0.25, 30)
			try(x, k.fill(x.Rand, n*x.w), 0x1p-20, 5)
		})
		x.run("every range of tanh", func(x *test) {
			for range x.many(2, 300) {
				tile := make([]float32, kernel.BlockKeys*x.w)
				for i := range tile {
					tile[i] = float32(math.Ldexp(x.Float64()*2-1, x.IntN(12)-6))
				}
				try(x, tile, 1, 50)
			}
		})
	})
}

// many is how often to repeat something random.
func (x *test) many(short, long int) int {
	if testing.Short() {
		return short
	}
	return long
}

// alibi: s[j][r] = fma(-slope[r], float32(|pos[r]-j|), s*mul).
func (s *suite) alibi(t *testing.T) {
	s.perWidth(t, func(x *test) {
		x.sizes(func(x *test, n int, k kind) {
			for _, reach := range []int64{200, 1 << 24, 1 << 30} {
				slope, pos := ordinary.fill(x.Rand, x.w), make([]int32, x.w)
				for r := range pos {
					pos[r] = int32(x.Int64N(2*reach) - reach)
					if x.IntN(8) == 0 {
						slope[r] = weird[x.IntN(2)]
					}
				}
				if reach == 200 {
					slope = coarse.fill(x.Rand, x.w)
				}
				x.inPlace(fmt.Sprintf("n=%d positions within %d", n, reach), k.fill(x.Rand, n*x.w), func(ops *kernel.Ops, s, max []float32) {
					ops.ALiBi(&s[0], &max[0], placed(x, ops, "slope", slope), placed(x, ops, "pos", pos), n, x.w, 0.125)
				})
			}
		})
	})
}

// bias: s = fma(s, mul, bias).
func (s *suite) bias(t *testing.T) {
	s.perWidth(t, func(x *test) {
		x.sizes(func(x *test, n int, k kind) {
			for _, mul := range []float32{1, 0.75} {
				bias := k.fill(x.Rand, n*x.w)
				x.inPlace(fmt.Sprintf("n=%d mul=%g", n, mul), k.fill(x.Rand, n*x.w), func(ops *kernel.Ops, s, max []float32) {
					ops.Bias(&s[0], &max[0], placed(x, ops, "bias", bias), n, x.w, mul)
				})
			}
		})
	})
}

// mask: s[j][r] = -Inf where bit j%32 of words[j/32][r] is clear.
func (s *suite) mask(t *testing.T) {
	s.perWidth(t, func(x *test) {
		x.sizes(func(x *test, n int, k kind) {
			for _, words := range x.masks() {
				x.inPlace(fmt.Sprintf("n=%d", n), k.fill(x.Rand, n*x.w), func(ops *kernel.Ops, s, max []float32) {
					ops.Mask(&s[0], &max[0], placed(x, ops, "words", words), n, x.w)
				})
			}
		})
		x.run("each single key", func(x *test) {
			for j := range kernel.BlockKeys {
				words := make([]uint32, kernel.MaskWords*x.w)
				words[j/32*x.w+j%x.w] = 1 << (j % 32)
				x.inPlace(fmt.Sprintf("key %d", j), ordinary.fill(x.Rand, kernel.BlockKeys*x.w), func(ops *kernel.Ops, s, max []float32) {
					ops.Mask(&s[0], &max[0], placed(x, ops, "words", words), kernel.BlockKeys, x.w)
				})
			}
		})
	})
}

// masks returns words for a tile: nothing, everything and something visible.
func (x *test) masks() [][]uint32 {
	n := kernel.MaskWords * x.w
	some := make([]uint32, n)
	for i := range some {
		some[i] = x.Uint32()
	}
	return [][]uint32{repeat(uint32(0), n), repeat(^uint32(0), n), some}
}

// bits: words[j/32][r] loses bit j%32 unless src[off[r]+j].
func (s *suite) bits(t *testing.T) {
	s.perWidth(t, func(x *test) {
		for _, dense := range []int{1, 2, 4} {
			x.run(fmt.Sprintf("one key in %d visible", dense), func(x *test) {
				for _, n := range x.keyCounts() {
					for _, gap := range []int{0, 1, -n} { // with -n all lanes share a row
						off, size := x.layRows(n, gap)
						src, before := make([]bool, max(size, n)), make([]uint32, (n+31)/32*x.w)
						for i := range src {
							src[i] = x.IntN(dense) == 0
						}
						for i := range before {
							before[i] = ^(x.Uint32() & x.Uint32()) // the bits past the last key stay, too
						}
						want := clone(before)
						x.want.Bits(&want[0], &src[0], &off[0], n, x.w)
						x.each(fmt.Sprintf("n=%d gap=%d", n, gap), func() {
							words := inout(x.mem, "words", before)
							x.got.Bits(&words[0], input(x.mem, "src", src), input(x.mem, "off", off), n, x.w)
							for i := range want {
								if words[i] != want[i] {
									x.Fatalf("%s: words[%d][%d] is %#x, must be %#x", x.mem.where(), i/x.w, i%x.w, words[i], want[i])
								}
							}
						})
					}
				}
			})
		}
	})
}

// dropout: p[j][r] = p*inv[r] if draw(key[r], first+j) >= threshold[r], else 0.
func (s *suite) dropout(t *testing.T) {
	s.perWidth(t, func(x *test) {
		x.sizes(func(x *test, n int, k kind) {
			for _, first := range []int{0, 2, 126, 128, 1<<29 - 128} {
				tile, inv := k.fill(x.Rand, n*x.w), k.fill(x.Rand, x.w)
				key, threshold := make([]uint64, x.w), make([]uint32, x.w)
				for r := range key {
					key[r] = x.Uint64()
					threshold[r] = [...]uint32{0, 1, 1 << 31, 1<<31 - 1, math.MaxUint32, x.Uint32()}[x.IntN(6)]
				}
				want := clone(tile)
				x.want.Dropout(&want[0], &key[0], &threshold[0], &inv[0], first, n, x.w)
				x.each(fmt.Sprintf("n=%d first=%d", n, first), func() {
					p := inout(x.mem, "p", tile)
					x.got.Dropout(&p[0], input(x.mem, "key", key), input(x.mem, "threshold", threshold), input(x.mem, "inv", inv), first, n, x.w)
					x.same("p", want, p, x.w)
				})
			}
		})
		x.run("a threshold that a draw meets", meetThresholds)
	})
}

// meetThresholds puts every lane's threshold at the draw of one of its keys,
// which is kept, and just above it, where it is not.
func meetThresholds(x *test) {
	const n, first = 64, 10
	for j := range n {
		ones, key, threshold := repeat(float32(1), n*x.w), make([]uint64, x.w), make([]uint32, x.w)
		for r := range key {
			key[r] = x.Uint64()
			threshold[r] = kernel.Draw(key[r], first+j) + uint32(r%2)
		}
		x.each(fmt.Sprintf("key %d", j), func() {
			p := inout(x.mem, "p", ones)
			x.got.Dropout(&p[0], input(x.mem, "key", key), input(x.mem, "threshold", threshold), input(x.mem, "inv", ones[:x.w]), first, n, x.w)
			for r := range x.w {
				if keep := p[j*x.w+r] == 1; keep != (threshold[r] <= kernel.Draw(key[r], first+j)) {
					x.Fatalf("%s: lane %d with draw %#x and threshold %#x: kept is %v", x.mem.where(), r,
						kernel.Draw(key[r], first+j), threshold[r], keep)
				}
			}
		})
	}
}
