package attention_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-091431b3/attention"
	"github.com/seed-091431b3/attention/internal/casefile"
	"github.com/seed-091431b3/attention/internal/caserun"
	"github.com/seed-091431b3/attention/internal/cases"
)

// TestCases holds every kernel to expected values that others computed.
func TestCases(t *testing.T) {
	for _, kernel := range attention.Kernels() {
		t.Run(kernel, func(t *testing.T) {
			for _, folder := range []string{cases.Generated, cases.Real} {
				for _, name := range cases.Names(folder) {
					t.Run(name, func(t *testing.T) {
						c, err := cases.Load(folder, name)
						require.NoError(t, err)
						checkCase(t, c, kernel)
					})
				}
			}
		})
	}
}

func checkCase(t *testing.T, c *casefile.Case, kernel string) {
	t.Helper()
	p, err := c.Problem()
	require.NoError(t, err)
	if p.GivenKeep() {
		t.Skip("the case gives a dropout mask of its own; the library's is a hash of a seed")
	}
	run, err := caserun.New(p, kernel, 1)
	require.NoError(t, err)
	require.NoError(t, run.Run())
	results := map[string]*caserun.Result{}
	for i := range run.Results {
		results[run.Results[i].Name] = &run.Results[i]
	}
	for _, name := range c.Outputs() {
		require.Contains(t, results, name)
		got, err := results[name].Compare(c)
		require.NoError(t, err)
		assert.True(t, got.OK, got)
	}
}
