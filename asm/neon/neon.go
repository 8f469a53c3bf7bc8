// Package neon prints arm64 assembly for Go's assembler. Operands of every
// method stand in Arm's order, destination first. What Go's assembler lacks is
// printed as a WORD with the instruction in GNU syntax behind it, from which
// tests and CI assemble it again by other means.
package neon

import (
	"fmt"
	"slices"
	"strings"
)

// V is a vector register of four float32 or int32.
type V int

// X is a general register. Go keeps R18, R27 and R28 to R31 for itself.
type X int

// free are the general registers that a function may use.
var free = []X{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 19, 20, 21, 22, 23, 24, 25, 26}

// Gen collects a file of functions.
type Gen struct {
	body, stubs strings.Builder
	f           function
}

// function is the one being written.
type function struct {
	name   string
	params map[string]int // where they lie in the frame
	floats map[string]bool
	x, v   int // registers handed out
	labels int
}

// line prints a line. Registers are checked here, as fmt would swallow the panic
// of a String method.
func (g *Gen) line(format string, args ...any) {
	for _, a := range args {
		switch a := a.(type) {
		case V:
			a.bits(0)
		case X:
			a.check()
		}
	}
	fmt.Fprintf(&g.body, "\t"+format+"\n", args...)
}

// word prints an instruction that Go's assembler does not know.
func (g *Gen) word(code uint32, gnu string, args ...any) {
	g.line("WORD $0x%08x // %s", code, fmt.Sprintf(gnu, args...))
}

func (v V) bits(shift int) uint32 {
	if v < 0 || v > 31 {
		panic(fmt.Sprintf("neon: there is no register v%d", int(v)))
	}
	return uint32(v) << shift
}

func (x X) check() {
	if !slices.Contains(free, x) {
		panic(fmt.Sprintf("neon: R%d is not to be used", int(x)))
	}
}

func (x X) String() string { return fmt.Sprintf("R%d", int(x)) }

func (v V) String() string { return fmt.Sprintf("V%d", int(v)) }

func (v V) f() string { v.bits(0); return fmt.Sprintf("F%d", int(v)) }

func lane(i int) uint32 {
	if i < 0 || i > 3 {
		panic(fmt.Sprintf("neon: a vector has no lane %d", i))
	}
	return uint32(i)
}

// three prints an instruction of three vectors.
func (g *Gen) three(name string, code uint32, d, n, m V) {
	g.word(code|m.bits(16)|n.bits(5)|d.bits(0), "%s v%d.4s, v%d.4s, v%d.4s", name, d, n, m)
}

// two prints an instruction of two vectors.
func (g *Gen) two(name string, code uint32, d, n V) {
	g.word(code|n.bits(5)|d.bits(0), "%s v%d.4s, v%d.4s", name, d, n)
}

// element prints a product with one lane of m.
func (g *Gen) element(name string, code uint32, d, n, m V, i int) {
	l := lane(i)
	g.word(code|l&1<<21|m.bits(16)|l>>1<<11|n.bits(5)|d.bits(0), "%s v%d.4s, v%d.4s, v%d.s[%d]", name, d, n, m, i)
}

// Arithmetic on four float32. Fmla is d + n·m, Fmls d - n·m, both with one
// rounding; Fmax and Fmin keep a NaN.

func (g *Gen) Fadd(d, n, m V) { g.three("fadd", 0x4e20d400, d, n, m) }
func (g *Gen) Fsub(d, n, m V) { g.three("fsub", 0x4ea0d400, d, n, m) }
func (g *Gen) Fmul(d, n, m V) { g.three("fmul", 0x6e20dc00, d, n, m) }
func (g *Gen) Fdiv(d, n, m V) { g.three("fdiv", 0x6e20fc00, d, n, m) }
func (g *Gen) Fmax(d, n, m V) { g.three("fmax", 0x4e20f400, d, n, m) }
func (g *Gen) Fmin(d, n, m V) { g.three("fmin", 0x4ea0f400, d, n, m) }
func (g *Gen) Fmla(d, n, m V) { g.line("VFMLA %v.S4, %v.S4, %v.S4", m, n, d) }
func (g *Gen) Fmls(d, n, m V) { g.line("VFMLS %v.S4, %v.S4, %v.S4", m, n, d) }

// Arithmetic on two float64 or int64.

func (g *Gen) threeD(name string, code uint32, d, n, m V) {
	g.word(code|m.bits(16)|n.bits(5)|d.bits(0), "%s v%d.2d, v%d.2d, v%d.2d", name, d, n, m)
}

