"""A hash of what decides how fast the kernels are: their sources, the tile tables and walks they
are built from, and the templates that generate them. Results say which hash they were measured
at."""

import hashlib
import os
import subprocess

FOLDERS = ("src/cuda", "src/plan/tiles")
FILES = ("src/plan/walk.hpp", "src/plan/list_walk.hpp", "src/plan/schedule.hpp",
         "src/plan/tile_table.hpp", "cmake/TesseraCuda.cmake", "cmake/row.cu.in",
         "cmake/launchers.cpp.in")


def find_tree(start="."):
    """The source tree that holds `start`, or None."""
    folder = os.path.abspath(start)
    while True:
        if os.path.isdir(os.path.join(folder, "src", "cuda")):
            return folder
        parent = os.path.dirname(folder)
        if parent == folder:
            return None
        folder = parent


def kernel_sources(tree):
    """Relative paths, sorted. Prose does not count."""
    found = [name for name in FILES if os.path.exists(os.path.join(tree, name))]
    for folder in FOLDERS:
        for where, _, names in os.walk(os.path.join(tree, folder)):
            found += [os.path.relpath(os.path.join(where, name), tree) for name in names
                      if not name.endswith(".md")]
    return sorted(name.replace(os.sep, "/") for name in found)


def source_hash(tree):
    digest = hashlib.sha256()
    for name in kernel_sources(tree):
        with open(os.path.join(tree, name), "rb") as file:
            content = file.read()
        digest.update(f"{name} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()[:16]


def commit(tree):
    """The commit of the tree, with a "+" where files differ from it; None outside of git."""
    def git(*arguments):
        return subprocess.run(["git", "-C", tree, *arguments], capture_output=True, text=True,
                              check=True, timeout=30).stdout.strip()

    try:
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.SubprocessError):
        return None
