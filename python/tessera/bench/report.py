"""Results as Markdown: the tables of the documentation. Needs nothing but Python itself, so that
scripts can use it without the compiled package."""

import re

from .cases import LISTS, case_key, label
from .sources import measured_at, stale_hashes

OPS = ("matmul", "bsr_matmul", "sddmm", "spgemm", "attention", *LISTS)
STATES = {
    "sustained": "Sustained: seconds without a rest, at the power limit",
    "burst": "Bursts: short runs in turns, at the full clock",
    "graph": "Replays of a captured graph",
}
# No peers: the case with nothing left out. Where no operand is sparse, cublaslt's is that already.
DENSE = {"bsr_matmul": "cublaslt_dense", "spgemm": "cublaslt_dense", "attention": "tessera_dense",
         "matmul": "cublaslt", "sddmm": "cublaslt"}
REFERENCES = ("cublaslt_dense", "tessera_dense")
NOTABLE_SPREAD = 0.05
LONGEST_REASON = 200


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
    figure = entry.get("joules_per_tflop")
    return None if figure is None else figure * entry["tflops"] / rate_of(name, entry)


def measured(record):
    """{name: entry} of the peers that have a time."""
    return {name: entry for name, entry in record["peers"].items() if "ms" in entry}


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
    if dense is None or "ms" not in record["ours"]:
        return None
    return record["ours"]["tflops"] / whole_rate(dense)


def within(value, spread):
    """The value, with half the spread where that is notable."""
    notable = spread / 2 > NOTABLE_SPREAD
    return number(value) + (f" ±{100 * spread / 2:.0f}%" if notable else "")


class Notes:
    """Reasons, numbered: equal ones share a number."""

    def __init__(self):
        self.names = {}  # reason -> whose

    def mark(self, name, reason):
        self.names.setdefault(reason, {})[name] = True
        return f"- ({list(self.names).index(reason) + 1})"

    def lines(self):
        return [f"({place + 1}) {', '.join(names)}: {plain(reason)}  "
                for place, (reason, names) in enumerate(self.names.items())]


def plain(text):
    """Text that Markdown leaves as it is, in one line."""
    text = " ".join(text.split())
    text = text if len(text) <= LONGEST_REASON else text[: LONGEST_REASON - 3] + "..."
    for sign in "\\`*_|<[":
        text = text.replace(sign, "\\" + sign)
    return text


def rows_of(head, rows, left):
    """A Markdown table; the first `left` columns are aligned to the left. Empty columns go."""
    kept = [i for i in range(len(head)) if i < left or any(row[i] for row in rows)]

    def line(cells):
        return "| " + " | ".join(cells[i] for i in kept) + " |"

    rule = "|" + "".join("---|" if i < left else "---:|" for i in kept)
    return [line(head), rule, *(line(row) for row in rows)]


def state_table(records, notes):
    """One state: a case a line, a competitor a column, with how many times quicker ours is."""
    names = list(dict.fromkeys(name for record in records for name in record["peers"]))
    head = ["case", "in", "tessera", "best peer", "of the dense rate", *names, "J/TFLOP"]
    rows = []
    for record in records:
        ours, peers = record["ours"], measured(record)
        ms = ours.get("ms")
        best = min((name for name in peers if name not in REFERENCES),
                   key=lambda name: peers[name]["ms"], default=None)
        row = [case_text(record), unit_of(record), value_cell(record, "tessera", ours, notes)]
        row.append(f"{best} {peers[best]['ms'] / ms:.2f}x" if best and ms else best or "")
        share = of_dense(record)
        row.append("" if share is None else f"{share:.2f}")
        for name in names:
            entry = record["peers"].get(name)
            cell = "" if entry is None else value_cell(record, name, entry, notes)
            row.append(cell + (f", {entry['ms'] / ms:.2f}x" if ms and name in peers else ""))
        row.append(number(ours.get("joules_per_tflop")))
        rows.append(row)
    return rows_of(head, rows, left=2)


def value_cell(record, name, entry, notes):
    if "unavailable" in entry:
        return notes.mark(name, entry["unavailable"])
    text = within(value_of(record, name, entry), entry["spread"])
    pattern = entry.get("symbolic_ms")
    return text + (f", pattern {number(pattern * 1e3)} us" if pattern is not None else "")


def comparison(records):
    """A table for each state, and the reasons of who is missing below them."""
    notes, out = Notes(), []
    for state, title in STATES.items():
        chosen = [record for record in records if record["state"] == state]
        if chosen:
            chosen.sort(key=lambda record: OPS.index(record["op"]))
            out += [f"{title}.", "", *state_table(chosen, notes), ""]
    return out + notes.lines()


