package attention

//go:generate go -C asm run ./kernels
//go:generate go -C asm run ./arm64
