"""What the card gives at most: a large copy and a large dense product by PyTorch, and what the
program of bench/ceilings measures without any of our kernels."""

import json
import os
import re
import subprocess

from . import results
from .files import write_json
from .machine import gpu_facts, header
from .progress import Progress
from .timing import CudaTimer, Prepared, measure_bursts, measure_sustained
from .tree import find_tree

COPY_BYTES = 1 << 31
SIDE = 8192
PROGRAM = os.path.join("build", "cuda", "tests", "ceilings")
STEP = re.compile(r"^\[(\d+)/(\d+)\] (.+)$")


class CeilingsError(ValueError):
    """The program is not there, or could not measure."""


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


def find_program(given=None, tree=None):
    """The program's path: the given one, or where the preset cuda builds it."""
    tree = find_tree(tree)
    path = given or (os.path.join(tree, PROGRAM) if tree else PROGRAM)
    if not os.access(path, os.X_OK) or os.path.isdir(path):
        raise CeilingsError(f"--program: there is no program {path}: build the target "
                            "tessera_gpu_tests, or say where it is")
    return path


def run_program(program, seconds, progress):
    """Its figures. What it says on the way, a step a line, becomes progress."""
    command = [program, "--seconds", f"{seconds:g}"]
    with subprocess.Popen(command, text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None  # they are pipes
        said = []
        for line in process.stderr:
            step = STEP.match(line.rstrip())
            if step is None:
                said.append(line.strip())
                continue
            progress.done, progress.total = int(step[1]) - 1, int(step[2]) + 1
            progress.step(step[3])
        text = process.stdout.read()
    for line in said:
        progress.say(line)
    if process.returncode != 0:
        raise CeilingsError(f"{program} ended with exit status {process.returncode}")
    return figures_of(text, program)


def figures_of(text, program):
    """The one JSON object of numbers that the program prints."""
    try:
        figures = json.loads(text)
    except ValueError:
        figures = None
    if not isinstance(figures, dict) or not figures or not all(
            isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0
            for value in figures.values()):
        raise CeilingsError(f"{program}: expected one JSON object of numbers, got {text[:200]!r}")
    return figures


def measure_all(program=None, seconds=2.0, path=None, tree=None, commit=None, quiet=False):
    """A result with the card's ceilings and no case. Where `path` holds a result of this card, they
    become a part of it."""
    program = find_program(program, tree)
    gpu, meter = gpu_facts()
    result = header("cuda", gpu, tree, commit)
    if path and os.path.exists(path):
        former = results.read(path)
        results.require_same(former, result, (path, "this run"))
        result = former
    progress = Progress(1, quiet=quiet)
    try:
        figures = run_program(program, seconds, progress)
        progress.done = progress.total - 1
        progress.step("copy and dense product")
        figures.update(measure_ceilings(CudaTimer(1, meter), seconds))
    finally:
        progress.close()
    result["ceilings"].update(figures)
    if path:
        write_json(path, result)
    return result
