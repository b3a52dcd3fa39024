"""What the card can do at most, as measured on it, and how near each case comes."""

from .scatter import Group, Guide, Point, Scatter
from .table import Table
from .values import GROUPS, OURS, by_group, case_text, group_of, number

COPY = "copy_tbs"
CUBLAS = {"sustained": "cublas_bf16_sustained", "burst": "cublas_bf16"}
TENSOR = "tensor_bf16_"
UNITS = {"_tbs": "TB/s", "_us": "us", "_ms": "ms", "_tflops": "TFLOPS", "_sustained": "TFLOPS",
         "_bf16": "TFLOPS", "_mhz": "MHz", "_watts": "W", "_w": "W"}
ABOUT = {
    COPY: "a large copy, bytes read and written",
    "cublas_bf16": "cuBLAS, bf16, 8192x8192x8192, in bursts",
    "cublas_bf16_sustained": "cuBLAS, bf16, 8192x8192x8192, at the power limit",
    "hbm_read_tbs": "reading memory alone",
    "l2_to_shared_tbs": "copies from the L2 cache into shared memory",
    "launch_us": "launching an empty kernel",
    "graph_launch_us": "the same in a replayed graph",
}


def best_of(results):
    """{name: figure}: the best that the card showed in any of these files. Times are best when
    short, all else when large."""
    best = {}
    for result in results:
        for measured in (result["ceilings"], *(part["ceilings"] for part in
                                               result.get("parts") or [])):
            for name, figure in measured.items():
                if figure > 0:
                    choose = min if name.endswith(("_us", "_ms")) else max
                    best[name] = choose(best.get(name, figure), figure)
    return dict(sorted(best.items()))


def tensor_rate(ceilings, sustained):
    """(TFLOPS, name): the highest rate of the tensor cores, in bursts or at the power limit."""
    cublas = CUBLAS["sustained" if sustained else "burst"]
    names = [name for name in ceilings if name == cublas or (
        name.startswith(TENSOR) and ("sustained" in name) == sustained)]
    return max(((ceilings[name], name) for name in names), default=(None, None))


def table(ceilings):
    rows = [[name, about(name), figure, next((unit for end, unit in UNITS.items()
                                              if name.endswith(end)), "")]
            for name, figure in ceilings.items()]
    return Table(["ceiling", "of what", "measured", "in"], rows, 2,
                 "What the card gave without any of our kernels")


def about(name):
    if name.startswith(TENSOR):
        shape = name.removeprefix(TENSOR).split("_")[0]
        return (f"instructions of shape {shape} on tensor cores, bf16, "
                + ("at the power limit" if "sustained" in name else "in bursts"))
    return ABOUT.get(name, "")


def bounds(record, ceilings):
    """{limiter: the least ms that it allows}; nothing where a ceiling is unknown, or the type is
    not one that it was measured in."""
    rate = tensor_rate(ceilings, record["state"] == "sustained")[0]
    if record["params"]["dtype"] not in ("bf16", "f16") or not rate or COPY not in ceilings:
        return {}
    return {"tensor cores": record["useful_flops"] / rate / 1e9,
            "memory": record["bytes"] / ceilings[COPY] / 1e9}


def speed_of_light(records, ceilings, kernels=None):
    """How much of what limits it a case uses. kernels: {row: {"registers", "shared_bytes"}}."""
    rows = []
    for record in by_group(records):
        ours, least = record["ours"], bounds(record, ceilings)
        if "ms" not in ours or not record["useful_flops"] or not least:
            continue
        limiter = max(least, key=least.get)
        known = (kernels or {}).get(ours["row"]) or {}
        rows.append([case_text(record), record["state"], ours["row"], ours["ms"], limiter,
                     f"{100 * least[limiter] / ours['ms']:.0f}%", known.get("registers"),
                     known.get("shared_bytes")])
    head = ["case", "state", "kernel", "ms", "limited by", "of that ceiling", "registers",
            "shared memory, bytes"]
    return Table(head, rows, 3, "How near to the ceilings")


def roofline(records, ceilings):
    """Rates over arithmetic intensity, below what memory and tensor cores allow. None where no
    case or no ceiling is known."""
    groups = []
    for colour, name in enumerate(GROUPS):
        points = [Point(record["useful_flops"] / record["bytes"], record["ours"]["tflops"],
                        f"{case_text(record)}, {record['state']}: "
                        f"{number(record['ours']['tflops'])} TFLOPS at "
                        f"{number(record['useful_flops'] / record['bytes'])} FLOP/byte",
                        record["state"] != "sustained")
                  for record in records if group_of(record) == name
                  and record["ours"].get("tflops") and record["bytes"] and bounds(record, ceilings)]
        if points:
            groups.append(Group(name, colour, points))
    if not groups:
        return None
    return Scatter("Roofline", ["filled: sustained; rings: bursts and replays of graphs"],
                   "useful FLOP for each byte of inputs and results", f"TFLOPS of {OURS}", groups,
                   roofs(ceilings))


def roofs(ceilings):
    copy, far = ceilings[COPY], 1e7
    rates = {sustained: tensor_rate(ceilings, sustained)[0] for sustained in (False, True)}
    highest = max(rate for rate in rates.values() if rate)
    guides = [Guide([(1e-3, copy * 1e-3), (highest / copy, highest)], f"memory {copy:.2f} TB/s")]
    for sustained, rate in rates.items():
        if rate:
            said = "at the power limit" if sustained else "in bursts"
            guides.append(Guide([(rate / copy, rate), (far, rate)], f"{number(rate)} {said}",
                                -2 if not sustained else 12, sustained))
    return guides


def points_table(records, ceilings):
    rows = [[case_text(record), record["state"], group_of(record),
             record["useful_flops"] / record["bytes"], record["ours"]["tflops"]]
            for record in by_group(records) if record["ours"].get("tflops") and record["bytes"]
            and bounds(record, ceilings)]
    return Table(["case", "state", "group", "FLOP/byte", "TFLOPS"], rows, 3, "Roofline")
