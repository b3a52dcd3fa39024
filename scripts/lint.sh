#!/usr/bin/env bash
# ruff, codespell, mypy and tools/check_words.py over the tree; pyproject.toml configures them. All of
# them run, even if one of them fails.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/venv.sh test lint

failed=
check() {
  printf 'lint: %s\n' "$1"
  "$@" || failed="$failed $1"
}
spelling() { git ls-files -z | xargs -0 .venv/bin/codespell; }

check .venv/bin/ruff check python tools tests examples bench
check spelling
check .venv/bin/mypy
check tools/check_words.py
if [ -n "$failed" ]; then
  echo "lint: failed:$failed" >&2
  exit 1
fi