func (g *Gen) FaddD(d, n, m V)        { g.threeD("fadd", 0x4e60d400, d, n, m) }
func (g *Gen) FsubD(d, n, m V)        { g.threeD("fsub", 0x4ee0d400, d, n, m) }
func (g *Gen) FmulD(d, n, m V)        { g.threeD("fmul", 0x6e60dc00, d, n, m) }
func (g *Gen) FdivD(d, n, m V)        { g.threeD("fdiv", 0x6e60fc00, d, n, m) }
func (g *Gen) FcmeqD(d, n, m V)       { g.threeD("fcmeq", 0x4e60e400, d, n, m) }
func (g *Gen) SubIntD(d, n, m V)      { g.line("VSUB %v.D2, %v.D2, %v.D2", m, n, d) }
func (g *Gen) ShlD(d, n V, shift int) { g.line("VSHL $%d, %v.D2, %v.D2", shift, n, d) }

// UshrD shifts right, zeros following.
func (g *Gen) UshrD(d, n V, shift int) { g.line("VUSHR $%d, %v.D2, %v.D2", shift, n, d) }

// ScvtfD turns int64 into float64, Fcvtl the lower two float32, and Fcvtl2 the
// upper two.
func (g *Gen) ScvtfD(d, n V) {
	g.word(0x4e61d800|n.bits(5)|d.bits(0), "scvtf v%d.2d, v%d.2d", d, n)
}
func (g *Gen) Fcvtl(d, n V) { g.word(0x0e617800|n.bits(5)|d.bits(0), "fcvtl v%d.2d, v%d.2s", d, n) }
func (g *Gen) Fcvtl2(d, n V) {
	g.word(0x4e617800|n.bits(5)|d.bits(0), "fcvtl2 v%d.2d, v%d.4s", d, n)
}

// FcvtlH turns the lower four float16 into float32, and Fcvtl2H the upper four;
// FcvtnH and Fcvtn2H round four float32 to the lower and to the upper four
// float16. FcvtnH clears the upper four.
func (g *Gen) FcvtlH(d, n V) { g.word(0x0e217800|n.bits(5)|d.bits(0), "fcvtl v%d.4s, v%d.4h", d, n) }
func (g *Gen) Fcvtl2H(d, n V) {
	g.word(0x4e217800|n.bits(5)|d.bits(0), "fcvtl2 v%d.4s, v%d.8h", d, n)
}
func (g *Gen) FcvtnH(d, n V) { g.word(0x0e216800|n.bits(5)|d.bits(0), "fcvtn v%d.4h, v%d.4s", d, n) }
func (g *Gen) Fcvtn2H(d, n V) {
	g.word(0x4e216800|n.bits(5)|d.bits(0), "fcvtn2 v%d.8h, v%d.4s", d, n)
}

// BitsD repeats a 64-bit constant, by way of a general register.
func (g *Gen) BitsD(d V, bits uint64, t X) {
	g.line("MOVD $0x%x, %v", bits, t)
	g.line("VDUP %v, %v.D2", t, d)
}

// Comparisons set a lane to ones or to zero.

func (g *Gen) Fcmge(d, n, m V) { g.three("fcmge", 0x6e20e400, d, n, m) }
func (g *Gen) Fcmeq(d, n, m V) { g.three("fcmeq", 0x4e20e400, d, n, m) }

func (g *Gen) Fneg(d, n V)  { g.two("fneg", 0x6ea0f800, d, n) }
func (g *Gen) Fabs(d, n V)  { g.two("fabs", 0x4ea0f800, d, n) }
func (g *Gen) Scvtf(d, n V) { g.two("scvtf", 0x4e21d800, d, n) }

// Abs is that of four int32.
func (g *Gen) Abs(d, n V) { g.two("abs", 0x4ea0b800, d, n) }

// FmulElement is n·m[i], and FmlaElement d + n·m[i] with one rounding.
func (g *Gen) FmulElement(d, n, m V, i int) { g.element("fmul", 0x4f809000, d, n, m, i) }
func (g *Gen) FmlaElement(d, n, m V, i int) { g.element("fmla", 0x4f801000, d, n, m, i) }

// Sshr shifts four int32 right, the sign following.
func (g *Gen) Sshr(d, n V, shift int) {
	if shift < 1 || shift > 32 {
		panic(fmt.Sprintf("neon: a shift of %d", shift))
	}
	g.word(0x4f000400|uint32(64-shift)<<16|n.bits(5)|d.bits(0), "sshr v%d.4s, v%d.4s, #%d", d, n, shift)
}

// Bic is n &^ m.
func (g *Gen) Bic(d, n, m V) {
	g.word(0x4e601c00|m.bits(16)|n.bits(5)|d.bits(0), "bic v%d.16b, v%d.16b, v%d.16b", d, n, m)
}

