package kernel

// plan cuts rows into strips and appends their indices to dst: the main strip
// for most rows, and for the rest what covers it at the least cost. Covers is a
// cache of the latter, by number of rows.
func (ops *Ops) plan(dst []uint8, rows int, covers *[2*MaxLanes + 1]cover) []uint8 {
	main := ops.Strips[0].Width
	for ; rows > 2*MaxLanes; rows -= main {
		dst = append(dst, 0)
	}
	for ; rows > 0; rows -= ops.Strips[dst[len(dst)-1]].Width {
		dst = append(dst, ops.cover(rows, covers).first)
	}
	return dst
}

// cover is how to cover some rows: the least cost and the first strip to take.
// Where strips cost the same, the earlier of the table is taken.
type cover struct {
	cost  int // 0: not known yet
	first uint8
}

func (ops *Ops) cover(rows int, covers *[2*MaxLanes + 1]cover) cover {
	if rows <= 0 {
		return cover{}
	}
	c := &covers[rows]
	if c.cost == 0 {
		for i := range ops.Strips {
			cost := ops.Strips[i].Cost + ops.cover(rows-ops.Strips[i].Width, covers).cost
			if c.cost == 0 || cost < c.cost {
				*c = cover{cost, uint8(i)}
			}
		}
	}
	return *c
}
