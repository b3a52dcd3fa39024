"""The exports of libtessera_ffi, loaded once. Nothing here converts or checks: operations are
called with the inputs and the outputs of their signatures."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import tvm_ffi

from tessera import _signatures
from tessera._signatures import REQUIRED, Signature

tvm_ffi.register_error("NotImplementedError", NotImplementedError)
tvm_ffi.register_error("OSError", OSError)


def _package_folder() -> Path:
    """Where lib/ is: beside this file, or, for an editable installation, in site-packages."""
    here = Path(__file__).parent
    if (here / "lib" / "libtessera_ffi.so").exists():
        return here
    try:
        distribution = metadata.distribution("tessera")
        origin = json.loads(distribution.read_text("direct_url.json") or "{}")
    except metadata.PackageNotFoundError:
        origin = {}
    if origin.get("dir_info", {}).get("editable"):
        for file in distribution.files or ():
            if file.name == "libtessera_ffi.so":
                return Path(str(file.locate())).parent.parent
    raise ImportError(
        f"tessera: {here} holds the sources alone, without the built library. Install the package "
        "(`pip install .`, `pip install -e .` or `make python` in the repository) and import it "
        "from another folder")


package_folder = _package_folder()
_library = ctypes.CDLL(str(package_folder / "lib" / "libtessera_ffi.so"))


def _export(signature: Signature) -> Callable[..., Any]:
    """The export of an operation, called by the names of its arguments or in their order; what is
    not given has its default. A function of exactly these parameters is made, as a call of it costs
    a tenth of a microsecond more than one of the export."""
    names = [x.name for x in signature.exported]
    parameters = [name if x.default is REQUIRED else f"{name}={x.default!r}"
                  for name, x in zip(names, signature.exported, strict=True)]
    if any("=" in x for x in parameters):  # outputs, which follow, have no default
        first = len(signature.inputs)
        parameters = [*parameters[:first], *(f"{name}=None" for name in names[first:])]
    code = (f"def {signature.name}({', '.join(parameters)}):\n"
            f"    return export({', '.join(names)})\n")
    made = {"export": tvm_ffi.get_global_func(f"tessera.{signature.name}")}
    exec(compile(code, f"<export {signature.name}>", "exec"), made)
    return made[signature.name]


attention = _export(_signatures.ATTENTION)
# Both return whether `out` has the shape and a dtype of the result: if not, nothing has been done.
plain_attention = _export(_signatures.PLAIN_ATTENTION)
plain_attention_export = tvm_ffi.get_global_func("tessera.plain_attention")  # in the export's order
attention_backward = _export(_signatures.ATTENTION_BACKWARD)
merge_states = _export(_signatures.MERGE_STATES)
matmul = _export(_signatures.MATMUL)
plain_matmul = tvm_ffi.get_global_func("tessera.plain_matmul")  # in the order of its signature
linear = _export(_signatures.LINEAR)
sddmm = _export(_signatures.SDDMM)
spgemm = _export(_signatures.SPGEMM)
quantize = _export(_signatures.QUANTIZE)
append = _export(_signatures.APPEND)
list_blocks = _export(_signatures.LIST_BLOCKS)
top_k_blocks = _export(_signatures.TOP_K_BLOCKS)
transpose_lists = _export(_signatures.TRANSPOSE_LISTS)
plan = tvm_ffi.get_global_func("tessera.plan")
explain = tvm_ffi.get_global_func("tessera.explain")
pattern = tvm_ffi.get_global_func("tessera.pattern")
read_matrix_market = tvm_ffi.get_global_func("tessera.read_matrix_market")
host_view = tvm_ffi.get_global_func("tessera.host_view")
version = tvm_ffi.get_global_func("tessera.version")
cublaslt_version = tvm_ffi.get_global_func("tessera.cublaslt_version")
cuda_device_count = tvm_ffi.get_global_func("tessera.cuda_device_count")
dtype = tvm_ffi.dtype
Shape = tvm_ffi.Shape
