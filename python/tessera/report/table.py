"""The parts of a table of results, as text or as HTML: a head, rows and numbered notes."""

from dataclasses import dataclass

from .values import number


@dataclass
class Table:
    head: list
    rows: list  # of texts, numbers and None
    left: int = 1  # so many columns are aligned to the left; the first names the row
    caption: str = ""

    def kept(self):
        """The columns that hold something, and those to the left."""
        return [i for i in range(len(self.head))
                if i < self.left or any(row[i] not in ("", None) for row in self.rows)]


class Notes:
    """Reasons, numbered: equal ones share a number."""

    def __init__(self):
        self.names = {}  # reason -> whose

    def mark(self, name, reason):
        self.names.setdefault(reason, {})[name] = True
        return f"- ({list(self.names).index(reason) + 1})"

    def lines(self, clean):
        """"(1) NAMES: REASON" of each; `clean` makes the reason fit for where it is shown."""
        return [f"({place + 1}) {', '.join(names)}: {clean(reason)}"
                for place, (reason, names) in enumerate(self.names.items())]


def captioned(table, end=":"):
    """The table below its caption; nothing where it has no rows."""
    return [f"{table.caption}{end}", table] if table.rows else []


def shown(cell):
    return str(cell) if isinstance(cell, (str, int)) else number(cell)
