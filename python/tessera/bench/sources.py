"""Hashes of what decides how fast the kernels are, one for products and one for attention: the rows
that their kernels are generated from, and the sources that these are compiled from. Results say
which they were measured at, and are stale where those of their operations differ from the tree's.
"""

import hashlib
import os
import re
import subprocess

ATTENTION, PRODUCTS = KINDS = ("attention", "products")
# Tables of rows, and what makes a kernel of a row.
TABLES = ("src/select/sm80_rows.hpp", "src/select/sm90_rows.hpp")
GENERATOR = ("src/select/tile_table.hpp", "cmake/TesseraCuda.cmake", "cmake/row.cu.in")
# Kernels that come from no row.
PLAIN = {
    ATTENTION: ("src/kernels/cuda/prepare/mask_lists.cu",),
    PRODUCTS: ("src/kernels/cuda/prepare/transpose.cu", "src/kernels/cuda/spgemm/order.cu",
               "src/kernels/cuda/spgemm/symbolic.cu"),
}
INCLUDE = re.compile(r'^#include "(src/[\w./]+)"', re.MULTILINE)
ROW = re.compile(r'\.name = "(?P<name>(?P<backend>[a-z0-9]+)_(?P<family>[a-z0-9]+)\w*)"'
                 r'.*?ops\(\{Op::(?P<op>\w+).*?\.tile = (?P<tile>\{[^}]*\})', re.DOTALL)


def kind_of(op):
    """Of an operation, as results and as the tables of rows name them."""
    return PRODUCTS if op in ("matmul", "bsr_matmul", "sddmm", "spgemm") else ATTENTION


def find_tree(given=None):
    """The source tree that holds the given folder, which has to be in one; or this folder, else
    None."""
    folder = os.path.abspath(given or ".")
    while True:
        if os.path.isdir(os.path.join(folder, "src", "cuda")):
            return folder
        parent = os.path.dirname(folder)
        if parent == folder and given:
            raise ValueError(f"--tree: expected a folder of tessera's source tree, got {given}")
        if parent == folder:
            return None
        folder = parent


def kernel_sources(tree, kind):
    """(the rows, as texts; relative paths, sorted): the files that the kernels include, directly or
    not, and beside a header what implements it. Of that the includes do not count: a planner's
    file knows the kernels of all kinds. Nor does what rows say of themselves in prose."""
    rows, left = [], [*GENERATOR, *PLAIN[kind]]
    for table in TABLES:
        for row in ROW.finditer(_read(tree, table)):
            if kind_of(row["op"]) == kind:
                rows.append(f"{row['name']} {' '.join(row['tile'].split())}")
                own, shared = (f"src/cuda/{folder}{row['family']}/launch.cuh"
                               for folder in (f"{row['backend']}/", ""))
                left.append(own if os.path.exists(os.path.join(tree, own)) else shared)
    included, beside = set(), set()
    while left:
        name = left.pop()
        if name in included:
            continue
        included.add(name)
        left += INCLUDE.findall(_read(tree, name))
        stem = os.path.splitext(name)[0]
        beside.update(stem + end for end in (".cpp", ".cu")
                      if os.path.exists(os.path.join(tree, stem + end)))
    return rows, sorted(included | beside)


def _read(tree, name):
    with open(os.path.join(tree, name), encoding="utf-8") as file:
        return file.read()


def source_hashes(tree):
    """{kind: hash}."""
    hashes = {}
    for kind in KINDS:
        rows, names = kernel_sources(tree, kind)
        digest = hashlib.sha256("\n".join(rows).encode())
        for name in names:
            content = _read(tree, name).encode()
            digest.update(f"{name} {len(content)}\n".encode())
            digest.update(content)
        hashes[kind] = digest.hexdigest()[:16]
    return hashes


def measured_at(result, records=None):
    """The hashes of a result's records, sorted; all of them, or of a result without any, unless
    told. Older results have one for all kernels, which is no tree's any more."""
    hashes = result["source_hash"]
    if not isinstance(hashes, dict):
        return [hashes]
    ops = [record["op"] for record in (result["cases"] if records is None else records)]
    kinds = {kind_of(op) for op in ops} or hashes
    return sorted({hashes[kind] for kind in kinds})


def stale_hashes(measured, current):
    """Those of `measured` that are not among the tree's, {kind: hash}; none where one of the two is
    not known."""
    return [] if current is None else sorted(set(measured) - {None, *current.values()})


def commit(tree):
    """The commit of the tree, with a "+" where files differ from it; None outside of git."""
    def git(*arguments):
        return subprocess.run(["git", "-C", tree, *arguments], capture_output=True, text=True,
                              check=True, timeout=30).stdout.strip()

    try:
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.SubprocessError):
        return None
