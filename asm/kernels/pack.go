package main

import (
	"fmt"

	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// prefetchRows is how many rows ahead packV fetches: the rows of V are short and
// far apart, and the hardware does not follow. (packK, whose panels are several
// rows at once, gains nothing from it on Zen 3.)
const prefetchRows = 16

// packK emits Ops.PackK.
func (g *gen) packK() {
	g.function("packK"+g.name, "dst, src *float32, stride, n, d int", "is Ops.PackK; works like packKGeneric.")
	dst, src, stride := g.arg("dst"), g.arg("src"), g.arg("stride")
	n := g.arg("n")
	g.SHLQ(operand.U8(2), stride)
	top, done := g.label("panel"), g.label("done")
	g.Label(top)
	g.CMPQ(n, operand.U8(0))
	g.JLE(operand.LabelRef(done))
	rows := make([]reg.GPVirtual, g.panel)
	for i := range rows {
		rows[i] = g.GP64()
	}
	c := g.GP64()
	for i := range rows {
		if i == 0 {
			g.MOVQ(src, rows[0])
			continue
		}
		// A row past the end is the last one again.
		g.MOVQ(rows[i-1], rows[i])
		g.ADDQ(stride, rows[i])
		g.CMPQ(n, operand.U8(i))
		g.CMOVQLE(rows[i-1], rows[i])
	}
	g.LEAQ(operand.Mem{Base: src, Index: stride, Scale: uint8(g.panel)}, src)
	blocks := g.arg("d")
	g.SHRQ(operand.U8(3), blocks)
	g.XORQ(c, c)
	g.loop(blocks, func() {
		if g.panel == 4 {
			g.transpose4(rows, c, dst)
		} else {
			g.transpose8(rows, c, func(i int, v reg.VecPhysical) { g.VMOVUPS(v, at(dst, 32*i)) })
		}
		g.ADDQ(imm(8*4*g.panel), dst)
		g.ADDQ(operand.U8(32), c)
	})
	rest := g.arg("d")
	g.ANDQ(operand.U8(7), rest)
	g.loop(rest, func() {
		x := g.GP32()
		for i, row := range rows {
			g.MOVL(operand.Mem{Base: row, Index: c, Scale: 1}, x)
			g.MOVL(x, at(dst, 4*i))
		}
		g.ADDQ(operand.U8(4*g.panel), dst)
		g.ADDQ(operand.U8(4), c)
	})
	g.SUBQ(operand.U8(g.panel), n)
	g.JMP(operand.LabelRef(top))
	g.Label(done)
	g.end()
}

// transpose4 writes eight channels of four rows, from byte c on, to dst
// [8][4].
func (g *gen) transpose4(rows []reg.GPVirtual, c, dst reg.GPVirtual) {
	r, t := ymm(0, 4), ymm(4, 8)
	for i := range r {
		g.VMOVUPS(operand.Mem{Base: rows[i], Index: c, Scale: 1}, r[i])
	}
	g.VUNPCKLPS(r[1], r[0], t[0])
	g.VUNPCKHPS(r[1], r[0], t[1])
	g.VUNPCKLPS(r[3], r[2], t[2])
	g.VUNPCKHPS(r[3], r[2], t[3])
	// r[i] holds channel i in its lower half and i+4 in the upper.
	g.VSHUFPS(operand.U8(0x44), t[2], t[0], r[0])
	g.VSHUFPS(operand.U8(0xEE), t[2], t[0], r[1])
	g.VSHUFPS(operand.U8(0x44), t[3], t[1], r[2])
	g.VSHUFPS(operand.U8(0xEE), t[3], t[1], r[3])
	for i, half := range []uint8{0x20, 0x31} {
		for pair := range 2 {
			v := t[2*i+pair]
			g.VPERM2F128(operand.U8(half), r[2*pair+1], r[2*pair], v)
			g.VMOVUPS(v, at(dst, 64*i+32*pair))
		}
	}
}

// ymm is registers Y(from) to Y(to-1).
func ymm(from, to int) []reg.VecPhysical { return avx2.vecs[from:to] }

// transpose8 transposes eight channels of eight rows, from byte c on, and hands
// each channel to store.
func (g *gen) transpose8(rows []reg.GPVirtual, c reg.GPVirtual, store func(i int, v reg.VecPhysical)) {
	r := ymm(0, 8)
	// The lower half of r[i] is four channels of row i, the upper half those of
	// row i+4, so that no shuffle need cross halves.
	for half := range 2 {
		for i := range 4 {
			v := r[4*half+i]
			m := operand.Mem{Base: rows[i], Index: c, Scale: 1, Disp: 16 * half}
			g.VMOVUPS(m, v.AsX())
			m.Base = rows[i+4]
			g.VINSERTF128(operand.U8(1), m, v, v)
		}
	}
	g.transposeHalves(r, ymm(8, 12), store)
}

// transposeHalves transposes the 4x4 blocks in the halves of r[0:4] and of
// r[4:8], and hands rows 0 to 7 to store; t are temporaries.
func (g *gen) transposeHalves(r, t []reg.VecPhysical, store func(i int, v reg.VecPhysical)) {
	for half := range 2 {
		a := r[4*half : 4*half+4]
		g.VUNPCKLPS(a[1], a[0], t[0])
		g.VUNPCKHPS(a[1], a[0], t[1])
		g.VUNPCKLPS(a[3], a[2], t[2])
		g.VUNPCKHPS(a[3], a[2], t[3])
		for i := range 4 {
			sel := []uint8{0x44, 0xEE}[i%2]
			g.VSHUFPS(operand.U8(sel), t[2+i/2], t[i/2], a[i])
			store(4*half+i, a[i])
		}
	}
}

// packV emits Ops.PackV for panels of 4 or 8 channels. Eight channels of a row
// are one or two panels' share of a key.
func (g *gen) packV(panel int) {
	g.function(fmt.Sprintf("packV%d", panel), "(dst, src *float32, stride, n, d, step int) (finite bool)",
		fmt.Sprintf("is Ops.PackV for panels of %d channels; works like packVGeneric.", panel))
	v := &packV{gen: g, panel: panel, zero: reg.Y0, x: reg.Y1, mask: reg.Y2, y: reg.Y3, sums: ymm(4, 8)}
	v.dst, v.src, v.stride = g.arg("dst"), g.arg("src"), g.arg("stride")
	v.keys, v.step = g.arg("n"), g.arg("step")
	d := g.arg("d")
	g.SHLQ(operand.U8(2), v.stride)
	g.SHLQ(operand.U8(2), v.step)
	v.ahead = g.GP64()
	g.IMUL3Q(operand.U8(prefetchRows), v.stride, v.ahead)
	g.VXORPS(v.zero, v.zero, v.zero)
	for _, s := range v.sums {
		g.VXORPS(s, s, s)
	}
	for _, groups := range []int{4, 1} {
		top, done := g.label("groups"), g.label("done")
		g.Label(top)
		g.CMPQ(d, operand.U8(8*groups))
		g.JLT(operand.LabelRef(done))
		v.groups(groups)
		g.SUBQ(operand.U8(8*groups), d)
		g.JMP(operand.LabelRef(top))
		g.Label(done)
	}
	v.tail(d)
	g.VADDPS(v.sums[1], v.sums[0], v.sums[0])
	g.VADDPS(v.sums[3], v.sums[2], v.sums[2])
	g.VADDPS(v.sums[2], v.sums[0], v.sums[0])
	bits, finite := g.GP32(), g.GP8()
	const ordered = 7
	g.VCMPPS(operand.U8(ordered), v.sums[0], v.sums[0], v.x)
	g.VMOVMSKPS(v.x, bits)
	g.CMPL(bits, operand.U32(0xFF))
	g.SETEQ(finite)
	g.Store(finite, g.ReturnIndex(0))
	g.end()
}

// packV is the register plan of the function; strides are in bytes, and dst and
// src advance with the channels. Sums of x·0 are NaN once an x is not finite.
type packV struct {
	*gen
	panel                               int
	dst, src, stride, keys, step, ahead reg.GPVirtual
	zero, x, y, mask                    reg.VecPhysical
	sums                                []reg.VecPhysical
}

// store writes eight channels of a key, or only the first four.
func (v *packV) store(to reg.GPVirtual, eight bool) {
	if v.panel == 8 {
		v.VMOVUPS(v.x, at(to, 0))
		return
	}
	v.VMOVUPS(v.x.AsX(), at(to, 0))
	if eight {
		v.VEXTRACTF128(operand.U8(1), v.x, operand.Mem{Base: to, Index: v.step, Scale: 1})
	}
}

// groups packs count groups of eight channels of all keys.
func (v *packV) groups(count int) {
	from, keys, to := v.GP64(), v.GP64(), make([]reg.GPVirtual, count)
	v.MOVQ(v.src, from)
	for i := range to {
		to[i] = v.GP64()
		v.MOVQ(v.dst, to[i])
		v.LEAQ(operand.Mem{Base: v.dst, Index: v.step, Scale: uint8(8 / v.panel)}, v.dst)
	}
	v.ADDQ(imm(32*count), v.src)
	v.MOVQ(v.keys, keys)
	fetch := func(i int) {
		if i%2 == 0 {
			v.PREFETCHT0(operand.Mem{Base: from, Index: v.ahead, Scale: 1, Disp: 32 * i})
		}
	}
	if v.panel == 4 {
		// Two keys' channels lie side by side in a panel of four.
		v.SHRQ(operand.U8(1), keys)
		v.loop(keys, func() {
			for i := range to {
				fetch(i)
				v.VMOVUPS(at(from, 32*i), v.x)
				v.VMOVUPS(operand.Mem{Base: from, Index: v.stride, Scale: 1, Disp: 32 * i}, v.y)
				v.VFMADD231PS(v.zero, v.x, v.sums[i])
				v.VFMADD231PS(v.zero, v.y, v.sums[i])
				v.VPERM2F128(operand.U8(0x20), v.y, v.x, v.mask)
				v.VPERM2F128(operand.U8(0x31), v.y, v.x, v.x)
				v.VMOVUPS(v.mask, at(to[i], 0))
				v.VMOVUPS(v.x, operand.Mem{Base: to[i], Index: v.step, Scale: 1})
				v.ADDQ(operand.U8(32), to[i])
			}
			v.LEAQ(operand.Mem{Base: from, Index: v.stride, Scale: 2}, from)
		})
		v.MOVQ(v.keys, keys)
		v.ANDQ(operand.U8(1), keys)
	}
	v.loop(keys, func() {
		for i := range to {
			fetch(i)
			v.VMOVUPS(at(from, 32*i), v.x)
			v.VFMADD231PS(v.zero, v.x, v.sums[i])
			v.store(to[i], true)
			v.ADDQ(operand.U8(4*v.panel), to[i])
		}
		v.ADDQ(v.stride, from)
	})
}

// tail packs the last d < 8 channels of all keys, and zeros to the end of their
// panels.
func (v *packV) tail(d reg.GPVirtual) {
	end := v.label("end")
	v.TESTQ(d, d)
	v.JZ(operand.LabelRef(end))
	table, bytes := v.GP64(), v.GP64()
	v.LEAQ(v.data.tailMask(), table)
	v.MOVQ(d, bytes)
	v.SHLQ(operand.U8(2), bytes)
	v.SUBQ(bytes, table)
	v.VMOVUPS(at(table, 32), v.mask)
	rows := func(eight bool) {
		v.loop(v.keys, func() {
			v.VMASKMOVPS(at(v.src, 0), v.mask, v.x)
			v.VFMADD231PS(v.zero, v.x, v.sums[0])
			v.store(v.dst, eight)
			v.ADDQ(operand.U8(4*v.panel), v.dst)
			v.ADDQ(v.stride, v.src)
		})
	}
	if v.panel == 4 {
		four := v.label("four")
		v.CMPQ(d, operand.U8(4))
		v.JLE(operand.LabelRef(four))
		rows(true)
		v.JMP(operand.LabelRef(end))
		v.Label(four)
	}
	rows(false)
	v.Label(end)
}
