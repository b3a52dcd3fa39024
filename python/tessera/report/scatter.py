"""Points over two logarithmic axes, with lines that they are held against."""

import math
from dataclasses import dataclass, field

from .svg import Drawing, circle, clean, log_ticks, text

LEFT, RIGHT_MARGIN, TOP, PLOT_HEIGHT = 50, 14, 20, 280
LEGEND_GAP, WIDEST_ENTRY = 18, 216
LABEL_GAP, LETTER = 8, 6.6  # before a level line; as wide as letters are at most, on average


@dataclass
class Point:
    x: float
    y: float
    says: str
    ring: bool = False


@dataclass
class Group:
    name: str
    colour: int
    points: list


@dataclass
class Guide:
    """A line; where it leaves the plot it ends."""
    points: list  # two (x, y)
    label: str = ""  # along a line that rises, before one that is level
    shift: float = 4  # down, of a level line's label
    dashed: bool = False


@dataclass
class Scatter:
    title: str
    about: list
    x_name: str
    y_name: str
    groups: list
    guides: list = field(default_factory=list)
    equal: bool = False  # both axes have one range
    width: int = 400


def around(values, room=1.15):
    """A range around them, never an empty one."""
    low, high = min(values) / room, max(values) * room
    return (low, high) if high / low > 2 else (low / 1.5, high * 1.5)


def render(chart):
    points = [point for group in chart.groups for point in group.points]
    level = [y for guide in chart.guides for _, y in guide.points if not chart.equal]
    right, bottom = chart.width - RIGHT_MARGIN, TOP + PLOT_HEIGHT
    x_range = with_labels(around([point.x for point in points]), chart.guides, right - LEFT)
    y_range = around([point.y for point in points] + ([max(level) * 1.2] if level else []))
    if chart.equal:
        x_range = y_range = min(x_range[0], y_range[0]), max(x_range[1], y_range[1])

    def at_x(x):
        return LEFT + (right - LEFT) * math.log(x / x_range[0], x_range[1] / x_range[0])

    def at_y(y):
        return bottom - PLOT_HEIGHT * math.log(y / y_range[0], y_range[1] / y_range[0])

    out = [text(LEFT, TOP - 8, chart.y_name, "s")]
    for tick in log_ticks(*y_range):
        out.append(f'<path class="g" d="M{LEFT} {at_y(tick):.1f}H{right}"/>')
        out.append(text(LEFT - 8, at_y(tick) + 4, f"{tick:g}", "s r"))
    for tick in log_ticks(*x_range):
        out.append(f'<path class="g" d="M{at_x(tick):.1f} {TOP}V{bottom}"/>')
        out.append(text(at_x(tick), bottom + 20, f"{tick:g}", "s m"))
    out.append(text((LEFT + right) / 2, bottom + 40, chart.x_name, "s m"))
    for guide in chart.guides:
        out += drawn_guide(guide, x_range, y_range, at_x, at_y)
    for group in chart.groups:
        out.append(f'<g class="p k{group.colour}">')
        out += [circle(at_x(point.x), at_y(point.y), 4, point.says, "ring" * point.ring)
                for point in group.points]
        out.append("</g>")
    legend, height = drawn_legend(chart.groups, LEFT, right, bottom + 62)
    return Drawing(chart.title, chart.about, in_words(chart), chart.width, height + 4, out + legend)


def with_labels(x_range, guides, width):
    """The range, begun so soon that labels of level lines have room before them."""
    low, high = x_range
    for guide in guides:
        (x0, y0), (_, y1) = guide.points
        if guide.label and y0 == y1 and x0 < high:
            room = (LABEL_GAP + LETTER * len(guide.label)) / width
            low = min(low, math.exp((math.log(x0) - room * math.log(high)) / (1 - room)))
    return low, high


def drawn_guide(guide, x_range, y_range, at_x, at_y):
    """The line between its two points, as far as the plot goes."""
    (x0, y0), (x1, y1) = guide.points
    slope = math.log(y1 / y0) / math.log(x1 / x0)

    def along(x):
        return y0 * (x / x0) ** slope

    low, high = max(x0, x_range[0]), min(x1, x_range[1])
    if slope > 0:  # what rises comes in through the floor and leaves through the ceiling
        low = max(low, x0 * (y_range[0] / y0) ** (1 / slope))
        high = min(high, x0 * (y_range[1] / y0) ** (1 / slope))
    if low >= high:
        return []
    dash = " dash" * guide.dashed
    out = [f'<path class="e{dash}" d="M{at_x(low):.1f} {at_y(along(low)):.1f}'
           f'L{at_x(high):.1f} {at_y(along(high)):.1f}"/>']
    if guide.label and slope > 0:
        middle = (low * high) ** 0.5
        x, y = at_x(middle), at_y(along(middle))
        lean = math.degrees(math.atan2(at_y(along(high)) - at_y(along(low)),
                                       at_x(high) - at_x(low)))
        out.append(f'<text class="s m halo" transform="translate({x:.1f} {y - 6:.1f}) '
                   f'rotate({lean:.1f})">{clean(guide.label)}</text>')
    elif guide.label:
        out.append(text(at_x(low) - LABEL_GAP, at_y(y0) + guide.shift, guide.label, "s r halo"))
    return out


def drawn_legend(groups, left, right, top):
    """Names beside dots, as many in a line as fit; and where that ends."""
    columns = max(1, int((right - left) // WIDEST_ENTRY))
    if all(len(group.name) <= 22 for group in groups):
        columns = max(columns, 2)
    step = (right - left) / columns
    out = []
    for place, group in enumerate(groups):
        x, y = left + 6 + step * (place % columns), top + LEGEND_GAP * (place // columns)
        out.append(f'<g class="p k{group.colour}"><circle cx="{x:.1f}" cy="{y:.1f}" r="4"/></g>')
        out.append(text(x + 10, y + 4, group.name, "s"))
    return out, top + LEGEND_GAP * -(-len(groups) // columns)


def in_words(chart):
    counts = ", ".join(f"{len(group.points)} of {group.name}" for group in chart.groups)
    guides = "".join(f". Line: {guide.label}" for guide in chart.guides if guide.label)
    return f"{chart.y_name} against {chart.x_name}: {counts}{guides}"
