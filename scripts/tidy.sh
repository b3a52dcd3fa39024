#!/usr/bin/env bash
# clang-tidy over the sources of the library, with the checks of .clang-tidy; any finding fails.
# Usage: scripts/tidy.sh [--no-analyzer] [FILE...]   default: all of src/, about 8 minutes on 2 cores
#   --no-analyzer   without clang-analyzer-*, which takes two thirds of the time
set -euo pipefail
cd "$(dirname "$0")/.."
checks=()
if [ "${1:-}" = --no-analyzer ]; then
  checks=('--checks=-clang-analyzer-*')
  shift
fi
command -v clang-tidy >/dev/null || scripts/setup.sh dev
scripts/venv.sh test

# A build folder of its own, which is configured but not built, except for a generated header.
options=(-DTESSERA_TESTS=OFF -DTESSERA_TOOL=OFF -DTESSERA_PYTHON=ON -DCMAKE_BUILD_TYPE=Release
  "-DPython_EXECUTABLE=$PWD/.venv/bin/python3")
if PATH="$PATH:/usr/local/cuda/bin" command -v nvcc >/dev/null; then
  scripts/venv.sh cuda
  options+=(-DTESSERA_CUDA=ON)
else
  echo "tidy: skips src/kernels/cuda, as there is no nvcc"
fi
mkdir -p build/tidy/ffi/generated
cmake -S . -B build/tidy -G Ninja "${options[@]}" >build/tidy.log 2>&1 || { cat build/tidy.log; exit 1; }
.venv/bin/python3 tools/signatures_header.py build/tidy/ffi/generated/signatures.hpp

mapfile -t files < <(python3 - "$PWD" "$@" <<'PYTHON'
import json, os, sys
root, wanted = sys.argv[1], {os.path.abspath(name) for name in sys.argv[2:]}
with open("build/tidy/compile_commands.json", encoding="utf-8") as file:
    known = {entry["file"] for entry in json.load(file)}
for name in sorted(known):
    if name.startswith(f"{root}/src/") and name.endswith(".cpp") and (not wanted or name in wanted):
        print(name)
PYTHON
)
echo "tidy: ${#files[@]} sources"
printf '%s\0' "${files[@]}" | xargs -0 -n 1 -P "$(nproc)" clang-tidy --quiet -p build/tidy \
  ${checks[@]+"${checks[@]}"} --warnings-as-errors='*' 2>build/tidy.log || { grep -v ' warnings\? ' build/tidy.log || true; exit 1; }
echo "tidy: no finding"
