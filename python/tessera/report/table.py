"""Rows below a head, whoever shows them, and as CSV."""

import csv
import io
from dataclasses import dataclass, field

from .values import number


@dataclass
class Table:
    head: list
    rows: list  # of texts, numbers and None
    left: int = 1  # so many columns are aligned to the left; the first names the row
    caption: str = ""
    marks: dict = field(default_factory=dict)  # row -> "better" or "worse"
    data: "Table | None" = None  # what the CSV has instead

    def kept(self):
        """The columns that hold something, and those to the left."""
        return [i for i in range(len(self.head))
                if i < self.left or any(row[i] not in ("", None) for row in self.rows)]


def shown(cell):
    return str(cell) if isinstance(cell, (str, int)) else number(cell)


def as_csv(table):
    """For spreadsheets, which take texts with such beginnings for formulas, and run them."""
    table = table.data or table
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")
    for row in (table.head, *table.rows):
        writer.writerow([_csv_cell(cell) for cell in row])
    return out.getvalue()


def _csv_cell(cell):
    if cell is None:
        return ""
    if not isinstance(cell, str):
        return str(cell) if isinstance(cell, int) else f"{cell:.6g}"
    cell = "".join(c if c.isprintable() else " " for c in cell)
    return "'" + cell if cell.lstrip().startswith(("=", "+", "-", "@")) else cell
