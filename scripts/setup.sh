#!/bin/sh
# Installs the Debian packages that building and testing require and that are missing, with apt
# (through sudo if you are not root). Without apt it lists the missing packages.
# Usage: scripts/setup.sh [GROUP...]
#   torch    what the tests with PyTorch require
#   dev      what `make format`, `make tidy`, .ci/run and `make release-check` require
set -eu
cd "$(dirname "$0")/.."

say() { printf 'setup: %s\n' "$*"; }

# Debian package | purpose | a command that succeeds if its contents are installed
needs='g++|the C++20 compiler|command -v g++
make|the commands of the README|command -v make
cmake|the build (3.25 or later)|command -v cmake
ninja-build|the build|command -v ninja
pkg-config|the test of the installed library|command -v pkg-config
python3|the Python package, checks, examples of the docs|command -v python3
python3-venv|the Python environment of the project, .venv|python3 -c "import venv, ensurepip"
libhwy-dev|vector instructions of the CPU backend (headers)|header hwy/highway.h
libgtest-dev|the tests|header gtest/gtest.h
libcli11-dev|the command-line tool|header CLI/CLI.hpp
nlohmann-json3-dev|the command-line tool|header nlohmann/json.hpp'
for group in "$@"; do
  case $group in
    build) ;;
    torch) needs="$needs
python3-dev|torch.compile|python_header" ;;
    dev) needs="$needs
clang-format|make format|command -v clang-format
clang-tidy|scripts/tidy.sh|command -v clang-tidy
clang|the thread sanitizer|command -v clang++
libomp-dev|the thread sanitizer, clang-tidy|libomp" ;;
    *) say "unknown group '$group': expected torch or dev"; exit 2 ;;
  esac
done

header() {
  for folder in /usr/include /usr/local/include /opt/homebrew/include $(echo "${CPATH:-}" | tr : ' ')
  do
    if [ -e "$folder/$1" ]; then return 0; fi
  done
  return 1
}

python_header() {
  python3 -c 'import os, sys, sysconfig
sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))'
}

libomp() { echo '#include <omp.h>' | clang++ -fopenmp -fsyntax-only -x c++ -; }

# Prints the lines of `needs` whose command fails.
missing() {
  echo "$needs" | while IFS='|' read -r package purpose check; do
    eval "$check" >/dev/null 2>&1 </dev/null || echo "$package|$purpose"
  done
}

# Prints apt's progress per package in steps of 20%; its other lines go to the log.
progress() {
  last=
  while IFS= read -r line; do
    case $line in
      dlstatus:*|pmstatus:*)
        rest=${line#*:*:} percent=${rest%%[.:]*}
        case $line in dlstatus:*) now=downloaded ;; *) now=installed ;; esac
        case $1$percent in install|install*[!0-9]*|update*) continue ;; esac
        now="$now $((percent / 20 * 20))%"
        if [ "$now" != "$last" ]; then say "  $now"; last=$now; fi ;;
      *) printf '%s\n' "$line" >>"$log" ;;
    esac
  done
}

# Runs apt-get quietly. Returns its exit status, and shows the end of its output if it failed.
apt() {
  : >"$log"
  { { $as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -o APT::Status-Fd=1 "$@" 2>&1
      echo "exit $?" >"$log.status"; } | progress "$1"; }
  if [ "$(cat "$log.status")" = "exit 0" ]; then return 0; fi
  tail -n 15 "$log"
  return 1
}

absent=$(missing)
if [ -z "$absent" ]; then
  say "everything is installed already"
  exit 0
fi
packages=$(echo "$absent" | cut -d'|' -f1 | tr '\n' ' ')

if ! command -v apt-get >/dev/null; then
  say "there is no apt on this machine. Please install with your package manager (Debian's names):"
  echo "$absent" | while IFS='|' read -r package purpose; do say "  $package: $purpose"; done
  exit 1
fi
as_root=
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo >/dev/null; then
    say "please install as root: apt-get install $packages"
    exit 1
  fi
  as_root=sudo
fi

log=$(mktemp)
trap 'rm -f "$log" "$log.status"' EXIT
say "installs with apt: $packages"
if ! apt update; then
  say "'apt-get update' failed: is there a network? Going on with the present package lists."
fi
# shellcheck disable=SC2086  # a list of packages
if ! apt install -y --no-install-recommends $packages; then
  say "'apt-get install' failed. Without a network, install these from another source and repeat:"
  say "  $packages"
  exit 1
fi
absent=$(missing)
if [ -n "$absent" ]; then
  say "still missing after the installation: $(echo "$absent" | cut -d'|' -f1 | tr '\n' ' ')"
  exit 1
fi
say "done"