// Whole registers and integers, which Go's assembler knows.

func (g *Gen) Mov(d, n V)             { g.line("VMOV %v.B16, %v.B16", n, d) }
func (g *Gen) Zero(d V)               { g.line("VEOR %v.B16, %v.B16, %v.B16", d, d, d) }
func (g *Gen) And(d, n, m V)          { g.line("VAND %v.B16, %v.B16, %v.B16", m, n, d) }
func (g *Gen) Orr(d, n, m V)          { g.line("VORR %v.B16, %v.B16, %v.B16", m, n, d) }
func (g *Gen) AddInt(d, n, m V)       { g.line("VADD %v.S4, %v.S4, %v.S4", m, n, d) }
func (g *Gen) SubInt(d, n, m V)       { g.line("VSUB %v.S4, %v.S4, %v.S4", m, n, d) }
func (g *Gen) Shl(d, n V, shift int)  { g.line("VSHL $%d, %v.S4, %v.S4", shift, n, d) }
func (g *Gen) Ushr(d, n V, shift int) { g.line("VUSHR $%d, %v.S4, %v.S4", shift, n, d) }

// Bsl is n where the bits of d are set, and m elsewhere.
func (g *Gen) Bsl(d, n, m V) { g.line("VBSL %v.B16, %v.B16, %v.B16", m, n, d) }

// Dup repeats a lane of n.
func (g *Gen) Dup(d, n V, i int) { lane(i); g.line("VDUP %v.S[%d], %v.S4", n, i, d) }

// Bits repeats a 32-bit constant, by way of a general register.
func (g *Gen) Bits(d V, bits uint32, t X) {
	g.line("MOVW $0x%x, %v", bits, t)
	g.line("VDUP %v, %v.S4", t, d)
}

// Trn1 and Trn2 interleave the even and the odd lanes of n and m, Zip1D and
// Zip2D join their lower and upper halves.

func (g *Gen) Trn1(d, n, m V)  { g.line("VTRN1 %v.S4, %v.S4, %v.S4", m, n, d) }
func (g *Gen) Trn2(d, n, m V)  { g.line("VTRN2 %v.S4, %v.S4, %v.S4", m, n, d) }
func (g *Gen) Zip1D(d, n, m V) { g.line("VZIP1 %v.D2, %v.D2, %v.D2", m, n, d) }
func (g *Gen) Zip2D(d, n, m V) { g.line("VZIP2 %v.D2, %v.D2, %v.D2", m, n, d) }

// Zip1H and Zip2H interleave the 16-bit lanes of the lower and of the upper halves
// of n and m, Uzp2H joins their odd ones.

func (g *Gen) Zip1H(d, n, m V) { g.line("VZIP1 %v.H8, %v.H8, %v.H8", m, n, d) }
func (g *Gen) Zip2H(d, n, m V) { g.line("VZIP2 %v.H8, %v.H8, %v.H8", m, n, d) }
func (g *Gen) Uzp2H(d, n, m V) { g.line("VUZP2 %v.H8, %v.H8, %v.H8", m, n, d) }

// Memory.

// Ldr and Str move a vector at base+offset, a multiple of 16 below 64 KiB, or
// any offset from -256 to 255.
func (g *Gen) Ldr(d V, base X, offset int) { g.line("FMOVQ %d(%v), %s", offset, base, d.f()) }
func (g *Gen) Str(d V, base X, offset int) { g.line("FMOVQ %s, %d(%v)", d.f(), offset, base) }

// Ldp and Stp move two vectors at a multiple of 16 from -1024 to 1008.
func (g *Gen) Ldp(d, e V, base X, offset int) {
	g.line("FLDPQ %d(%v), (%s, %s)", offset, base, d.f(), e.f())
}
func (g *Gen) Stp(d, e V, base X, offset int) {
	g.line("FSTPQ (%s, %s), %d(%v)", d.f(), e.f(), offset, base)
}

// LdrIndex loads a vector from base+index.
func (g *Gen) LdrIndex(d V, base, index X) {
	base.check()
	index.check()
	g.word(0x3ce06800|uint32(index)<<16|uint32(base)<<5|d.bits(0), "ldr q%d, [x%d,x%d]", d, base, index)
}

// LdrS, StrS move a single float32; the rest of a register that is loaded is
// zero.
func (g *Gen) LdrS(d V, base X, offset int) { g.line("FMOVS %d(%v), %s", offset, base, d.f()) }
func (g *Gen) StrS(d V, base X, offset int) { g.line("FMOVS %s, %d(%v)", d.f(), offset, base) }

