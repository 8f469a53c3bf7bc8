package attention

import (
	"math"
	"unsafe"

	"github.com/seed-091431b3/attention/kernel"
)

// generic is the portable table and the executable form of the arithmetic:
// every other table computes the same bits. Tables for a processor start as a
// copy of it.
func generic() kernel.Ops {
	const width = 8
	return kernel.Ops{
		Name:  "generic",
		Panel: 4,
		Strips: []kernel.Strip{{
			Width: width, Cost: 1000 * width,
			Score: func(s, max, k, q *float32, dk, tiles int) {
				scoreGeneric(s, max, k, q, dk, tiles, 4, width)
			},
			Accumulate: func(o, v, p, alpha *float32, n, step, tiles int) {
				accumulateGeneric(o, v, p, alpha, nil, n, step, tiles, 4, width)
			},
		}},
		Gather:  gatherGeneric,
		Scatter: scatterGeneric,
		PackK:   func(dst, src *float32, stride, n, d int) { packKGeneric(dst, src, stride, n, d, 4) },
		PackV: func(dst, src *float32, stride, n, d, step int) bool {
			return packVGeneric(dst, src, stride, n, d, step, 4)
		},
		Softcap: softcapGeneric,
		ALiBi:   alibiGeneric,
		Bias:    biasGeneric,
		Mask:    maskGeneric,
		Softmax: softmaxGeneric,
		Bits:    bitsGeneric,
		Dropout: dropoutGeneric,
		Fold:    foldGeneric,
		LogSum:  logSumGeneric,
		Sink:    sinkGeneric,
		Columns: width,
		PackRows: func(dst, src *float32, off *int, n, d, step int) bool {
			return packRowsGeneric(dst, src, off, n, d, step, width)
		},
		UnpackRows: func(dst *float32, off *int, src *float32, n, d, step int, mul float32) {
			unpackRowsGeneric(dst, off, src, n, d, step, width, mul)
		},
		Dot:      dotGeneric,
		Gradient: gradientGeneric,
		Hide:     hideGeneric,
		Uncap:    uncapGeneric,
		AddOuter: func(g, p, x *float32, tiles, rows, w, pStep, panels, gStep, xStep int) {
			addOuterGeneric(g, p, x, tiles*4, rows, w, pStep, panels, gStep, xStep, width)
		},
		Stored: [...]kernel.Stored{
			storedGeneric(kernel.Float32), storedGeneric(kernel.BFloat16), storedGeneric(kernel.Float16),
		},
		AccumulateVisible: accumulateGeneric,
	}
}

// view is the slice of n elements at p.
func view[T any](p *T, n int) []T { return unsafe.Slice(p, n) }

// at is the slice of n elements that starts i elements after p.
func at(p *float32, i, n int) []float32 {
	return unsafe.Slice((*float32)(unsafe.Add(unsafe.Pointer(p), 4*i)), n)
}

var negInf = float32(math.Inf(-1))

// maxGeneric is b where the two do not compare, as VMAXPS is.
func maxGeneric(a, b float32) float32 {
	if a > b {
		return a
	}
	return b
}

// exp2Coefficients are those of a polynomial for 2^f, |f| <= 1/2.
var exp2Coefficients = [...]float32{1, .6931472420692444, .24022655189037323, .05550272762775421,
	.009617069736123085, .0013418003218248487, .0001584151032147929}

// exp2Generic returns 2^x for x <= 0: the nearest integer to x is split off, a
// polynomial of degree 6 gives the rest. Worst error 0.86 ulp; x <= -125.5
// gives +0, so that no result is subnormal; exp2(0) = 1; NaN stays NaN.
func exp2Generic(x float32) float32 {
	const magic = 3 << 22 // adding it rounds to an integer, half to even
	if x < -126 {
		x = -126
	}
	n := float32(x+magic) - magic
	if n <= -126 {
		return 0
	}
	p := exp2Fraction(x - n)
	if p != p {
		return p
	}
	return p * power2(int32(n))
}

