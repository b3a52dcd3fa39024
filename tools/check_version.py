#!/usr/bin/env python3
"""Checks that the public header, CITATION.cff and the changelog have the same version.

  check_version.py [ROOT]        check a tree (default: the one that this script is in)
  check_version.py --self-test   prove that a wrong version is found
"""

import pathlib
import re
import sys
import tempfile

# The sections of a release by "Keep a Changelog".
SECTIONS = ("Added", "Changed", "Deprecated", "Removed", "Fixed", "Security")


def problems(root):
    def read(name):
        return (root / name).read_text(encoding="utf-8")

    header = read("include/tessera/version.hpp")
    version = re.search(r'TESSERA_VERSION_STRING "([^"]+)"', header)[1]
    numbers = ".".join(re.search(rf"TESSERA_VERSION_{part} (\d+)", header)[1]
                       for part in ("MAJOR", "MINOR", "PATCH"))
    cited = re.search(r"^version: (\S+)$", read("CITATION.cff"), re.MULTILINE)
    changelog = read("CHANGELOG.md")
    newest = re.search(r"^## (?:Unreleased: )?(\d\S*)", changelog, re.MULTILINE)
    found = [f"{name}: expected version {version}, got {other}" for name, other in (
        ("include/tessera/version.hpp", numbers),
        ("CITATION.cff", cited and cited[1]),
        ("CHANGELOG.md", newest and newest[1])) if other != version]
    found += [f"CHANGELOG.md: section '{title}': expected one of {', '.join(SECTIONS)}"
              for title in re.findall(r"^### (.*)$", changelog, re.MULTILINE)
              if title not in SECTIONS]
    return found


def self_test():
    header = ('#define TESSERA_VERSION_MAJOR 1\n#define TESSERA_VERSION_MINOR 2\n'
              '#define TESSERA_VERSION_PATCH 3\n#define TESSERA_VERSION_STRING "1.2.3"\n')
    good = {"include/tessera/version.hpp": header,
            "CITATION.cff": "cff-version: 1.2.0\nversion: 1.2.3\n",
            "CHANGELOG.md": "# Changelog\n\n## Unreleased: 1.2.3\n\n### Fixed\n- a\n\n## 1.2.2\n"}
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)

        def found(**changed):
            for name, text in good.items():
                path = root / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(changed.get(path.suffix[1:], text), encoding="utf-8")
            return problems(root)

        assert found() == []
        assert len(found(hpp=header.replace("PATCH 3", "PATCH 4"))) == 1
        assert len(found(cff="version: 1.2.2\n")) == 1
        assert len(found(md=good["CHANGELOG.md"].replace("1.2.3", "1.2.4"))) == 1
        assert len(found(md=good["CHANGELOG.md"].replace("Fixed", "Repaired"))) == 1
    print("check_version: self-test passed")


def main():
    if sys.argv[1:] == ["--self-test"]:
        self_test()
        return 0
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parents[1])
    found = problems(root)
    for line in found:
        print(f"check_version: {line}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
