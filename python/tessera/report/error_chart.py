"""Speed over error: a panel per kind of inputs, a line per competitor, from length to length."""

import math
from dataclasses import dataclass

from .distribution_chart import GAP, LEFT, RIGHT, WIDTH, Panels
from .svg import Drawing, circle, linear_ticks, text
from .values import number

TOP, HEAD, PLOT_HEIGHT, FOOT = 8, 28, 200, 56
LINE_GAP = 18  # of the legend


@dataclass
class Speeds:
    name: str
    points: list  # (sequence length, error, TFLOPS), from short to long
    colour: int
    kind: str = ""  # ours: emphasised


class ErrorPanels(Panels):
    def rendered(self):
        return render(self)


def render(chart):
    points = [point for panel in chart.lines for line in panel.lines for point in line.points]
    powers = [math.log10(error) for _, error, _ in points]
    low, high = math.floor(min(powers)), math.ceil(max(powers))
    high = max(high, low + 1)
    ticks = linear_ticks(0, max(speed for *_, speed in points))
    names = max(len(panel.lines) for panel in chart.lines)
    width = (WIDTH - LEFT - RIGHT - (len(chart.lines) - 1) * GAP) / len(chart.lines)
    upper = TOP + HEAD + LINE_GAP * names
    out = []
    for place, panel in enumerate(chart.lines):
        left = LEFT + place * (width + GAP)
        out += drawn_panel(panel, left, upper, width, (low, high), ticks)
    return Drawing(chart.title, chart.about, in_words(chart), WIDTH,
                   upper + PLOT_HEIGHT + FOOT, out)


def drawn_panel(panel, left, upper, width, powers, ticks):
    low, high = powers
    right, lower = left + width, upper + PLOT_HEIGHT

    def at_x(error):
        return left + (math.log10(error) - low) / (high - low) * width

    def at_y(speed):
        return lower - speed / ticks[-1] * PLOT_HEIGHT

    out = [text(left, TOP + 12, panel.name, "t b")]
    for tick in ticks:
        out.append(f'<path class="g" d="M{left:.1f} {at_y(tick):.1f}H{right:.1f}"/>')
        out.append(text(left - 8, at_y(tick) + 4, f"{tick:g}", "s r"))
    for power in range(low, high + 1):
        x = at_x(10.0**power)
        out.append(f'<path class="g" d="M{x:.1f} {upper:.1f}V{lower:.1f}"/>')
        out.append(text(x, lower + 18, f"{10.0**power:g}", "s m"))
    out.append(text((left + right) / 2, lower + 36, "error, to the left is more exact", "s m"))
    for place, line in enumerate(panel.lines):
        out += drawn_line(line, at_x, at_y, left, TOP + HEAD + 8 + place * LINE_GAP)
    return out


def drawn_line(line, at_x, at_y, legend_x, legend_y):
    places = [f"{at_x(error):.1f} {at_y(speed):.1f}" for _, error, speed in line.points]
    out = ['<g class="' + f"l k{line.colour} {line.kind}".strip() + '">']
    if len(places) > 1:
        out.append(f'<path d="M{"L".join(places)}"/>')
    out += [circle(at_x(error), at_y(speed), 4 if line.kind else 2.8, said(line.name, point))
            for point in line.points for _, error, speed in [point]]
    longest, error, speed = line.points[-1]
    words = f"{line.name}: {number(speed)} TFLOPS, error {number(error)} at {longest}"
    return [*out, text(legend_x, legend_y, words, ""), "</g>"]


def said(name, point):
    length, error, speed = point
    return f"{name}, length {length}: {number(speed)} TFLOPS, error {number(error)}"


def in_words(chart):
    words = [f"{panel.name}, {said(line.name, point)}"
             for panel in chart.lines for line in panel.lines for point in line.points]
    return "TFLOPS over error. " + ". ".join(words)
