"""The machine code of a measurement, and whether the kernels have changed since.

tools/machine_code.py hashes the instructions of each kernel at build time and writes
machine_code.json: {"toolkit": version of nvcc, "kernels": {row: {instance: hash}}}. A GPU build
installs this file next to the library; bench/machine_code.json of a source tree is the committed
copy. In this module `kernels` is the value of "kernels", or None without a file.

Rows that run by another library have no machine code of ours. What stands for it is the version of
the library that ran: `installed` adds it under the library's name. A source tree fixes no version,
so that it makes no such figure stale.
"""

import hashlib
import os
import re

from .cases import LISTS
from .files import read_json

# Names of dtypes in the names of instances.
DTYPES = {"f16": "__half", "bf16": "__nv_bfloat16", "f32": "float", "e4m3": "__nv_fp8_e4m3"}
NAMED = re.compile(rf"\b(?:{'|'.join(DTYPES.values())})\b")
# The entry for operations that make lists, which choose no kernel row.
MAKES_LISTS = "prepare/mask_lists"
# Families that run by a library: part of their rows' names.
LIBRARIES = ("cublaslt",)


def installed():
    """The kernels of the installed library; None for a CPU build."""
    from .patterns import import_tessera

    ffi = import_tessera()._ffi
    kernels = kernels_of(os.path.join(ffi.package_folder, "lib", "machine_code.json"))
    return kernels and with_libraries(kernels, {"cublaslt": ffi.cublaslt_version()})


def with_libraries(kernels, versions):
    """The kernels, and libraries by their versions; an empty version is no library."""
    return kernels | {name: {version: hashlib.sha256(f"{name} {version}".encode()).hexdigest()[:16]}
                      for name, version in versions.items() if version}


def library_of(row):
    """The library that a row runs by; None of a kernel of ours."""
    return next((name for name in LIBRARIES if f"_{name}_" in (row or "")), None)


def committed(tree):
    """The kernels of a source tree."""
    return kernels_of(os.path.join(tree, "bench", "machine_code.json"))


def kernels_of(path):
    return read_json(path)["kernels"] if os.path.exists(path) else None


def code_of(kernels, row, dtype):
    """A hash of the instances of a row that name this dtype or none; None for an unknown row."""
    hashes = []
    for instance, code in (kernels or {}).get(row, {}).items():
        dtypes = set(NAMED.findall(instance))
        if not dtypes or DTYPES[dtype] in dtypes:
            hashes.append(code)
    return hashlib.sha256("\n".join(sorted(hashes)).encode()).hexdigest()[:16] if hashes else None


def code_of_call(kernels, op, row, dtype):
    """`code_of` the kernels that an operation ran; row: None for operations that make lists."""
    return code_of(kernels, MAKES_LISTS if op in LISTS else library_of(row) or row, dtype)


def is_stale(op, row, dtype, code, kernels):
    """Whether a figure measured with this code is not one of these kernels. A figure whose code is
    not known is stale."""
    library = library_of(row)
    if code is not None and library and library not in kernels:
        return False
    return code is None or code != code_of_call(kernels, op, row, dtype)


def stale(records, kernels):
    """The stale records among those of a GPU; none if `kernels` is None."""
    return [record for record in records
            if kernels is not None and "unavailable" not in record["ours"]
            and is_stale(record["op"], record["ours"]["row"], record["params"]["dtype"],
                         record["ours"]["machine_code"], kernels)]


def in_words(records, kernels):
    """The number of stale records and the reason, as a list of one text, or an empty list."""
    found = stale(records, kernels)
    if not found:
        return []
    unknown = sum(record["ours"]["machine_code"] is None for record in found)
    reasons = []
    if unknown < len(found):
        reasons.append("its kernel has changed since" if len(found) == 1 else
                       "their kernels have changed since")
    if unknown:
        reasons.append(f"{'its' if len(found) == 1 else 'their'} machine code is unknown")
    return [f"{len(found)} of {len(records)} case{'s' if len(records) > 1 else ''} "
            f"{'is' if len(found) == 1 else 'are'} stale: {' or '.join(reasons)}"]
