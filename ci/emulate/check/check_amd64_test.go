//go:build linux

package check

import (
	"flag"
	"math"
	"math/big"
	"math/bits"
	"math/rand/v2"
	"os"
	"strings"
	"syscall"
	"testing"
	"unsafe"
)

var spinCount = flag.Int("spin", 0, "run that many thousand 512-bit multiply-adds, to measure their speed from outside")

func need(t *testing.T) *rand.Rand {
	info, _ := os.ReadFile("/proc/cpuinfo")
	flags := " " + strings.Join(strings.Fields(string(info)), " ") + " "
	for _, f := range []string{"avx512f", "avx512dq", "avx512bw", "avx512vl"} {
		if !strings.Contains(flags, " "+f+" ") {
			t.Skip("no " + f)
		}
	}
	return rand.New(rand.NewPCG(1, 2))
}

// rounds is how many times 16 numbers are tried.
func rounds() int {
	if testing.Short() {
		return 2000
	}
	return 20000
}

var special = func() (s []float32) {
	for _, b := range []uint32{
		0, 1, 2, 0x7fffff, 0x800000, 0x800001, 0x3f800000, 0x3f7fffff, 0x3f800001, 0x40000000, 0x3f000000,
		0x3effffff, 0x4b000000, 0x4b800000, 0x4effffff, 0x42fe0000, 0x43000000, 0x43150000, 0x43160000, 0x43800000,
		0x7f7fffff, 0x7f800000, 0x7fc00000, 0x7fc12345, 0x2f800000, 0x0c000000, 0x40200000, 0x40600000,
	} {
		s = append(s, math.Float32frombits(b), math.Float32frombits(b|1<<31))
	}
	return s
}()

// number gives numbers of all kinds: special ones, any bits, and such close to
// each other that sums cancel.
func number(r *rand.Rand) float32 {
	switch r.IntN(4) {
	case 0:
		return special[r.IntN(len(special))]
	case 1:
		b := r.Uint32()
		if b&0x7f800000 == 0x7f800000 {
			b |= 1 << 22 // no signalling NaN
		}
		return math.Float32frombits(b)
	case 2:
		return float32(r.NormFloat64())
	}
	return math.Float32frombits(r.Uint32()&0x807fffff | uint32(120+r.IntN(16))<<23)
}

func numbers(r *rand.Rand) (x [16]float32) {
	for i := range x {
		x[i] = number(r)
	}
	return x
}

func same(a, b float32) bool {
	return math.Float32bits(a) == math.Float32bits(b) || a != a && b != b
}

func isNaN(x float32) bool      { return x != x }
func isInf(x float32) bool      { return math.IsInf(float64(x), 0) }
func inf(sign float32) float32  { return float32(math.Inf(1 - 2*int(math.Float32bits(sign)>>31))) }
func zero(sign float32) float32 { return math.Float32frombits(math.Float32bits(sign) & (1 << 31)) }
func check(t *testing.T, what string, got, want float32, args ...float32) {
	t.Helper()
	if !same(got, want) {
		b := make([]uint32, len(args))
		for i := range b {
			b[i] = math.Float32bits(args[i])
		}
		t.Fatalf("%s(%v = %#x): %v (%#x), want %v (%#x)", what, args, b, got, math.Float32bits(got), want, math.Float32bits(want))
	}
}

// fma32 rounds x·y+z once. The product is exact in float64; the sum is rounded
// to odd there, which makes the second rounding right.
func fma32(x, y, z float32) float32 {
	p, c := float64(x)*float64(y), float64(z)
	s := p + c
	if math.IsInf(s, 0) || s != s {
		return float32(s)
	}
	t := s - p
	e := (p - (s - t)) + (c - t)
	if b := math.Float64bits(s); e != 0 && b&1 == 0 {
		if (e > 0) == (s > 0) {
			b++
		} else {
			b--
		}
		s = math.Float64frombits(b)
	}
	return float32(s)
}

