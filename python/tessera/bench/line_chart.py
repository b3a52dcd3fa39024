"""Line charts as SVG, readable in light and dark mode, with the labels where the lines end. Equal
charts give equal bytes on every machine."""

import math
from dataclasses import dataclass
from html import escape

from .report import number

# The last one is for what has no colour of its own.
LIGHT = ("#0969da", "#bc4c00", "#1a7f37", "#8250df", "#bf3989", "#9a6700", "#1b7c83", "#59636e")
DARK = ("#4493f8", "#f0883e", "#3fb950", "#ab7df8", "#db61a2", "#d29922", "#39c5cf", "#9198a1")
GREY = len(LIGHT) - 1

WIDTH, LEFT, RIGHT, TOP, PLOT_HEIGHT = 540, 50, 384, 104, 224
LABELS, LABEL_GAP, TICK_GAP = RIGHT + 18, 16, 34  # labels stand in a column of their own
LONGEST_LABEL, LONGEST_LINE = 20, 84  # in characters
STYLE = """
.card{fill:#fff;stroke:#d0d7de}.t{fill:#1f2328}.s{fill:#59636e}.g{stroke:#d0d7de}.e{stroke:#59636e}
text{font:12px ui-sans-serif,-apple-system,"Segoe UI",Helvetica,Arial,sans-serif}
.l text{fill:currentColor}.l path{stroke:currentColor;fill:none;stroke-width:1.6}
.l circle{fill:currentColor}.l .even{fill:none;stroke:currentColor;stroke-width:1.6}
.l .lead{stroke-width:1;stroke-dasharray:1 3}.ours path{stroke-width:3}
.ideal path{stroke-dasharray:5 4}
.b,.ours text{font-weight:600}.h{font-size:14px}.r{text-anchor:end}.m{text-anchor:middle}
"""


@dataclass
class Line:
    name: str
    points: list  # (x, y), sorted
    colour: int
    kind: str = ""  # ours: emphasised; ideal: dashed, without markers
    even: float | None = None  # the density at which a speed-up is 1


@dataclass
class Chart:
    title: str
    about: list  # lines below the title
    y_name: str
    lines: list
    speed_up: bool = False  # over densities, both axes logarithmic; else rates over lengths


def clean(text, longest=None):
    """Text for XML, in one line."""
    text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    if longest and len(text) > longest:
        text = text[: longest - 3] + "..."
    return escape(text, quote=False)


def linear_ticks(low, high):
    """Round numbers around a range, about five steps apart."""
    rough = (high - low or high) / 5
    power = 10 ** math.floor(math.log10(rough))
    step = power * next(factor for factor in (1, 2, 5, 10) if factor * power >= rough)
    first, last = math.floor(low / step), max(math.ceil(high / step), math.floor(low / step) + 1)
    return [step * count for count in range(first, last + 1)]


def spread(wanted, low, high):
    """Heights for labels near the wanted ones, which are sorted, LABEL_GAP apart."""
    placed = []
    for y in wanted:
        placed.append(max(y, placed[-1] + LABEL_GAP if placed else low))
    for place in range(len(placed) - 1, -1, -1):
        limit = placed[place + 1] - LABEL_GAP if place + 1 < len(placed) else high
        placed[place] = min(placed[place], limit)
    return placed


