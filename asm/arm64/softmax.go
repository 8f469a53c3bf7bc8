package main

import (
	"math"

	"github.com/seed-091431b3/attention/asm/neon"
)

// Coefficients of 2^f, |f| <= 1/2; see exp2Generic.
var exp2Coefficients = [...]float32{1, .6931472420692444, .24022655189037323, .05550272762775421,
	.009617069736123085, .0013418003218248487, .0001584151032147929}

// magic, added to a float32, rounds it to an integer.
const magic = 3 << 22

// exp2 is the register plan of 2^x for several chains at a time. Adding magic +
// 126 rounds x to n and leaves n+126 in the low bits, which, shifted into the
// exponent's place, are 2^(n-1), or +0 for n = -126; the coefficients are
// doubled in return.
type exp2 struct {
	x, p, t, n   []neon.V
	c            []neon.V // coefficients
	magic, least neon.V
}

func (g *gen) newExp2(chains int, shift float32, t neon.X) *exp2 {
	e := &exp2{x: g.Vs(chains), p: g.Vs(chains), t: g.Vs(chains), n: g.Vs(chains)}
	for _, c := range exp2Coefficients {
		e.c = append(e.c, g.constant(2*c, t))
	}
	e.magic = g.constant(magic+126+shift, t)
	e.least = g.constant(-126-shift, t)
	return e
}

// constant hands out a register with x in every lane.
func (g *gen) constant(x float32, t neon.X) neon.V { return g.constantBits(math.Float32bits(x), t) }

func (g *gen) constantBits(bits uint32, t neon.X) neon.V {
	v := g.V()
	g.Bits(v, bits, t)
	return v
}

// eval leaves 2^x in p for the first count chains. It destroys x.
func (g *gen) eval(e *exp2, count int) {
	each := func(f func(i int)) { eachOf(count, f) }
	each(func(i int) { g.Fmax(e.x[i], e.x[i], e.least) })
	each(func(i int) { g.Fadd(e.n[i], e.x[i], e.magic) })
	each(func(i int) { g.Fsub(e.t[i], e.n[i], e.magic) })
	each(func(i int) { g.Fsub(e.x[i], e.x[i], e.t[i]) })
	g.fraction(e, count)
}

func eachOf(count int, f func(i int)) {
	for i := range count {
		f(i)
	}
}

// fraction leaves 2^x in p, times the power of two that n is once shifted.
func (g *gen) fraction(e *exp2, count int) {
	each := func(f func(i int)) { eachOf(count, f) }
	each(func(i int) { g.Shl(e.n[i], e.n[i], 23) })
	each(func(i int) { g.Mov(e.p[i], e.c[6]) })
	for k := 5; k >= 0; k-- {
		each(func(i int) { g.Mov(e.t[i], e.c[k]) })
		each(func(i int) { g.Fmla(e.t[i], e.p[i], e.x[i]) })
		e.p, e.t = e.t, e.p
	}
	each(func(i int) { g.Fmul(e.p[i], e.p[i], e.n[i]) })
}

// eachColumn runs body for each column of vectors of tiles whose rows have w
// lanes; offset, in bytes, is that of the column. W is in bytes.
func (g *gen) eachColumn(w neon.X, body func(offset neon.X)) {
	offset := g.X()
	g.MovImm(offset, 0)
	top := g.Label("column")
	g.Here(top)
	body(offset)
	g.AddImm(offset, offset, 16)
	g.Raw("CMP %v, %v", w, offset)
	g.Raw("BLT %s", top)
}

// bytes is a parameter in units of float32, in bytes.
func (g *gen) bytes(name string) neon.X {
	x := g.Arg(name)
	g.LslImm(x, x, 2)
	return x
}

// walk goes down a column of several tiles of one shape.
type walk struct {
	rows [][]neon.X // of each tile, those at hand
	left neon.X
}

func (g *gen) newWalk(tiles, rows int) *walk {
	w := &walk{left: g.X()}
	for range tiles {
		var r []neon.X
		for range rows {
			r = append(r, g.X())
		}
		w.rows = append(w.rows, r)
	}
	return w
}

