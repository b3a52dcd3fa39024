"""Cells in rows and columns, the fuller the larger their value."""

from dataclasses import dataclass

from .svg import Drawing, clean, text

LEFT, TOP, ROW_HEIGHT, GAP = 76, 44, 44, 2
STRONGEST = 0.55  # texts stay readable on it, in light and dark


@dataclass
class Cell:
    value: float  # from 0 to 1
    lines: list  # one or two short texts
    says: str


@dataclass
class HeatMap:
    title: str
    about: list
    row_name: str
    column_name: str
    rows: list
    columns: list
    cells: dict  # (row, column) -> Cell
    width: int = 400


def render(chart):
    step = (chart.width - LEFT - 4) / len(chart.columns)
    out = [text(4, TOP - 10, chart.row_name, "s"),
           text(LEFT, TOP - 28, chart.column_name, "s")]
    for place, column in enumerate(chart.columns):
        out.append(text(LEFT + step * (place + 0.5), TOP - 10, column, "s m"))
    for place, row in enumerate(chart.rows):
        y = TOP + ROW_HEIGHT * place
        out.append(text(LEFT - 10, y + ROW_HEIGHT / 2 + 4, row, "t r"))
        for index, column in enumerate(chart.columns):
            out += drawn_cell(chart.cells.get((row, column)), LEFT + step * index, y, step)
    words = ". ".join(cell.says for cell in chart.cells.values())
    height = TOP + ROW_HEIGHT * len(chart.rows) + 6
    return Drawing(chart.title, chart.about,
                   f"{chart.row_name} by {chart.column_name}. {words}", chart.width, height, out)


def drawn_cell(cell, x, y, step):
    middle, centre = x + (step - GAP) / 2, y + ROW_HEIGHT / 2
    if cell is None:
        return [text(middle, centre + 4, "\u00b7", "s m")]
    strength = STRONGEST * min(1, max(0, cell.value))
    out = [f'<rect class="heat k0" x="{x:.1f}" y="{y:.1f}" width="{step - GAP:.1f}" '
           f'height="{ROW_HEIGHT - GAP}" rx="3" fill-opacity="{strength:.3f}">'
           f"<title>{clean(cell.says)}</title></rect>"]
    first = centre - 4 if len(cell.lines) > 1 else centre + 3
    return out + [text(middle, first + 15 * place, line, "t m b" if place == 0 else "t m")
                  for place, line in enumerate(cell.lines)]
