package ref

import "math"

// Merge combines attention of the same n query rows over two disjoint sets of
// keys. o1, o2: [n, Dv]; lse1, lse2: [n].
//
//	LSE = ln(exp(LSE1) + exp(LSE2))
//	O   = O1 · exp(LSE1 - LSE) + O2 · exp(LSE2 - LSE)
//
// A part that saw nothing, (0, -Inf), changes nothing.
func Merge(o1, lse1, o2, lse2 []float64) (o, lse []float64) {
	n := len(lse1)
	if len(lse2) != n || len(o1) != len(o2) || n > 0 && len(o1)%n != 0 {
		panic("ref: the two parts of a merge differ in shape")
	}
	o, lse = make([]float64, len(o1)), make([]float64, n)
	for i := range n {
		m := math.Max(lse1[i], lse2[i])
		if math.IsInf(m, -1) {
			lse[i] = m
			continue
		}
		e1, e2 := math.Exp(lse1[i]-m), math.Exp(lse2[i]-m)
		lse[i] = m + math.Log(e1+e2)
		dv := len(o1) / n
		for c := i * dv; c < (i+1)*dv; c++ {
			o[c] = (o1[c]*e1 + o2[c]*e2) / (e1 + e2)
		}
	}
	return o, lse
}
