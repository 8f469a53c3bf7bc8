// Package casefile reads and writes the .case files in which expected values of
// attention are kept: format attn-oracle-1.
//
// A file is one attention problem, its inputs and its expected outputs:
//
//  1. one line of ASCII JSON, the [Header], padded with spaces and ended by a
//     newline; its length in bytes, newline included, is a multiple of 64;
//  2. the arrays, little-endian, in C order, in the order of Header.Arrays, each
//     starting at a multiple of 64 from the end of that line; then zero or more
//     bytes of padding up to a multiple of 64.
//
// [Read] trusts nothing: it validates the layout before it hands out an array,
// and allocates in proportion to the bytes that are really there.
// [Case.Problem] validates that the arrays describe an attention problem, and
// [Compare] says how far a result is from the expected values.
package casefile
