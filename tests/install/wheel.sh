#!/bin/sh
# Installs a wheel into a new environment and uses its parts: the Python package, the tool, and the C++
# library from a user's program. No GPU is needed. Usage: wheel.sh WHEEL WORK_FOLDER
set -eu
wheel=$(realpath "$1")
here=$(dirname "$(realpath "$0")")
mkdir -p "$2"
work=$(cd "$2" && pwd)
fail() { echo "wheel: $*"; exit 1; }

rm -rf "$work"
python3 -m venv "$work/env"
bin=$work/env/bin
"$bin/python3" -m pip install -q --disable-pip-version-check "$wheel"
cd "$work"

"$bin/python3" - "$(basename "$wheel")" <<'PYTHON'
import sys
from importlib import metadata

import numpy as np
import tessera

name = sys.argv[1]
assert "-manylinux_" in name and f"tessera-{metadata.version('tessera')}-py3-none-" in name, name

rng = np.random.default_rng(0)
q, k, v = rng.standard_normal((3, 1, 128, 2, 32), dtype=np.float32)
scores = np.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(32)
scores[..., np.triu(np.ones((128, 128), bool), 1)] = -np.inf
weights = np.exp(scores - scores.max(-1, keepdims=True))
expected = np.einsum("bhqk,bkhd->bqhd", weights / weights.sum(-1, keepdims=True), v)
np.testing.assert_allclose(tessera.attention(q, k, v, causal=True), expected, rtol=1e-4, atol=1e-5)

dense = rng.standard_normal((64, 96), dtype=np.float32)
pruned = tessera.BsrMatrix.prune(dense, block=16, density=0.5)
x = rng.standard_normal((96, 24), dtype=np.float32)
np.testing.assert_allclose(tessera.matmul(pruned, x), pruned.to_dense() @ x, rtol=1e-4, atol=1e-4)
assert 0 < np.abs(pruned.to_dense() - dense).max()

if "+cu" in name:  # planning works for an absent GPU
    half = np.zeros((1, 4096, 8, 128), np.float16)
    explanation = tessera.explain("attention", half, half, half, device="h100")
    assert explanation["supported"], str(explanation)
print("wheel:", name, "attention and a BSR product on the CPU are right")
PYTHON

# The tool, as the command that pip installs and by python -m. It starts this Python.
"$bin/tessera" info >info.txt
grep -q "$(basename "$wheel" | sed 's/tessera-\([0-9.]*\).*/\1/')" info.txt || fail "tessera info: $(cat info.txt)"
"$bin/python3" -m tessera verify --count 1 >verify.txt 2>&1 || fail "verify: $(cat verify.txt)"
"$bin/tessera" bench --help >bench.txt || fail "tessera bench: $(cat bench.txt)"

# The libraries that a machine must have: none of CUDA.
package=$("$bin/python3" -c 'import tessera, os; print(os.path.dirname(tessera.__file__))')
for file in "$package"/lib/*.so "$package/bin/tessera"; do
  readelf -d "$file" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p'
done | sort -u >needed.txt
if grep -vE '^(lib(c|m|pthread|dl|rt|stdc\+\+|gcc_s)\.so\.[0-9]+|ld-linux-x86-64\.so\.2|libtessera\.so|libtvm_ffi\.so|libgomp-[0-9a-f]+\.so.*)$' needed.txt; then
  fail "the libraries above are required, but neither in the wheel nor on every system"
fi

# C++: a user's program with the library, the headers and the CMake package of the wheel.
{
  cmake -S "$here/consumer" -B "$work/consumer" -DCMAKE_BUILD_TYPE=Release \
    -Dtessera_DIR="$("$bin/python3" -c 'import tessera; print(tessera.get_cmake_dir())')"
  cmake --build "$work/consumer"
} >log.txt 2>&1 || fail "the consumer was not built: $(cat log.txt)"
"$work/consumer/consumer" >/dev/null
ldd "$work/consumer/consumer" | grep -q "libtessera.so => $package/lib/" ||
  fail "the consumer loads another libtessera: $(ldd "$work/consumer/consumer")"
echo "wheel: find_package(tessera) finds it, and a C++ program runs"

case $(basename "$wheel") in
  *+cu*) "$bin/python3" "$here/gpu_code.py" "$package/lib/libtessera.so" ;;
esac
echo "wheel: $(stat -c %s "$wheel") bytes, $(du -sb "$package" | cut -f1) installed"