// start sets the walk to a column; names are the parameters of the tiles.
func (g *gen) start(w *walk, offset neon.X, names ...string) {
	for i, name := range names {
		g.LoadArg(w.rows[i][0], name)
		g.AddX(w.rows[i][0], w.rows[i][0], offset)
	}
	g.LoadArg(w.left, "n")
}

// down runs body for all rows, as many at a time as the walk has registers for,
// and then singly. Pitch is the distance of rows in bytes.
func (g *gen) down(w *walk, pitch neon.X, body func(count int)) {
	g.Unrolled(w.left, len(w.rows[0]), func(count int) {
		for _, r := range w.rows {
			for i := 1; i < count; i++ {
				g.AddX(r[i], r[i-1], pitch)
			}
		}
		body(count)
		for _, r := range w.rows {
			g.AddX(r[0], r[count-1], pitch)
		}
	})
}

// lane loads a vector of a parameter that has one number a lane.
func (g *gen) lane(v neon.V, name string, offset, t neon.X) {
	g.LoadArg(t, name)
	g.AddX(t, t, offset)
	g.Ldr(v, t, 0)
}

func (g *gen) setLane(v neon.V, name string, offset, t neon.X) {
	g.LoadArg(t, name)
	g.AddX(t, t, offset)
	g.Str(v, t, 0)
}

// softmax emits Ops.Softmax.
func (g *gen) softmax() {
	g.Func("softmaxNEON", "s, max, m, l, alpha *float32, n, w int, unit float32, fetch *byte", "is Ops.Softmax; works like softmaxGeneric.")
	w, t := g.bytes("w"), g.X()
	walk := g.newWalk(1, 4)
	e := g.newExp2(4, 0, t)
	unit, low, sum, fetch := g.ArgFloat("unit"), g.V(), g.V(), g.Arg("fetch")
	x := e.x[0]
	g.eachColumn(w, func(offset neon.X) {
		g.lane(x, "m", offset, t)
		g.lane(sum, "max", offset, t)
		g.Fmax(sum, x, sum)
		g.setLane(sum, "m", offset, t)
		g.lowest(low, sum, t)
		g.Fsub(x, x, low)
		g.Fmul(x, x, unit)
		g.eval(e, 1)
		g.setLane(e.p[0], "alpha", offset, t)
		g.Zero(sum)
		g.start(walk, offset, "s")
		g.down(walk, w, func(count int) {
			eachOf(count, func(i int) { g.Ldr(e.x[i], walk.rows[0][i], 0) })
			g.Prefetch(fetch, 0)
			g.AddImm(fetch, fetch, 64)
			eachOf(count, func(i int) { g.Fsub(e.x[i], e.x[i], low) })
			eachOf(count, func(i int) { g.Fmul(e.x[i], e.x[i], unit) })
			g.eval(e, count)
			eachOf(count, func(i int) {
				g.Str(e.p[i], walk.rows[0][i], 0)
				g.Fadd(sum, sum, e.p[i])
			})
		})
		g.lane(x, "l", offset, t)
		g.lane(e.n[0], "alpha", offset, t)
		g.Fmla(sum, x, e.n[0])
		g.setLane(sum, "l", offset, t)
	})
	g.Ret()
}

// lowest sets low to max(m, -MaxFloat32).
func (g *gen) lowest(low, m neon.V, t neon.X) {
	g.Bits(low, math.Float32bits(-math.MaxFloat32), t)
	g.Fmax(low, m, low)
}

// fold emits Ops.Fold.
func (g *gen) fold() {
	g.Func("foldNEON", "o, m, l, o2, m2, l2 *float32, n, w int, unit float32", "is Ops.Fold; works like foldGeneric.")
	w, t := g.bytes("w"), g.X()
	walk := g.newWalk(2, 1)
	e := g.newExp2(2, 0, t)
	unit, low, big := g.ArgFloat("unit"), g.V(), g.V()
	x, y := e.x[0], e.x[1]
	g.eachColumn(w, func(offset neon.X) {
		g.lane(x, "m", offset, t)
		g.lane(y, "m2", offset, t)
		g.Fmax(big, x, y)
		g.setLane(big, "m", offset, t)
		g.lowest(low, big, t)
		for _, v := range e.x {
			g.Fsub(v, v, low)
			g.Fmul(v, v, unit)
		}
		g.eval(e, 2)
		a, b := e.p[0], e.p[1]
		g.lane(x, "l", offset, t)
		g.lane(y, "l2", offset, t)
		g.Fmul(y, y, b)
		g.Fmla(y, x, a)
		g.setLane(y, "l", offset, t)
		g.start(walk, offset, "o", "o2")
		g.down(walk, w, func(int) {
			g.Ldr(x, walk.rows[0][0], 0)
			g.Ldr(y, walk.rows[1][0], 0)
			g.Fmul(y, y, b)
			g.Fmla(y, x, a)
			g.Str(y, walk.rows[0][0], 0)
		})
	})
	g.Ret()
}

