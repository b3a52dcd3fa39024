#!/usr/bin/env python3
"""Checks names of rates and limits in the code, and the length of commit subjects.

  check_words.py [ROOT]        check a tree (default: the one that this script is in)
  check_words.py --self-test   prove that planted violations are found

Commits are checked from version 0.1 on; in a shallow clone, those that it has. Without a git
history, as in a source distribution, only names are checked.
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile

FOLDERS = ("include", "src", "apps", "bench", "cmake", "examples", "python", "scripts", "tools")
SUFFIXES = {".hpp", ".h", ".cpp", ".cu", ".cuh", ".py", ".sh", ".cmake", ".in"}

# A pattern of names, and what to write instead.
NAMES = (
    (re.compile(r"\bk(?:Most|Fewest)[A-Z]\w*"), "limits are kMax... and kMin..."),
    (re.compile(r"\b\w+_a_(?:head|tile|list|block|row)(?:_\w+)?\b"), "rates are ..._per_..."),
)

LONGEST_SUBJECT = 72
# Names of the tag of 0.1, and its last commit for clones without tags.
RELEASE = ("v0.1.0", "v0.1", "0deb97c7b5e4")


def names(root):
    found = []
    for path in sorted(path for folder in FOLDERS for path in (root / folder).rglob("*")):
        if path.suffix not in SUFFIXES or not path.is_file():
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            for pattern, instead in NAMES:
                found += [f"{path.relative_to(root).as_posix()}:{number}: {name}: {instead}"
                          for name in pattern.findall(line)]
    return found


def git(root, *words):
    """The output of git; None if it fails or is not installed."""
    # In a hook, these variables override -C.
    environment = {name: value for name, value in os.environ.items()
                   if name not in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE")}
    try:
        done = subprocess.run(["git", "-C", str(root), *words], check=False, env=environment,
                              capture_output=True, encoding="utf-8", errors="replace")
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def subjects(root, release=RELEASE):
    # Without a .git here, git would use the repository of an enclosing project.
    if not (root / ".git").exists():
        return []
    begin = next((name for name in release
                  if git(root, "rev-parse", "-q", "--verify", f"{name}^{{commit}}")), None)
    if begin is None and git(root, "rev-parse", "--is-shallow-repository") != "true":
        return []
    commits = git(root, "log", "--no-merges", "--format=%H %s",
                  "HEAD" if begin is None else f"{begin}..HEAD") or ""
    found = []
    for line in commits.splitlines():
        commit, _, subject = line.partition(" ")
        if len(subject) > LONGEST_SUBJECT:
            found.append(f"commit {commit[:7]}: a subject of {len(subject)} characters, expected "
                         f"at most {LONGEST_SUBJECT}: {subject}")
    return found


def self_test():
    most = "k" + "Most"  # in two parts, as this file is checked too
    rate = "tiles" + "_a_"
    good = {
        "src/core/a.cpp": "int kMaxTiles = tiles_per_head; int kMost = load_a(tile);\n",
        "python/tessera/a.py": "at_a_glance = row_of_a = tiles_at_rows\n",
        "tests/unit/a.cpp": f"int {most}Tiles = {rate}head;\n",
        "docs/a.md": f"{most}Tiles\n",
    }
    planted = {
        "src/walk/a.hpp": f"constexpr int {most}Tiles = 4;\n",
        "src/walk/b.hpp": f"constexpr int {most.replace('Most', 'Fewest')}Tiles = 4;\n",
        "src/kernels/cuda/a.cuh": f"int {rate}head = 1;\n",
        "apps/tessera/a.cpp": f"run.{rate}list();\n",
        "bench/a.cu": f"int num_{rate}block_max = 1;\n",
        "python/tessera/b.py": f"steps = {rate}row\n",
        "tools/a.sh": f"{rate}tile=1\n",
    }
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder) / "tree"

        def write(files):
            for name, text in files.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(text, encoding="utf-8")

        write(good)
        assert names(root) == [], names(root)
        write(planted)
        named = [line.split(":")[0] for line in names(root)]
        assert sorted(named) == sorted(planted), set(planted) ^ set(named)
        subjects_self_test(root)
    print("check_words: self-test passed")
    return 0


def subjects_self_test(root):
    assert subjects(root) == []  # no repository
    if git(root, "init", "-q") is None:
        print("check_words: git is not installed: commit subjects are not tested")
        return
    author = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")

    def commit(subject):
        made = git(root, *author, "commit", "-q", "--allow-empty", "--no-verify", "-m", subject)
        assert made is not None, subject

    commit("x" * 73)
    assert subjects(root) == []  # neither a tag nor the commit of 0.1
    git(root, "tag", RELEASE[0])
    commit("x" * 72 + "\n\n" + "y" * 90)
    assert subjects(root) == []
    commit("é" * 73)
    commit("z" * 74)
    lengths = [line.split(" characters")[0].rpartition(" ")[2] for line in subjects(root)]
    assert lengths == ["74", "73"], lengths
    shallow = root.parent / "shallow"
    assert git(root, "clone", "-q", "--depth", "1", "--no-tags", root.as_uri(), str(shallow)) == ""
    assert len(subjects(shallow)) == 1


def main(arguments):
    if arguments == ["--self-test"]:
        return self_test()
    root = pathlib.Path(arguments[0] if arguments else pathlib.Path(__file__).parents[1]).resolve()
    found = names(root) + subjects(root)
    for line in found:
        print(line, file=sys.stderr)
    if not found:
        print("check_words: names and commit subjects are fine")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