def lists(records):
    """What making lists takes, and as a share of the attention that walks them: at its power limit,
    where that was measured."""
    walked, rows, notes = {}, [], Notes()
    for record in sorted(records, key=lambda record: record["state"] == "sustained"):
        if record["op"] == "attention" and "ms" in record["ours"]:
            walked[case_key("attention", record["params"])] = record["ours"]["ms"]
    for record in records:
        ours, attention = record["ours"], walked.get(case_key("attention", record["params"]))
        if record["op"] in LISTS:
            share = 100 * ours["ms"] / attention if attention and "ms" in ours else None
            rows.append([case_text(record), record["state"],
                         value_cell(record, "tessera", ours, notes),
                         number(attention), "" if share is None else f"{number(share, 2)}%"])
    head = ["case", "state", "lists, us", "attention, ms", "lists / attention"]
    return [*rows_of(head, rows, left=2), *notes.lines()] if rows else []


def workloads(records):
    """A case a line: ours, the case with nothing left out, and the best of the peers."""
    notes, rows = Notes(), []
    for record in records:
        ours, peers = record["ours"], measured(record)
        dense = next((peers.pop(name) for name in REFERENCES if name in peers), None)
        best = min(peers, key=lambda name: peers[name]["ms"], default=None)
        cells = [ours, dense, peers.get(best)]
        times = [one["ms"] if one and "ms" in one else None for one in cells]
        row = [case_text(record), record["state"], *(
            within(ms, one["spread"]) if ms else "" for ms, one in zip(times, cells, strict=True))]
        row[2] = row[2] or notes.mark("tessera", ours["unavailable"])
        row[4] = f"{best} {row[4]}" if best else ""
        row += [f"{ms / times[0]:.2f}x" if ms and times[0] else "" for ms in times[1:]]
        row.append(", ".join(f"{name} {notes.mark(name, entry['unavailable'])}"
                             for name, entry in record["peers"].items() if "ms" not in entry))
        rows.append(row)
    head = ["case", "state", "tessera, ms", "dense, ms", "best peer, ms", "over dense",
            "over the peer", "without"]
    return [*rows_of(head, rows, left=2), "", *notes.lines()] if rows else []


def energy(records):
    """Joules for each useful TFLOP; without those there is no line."""
    records = [record for record in records
               if any(entry.get("joules_per_tflop") is not None
                      for entry in (record["ours"], *record["peers"].values()))]
    if not records:
        return []
    names = list(dict.fromkeys(name for record in records for name in record["peers"]))
    rows = [[case_text(record), *(number(joules_of(name, entry)) for name, entry in (
        ("tessera", record["ours"]), *((name, record["peers"].get(name, {})) for name in names)))]
        for record in sorted(records, key=lambda record: OPS.index(record["op"]))]
    return rows_of(["case (J/TFLOP)", "tessera", *names], rows, left=1)


def crossover(records):
    """The density from which the dense product is quicker, for each size of blocks."""
    series = {}
    for record in records:
        p = record["params"]
        if (record["op"], p.get("side"), p.get("pattern")) != ("bsr_matmul", "a", "random"):
            continue
        if "ms" in record["ours"] and "cublaslt" in measured(record):
            block = f"{p['block']}" + (f"x{p['block_cols']}" if "block_cols" in p else "")
            key = f"{p['m']}x{p['n']}x{p['k']} {p['dtype']}", block, record["state"]
            share = record["ours"]["ms"] / record["peers"]["cublaslt"]["ms"]
            series.setdefault(key, []).append((p["density"], share))
    rows = [[*key, equal_at(sorted(points)), ", ".join(f"{d:g}" for d, _ in sorted(points))]
            for key, points in series.items() if len(points) > 1]
    head = ["size", "block", "state", "as quick as dense at", "from the densities"]
    return rows_of(head, rows, left=3) if rows else []


def equal_at(points):
    """Where the time, as a share of the dense product's, is one; points are (density, share)."""
    if points[0][1] >= 1:
        return f"below {points[0][0]:g}"
    pairs = list(zip(points, points[1:], strict=False))
    (d0, t0), (d1, t1) = next((pair for pair in pairs if pair[1][1] >= 1), pairs[-1])
    if t1 <= t0:
        return "never"
    density = d0 + (1 - t0) * (d1 - d0) / (t1 - t0)
    if density > 1:
        return "never"
    return f"{density:.2f}" + ("" if t1 >= 1 else " (extrapolated)")


