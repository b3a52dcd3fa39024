#!/usr/bin/env python3
"""Downloads the peers that attention is measured beside, as wheels for a machine without a network.

  tools/fetch_peers.py FOLDER                 all of them, for this Python
  tools/fetch_peers.py FOLDER fa3 --python 3.12

There: pip install --no-index --no-deps --target SITE FOLDER/*.whl, with SITE and, for fa4,
SITE/nvidia_cutlass_dsl/dsl_packages on PYTHONPATH. All of them require PyTorch for CUDA 13.
FlashInfer and FlashAttention-4 compile their kernels at first use.
"""

import argparse
import re
import subprocess
import sys
from pathlib import Path

TVM_FFI = "apache-tvm-ffi==0.1.15.post2"
# The versions that the committed results were measured with.
PEERS = {
    "fa3": ("fa3-fwd==0.0.3",),
    "fa4": ("flash-attn-4==4.0.0b36", "quack-kernels==0.6.5", "nvidia-cutlass-dsl-libs-base==4.8.1",
            "nvidia-cutlass-dsl-libs-core==4.8.1", "nvidia-cutlass-dsl-libs-cu13==4.8.1",
            "torch-c-dlpack-ext==0.1.5", TVM_FFI),
    "flashinfer": ("flashinfer-python==0.6.6", TVM_FFI),
}
GLIBC = (35, 34, 31, 28, 27, 24, 17)  # pip accepts a wheel only for a tag that it is given


def command(folder, peers, version):
    """pip's command line for these peers and a Python version such as "3.12"."""
    packages = dict.fromkeys(package for peer in peers for package in PEERS[peer])
    tags = [f"manylinux_2_{glibc}_x86_64" for glibc in GLIBC] + ["manylinux2014_x86_64"]
    return [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:",
            "--python-version", version, "--implementation", "cp",
            "--abi", "cp" + version.replace(".", ""), "--abi", "abi3", "--abi", "none",
            *(word for tag in tags for word in ("--platform", tag)), "--dest", str(folder),
            *packages]


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("peers", nargs="*", metavar="PEER", help=f"{', '.join(PEERS)} [all]")
    parser.add_argument("--python", default=f"{sys.version_info[0]}.{sys.version_info[1]}",
                        help="the version of the other machine's Python [this one's]")
    given = parser.parse_args(arguments)
    for peer in given.peers:
        if peer not in PEERS:
            parser.error(f"PEER: expected some of {', '.join(PEERS)}, got {peer!r}")
    if not re.fullmatch(r"3\.\d+", given.python):
        parser.error(f"--python: expected a version such as 3.12, got {given.python!r}")
    return subprocess.run(command(given.folder, given.peers or PEERS, given.python),
                          check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
