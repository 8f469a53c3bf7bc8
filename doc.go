// Package attention computes exact attention on CPUs for ragged batches.
package attention
