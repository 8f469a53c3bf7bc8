package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

const (
	longest  = 512     // bytes of a sequence; a longer function is cut
	mostText = 8 << 20 // bytes of source to read
)

// text is what there is to learn: functions and other declarations, each a
// sequence of its own.
type text struct {
	train, held []string
	bytes       int
	entropy     float64 // nats a byte if every byte were drawn by its frequency
}

// loadText reads the declarations of all Go files below dir, or of the standard
// library. Every twentieth is held out.
func loadText(dir string) (*text, error) {
	if dir == "" {
		var err error
		if dir, err = standardLibrary(); err != nil {
			return nil, err
		}
	}
	t, n := &text{}, 0
	var count [256]float64
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "testdata" || d.Name() == "vendor" || d.Name() == "cmd"):
			return fs.SkipDir
		case d.IsDir() || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go"):
			return nil
		case t.bytes > mostText:
			return fs.SkipAll
		}
		source, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, s := range declarations(source) {
			t.bytes += len(s)
			for _, c := range []byte(s) {
				count[c]++
			}
			if n++; n%20 == 0 {
				t.held = append(t.held, s)
			} else {
				t.train = append(t.train, s)
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if len(t.held) == 0 {
		return nil, fmt.Errorf("too few declarations in the Go files of %s", dir)
	}
	for _, c := range count {
		if p := c / float64(t.bytes); p > 0 {
			t.entropy -= p * math.Log(p)
		}
	}
	return t, nil
}

// standardLibrary is the folder of its source.
func standardLibrary() (string, error) {
	root, err := exec.Command("go", "env", "GOROOT").Output()
	dir := filepath.Join(strings.TrimSpace(string(root)), "src")
	if err == nil {
		_, err = os.Stat(filepath.Join(dir, "fmt"))
	}
	if err != nil {
		return "", fmt.Errorf("no source of the standard library (%w); name a folder of Go files with -data", err)
	}
	return dir, nil
}

// declarations cuts a file into its functions, types, and so on, with their
// comments, and those into pieces of at most longest bytes.
func declarations(source []byte) []string {
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, "", source, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil
	}
	var all []string
	for _, d := range file.Decls {
		from := d.Pos()
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Doc != nil {
				from = d.Doc.Pos()
			}
		case *ast.GenDecl:
			if d.Tok == token.IMPORT {
				continue
			}
			if d.Doc != nil {
				from = d.Doc.Pos()
			}
		}
		s := string(source[set.Position(from).Offset:set.Position(d.End()).Offset]) + "\n"
		for ; len(s) > longest; s = s[longest:] {
			all = append(all, s[:longest])
		}
		all = append(all, s)
	}
	return all
}

// batch is sequences back to back: what is read, and what is to be predicted.
type batch struct {
	cu      []int
	in, out []byte
}

// add appends a sequence. It starts with a zero, which stands for nothing yet.
func (b *batch) add(s string) {
	b.in = append(append(b.in, 0), s[:len(s)-1]...)
	b.out = append(b.out, s...)
	b.cu = append(b.cu, len(b.out))
}

// randomBatch draws sequences until there are enough tokens.
func randomBatch(r *rand.Rand, from []string, tokens int) *batch {
	b := &batch{cu: []int{0}}
	for len(b.out) < tokens {
		b.add(from[r.IntN(len(from))])
	}
	return b
}
