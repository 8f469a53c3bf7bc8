package attention

import (
	"fmt"

	"github.com/seed-091431b3/attention/kernel"
)

// Tile is one strip of queries by one block of keys, the unit in which a kernel
// walks over a sequence. A strip holds rows of a group of query heads, position
// by position, so neighbouring strips may share a position.
type Tile struct {
	FirstQuery, EndQuery int // FirstQuery <= i < EndQuery
	FirstKey, EndKey     int // FirstKey <= j < EndKey
	// Visibility is Hidden for a tile that is skipped, Visible for one that
	// takes no mask work, Mixed for one of which a part is masked or skipped.
	Visibility Visibility
	// Pairs is the number of queries times keys computed, heads of the group
	// counted apart: what the tile costs.
	Pairs int
}

// Tiles returns how the operator's kernel walks over a sequence for the first
// group of query heads, strip by strip: what a mask costs.
func (op *Operator) Tiles(batch Batch, sequence int) ([]Tile, error) {
	if err := op.checkBatch(&batch); err != nil {
		return nil, err
	}
	if sequence < 0 || sequence >= batch.Sequences() {
		return nil, fmt.Errorf("attention: sequence: %d, the batch has %d", sequence, batch.Sequences())
	}
	c := op.acquire()
	defer op.release(c)
	c.batch = batch
	s := batch.sequence(sequence)
	task := kernel.Task{
		Sequence: s, Group: op.group, DK: op.cfg.HeadDim, DV: op.cfg.ValueDim,
		Last: s.Queries * op.group, Mask: c.mask(sequence, kernel.Mask{}),
	}
	var tiles []Tile
	if task.Last == 0 {
		return tiles, nil
	}
	for _, t := range kernel.Tiles(nil, op.ops, new(kernel.Workspace), &task) {
		tiles = append(tiles, Tile(t))
	}
	return tiles, nil
}
