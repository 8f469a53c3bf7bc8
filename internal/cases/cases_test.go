package cases

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestEveryCaseIsAProblem(t *testing.T) {
	assert.Len(t, Names(Generated), 100)
	assert.Len(t, Names(Real), 1)
	assert.Empty(t, Names("nothing"))
	for _, folder := range []string{Generated, Real} {
		for _, name := range Names(folder) {
			c, err := Load(folder, name)
			require.NoError(t, err)
			assert.Equal(t, name, c.Name)
			assert.Contains(t, c.Outputs(), "O", name)
			p, err := c.Problem()
			require.NoError(t, err, name)
			assert.NoError(t, p.Ref().Check(), name)
		}
	}
}

func TestLoadOfNothing(t *testing.T) {
	_, err := Load(Generated, "nothing")
	assert.Error(t, err)
}
