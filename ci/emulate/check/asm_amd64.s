#include "textflag.h"

// func fma512(z, x, y *[16]float32)
TEXT ·fma512(SB), NOSPLIT, $0-24
	MOVQ z+0(FP), DI
	MOVQ x+8(FP), SI
	MOVQ y+16(FP), DX
	VMOVUPS (DI), Z0
	VMOVUPS (SI), Z17
	VFMADD231PS (DX), Z17, Z0
	VMOVUPS Z0, (DI)
	VZEROUPPER
	RET

// func fmaBroadcast(z, x *[16]float32, y *float32)
TEXT ·fmaBroadcast(SB), NOSPLIT, $0-24
	MOVQ z+0(FP), DI
	MOVQ x+8(FP), SI
	MOVQ y+16(FP), DX
	VMOVUPS (DI), Z30
	VMOVUPS (SI), Z31
	VFMADD231PS.BCST (DX), Z31, Z30
	VMOVUPS Z30, (DI)
	VZEROUPPER
	RET

// func fmaDown(z, x, y *[16]float32)
TEXT ·fmaDown(SB), NOSPLIT, $0-24
	MOVQ z+0(FP), DI
	MOVQ x+8(FP), SI
	MOVQ y+16(FP), DX
	VMOVUPS (DI), Z0
	VMOVUPS (SI), Z1
	VMOVUPS (DX), Z2
	VFMADD231PS.RD_SAE Z2, Z1, Z0
	VMOVUPS Z0, (DI)
	VZEROUPPER
	RET

// func scalef(z, x, y *[16]float32)
TEXT ·scalef(SB), NOSPLIT, $0-24
	MOVQ z+0(FP), DI
	MOVQ x+8(FP), SI
	MOVQ y+16(FP), DX
	VMOVUPS (SI), Z1
	VMOVUPS (DX), Z2
	VSCALEFPS Z2, Z1, Z0
	VMOVUPS Z0, (DI)
	VZEROUPPER
	RET

// func rndscale(z, x *[16]float32, how int)
// how: 0 nearest even, 1 down, 2 up, 3 to zero, 4 nearest sixteenth
TEXT ·rndscale(SB), NOSPLIT, $0-24
	MOVQ z+0(FP), DI
	MOVQ x+8(FP), SI
	MOVQ how+16(FP), AX
	VMOVUPS (SI), Z1
	CMPQ AX, $1
	JEQ down
	CMPQ AX, $2
	JEQ up
	CMPQ AX, $3
	JEQ zero
	CMPQ AX, $4
	JEQ sixteenth
	VRNDSCALEPS $8, Z1, Z0
	JMP done
down:
	VRNDSCALEPS $9, Z1, Z0
	JMP done
up:
	VRNDSCALEPS $10, Z1, Z0
	JMP done
zero:
	VRNDSCALEPS $11, Z1, Z0
	JMP done
sixteenth:
	VRNDSCALEPS $0x48, Z1, Z0
done:
	VMOVUPS Z0, (DI)
	VZEROUPPER
	RET

// func mulq(z, x, y *[8]uint64)
TEXT ·mulq(SB), NOSPLIT, $0-24
	MOVQ z+0(FP), DI
	MOVQ x+8(FP), SI
	MOVQ y+16(FP), DX
	VMOVDQU64 (SI), Z1
	VMOVDQU64 (DX), Z2
	VPMULLQ Z2, Z1, Z0
	VMOVDQU64 Z0, (DI)
	VZEROUPPER
	RET

// func signs(x *[16]float32) uint16
TEXT ·signs(SB), NOSPLIT, $0-10
	MOVQ x+0(FP), SI
	VMOVUPS (SI), Z1
	VPMOVD2M Z1, K1
	KMOVW K1, AX
	MOVW AX, ret+8(FP)
	VZEROUPPER
	RET

// func cmps(x, y *[16]float32, out *[6]uint16)
// out: equal, less, less or equal, unordered, not equal, all ones where less
TEXT ·cmps(SB), NOSPLIT, $0-24
	MOVQ x+0(FP), SI
	MOVQ y+8(FP), DX
	MOVQ out+16(FP), DI
	VMOVUPS (SI), Z1
	VMOVUPS (DX), Z2
	VCMPPS $0, Z2, Z1, K1
	KMOVW K1, (DI)
	VCMPPS $1, Z2, Z1, K2
	KMOVW K2, 2(DI)
	VCMPPS $2, Z2, Z1, K3
	KMOVW K3, 4(DI)
	VCMPPS $3, Z2, Z1, K4
	KMOVW K4, 6(DI)
	VCMPPS $4, Z2, Z1, K5
	KMOVW K5, 8(DI)
	VPMOVM2D K2, Z3
	VPMOVD2M Z3, K6
	KMOVW K6, 10(DI)
	VZEROUPPER
	RET

