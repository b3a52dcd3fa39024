"""What Nsight Compute says of one kernel, as a small extract: which counters are asked for, reading
`ncu --csv --page raw`, and the extract as JSON and as text. Needs nothing but Python itself, so
that scripts can use it without the compiled package."""

import csv
import math
import re

from .files import slug

# A name of ours, and the counters that may give it: the first that is there counts. Each is
# optional: ncu's versions and chips differ in what they know.
COUNTERS = {
    "duration": ("gpu__time_duration.sum",),
    "clock": ("gpc__cycles_elapsed.avg.per_second", "smsp__cycles_elapsed.avg.per_second"),
    "sm": ("sm__throughput.avg.pct_of_peak_sustained_elapsed",),
    "tensor": ("sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",),
    "l1": ("l1tex__throughput.avg.pct_of_peak_sustained_active",),
    "shared": ("l1tex__data_pipe_lsu_wavefronts_mem_shared.sum.pct_of_peak_sustained_elapsed",),
    "l2": ("lts__throughput.avg.pct_of_peak_sustained_elapsed",),
    "dram": ("gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
             "dram__throughput.avg.pct_of_peak_sustained_elapsed"),
    "issue": ("smsp__issue_active.avg.pct_of_peak_sustained_active",),
    "wavefronts": ("l1tex__data_pipe_lsu_wavefronts_mem_shared.sum",),
    "bank_conflicts": ("l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum",),
    "registers": ("launch__registers_per_thread",),
    "static_shared": ("launch__shared_mem_per_block_static",),
    "dynamic_shared": ("launch__shared_mem_per_block_dynamic",),
    "waves": ("launch__waves_per_multiprocessor",),
    "occupancy": ("sm__warps_active.avg.pct_of_peak_sustained_active",),
    "occupancy_limit": ("sm__maximum_warps_per_active_cycle_pct",),
    "l2_bytes": ("lts__t_bytes.sum",),
    "l2_hit": ("lts__t_sector_hit_rate.pct",),
    "dram_read": ("dram__bytes_read.sum",),
    "dram_write": ("dram__bytes_write.sum",),
    "instructions": ("smsp__inst_executed.sum",),
    "per_cycle": ("sm__inst_executed.avg.per_cycle_active",),
    "wgmma": ("sm__inst_executed_pipe_tensor_op_gmma.sum",),
}
# Why a warp does not issue. "selected" is the one that does.
STALLS = ("barrier", "branch_resolving", "dispatch_stall", "drain", "gmma", "imc_miss",
          "lg_throttle", "long_scoreboard", "math_pipe_throttle", "membar", "mio_throttle", "misc",
          "no_instruction", "not_selected", "selected", "short_scoreboard", "sleeping",
          "tex_throttle", "wait")
STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
MOST_STALLS = 6
# What may limit a kernel, and from which share of its peak on it does.
LIMITERS = {"tensor": "tensor cores", "l1": "L1 and shared memory", "l2": "L2", "dram": "memory"}
LIMIT = 60.0

SECONDS = {"s": 1.0, "second": 1.0, "ms": 1e-3, "msecond": 1e-3, "us": 1e-6, "usecond": 1e-6,
           "ns": 1e-9, "nsecond": 1e-9}
