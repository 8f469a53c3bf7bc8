package kernel

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// exactFMA rounds a*b + c once.
func exactFMA(a, b, c float32) float32 {
	x := func(f float32) *big.Float { return new(big.Float).SetPrec(1000).SetFloat64(float64(f)) }
	p := new(big.Float).SetPrec(1000).Mul(x(a), x(b))
	f, _ := p.Add(p, x(c)).Float32()
	return f
}

func TestFMA32(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	fewBits := func() float32 {
		return float32(math.Ldexp(float64(r.IntN(1<<13)-1<<12), r.IntN(60)-30))
	}
	draws := map[string]func() (a, b, c float32){
		"any bits": func() (a, b, c float32) {
			return math.Float32frombits(r.Uint32()), math.Float32frombits(r.Uint32()), math.Float32frombits(r.Uint32())
		},
		"near": func() (a, b, c float32) {
			a, b = r.Float32(), r.Float32()
			return a, b, -a * b * (1 + float32(r.NormFloat64())*0x1p-20)
		},
		"ties": func() (a, b, c float32) { return fewBits(), fewBits(), fewBits() },
		// The addend is far below the last bit of a product that ties, and breaks
		// the tie.
		"barely off a tie": func() (a, b, c float32) {
			return float32(1<<12 + 1 + 2*r.IntN(1<<10)), float32(1<<12 + 1 + 2*r.IntN(1<<10)), float32(r.IntN(3)-1) * 0x1p-100
		},
		"subnormal results": func() (a, b, c float32) {
			return float32(r.NormFloat64()) * 0x1p-70, float32(r.NormFloat64()) * 0x1p-70, math.Float32frombits(r.Uint32() & 0x80FFFFFF)
		},
	}
	for name, draw := range draws {
		t.Run(name, func(t *testing.T) {
			for range 50000 {
				a, b, c := draw()
				if s := float64(a)*float64(b) + float64(c); s-s != 0 || s == 0 {
					continue // big.Float knows no NaN, and other signs of zero
				}
				got, want := FMA32(a, b, c), exactFMA(a, b, c)
				require.Equal(t, math.Float32bits(want), math.Float32bits(got), "fma(%g, %g, %g) is %g, must be %g", a, b, c, got, want)
			}
		})
	}
	negZero := float32(math.Copysign(0, -1))
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	for _, x := range []struct{ a, b, c, want float32 }{
		{0, 1, negZero, 0}, {negZero, 1, negZero, negZero}, {1, 1, -1, 0}, {inf, 1, 1, inf}, {1, -inf, 1, -inf},
	} {
		assert.Equal(t, math.Float32bits(x.want), math.Float32bits(FMA32(x.a, x.b, x.c)), x)
	}
	for _, x := range [][3]float32{{inf, 0, 1}, {inf, 1, -inf}, {nan, 1, 1}, {1, nan, 1}, {1, 1, nan}} {
		y := FMA32(x[0], x[1], x[2])
		assert.True(t, y != y, x)
	}
}

// bigLn is ln(x) to 200 bits: x = m·2^e, ln m = 2·artanh((m-1)/(m+1)).
func bigLn(x float64) *big.Float {
	f := func(x float64) *big.Float { return new(big.Float).SetPrec(200).SetFloat64(x) }
	artanh := func(s *big.Float) *big.Float {
		sum, power, z := f(0), new(big.Float).Copy(s), f(0).Mul(s, s)
		for k := 1; k < 150; k += 2 {
			sum.Add(sum, f(0).Quo(power, f(float64(k))))
			power.Mul(power, z)
		}
		return sum.Mul(sum, f(2))
	}
	m, e := math.Frexp(x)
	if m < 2./3 {
		m, e = 2*m, e-1
	}
	ln2 := artanh(f(0).Quo(f(1), f(3)))
	l := artanh(f(0).Quo(f(0).Sub(f(m), f(1)), f(0).Add(f(m), f(1))))
	return l.Add(l, ln2.Mul(ln2, f(float64(e))))
}

