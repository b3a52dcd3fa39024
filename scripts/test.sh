#!/bin/sh
# `make test` for a fresh clone on a machine that may not have make yet.
# Arguments go to make, e.g. scripts/test.sh TORCH=1.
set -e
cd "$(dirname "$0")/.."
echo "tessera test: installs missing packages (up to 400 MB; with TORCH=1 another 6 GB into .venv), builds"
echo "everything in build/ and runs all tests that need no GPU. About 5 minutes on 2 cores, 2 when"
echo "repeated; with the GPU backends (the default if a GPU is visible) about 15."
sh scripts/setup.sh
exec make test "$@"
