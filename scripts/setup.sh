#!/usr/bin/env bash
# Installs what building and testing need, and nothing that is there already: Debian packages
# through apt (with sudo where you are not root). Where there is no apt it lists what to install.
# Usage: scripts/setup.sh [build|dev]   dev adds what `.ci/run` and `make format` need.
set -euo pipefail
cd "$(dirname "$0")/.."
what=${1:-build}

# Debian package : what it is for : how to see that it is there without asking the package manager
needs=(
  "g++:the C++20 compiler:command -v g++"
  "cmake:the build (3.25 or later):command -v cmake"
  "ninja-build:the build:command -v ninja"
  "pkg-config:the test of the installed library:command -v pkg-config"
  "python3:the checks and the documentation's examples:command -v python3"
  "python3-venv:the project's Python environment, .venv:python3 -c 'import venv, ensurepip'"
  "libhwy-dev:vector instructions of the CPU backend (headers):header hwy/highway.h"
  "libgtest-dev:the tests:header gtest/gtest.h"
  "libcli11-dev:the command-line tool:header CLI/CLI.hpp"
  "nlohmann-json3-dev:the command-line tool:header nlohmann/json.hpp"
  "zlib1g-dev:pictures of the command-line tool:header zlib.h"
)
if [ "$what" = dev ]; then
  needs+=("clang-format:make format and its check:command -v clang-format"
          "chromium:the report's page in a browser (tests):command -v chromium")
fi

say() { printf 'setup: %s\n' "$*"; }

header() {
  local folder
  for folder in /usr/include /usr/local/include /opt/homebrew/include ${CPATH//:/ }; do
    [ -e "$folder/$1" ] && return 0
  done
  return 1
}

missing() {
  local entry
  for entry in "${needs[@]}"; do
    eval "${entry##*:}" >/dev/null 2>&1 || printf '%s\n' "$entry"
  done
}

CPATH=${CPATH:-}
mapfile -t absent < <(missing)
if [ ${#absent[@]} -eq 0 ]; then
  say "everything is here already"
  exit 0
fi

packages=()
for entry in "${absent[@]}"; do
  packages+=("${entry%%:*}")
done

if ! command -v apt-get >/dev/null; then
  say "there is no apt on this machine. Please install, with your package manager:"
  for entry in "${absent[@]}"; do
    what_for=${entry#*:}
    say "  ${entry%%:*} (Debian's name): ${what_for%%:*}"
  done
  exit 1
fi

run=()
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo >/dev/null; then
    say "please install as root: apt-get install ${packages[*]}"
    exit 1
  fi
  run=(sudo)
fi

say "apt-get install ${packages[*]}"
if ! "${run[@]}" apt-get update -q; then
  say "'apt-get update' failed: is there a network? Going on with the package lists that are here."
fi
if ! "${run[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -q --no-install-recommends "${packages[@]}"; then
  say "'apt-get install' failed. Without a network, install these from another source and repeat:"
  say "  ${packages[*]}"
  exit 1
fi
mapfile -t absent < <(missing)
if [ ${#absent[@]} -ne 0 ]; then
  say "still missing after the installation: ${absent[*]%%:*}"
  exit 1
fi
say "done"
