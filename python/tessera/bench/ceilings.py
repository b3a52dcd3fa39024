"""Two rates that everything is held against: a large copy and a large dense product."""

from .timing import Prepared, measure_bursts, measure_sustained

COPY_BYTES = 1 << 31
SIDE = 8192


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
