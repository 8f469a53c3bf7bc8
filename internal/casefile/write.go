package casefile

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
)

// WriteFile writes c to a file at path.
func (c *Case) WriteFile(path string) error {
	var buf bytes.Buffer
	if err := c.Write(&buf); err != nil {
		return err
	}
	return os.WriteFile(path, buf.Bytes(), 0o644)
}

// Write writes c; [Read] gives it back.
func (c *Case) Write(w io.Writer) error {
	line, err := c.headerLine()
	if err != nil {
		return err
	}
	if _, err := w.Write(line); err != nil {
		return err
	}
	for i := range c.arrays {
		data := c.arrays[i].Data
		if _, err := w.Write(data); err != nil {
			return err
		}
		if _, err := w.Write(make([]byte, padding(int64(len(data))))); err != nil {
			return err
		}
	}
	return nil
}

// headerLine lays the arrays out and returns the padded header line.
func (c *Case) headerLine() ([]byte, error) {
	header := c.Header
	header.Format = Format
	header.Arrays = make([]Entry, 0, len(c.arrays))
	end := int64(0)
	for i := range c.arrays {
		a := &c.arrays[i]
		e := Entry{Name: a.Name, Role: a.Role, DType: a.DType, Shape: a.Shape, Offset: end, NBytes: int64(len(a.Data))}
		if e.Shape == nil {
			e.Shape = []int{}
		}
		if err := e.check(end, end+e.NBytes); err != nil {
			return nil, err
		}
		header.Arrays = append(header.Arrays, e)
		end += e.NBytes + padding(e.NBytes)
	}
	line, err := json.Marshal(header)
	if err != nil {
		return nil, fmt.Errorf("casefile: header: %w", err)
	}
	line = escapeNonASCII(line)
	line = append(line, bytes.Repeat([]byte(" "), int(padding(int64(len(line))+1)))...)
	if len(line)+1 > maxHeader {
		return nil, fmt.Errorf("casefile: header line is longer than %d bytes", maxHeader)
	}
	return append(line, '\n'), nil
}

// escapeNonASCII replaces the characters beyond ASCII in JSON, which can only be
// inside strings, by \u escapes.
func escapeNonASCII(text []byte) []byte {
	var out []byte
	for _, r := range string(text) {
		switch {
		case r < 0x80:
			out = append(out, byte(r))
		case r < 0x10000:
			out = fmt.Appendf(out, `\u%04x`, r)
		default:
			r -= 0x10000
			out = fmt.Appendf(out, `\u%04x\u%04x`, 0xd800+r>>10, 0xdc00+r&0x3ff)
		}
	}
	return out
}
