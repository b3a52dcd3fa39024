#!/bin/sh
# Installs the package with pip into a new environment without CUTLASS, and checks what was built.
# Builds only a few kernels, to be fast. Usage: pip_install.sh WORK_FOLDER
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
bin/python3 -c 'import tessera; print("pip_install: tessera", tessera.__version__, "is imported")'
if ! readelf -S lib/python3*/site-packages/tessera/lib/libtessera.so | grep -q nv_fatbin; then
  echo "pip_install: libtessera.so has no GPU code"
  exit 1
fi
if ! grep -qs sm90_sddmm lib/python3*/site-packages/tessera/lib/machine_code.json; then
  echo "pip_install: no machine_code.json of these kernels beside libtessera.so"
  exit 1
fi
