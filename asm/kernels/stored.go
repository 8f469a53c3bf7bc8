package main

import (
	"fmt"

	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// format is one of kernel.Format.
type format struct {
	name string
	size int // bytes of an element
}

var (
	float32s  = format{"F32", 4}
	bfloat16s = format{"BF16", 2}
	float16s  = format{"F16", 2}
)

// Constants of kernel.Stored: a panel is run elements wide, and rows are taken
// four at a time.
const run, fewRows = 16, 4

// widen loads a vector of numbers of a format as float32.
func (g *gen) widen(f format, m operand.Mem, v reg.VecPhysical) {
	switch f {
	case float32s:
		g.VMOVUPS(m, v)
	case bfloat16s:
		g.VPMOVZXWD(m, v)
		g.VPSLLD(operand.U8(16), v, v)
	case float16s:
		g.VCVTPH2PS(m, v)
	}
}

// few is the register plan of the loops for few rows: acc[row][x] accumulates
// vector x of the panels at hand, of which b holds one row, widened; a are the
// broadcasts.
type few struct {
	*gen
	f                 format
	acc               [][]reg.VecPhysical
	b, a              []reg.VecPhysical
	half              [2]reg.VecPhysical // see halfOf
	panels            int                // at hand
	data, end, step   reg.GPVirtual      // stored panels, where they end, and bytes between them
	pitch, left, lane reg.GPVirtual      // of the tile of rows: bytes of its rows, rows to come, bytes to the lanes at hand
}

// plan takes registers for a number of panels at a time.
func (w *few) plan(panels int) {
	w.used, w.panels, w.acc = 0, panels, nil
	nv := run / w.lanes * panels
	for range fewRows {
		w.acc = append(w.acc, w.vecN(nv))
	}
	w.b, w.a = w.vecN(nv), w.vecN(fewRows)
	if w.wide && w.f == bfloat16s {
		for i := range w.half {
			w.half[i] = w.vec()
			w.VMOVDQU64(w.halfOf(i), w.half[i])
		}
		ones := w.GP32()
		w.MOVL(operand.U32(0xAAAAAAAA), ones)
		w.KMOVD(ones, reg.K1)
	}
}

// element is vector x of the i-th row of the panels at p.
func (w *few) element(p reg.GPVirtual, i, x int) operand.Mem {
	m := at(p, i*run*w.f.size)
	if w.wide {
		if x > 0 {
			m.Index, m.Scale = w.step, 1
		}
		return m
	}
	m.Disp += x * w.lanes * w.f.size
	return m
}

// halfOf is the indices that VPERMW takes to move row i of two into the upper
// halves of 32 bits; a mask clears the lower. It is one operation where VPMOVZXWD
// and a shift are two (Zen 4, D=128: 18.3 instead of 17.2 GB/s).
func (w *few) halfOf(i int) operand.Mem {
	var content []operand.Constant
	for j := range run {
		content = append(content, operand.U32((i*run+j)<<16))
	}
	return w.gen.data.table(fmt.Sprintf("half%d", i), content...)
}

// multiply accumulates n rank-one updates of the panels at hand and of the lanes
// from b on, rows of which lie pitch apart. Meanwhile it fetches the panels after
// them, or next. But panels of float32 pass by so fast on AVX2 that the processor's
// own prefetching is needed, too, which takes part if only a little is fetched
// ahead; panels of few rows would end before that. (Zen 3: 16 instead of 14.5 GB/s
// of float32, but 13 instead of 14 of 16 bits.) AVX-512, which passes by faster
// still, fetches into the second-level cache, which has room for more requests at a
// time (Zen 4, D=128: 20 instead of 14.5 GB/s of float32, 16.6 instead of 12.7 of
// bfloat16).
func (w *few) multiply(n operand.Mem, from reg.GPVirtual) {
	const near, manyRows = 1024, 64
	p, ahead, count := w.GP64(), w.GP64(), w.GP64()
	fetch := w.PREFETCHT0
	if w.wide {
		fetch = w.PREFETCHT1
	}
	w.MOVQ(w.data, p)
	w.MOVQ(n, count)
	w.LEAQ(operand.Mem{Base: w.data, Index: w.step, Scale: uint8(w.panels)}, ahead)
	w.CMPQ(ahead, w.end)
	w.CMOVQEQ(w.paramMem("next"), ahead)
	if !w.wide && w.f == float32s {
		nearby := w.GP64()
		w.LEAQ(at(p, near), nearby)
		w.CMPQ(count, operand.U8(manyRows))
		w.CMOVQGE(nearby, ahead)
	}
	bytes := run * w.f.size
	step := func(i int, widen func(x int, v reg.VecPhysical)) {
		if i*bytes%64 == 0 {
			fetch(at(ahead, i*bytes))
			if w.panels == 2 {
				fetch(operand.Mem{Base: ahead, Index: w.step, Scale: 1, Disp: i * bytes})
			}
		}
		for x, b := range w.b {
			widen(x, b)
		}
		for r, a := range w.a {
			w.VBROADCASTSS(at(from, 4*r), a)
			for x, acc := range w.acc[r] {
				w.VFMADD231PS(w.b[x], a, acc)
			}
		}
		w.ADDQ(w.pitch, from)
	}
	widen := func(i int) func(int, reg.VecPhysical) {
		return func(x int, v reg.VecPhysical) { w.widen(w.f, w.element(p, i, x), v) }
	}
	w.unrolledRest(count, 4, func(i int) {
		if w.wide && w.f == bfloat16s {
			step(i, func(x int, v reg.VecPhysical) { w.VPERMW_Z(w.element(p, i&^1, x), w.half[i%2], reg.K1, v) })
		} else {
			step(i, widen(i))
		}
	}, func() { step(0, widen(0)) }, func(count int) {
		w.ADDQ(imm(count*bytes), p)
		w.ADDQ(imm(count*bytes), ahead)
	})
}

// eachPanels runs body for the panels at data, of n rows in room for step, and
// each four rows of the tile, and next once it is done with some panels. Four rows
// of a panel are eight accumulators on AVX2, which cover the latency of a
// multiply-add on two ports, but four on AVX-512, which takes two panels of 16 bits
// at a time. Of float32 it takes one, as memory is read faster in a single stream
// (Zen 4, D=128: 24 instead of 20 GB/s).
func (g *gen) eachPanels(f format, data, step string, body func(w *few), next func(w *few)) {
	w := &few{gen: g, f: f, data: g.arg(data), end: g.GP64(), step: g.arg(step), pitch: g.rowBytes(g.arg("w")), left: g.GP64(), lane: g.GP64()}
	g.IMUL3Q(operand.U8(run*f.size), w.step, w.step)
	g.MOVQ(g.paramMem("panels"), w.end)
	g.IMULQ(w.step, w.end)
	g.ADDQ(w.data, w.end)
	atOnce := []int{1}
	if g.wide && f != float32s {
		atOnce = []int{2, 1}
	}
	for _, panels := range atOnce {
		w.plan(panels)
		top, lanes, done, to := g.label("panels"), g.label("lanes"), g.label("done"), g.GP64()
		g.Label(top)
		g.LEAQ(operand.Mem{Base: w.data, Index: w.step, Scale: uint8(panels)}, to)
		g.CMPQ(to, w.end)
		g.JA(operand.LabelRef(done))
		g.XORQ(w.lane, w.lane)
		g.MOVQ(g.paramMem("rows"), w.left)
		g.Label(lanes)
		body(w)
		g.ADDQ(operand.U8(4*fewRows), w.lane)
		g.SUBQ(operand.U8(fewRows), w.left)
		g.JG(operand.LabelRef(lanes))
		next(w)
		g.LEAQ(operand.Mem{Base: w.data, Index: w.step, Scale: uint8(panels)}, w.data)
		g.JMP(operand.LabelRef(top))
		g.Label(done)
	}
	g.end()
}

// scoreStored emits Stored.Score.
func (g *gen) scoreStored(f format) {
	g.function("score"+f.name+g.name, "s, max, q *float32, k, next *byte, dk, panels, rows, w int",
		"is Stored.Score; works like scoreStoredGeneric.")
	s := g.arg("s")
	g.eachPanels(f, "k", "dk", func(w *few) {
		for _, acc := range w.acc {
			for _, x := range acc {
				g.zero(x)
			}
		}
		q := g.GP64()
		g.MOVQ(g.paramMem("q"), q)
		g.ADDQ(w.lane, q)
		w.multiply(g.paramMem("dk"), q)
		w.storeScores(s)
	}, func(w *few) {
		for range 2 * w.panels {
			g.LEAQ(operand.Mem{Base: s, Index: w.pitch, Scale: 8}, s)
		}
	})
}

// storeScores transposes the scores, four rows at a time, into the lanes at hand
// of the tile at s, and raises their maxima.
func (w *few) storeScores(s reg.GPVirtual) {
	rows, from, max := make([]reg.GPVirtual, fewRows), w.GP64(), w.GP64()
	w.MOVQ(w.paramMem("max"), max)
	w.ADDQ(w.lane, max)
	t, big := w.a, w.b[0]
	w.broadcastLanes(max, big)
	w.LEAQ(operand.Mem{Base: s, Index: w.lane, Scale: 1}, from)
	for i := range rows {
		rows[i] = w.GP64()
	}
	for x := range w.acc[0] {
		w.MOVQ(from, rows[0])
		for i := 1; i < fewRows; i++ {
			w.LEAQ(operand.Mem{Base: rows[i-1], Index: w.pitch, Scale: 1}, rows[i])
		}
		a := []reg.VecPhysical{w.acc[0][x], w.acc[1][x], w.acc[2][x], w.acc[3][x]}
		w.VUNPCKLPS(a[1], a[0], t[0])
		w.VUNPCKHPS(a[1], a[0], t[1])
		w.VUNPCKLPS(a[3], a[2], t[2])
		w.VUNPCKHPS(a[3], a[2], t[3])
		// Quarter h of the i-th holds key 4h+i.
		for i := range a {
			w.VSHUFPS(operand.U8([]int{0x44, 0xEE}[i%2]), t[2+i/2], t[i/2], a[i])
			w.VMAXPS(big, a[i], big)
			w.storeQuarters(a[i], rows[i])
		}
		for range w.lanes / 8 {
			w.LEAQ(operand.Mem{Base: from, Index: w.pitch, Scale: 8}, from)
		}
	}
	w.foldQuarters(big, t[0])
	w.VMOVUPS(big.AsX(), at(max, 0))
}

// broadcastLanes loads four lanes into every quarter of v.
func (w *few) broadcastLanes(p reg.GPVirtual, v reg.VecPhysical) {
	if w.wide {
		w.VBROADCASTF32X4(at(p, 0), v)
	} else {
		w.VBROADCASTF128(at(p, 0), v)
	}
}

// storeQuarters stores the quarters of v four rows of the tile apart.
func (w *few) storeQuarters(v reg.VecPhysical, row reg.GPVirtual) {
	w.VMOVUPS(v.AsX(), at(row, 0))
	if !w.wide {
		w.VEXTRACTF128(operand.U8(1), v, operand.Mem{Base: row, Index: w.pitch, Scale: 4})
		return
	}
	w.VEXTRACTF32X4(operand.U8(1), v, operand.Mem{Base: row, Index: w.pitch, Scale: 4})
	w.VEXTRACTF32X4(operand.U8(2), v, operand.Mem{Base: row, Index: w.pitch, Scale: 8})
	far := w.GP64()
	w.LEAQ(operand.Mem{Base: row, Index: w.pitch, Scale: 4}, far)
	w.VEXTRACTF32X4(operand.U8(3), v, operand.Mem{Base: far, Index: w.pitch, Scale: 8})
}

// foldQuarters leaves the maximum of the quarters of v in its first; t is a
// temporary.
func (w *few) foldQuarters(v, t reg.VecPhysical) {
	if w.wide {
		w.VEXTRACTF64X4(operand.U8(1), v, t.AsY())
		w.VMAXPS(v.AsY(), t.AsY(), v.AsY())
	}
	w.VEXTRACTF128(operand.U8(1), v.AsY(), t.AsX())
	w.VMAXPS(v.AsX(), t.AsX(), v.AsX())
}

// accumulateStored emits Stored.Accumulate.
func (g *gen) accumulateStored(f format) {
	g.function("accumulate"+f.name+g.name, "o, p, alpha *float32, v, next *byte, n, step, panels, rows, w int",
		"is Stored.Accumulate; works like accumulateStoredGeneric.")
	column, row := g.GP64(), g.GP64() // of o: where the panel at hand starts, and bytes of a row
	g.MOVQ(g.paramMem("o"), column)
	g.MOVQ(g.paramMem("panels"), row)
	g.SHLQ(operand.U8(6), row)
	g.eachPanels(f, "v", "step", func(w *few) {
		// Lanes are four bytes each, and rows of o so many more.
		o, o3 := g.GP64(), g.GP64()
		g.MOVQ(w.lane, o)
		g.SHRQ(operand.U8(2), o)
		g.IMULQ(row, o)
		g.ADDQ(column, o)
		g.LEAQ(operand.Mem{Base: row, Index: row, Scale: 2}, o3)
		g.ADDQ(o, o3)
		sums := func(r, x int) operand.Mem {
			m := operand.Mem{Base: o, Disp: x * g.bytes()}
			switch r {
			case 1, 2:
				m.Index, m.Scale = row, uint8(r)
			case 3:
				m.Base = o3
			}
			return m
		}
		w.startSums(sums)
		p := g.GP64()
		g.MOVQ(g.paramMem("p"), p)
		g.ADDQ(w.lane, p)
		w.multiply(g.paramMem("n"), p)
		for r, acc := range w.acc {
			for x, v := range acc {
				g.VMOVUPS(v, sums(r, x))
			}
		}
	}, func(w *few) { g.ADDQ(imm(64*w.panels), column) })
}

// startSums loads the accumulators from sums times alpha, or clears them.
func (w *few) startSums(sums func(r, x int) operand.Mem) {
	alpha, empty, ready := w.GP64(), w.label("empty"), w.label("ready")
	w.MOVQ(w.paramMem("alpha"), alpha)
	w.TESTQ(alpha, alpha)
	w.JZ(operand.LabelRef(empty))
	w.ADDQ(w.lane, alpha)
	for r, acc := range w.acc {
		w.VBROADCASTSS(at(alpha, 4*r), w.a[r])
		for x, v := range acc {
			w.VMULPS(sums(r, x), w.a[r], v)
		}
	}
	w.JMP(operand.LabelRef(ready))
	w.Label(empty)
	for _, acc := range w.acc {
		for _, v := range acc {
			w.zero(v)
		}
	}
	w.Label(ready)
}

// widenStored emits Stored.Widen.
func (g *gen) widenStored(f format) {
	g.function("widen"+f.name, "dst *float32, src *byte, n int", "is Stored.Widen; works like widenGeneric.")
	dst, src, n := g.arg("dst"), g.arg("src"), g.arg("n")
	v, one := g.vec(), g.GP32()
	g.eightAndOne(n, func() {
		g.widen(f, at(src, 0), v)
		g.VMOVUPS(v, at(dst, 0))
		g.ADDQ(operand.U8(16), src)
		g.ADDQ(operand.U8(32), dst)
	}, func() {
		g.MOVWLZX(at(src, 0), one)
		g.VMOVD(one, v.AsX())
		if f == bfloat16s {
			g.VPSLLD(operand.U8(16), v.AsX(), v.AsX())
		} else {
			g.VCVTPH2PS(v.AsX(), v.AsX())
		}
		g.VMOVSS(v.AsX(), at(dst, 0))
		g.ADDQ(operand.U8(2), src)
		g.ADDQ(operand.U8(4), dst)
	})
	g.end()
}

// narrowStored emits Stored.Narrow.
func (g *gen) narrowStored(f format) {
	g.function("narrow"+f.name, "dst *byte, src *float32, n int", "is Stored.Narrow; works like narrowGeneric.")
	dst, src, n := g.arg("dst"), g.arg("src"), g.arg("n")
	v, t, one := g.vec(), g.vecN(3), g.GP32()
	g.eightAndOne(n, func() {
		g.VMOVUPS(at(src, 0), v)
		g.narrow(f, v, t)
		g.VMOVUPS(v.AsX(), at(dst, 0))
		g.ADDQ(operand.U8(32), src)
		g.ADDQ(operand.U8(16), dst)
	}, func() {
		g.VMOVSS(at(src, 0), v.AsX())
		g.narrow(f, v, t)
		g.VMOVD(v.AsX(), one)
		g.MOVW(one.As16(), at(dst, 0))
		g.ADDQ(operand.U8(4), src)
		g.ADDQ(operand.U8(2), dst)
	})
	g.end()
}

// eightAndOne runs eight for each eight of n, and one for each of the rest. It
// destroys n.
func (g *gen) eightAndOne(n reg.GPVirtual, eight, one func()) {
	rest := g.GP64()
	g.MOVQ(n, rest)
	g.SHRQ(operand.U8(3), n)
	g.ANDQ(operand.U8(7), rest)
	g.loop(n, eight)
	g.loop(rest, one)
}

// narrow leaves the eight numbers in v in a 16-bit format in its lower half; t are
// temporaries.
func (g *gen) narrow(f format, v reg.VecPhysical, t []reg.VecPhysical) {
	if f == float16s {
		const halfToEven = 0
		g.VCVTPS2PH(operand.U8(halfToEven), v, v.AsX())
		return
	}
	upper, odd, nan := t[0], t[1], t[2]
	const unordered = 3
	g.VCMPPS(operand.U8(unordered), v, v, nan)
	g.VPSRLD(operand.U8(16), v, upper)
	g.VPAND(g.data.word(1), upper, odd)
	g.VPADDD(odd, v, v)
	g.VPADDD(g.data.word(0x7FFF), v, v)
	g.VPSRLD(operand.U8(16), v, v)
	g.VPOR(g.data.word(0x40), upper, upper)
	g.VBLENDVPS(nan, upper, v, v)
	g.VPACKUSDW(v, v, v)
	g.VPERMQ(operand.U8(0x08), v, v)
}

// hasF16C emits a function that asks the processor for what x/sys/cpu does not
// tell.
func (g *gen) hasF16C() {
	g.Function("cpuHasF16C")
	g.SignatureExpr("func() (has bool)")
	g.Doc("cpuHasF16C reports whether the processor converts float16.")
	g.MOVL(operand.U32(1), reg.EAX)
	g.XORL(reg.ECX, reg.ECX)
	g.CPUID()
	has := g.GP8()
	g.BTL(operand.U8(29), reg.ECX)
	g.SETCS(has)
	g.Store(has, g.ReturnIndex(0))
	g.RET()
}
