"""The figures of one case: which count, in which unit, and what they are held against."""

from ..bench.cases import ATTENTION_PASSES, FP8, LISTS, label

OURS = "tessera"
OPS = ("matmul", "bsr_matmul", "sddmm", "spgemm", *ATTENTION_PASSES, *LISTS)
STATES = {
    "sustained": "Sustained: seconds without a rest, at the power limit",
    "burst": "Bursts: short runs in turns, at the full clock",
    "graph": "Replays of a captured graph",
}
# No peers: the case with nothing left out. Where no operand is sparse, cublaslt's is that already.
DENSE = {"bsr_matmul": "cublaslt_dense", "spgemm": "cublaslt_dense", "matmul": "cublaslt",
         "sddmm": "cublaslt", **dict.fromkeys(ATTENTION_PASSES, "tessera_dense")}
REFERENCES = ("cublaslt_dense", "tessera_dense")
NO_PEERS = (*REFERENCES, "tessera_bf16")  # ours in FP8 beside ours in bf16
NOTABLE_SPREAD = 0.05
FASTER, EVEN, SLOWER = "faster", "even", "slower"


def number(value, digits=3):
    if value is None:
        return ""
    if value == 0:
        return "0"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.{digits}g}"


def unit_of(record):
    """What says most about a case: rates, except where memory or latency is the limit."""
    p = record["params"]
    narrow = "n" in p and min(p["m"], p["n"]) <= 128
    if narrow and (record["op"] == "matmul" or record["state"] != "graph"):
        return "GB/s"
    if record["state"] == "graph" or record["op"] in LISTS:
        return "us"
    entries = (record["ours"], *record["peers"].values())
    return "TFLOPS" if max(entry.get("tflops", 0) for entry in entries) >= 1 else "GFLOPS"


def value_of(record, name, entry):
    unit = unit_of(record)
    if unit == "us":
        return entry["ms"] * 1e3
    if unit == "GB/s":
        return record["bytes"] / entry["ms"] / 1e6
    return rate_of(name, entry) * (1 if unit == "TFLOPS" else 1e3)


def whole_rate(entry):
    """TFLOPS on all that is computed."""
    return entry.get("computed_tflops", entry["tflops"])


def rate_of(name, entry):
    """TFLOPS on useful work; all of it is, to the dense case."""
    return whole_rate(entry) if name in REFERENCES else entry["tflops"]


def joules_of(name, entry):
    """For each useful TFLOP."""
    figure, rate = entry.get("joules_per_tflop"), rate_of(name, entry) if "ms" in entry else 0
    return figure * entry["tflops"] / rate if figure and rate else None


def measured(record):
    """{name: entry} of the peers that have a time."""
    return {name: entry for name, entry in record["peers"].items() if "ms" in entry}


def best_peer(record):
    """The name of the fastest; None where none was measured."""
    peers = measured(record)
    return min((name for name in peers if name not in NO_PEERS),
               key=lambda name: peers[name]["ms"], default=None)


def times_as_quick(record):
    """The best peer's time over ours; None where one of them is missing."""
    best = best_peer(record)
    if best is None or "ms" not in record["ours"]:
        return None
    return record["peers"][best]["ms"] / record["ours"]["ms"]


def verdict(entry, other):
    """How the first stands beside the second: even where both spreads together hide who is
    faster. A spread is the distance of the quartiles, so half of it is to either side."""
    margin = (entry["spread"] + other["spread"]) / 2
    share = entry["ms"] / other["ms"]
    return EVEN if abs(share - 1) <= margin else FASTER if share < 1 else SLOWER


def case_text(record):
    """The label, with the share of stored blocks where the pattern decides it."""
    p, text = record["params"], label(record["op"], record["params"])
    if record["op"] in ("bsr_matmul", "sddmm") and "density" not in p:
        stored = record["useful_flops"] / (2 * p["m"] * p["n"] * p["k"])
        text += f", {number(stored, 2)} stored"
    return text


def of_dense(record):
    """Our rate on useful operations over that of the dense case: cuBLASLt's product of random
    values of the same sizes, our own attention."""
    peers = measured(record)  # of experts the dense case is our own
    dense = peers.get(DENSE.get(record["op"])) or peers.get("tessera_dense")
    if record["params"]["dtype"] == FP8:
        dense = dense or peers.get("torch_dense")
    if dense is None or "ms" not in record["ours"] or not whole_rate(dense):
        return None
    return record["ours"]["tflops"] / whole_rate(dense)


def within(value, spread):
    """The value, with half the spread where that is notable."""
    notable = spread / 2 > NOTABLE_SPREAD
    return number(value) + (f" ±{100 * spread / 2:.0f}%" if notable else "")


BY_BACKEND = "kernels of a named backend"


def group_of(record):
    """Cases that are alike, as summaries and charts name them."""
    op, p = record["op"], record["params"]
    if "backend" in p:
        return BY_BACKEND
    if op in LISTS:
        return "making lists"
    if op not in ATTENTION_PASSES:
        return f"{op}, FP8" if p["dtype"] == FP8 else op
    what = op.replace("_", " ")
    if p["dtype"] == FP8:
        return f"{what}, FP8"
    if "pattern" in p:
        return f"{what}, block-sparse"
    if "page" in p:
        return f"{what}, over pages"
    special = any(name in p for name in ("window", "softcap", "sequences"))
    return f"{what}, window, softcap, packed" if special else f"{what}, dense"


GROUPS = (*(f"{op.replace('_', ' ')}, {kind}" for op in ATTENTION_PASSES
            for kind in ("dense", "block-sparse", "window, softcap, packed")),
          "attention, over pages", "attention, FP8", "matmul", "bsr_matmul", "sddmm", "spgemm",
          "matmul, FP8", "bsr_matmul, FP8",
          "making lists", BY_BACKEND)


def family_of(record):
    """The kernel's family, as rows are named: sm90_attention of
    sm90_attention_d128_q192_k64_s3. None where no row ran, or its name says nothing."""
    parts = (record["ours"].get("row") or "").split("_")
    return "_".join(parts[:2]) if len(parts) > 1 else parts[0] or None


def by_group(records):
    """The records in the order of GROUPS and STATES, else as they come."""
    states = list(STATES)
    return sorted(records, key=lambda record: (GROUPS.index(group_of(record)),
                                               states.index(record["state"])))
