"""Which cases pictures show, and where they are from."""

import re
from dataclasses import dataclass

from ..bench.cases import make_case
from ..bench.files import slug
from ..bench.machine_code import in_words
from ..bench.ratios import STATES, ratio, worst_first
from .case_tables import equal_at
from .distribution_chart import Distribution, Panel, Panels
from .error_chart import ErrorPanels, Speeds
from .line_chart import Chart, Line
from .reading import days_of, title_of
from .svg import GREY
from .sweep_tables import by_op
from .values import OURS, REFERENCES, measured

# A competitor has one colour in all pictures; who is not listed is grey.
COMPETITORS = (OURS, "fa4", "flashinfer", "sdpa_cudnn", "fa3", "flex", "sdpa_flash")
TOKENS = 16384  # of all sequences of a batch together; longer sequences come alone
SIZE = 8192  # of products
BLOCKS = (128, 64, 32, 16)


@dataclass
class Picture:
    file: str
    title: str
    svg: str


def select(records, op, x, params):
    """{x: record} of the sustained cases that have these parameters, that x, and defaults."""
    found = {}
    for record in records:
        at = record["params"].get(x)
        if ((record["op"], record["state"]) == (op, "sustained") and at
                and record["params"] == make_case(op, {**params(at), x: at}).params):
            found.setdefault(at, record)
    return dict(sorted(found.items()))


def lines_by_name(found, value):
    """A line for each competitor, ours last and so on top. None at all where ours has no point."""
    points = {}
    for x, record in found.items():
        for name, entry in {**measured(record), OURS: record["ours"]}.items():
            y = value(record, entry) if name not in REFERENCES and entry.get("ms") else None
            if y:
                points.setdefault(name, []).append((x, y))
    ours = points.pop(OURS, None)
    if not ours:
        return []
    colours = {name: colour for colour, name in enumerate(COMPETITORS)}
    lines = [Line(name, points[name], colours.get(name, GREY)) for name in sorted(points)]
    return [*lines, Line(OURS, ours, 0, "ours")]


def speed_up_over(dense):
    """How an entry's value is found: the time of the dense case over its own."""
    def value(record, entry):
        base = measured(record).get(dense)
        return base["ms"] / entry["ms"] if base else None
    return value


def with_ideal(lines):
    sparsest = min((x for line in lines for x, _ in line.points), default=1)
    ideal = Line("ideal, 1/density", [(sparsest, 1 / sparsest), (1, 1)], GREY, "ideal")
    return [ideal, *lines] if lines else []


def even_at(points):
    """The density at which a speed-up comes down to 1, where that is between two points."""
    text = equal_at([(x, 1 / y) for x, y in points]) if len(points) > 1 else ""
    return float(text) if re.fullmatch(r"[0-9.]+", text) else None