// ulps is how far got is from want.
func ulps(got float64, want *big.Float) float64 {
	nearest, _ := want.Float64()
	e, _ := new(big.Float).Sub(want, new(big.Float).SetFloat64(got)).Float64()
	return math.Abs(e) / (math.Nextafter(math.Abs(nearest), math.Inf(1)) - math.Abs(nearest))
}

// TestLn holds the worst errors that the comment of Ln states.
func TestLn(t *testing.T) {
	const worst32, worst64 = 1.0, 2.0 // ulp
	check := func(l float32) {
		require.LessOrEqual(t, ulps(Ln(l), bigLn(float64(l))), worst32, "ln(%v) is %v", l, Ln(l))
	}
	check64 := func(l float64) {
		require.LessOrEqual(t, ulps(Ln(l), bigLn(l)), worst64, "ln(%v) is %v", l, Ln(l))
	}
	for n := range 1000 {
		check(1 + float32(n)*0x1p-23)
		check(float32(1 + n))
		check64(1 + float64(n)*0x1p-52)
	}
	r := rand.New(rand.NewPCG(1, 2))
	for range 4000 {
		check(math.Float32frombits(127<<23 + r.Uint32N(128<<23)))
		check64(1 + r.Float64())
		check64(math.Ldexp(1+r.Float64(), r.IntN(1023)))
	}
	assert.Equal(t, math.Float64bits(0), math.Float64bits(Ln(float32(1))))
	assert.True(t, math.IsNaN(Ln(float32(math.NaN()))))
	assert.True(t, math.IsNaN(Ln(math.Float32frombits(0xFFC12345))))
	assert.True(t, math.IsNaN(Ln(math.NaN())))
}

// bigExp is e^x to 200 bits: the Taylor series of x/2^12, squared.
func bigExp(x float64) *big.Float {
	f := func(x float64) *big.Float { return new(big.Float).SetPrec(300).SetFloat64(x) }
	y := f(math.Ldexp(x, -12))
	sum, term := f(1), f(1)
	for n := 1.0; n < 50; n++ {
		term.Quo(term.Mul(term, y), f(n))
		sum.Add(sum, term)
	}
	for range 12 {
		sum.Mul(sum, sum)
	}
	return sum
}

// TestExp holds the worst error that the comment of Exp states.
func TestExp(t *testing.T) {
	const worst = 1 // ulp
	check := func(x float64) {
		require.LessOrEqual(t, ulps(Exp(x), bigExp(x)), float64(worst), "exp(%v) is %v", x, Exp(x))
	}
	r := rand.New(rand.NewPCG(1, 2))
	for n := range 4000 {
		check(-r.Float64())
		check(-708 * r.Float64())
		check(-math.Ldexp(1, -n%60) * r.Float64())
		check(math.Nextafter(-float64(n)*math.Ln2/8, float64(n%3-1)*1000))
	}
	check(-708)
	assert.Equal(t, 1.0, Exp(0))
	assert.Equal(t, 1.0, Exp(math.Copysign(0, -1)))
	assert.Zero(t, Exp(-708.1))
	assert.Zero(t, Exp(math.Inf(-1)))
	assert.True(t, math.IsNaN(Exp(math.NaN())))
}

// TestDraw holds the public hash to splitmix64 as it was published.
func TestDraw(t *testing.T) {
	stream := func(state uint64, n int) uint64 {
		var z uint64
		for range n {
			state += 0x9E3779B97F4A7C15
			z = state
			z = (z ^ z>>30) * 0xBF58476D1CE4E5B9
			z = (z ^ z>>27) * 0x94D049BB133111EB
			z ^= z >> 31
		}
		return z
	}
	assert.Equal(t, uint64(0xE220A8397B1DCDAF), stream(0, 1)) // its first output for seed 0
	for j := range 300 {
		z := stream(42, j/2+1)
		if j%2 == 1 {
			z >>= 32
		}
		assert.Equal(t, uint32(z), Draw(42, j))
	}
}
