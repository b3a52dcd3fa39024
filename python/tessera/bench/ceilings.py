"""The limits of the card: a large copy and a large dense product by PyTorch, and the kernels of
bench/ceilings, which are not the library's: tensor cores by instruction, bandwidths, launches."""

import ctypes
import functools
import os
import statistics
import time

from . import results
from .files import write_json
from .machine import gpu_facts, header
from .progress import Progress
from .timing import (
    BURST_ROUNDS,
    BURST_SECONDS,
    WARM_UP_SECONDS,
    CudaTimer,
    Figures,
    Prepared,
    keep_busy,
    measure_bursts,
    measure_sustained,
    time_slice,
)
from .tree import find_tree

COPY_BYTES = 1 << 31
SIDE = 8192
LIBRARY = os.path.join("build", "cuda", "tests", "ceilings.so")
PARTS = ("tensor", "l2", "memory", "launch")
CHUNK_SECONDS = 0.02  # per chunk of sustained work; energy is read after each chunk
LAUNCHES = 400  # fewer than a stream can queue before the host has to wait
REPLAYS = 4
DELAY_SECONDS, MAX_DELAY_SECONDS = 0.004, 0.2


class CeilingsError(ValueError):
    """The kernels are missing or failed."""


class Kernel(ctypes.Structure):
    """tessera::ceilings::Kernel, documented in bench/ceilings/kernel.hpp."""

    Launch = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint,
                              ctypes.c_int, ctypes.c_void_p)
    _fields_ = (("name", ctypes.c_char_p), ("dtype", ctypes.c_char_p),
                ("data_bytes", ctypes.c_size_t), ("out_bytes", ctypes.c_size_t),
                ("amount", ctypes.c_double), ("launch", Launch))


