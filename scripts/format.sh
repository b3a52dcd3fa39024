#!/usr/bin/env bash
# clang-format over the C++ and CUDA files of the tree: `format.sh format` rewrites them, `format-check`
# fails if one would change.
set -euo pipefail
cd "$(dirname "$0")/.."
mode=${1:-format}
command -v clang-format >/dev/null || scripts/setup.sh dev

mapfile -t files < <(find include src apps tests bench examples -type f \
  \( -name '*.hpp' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' -o -name '*.h' \) | sort)
if [ "$mode" = format ]; then
  clang-format -i "${files[@]}"
else
  clang-format --dry-run --Werror "${files[@]}"
  echo "format: ${#files[@]} files are as clang-format would write them"
fi
