package kernel

import "math"

// mix is the finalizer of splitmix64.
func mix(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xBF58476D1CE4E5B9
	x ^= x >> 27
	x *= 0x94D049BB133111EB
	return x ^ x>>31
}

// golden is the increment of splitmix64.
const golden = 0x9E3779B97F4A7C15

// Draw returns the 32-bit number that decides whether key j is kept in the row
// whose hash is key.
func Draw(key uint64, j int) uint32 {
	d := mix(key + (uint64(j)/2+1)*golden)
	if j%2 == 0 {
		return uint32(d)
	}
	return uint32(d >> 32)
}

// SequenceKey is the hash of a seed and a sequence's id.
func SequenceKey(seed, id uint64) uint64 { return mix(mix(seed) ^ id) }

// lane returns the hash of row i of head h, the least draw that keeps a key,
// and what a kept probability is multiplied by.
func (d *Dropout) lane(h, i int) (key uint64, threshold uint32, keep float32) {
	rate := d.Rate
	if d.Rates != nil {
		rate = float64(d.Rates[i])
	}
	key = mix(mix(d.Key^uint64(h)) ^ uint64(i))
	t := math.Round(rate * (1 << 32))
	if t >= 1<<32 {
		// A rate just below one drops every key; no 32-bit threshold says so,
		// but a factor of zero does.
		return key, math.MaxUint32, 0
	}
	return key, uint32(t), float32(1 / (1 - rate))
}