// exp2Fraction returns 2^f for |f| <= 1/2.
func exp2Fraction(f float32) float32 {
	p := exp2Coefficients[6]
	for i := 5; i >= 0; i-- {
		p = kernel.FMA32(p, f, exp2Coefficients[i])
	}
	return p
}

// power2 returns 2^n for -126 <= n <= 127.
func power2(n int32) float32 { return math.Float32frombits(uint32(n+127) << 23) }

// exp2Split returns two factors whose product is 2^x for x <= 0, down to
// 2^-252, where float32 has subnormals and then nothing.
func exp2Split(x float32) (a, b float32) {
	const magic = 3 << 22
	if x < -252 {
		x = -252
	}
	n := float32(x+magic) - magic
	p := exp2Fraction(x - n)
	if p != p {
		return p, 1
	}
	half := int32(n) >> 1
	return p * power2(half), power2(int32(n) - half)
}

// scoreGeneric: k [tiles][dk][panel], q [dk][w], s [tiles*panel][w].
func scoreGeneric(s, max, k, q *float32, dk, tiles, panel, w int) {
	mx := view(max, w)
	for j := range tiles * panel {
		row := at(s, j*w, w)
		clear(row)
		kj := at(k, j/panel*dk*panel+j%panel, (dk-1)*panel+1)
		for c := range dk {
			kernel.AddScaled(row, kj[c*panel], at(q, c*w, w))
		}
		for r, x := range row {
			mx[r] = maxGeneric(x, mx[r])
		}
	}
}

// softmaxGeneric: s [n][w]; max, m, l, alpha [w].
func softmaxGeneric(s, max, m, l, alpha *float32, n, w int, unit float32, _ *byte) {
	mx, ms, ls, as := view(max, w), view(m, w), view(l, w), view(alpha, w)
	for r := range w {
		big := maxGeneric(mx[r], ms[r])
		low := maxGeneric(-math.MaxFloat32, big)
		as[r] = exp2Generic(float32(float32(ms[r]-low) * unit))
		var sum float32
		for j := range n {
			x := at(s, j*w+r, 1)
			x[0] = exp2Generic(float32(float32(x[0]-low) * unit))
			sum += x[0]
		}
		ls[r] = kernel.FMA32(ls[r], as[r], sum)
		ms[r] = big
	}
}

// accumulateGeneric: o [tiles*panel][w], v [tiles][n][panel] with step between
// tiles, p [n][w], alpha [w] or nil. With words [MaskWords][w] hidden keys are
// left out.
func accumulateGeneric(o, v, p, alpha *float32, words *uint32, n, step, tiles, panel, w int) {
	for c := range tiles * panel {
		row := at(o, c*w, w)
		if alpha == nil {
			clear(row)
		} else {
			for r, a := range view(alpha, w) {
				row[r] *= a
			}
		}
		if n == 0 {
			continue
		}
		vc := at(v, c/panel*step+c%panel, (n-1)*panel+1)
		for j := range n {
			x, pj := vc[j*panel], at(p, j*w, w)
			if words == nil {
				kernel.AddScaled(row, x, pj)
				continue
			}
			for r, seen := range view(words, kernel.MaskWords*w)[j/32*w:][:w] {
				if seen>>(j%32)&1 != 0 {
					row[r] = kernel.FMA32(x, pj[r], row[r])
				}
			}
		}
	}
}

// gatherGeneric: dst [n][w], off [w].
func gatherGeneric(dst, src *float32, off *int, n, w int, mul float32) {
	for r, o := range view(off, w) {
		for c, x := range at(src, o, n) {
			at(dst, c*w+r, 1)[0] = x * mul
		}
	}
}

