//go:build !purego && !noasm

package attention

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestPredicatesNameWhatTheAssemblyRequires fails where a generated function
// uses an instruction set that its table's predicate does not ask for.
func TestPredicatesNameWhatTheAssemblyRequires(t *testing.T) {
	// CMOV and MMX+ (prefetching) are part of every amd64 processor. AVX-512
	// instructions on Y and X registers would add AVX512VL.
	avx2 := []string{"AVX", "AVX2", "FMA3", "BMI2", "F16C", "CMOV", "MMX+", "CPUID"}
	avx512 := append([]string{"AVX512F", "AVX512VL", "AVX512BW", "AVX512DQ"}, avx2...)
	text, err := os.ReadFile("kernel_amd64.s")
	require.NoError(t, err)
	functions := regexp.MustCompile(`(?m)^// func (\w+)\(.*\n// Requires: (.*)$`).FindAllStringSubmatch(string(text), -1)
	require.NotEmpty(t, functions)
	require.Equal(t, strings.Count(string(text), "\nTEXT "), len(functions), "functions without a Requires line")
	for _, f := range functions {
		allowed := avx2
		if strings.Contains(f[1], "AVX512") {
			allowed = avx512
		}
		for _, set := range strings.Split(f[2], ", ") {
			require.True(t, slices.Contains(allowed, set), "%s requires %s", f[1], set)
		}
	}
}

// TestAVX2UsesNoAVX512Register fails where an AVX2 function was given a register
// that only AVX-512 has, which no "Requires" line shows.
func TestAVX2UsesNoAVX512Register(t *testing.T) {
	text, err := os.ReadFile("kernel_amd64.s")
	require.NoError(t, err)
	high := regexp.MustCompile(`\b([XY](1[6-9]|2\d|3[01])|Z\d+|K[1-7])\b`)
	for _, f := range strings.Split(string(text), "\nTEXT ")[1:] {
		if name, _, _ := strings.Cut(f, "("); !strings.Contains(name, "AVX512") {
			require.Empty(t, high.FindString(f), name)
		}
	}
}
