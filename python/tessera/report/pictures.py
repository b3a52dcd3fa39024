"""Which cases pictures show, and where they are from. A chart of the documentation and one of the
page are the same, but for the width."""

import re
from dataclasses import dataclass, replace

from ..bench.cases import make_case
from ..bench.files import slug
from ..bench.machine_code import in_words
from . import heat_map, line_chart, model_error, scatter, strip
from .case_tables import equal_at
from .heat_map import Cell, HeatMap
from .line_chart import Chart, Line
from .svg import GREY
from .table import Table
from .values import DENSE, OURS, REFERENCES, joules_of, measured, number, of_dense

RENDER = {Chart: line_chart.render, scatter.Scatter: scatter.render, HeatMap: heat_map.render,
          strip.Strip: strip.render}
CONTENTS = {Chart: "lines", scatter.Scatter: "groups", HeatMap: "cells", strip.Strip: "rows"}
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


def rate(_, entry):
    return entry["tflops"]


def joules(_, entry):
    return joules_of(None, entry)


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


def attention_lengths(d, causal, dv=None, y_name="TFLOPS", value=rate, of="Attention"):
    def chart(records):
        found = select(records, "attention", "s", lambda s: {
            "b": max(1, TOKENS // s), "d": d, "dv": dv or d, "causal": causal})
        dims = f"{d}" + (f":{dv}" if dv and dv != d else "")
        return Chart(f"{of}, head dimension {dims}, {'causal' if causal else 'full'}",
                     [f"bf16, 16 heads, batches of {TOKENS} tokens or one sequence, sustained"],
                     y_name, lines_by_name(found, value)), [*found.values()]
    return chart


def attention_joules(d, causal):
    return attention_lengths(d, causal, None, "joules for each useful TFLOP", joules,
                             "Energy of attention")


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
                 "times as quick as tessera's own dense attention", lines,
                 speed_up=True), [*found.values()]


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
    about += [f"as quick as dense at {even}"] if even else []
    return Chart("Sparse products: speed-up over dense cuBLASLt", about,
                 "times as quick as cuBLASLt", with_ideal(lines), speed_up=True), shown


def block_and_density(op, dense, title, about, sizes, block_of):
    """How much of the dense rate is left, by block and density."""
    def chart(records):
        cells, shown = {}, []
        for record in records:
            p, entry = record["params"], measured(record).get(dense)
            if (record["op"], record["state"], p.get("pattern")) != (op, "sustained", "random"):
                continue
            if any(p[name] != size for name, size in sizes.items()):
                continue
            wanted = {**sizes, "pattern": "random", "density": p["density"],
                      **{name: p[name] for name in ("block", "block_cols", "block_q", "block_kv")
                         if name in p}}
            share = of_dense(record)
            if share is None or entry is None or p != make_case(op, wanted).params:
                continue
            times = entry["ms"] / record["ours"]["ms"]
            cells[block_of(p), p["density"]] = Cell(
                share, [f"{share:.2f}", f"{times:.2f}x" if times < 10 else f"{number(times)}x"],
                f"blocks of {block_of(p)}, density {p['density']:g}: {share:.2f} of the dense "
                f"rate, {number(times)} times as quick")
            shown.append(record)
        rows = sorted({row for row, _ in cells}, key=lambda row: [-int(n) for n in row.split("x")])
        columns = sorted({column for _, column in cells}, reverse=True)
        texts = {column: f"{column:.3g}" for column in columns}
        named = {(row, texts[column]): cell for (row, column), cell in cells.items()}
        return HeatMap(title, about, "block", "density", rows, list(texts.values()), named), shown
    return chart


ABOUT_HEAT = ["large: our rate on stored blocks as a share of the dense rate; small: speed-up; "
              "a dot: not measured"]
attention_blocks = block_and_density(
    "attention", DENSE["attention"], "Block-sparse attention by block and density",
    ["bf16, 32768 positions, 16 heads of 128, random blocks, sustained", *ABOUT_HEAT],
    {"s": 32768}, lambda p: f"{p['block_q']}x{p['block_kv']}")
product_blocks = block_and_density(
    "bsr_matmul", DENSE["bsr_matmul"], "Sparse products by block and density",
    [f"bf16, {SIZE}x{SIZE}x{SIZE}, random blocks, sustained; dense: cuBLASLt, random values",
     *ABOUT_HEAT], {"m": SIZE, "n": SIZE, "k": SIZE},
    lambda p: f"{p['block']}" + (f"x{p['block_cols']}" if "block_cols" in p else ""))


def predictions(records):
    return model_error.chart(records, 540), model_error.predicted(records)


# Name -> its charts: the ends of their files' names, and what makes each, and the cases that it
# shows, of all records of a card.
PICTURES = {
    "attention_128": {"attention-128-full": attention_lengths(128, False),
                      "attention-128-causal": attention_lengths(128, True)},
    "attention_64": {"attention-64-full": attention_lengths(64, False),
                     "attention-64-causal": attention_lengths(64, True)},
    "attention_density": {"attention-density": attention_densities},
    "product_density": {"product-density": product_densities},
    "model_error": {"model-error": predictions},
}


def empty(chart):
    """Whether there is nothing to draw."""
    return not vars(chart)[CONTENTS[type(chart)]]


def drawing(chart, **changes):
    return RENDER[type(chart)](replace(chart, **changes))


def table_of(chart):
    """The figures of a line chart or a heat map."""
    if isinstance(chart, Chart):
        lines = [line for line in chart.lines if line.kind != "ideal"]
        lines.sort(key=lambda line: line.kind != "ours")
        columns = [dict(line.points) for line in lines]
        head = [line.name for line in lines]
        rows = [[x, *(column.get(x) for column in columns)]
                for x in sorted({x for column in columns for x in column})]
        return Table([chart.x_name, *head], [[f"{row[0]:g}", *row[1:]] for row in rows], 1,
                     f"{chart.title}: {chart.y_name}")
    rows = [[row, column, *cell.lines] for (row, column), cell in chart.cells.items()]
    return Table([chart.row_name, chart.column_name, "share of the dense rate", "speed-up"], rows,
                 2, chart.title)


def draw(name, results, kernels=None):
    """The pictures of that name: for each card those of which something of ours was measured.
    kernels: those of the tree."""
    drawn = []
    for card in dict.fromkeys(result["gpu"]["name"] for result in results):
        of_card = [result for result in results if result["gpu"]["name"] == card]
        records = [record for result in of_card for record in result["cases"]]
        for stem, make in PICTURES[name].items():
            chart, shown = make(records)
            if not empty(chart):
                origin = provenance([result for result in of_card if any(
                    one is record for one in shown for record in result["cases"])], shown, kernels)
                file = slug(f"{card} {stem}") + ".svg"
                svg = drawing(chart, about=[*chart.about, *origin]).alone()
                drawn.append(Picture(file, ", ".join([chart.title, *origin[1:]]), svg))
    return drawn


def provenance(results, shown, kernels):
    """Card and days, and a line more where some of the shown cases are stale."""
    gpu = results[0]["gpu"]
    days = {part["date"][:10] for result in results for part in result.get("parts") or [result]}
    watts = [f"{gpu['power_limit_w']:.0f} W"] if gpu.get("power_limit_w") else []
    return [", ".join([gpu["name"], *watts, *sorted(days)]), *in_words(shown, kernels)]
