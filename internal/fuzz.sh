#!/usr/bin/env bash
# Runs every fuzz target of the module for a while each: internal/fuzz.sh 60s
set -euo pipefail
cd "$(dirname "$0")/.."
each=${1:-20s}
grep -rn --include='*_test.go' -E '^func Fuzz[A-Za-z0-9_]+\(' . | sed -E 's|^\./(.*)/[^/]*\.go:[0-9]+:func (Fuzz[A-Za-z0-9_]+)\(.*|\1 \2|' | sort -u |
  while read -r dir target; do
    echo "== $dir $target"
    go test "./$dir" -run '^$' -fuzz "^$target\$" -fuzztime "$each"
  done
