package casefile

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
)

const (
	// alignment of the header line and of every array, in bytes
	alignment = 64
	// maxHeader is the longest header line that is read, in bytes.
	maxHeader = 1 << 20
)

// Case is a case file in memory.
type Case struct {
	Header
	arrays []Array
}

// New returns a case with the arrays given. The Arrays field of header is
// ignored.
func New(header Header, arrays ...Array) *Case {
	header.Format, header.Arrays = Format, nil
	return &Case{Header: header, arrays: arrays}
}

// Array returns the array of that name and role, or nil.
func (c *Case) Array(name string, role Role) *Array {
	for i := range c.arrays {
		if a := &c.arrays[i]; a.Name == name && a.Role == role {
			return a
		}
	}
	return nil
}

// Inputs returns the input arrays, in the order of the file.
func (c *Case) Inputs() []Array {
	var inputs []Array
	for _, a := range c.arrays {
		if a.Role == Input {
			inputs = append(inputs, a)
		}
	}
	return inputs
}

// Outputs returns the names of the expected outputs, in the order of the file.
func (c *Case) Outputs() []string {
	var names []string
	for i := range c.arrays {
		if c.arrays[i].Role == Output {
			names = append(names, c.arrays[i].Name)
		}
	}
	return names
}

// ReadFile reads the case file at path.
func ReadFile(path string) (*Case, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	c, err := Read(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return c, nil
}

// Read reads a case file up to the end of r and validates its layout.
func Read(r io.Reader) (*Case, error) {
	br := bufio.NewReader(r)
	line, err := readLine(br)
	if err != nil {
		return nil, err
	}
	c := &Case{}
	if err := json.Unmarshal(line, &c.Header); err != nil {
		return nil, fmt.Errorf("casefile: header: %w", err)
	}
	if c.Format != Format {
		return nil, fmt.Errorf("casefile: format is %q, not %q", c.Format, Format)
	}
	data, err := io.ReadAll(br)
	if err != nil {
		return nil, fmt.Errorf("casefile: arrays: %w", err)
	}
	if err := c.slice(data); err != nil {
		return nil, err
	}
	return c, nil
}

// readLine reads the header line and checks that it is ASCII of a length that
// keeps the arrays aligned.
func readLine(br *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		part, err := br.ReadSlice('\n')
		if len(line)+len(part) > maxHeader {
			return nil, fmt.Errorf("casefile: header line is longer than %d bytes", maxHeader)
		}
		line = append(line, part...)
		switch {
		case err == nil:
			return line, checkLine(line)
		case errors.Is(err, io.EOF):
			return nil, fmt.Errorf("casefile: header line does not end: %w", io.ErrUnexpectedEOF)
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, fmt.Errorf("casefile: header: %w", err)
		}
	}
}

// checkLine checks the length and the characters of the header line.
func checkLine(line []byte) error {
	if len(line)%alignment != 0 {
		return fmt.Errorf("casefile: header line is %d bytes, not a multiple of %d", len(line), alignment)
	}
	for i, ch := range line {
		if ch >= 0x80 {
			return fmt.Errorf("casefile: header has the non-ASCII byte %#x at %d", ch, i)
		}
	}
	return nil
}

// slice cuts data, which is all that follows the header line, into c.arrays.
// They share its memory and never overlap.
func (c *Case) slice(data []byte) error {
	type key struct {
		name string
		role Role
	}
	seen := make(map[key]bool, len(c.Arrays))
	end := int64(0)
	for i := range c.Arrays {
		e := &c.Arrays[i]
		k := key{e.Name, e.Role}
		if seen[k] {
			return fmt.Errorf("casefile: there are two %s arrays %q", e.Role, e.Name)
		}
		seen[k] = true
		if err := e.check(end, int64(len(data))); err != nil {
			return err
		}
		end = e.Offset + e.NBytes
		a := Array{Name: e.Name, Role: e.Role, DType: e.DType, Shape: e.Shape, Data: data[e.Offset:end:end]}
		if err := a.checkBools(); err != nil {
			return err
		}
		c.arrays = append(c.arrays, a)
	}
	if extra := int64(len(data)) - end; extra > padding(end) {
		return fmt.Errorf("casefile: %d bytes follow the last array, more than padding", extra)
	}
	return nil
}

// check validates the place and the size of an array in size bytes of data
// whose first end bytes are taken by the arrays before it.
func (e *Entry) check(end, size int64) error {
	fail := func(format string, args ...any) error {
		return fmt.Errorf("casefile: %s %q: %s", e.Role, e.Name, fmt.Sprintf(format, args...))
	}
	if e.Name == "" {
		return fail("the name is empty")
	}
	if e.Role != Input && e.Role != Output && e.Role != Magnitude {
		return fail("unknown role")
	}
	if e.DType.Size() == 0 {
		return fail("unknown dtype %q", e.DType)
	}
	for _, n := range e.Shape {
		if n < 0 {
			return fail("shape %v has a negative size", e.Shape)
		}
	}
	want, ok := product(append([]int{e.DType.Size()}, e.Shape...)...)
	switch {
	case !ok:
		return fail("shape %v is too large", e.Shape)
	case e.NBytes != int64(want):
		return fail("nbytes is %d, but shape %v of %s has %d", e.NBytes, e.Shape, e.DType, want)
	case e.Offset < 0 || e.Offset%alignment != 0:
		return fail("offset %d is not a multiple of %d", e.Offset, alignment)
	case e.Offset < end:
		return fail("offset %d is before the end of the array before it, %d", e.Offset, end)
	case e.Offset > size || e.NBytes > size-e.Offset:
		return fail("offset %d and nbytes %d go beyond the %d bytes of data", e.Offset, e.NBytes, size)
	}
	return nil
}

// checkBools checks that a bool array holds nothing but 0 and 1.
func (a *Array) checkBools() error {
	if a.DType != Bool {
		return nil
	}
	for i, x := range a.Data {
		if x > 1 {
			return fmt.Errorf("casefile: %s %q: element %d is %d, which is not a bool", a.Role, a.Name, i, x)
		}
	}
	return nil
}

// padding returns how many bytes bring n to a multiple of the alignment.
func padding(n int64) int64 { return (alignment - n%alignment) % alignment }
