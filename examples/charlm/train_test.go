package main

import (
	"bytes"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-091431b3/attention"
)

var small = shape{Layers: 2, QueryHeads: 4, KVHeads: 2, HeadDim: 6, Hidden: 40}

func smallText() *text {
	s := []string{"func a() int { return 1 }\n", "x", "var b = []string{\"c\", \"d\"}\n", "// Comment.\ntype t struct{ u, v int }\n"}
	return &text{train: s, held: s}
}

func train(t *testing.T, tr *trainer, steps int) []float64 {
	var losses []float64
	for range steps {
		loss, _, err := tr.next()
		require.NoError(t, err)
		losses = append(losses, loss)
	}
	return losses
}

func newSmall(t *testing.T) *trainer {
	tr, err := newTrainer(small, smallText(), 7, 700, 1e-2)
	require.NoError(t, err)
	return tr
}

// TestWorkersDoNotEnterTheLoss compares losses to the last bit.
func TestWorkersDoNotEnterTheLoss(t *testing.T) {
	want := train(t, newSmall(t), 8)
	for _, workers := range []int{1, 2, 3} {
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(workers))
		assert.Equal(t, want, train(t, newSmall(t), 8), "%d workers", workers)
	}
	assert.Less(t, want[7], want[0], "the loss after seven steps")
}

// TestResumedTrainingIsTheSame stops and resumes, and compares to the last bit.
func TestResumedTrainingIsTheSame(t *testing.T) {
	path := filepath.Join(t.TempDir(), "training")
	all := newSmall(t)
	want := train(t, all, 12)
	first := newSmall(t)
	train(t, first, 5)
	require.NoError(t, first.save(path))
	second := newSmall(t)
	require.NoError(t, second.resume(path))
	assert.Equal(t, want[5:], train(t, second, 7))
	assert.Equal(t, all.curve, second.curve)

	other, err := newTrainer(small, smallText(), 8, 700, 1e-2)
	require.NoError(t, err)
	assert.Error(t, other.resume(path), "another seed")
	require.NoError(t, os.WriteFile(path, []byte("nonsense"), 0o600))
	assert.Error(t, newSmall(t).resume(path))
}

// TestGradients holds the gradient of every kind of weight against differences
// of the loss.
func TestGradients(t *testing.T) {
	m, err := newModel(small, rand.New(rand.NewPCG(1, 1)))
	require.NoError(t, err)
	b := &batch{cu: []int{0}}
	for _, s := range smallText().train {
		b.add(s)
	}
	dropout := func(layer int) *attention.Dropout { return &attention.Dropout{Seed: uint64(layer), Rate: 0.2} }
	loss := func() float64 {
		require.NoError(t, m.forward(b, dropout))
		return crossEntropy(m.logits, b.out)
	}
	require.NoError(t, m.forward(b, dropout))
	_, err = m.backward(b, dropout)
	require.NoError(t, err)
	for n, w := range m.weights {
		// Along the gradient the loss changes by its squared norm.
		var norm float64
		for _, g := range w.grad {
			norm += float64(g) * float64(g)
		}
		require.Positive(t, norm, "weight %d", n)
		step := float32(3e-3 / math.Sqrt(norm))
		values := append([]float32(nil), w.data...)
		move := func(by float32) float64 {
			for i := range w.data {
				w.data[i] = values[i] + by*w.grad[i]
			}
			return loss()
		}
		slope := (move(step) - move(-step)) / float64(2*step)
		copy(w.data, values)
		assert.InEpsilon(t, norm, slope, 0.02, "weight %d of %d rows and %d columns", n, w.rows, w.cols)
	}
}

// TestRun is the command from end to end.
func TestRun(t *testing.T) {
	dir := t.TempDir()
	var source bytes.Buffer
	source.WriteString("package p\n")
	for range 60 {
		source.WriteString("\n// f does it.\nfunc f(x int) int { return x + 1 }\n")
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "p.go"), source.Bytes(), 0o600))
	o := options{steps: 3, workers: 2, seed: 1, tokens: 100, rate: 1e-3, dir: dir, sample: 20, temperature: 1,
		checkpoint: filepath.Join(dir, "training"), plot: filepath.Join(dir, "curve.svg")}
	var out bytes.Buffer
	require.NoError(t, run(o, &out))
	assert.Contains(t, out.String(), "from step 0")
	o.steps = 4
	require.NoError(t, run(o, &out))
	assert.Contains(t, out.String(), "from step 3")
	svg, err := os.ReadFile(o.plot)
	require.NoError(t, err)
	assert.Contains(t, string(svg), "<svg")
	o.dir = t.TempDir()
	assert.ErrorContains(t, run(o, &out), "too few")
}