const (
	ln2Hi = 0x1.62e42fee00000p-1
	ln2Lo = 0x1.a39ef35793c76p-33
)

// logSum emits Ops.LogSum: in doubles, two lanes at a time. The steps are those
// of kernel.Ln, without fused operations.
func (g *gen) logSum() {
	g.Func("logSumNEON", "lse *float64, inv, m, l *float32, w int, scale float64", "is Ops.LogSum; works like logSumGeneric.")
	lse, inv, m, l, n, t := g.Arg("lse"), g.Arg("inv"), g.Arg("m"), g.Arg("l"), g.Arg("w"), g.X()
	scale, f, max, zero := g.ArgDouble("scale"), g.V(), g.V(), g.V()
	constant := func(x float64) neon.V {
		v := g.V()
		g.BitsD(v, math.Float64bits(x), t)
		return v
	}
	one32, one, hi, lo, infinity := g.constant(1, t), constant(1), constant(ln2Hi), constant(ln2Lo), constant(math.Inf(-1))
	twoThirds := g.V()
	g.BitsD(twoThirds, 0x3FE5555500000000, t)
	var c []neon.V
	for i := 3; i <= 23; i += 2 {
		c = append(c, constant(1/float64(i)))
	}
	x, e, s, z, r, y := g.V(), g.V(), g.V(), g.V(), g.V(), g.V()
	g.Zero(zero)
	g.LsrImm(n, n, 2)
	g.Loop(n, func() {
		// inv = 1/l, or 0 where l is.
		g.Ldr(f, l, 0)
		g.Ldr(max, m, 0)
		g.Fdiv(x, one32, f)
		g.Fcmeq(y, f, zero)
		g.Bic(x, x, y)
		g.Str(x, inv, 0)
		for half := range 2 {
			widen := g.Fcvtl
			if half == 1 {
				widen = g.Fcvtl2
			}
			// x = 2^e·m, m from 2/3 to 4/3; e as a number.
			widen(x, f)
			g.SubIntD(e, x, twoThirds)
			g.UshrD(e, e, 52)
			g.ShlD(y, e, 52)
			g.SubIntD(y, x, y)
			g.ScvtfD(e, e)
			// s = (m-1)/(m+1); ln m = 2·(s + s·z·r), z = s².
			g.FsubD(s, y, one)
			g.FaddD(y, y, one)
			g.FdivD(s, s, y)
			g.FmulD(z, s, s)
			g.Mov(r, c[len(c)-1])
			for i := len(c) - 2; i >= 0; i-- {
				g.FmulD(r, r, z)
				g.FaddD(r, r, c[i])
			}
			g.FmulD(z, s, z)
			g.FmulD(r, z, r)
			g.FaddD(r, r, r)
			g.FmulD(y, e, lo)
			g.FaddD(r, r, y)
			g.FaddD(s, s, s)
			g.FaddD(r, s, r)
			g.FmulD(e, e, hi)
			g.FaddD(r, e, r)
			g.FmulD(y, x, zero)
			g.FaddD(r, r, y)
			widen(y, max)
			g.FmulD(y, y, scale)
			g.FaddD(r, y, r)
			g.FcmeqD(y, x, zero)
			g.Bsl(y, infinity, r)
			g.Str(y, lse, 16*half)
		}
		for _, p := range []neon.X{inv, m, l} {
			g.AddImm(p, p, 16)
		}
		g.AddImm(lse, lse, 32)
	})
	g.Ret()
}
