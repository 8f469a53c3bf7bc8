package main

import (
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// gradient emits Ops.Gradient.
func (g *gen) gradient() {
	g.function("gradient"+g.name, "s, dp, keep, hi, lo, delta *float32, n, w int, unit, rest float32",
		"is Ops.Gradient; works like gradientGeneric.")
	w := g.rowBytes(g.arg("w"))
	e := g.newExp2(5, true)
	if g.wide {
		e = g.newExp2(4, false)
	}
	high, low, delta, unit := g.vec(), g.vec(), g.vec(), g.vec()
	// The least and the greatest x, whose power of two is 0 or still finite.
	g.VBROADCASTSS(g.paramMem("unit"), unit)
	local := func() operand.Mem {
		m := g.AllocLocal(g.bytes())
		g.VMOVUPS(e.c, m)
		return m
	}
	limit := func(power float32) operand.Mem {
		g.VMOVUPS(g.data.float(power), e.c)
		g.VDIVPS(unit, e.c, e.c)
		return local()
	}
	least, most := limit(gradientLeast), limit(gradientMost)
	g.VBROADCASTSS(g.paramMem("rest"), e.c)
	rest := local()
	walk := g.newWalk(w, 3)
	short := *walk
	short.tiles = walk.tiles[:2]
	rows := func(count int, kept bool) {
		over := walk
		if !kept {
			over = &short
		}
		g.eachRows(over, count, func(tiles [][]operand.Mem) {
			s, dp := tiles[0], tiles[1]
			for i := range s {
				g.VMOVUPS(s[i], e.x[i])
				g.VSUBPS(high, e.x[i], e.x[i])
				g.VSUBPS(low, e.x[i], e.x[i])
			}
			g.VMOVUPS(least, e.c)
			for _, x := range e.x[:count] {
				g.VMAXPS(x, e.c, x)
			}
			g.VMOVUPS(most, e.c)
			for _, x := range e.x[:count] {
				g.VMINPS(x, e.c, x)
			}
			g.exact(e, unit, rest, s)
			for i := range s {
				x, p, d := e.x[i], e.p[i], e.c
				g.VMOVUPS(dp[i], d)
				if kept {
					g.VMOVUPS(tiles[2][i], x)
					g.VFMSUB213PS(delta, x, d)
					g.VMULPS(p, x, x)
					g.VMOVUPS(x, s[i])
				} else {
					g.VSUBPS(delta, d, d)
					g.VMOVUPS(p, s[i])
				}
				g.VMULPS(p, d, d)
				g.VMOVUPS(d, dp[i])
			}
		})
	}
	g.columns(w, func(offset reg.GPVirtual) {
		// lane loads a pointer to this column of a parameter.
		lane := func(name string, p reg.GPVirtual) reg.GPVirtual {
			g.MOVQ(offset, p)
			g.ADDQ(g.paramMem(name), p)
			return p
		}
		p := walk.left
		g.VMOVUPS(at(lane("hi", p), 0), high)
		g.VMOVUPS(at(lane("lo", p), 0), low)
		g.VMOVUPS(at(lane("delta", p), 0), delta)
		lane("s", walk.tiles[0].row)
		lane("dp", walk.tiles[1].row)
		lane("keep", walk.tiles[2].row)
		without, done := g.label("without"), g.label("done")
		g.MOVQ(g.paramMem("n"), walk.left)
		g.CMPQ(g.paramMem("keep"), operand.U8(0))
		g.JEQ(operand.LabelRef(without))
		for _, count := range []int{len(e.x), 2, 1} {
			rows(count, true)
		}
		g.JMP(operand.LabelRef(done))
		g.Label(without)
		for _, count := range []int{len(e.x), 2, 1} {
			rows(count, false)
		}
		g.Label(done)
	})
	g.end()
}

// P and dS are carried times 2^gradientShift; see kernel.GradShift.
const (
	gradientShift = 32
	gradientLeast = -126 - gradientShift
	gradientMost  = 127 - gradientShift
)

// exact leaves 2^(gradientShift + x·(unit + rest)) in p. The fraction comes from
// x, not from a rounded product, so that no error grows with x.
func (g *gen) exact(e *exp2, unit reg.VecPhysical, rest operand.Mem, out []operand.Mem) {
	if g.wide {
		g.VMOVUPS(g.data.float(gradientLeast), e.c)
	} else {
		g.VMOVUPS(g.data.float(3<<22-gradientLeast), e.c)
	}
	for i := range out {
		x, p := e.x[i], e.p[i]
		g.VMULPS(x, unit, p)
		if g.wide {
			g.VRNDSCALEPS(operand.U8(0), p, e.n[i])
			g.notBelow(e, i)
			g.VMOVAPS(e.n[i], p)
			g.VFMSUB231PS(x, unit, p)
			g.VFMADD132PS(rest, p, x)
			g.VADDPS(g.data.float(gradientShift), e.n[i], e.n[i])
			continue
		}
		// As in eval; magic puts the shift into the exponent.
		f := e.t
		g.VADDPS(e.c, p, p)
		g.VSUBPS(e.c, p, f)
		g.VFMSUB231PS(x, unit, f)
		g.VFMADD132PS(rest, f, x)
		g.VPSLLD(operand.U8(23), p, p)
		g.VMOVUPS(p, out[i])
	}
	g.fraction(e, out)
}

// dot emits Ops.Dot.
func (g *gen) dot() {
	g.function("dot"+g.name, "d, a, b *float32, n, w int", "is Ops.Dot; works like dotGeneric.")
	d, a, b := g.arg("d"), g.arg("a"), g.arg("b")
	rows, w := g.arg("n"), g.rowBytes(g.arg("w"))
	sum, x := g.vec(), g.vec()
	g.columns(w, func(offset reg.GPVirtual) {
		lane := func(base reg.Register) operand.Mem { return operand.Mem{Base: base, Index: offset, Scale: 1} }
		p, q, n := g.GP64(), g.GP64(), g.GP64()
		g.LEAQ(lane(a), p)
		g.LEAQ(lane(b), q)
		g.MOVQ(rows, n)
		g.zero(sum)
		g.unrolled(n, 4, func(int) {
			g.VMOVUPS(at(p, 0), x)
			g.VFMADD231PS(at(q, 0), x, sum)
			g.ADDQ(w, p)
			g.ADDQ(w, q)
		}, func(int) {})
		g.VMOVUPS(sum, lane(d))
	})
	g.end()
}

// hide emits Ops.Hide.
func (g *gen) hide() {
	g.function("hide"+g.name, "a, b *float32, words *uint32, n, w int", "is Ops.Hide; works like hideGeneric.")
	tiles := []reg.GPVirtual{g.arg("a"), g.arg("b")}
	words, rows, w := g.arg("words"), g.arg("n"), g.rowBytes(g.arg("w"))
	bits, bit, x := g.vec(), g.vec(), g.vec()
	g.columns(w, func(offset reg.GPVirtual) {
		ptr := []reg.GPVirtual{g.GP64(), g.GP64()}
		for i, p := range ptr {
			g.LEAQ(operand.Mem{Base: tiles[i], Index: offset, Scale: 1}, p)
		}
		g.eachBit(words, rows, w, offset, bits, bit, func() {
			if g.wide {
				g.VPMOVD2M(bit, reg.K1)
			} else {
				g.VPSRAD(operand.U8(31), bit, bit)
			}
			for _, p := range ptr {
				if g.wide {
					g.VMOVUPS_Z(at(p, 0), reg.K1, x)
				} else {
					g.VANDPS(at(p, 0), bit, x)
				}
				g.VMOVUPS(x, at(p, 0))
				g.ADDQ(w, p)
			}
		})
	})
	g.end()
}

// uncap emits Ops.Uncap.
func (g *gen) uncap() {
	g.function("uncap"+g.name, "ds, capped *float32, n, w int, inv float32", "is Ops.Uncap; works like uncapGeneric.")
	ds, capped := g.arg("ds"), g.arg("capped")
	rows, w := g.arg("n"), g.rowBytes(g.arg("w"))
	inv, one, t, y := g.broadcastArg("inv"), g.broadcast(1), g.vec(), g.vec()
	g.columns(w, func(offset reg.GPVirtual) {
		p, q, n := g.GP64(), g.GP64(), g.GP64()
		g.LEAQ(operand.Mem{Base: ds, Index: offset, Scale: 1}, p)
		g.LEAQ(operand.Mem{Base: capped, Index: offset, Scale: 1}, q)
		g.MOVQ(rows, n)
		g.unrolled(n, 2, func(int) {
			g.VMULPS(at(q, 0), inv, t)
			g.VMOVAPS(one, y)
			g.VFNMADD231PS(t, t, y)
			g.VMULPS(at(p, 0), y, y)
			g.VMOVUPS(y, at(p, 0))
			g.ADDQ(w, p)
			g.ADDQ(w, q)
		}, func(int) {})
	})
	g.end()
}

// addOuter emits Ops.AddOuter. Its register tile is that of Strip.Score with
// channels for lanes: the keys of a panel by two vectors. A pair of panels is
// outermost, so that its x stays in the first-level cache. Old gradients are
// fetched when a tile starts, and added at its end.
func (g *gen) addOuter() {
	g.function("addOuter"+g.name, "sum, p, x *float32, tiles, rows, w, pStep, panels, gStep, xStep int",
		"is Ops.AddOuter; works like addOuterGeneric.")
	o := &outer{gen: g}
	for _, v := range []struct {
		name string
		to   *reg.GPVirtual
	}{{"gStep", &o.gStep}, {"xStep", &o.xStep}, {"w", &o.pitch}} {
		*v.to = g.arg(v.name)
		g.SHLQ(operand.U8(2), *v.to)
	}
	local := func(from string) operand.Mem {
		m, t := g.AllocLocal(8), g.GP64()
		g.MOVQ(g.paramMem(from), t)
		g.MOVQ(t, m)
		return m
	}
	o.g, o.x, o.panels = local("sum"), local("x"), local("panels")
	// From the end of a strip's rows to the next strip.
	o.jump = g.AllocLocal(8)
	t := g.arg("pStep")
	g.SHLQ(operand.U8(2), t)
	g.SUBQ(o.pitch, t)
	g.MOVQ(t, o.jump)
	for _, count := range []int{2, 1} {
		top, done := g.label("panels"), g.label("done")
		g.Label(top)
		g.CMPQ(o.panels, operand.U8(count))
		g.JL(operand.LabelRef(done))
		o.panel(count)
		for range count {
			g.ADDQ(o.gStep, o.g)
			g.ADDQ(o.xStep, o.x)
		}
		g.SUBQ(operand.U8(count), o.panels)
		g.JMP(operand.LabelRef(top))
		g.Label(done)
	}
	g.end()
}

// outer is the register plan of addOuter, in bytes.
type outer struct {
	*gen
	g, x, panels, jump  operand.Mem
	gStep, xStep, pitch reg.GPVirtual
}

// panel adds to count panels of all keys.
func (o *outer) panel(count int) {
	grad, p, tiles := o.GP64(), o.arg("p"), o.arg("tiles")
	o.MOVQ(o.g, grad)
	o.loop(tiles, func() {
		t := o.newTile(count, 1)
		for row, acc := range t.acc {
			for v, x := range acc {
				o.zero(x)
				if row*o.bytes()%64 == 0 {
					o.PREFETCHT0(o.panelAt(grad, o.gStep, v, row*o.bytes()))
				}
			}
		}
		o.rows(t, p)
		for row, acc := range t.acc {
			for v, x := range acc {
				to := o.panelAt(grad, o.gStep, v, row*o.bytes())
				o.VADDPS(to, x, x)
				o.VMOVUPS(x, to)
			}
		}
		o.ADDQ(imm(o.gen.panel*o.bytes()), grad)
		for range o.gen.panel {
			o.ADDQ(o.pitch, p)
		}
	})
}

// panelAt is byte disp of the first panel or the second.
func (o *outer) panelAt(base, step reg.GPVirtual, i, disp int) operand.Mem {
	m := at(base, disp)
	if i == 1 {
		m.Index, m.Scale = step, 1
	}
	return m
}

// rows accumulates all query rows into t, whose first key's lanes are at p.
func (o *outer) rows(t *tile, p reg.GPVirtual) {
	x, left, n := o.GP64(), o.arg("rows"), o.GP64()
	o.MOVQ(o.x, x)
	// Each of a points to the row of every third key.
	a := make([]reg.GPVirtual, (o.gen.panel+2)/3)
	for i := range a {
		a[i] = o.GP64()
		o.MOVQ(p, a[i])
		for range 3 * i {
			o.ADDQ(o.pitch, a[i])
		}
	}
	key := func(row, disp int) operand.Mem {
		m := at(a[row/3], disp)
		if row%3 > 0 {
			m.Index, m.Scale = o.pitch, uint8(row%3)
		}
		return m
	}
	strip, done := o.label("strip"), o.label("done")
	o.Label(strip)
	o.MOVQ(o.paramMem("w"), n)
	o.CMPQ(n, left)
	o.CMOVQGT(left, n)
	o.SUBQ(n, left)
	turn := 0
	o.unrolled(n, 4, func(k int) {
		for v, b := range t.b {
			o.VMOVUPS(o.panelAt(x, o.xStep, v, k*o.bytes()), b)
		}
		for row, acc := range t.acc {
			y := t.a[turn%len(t.a)]
			turn++
			o.VBROADCASTSS(key(row, 4*k), y)
			for v := range acc {
				o.VFMADD231PS(t.b[v], y, acc[v])
			}
		}
	}, func(count int) {
		o.ADDQ(imm(count*o.bytes()), x)
		for _, p := range a {
			o.ADDQ(imm(count*4), p)
		}
	})
	o.TESTQ(left, left)
	o.JZ(operand.LabelRef(done))
	o.MOVQ(o.jump, n)
	for _, p := range a {
		o.ADDQ(n, p)
	}
	o.JMP(operand.LabelRef(strip))
	o.Label(done)
}

// packRows emits Ops.PackRows and Ops.UnpackRows.
func (g *gen) packRows() {
	g.function("packRows"+g.name, "(dst, src *float32, off *int, n, d, step int) (finite bool)",
		"is Ops.PackRows; works like packRowsGeneric.")
	r := g.newRows("dst", "src")
	zero, sums, x := g.vec(), g.vecN(2), g.vec()
	g.zero(zero)
	for _, s := range sums {
		g.zero(s)
	}
	r.each(func(row operand.Mem, i int, load, _ func(m operand.Mem, x reg.VecPhysical)) {
		load(row, x)
		g.VFMADD231PS(zero, x, sums[i])
		g.VMOVUPS(x, at(r.panel, 0))
	})
	g.VADDPS(sums[1], sums[0], sums[0])
	finite, bits := g.GP8(), g.GP32()
	const unordered = 3
	if g.wide {
		g.VCMPPS(operand.U8(unordered), sums[0], sums[0], reg.K1)
		g.KMOVW(reg.K1, bits)
	} else {
		g.VCMPPS(operand.U8(unordered), sums[0], sums[0], sums[1])
		g.VMOVMSKPS(sums[1], bits)
	}
	g.TESTL(bits, bits)
	g.SETEQ(finite)
	g.Store(finite, g.ReturnIndex(0))
	g.end()

	g.function("unpackRows"+g.name, "dst *float32, off *int, src *float32, n, d, step int, mul float32",
		"is Ops.UnpackRows; works like unpackRowsGeneric.")
	r = g.newRows("src", "dst")
	mul, zero, x := g.broadcastArg("mul"), g.vec(), g.vec()
	g.zero(zero)
	r.each(func(row operand.Mem, _ int, _, store func(m operand.Mem, x reg.VecPhysical)) {
		g.VMULPS(at(r.panel, 0), mul, x)
		g.VADDPS(zero, x, x)
		store(row, x)
	})
	g.end()
}

// rows walks rows in memory and in panels side by side, a vector of channels at
// a time.
type rows struct {
	*gen
	loose, panel, panels, step, off, n, row, c reg.GPVirtual
	mask                                       reg.VecPhysical // of a tail of channels, on AVX2
}

// newRows loads the parameters; packed and loose name those of the panels and
// of the rows in memory.
func (g *gen) newRows(packed, loose string) *rows {
	r := &rows{
		gen: g, loose: g.arg(loose), panels: g.arg(packed), step: g.arg("step"), off: g.arg("off"), n: g.arg("n"),
		panel: g.GP64(), row: g.GP64(), c: g.GP64(), mask: g.vec(),
	}
	g.SHLQ(operand.U8(2), r.step)
	tail := g.arg("d")
	g.ANDQ(imm(g.lanes-1), tail)
	if g.wide {
		ones := g.GP32()
		g.MOVL(operand.U32(0xFFFF), ones)
		g.BZHIL(tail.As32(), ones, ones)
		g.KMOVW(ones, reg.K2)
		return r
	}
	table := g.GP64()
	g.LEAQ(g.data.tailMask(), table)
	g.SHLQ(operand.U8(2), tail)
	g.SUBQ(tail, table)
	g.VMOVUPS(at(table, 32), r.mask)
	return r
}

// each runs body for each vector of channels of each row. It gets where that
// lies in memory, and how to load and store it there, as a tail of the channels
// may be missing; i is 0 or 1 in turn.
func (r *rows) each(body func(row operand.Mem, i int, load, store func(m operand.Mem, x reg.VecPhysical))) {
	load := func(m operand.Mem, x reg.VecPhysical) { r.VMOVUPS(m, x) }
	store := func(m operand.Mem, x reg.VecPhysical) { r.VMOVUPS(x, m) }
	loadTail := func(m operand.Mem, x reg.VecPhysical) { r.VMASKMOVPS(m, r.mask, x) }
	storeTail := func(m operand.Mem, x reg.VecPhysical) { r.VMASKMOVPS(x, r.mask, m) }
	if r.wide {
		loadTail = func(m operand.Mem, x reg.VecPhysical) { r.VMOVUPS_Z(m, reg.K2, x) }
		storeTail = func(m operand.Mem, x reg.VecPhysical) { r.VMOVUPS(x, reg.K2, m) }
	}
	shift := uint8(3)
	if r.wide {
		shift = 4
	}
	r.loop(r.n, func() {
		r.MOVQ(at(r.off, 0), r.row)
		r.ADDQ(operand.U8(8), r.off)
		r.LEAQ(operand.Mem{Base: r.loose, Index: r.row, Scale: 4}, r.row)
		r.MOVQ(r.panels, r.panel)
		r.ADDQ(imm(r.bytes()), r.panels)
		r.MOVQ(r.paramMem("d"), r.c)
		r.SHRQ(operand.U8(shift), r.c)
		r.unrolled(r.c, 2, func(i int) {
			body(at(r.row, 0), i, load, store)
			r.ADDQ(imm(r.bytes()), r.row)
			r.ADDQ(r.step, r.panel)
		}, func(int) {})
		done := r.label("whole")
		r.TESTQ(operand.U32(uint32(r.lanes-1)), r.paramMem("d"))
		r.JZ(operand.LabelRef(done))
		body(at(r.row, 0), 0, loadTail, storeTail)
		r.Label(done)
	})
}
