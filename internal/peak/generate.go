package peak

//go:generate go -C ../../asm run ./peak
