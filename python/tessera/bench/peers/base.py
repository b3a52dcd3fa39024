"""What adapters are made of."""

import importlib
import importlib.metadata
import sys
import warnings


class Unavailable(Exception):
    """Why a peer does not take part."""


class Peer:
    """`ops` are the operations it knows; `applies` leaves out cases that it has no part in.
    `refuse` names what of a case it cannot do, before anything is imported; `prepare` returns a
    `Prepared` or raises `Unavailable`."""

    ops: tuple = ()
    experts: tuple = (False,)  # whether it takes cases in which each expert has its own matrix
    module = "torch"

    def __init__(self, name):
        self.name = name

    def version(self):
        """Imports what it needs; raises Unavailable where that is missing."""
        return need(self.module).__version__

    def applies(self, case):
        return case.op in self.ops and ("experts" in case.params) in self.experts

    def refuse(self, case):
        return None

    def prepare(self, problem):
        raise NotImplementedError


# What pip calls the packages that have these modules.
PACKAGES = {"torch": "torch", "scipy": "scipy", "flashinfer": "flashinfer-python",
            "fa3_fwd_interface": "fa3-fwd", "flash_attn": "flash-attn-4"}


def need(module):
    """The module, or Unavailable with the import's own words and how to get it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module(module)
    except Exception as error:  # a half-installed package may raise anything at import
        package = PACKAGES.get(module.split(".")[0])
        missing = isinstance(error, ModuleNotFoundError) and package
        hint = f"; pip install {package}" if missing else ""
        raise Unavailable(f"import {module}: {one_line(error)}{hint}") from error


def version_of(package):
    """What pip installed of it."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def quickest(candidates):
    """{label: closure} -> the label of the one that takes the least time on the GPU. Those that
    fail are left out; raises Unavailable with every reason where all do."""
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
        except Exception as error:  # whatever it raises is its reason
            refused.append(f"{label}: {one_line(error)}")
    if not times:
        raise Unavailable("; ".join(refused))
    return min(times, key=times.__getitem__)


def one_line(error, limit=300):
    """The error's text in one line, without this machine's folders and PyTorch's reading advice."""
    text = " ".join(str(error).split()) or type(error).__name__
    text = text.split(" Search for `", 1)[0]
    for folder in sys.path:
        text = text.replace(folder.rstrip("/") + "/", "") if len(folder) > 1 else text
    return text if len(text) <= limit else text[: limit - 3] + "..."


# What attention may have, by the parameter that says so, and the reason of a peer without it.
EXTRAS = {"window": "no windows", "softcap": "no softcap", "pattern": "no block lists",
          "sequences": "packed sequences are not adapted"}


def beyond_plain_attention(case, *extras):
    """The reason why a peer with these extras alone cannot do the case, or None."""
    return next((reason for name, reason in EXTRAS.items()
                 if name in case.params and name not in extras), None)
