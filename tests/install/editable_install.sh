#!/bin/sh
# An editable installation can be imported from any folder. Importing sources without a build fails
# with a clear message. Reuses .venv and build/python of `make python`. Usage: editable_install.sh WORK_FOLDER
set -eu
cd "$(dirname "$0")/../.."
root=$PWD
mkdir -p "$1"
work=$(cd "$1" && pwd)

rm -rf "$work"
python3 -m venv "$work"
site=$("$work/bin/python3" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
"$root/.venv/bin/python3" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' >"$site/base.pth"
rm -rf "$work/sources"
cp -r "$root/python" "$work/sources"
if said=$(cd "$work/sources" && "$root/.venv/bin/python3" -c 'import tessera' 2>&1); then
  echo "editable_install: sources without a library were imported"
  exit 1
fi
case $said in
  *'ImportError: tessera: '*'holds the sources alone'*'pip install -e .'*) ;;
  *) echo "editable_install: unclear: $said"; exit 1 ;;
esac
"$work/bin/python3" -m pip install -q --disable-pip-version-check --no-build-isolation --no-deps \
  --config-settings=cmake.define.TESSERA_CUDA=OFF -e .
for folder in / "$root/python"; do
  (cd "$folder" && "$work/bin/python3" -c '
import sys
import numpy as np, tessera
root = sys.argv[1]
assert tessera.__file__.startswith(root + "/python"), tessera.__file__
q = np.ones((1, 64, 2, 16), np.float32)
assert (tessera.attention(q, q, q) == 1).all()
from pathlib import Path
assert Path(tessera.get_cmake_dir(), "tesseraConfig.cmake").exists(), tessera.get_cmake_dir()
print("editable_install: imported from", tessera.__file__)' "$root")
done