// scatterGeneric: src [n][w], off and inv [w].
func scatterGeneric(dst *float32, off *int, src, inv *float32, n, w int) {
	by := view(inv, w)
	for r, o := range view(off, w) {
		row := at(dst, o, n)
		for c := range row {
			row[c] = float32(at(src, c*w+r, 1)[0]*by[r]) + 0
		}
	}
}

// packKGeneric: src [n][d] in rows stride apart, dst [ceil(n/panel)][d][panel].
func packKGeneric(dst, src *float32, stride, n, d, panel int) {
	for j := range (n + panel - 1) / panel * panel {
		tile := at(dst, j/panel*d*panel, d*panel)
		for c, x := range at(src, min(j, n-1)*stride, d) {
			tile[c*panel+j%panel] = x
		}
	}
}

// packVGeneric: src [n][d] in rows stride apart, dst [ceil(d/panel)][n][panel]
// with step between panels.
func packVGeneric(dst, src *float32, stride, n, d, step, panel int) (finite bool) {
	finite = true
	for j := range n {
		row := at(src, j*stride, d)
		for c := range (d + panel - 1) / panel * panel {
			var x float32
			if c < d {
				x = row[c]
			}
			finite = finite && x-x == 0
			at(dst, c/panel*step+j*panel+c%panel, 1)[0] = x
		}
	}
	return finite
}

// softcapGeneric: s [n][w], max [w].
func softcapGeneric(s, max *float32, n, w int, mul, softcap float32) {
	eachScore(s, max, n, w, func(_, _ int, x float32) float32 {
		return softcap * tanhGeneric(float32(x*mul))
	})
}

// alibiGeneric: s [n][w]; max, slope, pos [w].
func alibiGeneric(s, max, slope *float32, pos *int32, n, w int, mul float32) {
	slopes, at := view(slope, w), view(pos, w)
	eachScore(s, max, n, w, func(j, r int, x float32) float32 {
		d := at[r] - int32(j)
		return kernel.FMA32(-slopes[r], float32(max32(d, -d)), float32(x*mul))
	})
}

func max32(a, b int32) int32 { return max(a, b) }

// biasGeneric: s and bias [n][w], max [w].
func biasGeneric(s, max, bias *float32, n, w int, mul float32) {
	b := view(bias, n*w)
	eachScore(s, max, n, w, func(j, r int, x float32) float32 {
		return kernel.FMA32(x, mul, b[j*w+r])
	})
}

// maskGeneric: s [n][w], max [w], words [MaskWords][w].
func maskGeneric(s, max *float32, words *uint32, n, w int) {
	bits := view(words, kernel.MaskWords*w)
	eachScore(s, max, n, w, func(j, r int, x float32) float32 {
		if bits[j/32*w+r]>>(j%32)&1 == 0 {
			return negInf
		}
		return x
	})
}

// bitsGeneric: words [MaskWords][w], off [w].
func bitsGeneric(words *uint32, src *bool, off *int, n, w int) {
	bits := view(words, (n+31)/32*w)
	for r, o := range view(off, w) {
		for j, seen := range unsafe.Slice((*bool)(unsafe.Add(unsafe.Pointer(src), o)), n) {
			if !seen {
				bits[j/32*w+r] &^= 1 << (j % 32)
			}
		}
	}
}

// eachScore applies f to the score of key j and lane r, and raises the maximum
// of each lane.
func eachScore(s, max *float32, n, w int, f func(j, r int, x float32) float32) {
	mx := view(max, w)
	for j := range n {
		row := at(s, j*w, w)
		for r, x := range row {
			row[r] = f(j, r, x)
			mx[r] = maxGeneric(row[r], mx[r])
		}
	}
}

// dropoutGeneric: p [n][w]; key, threshold, inv [w].
func dropoutGeneric(p *float32, key *uint64, threshold *uint32, inv *float32, first, n, w int) {
	keys, least, by := view(key, w), view(threshold, w), view(inv, w)
	for j := range n {
		row := at(p, j*w, w)
		for r := range row {
			if kernel.Draw(keys[r], first+j) < least[r] {
				row[r] = 0
			} else {
				row[r] *= by[r]
			}
		}
	}
}

