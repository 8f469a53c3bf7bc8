package kernel

// Tile is one block of keys of one strip, as Forward sees it.
type Tile struct {
	FirstQuery, EndQuery int
	FirstKey, EndKey     int // of the block
	Visibility           Visibility
	Pairs                int // rows times keys that are computed
}

// Tiles appends the tiles of t to dst, strip by strip.
func Tiles(dst []Tile, ops *Ops, ws *Workspace, t *Task) []Tile {
	p := newPass(ops, ws, t)
	p.layOut()
	for i := range ws.strips {
		s := &ws.strips[i]
		i0, i1 := p.positions(s)
		for b := 0; b < t.Keys; b += BlockKeys {
			end := min(b+BlockKeys, t.Keys)
			c := p.cut(s, b, end)
			x := Tile{FirstQuery: i0, EndQuery: i1, FirstKey: b, EndKey: end, Pairs: s.rows * max(c.to-c.from, 0)}
			switch {
			case c.from >= c.to:
				x.Visibility, x.Pairs = Hidden, 0
			case c.rest-c.full == end-b:
				x.Visibility = Visible
			default:
				x.Visibility = Mixed
			}
			dst = append(dst, x)
		}
	}
	return dst
}
