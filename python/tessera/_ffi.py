"""The exports of libtessera_ffi, loaded once. Nothing here converts or checks: arguments are passed
on by position, in the order that ``src/ffi/problems.cpp`` reads them."""

from __future__ import annotations

import ctypes
import json
from importlib import metadata
from pathlib import Path

import tvm_ffi

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

attention = tvm_ffi.get_global_func("tessera.attention")
attention_backward = tvm_ffi.get_global_func("tessera.attention_backward")
merge_states = tvm_ffi.get_global_func("tessera.merge_states")
matmul = tvm_ffi.get_global_func("tessera.matmul")
sddmm = tvm_ffi.get_global_func("tessera.sddmm")
spgemm = tvm_ffi.get_global_func("tessera.spgemm")
list_blocks = tvm_ffi.get_global_func("tessera.list_blocks")
top_k_blocks = tvm_ffi.get_global_func("tessera.top_k_blocks")
transpose_lists = tvm_ffi.get_global_func("tessera.transpose_lists")
explain = tvm_ffi.get_global_func("tessera.explain")
check_tuning = tvm_ffi.get_global_func("tessera.check_tuning")
pattern = tvm_ffi.get_global_func("tessera.pattern")
read_matrix_market = tvm_ffi.get_global_func("tessera.read_matrix_market")
host_view = tvm_ffi.get_global_func("tessera.host_view")
version = tvm_ffi.get_global_func("tessera.version")
cuda_device_count = tvm_ffi.get_global_func("tessera.cuda_device_count")
dtype = tvm_ffi.dtype
Shape = tvm_ffi.Shape
