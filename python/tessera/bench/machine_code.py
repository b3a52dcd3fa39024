"""The machine code of a measurement, and whether the kernels have changed since.

tools/machine_code.py hashes the instructions of each kernel at build time and writes
machine_code.json: {"toolkit": version of nvcc, "kernels": {row: {instance: hash}}}. A GPU build
installs this file next to the library; bench/machine_code.json of a source tree is the committed
copy. In this module `kernels` is the value of "kernels", or None without a file.
"""

import hashlib
import os
import re

from .cases import LISTS
from .files import read_json

# Names of dtypes in the names of instances.
DTYPES = {"f16": "__half", "bf16": "__nv_bfloat16", "f32": "float"}
NAMED = re.compile(rf"\b(?:{'|'.join(DTYPES.values())})\b")
# The entry for operations that make lists, which choose no kernel row.
MAKES_LISTS = "prepare/mask_lists"


def installed():
    """The kernels of the installed library; None for a CPU build."""
    from .patterns import import_tessera

    folder = import_tessera()._ffi.package_folder
    return kernels_of(os.path.join(folder, "lib", "machine_code.json"))


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
    return code_of(kernels, MAKES_LISTS if op in LISTS else row, dtype)


def is_stale(op, row, dtype, code, kernels):
    """Whether a figure was measured with other code than that of these kernels, or with unknown
    code."""
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
