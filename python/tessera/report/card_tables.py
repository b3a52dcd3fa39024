"""Tables of all that was measured on a card: wins and losses, what the card gives at most, tests,
and the cost model's error. Each function returns texts, tables and notes in the order to read."""

import math
import re
from statistics import median

from ..bench import results as result_files
from .table import Table, captioned
from .values import (
    EVEN,
    FASTER,
    SLOWER,
    best_peer,
    by_group,
    case_text,
    family_of,
    group_of,
    number,
    times_as_quick,
    verdict,
)

WORST_LOSSES, WORST_PREDICTIONS = 10, 8
COPY = "copy_tbs"
CUBLAS = ("cublas_bf16", "cublas_bf16_sustained")
TENSOR = re.compile(r"tensor_(?P<type>[a-z0-9]+)_n(?P<n>\d+)(?P<rs>_rs)?_tflops")
TENSOR_FIGURES = ("tflops", "mhz", "sustained_tflops", "sustained_mhz", "sustained_watts",
                  "sustained_joules_per_tflop")
OTHERS = {
    "l2_to_shared_tbs": "L2 to shared memory, TB/s",
    "hbm_read_tbs": "memory, read, TB/s",
    COPY: "memory, copied, bytes read and written, TB/s",
    "launch_us": "a launch in a stream, us",
    "graph_launch_us": "a kernel node of a graph, us",
    "overlapped_launch_us": "the same with programmatic launches, us",
}


# ---- Wins and losses


def compared(records):
    """Those with a figure of ours and of a peer, by group and state."""
    return [record for record in by_group(records) if times_as_quick(record)]


def verdict_of(record):
    return verdict(record["ours"], record["peers"][best_peer(record)])


def counts(records):
    """{verdict: how many}."""
    verdicts = [verdict_of(record) for record in compared(records)]
    return {one: verdicts.count(one) for one in (FASTER, EVEN, SLOWER)}


def glance(records):
    """Wins and losses by group, and the worst of the losses."""
    told, total = counts(records), len(compared(records))
    if not total:
        return []
    return [f"Of {total} measurements beside a peer, tessera was faster than the best one in "
            f"{told[FASTER]}, slower in {told[SLOWER]}, and even with it, within both spreads, in "
            f"{told[EVEN]}.", *captioned(by_groups(records)), *captioned(losses(records))]


def by_groups(records):
    grouped: dict = {}
    for record in compared(records):
        grouped.setdefault((group_of(record), record["state"]), []).append(record)
    rows = []
    for (group, state), chosen in grouped.items():
        told = counts(chosen)
        ratios = [times_as_quick(record) for record in chosen]
        rows.append([group, state, len(chosen), told[FASTER], told[EVEN], told[SLOWER],
                     f"{median(ratios):.2f}x", f"{min(ratios):.2f}x", f"{max(ratios):.2f}x"])
    head = ["cases", "state", "measured", FASTER, EVEN, SLOWER, "median", "least", "most"]
    return Table(head, rows, 2, "Speed-up over the best peer")


def losses(records):
    """The worst first; all that are slower beyond both spreads count."""
    lost = sorted((record for record in compared(records) if verdict_of(record) == SLOWER),
                  key=times_as_quick)
    rows = [[case_text(record), record["state"], best_peer(record), record["ours"]["ms"],
             record["peers"][best_peer(record)]["ms"], f"{times_as_quick(record):.2f}x"]
            for record in lost[:WORST_LOSSES]]
    head = ["case", "state", "best peer", "ours, ms", "peer, ms", "ours is"]
    return Table(head, rows, 3, f"The {WORST_LOSSES} worst of {len(lost)} losses"
                 if len(lost) > WORST_LOSSES else "All losses, the worst first")


# ---- The card, and how tests ended


