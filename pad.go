package attention

import "fmt"

// Pack copies a padded batch [sequences, length, width] to a ragged one
// [tokens, width]: of every sequence the tokens that cu gives it, which come
// first. Width is the number of elements of a token, as heads*dim; the elements
// may be of any type, so that what goes with a token can be packed alike.
//
// Forward can read a padded batch as it is (see BSHD and BHSD); Pack is for
// what comes before and after it.
func Pack[T any](dst, src []T, cu []int, length, width int) error {
	if err := checkPad("src", src, "dst", dst, cu, length, width); err != nil {
		return err
	}
	for b := range sequences(cu) {
		at := b * length * width
		copy(dst[cu[b]*width:cu[b+1]*width], src[at:])
	}
	return nil
}

// Unpack copies a ragged batch [tokens, width] to a padded one [sequences,
// length, width], the inverse of Pack. Padding is filled with zeros.
func Unpack[T any](dst, src []T, cu []int, length, width int) error {
	if err := checkPad("dst", dst, "src", src, cu, length, width); err != nil {
		return err
	}
	for b := range sequences(cu) {
		to := dst[b*length*width : (b+1)*length*width]
		n := copy(to, src[cu[b]*width:cu[b+1]*width])
		clear(to[n:])
	}
	return nil
}

func sequences(cu []int) int { return max(len(cu)-1, 0) }

// checkPad verifies a padded and a ragged batch against each other.
func checkPad[T any](paddedName string, padded []T, raggedName string, ragged []T, cu []int, length, width int) error {
	if length < 0 {
		return fmt.Errorf("attention: length: %d, must not be negative", length)
	}
	if width < 0 {
		return fmt.Errorf("attention: width: %d, must not be negative", width)
	}
	n := sequences(cu)
	if len(cu) > 0 {
		if err := checkCu("cu_seqlens", cu); err != nil {
			return err
		}
	}
	for b := range n {
		if l := cu[b+1] - cu[b]; l > length {
			return fmt.Errorf("attention: cu_seqlens: sequence %d has %d tokens, length is %d", b, l, length)
		}
	}
	tokens := 0
	if n > 0 {
		tokens = cu[n]
	}
	if want, ok := index(tokens, width, 0, 0, 0, 0, 0); !ok || len(ragged) != want {
		return fmt.Errorf("attention: %s: has %d elements, %d tokens of %d need %d", raggedName, len(ragged), tokens, width, want)
	}
	rows, ok := index(n, length, 0, 0, 0, 0, 0)
	want, fits := index(rows, width, 0, 0, 0, 0, 0)
	if !ok || !fits || len(padded) != want {
		return fmt.Errorf("attention: %s: has %d elements, %d sequences of %d tokens of %d need %d", paddedName, len(padded), n, length, width, want)
	}
	if regionOf("", padded).overlaps(regionOf("", ragged)) {
		return fmt.Errorf("attention: dst: overlaps src")
	}
	return nil
}
