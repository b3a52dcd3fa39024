"""The GPUs that a library has code for: `gpu_code.py LIBRARY` prints its machine code and PTX by
architecture, and fails if one that wheels promise is missing. It parses the section .nv_fatbin
itself, since not every toolkit has cuobjdump."""

import struct
import sys
from collections import Counter
from pathlib import Path

CONTAINER = 0xBA55ED50
KINDS = {1: "PTX", 2: "machine code"}
PROMISED = {("machine code", 80), ("PTX", 80), ("machine code", 90)}


def section(elf: bytes, name: bytes) -> bytes:
    (table,) = struct.unpack_from("<Q", elf, 0x28)
    size, count, names_at = struct.unpack_from("<HHH", elf, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", elf, table + i * size) for i in range(count)]
    names = elf[headers[names_at][4]:]
    for name_at, _, _, _, offset, length in headers:
        if names[name_at:names.index(b"\0", name_at)] == name:
            return elf[offset:offset + length]
    return b""


def code(fatbin: bytes) -> Counter[tuple[str, int]]:
    """The number of images of each kind and architecture."""
    found: Counter[tuple[str, int]] = Counter()
    at = 0
    while at + 16 <= len(fatbin):
        magic, _, header, size = struct.unpack_from("<IHHQ", fatbin, at)
        if magic != CONTAINER:
            at += 8  # containers are padded to 8 bytes
            continue
        image, end = at + header, at + header + size
        while image < end:
            kind, _, header, size = struct.unpack_from("<HHIQ", fatbin, image)
            (architecture,) = struct.unpack_from("<I", fatbin, image + 28)
            found[KINDS.get(kind, f"kind {kind}"), architecture] += 1
            image += header + size
        at = end
    return found


def main() -> int:
    found = code(section(Path(sys.argv[1]).read_bytes(), b".nv_fatbin"))
    texts = [f"{count} x {kind} sm_{architecture}"
             for (kind, architecture), count in sorted(found.items())]
    print("GPU code:", ", ".join(texts) or "none")
    missing = PROMISED - set(found)
    for kind, architecture in sorted(missing):
        print(f"GPU code: no {kind} for sm_{architecture}")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
