package main

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"os"
)

// header is the shape of a model.
type header struct {
	dim, hidden, layers, heads, kvHeads, vocab, context int
	// shared says that the token embedding is the classifier, too.
	shared bool
}

func (h *header) headDim() int { return h.dim / h.heads }

func (h *header) kvDim() int { return h.kvHeads * h.headDim() }

// matrix is row-major.
type matrix struct {
	rows, cols int
	data       []float32
}

func (m matrix) row(i int) []float32 { return m.data[i*m.cols : (i+1)*m.cols] }

// block is the weights of one layer. A matrix has a row for each output.
type block struct {
	attNorm, ffnNorm matrix // [1, dim]
	wq, wk, wv, wo   matrix
	w1, w2, w3       matrix // gate, down, up
}

// checkpoint is a trained model.
type checkpoint struct {
	header
	embedding  matrix // [vocab, dim]
	blocks     []block
	norm       matrix // [1, dim]
	classifier matrix // [vocab, dim]
	parameters int
}

// tensor is a part of a checkpoint's file: count matrices, one behind the other.
type tensor struct {
	name              string
	count, rows, cols int
}

// layout is what follows the header in a file of llama2.c's version 0. The two
// freq_cis tables are a legacy that nobody reads any more.
func (h *header) layout() []tensor {
	all := []tensor{
		{"token_embedding_table", 1, h.vocab, h.dim},
		{"rms_att_weight", h.layers, 1, h.dim},
		{"wq", h.layers, h.dim, h.dim},
		{"wk", h.layers, h.kvDim(), h.dim},
		{"wv", h.layers, h.kvDim(), h.dim},
		{"wo", h.layers, h.dim, h.dim},
		{"rms_ffn_weight", h.layers, 1, h.dim},
		{"w1", h.layers, h.hidden, h.dim},
		{"w2", h.layers, h.dim, h.hidden},
		{"w3", h.layers, h.hidden, h.dim},
		{"rms_final_weight", 1, 1, h.dim},
		{"freq_cis_real", 1, h.context, h.headDim() / 2},
		{"freq_cis_imag", 1, h.context, h.headDim() / 2},
	}
	if !h.shared {
		all = append(all, tensor{"wcls", 1, h.vocab, h.dim})
	}
	return all
}

const (
	headerSize = 7 * 4
	// most bounds every number of a header, so that sizes cannot overflow.
	most = 1 << 18
	// magic begins the files of later versions.
	magic = 0x616b3432
)

// load reads the checkpoint at path.
func load(path string) (*checkpoint, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	c, err := read(bufio.NewReader(f), info.Size())
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return c, nil
}

// read reads a checkpoint of size bytes. It allocates no weights before the
// size is known to be that of the header.
func read(r io.Reader, size int64) (*checkpoint, error) {
	h, err := readHeader(r, size)
	if err != nil {
		return nil, err
	}
	c := &checkpoint{header: h, blocks: make([]block, h.layers)}
	c.parameters = int(size-headerSize)/4 - h.context*h.headDim() // the tables are none
	weights := make(map[string][]matrix)
	for _, t := range h.layout() {
		for range t.count {
			m := matrix{t.rows, t.cols, make([]float32, t.rows*t.cols)}
			if err := binary.Read(r, binary.LittleEndian, m.data); err != nil {
				return nil, fmt.Errorf("%s: %w", t.name, err)
			}
			for i, v := range m.data {
				if v-v != 0 {
					return nil, fmt.Errorf("%s: weight %d is %v, must be finite", t.name, i, v)
				}
			}
			weights[t.name] = append(weights[t.name], m)
		}
	}
	for l := range c.blocks {
		of := func(name string) matrix { return weights[name][l] }
		c.blocks[l] = block{
			attNorm: of("rms_att_weight"), wq: of("wq"), wk: of("wk"), wv: of("wv"), wo: of("wo"),
			ffnNorm: of("rms_ffn_weight"), w1: of("w1"), w2: of("w2"), w3: of("w3"),
		}
	}
	c.embedding, c.norm = weights["token_embedding_table"][0], weights["rms_final_weight"][0]
	c.classifier = c.embedding
	if !h.shared {
		c.classifier = weights["wcls"][0]
	}
	return c, nil
}

// readHeader reads the header of a file of size bytes, and verifies it.
func readHeader(r io.Reader, size int64) (header, error) {
	var h header
	if size < headerSize {
		return h, fmt.Errorf("has %d bytes, the header alone has %d", size, headerSize)
	}
	var raw [7]int32
	if err := binary.Read(r, binary.LittleEndian, &raw); err != nil {
		return h, fmt.Errorf("header: %w", err)
	}
	if raw[0] == magic {
		return h, fmt.Errorf("is a checkpoint of a later version, must be of version 0")
	}
	// A negative vocabulary marks a classifier of its own.
	h.shared = raw[5] > 0
	if !h.shared {
		raw[5] = -raw[5]
	}
	for i, f := range [...]struct {
		name string
		n    *int
	}{
		{"dim", &h.dim}, {"hidden_dim", &h.hidden}, {"n_layers", &h.layers}, {"n_heads", &h.heads},
		{"n_kv_heads", &h.kvHeads}, {"vocab_size", &h.vocab}, {"seq_len", &h.context},
	} {
		if raw[i] < 1 || raw[i] > most {
			return h, fmt.Errorf("header: %s: %d, must be from 1 to %d", f.name, raw[i], most)
		}
		*f.n = int(raw[i])
	}
	switch {
	case h.dim%(2*h.heads) != 0:
		return h, fmt.Errorf("header: dim: %d, must be a multiple of twice n_heads, which is %d", h.dim, h.heads)
	case h.heads%h.kvHeads != 0:
		return h, fmt.Errorf("header: n_heads: %d, must be a multiple of n_kv_heads, which is %d", h.heads, h.kvHeads)
	}
	want := int64(headerSize)
	for _, t := range h.layout() {
		want += 4 * int64(t.count) * int64(t.rows) * int64(t.cols)
	}
	if size != want {
		return h, fmt.Errorf("has %d bytes, a model of its header has %d", size, want)
	}
	if int64(int(want)) != want {
		return h, fmt.Errorf("has %d bytes, which is more than this processor can address", size)
	}
	return h, nil
}
