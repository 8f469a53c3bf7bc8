package attention

//go:generate go -C asm run ./kernels
