package attention

import (
	"unsafe"

	"github.com/seed-091431b3/attention/kernel"
)

// writer is what writing to a cache needs besides: rows widened, and a panel of K
// before it is narrowed.
type writer struct {
	off         [kernel.Run]int
	rows, panel []float32
}

// write stores n keys and values behind those of s, for which there is room.
func (s *CachedSequence) write(k, v *Tensor, n int) {
	size := s.cache.cfg.PageKeys
	for t := 0; t < n; {
		at := (s.n + t) % size
		run := min(kernel.Run-at%kernel.Run, n-t)
		page := int(s.pages[(s.n+t)/size])
		for h := range s.cache.cfg.KVHeads {
			s.writeKeys(page, h, at, run, k, t)
			s.writeValues(page, h, at, run, v, t)
		}
		t += run
	}
}

// writeKeys stores tokens t to t+n-1 of a head into one panel of a page, from key
// at on.
func (s *CachedSequence) writeKeys(page, head, at, n int, k *Tensor, t int) {
	c, d := s.cache, s.cache.cfg.HeadDim
	f := kernel.Format(c.cfg.Format)
	to := c.k[(page*c.cfg.KVHeads+head)*c.kHead+(at/kernel.Run*kernel.Run*d+at%kernel.Run)*f.Size():]
	rows, stride := s.rows(k, head, t, n, d)
	switch {
	case n == kernel.Run:
		for i := range s.scratch.off {
			s.scratch.off[i] = i * stride
		}
		panel := floats(to)
		if f != kernel.Float32 {
			s.scratch.panel = grow(s.scratch.panel, kernel.Run*d)
			panel = s.scratch.panel
		}
		c.ops.Gather(&panel[0], &rows[0], &s.scratch.off[0], d, kernel.Run, 1)
		if f != kernel.Float32 {
			c.ops.Stored[f].Narrow(&to[0], &panel[0], kernel.Run*d)
		}
	case f == kernel.Float32:
		place := floats(to)
		for j := range n {
			for i, x := range rows[j*stride:][:d] {
				place[i*kernel.Run+j] = x
			}
		}
	default:
		place := halves(to)
		for j := range n {
			for i, x := range rows[j*stride:][:d] {
				place[i*kernel.Run+j] = f.Narrow16(x)
			}
		}
	}
}

// writeValues is writeKeys for values.
func (s *CachedSequence) writeValues(page, head, at, n int, v *Tensor, t int) {
	c, d := s.cache, s.cache.cfg.ValueDim
	f := kernel.Format(c.cfg.Format)
	i := page*c.cfg.KVHeads + head
	to := c.v[i*c.vHead+at*kernel.Run*f.Size():]
	rows, stride := s.rows(v, head, t, n, d)
	finite := at == 0 || c.finite[i]
	for x := 0; x < d; x += kernel.Run {
		width := min(kernel.Run, d-x)
		panel := to[x*c.cfg.PageKeys*f.Size():]
		for j := range n {
			part := panel[j*kernel.Run*f.Size():][:kernel.Run*f.Size()]
			if width < kernel.Run {
				clear(part)
			}
			row := rows[j*stride+x:][:width]
			if f == kernel.Float32 {
				copy(floats(part), row)
				finite = finite && finite32(row)
				continue
			}
			c.ops.Stored[f].Narrow(&part[0], &row[0], width)
			finite = finite && f.Finite(halves(part))
		}
	}
	c.finite[i] = finite
}

// rows are tokens t to t+n-1 of a head as float32, and how far they are apart.
func (s *CachedSequence) rows(x *Tensor, head, t, n, d int) (rows []float32, stride int) {
	first := t*x.TokenStride + head*x.HeadStride
	return x.Data[first:], x.TokenStride
}

// finite32 reports whether no number is an infinity or NaN.
func finite32(x []float32) bool {
	for _, v := range x {
		if v-v != 0 {
			return false
		}
	}
	return true
}

// floats views stored float32 as such.
func floats(b []byte) []float32 {
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/4)
}

// halves views stored numbers of 16 bits as such.
func halves(b []byte) []uint16 {
	return unsafe.Slice((*uint16)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/2)
}

// roundUp rounds n up to a multiple of m.
func roundUp(n, m int) int { return (n + m - 1) / m * m }
