#!/usr/bin/env bash
# Runs what the documents say: every `sh` block of README.md, docs/*.md and examples/**/README.md, page by page, in one
# shell each, in the repository; and `headrace check` on every `hr` block. Compares the generated pages with the code.
# Lines that begin with `make demo` are left out: CI runs it by itself.
set -euo pipefail
cd "$(dirname "$0")/.."
[ -x bin/headrace ] || make build
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export TMPDIR=$work # what the pages make with mktemp goes with it

# blocks LANGUAGE FILE prints the blocks of a language, one after another; with a third argument each into a file.
blocks() {
  awk -v lang="$1" -v out="${3:-}" '
    $0 == "```" lang { in_ = 1; n++; next }
    $0 == "```" { in_ = 0; next }
    in_ && out == "" { print }
    in_ && out != "" { print > (out "/block" n ".hr") }' "$2"
}

bin/headrace docs --check --dir docs
checked=0
for page in README.md docs/*.md examples/README.md examples/*/README.md; do
  mkdir -p "$work/hr/$page"
  blocks hr "$page" "$work/hr/$page"
  for f in "$work/hr/$page"/*.hr; do
    [ -e "$f" ] || continue
    bin/headrace check "$f" >/dev/null 2>"$work/out" || { echo "FAIL a module in $page does not check"; cat "$work/out"; exit 1; }
    checked=$((checked + 1))
  done
  blocks sh "$page" | sed '/^make demo/d' >"$work/run.sh"
  [ -s "$work/run.sh" ] || continue
  echo "== $page"
  sed 's/^/    /' "$work/run.sh"
  # A page may leave a server running in the background of its shell: it ends with the shell.
  if ! timeout 600 bash -euo pipefail -c 'trap "kill \$(jobs -p) 2>/dev/null || true; wait" EXIT; . "$0"' "$work/run.sh" >"$work/out" 2>&1; then
    echo "FAIL a command of $page"
    tail -40 "$work/out"
    exit 1
  fi
done
echo "docs ok: $checked modules checked, every command ran"
