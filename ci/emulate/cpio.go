//go:build linux

package main

import (
	"bytes"
	"fmt"
	"io/fs"
	"path"
)

// cpio writes an archive in the "newc" format.
type cpio struct {
	buf  bytes.Buffer
	seen map[string]bool
}

func newCpio() *cpio { return &cpio{seen: map[string]bool{"/": true}} }

func (c *cpio) entry(name string, mode, major, minor int, data []byte) {
	c.seen["/"+name] = true
	fmt.Fprintf(&c.buf, "070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X",
		len(c.seen), mode, 0, 0, 1, 0, len(data), 0, 0, major, minor, len(name)+1, 0)
	c.buf.WriteString(name)
	c.buf.WriteByte(0)
	c.pad()
	c.buf.Write(data)
	c.pad()
}

func (c *cpio) pad() {
	for c.buf.Len()%4 != 0 {
		c.buf.WriteByte(0)
	}
}

// dir adds a directory and those above it.
func (c *cpio) dir(name string) {
	if name = path.Clean(name); c.seen[name] {
		return
	}
	c.dir(path.Dir(name))
	c.entry(name[1:], 0o040777, 0, 0, nil)
}

// file adds a file and the directories above it.
func (c *cpio) file(name string, perm fs.FileMode, data []byte) {
	if name = path.Clean(name); c.seen[name] {
		return
	}
	c.dir(path.Dir(name))
	c.entry(name[1:], 0o100000|int(perm), 0, 0, data)
}

// node adds a character device.
func (c *cpio) node(name string, major, minor int) {
	c.dir(path.Dir(name))
	c.entry(name[1:], 0o020666, major, minor, nil)
}

func (c *cpio) end() []byte {
	c.entry("TRAILER!!!", 0, 0, 0, nil)
	return c.buf.Bytes()
}
