"""Finds NVIDIA's libraries: those of PyTorch, else those of the toolkit."""

import ctypes
import ctypes.util
import glob
import os
import sys

from .base import Unavailable


def load(name):
    """load("cublasLt") -> the library; PyTorch's copy comes first, so that both use it."""
    tried = []
    for path in _candidates(name):
        try:
            return ctypes.CDLL(path)
        except OSError as error:
            tried.append(str(error))
    raise Unavailable(f"lib{name} is not here: {tried[0] if tried else 'nothing found'}")


def _candidates(name):
    with open("/proc/self/maps", encoding="utf-8") as maps:
        loaded = {line.split()[-1] for line in maps if f"/lib{name}.so" in line}
    yield from sorted(loaded)
    for folder in sys.path:
        yield from sorted(glob.glob(os.path.join(folder, "nvidia", "*", "lib", f"lib{name}.so.*")))
    yield from (f"lib{name}.so.13", f"lib{name}.so.12", f"lib{name}.so")
    yield from sorted(glob.glob(f"/usr/local/cuda*/lib64/lib{name}.so*"))


CUDA_TYPES = {"f32": 0, "f16": 2, "bf16": 14}  # cudaDataType_t


def checker(library, describe):
    """A function that calls functions by name, and raises if the status is not zero. `describe`
    names the library's function that returns the text of a status."""
    words = getattr(library, describe)
    words.restype = ctypes.c_char_p

    def call(function, *arguments):
        status = getattr(library, function)(*arguments)
        if status != 0:
            raise Unavailable(f"{function}: {words(status).decode()}")

    return call


def address(array):
    return ctypes.c_void_p(array.data_ptr())


def current_stream():
    import torch

    return ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
