//go:build linux

package main

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
)

var le = binary.LittleEndian

// kernelImage is an unpacked kernel, laid out as in physical memory.
type kernelImage struct {
	image   []byte
	addr    uint64 // where the image goes
	memSize uint64 // how much is needed there
	entry   uint64
	header  []byte // the setup header of the bzImage, from 0x1f1 on
}

// unpackKernel takes the kernel proper out of a bzImage, so that the slow
// emulated processor need not do it.
func unpackKernel(b []byte) (*kernelImage, error) {
	if len(b) < 0x268 || string(b[0x202:0x206]) != "HdrS" {
		return nil, errors.New("not a bzImage")
	}
	start := (int(b[0x1f1])+1)*512 + int(le.Uint32(b[0x248:]))
	end := start + int(le.Uint32(b[0x24c:]))
	if start+8 > end || end > len(b) {
		return nil, errors.New("bzImage: bad payload")
	}
	v, err := unpackLZ4(b[start:end-4], int(le.Uint32(b[end-4:])))
	if err != nil {
		return nil, err
	}
	f, err := elf.NewFile(bytes.NewReader(v))
	if err != nil {
		return nil, err
	}
	k := &kernelImage{addr: ^uint64(0), entry: f.Entry, header: b[0x1f1 : 0x202+int(b[0x201])]}
	var fileEnd, memEnd uint64
	for _, p := range f.Progs {
		if p.Type == elf.PT_LOAD {
			k.addr = min(k.addr, p.Paddr)
			fileEnd = max(fileEnd, p.Paddr+p.Filesz)
			memEnd = max(memEnd, p.Paddr+p.Memsz)
		}
	}
	k.memSize = memEnd - k.addr
	k.image = make([]byte, fileEnd-k.addr)
	for _, p := range f.Progs {
		if p.Type == elf.PT_LOAD {
			if _, err := p.ReadAt(k.image[p.Paddr-k.addr:][:p.Filesz], 0); err != nil {
				return nil, err
			}
		}
	}
	return k, nil
}

// unpackLZ4 unpacks the "legacy" LZ4 format.
func unpackLZ4(in []byte, size int) ([]byte, error) {
	if le.Uint32(in) != 0x184c2102 {
		return nil, fmt.Errorf("the kernel is not packed with LZ4 but starts with %x", in[:6])
	}
	in = in[4:]
	out := make([]byte, 0, size)
	bad := errors.New("LZ4: bad data")
	for len(in) >= 4 && len(out) < size {
		n := int(le.Uint32(in))
		if in = in[4:]; n > len(in) {
			return nil, bad
		}
		block := in[:n]
		in = in[n:]
		length := func(n int) int {
			if n == 15 {
				for len(block) > 0 {
					c := block[0]
					block = block[1:]
					if n += int(c); c != 255 {
						break
					}
				}
			}
			return n
		}
		for len(block) > 0 {
			token := int(block[0])
			block = block[1:]
			lit := length(token >> 4)
			if lit > len(block) {
				return nil, bad
			}
			out = append(out, block[:lit]...)
			if block = block[lit:]; len(block) < 2 {
				break // the last sequence has no match
			}
			from := len(out) - int(le.Uint16(block))
			block = block[2:]
			n := length(token&15) + 4
			if from < 0 || from >= len(out) {
				return nil, bad
			}
			for ; n > 0; n-- {
				out = append(out, out[from])
				from++
			}
		}
	}
	if len(out) != size {
		return nil, bad
	}
	return out, nil
}

// What lies in low memory, from lowAddr on: what the kernel is told, the page
// tables that it starts with, which map the first 4 GiB to themselves, and its
// command line.
const (
	lowAddr     = 0x10000
	tablesAddr  = lowAddr + 0x1000
	cmdlineAddr = tablesAddr + 0x6000
)