// foldGeneric: o and o2 [n][w]; m, l, m2, l2 [w].
func foldGeneric(o, m, l, o2, m2, l2 *float32, n, w int, unit float32) {
	ms, ls, ms2, ls2 := view(m, w), view(l, w), view(m2, w), view(l2, w)
	for r := range w {
		big := maxGeneric(ms2[r], ms[r])
		low := maxGeneric(-math.MaxFloat32, big)
		a := exp2Generic(float32(float32(ms[r]-low) * unit))
		a2 := exp2Generic(float32(float32(ms2[r]-low) * unit))
		ls[r] = kernel.FMA32(ls[r], a, float32(ls2[r]*a2))
		ms[r] = big
		for c := range n {
			x := at(o, c*w+r, 1)
			x[0] = kernel.FMA32(x[0], a, float32(at(o2, c*w+r, 1)[0]*a2))
		}
	}
}

// logSumGeneric: lse, inv, m, l [w].
func logSumGeneric(lse *float64, inv, m, l *float32, w int, scale float64) {
	out, by, ms, ls := view(lse, w), view(inv, w), view(m, w), view(l, w)
	for r := range w {
		if ls[r] == 0 {
			out[r], by[r] = math.Inf(-1), 0
			continue
		}
		out[r] = float64(float64(ms[r])*scale) + kernel.Ln(ls[r])
		by[r] = 1 / ls[r]
	}
}

// Below 1, tanh(x) is x + x³·P(x²)/Q(x²).
var (
	tanhP = [...]float32{-0.3333333134651184, -0.014686569571495056}
	tanhQ = [...]float32{1, 0.4440595209598541, 0.0157197006046772}
)

// tanhGeneric returns tanh(x), worst error 1.4 ulp, never beyond ±1; NaN stays
// NaN. From 1 on it is 1 - 2t/(1+t) with t = exp(-2x), where an error of t
// matters least; below, a small correction of x. Both are one division.
func tanhGeneric(x float32) float32 {
	y := float32(math.Abs(float64(x)))
	base, num, den := y, float32(0), float32(0)
	if y >= 1 {
		t := exp2Generic(float32(y * (-2 * math.Log2E)))
		base, num, den = 1, -2*t, t+1
	} else {
		u := float32(y * y)
		num = float32(float32(y*u) * kernel.FMA32(u, tanhP[1], tanhP[0]))
		den = kernel.FMA32(kernel.FMA32(u, tanhQ[2], tanhQ[1]), u, tanhQ[0])
	}
	r := base + num/den
	return math.Float32frombits(math.Float32bits(r) | math.Float32bits(x)&(1<<31))
}

// sinkGeneric: m, l, weight, sink [w]. The weight may be subnormal: it is
// rounded once, at the end.
func sinkGeneric(m, l, weight, sink *float32, w int) {
	ms, ls, ws, ss := view(m, w), view(l, w), view(weight, w), view(sink, w)
	for r := range w {
		big := maxGeneric(ss[r], ms[r])
		low := maxGeneric(-math.MaxFloat32, big)
		a, b := exp2Split(float32(float32(ms[r]-low) * log2e))
		c, d := exp2Split(float32(float32(ss[r]-low) * log2e))
		sum := kernel.FMA32(ls[r], float32(a*b), float32(c*d))
		ws[r] = float32(float32(ls[r]*a)/sum) * b
		ms[r], ls[r] = big, sum
	}
}

const log2e = float32(math.Log2E)