def render(chart):
    top = TOP + 16 * max(0, len(chart.about) - 2)
    bottom = top + max(PLOT_HEIGHT, LABEL_GAP * len(chart.lines))
    xs = sorted({x for line in chart.lines for x, _ in line.points}, reverse=chart.speed_up)
    ys = [y for line in chart.lines for _, y in line.points]
    first, last = math.log2(xs[0]), math.log2(xs[-1])
    if chart.speed_up:
        low, high = min(1, 2 ** math.floor(math.log2(min(ys)))), max(2, *ys)
        ticks = [2 ** power for power in range(round(math.log2(low)), int(math.log2(high)) + 1)]
    else:
        ticks = linear_ticks(min(ys), max(ys))
        low, high = ticks[0], ticks[-1]

    def at_x(x):
        share = (math.log2(x) - first) / (last - first) if last != first else 0.5
        return LEFT + 12 + share * (RIGHT - LEFT - 12)

    def at_y(y):
        share = (math.log2(y / low) / math.log2(high / low) if chart.speed_up
                 else (y - low) / (high - low))
        return bottom - share * (bottom - top)

    y_name = chart.y_name + ("" if chart.speed_up or low == 0 else f", axis from {low:g}")
    x_name = "density" if chart.speed_up else "sequence length"
    out = [text(24, 32, chart.title, "t b h")]
    out += [text(24, 52 + 16 * row, line, "s") for row, line in enumerate(chart.about)]
    out.append(text(LEFT, top - 12, y_name, "s"))
    for tick in ticks:
        strong = "e" if chart.speed_up and tick == 1 else "g"
        out.append(f'<path class="{strong}" d="M{LEFT} {at_y(tick):.1f}H{RIGHT}"/>')
        out.append(text(LEFT - 8, at_y(tick) + 4, f"{tick:g}" + "x" * chart.speed_up, "s r"))
    shown = []
    for x in sorted(xs, key=lambda x: (x != 1, x)):  # who comes first has its label
        if all(abs(at_x(x) - at_x(other)) >= TICK_GAP for other in shown):
            shown.append(x)
            name = f"{x:g}" if x % 1024 else f"{x // 1024}K"
            out.append(text(at_x(x), bottom + 20, name, "s m"))
    direction = ", sparser to the right" if chart.speed_up else ""
    out.append(text((LEFT + RIGHT) / 2, bottom + 40, x_name + direction, "s m"))
    ends = {id(line): max(line.points, key=lambda point: at_x(point[0])) for line in chart.lines}
    order = sorted(chart.lines, key=lambda line: at_y(ends[id(line)][1]))
    heights = spread([at_y(ends[id(line)][1]) for line in order], top, bottom)
    label_y = {id(line): y for line, y in zip(order, heights, strict=True)}
    for line in chart.lines:
        out += drawn_line(chart, line, at_x, at_y, ends[id(line)], label_y[id(line)], xs[-1])
    return page(chart, f"{y_name} over {x_name}", bottom + 56, out)


def drawn_line(chart, line, at_x, at_y, end, label_y, last_x):
    """Line, markers, and the label that a dotted line leads to."""
    places = [f"{at_x(x):.1f} {at_y(y):.1f}" for x, y in line.points]
    out = ['<g class="' + f"l k{line.colour} {line.kind}".strip() + '">']
    if len(places) > 1:
        out.append(f'<path d="M{"L".join(places)}"/>')
    if line.kind != "ideal":
        for place in places:
            x, y = place.split()
            out.append(f'<circle cx="{x}" cy="{y}" r="{4 if line.kind else 2.8}"/>')
    if line.even:
        out.append(f'<circle class="even" cx="{at_x(line.even):.1f}" cy="{at_y(1):.1f}" r="7"/>')
    name = clean(line.name, LONGEST_LABEL)
    if end[0] == last_x and line.kind != "ideal":  # elsewhere a figure could not be compared
        name = clean(line.name, LONGEST_LABEL - 6) + f" {number(end[1])}" + "x" * chart.speed_up
    out.append(f'<path class="lead" d="M{at_x(end[0]):.1f} {at_y(end[1]):.1f}H{RIGHT}'
               f'L{LABELS - 4} {label_y:.1f}"/>')
    return [*out, f'<text x="{LABELS}" y="{label_y + 4:.1f}">{name}</text>', "</g>"]


def text(x, y, content, kind):
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{clean(content, LONGEST_LINE)}</text>'


def page(chart, axes, height, body):
    def values(line):
        return ", ".join(f"{number(y)} at {x:g}" for x, y in line.points)

    figures = ". ".join(f"{line.name}: {values(line)}"
                        for line in chart.lines if line.kind != "ideal")
    colours = ["".join(f".k{place}{{color:{colour}}}" for place, colour in enumerate(palette))
               for palette in (LIGHT, DARK)]
    dark = (".card{fill:#151b23;stroke:#3d444d}.t{fill:#f0f6fc}.s{fill:#9198a1}.g{stroke:#3d444d}"
            ".e{stroke:#9198a1}")
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'viewBox="0 0 {WIDTH} {height}" role="img" aria-labelledby="t d">',
        f'<title id="t">{clean(chart.title)}</title>',
        f'<desc id="d">{clean(". ".join([*chart.about, axes, figures]))}.</desc>',
        f"<style>{STYLE}{colours[0]}",
        f"@media (prefers-color-scheme:dark){{{dark}{colours[1]}}}", "</style>",
        f'<rect class="card" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="8"/>',
        *body, "</svg>", ""])