func lowMemory(k *kernelImage, cmdline string, initrd, initrdSize, memSize uint64) []byte {
	low := make([]byte, cmdlineAddr-lowAddr, cmdlineAddr-lowAddr+len(cmdline)+1)

	// struct boot_params, see the kernel's Documentation/arch/x86/zero-page.rst
	copy(low[0x1f1:], k.header)
	low[0x210] = 0xff // type_of_loader
	le.PutUint32(low[0x218:], uint32(initrd))
	le.PutUint32(low[0x21c:], uint32(initrdSize))
	le.PutUint32(low[0x228:], cmdlineAddr)
	ram := [][2]uint64{{0, 0x9f000}, {0x100000, memSize}}
	low[0x1e8] = byte(len(ram))
	for i, r := range ram {
		e := low[0x2d0+20*i:]
		le.PutUint64(e, r[0])
		le.PutUint64(e[8:], r[1]-r[0])
		le.PutUint32(e[16:], 1)
	}

	t := low[tablesAddr-lowAddr:]
	le.PutUint64(t, tablesAddr+0x1000|3)
	for i := range 4 {
		le.PutUint64(t[0x1000+8*i:], uint64(tablesAddr+0x2000+0x1000*i|3))
	}
	for i := range 4 * 512 {
		le.PutUint64(t[0x2000+8*i:], uint64(i)<<21|0x83)
	}
	return append(append(low, cmdline...), 0)
}

// rom returns the ROM that the processor starts in, 64 KiB that end at 4 GiB.
func rom(entry uint64) []byte {
	code := []byte{
		// 16-bit code
		0xfa,       // cli
		0xfc,       // cld
		0xb0, 0x02, // mov al, 2
		0xe6, 0x92, // out 0x92, al ; enable address line 20
		0x2e, 0x66, 0x0f, 0x01, 0x16, 0xc0, 0xff, // lgdt cs:[0xffc0]
		0x0f, 0x20, 0xc0, // mov eax, cr0
		0x0c, 0x01, // or al, 1 ; protected mode
		0x0f, 0x22, 0xc0, // mov cr0, eax
		0x66, 0xea, 0x1d, 0x00, 0xff, 0xff, 0x08, 0x00, // jmp 8:0xffff001d
		// 0x1d: 32-bit code
		0xb8, 0x18, 0x00, 0x00, 0x00, // mov eax, 0x18
		0x8e, 0xd8, // mov ds, eax
		0x8e, 0xc0, // mov es, eax
		0x8e, 0xd0, // mov ss, eax
		0xb8, 0x20, 0x00, 0x00, 0x00, // mov eax, 0x20 ; PAE
		0x0f, 0x22, 0xe0, // mov cr4, eax
		0xb8, tablesAddr & 255, tablesAddr >> 8 & 255, tablesAddr >> 16, 0x00, // mov eax, tablesAddr
		0x0f, 0x22, 0xd8, // mov cr3, eax
		0xb9, 0x80, 0x00, 0x00, 0xc0, // mov ecx, 0xc0000080 ; EFER
		0x0f, 0x32, // rdmsr
		0x80, 0xcc, 0x01, // or ah, 1 ; long mode
		0x0f, 0x30, // wrmsr
		0x0f, 0x20, 0xc0, // mov eax, cr0
		0x0d, 0x00, 0x00, 0x00, 0x80, // or eax, 0x80000000 ; paging
		0x0f, 0x22, 0xc0, // mov cr0, eax
		0xea, 0x56, 0x00, 0xff, 0xff, 0x10, 0x00, // jmp 0x10:0xffff0056
		// 0x56: 64-bit code
		0xbe, lowAddr & 255, lowAddr >> 8 & 255, lowAddr >> 16, 0x00, // mov esi, lowAddr ; boot_params
		0xb8, byte(entry), byte(entry >> 8), byte(entry >> 16), byte(entry >> 24), // mov eax, entry
		0xff, 0xe0, // jmp rax
	}
	r := make([]byte, 0x10000)
	copy(r, code)
	gdt := []uint64{0, 0x00cf9b000000ffff, 0x00af9b000000ffff, 0x00cf93000000ffff}
	for i, d := range gdt {
		le.PutUint64(r[0xff80+8*i:], d)
	}
	le.PutUint16(r[0xffc0:], uint16(8*len(gdt)-1))
	le.PutUint32(r[0xffc2:], 0xffffff80)
	copy(r[0xfff0:], []byte{0xe9, 0x0d, 0x00}) // jmp 0
	return r
}
