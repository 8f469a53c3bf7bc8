// Charlm trains a small byte-level transformer language model on the source of
// the Go standard library: attention forward and backward by this library, on
// ragged batches without padding, the dense products by gonum's BLAS.
//
//	go run . -minutes 2
//
// The same seed gives the same losses to the last bit, whatever -workers says.
package main

import (
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"runtime"
	"time"
)

// options are the flags.
type options struct {
	minutes     float64
	steps       int
	workers     int
	seed        uint64
	tokens      int
	rate        float64
	checkpoint  string
	plot        string
	dir         string
	sample      int
	temperature float64
}

func main() {
	log.SetFlags(0)
	var o options
	flag.Float64Var(&o.minutes, "minutes", 2, "train for this long")
	flag.IntVar(&o.steps, "steps", 0, "train until this many steps are done, however long it takes (0: by -minutes)")
	flag.IntVar(&o.workers, "workers", 0, "processors to use (0: all); the losses do not depend on it")
	flag.Uint64Var(&o.seed, "seed", 1, "seed of the weights, the batches and the dropout")
	flag.IntVar(&o.tokens, "tokens", 256, "tokens of a batch, at least")
	flag.Float64Var(&o.rate, "rate", 2e-3, "learning rate after the warm-up")
	flag.StringVar(&o.checkpoint, "checkpoint", "", "file to save the training to, and to resume it from if it is there")
	flag.StringVar(&o.plot, "plot", "charlm.svg", "file for the learning curve, .svg or .png (empty: none)")
	flag.StringVar(&o.dir, "data", "", "folder of Go files to learn (empty: the standard library)")
	flag.IntVar(&o.sample, "sample", 300, "bytes of text to write at the end")
	flag.Float64Var(&o.temperature, "temperature", 0.8, "of the sample; 0 takes the likeliest byte")
	flag.Parse()
	if flag.NArg() > 0 {
		log.Fatalf("charlm: unexpected argument %q", flag.Arg(0))
	}
	if err := run(o, os.Stdout); err != nil {
		log.Fatal("charlm: ", err)
	}
}

func run(o options, out io.Writer) error {
	if o.minutes < 0 || o.steps < 0 || o.workers < 0 || o.tokens < 1 || o.rate <= 0 || o.sample < 0 || o.temperature < 0 {
		return fmt.Errorf("numbers must not be negative, and -tokens and -rate not zero")
	}
	if o.workers > 0 {
		// Both the attention and the BLAS start as many goroutines.
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(o.workers))
	}
	text, err := loadText(o.dir)
	if err != nil {
		return err
	}
	t, err := newTrainer(defaultShape, text, o.seed, o.tokens, o.rate)
	if err != nil {
		return err
	}
	if o.checkpoint != "" {
		if err := t.resume(o.checkpoint); err != nil {
			return err
		}
	}
	fmt.Fprintf(out, "%d functions, %d bytes of Go; unigram entropy %.3f nats a byte\n", len(text.train), text.bytes, text.entropy)
	fmt.Fprintf(out, "%d parameters, attention kernel %s, %d processors, from step %d\n",
		t.model.size(), t.model.kernel(), runtime.GOMAXPROCS(0), t.step)
	if err := t.train(o, out); err != nil {
		return err
	}
	held, err := t.heldOut()
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "held-out loss %.3f nats a byte (%.2f bits), unigram entropy %.3f\n", held, held/ln2, text.entropy)
	if o.checkpoint != "" {
		if err := t.save(o.checkpoint); err != nil {
			return err
		}
	}
	if o.plot != "" {
		if err := plotCurve(o.plot, t.curve, text.entropy); err != nil {
			return err
		}
		fmt.Fprintf(out, "learning curve in %s\n", o.plot)
	}
	if o.sample > 0 {
		s, err := t.model.sample(o.sample, o.temperature, o.seed)
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "\n%s\n", s)
	}
	return nil
}

// train runs steps until the time or their number is up.
func (t *trainer) train(o options, out io.Writer) error {
	start, saved, shown := time.Now(), time.Now(), time.Now()
	limit := time.Duration(o.minutes * float64(time.Minute))
	var sum float64
	var steps, tokens int
	t.model.attentionTime = 0
	for o.steps == 0 && time.Since(start) < limit || t.step < o.steps {
		loss, n, err := t.next()
		if err != nil {
			return err
		}
		sum, steps, tokens = sum+loss, steps+1, tokens+n
		if since := time.Since(shown); since > 5*time.Second {
			fmt.Fprintf(out, "step %5d  loss %.4f  %6.0f tokens/s  %2.0f %% of the time in attention\n",
				t.step, sum/float64(steps), float64(tokens)/since.Seconds(), 100*t.model.attentionTime.Seconds()/since.Seconds())
			shown, sum, steps, tokens, t.model.attentionTime = time.Now(), 0, 0, 0, 0
		}
		if o.checkpoint != "" && time.Since(saved) > time.Minute {
			if err := t.save(o.checkpoint); err != nil {
				return err
			}
			saved = time.Now()
		}
	}
	return nil
}
