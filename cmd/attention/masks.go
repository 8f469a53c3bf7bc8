package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/seed-091431b3/attention"
)

// maskKinds documents the forms of -mask.
const maskKinds = `causal
window:LEFT,RIGHT        -1 leaves a side open
prefix:N                 the first N keys, then causal
sinks:N,LEFT,RIGHT       the first N keys and a window
documents:N1,N2,...      documents of N1, N2, ... tokens
blocks:SIDE:Q-K,Q-K,...  block-sparse, blocks of SIDE queries by SIDE keys
tree:P1,P2,...           draft tokens with these parents, -1 for the prefix`

// masks draws the tiles of a mask.
func masks(args []string, stdout, _ io.Writer) error {
	f := newFlags("masks", "", `Draws how the kernel walks over the tiles of a mask, strips of queries by blocks
of keys: '#' all visible, '+' partly masked, '.' skipped. Masks are joined by '&':

`+maskKinds, stdout)
	spec := f.String("mask", "causal", "the mask")
	queries := f.Int("queries", 1024, "queries")
	keys := f.Int("keys", 0, "keys; 0: as many as queries")
	group := f.Int("group", 1, "query heads to a key/value head")
	kernel := f.String("kernel", "", "kernel, whose strips are drawn (default: the fastest)")
	svg := f.String("svg", "", "write an SVG picture to this file instead of drawing in the terminal")
	if err := parse(f, args, 0); err != nil {
		return err
	}
	if *keys == 0 {
		*keys = *queries
	}
	for _, x := range []struct {
		flag string
		n    int
	}{{"queries", *queries}, {"keys", *keys}, {"group", *group}} {
		if x.n < 1 || x.n > 1<<20 {
			return fmt.Errorf("-%s: %d, must be from 1 to %d", x.flag, x.n, 1<<20)
		}
	}
	if pairs := float64(*queries) * float64(*group) * float64(*keys); pairs > maxPairs {
		return fmt.Errorf("-queries: %d, times -keys %d times -group %d must not pass %.0f", *queries, *keys, *group, float64(maxPairs))
	}
	mask, err := parseMasks(*spec, *keys)
	if err != nil {
		return fmt.Errorf("-mask: %w", err)
	}
	op, err := attention.New(attention.Config{QueryHeads: *group, KVHeads: 1, HeadDim: 64, Mask: mask, Kernel: *kernel})
	if err != nil {
		return err
	}
	tiles, err := op.Tiles(attention.RaggedQK([]int{0, *queries}, []int{0, *keys}), 0)
	if err != nil {
		return err
	}
	p := newPicture(tiles, *queries, *keys, *group)
	if *svg == "" {
		return p.text(stdout)
	}
	file, err := os.Create(*svg)
	if err != nil {
		return err
	}
	if err := p.svg(file); err != nil {
		file.Close()
		return err
	}
	if err := file.Close(); err != nil {
		return err
	}
	_, err = fmt.Fprintln(stdout, p.summary())
	return err
}

// maxPairs keeps the list of tiles below a few hundred megabytes.
const maxPairs = 1 << 32

// parseMasks makes the conjunction that spec describes.
func parseMasks(spec string, keys int) (attention.Mask, error) {
	var all []attention.Mask
	for _, s := range strings.Split(spec, "&") {
		m, err := parseMask(strings.TrimSpace(s), keys)
		if err != nil {
			return attention.Mask{}, err
		}
		all = append(all, m)
	}
	return attention.And(all...), nil
}

func parseMask(s string, keys int) (attention.Mask, error) {
	kind, rest, _ := strings.Cut(s, ":")
	if kind == "blocks" {
		return parseBlocks(rest)
	}
	var n []int
	for _, x := range strings.Split(rest, ",") {
		if rest == "" {
			break
		}
		i, err := strconv.Atoi(x)
		if err != nil {
			return attention.Mask{}, fmt.Errorf("%q: %q is not a number", s, x)
		}
		n = append(n, i)
	}
	want := map[string]int{"causal": 0, "window": 2, "prefix": 1, "sinks": 3}
	if k, ok := want[kind]; ok && len(n) != k {
		return attention.Mask{}, fmt.Errorf("%q: %s takes %d numbers, not %d", s, kind, k, len(n))
	}
	switch kind {
	case "causal":
		return attention.Causal(), nil
	case "window":
		return attention.Window(n[0], n[1]), nil
	case "prefix":
		return attention.PrefixLM(n[0]), nil
	case "sinks":
		return attention.SinkTokens(n[0], n[1], n[2]), nil
	case "tree":
		return attention.Tree(n), nil
	case "documents":
		return parseDocuments(n, keys)
	}
	return attention.Mask{}, fmt.Errorf("%q is not a mask, which are\n%s", s, maskKinds)
}

