package attention

import (
	"fmt"
	"math"
	"runtime"
	"slices"
	"sync"

	"github.com/seed-091431b3/attention/kernel"
)

// Config describes an attention layer. QueryHeads and HeadDim are required, the
// zero value of every other field is its default.
type Config struct {
	// QueryHeads is a multiple of KVHeads; query head h reads key/value head
	// h / (QueryHeads/KVHeads) (grouped-query attention, Ainslie et al. 2023).
	// KVHeads 0 means QueryHeads.
	QueryHeads, KVHeads int
	// HeadDim is the number of channels of Q and K, ValueDim that of V and O,
	// 0 meaning HeadDim.
	HeadDim, ValueDim int
	// Scale multiplies <q, k>; any finite number. nil: 1/sqrt(HeadDim). See
	// [Scale].
	Scale *float64
	// Softcap c > 0 replaces a logit z by c*tanh(z/c), before bias and mask.
	Softcap float64
	// ALiBi, one slope a query head, subtracts slope*|p-j| from the logit of
	// key j and a query at position p (Press et al. 2022, section 3). nil: none.
	ALiBi []float32
	// Mask applies to every sequence; a batch may add masks of its own.
	Mask Mask
	// Workers bounds the goroutines of a call. 0 means GOMAXPROCS; with 1 no
	// goroutine is started. The results do not depend on it.
	Workers int
	// Kernel names one of Kernels(); empty means the fastest. The results do
	// not depend on it.
	Kernel string
}

// Scale returns a pointer to s, for Config.
func Scale(s float64) *float64 { return &s }

// Operator computes attention as configured. It is safe for concurrent use, and
// keeps the scratch of its calls for the next ones, for as many at once as there
// are processors.
type Operator struct {
	cfg   Config
	ops   *kernel.Ops
	group int
	scale float64

	mu   sync.Mutex
	free []*call
}

// New returns an operator, or an error that names the field of cfg that is
// wrong.
func New(cfg Config) (*Operator, error) {
	if cfg.KVHeads == 0 {
		cfg.KVHeads = cfg.QueryHeads
	}
	if cfg.ValueDim == 0 {
		cfg.ValueDim = cfg.HeadDim
	}
	for _, f := range [...]struct {
		name string
		n    int
	}{
		{"QueryHeads", cfg.QueryHeads}, {"KVHeads", cfg.KVHeads},
		{"HeadDim", cfg.HeadDim}, {"ValueDim", cfg.ValueDim},
	} {
		if f.n < 1 || f.n > maxDim {
			return nil, fmt.Errorf("attention: %s: %d, must be from 1 to %d", f.name, f.n, maxDim)
		}
	}
	if cfg.QueryHeads%cfg.KVHeads != 0 {
		return nil, fmt.Errorf("attention: QueryHeads: %d, must be a multiple of KVHeads, which is %d", cfg.QueryHeads, cfg.KVHeads)
	}
	scale := 1 / math.Sqrt(float64(cfg.HeadDim))
	if cfg.Scale != nil {
		scale = *cfg.Scale
	}
	if math.IsNaN(scale) || math.IsInf(scale, 0) {
		return nil, fmt.Errorf("attention: Scale: %v, must be finite", scale)
	}
	if c := float32(cfg.Softcap); !(cfg.Softcap >= 0) || cfg.Softcap > math.MaxFloat32 || cfg.Softcap > 0 && c < 0x1p-100 {
		return nil, fmt.Errorf("attention: Softcap: %v, must be 0 (none) or a positive number that float32 holds", cfg.Softcap)
	}
	if cfg.ALiBi != nil && len(cfg.ALiBi) != cfg.QueryHeads {
		return nil, fmt.Errorf("attention: ALiBi: has %d slopes, there are %d query heads", len(cfg.ALiBi), cfg.QueryHeads)
	}
	for h, s := range cfg.ALiBi {
		if s-s != 0 {
			return nil, fmt.Errorf("attention: ALiBi: slope %d is %v, must be finite", h, s)
		}
	}
	if cfg.Workers < 0 || cfg.Workers > maxDim {
		return nil, fmt.Errorf("attention: Workers: %d, must be from 0 to %d", cfg.Workers, maxDim)
	}
	cfg.ALiBi = slices.Clone(cfg.ALiBi)
	ops, err := table(cfg.Kernel)
	if err != nil {
		return nil, err
	}
	return &Operator{cfg: cfg, ops: ops, group: cfg.QueryHeads / cfg.KVHeads, scale: scale}, nil
}

// maxDim bounds heads, channels and workers, so that a tile's size cannot overflow.
const maxDim = 1 << 20

// Kernel names the kernel in use, one of Kernels().
func (op *Operator) Kernel() string { return op.ops.Name }

func (op *Operator) workers() int {
	if op.cfg.Workers > 0 {
		return op.cfg.Workers
	}
	return runtime.GOMAXPROCS(0)
}

// checkBatch verifies the operator and what of a batch needs no data.
func (op *Operator) checkBatch(batch *Batch) error {
	if op.ops == nil {
		return fmt.Errorf("attention: Operator: the zero Operator is of no use, New makes one")
	}
	return batch.check(op.cfg.QueryHeads, op.cfg.Mask)
}

// acquire returns a call's state, one used before if there is any.
func (op *Operator) acquire() *call {
	op.mu.Lock()
	defer op.mu.Unlock()
	if n := len(op.free); n > 0 {
		c := op.free[n-1]
		op.free = op.free[:n-1]
		return c
	}
	c := &call{op: op}
	c.run = c.worker
	return c
}

// release keeps c for a later call, without what it points to of this one.
func (op *Operator) release(c *call) {
	c.forget()
	op.mu.Lock()
	defer op.mu.Unlock()
	if len(op.free) < runtime.GOMAXPROCS(0) {
		op.free = append(op.free, c)
	}
}
