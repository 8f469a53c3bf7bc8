package main

import (
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// lanes is the frame of Gather and Scatter, which work on eight lanes at a
// time: pointers to their rows, the byte c within the rows, and p, which walks
// the tile. With a counter and where the next eight lanes start, that is all 15
// general registers.
type lanes struct {
	rows               []reg.GPVirtual
	c, limit, p, pitch reg.GPVirtual // pitch: bytes between rows of the tile
}

// eachEight runs body for each eight lanes of a tile, with pointers to their
// rows in base and p at the first row of the tile.
func (g *gen) eachEight(base, tile string, body func(l *lanes)) {
	l := &lanes{c: g.GP64(), limit: g.GP64(), p: g.GP64(), pitch: g.rowBytes(g.arg("w"))}
	off, start := g.arg("off"), g.arg(tile)
	left := g.arg("w")
	g.loop(left, func() {
		l.rows = nil
		for i := range 8 {
			row := g.GP64()
			g.MOVQ(at(off, 8*i), row)
			g.SHLQ(operand.U8(2), row)
			g.ADDQ(g.paramMem(base), row)
			l.rows = append(l.rows, row)
		}
		g.MOVQ(start, l.p)
		g.XORQ(l.c, l.c)
		body(l)
		g.ADDQ(operand.U8(64), off)
		g.ADDQ(operand.U8(32), start)
		// The loop takes one more.
		g.SUBQ(operand.U8(7), left)
	})
	g.end()
}

// eachChannel runs eight for each eight of the n channels, and one for each of
// the rest; both advance p.
func (g *gen) eachChannel(l *lanes, eight, one func()) {
	upTo := func(mask int, body func(), step int) {
		g.MOVQ(g.paramMem("n"), l.limit)
		if mask != 0 {
			g.ANDQ(operand.I8(int8(mask)), l.limit)
		}
		g.SHLQ(operand.U8(2), l.limit)
		top, done := g.label("channels"), g.label("done")
		g.Label(top)
		g.CMPQ(l.c, l.limit)
		g.JGE(operand.LabelRef(done))
		body()
		g.ADDQ(operand.U8(4*step), l.c)
		g.JMP(operand.LabelRef(top))
		g.Label(done)
	}
	upTo(-8, eight, 8)
	upTo(0, one, 1)
}

// gather emits Ops.Gather.
func (g *gen) gather() {
	g.function("gatherAVX", "dst, src *float32, off *int, n, w int, mul float32", "is Ops.Gather; works like gatherGeneric.")
	mul, x := reg.Y15, reg.Y0
	g.VBROADCASTSS(g.paramMem("mul"), mul)
	g.eachEight("src", "dst", func(l *lanes) {
		g.eachChannel(l, func() {
			g.transpose8(l.rows, l.c, func(_ int, v reg.VecPhysical) {
				g.VMULPS(mul, v, v)
				g.VMOVUPS(v, at(l.p, 0))
				g.ADDQ(l.pitch, l.p)
			})
		}, func() {
			for i, row := range l.rows {
				g.VMOVSS(operand.Mem{Base: row, Index: l.c, Scale: 1}, x.AsX())
				g.VMULSS(mul.AsX(), x.AsX(), x.AsX())
				g.VMOVSS(x.AsX(), at(l.p, 4*i))
			}
			g.ADDQ(l.pitch, l.p)
		})
	})
}

// scatter emits Ops.Scatter.
func (g *gen) scatter() {
	g.function("scatterAVX", "dst *float32, off *int, src, inv *float32, n, w int", "is Ops.Scatter; works like scatterGeneric.")
	// inv of the eight lanes, and of each four of them twice over.
	eight, low, high, zero := reg.Y15, reg.Y14, reg.Y13, reg.Y12
	r := ymm(0, 8)
	g.VXORPS(zero, zero, zero)
	g.eachEight("dst", "src", func(l *lanes) {
		// limit is free until the channels start; p - src says which lanes.
		g.MOVQ(l.p, l.limit)
		g.SUBQ(g.paramMem("src"), l.limit)
		g.ADDQ(g.paramMem("inv"), l.limit)
		g.VMOVUPS(at(l.limit, 0), eight)
		g.VPERM2F128(operand.U8(0x00), eight, eight, low)
		g.VPERM2F128(operand.U8(0x11), eight, eight, high)
		g.eachChannel(l, func() {
			// As in transpose8, with channels for rows.
			for i := range 4 {
				for half, by := range []reg.VecPhysical{low, high} {
					v := r[4*half+i]
					g.VMOVUPS(at(l.p, 16*half), v.AsX())
					g.VINSERTF128(operand.U8(1), operand.Mem{Base: l.p, Index: l.pitch, Scale: 4, Disp: 16 * half}, v, v)
					g.VMULPS(by, v, v)
					g.VADDPS(zero, v, v)
				}
				g.ADDQ(l.pitch, l.p)
			}
			g.LEAQ(operand.Mem{Base: l.p, Index: l.pitch, Scale: 4}, l.p)
			g.transposeHalves(r, ymm(8, 12), func(i int, v reg.VecPhysical) {
				g.VMOVUPS(v, operand.Mem{Base: l.rows[i], Index: l.c, Scale: 1})
			})
		}, func() {
			g.VMULPS(at(l.p, 0), eight, r[0])
			g.VADDPS(zero, r[0], r[0])
			g.VEXTRACTF128(operand.U8(1), r[0], r[1].AsX())
			for i, row := range l.rows {
				g.VEXTRACTPS(operand.U8(i%4), r[i/4].AsX(), operand.Mem{Base: row, Index: l.c, Scale: 1})
			}
			g.ADDQ(l.pitch, l.p)
		})
	})
}