// parseDocuments makes documents of the lengths n, which must fill the keys.
func parseDocuments(n []int, keys int) (attention.Mask, error) {
	var doc []int32
	for i, length := range n {
		if length < 0 || length > keys-len(doc) {
			return attention.Mask{}, fmt.Errorf("documents: lengths %v, must add up to the %d keys", n, keys)
		}
		for range length {
			doc = append(doc, int32(i))
		}
	}
	if len(doc) != keys {
		return attention.Mask{}, fmt.Errorf("documents: lengths %v, must add up to the %d keys", n, keys)
	}
	return attention.Documents(doc), nil
}

func parseBlocks(s string) (attention.Mask, error) {
	side, list, _ := strings.Cut(s, ":")
	n, err := strconv.Atoi(side)
	if err != nil {
		return attention.Mask{}, fmt.Errorf("blocks: %q is not a number", side)
	}
	var blocks []attention.Block
	for _, pair := range strings.Split(list, ",") {
		var b attention.Block
		var rest string
		if k, _ := fmt.Sscanf(pair, "%d-%d%s", &b.Q, &b.K, &rest); k != 2 {
			return attention.Mask{}, fmt.Errorf("blocks: %q, must be Q-K", pair)
		}
		blocks = append(blocks, b)
	}
	return attention.BlockSparse(n, n, blocks), nil
}

// picture is a grid of tiles.
type picture struct {
	tiles         []attention.Tile
	columns       int // blocks of keys
	queries, keys int
	count         [3]int // of tiles, by visibility
	share         float64
}

func newPicture(tiles []attention.Tile, queries, keys, group int) *picture {
	p := &picture{tiles: tiles, queries: queries, keys: keys}
	pairs := 0
	for _, t := range tiles {
		p.count[t.Visibility]++
		pairs += t.Pairs
	}
	for p.columns < len(tiles) && (p.columns == 0 || tiles[p.columns].FirstKey > 0) {
		p.columns++
	}
	p.share = float64(pairs) / (float64(queries) * float64(keys) * float64(group))
	return p
}

// text draws the grid, and at most 64 rows of it in the terminal's width.
func (p *picture) text(w io.Writer) error {
	b := bufio.NewWriter(w)
	rows := len(p.tiles) / p.columns
	stepR, stepC := (rows+63)/64, (p.columns+99)/100
	for r := 0; r < rows; r += stepR {
		first := p.tiles[r*p.columns]
		fmt.Fprintf(b, "%8d ", first.FirstQuery)
		for c := 0; c < p.columns; c += stepC {
			b.WriteByte(".+#"[p.tiles[r*p.columns+c].Visibility])
		}
		b.WriteByte('\n')
	}
	fmt.Fprintf(b, "\n%s\n", p.summary())
	if stepR > 1 || stepC > 1 {
		fmt.Fprintf(b, "Drawn: every %d. strip, every %d. block.\n", stepR, stepC)
	}
	return b.Flush()
}

func (p *picture) summary() string {
	return fmt.Sprintf("%d queries, %d keys: %d tiles visible (#), %d mixed (+), %d skipped (.); %.1f %% of the work without a mask.",
		p.queries, p.keys, p.count[attention.Visible], p.count[attention.Mixed], p.count[attention.Hidden], 100*p.share)
}

// svg draws every tile to scale.
func (p *picture) svg(w io.Writer) error {
	b := bufio.NewWriter(w)
	const size = 800.0
	scale := size / float64(max(p.queries, p.keys))
	fmt.Fprintf(b, `<svg xmlns="http://www.w3.org/2000/svg" width="%.0f" height="%.0f" font-family="sans-serif" font-size="14">`+"\n",
		float64(p.keys)*scale+20, float64(p.queries)*scale+50)
	fmt.Fprintf(b, "<title>%s</title>\n", p.summary())
	fill := [...]string{attention.Hidden: "#eeeeee", attention.Mixed: "#f0a030", attention.Visible: "#3070b0"}
	for _, t := range p.tiles {
		fmt.Fprintf(b, `<rect x="%.2f" y="%.2f" width="%.2f" height="%.2f" fill="%s" stroke="white" stroke-width="0.5"/>`+"\n",
			10+float64(t.FirstKey)*scale, 10+float64(t.FirstQuery)*scale,
			float64(t.EndKey-t.FirstKey)*scale, float64(t.EndQuery-t.FirstQuery)*scale, fill[t.Visibility])
	}
	fmt.Fprintf(b, `<text x="10" y="%.0f">%s</text>`+"\n</svg>\n", float64(p.queries)*scale+35, p.summary())
	return b.Flush()
}
