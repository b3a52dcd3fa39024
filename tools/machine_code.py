#!/usr/bin/env python3
"""Hashes of the instructions of the GPU kernels. Renaming a kernel does not change its hash.

  machine_code.py collect BUILD TOOLKIT   writes BUILD/machine_code.json from the notes in
                                          BUILD/rows/machine_code of compilations
  machine_code.py compare FILE OTHER      lists kernels whose code differs; fails if there is one
  machine_code.py accept FILE             copies FILE to bench/machine_code.json
  machine_code.py check FILE              fails if FILE and bench/machine_code.json come from one
                                          toolkit and differ

A file is {"toolkit": version of nvcc, "kernels": {row: {instance: hash}}}. A row is a kernel row,
or the source of kernels that have no row, such as "prepare/select".
"""

import hashlib
import json
import re
import struct
import subprocess
import sys
from pathlib import Path

from check_results import ROOT, bench_module

files = bench_module("files")
COMMITTED = ROOT / "bench" / "machine_code.json"


def text_sections(cubin):
    """{mangled name: instructions} of the functions in an ELF file for a GPU."""
    if cubin[:5] != b"\x7fELF\x02":
        raise ValueError("expected a 64-bit ELF file")
    (table,) = struct.unpack_from("<Q", cubin, 0x28)
    size, count, names_at = struct.unpack_from("<HHH", cubin, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", cubin, table + i * size) for i in range(count)]
    names = cubin[headers[names_at][4]:]
    found = {}
    for name_at, _, _, _, offset, length in headers:
        name = names[name_at:names.index(b"\0", name_at)].decode()
        if name.startswith(".text."):
            found[name.removeprefix(".text.")] = cubin[offset:offset + length]
    return found


def demangled(names):
    """The names by c++filt, without namespaces, return types and parameters."""
    done = subprocess.run(["c++filt", *names], capture_output=True, text=True, check=True)
    plain = (re.sub(r"[a-z]\w*::|\(anonymous namespace\)::", "", line)
             for line in done.stdout.splitlines())
    return [re.sub(r"^void |\([^()]*\)$", "", line) for line in plain]


def instances(cubins):
    """{instance: hash} of all kernels in these files."""
    found = {}
    for cubin in cubins:  # one for each architecture
        for name, code in text_sections(cubin).items():
            found[name] = found.get(name, b"") + code
    labels = demangled(found) if found else []
    hashes = {}
    for label, code in sorted(zip(labels, found.values(), strict=True)):
        if label in hashes:
            raise ValueError(f"two kernels are called {label}")
        hashes[label] = hashlib.sha256(code).hexdigest()[:16]
    return hashes


def row_of(object_file):
    """"sm90_merge" of ".../rows/sm90_merge.cu.o", "prepare/select" of ".../prepare/select.cu.o"."""
    path = Path(object_file)
    stem = path.name.removesuffix(".o").removesuffix(".cu")
    return stem if path.parent.name == "rows" else f"{path.parent.name}/{stem}"


def note(folder, object_file, kept):
    """Writes the hashes of the *.cubin files in `kept`, of one compilation, for `collect`."""
    row = row_of(object_file)
    found = instances(path.read_bytes() for path in sorted(Path(kept).glob("*.cubin")))
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{row.replace('/', '.')}.json").write_text(json.dumps({row: found}))


def collect(folder, object_files, toolkit):
    kernels = {}
    for object_file in object_files:
        row = row_of(object_file)
        path = folder / f"{row.replace('/', '.')}.json"
        if not path.exists():
            raise SystemExit(f"machine_code: {row}: no machine code was noted when {object_file} "
                             "was compiled: remove that file and build again")
        kernels |= json.loads(path.read_text())
    return {"toolkit": toolkit, "kernels": dict(sorted(kernels.items()))}


def read(path):
    try:
        content = files.read_json(path)
    except files.Unreadable as error:
        sys.exit(f"machine_code: {error}: expected a file that `collect` wrote")
    if not isinstance(content, dict) or not {"toolkit", "kernels"} <= set(content):
        sys.exit(f"machine_code: {path}: expected a file that `collect` wrote, got another JSON "
                 "file")
    return content


def differences(one, other):
    """A line per row whose code differs. Only hashes count, not names of instances."""
    found = []
    for row in sorted({*one["kernels"], *other["kernels"]}):
        first, second = (side["kernels"].get(row) for side in (one, other))
        if first is None or second is None:
            found.append(f"{row}: only in the {'second' if first is None else 'first'}")
        elif sorted(first.values()) != sorted(second.values()):
            changed = [name for name, code in second.items() if code not in first.values()]
            found.append(f"{row}: {len(changed)} of {len(second)} kernels differ: "
                         + "; ".join(changed))
    return found


def main(arguments):
    match arguments:
        case ["collect", build, toolkit, *object_files]:
            build = Path(build)
            files.write_json(build / "machine_code.json",
                             collect(build / "rows" / "machine_code", object_files, toolkit))
        case ["accept", file]:
            files.write_json(COMMITTED, read(file))
        case ["compare", first, second]:
            return tell(differences(read(first), read(second)))
        case ["check", file]:
            built, committed = read(file), read(COMMITTED)
            if built["toolkit"] != committed["toolkit"]:
                print(f"machine_code: not compared: the toolkit is {built['toolkit']}, "
                      f"bench/machine_code.json is of {committed['toolkit']}")
                return 0
            return tell(differences(committed, built))
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


def tell(found):
    for line in found:
        print(f"machine_code: {line}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
