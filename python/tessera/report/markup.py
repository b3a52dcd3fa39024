"""HTML in which only what is markup is markup: every other text is escaped where it is put in."""

from html import escape
from urllib.parse import quote

from .pictures import drawing
from .table import as_csv, shown


class Markup(str):
    """Text that is HTML already."""


def tag(name, *children, **attributes):
    """An element. Names of attributes end in _ where Python has the word for itself."""
    given = "".join(f' {key.rstrip("_").replace("_", "-")}="{escape(plain(value))}"'
                    for key, value in attributes.items() if value is not None)
    return Markup(f"<{name}{given}>{join(*children)}</{name}>")


def plain(value):
    return "".join(c if c.isprintable() else " " for c in str(value))


def join(*children):
    return Markup("".join(child if isinstance(child, Markup) else escape(plain(child))
                          for child in children if child is not None))


def heading(level, words, key=None):
    return tag(f"h{level}", words, id=key)


def paragraph(*words, **attributes):
    return tag("p", *words, **attributes)


def download(table, name):
    """The figures as a file that the page holds itself."""
    return tag("a", "CSV", class_="csv", download=f"{name}.csv",
               href="data:text/csv;charset=utf-8," + quote(as_csv(table)),
               aria_label=f"{table.caption or name}, as CSV")


def cell_text(cell):
    """As many digits in all rows, so that points stand below points."""
    if not isinstance(cell, float) or abs(cell) >= 100 or cell == 0:
        return shown(cell)
    return f"{cell:#.3g}"


def rows_and_columns(table, key):
    """The table alone, in a box of its own to scroll in."""
    kept = table.kept()
    sides = {i: "n" if i >= table.left else None for i in kept}
    head = tag("tr", *(tag("th", table.head[i], scope="col", class_=sides[i]) for i in kept))
    body = []
    for place, row in enumerate(table.rows):
        cells = [tag("th", cell_text(row[0]), scope="row")]
        cells += [tag("td", cell_text(row[i]), class_=sides[i]) for i in kept[1:]]
        body.append(tag("tr", *cells, class_=table.marks.get(place)))
    caption = tag("caption", tag("span", table.caption), id=f"{key}-c")
    return tag("div", tag("table", caption, tag("thead", head), tag("tbody", *body)),
               class_="box", role="region", tabindex="0", aria_labelledby=f"{key}-c")


def whole_table(table, key, folded=False):
    """With its CSV; folded away where it is long and others say the same in short."""
    inside = rows_and_columns(table, key)
    if folded:
        inside = tag("details", tag("summary", f"{table.caption}: {len(table.rows)} rows"), inside)
    return tag("div", inside, paragraph(download(table, key), class_="tools"), class_="table")


def figure(chart, table, key):
    """A picture with what it shows, as a table too."""
    drawn = drawing(chart, width=400)  # little, so that texts stay readable on a phone
    about = [paragraph(line) for line in chart.about]
    caption = tag("figcaption", heading(4, chart.title), *about)
    svg = Markup(drawn.inside(key))
    return tag("figure", caption, tag("div", svg, class_="plot"),
               paragraph(class_="read", aria_live="polite"),
               tag("details", tag("summary", "Data"), rows_and_columns(table, f"{key}-d")),
               paragraph(download(table, key), class_="tools"),
               id=key)


def noted(notes):
    """The reasons that a table's dashes stand for."""
    items = [tag("li", f"{', '.join(names)}: {clean_reason(reason)}", value=place)
             for place, names, reason in notes.numbered()]
    return tag("ol", *items, class_="notes") if items else None


def clean_reason(reason, longest=200):
    text = " ".join(plain(reason).split())
    return text if len(text) <= longest else text[: longest - 3] + "..."