// StrLane stores one lane at base.
func (g *Gen) StrLane(d V, i int, base X) { lane(i); g.line("VST1 %v.S[%d], (%v)", d, i, base) }

// LdrLane loads one lane from base.
func (g *Gen) LdrLane(d V, i int, base X) { lane(i); g.line("VLD1 (%v), %v.S[%d]", base, d, i) }

// LdrH and StrH move 16 bits, the lowest of a register, whose rest stays.
func (g *Gen) LdrH(d V, base X) { g.line("VLD1 (%v), %v.H[0]", base, d) }
func (g *Gen) StrH(d V, base X) { g.line("VST1 %v.H[0], (%v)", d, base) }

// Prefetch fetches a line for reading.
func (g *Gen) Prefetch(base X, offset int) { g.line("PRFM %d(%v), PLDL1KEEP", offset, base) }

// General registers.

func (g *Gen) MovX(d, n X)                { g.line("MOVD %v, %v", n, d) }
func (g *Gen) MovImm(d X, imm int)        { g.line("MOVD $%d, %v", imm, d) }
func (g *Gen) AddX(d, n, m X)             { g.line("ADD %v, %v, %v", m, n, d) }
func (g *Gen) AddShift(d, n, m X, s int)  { g.line("ADD %v<<%d, %v, %v", m, s, n, d) }
func (g *Gen) SubX(d, n, m X)             { g.line("SUB %v, %v, %v", m, n, d) }
func (g *Gen) AddImm(d, n X, imm int)     { g.line("ADD $%d, %v, %v", imm, n, d) }
func (g *Gen) SubImm(d, n X, imm int)     { g.line("SUB $%d, %v, %v", imm, n, d) }
func (g *Gen) LslImm(d, n X, shift int)   { g.line("LSL $%d, %v, %v", shift, n, d) }
func (g *Gen) LsrImm(d, n X, shift int)   { g.line("LSR $%d, %v, %v", shift, n, d) }
func (g *Gen) AndImm(d, n X, imm int)     { g.line("AND $%d, %v, %v", imm, n, d) }
func (g *Gen) MulX(d, n, m X)             { g.line("MUL %v, %v, %v", m, n, d) }
func (g *Gen) MinX(d, n, m X)             { g.line("CMP %v, %v", m, n); g.line("CSEL LT, %v, %v, %v", n, m, d) }
func (g *Gen) LdrX(d, base X, offset int) { g.line("MOVD %d(%v), %v", offset, base, d) }
func (g *Gen) LdrW(d, base X, offset int) { g.line("MOVWU %d(%v), %v", offset, base, d) }
func (g *Gen) StrW(d, base X, offset int) { g.line("MOVW %v, %d(%v)", d, offset, base) }
func (g *Gen) LdrB(d, base X, offset int) { g.line("MOVBU %d(%v), %v", offset, base, d) }

// Raw prints a line of Go's assembler.
func (g *Gen) Raw(format string, args ...any) { g.line(format, args...) }

// Control.

// Label makes a name unique within the function.
func (g *Gen) Label(name string) string {
	g.f.labels++
	return fmt.Sprintf("%s%d", name, g.f.labels)
}

// Here puts a label.
func (g *Gen) Here(label string) { fmt.Fprintf(&g.body, "%s:\n", label) }

// IfZero, IfNotZero and Jump go to a label.
func (g *Gen) IfZero(x X, label string)    { g.line("CBZ %v, %s", x, label) }
func (g *Gen) IfNotZero(x X, label string) { g.line("CBNZ %v, %s", x, label) }
func (g *Gen) Jump(label string)           { g.line("B %s", label) }

// IfLess goes to a label if n < imm.
func (g *Gen) IfLess(n X, imm int, label string) {
	g.line("CMP $%d, %v", imm, n)
	g.line("BLT %s", label)
}

// Loop runs body n times, counting n down; none if n is 0.
func (g *Gen) Loop(n X, body func()) {
	top, done := g.Label("loop"), g.Label("done")
	g.IfZero(n, done)
	g.line("PCALIGN $32")
	g.Here(top)
	body()
	g.line("SUBS $1, %v, %v", n, n)
	g.line("BNE %s", top)
	g.Here(done)
}

// Unrolled runs body for n iterations, count at a time as long as there are as
// many, and then singly. It counts n down.
func (g *Gen) Unrolled(n X, count int, body func(count int)) {
	top, rest := g.Label("loop"), g.Label("rest")
	g.line("SUBS $%d, %v, %v", count, n, n)
	g.line("BLT %s", rest)
	g.line("PCALIGN $32")
	g.Here(top)
	body(count)
	g.line("SUBS $%d, %v, %v", count, n, n)
	g.line("BGE %s", top)
	g.Here(rest)
	g.AddImm(n, n, count)
	g.Loop(n, func() { body(1) })
}

