"""Adapters to the libraries that a case is compared with, one file per library.

An adapter raises `Unavailable` with the reason for cases that it does not support, and tables show
the reason. It never computes something else instead.
"""

import importlib

# Name in files and tables -> (module, device). The module's PEERS has the adapter.
_MODULES = {
    "tessera_dense": ("tessera_dense", "cuda"),
    "cublaslt_dense": ("cublaslt", "cuda"),
    "cublaslt": ("cublaslt", "cuda"),
    "grouped_mm": ("grouped", "cuda"),
    "cublaslt_loop": ("grouped", "cuda"),
    "cusparse_bell": ("cusparse", "cuda"),
    "cusparse_bsr": ("cusparse", "cuda"),
    "torch_bsr": ("torch_bsr", "cuda"),
    "sdpa_flash": ("sdpa", "cuda"),
    "sdpa_cudnn": ("sdpa", "cuda"),
    "sdpa_efficient": ("sdpa", "cuda"),
    "flex": ("flex", "cuda"),
    "fa3": ("fa3", "cuda"),
    "fa4": ("fa4", "cuda"),
    "flashinfer": ("flashinfer", "cuda"),
    "openblas": ("openblas", "cpu"),
    "torch": ("torch_cpu", "cpu"),
    "scipy": ("scipy", "cpu"),
}


def peer_names(device=None):
    return [name for name, (_, on) in _MODULES.items() if device in (None, on)]


def get_peer(name):
    module = importlib.import_module("." + _MODULES[name][0], __name__)
    return module.PEERS[name]


def peers_for(case, device, wanted="all"):
    """The names of a case's peers: those of the device that support the operation, limited to those
    that the case and the caller want."""
    names = [name for name in peer_names(device) if get_peer(name).applies(case)]
    if case.peers is not None:
        names = [name for name in names if name in case.peers]
    if wanted != "all":
        names = [name for name in names if name in wanted]
    return names