def attention_lengths(d, causal, dv=None):
    def chart(records):
        found = select(records, "attention", "s", lambda s: {
            "b": max(1, TOKENS // s), "d": d, "dv": dv or d, "causal": causal})
        lines = lines_by_name(found, lambda _, entry: entry["tflops"])
        dims = f"{d}" + (f":{dv}" if dv and dv != d else "")
        return Chart(f"Attention, head dimension {dims}, {'causal' if causal else 'full'}",
                     [f"bf16, 16 heads, batches of {TOKENS} tokens or one sequence, sustained"],
                     "TFLOPS", lines), [*found.values()]
    return chart


def all_lengths(records):
    """Charts of every head dimension that there is: {stem: what makes it}."""
    dims = {(record["params"]["d"], record["params"]["dv"]) for record in records
            if record["op"] == "attention"}
    return {f"attention-{d}" + (f"-{dv}" if dv != d else "") + ("-causal" if causal else "-full"):
            attention_lengths(d, causal, dv) for d, dv in sorted(dims) for causal in (False, True)}


def attention_densities(records):
    found = select(records, "attention", "density", lambda _: {
        "s": 32768, "block_q": 128, "pattern": "random"})
    lines = with_ideal(lines_by_name(found, speed_up_over("tessera_dense")))
    return Chart("Block-sparse attention: speed-up over dense",
                 ["bf16, 32768 positions, 16 heads of 128, random blocks of 128x128, sustained"],
                 "speed-up over tessera's own dense attention", lines,
                 speed_up=True), [*found.values()]


def attention_errors(records):
    """Speed over error of attention in FP8. What is in bf16 has no error of FP8."""
    found = select(records, "attention", "s", lambda s: {
        "b": max(1, TOKENS // s), "dtype": "e4m3"})
    colours = {name: colour for colour, name in enumerate(COMPETITORS)}
    panels = []
    for kind in ("normal", "difficult"):
        points = {}
        for s, record in found.items():
            for name, entry in {**measured(record), OURS: record["ours"]}.items():
                error = (entry.get("rms_error") or {}).get(kind)
                if error and entry.get("ms"):
                    points.setdefault(name, []).append((s, error, entry["tflops"]))
        lines = [Speeds(name, points[name], colours.get(name, GREY),
                        "ours" if name == OURS else "")
                 for name in sorted(points, key=lambda name: (name == OURS, name))]
        if OURS in points:
            panels.append(Panel(f"{kind} inputs", lines))
    return ErrorPanels("Attention in FP8: speed and error",
                       [f"e4m3, 16 heads of 128, full, batches of {TOKENS} tokens or one sequence,"
                        " sustained", "error: root of the mean square, relative to the truth; a "
                        "point per sequence length"], panels), [*found.values()]


def product_densities(records):
    found = {block: select(records, "bsr_matmul", "density", lambda _, block=block: {
        "m": SIZE, "n": SIZE, "k": SIZE, "block": block, "pattern": "random"}) for block in BLOCKS}
    # All lines are held against one kind of dense product.
    values = any("cublaslt_dense" in measured(record)
                 for by_density in found.values() for record in by_density.values())
    value = speed_up_over("cublaslt_dense" if values else "cublaslt")
    lines, shown = [], []
    for colour, (block, by_density) in enumerate(found.items()):
        for line in lines_by_name(by_density, value):
            if line.name == OURS:
                lines.append(Line(f"blocks of {block}", line.points, colour, "ours",
                                  even_at(line.points)))
                shown += [by_density[density] for density, _ in line.points]
    dense = "has random values" if values else "multiplies the zeros"
    about = [f"bf16, {SIZE}x{SIZE}x{SIZE}, random blocks, sustained; dense {dense}"]
    even = ", ".join(f"{line.even:.2f} ({line.name})" for line in lines if line.even)
    about += [f"as fast as dense at {even}"] if even else []
    return Chart("Sparse products: speed-up over dense cuBLASLt", about,
                 "speed-up over cuBLASLt", with_ideal(lines), speed_up=True), shown


def drawn_shapes(records):
    """Of sweeps' records: how the ratios of each operation are distributed."""
    panels, shown = [], []
    for op, some in by_op(records).items():
        lines = []
        for colour, (state, word) in enumerate(STATES.items()):
            chosen = worst_first(some, state)
            if chosen:
                lines.append(Distribution(word, [ratio(one) for one in chosen], colour))
                shown += chosen
        if lines:
            count = len(max(lines, key=lambda line: len(line.ratios)).ratios)
            panels.append(Panel(f"{op}, {count} shape{'s' * (count > 1)}", lines))
    return Panels("Shapes drawn at random: share of shapes below each ratio",
                  ["bf16, short bursts; the shapes of all seeds together",
                   "right of the line at 1x tessera is faster than the fastest alternative"],
                  panels), shown


# Name -> its charts: the ends of their files' names, and what makes each, and the cases that it
# shows, of all records of a card.
PICTURES = {
    "attention_128": {"attention-128-full": attention_lengths(128, False),
                      "attention-128-causal": attention_lengths(128, True)},
    "attention_64": {"attention-64-full": attention_lengths(64, False),
                     "attention-64-causal": attention_lengths(64, True)},
    "attention_density": {"attention-density": attention_densities},
    "attention_fp8_error": {"attention-fp8-error": attention_errors},
    "product_density": {"product-density": product_densities},
    "shapes": {"shapes": drawn_shapes},
}
# Those of sweeps' records.
OF_SWEEPS = ("shapes",)


def charts(makers, records):
    """(the end of a file's name, the chart, the cases that it shows) where there is something of
    ours to draw."""
    for stem, make in makers.items():
        chart, shown = make(records)
        if chart.lines:
            yield stem, chart, shown


def draw(name, results, kernels=None):
    """The pictures of that name: for each card those of which something of ours was measured.
    kernels: those of the tree."""
    drawn = []
    for card in dict.fromkeys(result["gpu"]["name"] for result in results):
        of_card = [result for result in results if result["gpu"]["name"] == card]
        records = [record for result in of_card for record in result["cases"]]
        for stem, chart, shown in charts(PICTURES[name], records):
            origin = provenance([result for result in of_card if any(
                one is record for one in shown for record in result["cases"])], shown, kernels)
            file = slug(f"{card} {stem}") + ".svg"
            svg = chart.drawing(origin).alone()
            drawn.append(Picture(file, ", ".join([chart.title, *origin[1:]]), svg))
    return drawn


def provenance(results, shown, kernels):
    """Card and days, and a line more where some of the shown cases are stale."""
    return [", ".join([title_of(results[0]), *days_of(*results)]), *in_words(shown, kernels)]