def ceilings_and_tests(result):
    """What the card gave without any of our kernels, and how tests and random problems ended."""
    c, texts = result["ceilings"], []
    if COPY in c:
        texts.append(f"A copy moves {c[COPY]:.2f} TB/s.")
    burst, sustained = (c.get(name) for name in CUBLAS)
    if burst is not None:
        also = "" if sustained is None else f", {number(sustained)} sustained"
        texts.append(f"cuBLAS multiplies 8192x8192x8192 in bf16 at {number(burst)} TFLOPS in "
                     f"bursts{also}.")
    ended, verified = result_files.endings(result["tests"]), result_files.verified(result)
    texts += [f"Tests: {ended}."] if ended else []
    texts += [f"{verified}."] if verified else []
    return [" ".join(texts)] if texts else []


def ceilings(result):
    """What the card gives without any of our kernels, where more than the copy and the dense
    product that every run measures is known; those stand in ceilings_and_tests."""
    c = result["ceilings"]
    if set(c) <= {COPY, *CUBLAS}:
        return []
    rows = []
    for key in filter(None, map(TENSOR.fullmatch, c)):
        depth = 32 if key["type"] == "e4m3" else 16
        text = f"wgmma {key['type']} 64x{key['n']}x{depth}"
        rows.append([text + (", A in registers" if key["rs"] else ""), *(
            c.get(key[0].removesuffix("tflops") + name) for name in TENSOR_FIGURES)])
    if CUBLAS[0] in c:
        rows.append(["cuBLAS bf16 8192x8192x8192", c[CUBLAS[0]], None, c.get(CUBLAS[1]), None, None,
                     None])
    head = ["tensor cores", "burst, TFLOPS", "MHz", "sustained, TFLOPS", "MHz", "W", "J/TFLOP"]
    # A name that nothing is known of stands for itself.
    others = [[text, c[name]] for name, text in OTHERS.items() if name in c]
    others += [[name, figure] for name, figure in c.items()
               if name not in (*OTHERS, *CUBLAS) and not name.startswith("tensor_")]
    return [Table(head, rows), Table(["what", "measured"], others)]


def failures(result):
    """Tests that did not pass, and errors beside their budgets."""
    bad = [[test["name"], test["outcome"], test.get("detail", "")[-180:]]
           for test in result["tests"] if test["outcome"] != "passed"]
    used = [record["max_error"] / record["error_budget"] for record in result["cases"]
            if record["max_error"] is not None and record["error_budget"]]
    held = [f"{len(used)} measurements were held against double precision; the largest use of an "
            f"error budget is {100 * max(used):.0f}%."] if used else []
    return [*held, *captioned(Table(["test", "outcome", "what it said"], bad, 3,
                                    "Tests that did not pass"))]


# ---- The cost model


def predicted(records):
    """Those whose kernel the cost model gave a time."""
    return [record for record in records
            if record["ours"].get("predicted_ms") and family_of(record)]


def ratio(record):
    """1 where the model was right, above where it was too slow."""
    return record["ours"]["predicted_ms"] / record["ours"]["ms"]


def typical_error(records):
    """The median, as a share of what was measured."""
    return f"{number(100 * median(abs(ratio(record) - 1) for record in records), 2)}%"


def predictions(records):
    """How far off the cost model is: in words, by family, and the worst."""
    chosen = sorted(predicted(records), key=family_of)
    if not chosen:
        return []
    near = sum(abs(ratio(record) - 1) <= 0.2 for record in chosen)
    families: dict = {}
    for record in chosen:
        families.setdefault(family_of(record), []).append(record)
    rows = []
    for family, some in families.items():
        ratios = [ratio(record) for record in some]
        rows.append([family, len(some), typical_error(some), f"{min(ratios):.2f}",
                     f"{median(ratios):.2f}", f"{max(ratios):.2f}"])
    far = sorted(predicted(records), key=lambda record: -abs(math.log(ratio(record))))
    worst = [[case_text(record), record["state"], record["ours"]["row"],
              record["ours"]["predicted_ms"], record["ours"]["ms"], round(ratio(record), 2)]
             for record in far[:WORST_PREDICTIONS]]
    return [f"The median error over {len(chosen)} cases is {typical_error(chosen)} of the measured "
            f"time; {near} of them are within 20%.",
            Table(["kernel family", "cases", "median error", "least", "median", "most"], rows),
            "The worst:", Table(["case", "state", "kernel", "predicted, ms", "measured, ms",
                                 "predicted / measured"], worst, 3)]
