// Stories continues a text with a small language model in llama2.c's format: a
// Llama-2-style decoder whose attention, over a cache of keys and values, is
// this library's.
//
//	go run ./examples/stories -model stories260K.bin
//
// That file is among those of huggingface.co/karpathy/tinyllamas. The prompt and
// what follows it are token ids, as a tokenizer is not this example's subject.
// Each token is the likeliest. The same ids come out with and without the cache,
// whatever -chunk and -workers say; only the time differs.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/seed-091431b3/attention"
)

// options are the flags.
type options struct {
	model   string
	prompt  string
	tokens  int
	chunk   int
	workers int
	cache   bool
}

func main() {
	log.SetFlags(0)
	var o options
	flag.StringVar(&o.model, "model", "", "checkpoint to use, a file of llama2.c's version 0")
	flag.StringVar(&o.prompt, "prompt", "1", "token ids to start from, separated by commas or spaces; 1 begins a text")
	flag.IntVar(&o.tokens, "tokens", 256, "tokens to add")
	flag.IntVar(&o.chunk, "chunk", 0, "tokens of the prompt to compute at once (0: all)")
	flag.IntVar(&o.workers, "workers", 0, "goroutines of the attention (0: one for each processor)")
	flag.BoolVar(&o.cache, "cache", true, "keep keys and values, instead of computing the whole text for each token")
	flag.Parse()
	if flag.NArg() > 0 {
		log.Fatalf("stories: unexpected argument %q", flag.Arg(0))
	}
	if err := run(o, os.Stdout); err != nil {
		log.Fatal("stories: ", err)
	}
}

func run(o options, out io.Writer) error {
	switch {
	case o.model == "":
		return errors.New("-model: a checkpoint must be given")
	case o.tokens < 1:
		return fmt.Errorf("-tokens: %d, must be at least 1", o.tokens)
	case o.chunk < 0:
		return fmt.Errorf("-chunk: %d, must not be negative", o.chunk)
	case o.chunk > 0 && !o.cache:
		return errors.New("-chunk: needs the cache")
	}
	c, err := load(o.model)
	if err != nil {
		return err
	}
	prompt, err := parsePrompt(o.prompt, c.vocab)
	if err != nil {
		return fmt.Errorf("-prompt: %w", err)
	}
	if o.tokens > c.context-len(prompt) {
		return fmt.Errorf("-tokens: %d after a prompt of %d are more than the context of %d", o.tokens, len(prompt), c.context)
	}
	g, err := newGenerator(c, prompt, o)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%d parameters, %d layers, %d query and %d key heads of %d channels, attention kernel %s\n",
		c.parameters, c.layers, c.heads, c.kvHeads, c.headDim(), g.op.Kernel())
	if err := g.generate(o.tokens, o.chunk); err != nil {
		return err
	}
	fmt.Fprintln(out, strings.Trim(fmt.Sprint(g.text), "[]"))
	fmt.Fprintf(out, "prefill: %s\ndecode:  %s\n", speed(len(prompt), g.prefill), speed(o.tokens-1, g.decode))
	return nil
}

// parsePrompt parses ids below vocab.
func parsePrompt(s string, vocab int) ([]int, error) {
	var ids []int
	for _, f := range strings.FieldsFunc(s, func(r rune) bool { return r == ',' || r == ' ' }) {
		id, err := strconv.Atoi(f)
		if err != nil {
			return nil, fmt.Errorf("%q is not a token id", f)
		}
		if id < 0 || id >= vocab {
			return nil, fmt.Errorf("token %d is %d, must be from 0 to %d", len(ids), id, vocab-1)
		}
		ids = append(ids, id)
	}
	if len(ids) == 0 {
		return nil, errors.New("has no token")
	}
	return ids, nil
}

// speed says how fast n tokens were computed.
func speed(n int, d time.Duration) string {
	if n == 0 {
		return "0 tokens"
	}
	return fmt.Sprintf("%d tokens, %.0f tokens/s", n, float64(n)/d.Seconds())
}

// generator continues a text.
type generator struct {
	*decoder
	text            []int
	cache           []*attention.CachedSequence // nil: none
	prefill, decode time.Duration
}

// newGenerator returns a generator for a prompt and o.tokens more. All memory is
// allocated here.
func newGenerator(c *checkpoint, prompt []int, o options) (*generator, error) {
	total := len(prompt) + o.tokens
	g := &generator{text: append(make([]int, 0, total), prompt...)}
	rows := total
	if o.cache {
		rows = len(prompt)
		if o.chunk > 0 {
			rows = min(rows, o.chunk)
		}
		var err error
		if g.cache, err = c.newCache(total, pageKeys); err != nil {
			return nil, err
		}
	}
	var err error
	g.decoder, err = newDecoder(c, rows, o.workers)
	return g, err
}

// generate computes the prompt, chunk tokens at once, and adds n tokens, each
// the likeliest. The last one is not computed, as nothing follows it.
func (g *generator) generate(n, chunk int) error {
	if chunk == 0 {
		chunk = len(g.text)
	}
	start := time.Now()
	last := 0 // token of the last call
	for from := 0; from < len(g.text); from += chunk {
		tokens := g.text[from:min(from+chunk, len(g.text))]
		if err := g.forward(tokens, g.cache); err != nil {
			return err
		}
		last = len(tokens) - 1
	}
	g.text = append(g.text, largest(g.logits(last)))
	g.prefill = time.Since(start)
	start = time.Now()
	for range n - 1 {
		tokens := g.text
		if g.cache != nil {
			tokens = tokens[len(tokens)-1:]
		}
		if err := g.forward(tokens, g.cache); err != nil {
			return err
		}
		g.text = append(g.text, largest(g.logits(len(tokens)-1)))
	}
	g.decode = time.Since(start)
	return nil
}
