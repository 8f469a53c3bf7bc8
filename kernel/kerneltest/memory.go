package kerneltest

import (
	"bytes"
	"fmt"
	"runtime/debug"
	"testing"
	"unsafe"
)

// page is a multiple of every system's page; memory is mapped in its multiples.
const page = 1 << 16

// canary bytes lie beside an argument, on the side where no guard page is. As
// floats they are small numbers, so that reading them has an effect too.
const (
	canary  = 0x3D
	beside  = 512
	noValue = 0xBD // fills outputs before a call
)

// memory holds the arguments of one call, each by itself between two pages that
// may not be touched, and flush against one of them.
type memory struct {
	t     *testing.T
	label string
	end   bool // flush against the page behind, otherwise the page before
	slots []*slot
	used  int
}

// slot is room for one argument. It is used again by the next call.
type slot struct {
	name   string
	room   []byte
	free   func()
	arg    []byte
	before []byte // what an input must still hold; nil for an output
}

func newMemory(t *testing.T) *memory {
	m := &memory{t: t}
	t.Cleanup(func() {
		for _, s := range m.slots {
			s.free()
		}
	})
	return m
}

// each calls f with arguments flush against the page behind them, then before
// them, and verifies what no call may do.
func (m *memory) each(t *testing.T, label string, f func()) {
	t.Helper()
	m.t, m.label = t, label
	for _, m.end = range []bool{true, false} {
		m.used = 0
		m.run(f)
		m.verify()
		if t.Failed() {
			t.FailNow()
		}
	}
}

// run calls f and turns a fault on a guard page into a failure.
func (m *memory) run(f func()) {
	m.t.Helper()
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		m.t.Helper()
		r := recover()
		if r == nil {
			return
		}
		if fault, ok := r.(interface{ Addr() uintptr }); ok {
			m.t.Fatalf("%s: touches memory outside of its arguments: %s", m.where(), m.place(fault.Addr()))
		}
		panic(r)
	}()
	f()
}

func (m *memory) where() string {
	if m.end {
		return m.label + ", arguments before a guard page"
	}
	return m.label + ", arguments behind a guard page"
}

// place describes an address by the argument it is near.
func (m *memory) place(addr uintptr) string {
	for _, s := range m.slots[:m.used] {
		start := uintptr(unsafe.Pointer(unsafe.SliceData(s.arg)))
		end := start + uintptr(len(s.arg))
		switch {
		case addr >= end && addr < end+page:
			return fmt.Sprintf("%d bytes past the end of %s, which has %d", addr-end, s.name, len(s.arg))
		case addr < start && addr+page >= start:
			return fmt.Sprintf("%d bytes before %s", start-addr, s.name)
		}
	}
	return fmt.Sprintf("address %#x, near none of them", addr)
}

// verify holds that inputs are as they were and that nothing beside an argument
// was written.
func (m *memory) verify() {
	m.t.Helper()
	for _, s := range m.slots[:m.used] {
		if s.before != nil && !bytes.Equal(s.arg, s.before) {
			m.t.Errorf("%s: writes to its input %s", m.where(), s.name)
		}
		for _, b := range s.beside(m.end) {
			if b != canary {
				m.t.Errorf("%s: writes outside of %s", m.where(), s.name)
				break
			}
		}
	}
}

// beside is the memory next to the argument on the side without a guard page.
func (s *slot) beside(end bool) []byte {
	if end {
		rest := s.room[:len(s.room)-len(s.arg)]
		return rest[max(len(rest)-beside, 0):]
	}
	rest := s.room[len(s.arg):]
	return rest[:min(len(rest), beside)]
}

// allocate returns room for an argument of size bytes.
func (m *memory) allocate(name string, size int) *slot {
	if m.used == len(m.slots) {
		m.slots = append(m.slots, &slot{free: func() {}})
	}
	s := m.slots[m.used]
	m.used++
	if len(s.room) < max(size, 1) {
		s.free()
		room, free, err := guarded((max(size, 1) + page - 1) / page * page)
		if err != nil {
			s.free = func() {}
			m.t.Fatalf("mapping memory: %v", err)
		}
		s.room, s.free = room, free
	}
	s.name, s.before = name, nil
	s.arg = s.room[:size:size]
	if m.end {
		s.arg = s.room[len(s.room)-size:]
	}
	b := s.beside(m.end)
	for i := range b {
		b[i] = canary
	}
	return s
}

// input places a copy of x, which the call must not change, and returns a
// pointer to it. An empty x is a pointer that may not be followed.
func input[T any](m *memory, name string, x []T) *T {
	p := unsafe.SliceData(inout(m, name, x))
	s := m.slots[m.used-1]
	s.before = append(s.before[:0:0], s.arg...)
	if len(x) == 0 {
		// The first byte of the page behind.
		return (*T)(unsafe.Add(unsafe.Pointer(unsafe.SliceData(s.room)), len(s.room)))
	}
	return p
}

// inout places a copy of x, which the call may change.
func inout[T any](m *memory, name string, x []T) []T {
	var zero T
	s := m.allocate(name, len(x)*int(unsafe.Sizeof(zero)))
	y := unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(s.arg))), len(x))
	copy(y, x)
	return y
}

// output places n elements that the call is to write.
func output[T any](m *memory, name string, n int) []T {
	var zero T
	s := m.allocate(name, n*int(unsafe.Sizeof(zero)))
	for i := range s.arg {
		s.arg[i] = noValue
	}
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(s.arg))), n)
}
