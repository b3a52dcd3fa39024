"""The source tree of a measurement."""

import os
import subprocess
from pathlib import Path


def find_tree(given=None):
    """The source tree that holds the given folder, which has to be in one; or this folder, else
    None."""
    folder = Path(os.path.abspath(given or "."))
    for one in (folder, *folder.parents):
        if (one / "src" / "kernels").is_dir():
            return str(one)
    if given:
        raise ValueError(f"--tree: expected a folder of tessera's source tree, got {given}")
    return None


def commit(tree):
    """The commit of the tree, with a "+" if files differ from it; None outside of git."""
    def git(*arguments):
        return subprocess.run(["git", "-C", tree, *arguments], capture_output=True, text=True,
                              check=True, timeout=30).stdout.strip()

    try:
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.SubprocessError):
        return None
