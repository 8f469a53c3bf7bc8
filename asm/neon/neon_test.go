package neon

import (
	"encoding/binary"
	"encoding/hex"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/arch/arm64/arm64asm"
)

var wordLine = regexp.MustCompile(`^\tWORD \$0x([0-9a-f]{8}) // (.*)$`)

// checkWords decodes every WORD of an assembly file by golang.org/x/arch, and
// holds it to the instruction behind it.
func checkWords(t *testing.T, assembly string) (n int) {
	t.Helper()
	for _, line := range strings.Split(assembly, "\n") {
		m := wordLine.FindStringSubmatch(line)
		if m == nil {
			if strings.Contains(line, "WORD") {
				t.Errorf("not a WORD with its instruction: %s", line)
			}
			continue
		}
		code, err := hex.DecodeString(m[1])
		if err != nil {
			t.Fatal(err)
		}
		var little [4]byte
		binary.LittleEndian.PutUint32(little[:], binary.BigEndian.Uint32(code))
		inst, err := arm64asm.Decode(little[:])
		if err != nil {
			t.Errorf("%s: %v", line, err)
			continue
		}
		if got := arm64asm.GNUSyntax(inst); got != m[2] {
			t.Errorf("%s is %s", line, got)
		}
		n++
	}
	return n
}

// TestGeneratedWords holds the files that are in use.
func TestGeneratedWords(t *testing.T) {
	for _, path := range []string{"../../kernel_arm64.s", "../../internal/peak/peak_arm64.s"} {
		s, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if n := checkWords(t, string(s)); n < 20 {
			t.Errorf("%s has %d words, which cannot be all", path, n)
		}
	}
}

// TestEveryInstruction calls every method that prints an instruction, with
// registers from both ends, and holds what it prints as a WORD.
func TestEveryInstruction(t *testing.T) {
	vs, xs := []V{0, 31, 7, 16, 8}, []X{0, 26, 7, 17, 19}
	called := 0
	of := reflect.TypeOf(&Gen{})
	for i := range of.NumMethod() {
		m := of.Method(i)
		if !isInstruction(m.Type) {
			continue
		}
		called++
		for turn := range 5 {
			g := &Gen{}
			args := []reflect.Value{reflect.ValueOf(g)}
			for p := 1; p < m.Type.NumIn(); p++ {
				switch m.Type.In(p) {
				case reflect.TypeOf(V(0)):
					args = append(args, reflect.ValueOf(vs[(turn+p)%len(vs)]))
				case reflect.TypeOf(X(0)):
					args = append(args, reflect.ValueOf(xs[(turn+p)%len(xs)]))
				case reflect.TypeOf(0):
					args = append(args, reflect.ValueOf(max(turn%4, min(p, 1)*smallest(m.Name))))
				default:
					args = append(args, reflect.ValueOf(uint32(turn)))
				}
			}
			m.Func.Call(args)
			if g.body.Len() == 0 {
				t.Errorf("%s prints nothing", m.Name)
			}
			checkWords(t, g.body.String())
		}
	}
	if called < 50 {
		t.Errorf("only %d methods are instructions", called)
	}
}

// smallest is the least immediate of an instruction.
func smallest(method string) int {
	if method == "Sshr" {
		return 1
	}
	return 0
}

// isInstruction reports whether a method takes registers and numbers alone, at
// least one register, and returns nothing.
func isInstruction(m reflect.Type) bool {
	registers := 0
	for p := 1; p < m.NumIn(); p++ {
		switch m.In(p) {
		case reflect.TypeOf(V(0)), reflect.TypeOf(X(0)):
			registers++
		case reflect.TypeOf(0), reflect.TypeOf(uint32(0)):
		default:
			return false
		}
	}
	return registers > 0 && m.NumOut() == 0
}

// TestOutOfRange: registers, lanes and shifts that do not exist are refused.
func TestOutOfRange(t *testing.T) {
	g := &Gen{}
	for name, f := range map[string]func(){
		"v32":            func() { g.Fadd(32, 0, 0) },
		"v-1":            func() { g.Fmul(0, -1, 0) },
		"v32 native":     func() { g.Mov(0, 32) },
		"v32 in F":       func() { g.Ldr(32, 0, 0) },
		"lane 4":         func() { g.FmlaElement(0, 1, 2, 4) },
		"lane -1":        func() { g.FmlaElement(0, 1, 2, -1) },
		"lane of Dup":    func() { g.Dup(0, 1, 4) },
		"R18":            func() { g.AddX(0, 18, 1) },
		"R27":            func() { g.MovX(27, 1) },
		"R28":            func() { g.Ldr(0, 28, 0) },
		"shift of 0":     func() { g.Sshr(0, 1, 0) },
		"shift of 33":    func() { g.Sshr(0, 1, 33) },
		"no parameter":   func() { g.Func("f", "a int", "does."); g.Arg("b") },
		"not a float":    func() { g.Func("f", "a int", "does."); g.ArgFloat("a") },
		"a strange type": func() { g.Func("f", "a string", "does.") },
		"too many X": func() {
			g.Func("f", "a int", "does.")
			for range 27 {
				g.X()
			}
		},
		"too many V": func() {
			g.Func("f", "a int", "does.")
			g.Vs(33)
		},
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if recover() == nil {
					t.Error("was taken")
				}
			}()
			f()
		})
	}
}

// TestFrame: parameters lie where Go's ABI0 has them.
func TestFrame(t *testing.T) {
	g := &Gen{}
	g.Func("f", "(a, b *float32, x float32, n int, y, z float32) (ok bool)", "does.")
	for name, at := range map[string]int{"a": 0, "b": 8, "x": 16, "n": 24, "y": 32, "z": 36, "ok": 40} {
		if got := g.f.params[name]; got != at {
			t.Errorf("%s lies at %d, must at %d", name, got, at)
		}
	}
	if want := "TEXT ·f(SB), NOSPLIT, $0-41"; !strings.Contains(g.body.String(), want) {
		t.Errorf("no %q in\n%s", want, g.body.String())
	}
}
