#!/usr/bin/env bash
# Rewrites the golden files: runs, with -update, the tests of every file that compares with some.
set -euo pipefail
cd "$(dirname "$0")/.."
grep -rlE --include='*_test.go' 'golden\.(Check|Update)\b' . | sort | while read -r file; do
  tests=$(sed -nE 's/^func (Test[A-Z][A-Za-z0-9_]*)\(t \*testing\.T\).*/\1/p' "$file" | paste -sd '|')
  go test "$(dirname "$file")" -run "^($tests)\$" -update
done
