package kernel

import "unsafe"

// Rows of 16 bits pass through scratch as float32: tiles know nothing else.

// wideRows are the rows of 16 bits that are widened at a time.
const wideRows = max(BlockKeys, GradRows, MaxLanes)

// source is where rows of n elements lie that start at off. Those of 16 bits are
// widened, and off says where then.
func (p *pass) source(v *Rows, off []int, n int) *float32 {
	if v.Format == Float32 {
		return &v.Data[0]
	}
	for r, o := range off {
		p.widen(v, r*n, o, n)
		off[r] = r * n
	}
	return &p.wide[0]
}

// keyRows is where the rows b <= i < end of n elements start, and how far they are
// apart.
func (p *pass) keyRows(v *Rows, b, end, n int) (src *float32, stride int) {
	if v.Format == Float32 {
		return &v.Data[b*v.Row], v.Row
	}
	for r := range end - b {
		p.widen(v, r*n, (b+r)*v.Row, n)
	}
	return &p.wide[0], n
}

// widen writes n elements of a view of 16 bits to wide.
func (p *pass) widen(v *Rows, to, from, n int) {
	p.Stored[v.Format].Widen(&p.wide[to], (*byte)(unsafe.Pointer(&v.Half[from])), n)
}

// gather transposes the rows of s into lanes, times mul.
func (p *pass) gather(dst *float32, v *Rows, s *strip, n int, mul float32) {
	w := s.loops.Width
	p.offsets(s, v, 0)
	src := p.source(v, p.off[:w], n)
	p.Gather(dst, src, &p.off[0], n, w, mul)
}

// scatter is the inverse of gather: it writes lanes, times inv, to the rows of s.
func (p *pass) scatter(v *Rows, s *strip, src *float32, n int) {
	w := s.loops.Width
	if v.Format == Float32 {
		p.offsets(s, v, 0)
		p.Scatter(&v.Data[0], &p.off[0], src, &p.inv[0], n, w)
		return
	}
	for r := range w {
		p.off[r] = r * n
	}
	p.Scatter(&p.wide[0], &p.off[0], src, &p.inv[0], n, w)
	p.offsets(s, v, 0)
	for r, o := range p.off[:s.rows] {
		p.Stored[v.Format].Narrow((*byte)(unsafe.Pointer(&v.Half[o])), &p.wide[r*n], n)
	}
}

// reserveWide makes room for what is widened.
func (p *pass) reserveWide() {
	if t := p.t; t.Wide || p.stored != nil {
		p.wide = grow(p.wide, wideRows*max(t.DK, t.DV, Run))
	}
}
