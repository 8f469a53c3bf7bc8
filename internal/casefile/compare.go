package casefile

import (
	"fmt"
	"math"
)

// Units in which the error of an output is measured, relative to its magnitude:
// the rounding error of the type that computes it.
const (
	UnitFloat32  = 1.0 / (1 << 24)
	UnitFloat16  = 1.0 / (1 << 11)
	UnitBFloat16 = 1.0 / (1 << 8)
)

// smallestNormal is that of float32.
const smallestNormal = 0x1p-126

// Comparison says how far a result is from the expected values.
type Comparison struct {
	Name  string  // of the output
	Worst float64 // worst error, in units of Unit · magnitude, or of the absolute tolerance
	Limit float64 // the largest error that is accepted, in the same units
	OK    bool    // Worst ≤ Limit

	Index     int     // of the worst element
	Got, Want float64 // the worst element
}

// String describes c in one line.
func (c Comparison) String() string {
	verdict := "ok"
	if !c.OK {
		verdict = "FAIL"
	}
	return fmt.Sprintf("%s: %s: worst error %.3g, limit %.3g (element %d: got %.9g, want %.9g)",
		c.Name, verdict, c.Worst, c.Limit, c.Index, c.Got, c.Want)
}

// Compare holds got against the expected output called name, in units of
// float32: see CompareUnit.
func Compare[T float32 | float64](c *Case, name string, got []T) (Comparison, error) {
	return CompareUnit(c, name, got, UnitFloat32)
}

// CompareUnit holds got against the expected output called name.
//
// If the case has a tolerance_abs, that is what the error is divided by, and the
// limit is 1. Otherwise the error of an element is
//
//	(|got - want| - 2^-149) / (unit · max(magnitude, 2^-126))
//
// as below 2^-126 a float32 has fewer bits (a unit of less than float32's is not
// given that much), and the limit is max(64, 8 · the error of a plain float32
// attention in these units). Where both the expected value and its magnitude are 0, the result must
// be exactly 0. An infinity must be equal, and a NaN must be a NaN: any other
// value is infinitely wrong.
//
// It is an error if the case has no such output, or got has another length.
func CompareUnit[T float32 | float64](c *Case, name string, got []T, unit float64) (Comparison, error) {
	result := Comparison{Name: name, Limit: 1}
	want, magnitude, err := c.expected(name)
	if err != nil {
		return result, err
	}
	if len(got) != len(want) {
		return result, fmt.Errorf("casefile: output %q has %d elements, not %d", name, len(want), len(got))
	}
	tolerance := func(int) float64 { return c.ToleranceAbs }
	slack := 0.0
	if c.ToleranceAbs <= 0 {
		result.Limit = max(64, 8*c.Checks.F32NaiveErrUnits[name])
		slack = math.SmallestNonzeroFloat32
		tolerance = func(i int) float64 {
			if magnitude[i] == 0 || unit < UnitFloat32 {
				return unit * magnitude[i]
			}
			return unit * max(magnitude[i], smallestNormal)
		}
	}
	for i := range got {
		g := float64(got[i])
		if e := deviation(g, want[i], slack, tolerance(i)); i == 0 || e > result.Worst {
			result.Worst, result.Index, result.Got, result.Want = e, i, g, want[i]
		}
	}
	result.OK = result.Worst <= result.Limit
	return result, nil
}

// expected returns the expected output called name, and its magnitude, which is
// nil for a case with an absolute tolerance.
func (c *Case) expected(name string) (want, magnitude []float64, err error) {
	output := c.Array(name, Output)
	if output == nil {
		return nil, nil, fmt.Errorf("casefile: there is no output %q", name)
	}
	if want, err = output.Float64s(); err != nil || c.ToleranceAbs > 0 {
		return want, nil, err
	}
	m := c.Array(name, Magnitude)
	if m == nil {
		return nil, nil, fmt.Errorf("casefile: output %q has neither a magnitude nor tolerance_abs", name)
	}
	if magnitude, err = m.Float64s(); err == nil && len(magnitude) != len(want) {
		err = fmt.Errorf("casefile: output %q has %d elements, but its magnitude has %d", name, len(want), len(magnitude))
	}
	return want, magnitude, err
}

// deviation returns the error of got in units of tolerance, after slack is
// forgiven; +Inf where got is wrong by more than a number can say.
func deviation(got, want, slack, tolerance float64) float64 {
	if got == want || math.IsNaN(got) && math.IsNaN(want) {
		return 0
	}
	e := math.Abs(got - want)
	switch {
	case math.IsNaN(e) || math.IsInf(e, 0) || math.IsInf(tolerance, 0):
		return math.Inf(1)
	case want != 0 && e <= slack:
		return 0 // a float32 cannot be nearer; the magnitude may have underflowed to 0
	case !(tolerance > 0):
		return math.Inf(1)
	}
	return max(0, e-slack) / tolerance
}
