package main

import (
	"math"
	"runtime"
	"sync"

	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/blas32"
)

// Every sum in this file has an order of its own that does not depend on the
// number of goroutines: they share out rows, or columns, never a sum.

// matrix is row-major.
type matrix struct {
	rows, cols int
	data       []float32
}

func newMatrix(rows, cols int) matrix { return matrix{rows, cols, make([]float32, rows*cols)} }

func (m matrix) row(i int) []float32 { return m.data[i*m.cols : (i+1)*m.cols] }

// part is a view of h rows from row i, and w columns from column j; of the
// transpose, if t says so.
func (m matrix) part(t blas.Transpose, i, j, h, w int) blas32.General {
	if t == transposed {
		i, j, h, w = j, i, w, h
	}
	return blas32.General{Rows: h, Cols: w, Stride: m.cols, Data: m.data[i*m.cols+j:]}
}

const (
	plain      = blas.NoTrans
	transposed = blas.Trans
)

// multiply computes c = a·b + beta·c, a and b transposed or not. The order of
// its sums depends on the sizes alone.
func multiply(ta blas.Transpose, a matrix, tb blas.Transpose, b matrix, beta float32, c matrix) {
	// Parts of this size gonum computes at once, and faster than by the
	// parts of 64x64 into which it would cut all of c.
	const height, width = 64, 192
	k := a.cols
	if ta == transposed {
		k = a.rows
	}
	across := (c.cols + width - 1) / width
	share((c.rows+height-1)/height*across, func(from, to int) {
		for p := from; p < to; p++ {
			i, j := p/across*height, p%across*width
			h, w := min(height, c.rows-i), min(width, c.cols-j)
			pa, pb := a.part(ta, i, 0, h, k), b.part(tb, 0, j, k, w)
			blas32.Gemm(ta, tb, 1, pa, pb, beta, c.part(plain, i, j, h, w))
		}
	})
}

// share runs f for parts of 0..n, on all processors.
func share(n int, f func(from, to int)) {
	workers := min(runtime.GOMAXPROCS(0), n)
	if workers <= 1 {
		f(0, n)
		return
	}
	var wait sync.WaitGroup
	for w := range workers {
		wait.Add(1)
		go func() {
			defer wait.Done()
			f(w*n/workers, (w+1)*n/workers)
		}()
	}
	wait.Wait()
}

const epsilon = 1e-5

// normalize computes y = x/rms(x)·gain row by row (RMSNorm, Zhang and Sennrich
// 2019), and keeps 1/rms.
func normalize(x matrix, gain []float32, y matrix, inv []float32) {
	share(x.rows, func(from, to int) {
		for i := from; i < to; i++ {
			row, out := x.row(i), y.row(i)
			var sum float64
			for _, v := range row {
				sum += float64(v) * float64(v)
			}
			inv[i] = float32(1 / math.Sqrt(sum/float64(x.cols)+epsilon))
			for c, v := range row {
				out[c] = v * inv[i] * gain[c]
			}
		}
	})
}

// normalizeBack adds to dx and dgain what dy gives.
func normalizeBack(x matrix, gain, inv []float32, dy, dx matrix, dgain []float32) {
	share(x.rows, func(from, to int) {
		for i := from; i < to; i++ {
			row, dout, din := x.row(i), dy.row(i), dx.row(i)
			var dot float64
			for c, v := range row {
				dot += float64(dout[c] * gain[c] * v)
			}
			mean := float32(dot/float64(x.cols)) * inv[i] * inv[i]
			for c, v := range row {
				din[c] += inv[i] * (dout[c]*gain[c] - v*mean)
			}
		}
	})
	share(x.cols, func(from, to int) {
		for i := range x.rows {
			row, dout := x.row(i), dy.row(i)
			for c := from; c < to; c++ {
				dgain[c] += dout[c] * row[c] * inv[i]
			}
		}
	})
}

// gelu is the tanh form (Hendrycks and Gimpel 2016), written with the logistic
// function; gate is its derivative.
func gelu(x float32) (y, gate float32) {
	const k = 1.5957691216057308 // 2*sqrt(2/pi)
	v := float64(x)
	s := 1 / (1 + math.Exp(-k*(v+0.044715*v*v*v)))
	return float32(v * s), float32(s + v*s*(1-s)*k*(1+3*0.044715*v*v))
}

// activate computes y = gelu(x) and leaves the derivative in x.
func activate(x, y matrix) {
	share(len(x.data), func(from, to int) {
		for i := from; i < to; i++ {
			y.data[i], x.data[i] = gelu(x.data[i])
		}
	})
}

// rotate turns pairs of channels of the first heads of every row by an angle
// that grows with the position of its token (rotary embedding, Su et al. 2021),
// or back. The slowest pair turns by 1/base a token or little more: sequences
// are short.
func rotate(x matrix, cu []int, heads, dim int, back bool) {
	const base = 100
	share(len(cu)-1, func(from, to int) {
		for b := from; b < to; b++ {
			for t := cu[b]; t < cu[b+1]; t++ {
				row := x.row(t)
				for c := range dim / 2 {
					sin, cos := math.Sincos(float64(t-cu[b]) * math.Pow(base, -2*float64(c)/float64(dim)))
					if back {
						sin = -sin
					}
					s, k := float32(sin), float32(cos)
					for h := range heads {
						p := row[h*dim+2*c:]
						p[0], p[1] = p[0]*k-p[1]*s, p[0]*s+p[1]*k
					}
				}
			}
		}
	})
}

// crossEntropy returns the mean of -ln p(target) in nats, and leaves in logits
// its gradient.
func crossEntropy(logits matrix, targets []byte) float64 {
	losses := make([]float64, logits.rows)
	share(logits.rows, func(from, to int) {
		for i := from; i < to; i++ {
			row := logits.row(i)
			largest := row[0]
			for _, v := range row {
				largest = max(largest, v)
			}
			var sum float64
			for _, v := range row {
				sum += math.Exp(float64(v - largest))
			}
			losses[i] = math.Log(sum) - float64(row[targets[i]]-largest)
			for c, v := range row {
				row[c] = float32(math.Exp(float64(v-largest)) / sum / float64(logits.rows))
			}
			row[targets[i]] -= 1 / float32(logits.rows)
		}
	})
	var total float64
	for _, l := range losses {
		total += l
	}
	return total / float64(logits.rows)
}