// bigFMA is the same with big numbers, for finite ones.
func bigFMA(x, y, z float32, mode big.RoundingMode) (float32, bool) {
	if isNaN(x) || isInf(x) || isNaN(y) || isInf(y) || isNaN(z) || isInf(z) {
		return 0, false
	}
	f := func(x float32) *big.Float { return new(big.Float).SetPrec(1000).SetFloat64(float64(x)) }
	v := f(x)
	v.Mul(v, f(y)).Add(v, f(z))
	if v.Sign() == 0 {
		return 0, false // the sign of zero has rules of its own
	}
	if mode == big.ToNearestEven {
		w, _ := v.Float32()
		return w, true
	}
	// For normal results the rounding of a 24-bit big.Float is that of float32.
	v.SetMode(mode).SetPrec(24)
	if e := v.MantExp(nil); e < -125 || e > 127 {
		return 0, false
	}
	w, acc := v.Float32()
	return w, acc == big.Exact
}

func TestFMA(t *testing.T) {
	r := need(t)
	compared := 0
	for n := range rounds() {
		x, y, z := numbers(r), numbers(r), numbers(r)
		if n%4 == 0 { // near cancellation, and results that are nearly ties
			for i := range z {
				z[i] = -x[i] * y[i]
				if r.IntN(2) == 0 {
					z[i] *= float32(int(1) << r.IntN(30))
				}
			}
		}
		got, down, bcst := z, z, z
		fma512(&got, &x, &y)
		fmaDown(&down, &x, &y)
		fmaBroadcast(&bcst, &x, &y[3])
		for i := range got {
			check(t, "fma", got[i], fma32(x[i], y[i], z[i]), x[i], y[i], z[i])
			check(t, "fma, broadcast", bcst[i], fma32(x[i], y[3], z[i]), x[i], y[3], z[i])
			if n%8 < 2 {
				if want, ok := bigFMA(x[i], y[i], z[i], big.ToNearestEven); ok {
					check(t, "fma", got[i], want, x[i], y[i], z[i])
					compared++
				}
				if want, ok := bigFMA(x[i], y[i], z[i], big.ToNegativeInf); ok {
					check(t, "fma rounded down", down[i], want, x[i], y[i], z[i])
				}
			}
		}
	}
	t.Logf("%d compared, %d of them with big numbers too", rounds()*16, compared)
}

func scalefWant(x, y float32) float32 {
	nan := float32(math.NaN())
	switch {
	case isNaN(x) && isInf(y): // as Intel's table has it
		if y > 0 {
			return inf(0)
		}
		return 0
	case isNaN(x) || isNaN(y):
		return nan
	case isInf(x) && isInf(y) && y < 0, x == 0 && isInf(y) && y > 0:
		return nan
	case isInf(y) && y > 0:
		return inf(x)
	case isInf(y):
		return zero(x)
	}
	n := math.Floor(float64(y))
	return float32(math.Ldexp(float64(x), int(max(-600, min(600, n)))))
}

func TestScalef(t *testing.T) {
	r := need(t)
	for _, a := range special {
		for _, b := range special {
			var x, y, z [16]float32
			for i := range x {
				x[i], y[i] = a, b
			}
			scalef(&z, &x, &y)
			check(t, "scalef", z[9], scalefWant(a, b), a, b)
		}
	}
	for range rounds() {
		x, y := numbers(r), numbers(r)
		for i := range y {
			if r.IntN(2) == 0 {
				y[i] = (r.Float32() - 0.5) * 600
			}
		}
		var z [16]float32
		scalef(&z, &x, &y)
		for i := range z {
			check(t, "scalef", z[i], scalefWant(x[i], y[i]), x[i], y[i])
		}
	}
}

func TestRndscale(t *testing.T) {
	r := need(t)
	round := []func(float64) float64{math.RoundToEven, math.Floor, math.Ceil, math.Trunc,
		func(x float64) float64 { return math.RoundToEven(x*16) / 16 }}
	for n := range rounds() {
		x := numbers(r)
		var z [16]float32
		rndscale(&z, &x, n%5)
		for i := range z {
			check(t, "rndscale", z[i], float32(round[n%5](float64(x[i]))), x[i])
		}
	}
}

func TestMulq(t *testing.T) {
	r := need(t)
	for range rounds() {
		var x, y, z [8]uint64
		for i := range x {
			x[i], y[i] = r.Uint64(), r.Uint64()
		}
		mulq(&z, &x, &y)
		for i := range z {
			if _, want := bits.Mul64(x[i], y[i]); z[i] != want {
				t.Fatalf("%#x * %#x: %#x, want %#x", x[i], y[i], z[i], want)
			}
		}
	}
}

