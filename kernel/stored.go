package kernel

import "unsafe"

// scoreStored computes raw scores of the keys a <= j < z of the tile that c cuts.
func (p *pass) scoreStored(s *strip, c *cuts, max *float32, a, z int) {
	t, w := p.t, s.loops.Width
	x := &t.Pages
	for j := a; j < z; {
		loops, k := p.stored, x.keys(j, t.DK)
		run := x.packed(j, z-j)
		if run == 0 {
			run = min(z-j, Run)
			loops, k = &p.Stored[Float32], (*byte)(unsafe.Pointer(p.openPanel(j)))
		}
		next := x.values(c.from, 0)
		if j+run < c.to {
			next = x.keys(j+run, t.DK)
		}
		loops.Score(&p.s[(j-c.from)*w], max, &p.q[s.q], k, next, t.DK, (run+Run-1)/Run, s.rows, w)
		j += run
	}
}

// openPanel is the panel from key j on, which is still rows, as a panel of float32.
func (p *pass) openPanel(j int) *float32 {
	t := p.t
	rows := p.widened(t.Pages.keys(j, t.DK), t.DK*Run)
	for r := range Run {
		p.off[r] = r * t.DK
	}
	p.Gather(&p.open[0], rows, &p.off[0], t.DK, Run, 1)
	return &p.open[0]
}

// accumulateStored adds the keys of the tile that c cuts from the block that
// starts at b to the rows of s, alpha being as in Accumulate.
func (p *pass) accumulateStored(s *strip, c *cuts, b int, alpha *float32) {
	t, w := p.t, s.loops.Width
	x := &t.Pages
	for j := c.from; j < c.to; {
		run := x.together(j, c.to)
		v := x.values(j, 0)
		next := v
		if j+run < c.to {
			next = x.values(j+run, 0)
		} else if b+BlockKeys < t.Keys {
			next = x.keys(b+BlockKeys, t.DK)
		} else if t.Next != nil {
			next = t.Next
		}
		p.stored.Accumulate(p.rowsOf(s), &p.s[(j-c.from)*w], alpha, v, next, run, x.VStep, padded(t.DV, Run)/Run, s.rows, w)
		alpha = &p.one[0]
		j += run
	}
}

// rowsOf are the rows of O that the lanes of s accumulate.
func (p *pass) rowsOf(s *strip) *float32 { return &p.rows[s.lane*padded(p.t.DV, Run)] }

// fromRows brings what strip s, the i-th of its group, has accumulated over a span
// into the place and shape of its state.
func (p *pass) fromRows(s *strip, i, span int) {
	if s.span != span && !s.second {
		return
	}
	o, m, l := &p.o[s.o], p.m[s.lane:], p.l[s.lane:]
	if s.second {
		o, m, l = &p.o2[i*len(p.o2)/p.inGroup], p.m2[s.lane:], p.l2[s.lane:]
	}
	for r := range s.loops.Width {
		row := min(r, s.rows-1)
		p.off[r] = row * padded(p.t.DV, Run)
		m[r], l[r] = m[row], l[row]
	}
	p.Gather(o, p.rowsOf(s), &p.off[0], p.t.DV, s.loops.Width, 1)
}

// unpack packs the stored keys b <= j < end as the table wants them, and reports
// whether all values are finite.
func (p *pass) unpack(k, v []float32, b, end int) (finite bool) {
	t := p.t
	x, step := &t.Pages, t.DK*p.Panel
	for j := b; j < end; j += Run {
		panel := p.widened(x.keys(j, t.DK), t.DK*Run)
		if x.packed(j, Run) == 0 {
			p.PackK(&k[(j-b)*t.DK], panel, t.DK, Run, t.DK)
			continue
		}
		// Keys are to a panel of K what channels are to one of V.
		p.PackV(&k[(j-b)*t.DK], panel, Run, t.DK, Run, step)
	}
	finite = true
	for j := b; j < end; {
		run := x.together(j, end)
		for c := 0; c < t.DV; c += Run {
			panel := p.widened(x.values(j, c/Run), run*Run)
			finite = p.PackV(&v[c/p.Panel*p.vStep()+(j-b)*p.Panel], panel, Run, run, min(Run, t.DV-c), p.vStep()) && finite
		}
		j += run
	}
	return finite
}

// widened is n stored numbers as float32.
func (p *pass) widened(x *byte, n int) *float32 {
	if p.t.Pages.Format == Float32 {
		return (*float32)(unsafe.Pointer(x))
	}
	p.stored.Widen(&p.wide[0], x, n)
	return &p.wide[0]
}

// nextValues is where V of the keys from j on is read next.
func (p *pass) nextValues(b, j int) *byte {
	if p.few {
		return p.t.Pages.values(j, 0)
	}
	v, _ := p.valuesAt(b, j)
	return (*byte)(unsafe.Pointer(v))
}
