# Bare Debian systems made by debootstrap, for scripts that source this file (as root). in_root and
# bare_root leave nothing behind: mounts live in a namespace of their own and end with it.
# shellcheck shell=bash

mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}
roots=$(mktemp -d "${TMPDIR:-/tmp}/tessera-roots.XXXXXX")
trap 'rm -rf --one-file-system "$roots"' EXIT

# The environment of every command in a root; the network as this machine knows it: settings of pip,
# proxies, and (bare_root) name servers and certificates.
root_environment=("HOME=/root" "LANG=C.UTF-8" "CI=true"
  "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
if [ -e /etc/ssl/certs/ca-certificates.crt ]; then
  root_environment+=("PIP_CERT=/etc/ssl/lent-certificates.crt")
fi
for name in http_proxy https_proxy no_proxy PIP_INDEX_URL PIP_EXTRA_INDEX_URL PIP_TRUSTED_HOST \
    PIP_DEFAULT_TIMEOUT; do
  if [ -n "${!name:-}" ]; then root_environment+=("$name=${!name}"); fi
done

# bare_root SUITE: makes $roots/SUITE, a bare root of that Debian release.
bare_root() {
  local suite=$1 root=$roots/$1
  printf '\n== %s: a bare root\n' "$suite"
  if ! debootstrap --variant=minbase "$suite" "$root" "$mirror" >"$roots/$suite.log" 2>&1; then
    tail -n 20 "$roots/$suite.log"
    return 1
  fi
  mkdir -p "$root/etc/ssl" "$root/lent/tessera" "$root/usr/local/cuda"
  cp -L /etc/resolv.conf /etc/hosts "$root/etc/"
  if [ -e /etc/ssl/certs/ca-certificates.crt ]; then
    cp -L /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/lent-certificates.crt"
  fi
}

# in_bare_root SUITE TOOLKIT COMMAND...: runs the command in that root, which sees this tree in
# /lent/tessera and, unless TOOLKIT is empty, that folder as /usr/local/cuda.
in_bare_root() {
  local root=$roots/$1 toolkit=$2
  shift 2
  # shellcheck disable=SC2016  # expanded by the inner shell
  unshare --mount --propagation private bash -euc '
    root=$1 toolkit=$2
    shift 2
    mount -t proc proc "$root/proc"
    mount --rbind /dev "$root/dev"
    mount --bind . "$root/lent/tessera"
    if [ -d "$toolkit" ]; then mount --bind -o ro "$toolkit" "$root/usr/local/cuda"; fi
    exec chroot "$root" "$@"' in_bare_root "$root" "$toolkit" \
    /usr/bin/env -i "${root_environment[@]}" "$@"
}

# in_root SUITE COMMAND...: runs the command in a bare root of that Debian release, in a clone of HEAD,
# with the CUDA toolkit of this machine. Builds in one root share C++ objects through ccache, which
# begins empty. Its key omits warning options, as the Python package is built without them: a source
# must first be compiled with its warnings. CXX has one value for all builds because the compiler's name
# is in the key too.
in_root() {
  local suite=$1
  shift
  bare_root "$suite"
  # shellcheck disable=SC2016
  in_bare_root "$suite" "$(readlink -f "${CUDA_HOME:-/usr/local/cuda}")" sh -euc '
    apt-get update -q >/dev/null
    apt-get install -y -q --no-install-recommends git ccache >/dev/null 2>&1
    export CXX=c++ CMAKE_CXX_COMPILER_LAUNCHER=ccache CCACHE_DEPEND=1 CCACHE_IGNOREOPTIONS="-W*"
    git config --global --add safe.directory /lent/tessera/.git
    git clone -q /lent/tessera "$HOME/tessera"
    cd "$HOME/tessera"
    exec "$@"' sh "$@"
  rm -rf --one-file-system "${roots:?}/$suite"
}
