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
	if n == kernel.Run {
		for i := range s.scratch.off {
			s.scratch.off[i] = i * stride
		}
		panel := floats(to)
		if f != kernel.Float32 {
			panel = s.room(kernel.Run * d)
		}
		c.ops.Gather(&panel[0], &rows[0], &s.scratch.off[0], d, kernel.Run, 1)
		if f != kernel.Float32 {
			c.ops.Stored[f].Narrow(&to[0], &panel[0], kernel.Run*d)
		}
		return
	}
	for j := range n {
		row := rows[j*stride:][:d]
		if f == kernel.Float32 {
			scatter(floats(to)[j:], row)
			continue
		}
		narrow := asBytes(s.room(d))
		c.ops.Stored[f].Narrow(&narrow[0], &row[0], d)
		scatter(halves(to)[j:], halves(narrow)[:d])
	}
}

// scatter writes a key's channels into a panel.
func scatter[T any](panel, row []T) {
	for i, x := range row {
		panel[i*kernel.Run] = x
	}
}

// room is scratch of n numbers.
func (s *CachedSequence) room(n int) []float32 {
	s.scratch.panel = grow(s.scratch.panel, n)
	return s.scratch.panel
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
		panel := to[x*c.cfg.PageKeys*f.Size():][:n*kernel.Run*f.Size()]
		if width < kernel.Run {
			clear(panel)
		}
		for j := range n {
			part, row := panel[j*kernel.Run*f.Size():], rows[j*stride+x:][:width]
			switch {
			case f != kernel.Float32:
				c.ops.Stored[f].Narrow(&part[0], &row[0], width)
			case width == kernel.Run:
				*(*[kernel.Run]float32)(floats(part)) = [kernel.Run]float32(row)
			default:
				copy(floats(part), row)
			}
		}
		finite = finite && f.Finite(panel)
	}
	c.finite[i] = finite
}

// rows are tokens t to t+n-1 of a head as float32, and how far they are apart.
func (s *CachedSequence) rows(x *Tensor, head, t, n, d int) (rows []float32, stride int) {
	first := t*x.TokenStride + head*x.HeadStride
	return x.Data[first:], x.TokenStride
}

// floats views stored float32 as such.
func floats(b []byte) []float32 {
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/4)
}

// halves views stored numbers of 16 bits as such.
func halves(b []byte) []uint16 {
	return unsafe.Slice((*uint16)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/2)
}

// asBytes views numbers as bytes.
func asBytes(x []float32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(x))), 4*len(x))
}

// roundUp rounds n up to a multiple of m.
func roundUp(n, m int) int { return (n + m - 1) / m * m }
