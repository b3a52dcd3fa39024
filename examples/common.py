"""What the examples share: arguments, the device, the clock, and how they end."""

import argparse
import os
import sys
import time

import tessera


def arguments(description):
    """A parser that refuses in one line."""
    parser = argparse.ArgumentParser(description=description, usage=argparse.SUPPRESS)
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto",
                        help="auto: the GPU, where one is here that tessera has kernels for")
    return parser


def whole_number(least, multiple_of=1):
    """The type of an argument."""
    def read(text):
        if not text.isdecimal() or int(text) < least or int(text) % multiple_of:
            kind = f"a multiple of {multiple_of}" if multiple_of > 1 else "a whole number"
            raise argparse.ArgumentTypeError(f"expected {kind} from {least} on, got {text!r}")
        return int(text)

    return read


def share(text):
    """The same: between 0 and 1."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"expected a number between 0 and 1, got {text!r}")
    return value


def choose_device(wanted, pages=False):
    """A torch.device, and the dtype to compute in there. `pages`: for keys in pages."""
    import torch

    cpu, gpu = (torch.device("cpu"), torch.float32), (torch.device("cuda"), torch.bfloat16)
    here = tessera.cuda_device_count() > 0 and torch.cuda.is_available()
    if wanted == "cuda" and not here:
        fail("--device: expected cpu or auto, got cuda: no GPU that this build and PyTorch can use")
    if wanted == "cpu" or not here:
        return cpu
    q = torch.empty(1, 128, 1, 64, device=gpu[0], dtype=gpu[1])
    lists = {}
    if pages:
        one = torch.ones(1, 1, device=gpu[0], dtype=torch.int32)
        lists = {"page_table": one, "kv_end": one[0]}
    known = tessera.explain(tessera.attention, q, q, q, **lists)["supported"]
    return gpu if known or wanted == "cuda" else cpu


def name_of(device):
    import torch

    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"the CPU, {torch.get_num_threads()} threads"


def milliseconds(call, device=None):
    """The fastest call of a third of a second, after one that warms up. (Others who want the same
    processor make calls slower, never faster.)"""
    def finished():
        call()
        if device is not None and device.type == "cuda":
            import torch

            torch.cuda.synchronize(device)

    finished()
    times, begun = [], time.perf_counter()
    while not times or time.perf_counter() - begun < 0.3:
        start = time.perf_counter()
        finished()
        times.append(1e3 * (time.perf_counter() - start))
    return min(times)


def check(name, value, limit):
    """An example that got a wrong result says so and fails."""
    if not value <= limit:  # NaN fails as well
        fail(f"{name}: {value:.3g}, accepted up to {limit:.3g}")


def fail(message):
    sys.exit(f"{os.path.basename(sys.argv[0])}: error: {message}")
