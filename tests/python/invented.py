"""Results that were never measured, and trees of pages that show them: every figure is invented and
round."""

import json

from support import ATTENTION_ROW, KERNELS, PRODUCT_ROW, tool

tables = tool("tables")
GPU = {"name": "Invented Card", "compute_capability": 90, "units": 1, "memory_bytes": 1,
       "l2_bytes": 1, "driver": "1.2", "power_limit_w": 100.0}
DENSE = {"m": 1000, "n": 1000, "k": 1000}
SPARSE = {**DENSE, "pattern": "random", "block": 50}


HOST = {"op": "attention", "call": "attention short", "us": 3.21, "spread": 0.01, "least_us": 3.0,
        "launch_us": 2.5, "with_plan_us": 8.0, "plan_us": 1.5, "row": "sm90_attention"}
EAGER = {"call": "linear", "us": 3.0, "peer": "F.linear", "peer_us": 6.0, "limit": 1.0}


def entry(flops, ms, **more):
    return {"ms": ms, "spread": 0.0, "tflops": flops / ms / 1e9, "clock_mhz": None, "watts": None,
            "joules_per_tflop": None, "host_us": None, **more}


def record(op, params, ms, peers, state="sustained", flops=2e9, **ours):
    """A case of so many useful operations. params: those without a default. ms: or the reason why
    there is none, also in peers, {name: ms}."""
    params = tables.cases.make_case(op, params).params

    def peer(one):
        if isinstance(one, str):
            return {"unavailable": one}
        extra = {} if op == "matmul" else {"computed_tflops": 2e9 / one / 1e9}
        return entry(flops, one, version="1", max_error=0.0, **extra)

    row = ATTENTION_ROW if op == "attention" else PRODUCT_ROW
    code = tables.machine_code.code_of_call(KERNELS, op, row, params["dtype"])
    made = {"unavailable": ms} if isinstance(ms, str) else entry(
        flops, ms, row=row, predicted_ms=None, **{"machine_code": code, **ours})
    return {"op": op, "params": params, "state": state, "useful_flops": flops, "bytes": 6e6,
            "ours": made, "peers": {name: peer(one) for name, one in peers.items()},
            "max_error": None, "error_budget": None}


def result_of(cases):
    return {"schema": 1, "date": "2001-02-03T04:05:06Z",
            "gpu": dict(GPU), "cpu": {"name": "Invented CPU", "threads": 1},
            "toolkit": {"python": "3.0", "cuda": "99.0"}, "commit": "abcdef0",
            "ceilings": {"copy_tbs": 9.0, "cublas_bf16": 2000.0, "cublas_bf16_sustained": 1000.0},
            "tests": [{"name": "cpp.a", "outcome": "passed"},
                      {"name": "cpp.b", "outcome": "failed"}],
            "cases": cases}


CASES = [
    record("bsr_matmul", {**SPARSE, "density": 0.25}, 0.5,
           {"cublaslt_dense": 0.2, "cublaslt": 1.0, "torch_bsr": 0.25,
            "cusparse_bell": "square blocks only"},
           flops=5e8, joules_per_tflop=3.0),
    record("bsr_matmul", {**SPARSE, "density": 0.5}, 1.5, {"cublaslt": 1.0}, flops=1e9),
    record("matmul", DENSE, 1.0, {"cublaslt": 0.5}),
    record("matmul", {**DENSE, "m": 1}, 0.002, {"cublaslt": 0.003}, state="burst", flops=2e6),
    record("matmul", {**DENSE, "m": 2}, 0.002, {"cublaslt": "capture"}, state="graph", flops=2e6),
    record("attention", {"s": 8}, "no kernel for attention",
           {"flex": 1.0, "fa3": "absent", "fa4": "absent"}),
]


def attention(s, ms, peers, d=128, causal=False, **more):
    """A thousandth of the useful operations in TFLOP: 1 ms is as many TFLOPS as s has thousands."""
    sizes = {"s": s, "b": max(1, 16384 // s), "d": d, "causal": causal}
    return record("attention", {**sizes, **more}, ms, peers, flops=s * 1e6)


def masked(density, ms, peers, **more):
    return attention(32768, ms, peers, block_q=128, pattern="random", density=density, **more)


def product(block, density, ms, peers, **more):
    sizes = {"m": 8192, "n": 8192, "k": 8192, "block": block, "pattern": "random"}
    return record("bsr_matmul", {**sizes, "density": density, **more}, ms, peers)


LENGTHS = [
    attention(2048, 0.01, {"fa4": 0.02, "flex": "absent"}),
    attention(1024, 0.01, {"fa4": 0.01, "flex": 0.04}),
    attention(4096, 0.01, {"fa4": 0.008}),
]
DENSITIES = [
    masked(0.25, 0.5, {"tessera_dense": 1.5, "fa4": 1.0}),
    masked(0.125, 0.25, {"tessera_dense": 1.5, "fa4": "absent"}),
    masked(0.5, 0.5, {"fa4": 0.5}),  # without the dense case there is no speed-up
]
PRODUCTS = [
    product(64, 0.25, 0.5, {"cublaslt_dense": 1.0, "cublaslt": 0.5}),
    product(64, 0.75, 1.5, {"cublaslt_dense": 1.0, "cublaslt": 0.5}),
    product(16, 0.25, 2.0, {"cublaslt_dense": 1.0}),
]


def row_of(lines, text):
    return next([cell.strip() for cell in line.strip("|").split("|")]
                for line in lines if line.startswith("|") and text in line)


def run(tree, *options):
    return tables.main(["--root", str(tree), *options])


def put(tree, name, cases=CASES, **more):
    (tree / "bench/results" / name).write_text(json.dumps({**result_of(cases), **more}))
