// Package check has AVX-512 instructions whose results its tests compare with
// plain Go, to know whether what runs them (an emulator, say) can be trusted.
package check

//go:noescape
func fma512(z, x, y *[16]float32)

//go:noescape
func fmaBroadcast(z, x *[16]float32, y *float32)

//go:noescape
func fmaDown(z, x, y *[16]float32)

//go:noescape
func scalef(z, x, y *[16]float32)

//go:noescape
func rndscale(z, x *[16]float32, how int)

//go:noescape
func mulq(z, x, y *[8]uint64)

//go:noescape
func signs(x *[16]float32) uint16

//go:noescape
func cmps(x, y *[16]float32, out *[6]uint16)

//go:noescape
func masked(z, x, y *[16]float32, mask, zeroing int)

//go:noescape
func storeMasked(z, x *float32, mask int)

//go:noescape
func sum(x *[16]float32) float32

//go:noescape
func arith(x, y *[16]float32, out *[8][16]float32)

//go:noescape
func permute(z, x *[16]float32, idx *[16]uint32)

//go:noescape
func spin(x *[64]float32, n int)
