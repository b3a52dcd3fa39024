"""The source tree of a measurement."""

import os
import subprocess


def find_tree(given=None):
    """The source tree that contains the given folder, which must be in one; by default that of the
    current folder, or None."""
    folder = os.path.abspath(given or ".")
    while True:
        if os.path.isdir(os.path.join(folder, "src", "kernels")):
            return folder
        parent = os.path.dirname(folder)
        if parent == folder and given:
            raise ValueError(f"--tree: expected a folder of tessera's source tree, got {given}")
        if parent == folder:
            return None
        folder = parent


def commit(tree):
    """The commit of the tree, with a "+" if files differ from it; None outside of git."""
    def git(*arguments):
        return subprocess.run(["git", "-C", tree, *arguments], capture_output=True, text=True,
                              check=True, timeout=30).stdout.strip()

    try:
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.SubprocessError):
        return None
