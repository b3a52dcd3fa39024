"""What the card can do at most, as measured on it, and how near each case comes."""

import re

from .scatter import Group, Guide, Point, Scatter
from .table import Table
from .values import GROUPS, OURS, by_group, case_text, group_of, number

COPY = "copy_tbs"
CUBLAS = {"sustained": "cublas_bf16_sustained", "burst": "cublas_bf16"}
TENSOR = re.compile(r"tensor_(?P<type>[a-z0-9]+)_n(?P<n>\d+)(?P<rs>_rs)?_"
                    r"(?P<figure>(sustained_)?(tflops|mhz|watts|joules_per_tflop))")
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


def best_of(results):
    """{name: figure}: the best that the card showed in any of these files. Rates are best when
    high, times when low; what else there is, such as clocks, is the first file's."""
    best = {}
    for result in results:
        for measured in (result["ceilings"], *(part["ceilings"] for part in
                                               result.get("parts") or [])):
            for name, figure in measured.items():
                if figure > 0:
                    rate = name.endswith(("_tbs", "_tflops")) or name in CUBLAS.values()
                    known = best.get(name, figure)
                    best[name] = (max(known, figure) if rate else min(known, figure)
                                  if name.endswith("_us") else known)
    return best


def tensor_rate(ceilings, sustained):
    """(TFLOPS, name): the highest rate of the tensor cores in bf16, in bursts or at the power
    limit."""
    figure = "sustained_tflops" if sustained else "tflops"
    names = [name for name in ceilings if name == CUBLAS["sustained" if sustained else "burst"]]
    names += [key[0] for key in map(TENSOR.fullmatch, ceilings)
              if key and (key["type"], key["figure"]) == ("bf16", figure)]
    return max(((ceilings[name], name) for name in names), default=(None, None))


def tensor_table(ceilings):
    """A line for each instruction that was measured, and cuBLAS."""
    rows = []
    for key in map(TENSOR.fullmatch, ceilings):
        if key and key["figure"] == "tflops":
            depth = 32 if key["type"] == "e4m3" else 16
            text = f"wgmma {key['type']} 64x{key['n']}x{depth}"
            rows.append([text + (", A in registers" if key["rs"] else ""), *(
                ceilings.get(key[0].removesuffix("tflops") + name) for name in TENSOR_FIGURES)])
    if CUBLAS["burst"] in ceilings:
        rows.append(["cuBLAS bf16 8192x8192x8192", ceilings[CUBLAS["burst"]], None,
                     ceilings.get(CUBLAS["sustained"]), None, None, None])
    head = ["tensor cores", "burst, TFLOPS", "MHz", "sustained, TFLOPS", "MHz", "W", "J/TFLOP"]
    return Table(head, rows, 1, "Tensor cores, without any of our kernels")


def other_table(ceilings):
    """What else was measured; a name that nothing is known of stands for itself."""
    rows = [[text, ceilings[name]] for name, text in OTHERS.items() if name in ceilings]
    rows += [[name, figure] for name, figure in ceilings.items()
             if name not in (*OTHERS, *CUBLAS.values()) and not TENSOR.fullmatch(name)]
    return Table(["what", "measured"], rows, 1, "Memory and launches")


def bounds(record, ceilings):
    """{limiter: the least ms that it allows}; nothing where a ceiling is unknown, or the type is
    not one that it was measured in."""
    rate = tensor_rate(ceilings, record["state"] == "sustained")[0]
    if record["params"]["dtype"] not in ("bf16", "f16") or not rate or COPY not in ceilings:
        return {}
    return {"tensor cores": record["useful_flops"] / rate / 1e9,
            "memory": record["bytes"] / ceilings[COPY] / 1e9}


def speed_of_light(records, ceilings, launches=None):
    """How much of what limits it a case uses. launches: what profiles know, {row: {"registers",
    "shared_bytes"}}."""
    rows = []
    for record in by_group(records):
        ours, least = record["ours"], bounds(record, ceilings)
        if "ms" not in ours or not record["useful_flops"] or not least:
            continue
        limiter = max(least, key=least.get)
        known = (launches or {}).get(ours["row"], {})
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