PREFIXES = {"K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
SCALED = re.compile(r"([KMGT])(byte|hz|Hz|inst|cycle|sector)$")


class NoProfile(RuntimeError):
    """Why there is nothing to extract."""


def counters():
    """Every counter to ask for."""
    return [name for names in COUNTERS.values() for name in names] + [
        STALL.format(reason) for reason in STALLS]


def unit_scale(unit):
    """What a value in ncu's unit is multiplied by, to be in seconds, bytes, hertz or counts."""
    above, _, below = unit.strip().partition("/")
    prefixed = SCALED.fullmatch(above)
    scale = PREFIXES[prefixed[1]] if prefixed else SECONDS.get(above, 1.0)
    return scale / SECONDS.get(below, 1.0)


def value_of(text, unit):
    """None where ncu has no value."""
    try:
        value = float(text.replace(",", "")) * unit_scale(unit)
    except ValueError:
        return None
    return None if math.isnan(value) else value


def read_raw(text):
    """[{"kernel", "grid", "block", "values": {counter: number}}] of the CSV's raw page: a line of
    names, one of units, one a kernel. What ncu says around them begins with ==."""
    lines = [line for line in text.splitlines() if line.startswith('"')]
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None or len(lines) < start + 3:
        raise NoProfile("ncu wrote no table: expected a line that begins with \"ID\", one of units "
                        "and one for each kernel")
    names, units, *rows = csv.reader(lines[start:])
    kernels = []
    for row in rows:
        if len(row) != len(names):
            raise NoProfile(f"ncu's table: expected {len(names)} columns, got {len(row)}")
        fields = dict(zip(names, row, strict=True))
        cells = zip(names, units, row, strict=True)
        values = {name: value_of(cell, unit) for name, unit, cell in cells if "__" in name}
        kernel = re.sub(r"<?unnamed>::", "", fields.get("Kernel Name", ""))
        kernels.append({"kernel": kernel, "grid": fields.get("Grid Size"),
                        "block": fields.get("Block Size"), "values": values})
    return kernels


def extent(text):
    """How many, of "(132, 1, 1)"."""
    numbers = [int(word) for word in re.findall(r"\d+", text or "")]
    product = 1
    for number in numbers:
        product *= number
    return product if numbers else None


def extract_of(kernels):
    """The extract of the kernel that took longest; the others are named."""
    if not kernels:
        raise NoProfile("ncu's table has no kernel")
    found = [(_pick(one["values"], "duration"), one) for one in kernels]
    if all(duration is None for duration, _ in found):
        raise NoProfile("ncu gave no kernel's duration")
    longest = max(found, key=lambda pair: pair[0] or 0.0)[1]
    values = longest["values"]
    c = {name: _pick(values, name) for name in COUNTERS}
    shared = [c[name] for name in ("static_shared", "dynamic_shared") if c[name] is not None]
    return {
        "kernel": longest["kernel"],
        "duration_us": _times(c["duration"], 1e6),
        "clock_mhz": _times(c["clock"], 1e-6),
        "speed_of_light": {name: c[name] for name in
                           ("sm", "tensor", "l1", "shared", "l2", "dram", "issue")},
        "limiter": limiter(c),
        "stalls": stalls(values),
        "shared_memory": {name: c[name] for name in ("wavefronts", "bank_conflicts")},
        "launch": {"blocks": extent(longest["grid"]), "threads": extent(longest["block"]),
                   "registers": c["registers"], "shared_bytes": sum(shared) if shared else None,
                   "waves": c["waves"], "occupancy": c["occupancy"],
                   "occupancy_limit": c["occupancy_limit"]},
        "traffic": {"l2_bytes": c["l2_bytes"], "l2_hit": c["l2_hit"],
                    "dram_read_bytes": c["dram_read"], "dram_write_bytes": c["dram_write"]},
        "instructions": {"executed": c["instructions"], "per_cycle": c["per_cycle"],
                         "wgmma": c["wgmma"]},
        "other_kernels": [{"kernel": one["kernel"], "duration_us": _times(duration, 1e6)}
                          for duration, one in found if one is not longest],
        "missing": [name for name in COUNTERS if c[name] is None],
    }


def _pick(values, name):
    given = (values.get(counter) for counter in COUNTERS[name])
    return next((value for value in given if value is not None), None)


def _times(value, factor):
    return None if value is None else value * factor


def limiter(c):
    """What is nearest to its peak, where that is near enough to limit."""
    known = {name: c[name] for name in LIMITERS if c[name] is not None}
    if not known:
        return None
    name = max(known, key=known.__getitem__)
    return LIMITERS[name] if known[name] >= LIMIT else "latency"


def stalls(values):
    """The most frequent states of a warp, in percent of all."""
    given = {reason: values.get(STALL.format(reason)) for reason in STALLS}
    total = sum(value for value in given.values() if value is not None)
    if not total:
        return []
    shares = sorted(((100 * value / total, reason) for reason, value in given.items() if value),
                    reverse=True)
    return [{"reason": reason, "percent": share} for share, reason in shares[:MOST_STALLS]]


def text_of(profile):
    """The extract for people, a short page."""
    light, launch = profile["speed_of_light"], profile["launch"]
    traffic, did = profile["traffic"], profile["instructions"]
    shared = profile["shared_memory"]
    rate = profile.get("useful_tflops")

    def of(value, unit="", digits=4):
        if value is None:
            return "?"
        return f"{value:,.0f}{unit}" if abs(value) >= 1000 else f"{value:.{digits}g}{unit}"

    def megabytes(value):
        return of(None if value is None else value / 1e6, " MB")

    clocks = {"none": "free", "base": "locked to base by ncu"}[profile["clocks"]]
    lines = [
        f"{profile['label']}: {profile['row'] or 'no row'}",
        f"{profile['gpu']}, {profile['date'][:10]}, "
        f"commit {(profile['commit'] or 'unknown')[:12]}, {profile['ncu']}",
        f"time            {of(profile['duration_us'], ' us')} at "
        f"{of(profile['clock_mhz'], ' MHz')} (clocks: {clocks})"
        + (f", {of(rate)} useful TFLOPS" if rate else ""),
        f"speed of light  tensor {of(light['tensor'], '%')}, SM {of(light['sm'], '%')}, "
        f"L1 {of(light['l1'], '%')}, shared (LSU) {of(light['shared'], '%')}, "
        f"L2 {of(light['l2'], '%')}, memory {of(light['dram'], '%')}, "
        f"issue slots {of(light['issue'], '%')}",
        f"limiter         {profile['limiter'] or '?'}",
        "warps           " + (", ".join(f"{one['reason']} {of(one['percent'], '%', 3)}"
                                        for one in profile["stalls"]) or "?"),
        f"shared memory   {of(shared['bank_conflicts'])} bank conflicts in "
        f"{of(shared['wavefronts'])} wavefronts",
        f"launch          {of(launch['blocks'])} blocks of {of(launch['threads'])} threads, "
        f"{of(launch['registers'])} registers, {of(launch['shared_bytes'])} bytes shared, "
        f"{of(launch['waves'])} waves, occupancy {of(launch['occupancy'], '%')} of at most "
        f"{of(launch['occupancy_limit'], '%')}",
        f"traffic         L2 {megabytes(traffic['l2_bytes'])}, hits {of(traffic['l2_hit'], '%')}; "
        f"memory {megabytes(traffic['dram_read_bytes'])} read, "
        f"{megabytes(traffic['dram_write_bytes'])} written",
        f"instructions    {of(did['executed'])}, {of(did['per_cycle'])} a clock and "
        f"multiprocessor; {of(did['wgmma'])} wgmma",
    ]
    lines += [f"also launched   {one['kernel'][:60]}: {of(one['duration_us'], ' us')}"
              for one in profile["other_kernels"]]
    if profile["missing"]:
        lines.append("not known here  " + ", ".join(profile["missing"]))
    return "\n".join(lines) + "\n"


def file_stem(card, label):
    """CARD-CASE, as a name of files."""
    return slug(f"{card} {label}")
