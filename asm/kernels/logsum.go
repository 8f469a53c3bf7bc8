package main

import (
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

const (
	ln2Hi = 0x1.62e42fee00000p-1
	ln2Lo = 0x1.a39ef35793c76p-33
)

// logSum emits Ops.LogSum: in doubles, so that a column has half the lanes. The
// steps are those of kernel.Ln, without fused operations.
func (g *gen) logSum() {
	g.function("logSum"+g.name, "lse *float64, inv, m, l *float32, w int, scale float64",
		"is Ops.LogSum; works like logSumGeneric.")
	lse, inv, m, l := g.arg("lse"), g.arg("inv"), g.arg("m"), g.arg("l")
	w := g.arg("w")
	half := g.lanes / 2
	narrow := func(v reg.VecPhysical) reg.VecPhysical {
		if g.wide {
			return v.AsY().(reg.VecPhysical)
		}
		return v.AsX().(reg.VecPhysical)
	}
	f, one, zero := g.vec(), g.vec(), g.vec()
	x, e, k, s, z, r, t := g.vec(), g.vec(), g.vec(), g.vec(), g.vec(), g.vec(), g.vec()
	scale := g.vec()
	g.VBROADCASTSD(g.paramMem("scale"), scale)
	g.VBROADCASTSS(g.data.float(1), one)
	g.zero(zero)
	d := g.data
	top := g.label("column")
	g.Label(top)
	// inv = 1/l, or 0 where l is.
	g.VMOVUPS(at(l, 0), narrow(f))
	const equal = 0
	g.VCMPPS(operand.U8(equal), narrow(zero), narrow(f), narrow(t))
	g.VDIVPS(narrow(f), narrow(one), narrow(r))
	g.VANDNPS(narrow(r), narrow(t), narrow(r))
	g.VMOVUPS(narrow(r), at(inv, 0))
	// x = 2^e·m, m from 2/3 to 4/3; k = e as a number.
	g.VCVTPS2PD(narrow(f), x)
	g.VPSUBQ(d.wide(0x3FE5555500000000), x, e)
	g.VPSRLQ(operand.U8(52), e, e)
	g.VPSLLQ(operand.U8(52), e, t)
	g.VPSUBQ(t, x, t)
	g.VPADDQ(d.double(1<<52), e, k)
	g.VSUBPD(d.double(1<<52), k, k)
	// s = (m-1)/(m+1); ln m = 2·(s + s·z·r), z = s².
	g.VSUBPD(d.double(1), t, s)
	g.VADDPD(d.double(1), t, t)
	g.VDIVPD(t, s, s)
	g.VMULPD(s, s, z)
	g.VMOVUPD(d.double(1./23), r)
	for i := 21; i >= 3; i -= 2 {
		g.VMULPD(z, r, r)
		g.VADDPD(d.double(1/float64(i)), r, r)
	}
	g.VMULPD(z, s, z)
	g.VMULPD(r, z, r)
	g.VADDPD(r, r, r)
	g.VMULPD(d.double(ln2Lo), k, t)
	g.VADDPD(t, r, r)
	g.VADDPD(s, s, s)
	g.VADDPD(r, s, r)
	g.VMULPD(d.double(ln2Hi), k, k)
	g.VADDPD(r, k, r)
	g.VMULPD(zero, x, t)
	g.VADDPD(t, r, r)
	g.VCVTPS2PD(at(m, 0), t)
	g.VMULPD(scale, t, t)
	g.VADDPD(r, t, r)
	infinity := d.wide(0xFFF0000000000000)
	if g.wide {
		g.VCMPPD(operand.U8(equal), zero, x, reg.K1)
		g.VMOVUPD(infinity, reg.K1, r)
	} else {
		g.VCMPPD(operand.U8(equal), zero, x, t)
		g.VBLENDVPD(t, infinity, r, r)
	}
	g.VMOVUPD(r, at(lse, 0))
	for _, p := range []reg.GPVirtual{inv, m, l} {
		g.ADDQ(imm(4*half), p)
	}
	g.ADDQ(imm(8*half), lse)
	g.SUBQ(operand.U8(half), w)
	g.JG(operand.LabelRef(top))
	g.end()
}
