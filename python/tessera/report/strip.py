"""Rows of points on one logarithmic axis with 1 marked: ratios, a row a group."""

import math
from dataclasses import dataclass

from .svg import Drawing, circle, text
from .values import EVEN, QUICKER, SLOWER

LEFT, RIGHT_MARGIN, TOP = 12, 16, 34
LABEL_HEIGHT, ROW_GAP = 20, 16
RADIUS, STEP = 4, 7
COLOURS = {QUICKER: 0, EVEN: 7, SLOWER: 1}
MARKS = [2.0**power for power in range(-10, 21)]
FINE_MARKS = (0.6, 0.7, 0.8, 0.9, 1, 1.1, 1.25, 1.5, 1.75, 2)


@dataclass
class Dot:
    ratio: float
    verdict: str
    says: str


@dataclass
class Strip:
    title: str
    about: list
    rows: list  # (name, dots)
    x_name: str
    width: int = 400


def render(chart):
    ratios = [dot.ratio for _, dots in chart.rows for dot in dots]
    low, high = min(0.8, *ratios, 1) / 1.06, max(1.25, *ratios, 1) * 1.06
    right = chart.width - RIGHT_MARGIN

    def at(ratio):
        return LEFT + (right - LEFT) * math.log(ratio / low, high / low)

    y, dots, names = TOP, [], []
    for name, row in chart.rows:
        names.append(text(LEFT, y + 12, name, "t halo"))
        placed = beside(row, at)
        reach = max(abs(offset) for _, _, offset in placed)
        centre = y + LABEL_HEIGHT + reach + RADIUS
        for dot, x, offset in placed:
            ring = "ring" if dot.verdict == SLOWER else ""
            dots.append(f'<g class="p k{COLOURS[dot.verdict]}">'
                        f"{circle(x, centre + offset, RADIUS, dot.says, ring)}</g>")
        y = centre + reach + RADIUS + ROW_GAP
    axis = [text(at(1) - 6, TOP - 14, "slower", "s r"), text(at(1) + 6, TOP - 14, "quicker", "s")]
    for mark in marks(low, high):
        strong = "e" if mark == 1 else "g"
        axis.append(f'<path class="{strong}" d="M{at(mark):.1f} {TOP - 6}V{y}"/>')
        axis.append(text(at(mark), y + 16, f"{mark:g}x", "s m"))
    axis.append(text((LEFT + right) / 2, y + 36, chart.x_name, "s m"))
    said = ". ".join(f"{name}: " + ", ".join(f"{dot.ratio:.2f}" for dot in row)
                     for name, row in chart.rows)
    return Drawing(chart.title, chart.about, f"{chart.x_name}. {said}", chart.width, y + 46,
                   [*axis, *names, *dots])


def marks(low, high):
    """Powers of two, fewer where they would be crowded; finer ones where there are hardly any."""
    found = [mark for mark in MARKS if low <= mark <= high]
    if len(found) < 3:
        return [mark for mark in FINE_MARKS if low <= mark <= high]
    every = -(-len(found) // 9)
    return [mark for mark in found if round(math.log2(mark)) % every == 0]


def beside(dots, at):
    """(dot, x, offset) of each: side by side where they would hide each other."""
    placed = []
    for dot in sorted(dots, key=lambda dot: dot.ratio):
        x, level = at(dot.ratio), 0
        while any(math.hypot(x - other, level - height) < 2 * RADIUS - 1
                  for _, other, height in placed):
            level = -level if level > 0 else STEP - level
        placed.append((dot, x, level))
    return placed
