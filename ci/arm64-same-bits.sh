#!/usr/bin/env bash
# Computes case files on this processor and on an emulated arm64 one, and
# compares the results byte for byte.
set -euo pipefail
cd "$(dirname "$0")/.."
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
go build -o "$dir/here" ./cmd/attention
CGO_ENABLED=0 GOOS=linux GOARCH=arm64 go build -o "$dir/there" ./cmd/attention
n=0
for file in "$@"; do
  "$dir/here" run -o "$dir/here.case" "$file" 2>"$dir/error" || { grep -q 'dropout mask of its own' "$dir/error" && continue; cat "$dir/error"; exit 1; }
  qemu-aarch64-static "$dir/there" run -workers 2 -o "$dir/there.case" "$file"
  cmp "$dir/here.case" "$dir/there.case" || { echo "$file: other bits on arm64"; exit 1; }
  n=$((n + 1))
done
echo "$n cases have the same bits on both processors"
