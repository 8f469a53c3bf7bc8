package ref

import "math"

// Dropout zeroes attention weights at random and divides the kept ones by
// 1 - rate. Which ones is a pure function of (Seed, sequence, h, i, j).
type Dropout struct {
	Rate  float64   // in [0, 1)
	Rates []float32 // [Tq]: one rate per packed query row, instead of Rate
	Seed  uint64
	IDs   []uint64 // [B]: what stands for the sequence in the hash; nil is its index

	// Keep, if not nil, decides in place of the hash.
	Keep func(b, h, i, j int) bool
}

// Kept reports whether the public hash keeps the weight of key j for query i
// of head h in the sequence that is known as id.
func Kept(seed, id uint64, h, i, j int, rate float64) bool {
	return draw(rowKey(seed, id, h, i), j) >= threshold(rate)
}

// rate returns the rate of the query row that is t in the packed batch.
func (d *Dropout) rate(t int) float64 {
	switch {
	case d == nil:
		return 0
	case d.Rates != nil:
		return float64(d.Rates[t])
	}
	return d.Rate
}

// row returns which keys of row i are kept.
func (d *Dropout) row(s seq, h, i int) func(j int) bool {
	switch {
	case d == nil:
		return func(int) bool { return true }
	case d.Keep != nil:
		return func(j int) bool { return d.Keep(s.b, h, i, j) }
	}
	id := uint64(s.b)
	if d.IDs != nil {
		id = d.IDs[s.b]
	}
	key, limit := rowKey(d.Seed, id, h, i), threshold(d.rate(s.q0+i))
	return func(j int) bool { return draw(key, j) >= limit }
}

// threshold returns round(rate · 2^32), the draws below which are dropped. A
// rate just below 1 gives 2^32: everything is dropped.
func threshold(rate float64) uint64 { return uint64(math.Round(rate * (1 << 32))) }

// rowKey returns the start of the random stream of one row.
func rowKey(seed, id uint64, h, i int) uint64 {
	return mix(mix(mix(mix(seed)^id)^uint64(h)) ^ uint64(i))
}

// draw returns the 32 random bits of key j in the stream of a row.
func draw(key uint64, j int) uint64 {
	const golden = 0x9E3779B97F4A7C15
	x := mix(key + (uint64(j/2)+1)*golden)
	if j%2 == 1 {
		return x >> 32
	}
	return x & math.MaxUint32
}

// mix is the output function of splitmix64 (Steele, Lea and Flood, "Fast
// splittable pseudorandom number generators", 2014).
func mix(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xBF58476D1CE4E5B9
	x ^= x >> 27
	x *= 0x94D049BB133111EB
	x ^= x >> 31
	return x
}