def measure_ceilings(timer, seconds=1.0):
    torch = timer.torch
    source = torch.empty(COPY_BYTES, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    copy = Prepared(lambda i: target.copy_(source))
    a, b = (torch.randn(SIDE, SIDE, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    product = Prepared(lambda i: torch.matmul(a, b))
    bursts = measure_bursts(timer, {"copy": copy, "product": product}, rounds=5)
    sustained = measure_sustained(timer, {"product": product}, seconds)["product"]
    flops = 2 * SIDE**3
    return {
        "copy_tbs": 2 * COPY_BYTES / bursts["copy"].entry(0)["ms"] / 1e9,
        "cublas_bf16": bursts["product"].entry(flops)["tflops"],
        "cublas_bf16_sustained": sustained.entry(flops)["tflops"],
    }


def load(given=None, tree=None):
    """{part: {name: Kernel}} of the given library, or of the one that the preset cuda builds."""
    tree = find_tree(tree)
    path = given or (os.path.join(tree, LIBRARY) if tree else LIBRARY)
    try:
        library = ctypes.CDLL(os.path.abspath(path))
        found = {}
        for part in PARTS:
            function = getattr(library, f"{part}_kernels")
            function.restype = ctypes.POINTER(Kernel)
            kernels, found[part] = function(), {}
            while name := kernels[len(found[part])].name:
                found[part][name.decode()] = kernels[len(found[part])]
    except (OSError, AttributeError) as error:
        raise CeilingsError(f"--library: expected the kernels that the target tessera_gpu_tests "
                            f"builds, got {path}: {error}") from None
    return found


class Card:
    """Times kernels on the current GPU."""

    def __init__(self, timer):
        self.timer, self.torch = timer, timer.torch
        facts = self.torch.cuda.get_device_properties(self.torch.cuda.current_device())
        self.sms, self.hopper = facts.multi_processor_count, (facts.major, facts.minor) == (9, 0)

    def launch(self, kernel, repeats, data=None, out=None):
        data, out = (None if one is None else one.data_ptr() for one in (data, out))
        stream = self.torch.cuda.current_stream().cuda_stream
        status = kernel.launch(data, out, self.sms, repeats, stream)
        if status != 0:
            raise CeilingsError(f"{kernel.name.decode()}: the launch failed with CUDA's error "
                                f"{status}")

    def work(self, kernel):
        """(function that enqueues a number of repetitions, the memory that they write)."""
        torch, kind = self.torch, kernel.dtype.decode()
        dtype = {"bf16": torch.bfloat16, "f16": torch.float16, "e4m3": torch.float8_e4m3fn}[kind]
        data = torch.randn(kernel.data_bytes // dtype.itemsize, device="cuda",
                           dtype=torch.float16 if kind == "e4m3" else dtype).to(dtype)
        out = torch.zeros(max(1, self.sms * kernel.out_bytes // 4), device="cuda")
        return lambda repeats: self.launch(kernel, repeats, data, out), out

    def ms_of(self, run, repeats):
        return self.timer.calls_ms(Prepared(lambda i: run(repeats)), 1)

    def repeats_for(self, run, seconds):
        """The number of repetitions that take about `seconds`."""
        repeats = 1
        self.ms_of(run, repeats)  # loads the code, fills the caches
        while (taken := self.ms_of(run, repeats)) < 2 and repeats < 1 << 29:
            repeats *= 2
        return max(1, min(1 << 30, int(seconds * 1e3 / taken * repeats)))

    def rounds(self, measure):
        """The median of measurements, each after a rest."""
        times = []
        for _ in range(BURST_ROUNDS):
            self.timer.rest()
            times.append(measure())
        return statistics.median(times)

    def burst(self, run, amount):
        """12 ms of work, then a rest, nine times: the card at its full clock."""
        repeats, clocks = self.repeats_for(run, BURST_SECONDS), []

        def once():
            begin, end = self.timer.event(), self.timer.event()
            begin.record()
            run(repeats)
            end.record()
            time.sleep(BURST_SECONDS / 3)  # read the clock while the card works
            clocks.append(self.timer.clock_mhz())
            end.synchronize()
            return begin.elapsed_time(end)

        return Figures([self.rounds(once)], clocks).entry(amount * repeats)

    def sustained(self, run, amount, seconds):
        """Seconds of work without a rest: the card at its power limit."""
        repeats, figures = self.repeats_for(run, CHUNK_SECONDS), Figures()
        chunk = Prepared(lambda i: run(repeats))
        keep_busy(self.timer, chunk, 1, WARM_UP_SECONDS)
        time_slice(self.timer, chunk, 1, seconds, figures)
        return figures.entry(amount * repeats)

    # ---- The parts: each returns {key in a result: figure}, or one figure

    def tensor(self, kernel, name, seconds):
        (run, out), amount = self.work(kernel), kernel.amount * self.sms
        burst, limited = self.burst(run, amount), self.sustained(run, amount, seconds)
        # Rejects kernels that multiplied nothing. A few sums may be zero by chance.
        if not out.isfinite().all() or (out == 0).sum() > 0.01 * out.numel():
            raise CeilingsError(f"{name}: sums are zero or not finite: the kernel is broken")
        figures = {"tflops": burst["tflops"], "mhz": burst["clock_mhz"],
                   "sustained_tflops": limited["tflops"], "sustained_mhz": limited["clock_mhz"],
                   "sustained_watts": limited["watts"],
                   "sustained_joules_per_tflop": limited["joules_per_tflop"]}
        return {f"{name}_{key}": one for key, one in figures.items() if one is not None}

    def l2(self, kernel, name, _):
        return {f"{name}_tbs": self.burst(self.work(kernel)[0], kernel.amount * self.sms)["tflops"]}

    def memory(self, kernel, name, _):
        return {f"{name}_tbs": self.burst(self.work(kernel)[0], kernel.amount)["tflops"]}

    def stream_launch(self, kernels):
        """Microseconds on the card per launch in a stream. The launches wait behind a delay kernel
        until all are queued. If the host needs more than half of the delay, it is doubled."""
        def once():
            delay = DELAY_SECONDS
            while delay <= MAX_DELAY_SECONDS:
                begin, end = self.timer.event(), self.timer.event()
                self.launch(kernels["delay"], int(delay * 1e9))
                start = time.perf_counter()
                begin.record()
                self.launch(kernels["launch"], LAUNCHES)
                end.record()
                queued = time.perf_counter() - start
                end.synchronize()
                if queued < delay / 2:
                    return begin.elapsed_time(end) * 1e3 / LAUNCHES
                delay *= 2
            raise CeilingsError(f"launch: the host took longer than {MAX_DELAY_SECONDS} s to queue "
                                f"{LAUNCHES} launches")

        once()  # loads the code
        return self.rounds(once)

    def graph_launch(self, kernel):
        """Microseconds per node of a graph that is a chain of kernels."""
        self.launch(kernel, 1)  # loads the code before the capture
        self.torch.cuda.synchronize()
        graph = self.torch.cuda.CUDAGraph()
        with self.torch.cuda.graph(graph):
            self.launch(kernel, LAUNCHES)
        replay = Prepared(lambda i: graph.replay())

        def once():
            graph.replay()  # what begins a replay is not counted
            return self.timer.calls_ms(replay, REPLAYS) * 1e3 / LAUNCHES

        once()
        return self.rounds(once)

    def steps(self, library, seconds):
        """{name: function that returns its figures}, for this card."""
        found: dict = {name: functools.partial(getattr(self, part), kernel, name, seconds)
                       for part in (PARTS[:3] if self.hopper else ("memory",))
                       for name, kernel in library[part].items()}
        launches = library["launch"]
        found["launch"] = lambda: {"launch_us": self.stream_launch(launches)}
        found["graph_launch"] = lambda: {"graph_launch_us": self.graph_launch(launches["launch"])}
        if self.hopper:
            found["overlapped_launch"] = lambda: {
                "overlapped_launch_us": self.graph_launch(launches["overlapped_launch"])}
        return found


def measure_all(library=None, seconds=2.0, path=None, tree=None, commit=None, quiet=False):
    """A result with the card's ceilings and no case. If `path` holds a result of this card, they
    are added to it."""
    kernels = load(library, tree)
    gpu, meter = gpu_facts()
    result = header("cuda", gpu, tree, commit)
    if path and os.path.exists(path):
        former = results.read(path)
        results.require_same(former, result, (path, "this run"))
        result = former
    timer = CudaTimer(1, meter)
    steps = Card(timer).steps(kernels, seconds)
    steps["copy and dense product"] = lambda: measure_ceilings(timer, seconds)
    progress, figures = Progress(len(steps), quiet=quiet), {}
    try:
        for name, measure in steps.items():
            progress.step(name)
            figures.update(measure())
            progress.finished()
    finally:
        progress.close()
    result["ceilings"].update(figures)
    if path:
        write_json(path, result)
    return result
