#!/bin/sh
# Installs the package with pip as a user would, into a new environment that has no CUTLASS, and asks
# what was built. Only a few kernels, to be quick. Usage: pip_install.sh WORK_FOLDER
set -eu
cd "$(dirname "$0")/../.."
mkdir -p "$1"
work=$(cd "$1" && pwd)

rm -rf "$work"
python3 -m venv "$work"
"$work/bin/python3" -m pip install . --config-settings=build-dir="$work/build" \
  --config-settings=cmake.define.TESSERA_KERNELS='sm90_sddmm.*' >"$work/log" 2>&1 ||
  { tail -n 40 "$work/log"; exit 1; }
last=$(grep 'Successfully installed' "$work/log")
echo "$last"
case $last in
  *tessera-*+cu1*) ;;
  *) echo "pip_install: expected a version that ends in +cu1.."; exit 1 ;;
esac
cd "$work"
bin/python3 -c '
import tessera
rows = [line for line in str(tessera.explain("matmul", *[__import__("numpy").ones((64, 64), "float32")] * 2)).splitlines()]
assert not any("sm90_sddmm" in row and "not in this build" in row for row in rows), rows
print("pip_install: tessera", tessera.__version__, "works")'
