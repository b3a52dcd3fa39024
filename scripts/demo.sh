#!/bin/sh
# `make demo` for a fresh clone on a machine that may not have make yet.
# Arguments go to make, e.g. scripts/demo.sh CUDA=0.
set -e
cd "$(dirname "$0")/.."
echo "tessera demo: installs missing packages (up to 400 MB), builds the library and the tool in build/,"
echo "measures two examples and writes demo.html. About 3 minutes on 2 cores, seconds when repeated."
sh scripts/setup.sh
exec make demo "$@"