// Functions.

// Func starts a function with a signature such as "a, b *float32, n int" or
// "(a *float32, n int) (ok bool)", and adds its stub.
func (g *Gen) Func(name, signature, doc string) {
	if !strings.HasPrefix(signature, "(") {
		signature = "(" + signature + ")"
	}
	params, result, _ := strings.Cut(strings.TrimPrefix(signature, "("), ")")
	g.f = function{name: name, params: map[string]int{}, floats: map[string]bool{}}
	end := g.lay(params, 0)
	if result = strings.Trim(result, " ()"); result != "" {
		end = g.lay(result, (end+7)&^7)
	}
	fmt.Fprintf(&g.body, "\n// func %s%s\nTEXT ·%s(SB), NOSPLIT, $0-%d\n", name, signature, name, end)
	fmt.Fprintf(&g.stubs, "\n// %s %s\n//\n//go:noescape\nfunc %s%s\n", name, doc, name, signature)
}

// lay places parameters from an offset on, and returns where they end.
func (g *Gen) lay(params string, at int) int {
	groups := strings.Split(params, ",")
	for i := range groups {
		name, _, _ := strings.Cut(strings.TrimSpace(groups[i]), " ")
		kind := ""
		for _, later := range groups[i:] {
			if _, k, ok := strings.Cut(strings.TrimSpace(later), " "); ok {
				kind = k
				break
			}
		}
		size := 8
		switch kind {
		case "float32":
			size = 4
			g.f.floats[name] = true
		case "bool":
			size = 1
		case "float64", "int", "uint64":
		default:
			if !strings.HasPrefix(kind, "*") {
				panic("neon: " + kind + " as a parameter")
			}
		}
		at = (at + size - 1) &^ (size - 1)
		g.f.params[name] = at
		at += size
	}
	return at
}

// param is where a parameter lies.
func (g *Gen) param(name string) string {
	at, ok := g.f.params[name]
	if !ok {
		panic("neon: " + g.f.name + " has no parameter " + name)
	}
	return fmt.Sprintf("%s+%d(FP)", name, at)
}

// Arg loads a pointer or int into a register of its own.
func (g *Gen) Arg(name string) X {
	x := g.X()
	g.LoadArg(x, name)
	return x
}

// LoadArg loads a pointer or int into x.
func (g *Gen) LoadArg(x X, name string) { g.line("MOVD %s, %v", g.param(name), x) }

// ArgFloat repeats a float32 parameter in a register of its own.
func (g *Gen) ArgFloat(name string) V {
	v := g.V()
	if !g.f.floats[name] {
		panic("neon: " + name + " is not a float32")
	}
	g.line("FMOVS %s, %s", g.param(name), v.f())
	g.Dup(v, v, 0)
	return v
}

// ArgDouble repeats a float64 parameter in a register of its own.
func (g *Gen) ArgDouble(name string) V {
	v := g.V()
	g.line("FMOVD %s, %s", g.param(name), v.f())
	g.line("VDUP %v.D[0], %v.D2", v, v)
	return v
}

// ReturnBool stores a bool result.
func (g *Gen) ReturnBool(name string, x X) { g.line("MOVB %v, %s", x, g.param(name)) }

// ReturnFloat stores lane 0 as a float32 result.
func (g *Gen) ReturnFloat(name string, v V) { g.line("FMOVS %s, %s", v.f(), g.param(name)) }

// X hands out a general register.
func (g *Gen) X() X {
	g.f.x++
	return free[g.f.x-1]
}

// V hands out a vector register.
func (g *Gen) V() V {
	g.f.v++
	v := V(g.f.v - 1)
	v.bits(0)
	return v
}

// Vs hands out n vector registers.
func (g *Gen) Vs(n int) []V {
	v := make([]V, n)
	for i := range v {
		v[i] = g.V()
	}
	return v
}

// Used and Reset give back what was handed out since.
func (g *Gen) Used() (x, v int) { return g.f.x, g.f.v }
func (g *Gen) Reset(x, v int)   { g.f.x, g.f.v = x, v }

// Ret returns.
func (g *Gen) Ret() { g.line("RET") }

// Assembly is the file of functions, Stubs that of their Go declarations.
func (g *Gen) Assembly(header string) string {
	return header + "\n#include \"textflag.h\"\n" + g.body.String()
}
func (g *Gen) Stubs(header string) string { return header + g.stubs.String() }
