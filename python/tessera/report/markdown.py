"""Tables of results as lines of Markdown, and where the figures are from."""

from ..bench.machine_code import in_words
from .reading import days_of, parts_of, title_of
from .table import Notes, Table, shown

LONGEST_REASON = 200


def plain(text):
    """Text that Markdown leaves as it is, in one line."""
    text = " ".join(text.split())
    if len(text) > LONGEST_REASON:
        text = text[: LONGEST_REASON - 3].rsplit(" ", 1)[0] + "..."  # whole words
    for sign in "\\`*_|<[":
        text = text.replace(sign, "\\" + sign)
    return text


def lines(blocks):
    """Texts, tables and notes, with an empty line between them."""
    parts = [made for made in map(_block, blocks) if made]
    return [line for part in parts for line in ("", *part)][1:]


def _block(block):
    if isinstance(block, Notes):
        return [line + "  " for line in block.lines(plain)]
    return _table(block) if isinstance(block, Table) else [block]


def _table(table):
    """Empty columns go; so does a table without rows."""
    if not table.rows:
        return []
    kept = table.kept()

    def line(cells):
        return "| " + " | ".join(shown(cells[i]) for i in kept) + " |"

    rule = "|" + "".join("---|" if i < table.left else "---:|" for i in kept)
    return [line(table.head), rule, *map(line, table.rows)]


def provenance(result, kernels=None, records=None):
    """Where these records' figures, or all, are from, in a line; one more before it where some of
    them are stale. kernels: those of the tree."""
    words = [card(result), *days_of(result)]
    words += [f"commit {one}" for one in commits(parts_of(result))]
    cases = result["cases"] if records is None else records
    stale = in_words(cases, kernels) if result["gpu"] else []
    return [*stale, ", ".join(words)]


def card(result):
    """The card, its power limit, driver and CUDA; of a CPU its name."""
    gpu, cuda = result["gpu"] or {}, result["toolkit"].get("cuda")
    words = [title_of(result)]
    words += [f"driver {gpu['driver']}"] if gpu.get("driver") else []
    words += [f"CUDA {cuda}"] if gpu and cuda else []
    return ", ".join(words)


def commits(parts):
    """Short, with the + of a changed tree."""
    return [one.rstrip("+")[:12] + ("+" if one.endswith("+") else "")
            for one in sorted({part["commit"] for part in parts if part["commit"]})]