// func masked(z, x, y *[16]float32, mask, zeroing int)
// z = x + y where the mask says so, else as it was or 0
TEXT ·masked(SB), NOSPLIT, $0-40
	MOVQ z+0(FP), DI
	MOVQ x+8(FP), SI
	MOVQ y+16(FP), DX
	MOVQ mask+24(FP), AX
	KMOVW AX, K1
	VMOVUPS (DI), Z0
	VMOVUPS.Z (SI), K1, Z1
	VMOVUPS (DX), Z2
	CMPQ zeroing+32(FP), $0
	JNE zero
	VADDPS Z2, Z1, K1, Z0
	VMOVUPS Z0, (DI)
	VZEROUPPER
	RET
zero:
	VADDPS.Z Z2, Z1, K1, Z0
	VMOVUPS Z0, (DI)
	VZEROUPPER
	RET

// func storeMasked(z, x *float32, mask int)
TEXT ·storeMasked(SB), NOSPLIT, $0-24
	MOVQ z+0(FP), DI
	MOVQ x+8(FP), SI
	MOVQ mask+16(FP), AX
	KMOVW AX, K1
	VMOVUPS.Z (SI), K1, Z1
	VMOVUPS Z1, K1, (DI)
	VZEROUPPER
	RET

// func sum(x *[16]float32) float32
// halves added up: 8+8, 4+4, 2+2, 1+1
TEXT ·sum(SB), NOSPLIT, $0-12
	MOVQ x+0(FP), SI
	VMOVUPS (SI), Z0
	VEXTRACTF64X4 $1, Z0, Y1
	VADDPS Y1, Y0, Y0
	VEXTRACTF128 $1, Y0, X1
	VADDPS X1, X0, X0
	VMOVHLPS X0, X0, X1
	VADDPS X1, X0, X0
	VMOVSHDUP X0, X1
	VADDSS X1, X0, X0
	VMOVSS X0, ret+8(FP)
	VZEROUPPER
	RET

// func arith(x, y *[16]float32, out *[8][16]float32)
// out: x/y, sqrt x, max, min, int of x as float, x·y, getexp x, x blended by sign
TEXT ·arith(SB), NOSPLIT, $0-24
	MOVQ x+0(FP), SI
	MOVQ y+8(FP), DX
	MOVQ out+16(FP), DI
	VMOVUPS (SI), Z1
	VMOVUPS (DX), Z2
	VDIVPS Z2, Z1, Z0
	VMOVUPS Z0, (DI)
	VSQRTPS Z1, Z0
	VMOVUPS Z0, 64(DI)
	VMAXPS Z2, Z1, Z0
	VMOVUPS Z0, 128(DI)
	VMINPS Z2, Z1, Z0
	VMOVUPS Z0, 192(DI)
	VCVTPS2DQ Z1, Z0
	VCVTDQ2PS Z0, Z0
	VMOVUPS Z0, 256(DI)
	VMULPS Z2, Z1, Z0
	VMOVUPS Z0, 320(DI)
	VGETEXPPS Z1, Z0
	VMOVUPS Z0, 384(DI)
	VPMOVD2M Z1, K3
	VBLENDMPS Z2, Z1, K3, Z0
	VMOVUPS Z0, 448(DI)
	VZEROUPPER
	RET

// func permute(z, x *[16]float32, idx *[16]uint32)
TEXT ·permute(SB), NOSPLIT, $0-24
	MOVQ z+0(FP), DI
	MOVQ x+8(FP), SI
	MOVQ idx+16(FP), DX
	VMOVDQU32 (DX), Z1
	VPERMPS (SI), Z1, Z0
	VMOVUPS Z0, (DI)
	VZEROUPPER
	RET

// func spin(x *[64]float32, n int)
// 16 independent multiply-adds, n times, on registers
TEXT ·spin(SB), NOSPLIT, $0-16
	MOVQ x+0(FP), SI
	MOVQ n+8(FP), CX
	VMOVUPS (SI), Z16
	VMOVUPS 64(SI), Z17
loop:
	VFMADD231PS Z16, Z17, Z0
	VFMADD231PS Z16, Z17, Z1
	VFMADD231PS Z16, Z17, Z2
	VFMADD231PS Z16, Z17, Z3
	VFMADD231PS Z16, Z17, Z4
	VFMADD231PS Z16, Z17, Z5
	VFMADD231PS Z16, Z17, Z6
	VFMADD231PS Z16, Z17, Z7
	VFMADD231PS Z16, Z17, Z8
	VFMADD231PS Z16, Z17, Z9
	VFMADD231PS Z16, Z17, Z10
	VFMADD231PS Z16, Z17, Z11
	VFMADD231PS Z16, Z17, Z12
	VFMADD231PS Z16, Z17, Z13
	VFMADD231PS Z16, Z17, Z14
	VFMADD231PS Z16, Z17, Z15
	DECQ CX
	JNE loop
	VMOVUPS Z0, 128(SI)
	VZEROUPPER
	RET
