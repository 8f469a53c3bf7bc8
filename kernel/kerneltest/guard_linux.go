package kerneltest

import "syscall"

// guarded maps size bytes, a multiple of the page, between two pages that may
// be neither read nor written.
func guarded(size int) ([]byte, func(), error) {
	page := syscall.Getpagesize()
	all, err := syscall.Mmap(-1, 0, size+2*page, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		return nil, nil, err
	}
	free := func() { _ = syscall.Munmap(all) }
	for _, guard := range [][]byte{all[:page], all[page+size:]} {
		if err := syscall.Mprotect(guard, syscall.PROT_NONE); err != nil {
			free()
			return nil, nil, err
		}
	}
	return all[page : page+size : page+size], free, nil
}
