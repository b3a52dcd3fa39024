"""Line charts, with the labels where the lines end."""

import math
from dataclasses import dataclass, replace

from .svg import Drawing, circle, clean, linear_ticks, text
from .values import number

WIDTH, LEFT, TOP, PLOT_HEIGHT = 540, 50, 20, 224
RIGHT = WIDTH - 156  # where the plot ends; labels stand in a column of their own
LABEL_GAP, TICK_GAP = 16, 34
LONGEST_LABEL = 20  # in characters


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
    speed_up: bool = False  # over densities, both axes logarithmic; else over lengths

    @property
    def x_name(self):
        return "density" if self.speed_up else "sequence length"

    @property
    def unit(self):
        return "x" if self.speed_up else ""

    def drawing(self, more=()):
        """`more`: lines below the title, beside its own."""
        return render(replace(self, about=[*self.about, *more]))


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
    bottom = TOP + max(PLOT_HEIGHT, LABEL_GAP * len(chart.lines))
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
        return bottom - share * (bottom - TOP)

    y_name = chart.y_name + ("" if chart.speed_up or low == 0 else f", axis from {low:g}")
    out = [text(LEFT, TOP - 12, y_name, "s")]
    for tick in ticks:
        strong = "e" if chart.speed_up and tick == 1 else "g"
        out.append(f'<path class="{strong}" d="M{LEFT} {at_y(tick):.1f}H{RIGHT}"/>')
        out.append(text(LEFT - 8, at_y(tick) + 4, f"{tick:g}" + chart.unit, "s r"))
    shown = []
    for x in sorted(xs, key=lambda x: (x != 1, x)):  # who comes first has its label
        if all(abs(at_x(x) - at_x(other)) >= TICK_GAP for other in shown):
            shown.append(x)
            name = f"{x:g}" if x % 1024 else f"{x // 1024}K"
            out.append(text(at_x(x), bottom + 20, name, "s m"))
    direction = ", sparser to the right" if chart.speed_up else ""
    out.append(text((LEFT + RIGHT) / 2, bottom + 40, chart.x_name + direction, "s m"))
    ends = {id(line): max(line.points, key=lambda point: at_x(point[0])) for line in chart.lines}
    order = sorted(chart.lines, key=lambda line: at_y(ends[id(line)][1]))
    heights = spread([at_y(ends[id(line)][1]) for line in order], TOP, bottom)
    label_y = {id(line): y for line, y in zip(order, heights, strict=True)}
    for line in chart.lines:
        out += drawn_line(chart, line, at_x, at_y, ends[id(line)], label_y[id(line)], xs[-1])
    return Drawing(chart.title, chart.about, in_words(chart, y_name), WIDTH, bottom + 56, out)


def drawn_line(chart, line, at_x, at_y, end, label_y, last_x):
    """Line, markers, and the label that a dotted line leads to."""
    places = [f"{at_x(x):.1f} {at_y(y):.1f}" for x, y in line.points]
    out = ['<g class="' + f"l k{line.colour} {line.kind}".strip() + '">']
    if len(places) > 1:
        out.append(f'<path d="M{"L".join(places)}"/>')
    if line.kind != "ideal":
        out += [circle(at_x(x), at_y(y), 4 if line.kind else 2.8,
                       f"{line.name}: {number(y)}{chart.unit} at {x:g}") for x, y in line.points]
    if line.even:
        out.append(circle(at_x(line.even), at_y(1), 7,
                          f"{line.name}: as fast as dense at {line.even:g}", "even"))
    name = clean(line.name, LONGEST_LABEL)
    if end[0] == last_x and line.kind != "ideal":  # elsewhere a figure could not be compared
        name = clean(line.name, LONGEST_LABEL - 6) + f" {number(end[1])}{chart.unit}"
    labels = RIGHT + 18
    out.append(f'<path class="lead" d="M{at_x(end[0]):.1f} {at_y(end[1]):.1f}H{RIGHT}'
               f'L{labels - 4} {label_y:.1f}"/>')
    return [*out, f'<text x="{labels}" y="{label_y + 4:.1f}">{name}</text>', "</g>"]


def in_words(chart, y_name):
    def values(line):
        return ", ".join(f"{number(y)} at {x:g}" for x, y in line.points)

    figures = ". ".join(f"{line.name}: {values(line)}"
                        for line in chart.lines if line.kind != "ideal")
    return f"{y_name} over {chart.x_name}. {figures}"
