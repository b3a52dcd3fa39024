"""Distributions of ratios, a panel per operation: the share of shapes below each ratio."""

import math
from dataclasses import dataclass, replace

from ..bench.ratios import PERCENT, percentile
from .svg import Drawing, circle, text
from .values import number

WIDTH, COLUMNS = 720, 2
LEFT, GAP, RIGHT = 52, 68, 24  # beside panels and between them
TOP, HEAD, PLOT_HEIGHT, FOOT = 8, 46, 170, 62
SHARES = (0, 25, 50, 75, 100)  # ticks of the share of shapes, in percent
MAX_TICKS = 8


@dataclass
class Distribution:
    name: str
    ratios: list  # sorted; 0 where there is no kernel
    colour: int


@dataclass
class Panel:
    name: str
    lines: list


@dataclass
class Panels:
    title: str
    about: list  # lines below the title
    lines: list  # of panels

    def drawing(self, more=()):
        """`more`: lines below the title, beside its own."""
        return replace(self, about=[*self.about, *more]).rendered()

    def rendered(self):
        return render(self)


def render(chart):
    out = []
    for number_of_panel, panel in enumerate(chart.lines):
        row, column = divmod(number_of_panel, COLUMNS)
        plot_width = (WIDTH - LEFT - RIGHT - (COLUMNS - 1) * GAP) / COLUMNS
        left = LEFT + column * (plot_width + GAP)
        out += drawn_panel(panel, left, TOP + row * (HEAD + PLOT_HEIGHT + FOOT), plot_width)
    rows = -(-len(chart.lines) // COLUMNS)
    height = TOP + rows * (HEAD + PLOT_HEIGHT + FOOT)
    return Drawing(chart.title, chart.about, in_words(chart), WIDTH, height, out)


def range_of(panel):
    """The axis: whole powers of two around all ratios and 1."""
    ratios = [one for line in panel.lines for one in line.ratios if one > 0] + [1]
    low, high = math.floor(math.log2(min(ratios))), math.ceil(math.log2(max(ratios)))
    return min(low, -1), max(high, 1)


def drawn_panel(panel, left, top, width):
    low, high = range_of(panel)
    right, upper, lower = left + width, top + HEAD, top + HEAD + PLOT_HEIGHT

    def at_x(ratio):
        power = math.log2(ratio) if ratio > 0 else low
        return left + (power - low) / (high - low) * width

    def at_y(share):
        return lower - share * (lower - upper)

    out = [text(left, top + 12, panel.name, "t b")]
    for share in SHARES:
        y = at_y(share / 100)
        out.append(f'<path class="g" d="M{left:.1f} {y:.1f}H{right:.1f}"/>')
        out.append(text(left - 8, y + 4, f"{share}%", "s r"))
    step = -(-(high - low) // MAX_TICKS)
    for power in range(low, high + 1):
        if power % step == 0:
            x = at_x(2.0**power)
            kind = "e" if power == 0 else "g"
            out.append(f'<path class="{kind}" d="M{x:.1f} {upper:.1f}V{lower:.1f}"/>')
            out.append(text(x, lower + 18, f"{2.0**power:g}x", "s m"))
    out.append(text((left + right) / 2, lower + 36, "best alternative's time over ours", "s m"))
    for place, line in enumerate(panel.lines):
        out += drawn_line(line, at_x, at_y, left + place * width / 2, top + 32)
    return out


def drawn_line(line, at_x, at_y, legend_x, legend_y):
    """A point per shape, joined, and markers where the table has figures."""
    steps = max(1, len(line.ratios) - 1)
    points = [f"{at_x(ratio):.1f} {at_y(place / steps):.1f}"
              for place, ratio in enumerate(line.ratios)]
    out = [f'<g class="l k{line.colour}">', f'<path d="M{"L".join(points)}"/>']
    for name, share in PERCENT.items():
        ratio = percentile(line.ratios, share)
        out.append(circle(at_x(ratio), at_y(share / 100), 2.8,
                          f"{line.name}, {name}: {number(ratio)}x"))
    median = percentile(line.ratios, 50)
    return [*out, text(legend_x, legend_y, f"{line.name}: median {median:.2f}x", ""), "</g>"]


def in_words(chart):
    said = []
    for panel in chart.lines:
        for line in panel.lines:
            figures = ", ".join(f"{name} {number(percentile(line.ratios, share))}"
                                for name, share in PERCENT.items())
            said.append(f"{panel.name}, {line.name} ({len(line.ratios)}): {figures}")
    return "Share of shapes below each ratio. " + ". ".join(said)
