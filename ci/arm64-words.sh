#!/usr/bin/env bash
# Assembles every WORD of the arm64 files again, from the GNU syntax behind it,
# and compares the codes.
set -euo pipefail
cd "$(dirname "$0")/.."
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
for file in "$@"; do
  sed -n 's|^\tWORD \$0x\([0-9a-f]*\) // \(.*\)$|\1 \2|p' "$file" >"$dir/words"
  cut -d' ' -f1 "$dir/words" >"$dir/want"
  cut -d' ' -f2- "$dir/words" >"$dir/asm.s"
  aarch64-linux-gnu-as -march=armv8-a "$dir/asm.s" -o "$dir/asm.o"
  aarch64-linux-gnu-objcopy -O binary -j .text "$dir/asm.o" "$dir/asm.bin"
  od -An -v -tx4 -w4 "$dir/asm.bin" | tr -d ' ' >"$dir/got"
  diff "$dir/want" "$dir/got" >"$dir/diff" || { echo "$file: codes that are not what they say:"; head -20 "$dir/diff"; exit 1; }
  echo "$file: $(wc -l <"$dir/want") words are what they say"
done
