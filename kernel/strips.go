package kernel

// plan cuts rows into strips and appends their indices to dst: the main strip
// for most rows, and for the rest what covers it at the least cost.
func (ops *Ops) plan(dst []uint8, rows int) []uint8 {
	for main := ops.Strips[0].Width; rows >= MaxLanes+main; rows -= main {
		dst = append(dst, 0)
	}
	for rows > 0 {
		_, first := ops.cheapest(rows)
		dst = append(dst, uint8(first))
		rows -= ops.Strips[first].Width
	}
	return dst
}

// cheapest returns the least cost of covering rows with strips, in thousandths
// of a full-speed lane, and the first strip to take.
func (ops *Ops) cheapest(rows int) (cost, first int) {
	if rows <= 0 {
		return 0, 0
	}
	cost = -1
	for i := range ops.Strips {
		rest, _ := ops.cheapest(rows - ops.Strips[i].Width)
		if c := rest + ops.Strips[i].Cost; cost < 0 || c < cost {
			cost, first = c, i
		}
	}
	return cost, first
}
