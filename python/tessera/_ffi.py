"""The exports of libtessera_ffi, loaded once. Nothing here converts or checks: arguments are passed
on by position, in the order that ``src/ffi/problems.cpp`` reads them."""

from __future__ import annotations

import ctypes
from pathlib import Path

import tvm_ffi

tvm_ffi.register_error("NotImplementedError", NotImplementedError)
tvm_ffi.register_error("OSError", OSError)

_library = ctypes.CDLL(str(Path(__file__).parent / "lib" / "libtessera_ffi.so"))

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
