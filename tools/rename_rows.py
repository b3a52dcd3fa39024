#!/usr/bin/env python3
"""Renames the kernel rows of version 0.1 in results and profiles. The map is bench/row_names.json;
other names stay.

Usage: tools/rename_rows.py FILE...
"""

import json
import re
import sys
from pathlib import Path

MAP = Path(__file__).resolve().parent.parent / "bench" / "row_names.json"


def renamed(text, names):
    longest_first = sorted(map(re.escape, names), key=len, reverse=True)
    return re.sub(rf"\b({'|'.join(longest_first)})\b", lambda match: names[match[1]], text)


def main(files):
    if not files or files[0].startswith("-"):
        print(__doc__, file=sys.stderr)
        return 2
    names = json.loads(MAP.read_text(encoding="utf-8"))
    failed = False
    for file in map(Path, files):
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            print(f"{file}: expected a text file: {error}", file=sys.stderr)
            failed = True
            continue
        new = renamed(text, names)
        if new != text:
            partial = file.with_name(file.name + ".partial")
            partial.write_text(new, encoding="utf-8")
            partial.replace(file)
        print(f"{file}: {'renamed' if new != text else 'nothing to rename'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