// packRowsGeneric: src [n][d] in rows that start at off [n], dst
// [ceil(d/columns)][n][columns] with step between panels.
func packRowsGeneric(dst, src *float32, off *int, n, d, step, columns int) (finite bool) {
	finite = true
	for i, o := range view(off, n) {
		row := at(src, o, d)
		for c := range (d + columns - 1) / columns * columns {
			var x float32
			if c < d {
				x = row[c]
			}
			finite = finite && x-x == 0
			at(dst, c/columns*step+i*columns+c%columns, 1)[0] = x
		}
	}
	return finite
}

// unpackRowsGeneric is the inverse of packRowsGeneric, times mul.
func unpackRowsGeneric(dst *float32, off *int, src *float32, n, d, step, columns int, mul float32) {
	for i, o := range view(off, n) {
		for c := range at(dst, o, d) {
			at(dst, o+c, 1)[0] = float32(at(src, c/columns*step+i*columns+c%columns, 1)[0]*mul) + 0
		}
	}
}

// dotGeneric: a and b [n][w], d [w].
func dotGeneric(d, a, b *float32, n, w int) {
	sum := view(d, w)
	clear(sum)
	for c := range n {
		y := at(b, c*w, w)
		for r, x := range at(a, c*w, w) {
			sum[r] = kernel.FMA32(x, y[r], sum[r])
		}
	}
}

// gradientGeneric: s, dp and keep [n][w], keep or nil; hi, lo, delta [w].
func gradientGeneric(s, dp, keep, hi, lo, delta *float32, n, w int, unit, rest float32) {
	high, low, deltas := view(hi, w), view(lo, w), view(delta, w)
	for i := range n * w {
		r := i % w
		x, d := at(s, i, 1), at(dp, i, 1)
		p := exp2Shifted(float32(float32(x[0]-high[r])-low[r]), unit, rest)
		if keep == nil {
			x[0], d[0] = p, float32(p*float32(d[0]-deltas[r]))
			continue
		}
		k := at(keep, i, 1)[0]
		x[0], d[0] = float32(p*k), float32(p*kernel.FMA32(d[0], k, -deltas[r]))
	}
}

// exp2Shifted returns 2^(GradShift + x·(unit+rest)): +0 where that is 2^-125.5 or
// less, and about 2^127 at the most. The fraction comes from x, not from a rounded
// product, so that no error grows with x. NaN stays NaN.
func exp2Shifted(x, unit, rest float32) float32 {
	const magic, least, most = 3 << 22, -126 - kernel.GradShift, 127 - kernel.GradShift
	x = minGeneric(float32(most)/unit, maxGeneric(float32(least)/unit, x))
	n := float32(float32(x*unit)+magic) - magic
	if n <= least {
		return 0
	}
	p := exp2Fraction(kernel.FMA32(x, rest, kernel.FMA32(x, unit, -n)))
	if p != p {
		return p
	}
	return p * power2(int32(n)+kernel.GradShift)
}

// minGeneric is b where the two do not compare, as VMINPS is.
func minGeneric(a, b float32) float32 {
	if a < b {
		return a
	}
	return b
}

// hideGeneric: a and b [n][w], words [MaskWords][w].
func hideGeneric(a, b *float32, words *uint32, n, w int) {
	bits := view(words, kernel.MaskWords*w)
	for i := range n * w {
		if j, r := i/w, i%w; bits[j/32*w+r]>>(j%32)&1 == 0 {
			at(a, i, 1)[0], at(b, i, 1)[0] = 0, 0
		}
	}
}

// uncapGeneric: ds and capped [n][w].
func uncapGeneric(ds, capped *float32, n, w int, inv float32) {
	d := view(ds, n*w)
	for i, x := range view(capped, n*w) {
		t := float32(x * inv)
		d[i] *= kernel.FMA32(-t, t, 1)
	}
}

