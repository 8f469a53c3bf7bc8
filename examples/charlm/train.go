package main

import (
	"encoding/gob"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"math/rand/v2"
	"os"

	"github.com/seed-091431b3/attention"
)

const ln2 = math.Ln2

// trainer is a model on its way.
type trainer struct {
	model  *model
	text   *text
	seed   uint64
	tokens int
	rate   float64
	source *rand.PCG // of the batches
	step   int
	curve  []point
}

// point is the mean loss of some steps, of which step is the last.
type point struct {
	Step int
	Loss float64
}

func newTrainer(s shape, text *text, seed uint64, tokens int, rate float64) (*trainer, error) {
	m, err := newModel(s, rand.New(rand.NewPCG(seed, 1)))
	if err != nil {
		return nil, err
	}
	return &trainer{model: m, text: text, seed: seed, tokens: tokens, rate: rate, source: rand.NewPCG(seed, 2)}, nil
}

// next takes one step of AdamW, and returns the loss and the tokens it saw.
func (t *trainer) next() (float64, int, error) {
	b := randomBatch(rand.New(t.source), t.text.train, t.tokens)
	dropout := func(layer int) *attention.Dropout {
		return &attention.Dropout{Seed: t.seed + uint64(t.step*len(t.model.layers)+layer), Rate: 0.1}
	}
	if err := t.model.forward(b, dropout); err != nil {
		return 0, 0, err
	}
	loss, err := t.model.backward(b, dropout)
	if err != nil {
		return 0, 0, err
	}
	t.step++
	t.update()
	const each = 10
	if t.step%each == 1 {
		t.curve = append(t.curve, point{})
	}
	p := &t.curve[len(t.curve)-1]
	p.Loss += (loss - p.Loss) / float64((t.step-1)%each+1)
	p.Step = t.step
	return loss, len(b.in), nil
}

// update is a step of AdamW (Loshchilov and Hutter 2019), with the gradient cut
// to a norm of 1, a warm-up, and then a rate that falls with the root of the
// steps.
func (t *trainer) update() {
	const beta1, beta2, tiny, decay, warmUp = 0.9, 0.95, 1e-8, 0.1, 30
	var norm float64
	for _, w := range t.model.weights {
		for _, g := range w.grad {
			norm += float64(g) * float64(g)
		}
	}
	clip := float32(min(1, 1/math.Sqrt(norm)))
	step := float64(t.step)
	rate := t.rate * min(step/warmUp, math.Sqrt(20*warmUp/max(step, 20*warmUp)))
	fix1, fix2 := 1-math.Pow(beta1, step), 1-math.Pow(beta2, step)
	for _, w := range t.model.weights {
		share(len(w.data), func(from, to int) {
			for i := from; i < to; i++ {
				g := w.grad[i] * clip
				w.mean[i] += (1 - beta1) * (g - w.mean[i])
				w.square[i] += (1 - beta2) * (g*g - w.square[i])
				d := float64(w.mean[i]) / fix1 / (math.Sqrt(float64(w.square[i])/fix2) + tiny)
				if w.decays {
					d += decay * float64(w.data[i])
				}
				w.data[i] -= float32(rate * d)
			}
		})
	}
}

// heldOut is the loss on sequences that are not trained on.
func (t *trainer) heldOut() (float64, error) {
	r := rand.New(rand.NewPCG(0, 4))
	b := randomBatch(r, t.text.held, 32*t.tokens)
	if err := t.model.forward(b, noDropout); err != nil {
		return 0, err
	}
	return crossEntropy(t.model.logits, b.out), nil
}

// checkpoint is all that a training is.
type checkpoint struct {
	Shape   shape
	Seed    uint64
	Tokens  int
	Rate    float64
	Step    int
	Source  []byte
	Curve   []point
	Weights [][3][]float32 // values, means, squares
}

// save writes the training to a file, whole or not at all.
func (t *trainer) save(path string) error {
	source, err := t.source.MarshalBinary()
	if err != nil {
		return err
	}
	c := checkpoint{t.model.shape, t.seed, t.tokens, t.rate, t.step, source, t.curve, nil}
	for _, w := range t.model.weights {
		c.Weights = append(c.Weights, [3][]float32{w.data, w.mean, w.square})
	}
	f, err := os.Create(path + ".new")
	if err != nil {
		return err
	}
	if err := errors.Join(gob.NewEncoder(f).Encode(&c), f.Close()); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// resume continues the training in a file, if there is one.
func (t *trainer) resume(path string) error {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	var c checkpoint
	if err := gob.NewDecoder(f).Decode(&c); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if c.Shape != t.model.shape || c.Seed != t.seed || c.Tokens != t.tokens || c.Rate != t.rate || len(c.Weights) != len(t.model.weights) {
		return fmt.Errorf("%s: holds the training of another model, or with another -seed, -tokens or -rate", path)
	}
	for i, w := range t.model.weights {
		for k, to := range [3][]float32{w.data, w.mean, w.square} {
			if len(c.Weights[i][k]) != len(to) {
				return fmt.Errorf("%s: weight %d has another size", path, i)
			}
			copy(to, c.Weights[i][k])
		}
	}
	t.step, t.curve = c.Step, c.Curve
	return t.source.UnmarshalBinary(c.Source)
}
