package kernel

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestPlan: strips cover the rows, none starts behind them, and those that
// cover what the main strip leaves over cost the least.
func TestPlan(t *testing.T) {
	for _, strips := range [][]Strip{
		{{Width: 8, Cost: 8000}},
		{{Width: 32, Cost: 33000}, {Width: 48, Cost: 49000}, {Width: 16, Cost: 18400}},
		{{Width: 16, Cost: 18800}, {Width: 24, Cost: 24500}, {Width: 8, Cost: 9900}},
		{{Width: 48, Cost: 100}, {Width: 1, Cost: 50}},
	} {
		ops := &Ops{Strips: strips}
		least := []int{0} // cost of covering so many rows
		for rows := 1; rows <= 500; rows++ {
			best := -1
			for _, s := range strips {
				if c := s.Cost + least[max(rows-s.Width, 0)]; best < 0 || c < best {
					best = c
				}
			}
			least = append(least, best)
			var covers [2*MaxLanes + 1]cover
			plan := ops.plan(nil, rows, &covers)
			again := ops.plan(nil, rows, &covers)
			require.Equal(t, plan, again)
			lanes, cost := 0, 0
			for _, i := range plan {
				require.Less(t, lanes, rows, "%d rows: a strip starts behind them", rows)
				lanes += strips[i].Width
				cost += strips[i].Cost
			}
			require.GreaterOrEqual(t, lanes, rows)
			if rows <= 2*MaxLanes {
				assert.Equal(t, best, cost, "cost of %d rows", rows)
			}
		}
		assert.Empty(t, ops.plan(nil, 0, new([2*MaxLanes + 1]cover)))
	}
}