// addOuterGeneric: g [panels][keys][columns], x [panels][rows][columns], p
// [ceil(rows/w)][keys][w], with a step between each.
func addOuterGeneric(g, p, x *float32, keys, rows, w, pStep, panels, gStep, xStep, columns int) {
	var lanes [kernel.MaxLanes]float32
	sum := lanes[:columns]
	for panel := range panels {
		for j := range keys {
			clear(sum)
			for i := range rows {
				kernel.AddScaled(sum, at(p, i/w*pStep+j*w+i%w, 1)[0], at(x, panel*xStep+i*columns, columns))
			}
			for c, s := range sum {
				at(g, panel*gStep+j*columns+c, 1)[0] += s
			}
		}
	}
}

// storedGeneric is the loops over what is stored in format f.
func storedGeneric(f kernel.Format) kernel.Stored {
	return kernel.Stored{
		Score: func(s, max, q *float32, k, _ *byte, dk, panels, rows, w int) {
			scoreStoredGeneric(f, s, max, q, k, dk, panels, rows, w)
		},
		Accumulate: func(o, p, alpha *float32, v, _ *byte, n, step, panels, rows, w int) {
			accumulateStoredGeneric(f, o, p, alpha, v, n, step, panels, rows, w)
		},
		Widen:  func(dst *float32, src *byte, n int) { widenGeneric(f, view(dst, n), src, 0) },
		Narrow: func(dst *byte, src *float32, n int) { narrowGeneric(f, dst, view(src, n)) },
	}
}

// widenGeneric fills dst from src, from element first on.
func widenGeneric(f kernel.Format, dst []float32, src *byte, first int) {
	from := unsafe.Add(unsafe.Pointer(src), first*f.Size())
	if f == kernel.Float32 {
		copy(dst, unsafe.Slice((*float32)(from), len(dst)))
		return
	}
	for i, x := range unsafe.Slice((*uint16)(from), len(dst)) {
		dst[i] = f.Widen32(x)
	}
}

func narrowGeneric(f kernel.Format, dst *byte, src []float32) {
	if f == kernel.Float32 {
		copy(unsafe.Slice((*float32)(unsafe.Pointer(dst)), len(src)), src)
		return
	}
	to := unsafe.Slice((*uint16)(unsafe.Pointer(dst)), len(src))
	for i, x := range src {
		to[i] = f.Narrow16(x)
	}
}

// scoreStoredGeneric: k [panels][dk][Run], q [dk][w], s [panels*Run][w].
func scoreStoredGeneric(f kernel.Format, s, max, q *float32, k *byte, dk, panels, rows, w int) {
	var sums [kernel.MaxLanes][kernel.Run]float32
	var keys [kernel.Run]float32
	mx := view(max, w)
	for panel := range panels {
		clear(sums[:rows])
		for c := range dk {
			widenGeneric(f, keys[:], k, (panel*dk+c)*kernel.Run)
			for r, x := range at(q, c*w, rows) {
				kernel.AddScaled(sums[r][:], x, keys[:])
			}
		}
		for r := range rows {
			for j, x := range sums[r] {
				at(s, (panel*kernel.Run+j)*w+r, 1)[0] = x
				mx[r] = maxGeneric(x, mx[r])
			}
		}
	}
}

// accumulateStoredGeneric: v [panels][n][Run], step keys between panels, p
// [n][w], o [w][panels*Run].
func accumulateStoredGeneric(f kernel.Format, o, p, alpha *float32, v *byte, n, step, panels, rows, w int) {
	var values [kernel.Run]float32
	for panel := range panels {
		sum := func(r int) []float32 { return at(o, (r*panels+panel)*kernel.Run, kernel.Run) }
		for r := range rows {
			if alpha == nil {
				clear(sum(r))
				continue
			}
			for c := range sum(r) {
				sum(r)[c] *= at(alpha, r, 1)[0]
			}
		}
		for j := range n {
			widenGeneric(f, values[:], v, (panel*step+j)*kernel.Run)
			for r, x := range at(p, j*w, rows) {
				kernel.AddScaled(sum(r), x, values[:])
			}
		}
	}
}