def ceilings_and_tests(result):
    """What the card gave without any of our kernels, and how the tests ended."""
    c, texts = result["ceilings"], []
    if "copy_tbs" in c:
        texts.append(f"A copy moves {c['copy_tbs']:.2f} TB/s. cuBLAS multiplies 8192x8192x8192 in "
                     f"bf16 at {number(c['cublas_bf16'])} TFLOPS in bursts, "
                     f"{number(c['cublas_bf16_sustained'])} sustained.")
    outcomes = [test["outcome"] for test in result["tests"]]
    if outcomes:
        counts = (f"{outcomes.count(word)} {word}" for word in ("passed", "failed", "skipped")
                  if word in outcomes)
        texts.append("Tests: " + ", ".join(counts) + ".")
    return [" ".join(texts)] if texts else []


TENSOR_KEY = re.compile(r"tensor_(?P<type>[a-z0-9]+)_n(?P<n>\d+)(?P<rs>_rs)?_tflops")
OTHER_CEILINGS = {
    "l2_to_shared_tbs": "L2 to shared memory, TB/s",
    "hbm_read_tbs": "memory, read, TB/s",
    "copy_tbs": "memory, copied, bytes read and written, TB/s",
    "launch_us": "a launch in a stream, us",
    "graph_launch_us": "a kernel node of a graph, us",
    "overlapped_launch_us": "the same with programmatic launches, us",
}


def ceilings(result):
    """What the card gives without any of our kernels, where the program of bench/ceilings ran."""
    c = result["ceilings"]
    found = [match for match in map(TENSOR_KEY.fullmatch, c) if match]
    rows = []
    for key in found:
        name, depth = key[0].removesuffix("_tflops"), 32 if key["type"] == "e4m3" else 16
        text = f"wgmma {key['type']} 64x{key['n']}x{depth}"
        row = [text + (", A in registers" if key["rs"] else "")]
        for figure in ("tflops", "mhz", "sustained_tflops", "sustained_mhz", "sustained_watts",
                       "sustained_joules_per_tflop"):
            row.append(number(c.get(f"{name}_{figure}")))
        rows.append(row)
    if rows and "cublas_bf16" in c:
        rows.append(["cuBLAS bf16 8192x8192x8192", number(c["cublas_bf16"]), "",
                     number(c.get("cublas_bf16_sustained")), "", "", ""])
    head = ["tensor cores", "burst, TFLOPS", "MHz", "sustained, TFLOPS", "MHz", "W", "J/TFLOP"]
    lines = [*rows_of(head, rows, left=1), ""] if rows else []
    others = [[text, number(c[key])] for key, text in OTHER_CEILINGS.items() if key in c]
    if not found and set(c) <= {"copy_tbs", "cublas_bf16", "cublas_bf16_sustained"}:
        return []
    return [*lines, *rows_of(["what", "measured"], others, left=1)] if others else lines[:-1]


def host_times(entries):
    """What calls in C++ cost the host."""
    rows = [[one["call"], within(one["us"], one["spread"]), number(one["with_plan_us"]),
             one["row"]] for one in entries]
    return rows_of(["call", "run, us", "with planning, us", "kernel"], rows, left=1) if rows else []


def provenance(result, current=None, records=None):
    """Where these records' figures, or all, are from, in a line; one more before it where their
    kernels have changed since. `current`: the hashes of the tree."""
    gpu, toolkit = result["gpu"], result["toolkit"]
    words = [gpu["name"] if gpu else result["cpu"]["name"]]
    if gpu:
        words += [f"{gpu['power_limit_w']:.0f} W"] if gpu.get("power_limit_w") else []
        words += [f"driver {gpu['driver']}"] if gpu.get("driver") else []
        words += [f"CUDA {toolkit['cuda']}"] if toolkit.get("cuda") else []
    parts = result.get("parts") or [result]
    words += sorted({part["date"][:10] for part in parts})
    commits = sorted({part["commit"] for part in parts if part["commit"]})
    words += [f"commit {one.rstrip('+')[:12]}" + ("+" if one.endswith("+") else "") for one in commits]
    hashes = measured_at(result, records)
    line = ", ".join(words) + f", kernel sources {', '.join(map(str, hashes))}"
    stale = stale_hashes(hashes, current)
    return [f"stale, measured at {', '.join(stale)}", line] if stale else [line]
