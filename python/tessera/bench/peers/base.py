"""The base of adapters."""

import importlib
import importlib.metadata
import sys
import warnings


class Unavailable(Exception):
    """A peer cannot run a case; the message is the reason."""


class Peer:
    """`ops` are its operations; `applies` excludes cases for which it is no peer. `refuse` returns
    the reason why it does not support a case, without imports; `prepare` returns a `Prepared` or
    raises `Unavailable`."""

    ops: tuple = ()
    experts: tuple = (False,)  # supports cases without experts (False), with experts (True)
    fp8 = False  # supports e4m3
    module = "torch"

    def __init__(self, name):
        self.name = name

    def version(self):
        """The version. Raises Unavailable if a required module is missing."""
        return need(self.module).__version__

    def applies(self, case):
        return (case.op in self.ops and ("experts" in case.params) in self.experts
                and (self.fp8 or not case.fp8))

    def refuse(self, case):
        return None

    def prepare(self, problem):
        raise NotImplementedError


# The pip packages of these modules.
PACKAGES = {"torch": "torch", "scipy": "scipy", "flashinfer": "flashinfer-python",
            "fa3_fwd_interface": "fa3-fwd", "flash_attn": "flash-attn-4"}


def need(module):
    """Imports a module. Raises Unavailable with the error and how to install it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module(module)
    except Exception as error:  # incomplete packages may raise any error
        package = PACKAGES.get(module.split(".")[0])
        missing = isinstance(error, ModuleNotFoundError) and package
        hint = f"; pip install {package}" if missing else ""
        raise Unavailable(f"import {module}: {one_line(error)}{hint}") from error


def version_of(package):
    """The installed version of a pip package."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def fastest(candidates):
    """{label: closure} -> the label of the fastest one on the GPU. Failing ones are skipped; if all
    fail, raises Unavailable with all reasons."""
    torch = need("torch")
    times, refused = {}, []
    for label, run in candidates.items():
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        try:
            run()
            start.record()
            for _ in range(5):
                run()
            end.record()
            end.synchronize()
            times[label] = start.elapsed_time(end)
        except Exception as error:  # any error is its reason
            refused.append(f"{label}: {one_line(error)}")
    if not times:
        raise Unavailable("; ".join(refused))
    return min(times, key=times.__getitem__)


def one_line(error, limit=300):
    """An error's text in one line, without local folders and PyTorch's hints to documentation."""
    text = " ".join(str(error).split()) or type(error).__name__
    text = text.split(" Search for `", 1)[0]
    for folder in sys.path:
        text = text.replace(folder.rstrip("/") + "/", "") if len(folder) > 1 else text
    return text if len(text) <= limit else text[: limit - 3] + "..."


# What attention may have, by the parameter that says so, and the reason of a peer without it.
EXTRAS = {"window": "no windows", "softcap": "no softcap", "pattern": "no block lists",
          "sequences": "packed sequences are not adapted", "page": "no pages"}


def beyond_plain_attention(case, *extras):
    """The reason why a peer with these extras alone cannot do the case, or None."""
    return next((reason for name, reason in EXTRAS.items()
                 if name in case.params and name not in extras), None)
