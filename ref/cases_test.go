package ref_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-091431b3/attention/internal/casefile"
	"github.com/seed-091431b3/attention/internal/cases"
	"github.com/seed-091431b3/attention/ref"
)

// unitFloat64 is the rounding error of float64. The generated cases were
// computed in wider arithmetic, and the reference is held to the same number of
// these units as a float32 kernel is to float32's.
const unitFloat64 = 1.0 / (1 << 53)

func TestGeneratedCases(t *testing.T) {
	worst := map[string]float64{}
	for _, name := range cases.Names(cases.Generated) {
		t.Run(name, func(t *testing.T) {
			c, err := cases.Load(cases.Generated, name)
			require.NoError(t, err)
			results := results(t, c)
			for _, output := range c.Outputs() {
				require.Contains(t, results, output)
				r, err := casefile.CompareUnit(c, output, results[output], unitFloat64)
				require.NoError(t, err)
				assert.True(t, r.OK, r)
				worst[output] = max(worst[output], r.Worst)
			}
		})
	}
	t.Logf("worst errors in units of 2^-53 · magnitude: %v", worst)
}

func TestDropoutHashOfGeneratedCases(t *testing.T) {
	tested := 0
	for _, name := range cases.Names(cases.Generated) {
		c, err := cases.Load(cases.Generated, name)
		require.NoError(t, err)
		p, err := c.Problem()
		require.NoError(t, err)
		if p.Keep == nil || p.GivenKeep() {
			continue
		}
		tested++
		assert.Equal(t, p.Keep, hashed(p), name)
	}
	assert.Equal(t, 4, tested)
}

// hashed returns what the hash keeps, laid out like p.Keep.
func hashed(p *casefile.Problem) []bool {
	var keep []bool
	for b, s := range p.Seqs {
		for h := range p.Hq {
			for i := range s.Q {
				rate := p.DropoutP
				if p.Rates != nil {
					rate = float64(p.Rates[p.CuQ[b]+i])
				}
				for j := range s.KV {
					keep = append(keep, ref.Kept(*p.Seed, uint64(b), h, i, j, rate))
				}
			}
		}
	}
	return keep
}

func TestRealCase(t *testing.T) {
	for _, name := range cases.Names(cases.Real) {
		c, err := cases.Load(cases.Real, name)
		require.NoError(t, err)
		compareOutput(t, c)
	}
}

func TestPublishedCases(t *testing.T) {
	testFolder(t, "published")
}

func TestRealFolder(t *testing.T) {
	testFolder(t, "real")
}

// testFolder compares all cases of a folder that is kept outside the module.
func testFolder(t *testing.T, folder string) {
	dir := filepath.Join(sharedCases(t), folder)
	files, err := filepath.Glob(filepath.Join(dir, "*.case"))
	require.NoError(t, err)
	require.NotEmpty(t, files, "no cases in %s", dir)
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			c, err := casefile.ReadFile(file)
			require.NoError(t, err)
			require.Positive(t, c.ToleranceAbs)
			compareOutput(t, c)
		})
	}
}

// sharedCases returns the folder shared/cases beside the module. Where it is
// absent, the test is skipped, but fails in CI.
func sharedCases(t *testing.T) string {
	root, err := filepath.Abs(".")
	require.NoError(t, err)
	for !exists(filepath.Join(root, "go.mod")) {
		require.NotEqual(t, root, filepath.Dir(root), "the test does not run inside a module")
		root = filepath.Dir(root)
	}
	dir := filepath.Join(root, "..", "shared", "cases")
	if !exists(dir) {
		require.NotEqual(t, "true", os.Getenv("CI"), "CI must have the cases in %s", dir)
		t.Skipf("the cases of others are not in %s", dir)
	}
	return dir
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// compareOutput holds O of the reference against that of c.
func compareOutput(t *testing.T, c *casefile.Case) {
	r, err := casefile.Compare(c, "O", results(t, c)["O"])
	require.NoError(t, err)
	assert.True(t, r.OK, r)
}

// results runs the reference on c, and returns what it computes under the names
// that cases use.
func results(t *testing.T, c *casefile.Case) map[string][]float64 {
	p, err := c.Problem()
	require.NoError(t, err)
	r := p.Ref()
	out, g := ref.Forward(r), ref.Backward(r)
	return map[string][]float64{
		"O": out.O, "LSE": out.LSE,
		"dQ": g.DQ, "dK": g.DK, "dV": g.DV,
		"dBias": slices.Concat(g.DBias...), "dSinks": g.DSinks,
	}
}
