package main

import (
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// dropout emits Ops.Dropout. A draw has 64 bits, those of two keys, so that the
// hashes of a vector of rows fill two registers: lo those of rows 0 and 1 of
// each group of four, hi those of rows 2 and 3, as VSHUFPS wants them to put
// the halves of both in order.
func (g *gen) dropout() {
	g.function("dropout"+g.name, "p *float32, key *uint64, threshold *uint32, inv *float32, first, n, w int",
		"is Ops.Dropout; works like dropoutGeneric.")
	p, key, threshold, inv := g.arg("p"), g.arg("key"), g.arg("threshold"), g.arg("inv")
	first, rows := g.arg("first"), g.arg("n")
	w := g.rowBytes(g.arg("w"))
	d := &draws{lo: g.vec(), hi: g.vec(), a: g.vec(), b: g.vec(), t: g.vec(), u: g.vec()}
	d.step = g.wideConstant(golden)
	least, by, x, sign := g.vec(), g.vec(), g.vec(), g.vec()
	g.VBROADCASTSS(g.data.word(1<<31), sign)
	// What first/2 steps add to the key.
	ahead := g.GP64()
	g.SHRQ(operand.U8(1), first)
	g.MOVQ(operand.U64(golden), ahead)
	g.IMULQ(first, ahead)
	g.columns(w, func(offset reg.GPVirtual) {
		g.loadKeys(d, key, offset, ahead)
		g.VMOVUPS(operand.Mem{Base: threshold, Index: offset, Scale: 1}, least)
		g.VXORPS(sign, least, least)
		g.VMOVUPS(operand.Mem{Base: inv, Index: offset, Scale: 1}, by)
		ptr, n := g.GP64(), g.GP64()
		g.LEAQ(operand.Mem{Base: p, Index: offset, Scale: 1}, ptr)
		g.MOVQ(rows, n)
		drop := func(imm uint8) {
			g.VSHUFPS(operand.U8(imm), d.b, d.a, x)
			g.VXORPS(sign, x, x)
			if g.wide {
				const notLess = 5
				g.VPCMPD(operand.U8(notLess), least, x, reg.K1)
				g.VMULPS_Z(at(ptr, 0), by, reg.K1, x)
			} else {
				g.VPCMPGTD(x, least, x)
				g.VMULPS(at(ptr, 0), by, d.t)
				g.VANDNPS(d.t, x, x)
			}
			g.VMOVUPS(x, at(ptr, 0))
			g.ADDQ(w, ptr)
		}
		pairs := g.GP64()
		g.MOVQ(n, pairs)
		g.SHRQ(operand.U8(1), pairs)
		g.loop(pairs, func() {
			g.draw(d)
			drop(0x88)
			drop(0xDD)
		})
		last := g.label("even")
		g.TESTQ(operand.U32(1), n)
		g.JZ(operand.LabelRef(last))
		g.draw(d)
		drop(0x88)
		g.Label(last)
	})
	g.end()
}

const (
	golden = 0x9E3779B97F4A7C15
	mixA   = 0xBF58476D1CE4E5B9
	mixB   = 0x94D049BB133111EB
)

// draws is the register plan of the hash: the streams' positions lo and hi, the
// draws a and b, and two temporaries.
type draws struct {
	lo, hi, a, b, t, u, step reg.VecPhysical
}

// wideConstant hands out a register with a 64-bit constant in every lane.
func (g *gen) wideConstant(x uint64) reg.VecPhysical {
	v := g.vec()
	g.VPBROADCASTQ(g.data.wide(x), v)
	return v
}

// loadKeys sets lo and hi to the keys of the rows of a column, ahead added.
func (g *gen) loadKeys(d *draws, key, offset, ahead reg.GPVirtual) {
	from := operand.Mem{Base: key, Index: offset, Scale: 2}
	second := from
	second.Disp = g.bytes()
	g.VMOVUPS(from, d.a)
	g.VMOVUPS(second, d.b)
	if g.wide {
		g.VSHUFI64X2(operand.U8(0x88), d.b, d.a, d.lo)
		g.VSHUFI64X2(operand.U8(0xDD), d.b, d.a, d.hi)
		g.VPBROADCASTQ(ahead, d.t)
	} else {
		g.VPERM2I128(operand.U8(0x20), d.b, d.a, d.lo)
		g.VPERM2I128(operand.U8(0x31), d.b, d.a, d.hi)
		g.VMOVQ(ahead, d.t.AsX())
		g.VPBROADCASTQ(d.t.AsX(), d.t)
	}
	g.VPADDQ(d.t, d.lo, d.lo)
	g.VPADDQ(d.t, d.hi, d.hi)
}

// draw advances the streams and leaves their next draws in a and b.
func (g *gen) draw(d *draws) {
	for _, s := range [][2]reg.VecPhysical{{d.lo, d.a}, {d.hi, d.b}} {
		from, x := s[0], s[1]
		g.VPADDQ(d.step, from, from)
		g.xorShift(d, 30, from, x)
		g.multiply64(d, mixA, x)
		g.xorShift(d, 27, x, x)
		g.multiply64(d, mixB, x)
		g.xorShift(d, 31, x, x)
	}
}

// xorShift sets x to from ^ from>>n.
func (g *gen) xorShift(d *draws, n uint8, from, x reg.VecPhysical) {
	g.VPSRLQ(operand.U8(n), from, d.t)
	g.VXORPS(d.t, from, x)
}

// multiply64 multiplies x by a constant, in 64 bits. AVX2 has products of 32
// bits only: x·c = lo·lo + (lo·hi + hi·lo)·2^32.
func (g *gen) multiply64(d *draws, c uint64, x reg.VecPhysical) {
	if g.wide {
		g.VPMULLQ(g.data.wide(c), x, x)
		return
	}
	lo, hi := g.data.wide(c&0xFFFFFFFF), g.data.wide(c>>32)
	g.VPSRLQ(operand.U8(32), x, d.t)
	g.VPMULUDQ(lo, d.t, d.t)
	g.VPMULUDQ(hi, x, d.u)
	g.VPADDQ(d.u, d.t, d.t)
	g.VPSLLQ(operand.U8(32), d.t, d.t)
	g.VPMULUDQ(lo, x, x)
	g.VPADDQ(d.t, x, x)
}
