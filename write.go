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
	c, size := s.cache, s.cache.cfg.PageKeys
	for t := 0; t < n; {
		at := (s.n + t) % size
		run := min(kernel.Run-at%kernel.Run, n-t)
		page := int(s.pages[(s.n+t)/size])
		for h := range c.cfg.KVHeads {
			s.writeKeys(page, h, at, run, k, t)
			s.writeValues(page, h, at, run, v, t)
		}
		c.filled[page] = max(c.filled[page], int32(at+run))
		t += run
	}
}

// writeKeys stores tokens t to t+n-1 of a head into one panel of a page, from key
// at on. A panel is rows until it is full, so that a token by itself need not
// write to a line of the cache for each of its channels.
func (s *CachedSequence) writeKeys(page, head, at, n int, k *Tensor, t int) {
	c, d := s.cache, s.cache.cfg.HeadDim
	f := kernel.Format(c.cfg.Format)
	first, size := at%kernel.Run, f.Size()
	panel := c.k[(page*c.cfg.KVHeads+head)*c.kHead+(at-first)*d*size:][:kernel.Run*d*size]
	rows, stride := s.rows(k, head, t, n, d)
	switch {
	case int(c.filled[page]) >= at-first+kernel.Run:
		// It was full before its sequence was truncated.
		for j := range n {
			if row := rows[j*stride:][:d]; f == kernel.Float32 {
				storeKey(floats(panel)[first+j:], row)
			} else {
				storeKey(halves(panel)[first+j:], halves(s.narrow(f, row))[:d])
			}
		}
		return
	case n == kernel.Run:
		s.packKeys(f, panel, rows, stride)
		return
	}
	for j := range n {
		row, to := rows[j*stride:][:d], panel[(first+j)*d*size:][:d*size]
		if f == kernel.Float32 {
			copy(floats(to), row)
		} else {
			c.ops.Stored[f].Narrow(&to[0], &row[0], d)
		}
	}
	if first+n == kernel.Run {
		s.scratch.rows = grow(s.scratch.rows, kernel.Run*d)
		c.ops.Stored[f].Widen(&s.scratch.rows[0], &panel[0], kernel.Run*d)
		s.packKeys(f, panel, s.scratch.rows, d)
	}
}

// packKeys makes a panel of rows.
func (s *CachedSequence) packKeys(f kernel.Format, panel []byte, rows []float32, stride int) {
	ops, d := s.cache.ops, s.cache.cfg.HeadDim
	for i := range s.scratch.off {
		s.scratch.off[i] = i * stride
	}
	to := floats(panel)
	if f != kernel.Float32 {
		to = s.room(kernel.Run * d)
	}
	ops.Gather(&to[0], &rows[0], &s.scratch.off[0], d, kernel.Run, 1)
	if f != kernel.Float32 {
		ops.Stored[f].Narrow(&panel[0], &to[0], kernel.Run*d)
	}
}

// writeValues is writeKeys for values.
func (s *CachedSequence) writeValues(page, head, at, n int, v *Tensor, t int) {
	c, d := s.cache, s.cache.cfg.ValueDim
	f := kernel.Format(c.cfg.Format)
	i := page*c.cfg.KVHeads + head
	to := c.v[i*c.vHead+at*kernel.Run*f.Size():]
	rows, stride := s.rows(v, head, t, n, d)
	finite, step := at == 0 || c.finite[i], c.vStep*kernel.Run
	for j := range n {
		row := rows[j*stride:][:d]
		if f == kernel.Float32 {
			storeValue(floats(to)[j*kernel.Run:], row, step)
			finite = f.Finite(asBytes(row)) && finite
			continue
		}
		narrow := s.narrow(f, row)
		storeValue(halves(to)[j*kernel.Run:], halves(narrow)[:d], step)
		finite = f.Finite(narrow) && finite
	}
	c.finite[i] = finite
}

// storeKey writes the channels of a key, which lie Run apart in a panel.
func storeKey[T any](panel, row []T) {
	panel = panel[:(len(row)-1)*kernel.Run+1] // the last that is written
	for i, x := range row {
		panel[i*kernel.Run] = x
	}
}

// storeValue writes the channels of a value, Run to each panel, and zeros to the
// end of the last; panels are step apart.
func storeValue[T any](panels, row []T, step int) {
	for ; len(row) >= kernel.Run; row = row[kernel.Run:] {
		*(*[kernel.Run]T)(panels) = [kernel.Run]T(row)
		if len(row) > kernel.Run {
			panels = panels[step:]
		}
	}
	if len(row) > 0 {
		*(*[kernel.Run]T)(panels) = [kernel.Run]T{}
		copy(panels, row)
	}
}

// room is scratch of n numbers.
func (s *CachedSequence) room(n int) []float32 {
	s.scratch.panel = grow(s.scratch.panel, n)
	return s.scratch.panel
}

// narrow returns a row in a 16-bit format.
func (s *CachedSequence) narrow(f kernel.Format, row []float32) []byte {
	b := asBytes(s.room(len(row)))
	s.cache.ops.Stored[f].Narrow(&b[0], &row[0], len(row))
	return b[:2*len(row)]
}

// rows are tokens t to t+n-1 of a head as float32, and how far they are apart.
func (s *CachedSequence) rows(x *Tensor, head, t, n, d int) (rows []float32, stride int) {
	r := x.from(t*x.TokenStride + head*x.HeadStride)
	if r.Format == kernel.Float32 {
		return r.Data, r.Row
	}
	s.scratch.rows = grow(s.scratch.rows, kernel.Run*d)
	for j := range n {
		s.cache.ops.Stored[r.Format].Widen(&s.scratch.rows[j*d], (*byte)(unsafe.Pointer(&r.Half[j*r.Row])), d)
	}
	return s.scratch.rows, d
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