func TestMasks(t *testing.T) {
	r := need(t)
	bit := func(b bool, i int) uint16 {
		if b {
			return 1 << i
		}
		return 0
	}
	for range rounds() {
		x, y := numbers(r), numbers(r)
		for i := range x {
			if r.IntN(4) == 0 {
				y[i] = x[i]
			}
		}
		var sign uint16
		var want, got [6]uint16
		for i := range x {
			sign |= bit(math.Signbit(float64(x[i])), i)
			want[0] |= bit(x[i] == y[i], i)
			want[1] |= bit(x[i] < y[i], i)
			want[2] |= bit(x[i] <= y[i], i)
			want[3] |= bit(isNaN(x[i]) || isNaN(y[i]), i)
			want[4] |= bit(x[i] != y[i], i)
		}
		want[5] = want[1]
		if got := signs(&x); got != sign {
			t.Fatalf("signs of %v: %#x, want %#x", x, got, sign)
		}
		if cmps(&x, &y, &got); got != want {
			t.Fatalf("comparisons of %v and %v: %#x, want %#x", x, y, got, want)
		}
		mask := int(r.Uint32N(1 << 16))
		old := numbers(r)
		for zeroing := range 2 {
			z := old
			masked(&z, &x, &y, mask, zeroing)
			for i := range z {
				want := x[i] + y[i]
				if mask>>i&1 == 0 {
					want = [2]float32{old[i], 0}[zeroing]
				}
				check(t, "masked add", z[i], want, x[i], y[i], old[i])
			}
		}
	}
}

// TestMaskedFault has a page without access behind the end of the data.
func TestMaskedFault(t *testing.T) {
	need(t)
	page := os.Getpagesize()
	m, err := syscall.Mmap(-1, 0, 2*page, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Munmap(m)
	if err := syscall.Mprotect(m[page:], syscall.PROT_NONE); err != nil {
		t.Fatal(err)
	}
	data := unsafe.Slice((*float32)(unsafe.Pointer(&m[0])), page/4)
	for n := range 16 {
		src := data[len(data)-n:]
		for i := range src {
			src[i] = float32(i + 1)
		}
		if n == 0 {
			src = data[len(data)-1:]
		}
		var z [16]float32
		first := &src[0]
		if n == 0 {
			first = (*float32)(unsafe.Add(unsafe.Pointer(first), 4))
		}
		storeMasked(&z[0], first, 1<<n-1)
		for i := range z {
			want := float32(0)
			if i < n {
				want = float32(i + 1)
			}
			check(t, "masked load", z[i], want)
		}
		storeMasked(first, &z[0], 1<<n-1)
	}
}

func TestSumAndArith(t *testing.T) {
	r := need(t)
	for range rounds() {
		x, y := numbers(r), numbers(r)
		s := x
		for n := 8; n > 0; n /= 2 {
			for i := range n {
				s[i] += s[i+n]
			}
		}
		check(t, "sum", sum(&x), s[0], x[:]...)

		var out [8][16]float32
		var z [16]float32
		arith(&x, &y, &out)
		var idx [16]uint32
		for i := range idx {
			idx[i] = r.Uint32()
		}
		permute(&z, &x, &idx)
		for i := range x {
			a, b := x[i], y[i]
			check(t, "div", out[0][i], a/b, a, b)
			check(t, "sqrt", out[1][i], float32(math.Sqrt(float64(a))), a)
			hi, lo := b, b
			if a > b {
				hi = a
			}
			if a < b {
				lo = a
			}
			check(t, "max", out[2][i], hi, a, b)
			check(t, "min", out[3][i], lo, a, b)
			n := float32(math.MinInt32)
			if a >= -1<<31 && a < 1<<31 {
				n = float32(int32(math.RoundToEven(float64(a))))
			}
			check(t, "int", out[4][i], n, a)
			check(t, "mul", out[5][i], a*b, a, b)
			e := float32(math.Logb(float64(a)))
			check(t, "getexp", out[6][i], e, a)
			if math.Signbit(float64(a)) {
				a = b
			}
			check(t, "blend", out[7][i], a, x[i], b)
			check(t, "permute", z[i], x[idx[i]&15])
		}
	}
}

// TestSpin only takes its time.
func TestSpin(t *testing.T) {
	need(t)
	if *spinCount == 0 {
		t.Skip("no -spin")
	}
	var x [64]float32
	for i := range x {
		x[i] = 1 / float32(i+1)
	}
	spin(&x, *spinCount*1000/16)
}
