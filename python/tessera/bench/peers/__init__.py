"""Adapters to the libraries that a case is compared with, one file per library.

An adapter raises `Unavailable` with the reason for cases that it does not support, and tables show
the reason. It never computes something else instead.
"""

import importlib

# Name in files and tables -> (module and class of the adapter, device).
_ADAPTERS = {
    "tessera_dense": ("tessera_dense.TesseraDense", "cuda"),
    "tessera_bf16": ("tessera_bf16.TesseraBf16", "cuda"),
    "cublaslt_dense": ("cublaslt.CublasLtDense", "cuda"),
    "cublaslt": ("cublaslt.CublasLt", "cuda"),
    "torch_dense": ("torch_dense.TorchDense", "cuda"),
    "grouped_mm": ("grouped.GroupedMm", "cuda"),
    "cublaslt_loop": ("grouped.CublasLtLoop", "cuda"),
    "cusparse_bell": ("cusparse.BlockedEll", "cuda"),
    "cusparse_bsr": ("cusparse.BlockRows", "cuda"),
    "torch_bsr": ("torch_bsr.TorchBsr", "cuda"),
    "sdpa_flash": ("sdpa.Sdpa", "cuda"),
    "sdpa_cudnn": ("sdpa.Sdpa", "cuda"),
    "sdpa_efficient": ("sdpa.Sdpa", "cuda"),
    "flex": ("flex.Flex", "cuda"),
    "fa3": ("fa3.Fa3", "cuda"),
    "fa4": ("fa4.Fa4", "cuda"),
    "fa4_deterministic": ("fa4.Fa4Deterministic", "cuda"),
    "flashinfer": ("flashinfer.FlashInfer", "cuda"),
    "openblas": ("openblas.OpenBlas", "cpu"),
    "torch": ("torch_cpu.TorchCpu", "cpu"),
    "scipy": ("scipy.SciPy", "cpu"),
}


def peer_names(device=None):
    return [name for name, (_, on) in _ADAPTERS.items() if device in (None, on)]


def get_peer(name):
    module, _, adapter = _ADAPTERS[name][0].partition(".")
    return getattr(importlib.import_module("." + module, __name__), adapter)(name)


def peers_for(case, device, wanted="all"):
    """The names of a case's peers: those of the device that support the operation, limited to those
    that the case and the caller want."""
    names = [name for name in peer_names(device) if get_peer(name).applies(case)]
    if case.peers is not None:
        names = [name for name in names if name in case.peers]
    if wanted != "all":
        names = [name for name in names if name in wanted]
    return names
