"""All results as one page of HTML that needs nothing else: the documentation's tables and pictures,
card by card, with how each test ended."""

from html import escape

from ..bench.cases import ATTENTION, LISTS, PRODUCTS, kind_of
from ..bench.machine_code import in_words
from . import card_tables, case_tables, sweep_tables
from .markdown import provenance
from .pictures import PICTURES, all_lengths, charts
from .reading import Card
from .svg import clean, style
from .table import Notes, Table, shown

TITLE = "tessera: what was measured"
ABOUT = ("Block-sparse and dense attention and matrix products beside other libraries. All "
         "competitors of a case ran in one process, in turns, on the same data; each result was "
         "held against double precision first. Rates count useful work alone: operations on stored "
         "blocks and unmasked elements. A spread is the distance of the quartiles of a case's runs "
         "over their median.")
STYLE = """:root{color-scheme:light dark}
body{font:15px/1.5 system-ui,sans-serif;max-width:1100px;margin:2em auto;padding:0 1em}
.wide{overflow-x:auto}table{border-collapse:collapse;font-size:13px;margin:.5em 0 1em}
th,td{border-bottom:1px solid #8884;padding:.2em .6em;text-align:right}
.l{text-align:left}th{vertical-align:bottom}figure{display:inline-block;margin:0 0 1em}
.note{color:GrayText;font-size:13px}
svg{max-width:100%;height:auto}"""


def of_kind(kind):
    return lambda card: [record for record in card.all("cases")
                         if kind_of(record["op"]) == kind and record["op"] not in LISTS]


def all_of(section):
    return lambda card: card.all(section)


# Title, what of a card it is about, and what is told of that.
SECTIONS = (
    ("At a glance", all_of("cases"), card_tables.glance),
    ("Attention", of_kind(ATTENTION), case_tables.comparison),
    ("Lists", all_of("cases"), case_tables.lists),
    ("Products", of_kind(PRODUCTS), case_tables.comparison),
    ("Density from which a dense product is faster", all_of("cases"), case_tables.crossover),
    ("Predicted against measured time", all_of("cases"), card_tables.predictions),
    ("Shapes drawn at random", Card.drawn, sweep_tables.distribution),
    ("The worst of these shapes", Card.drawn, sweep_tables.worst),
    ("Calls in C++", all_of("host"), case_tables.host_times),
    ("Eager calls in Python", all_of("eager"), case_tables.eager_calls),
)


def make(cards):
    """The page's text."""
    parts, entries = [], []
    for number, card in enumerate(cards):
        key = f"card-{number + 1}"
        parts.append(f'<h2 id="{key}">{escape(card.title)}</h2>')
        parts += card_part(card, key)
        entries.append(f'<a href="#{key}">{escape(card.title)}</a>')
    # No script runs, and nothing is loaded from anywhere.
    return "\n".join([
        "<!DOCTYPE html>", '<html lang="en">', "<head>", '<meta charset="utf-8">',
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'\">",
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{TITLE}</title>", f"<style>{STYLE}{style()}</style>", "</head>", "<body>",
        f"<h1>{TITLE}</h1>", paragraph(ABOUT), f"<nav>{' · '.join(entries)}</nav>", *parts,
        "</body>", "</html>", ""])


def card_part(card, key):
    parts = [paragraph(f"{file}: {'; '.join(provenance(result, card.kernels))}", "note")
             for file, result in card.results.items()]
    told = [(title, maker(choose(card))) for title, choose, maker in SECTIONS]
    for file, result in card.results.items():
        told.append((f"The card and the tests: {file}",
                     [*card_tables.ceilings_and_tests(result), *card_tables.ceilings(result),
                      *card_tables.failures(result)]))
    for number, (title, blocks) in enumerate(told):
        made = "\n".join(filter(None, map(html_of, blocks)))
        if made:
            parts += [f"<h3>{escape(title)}</h3>", made]
        if number == 0:
            parts += drawn(card, key)
    return parts


def drawn(card, key):
    records = card.all("cases")
    makers = {**all_lengths(records), **PICTURES["attention_density"],
              **PICTURES["product_density"]}
    drawn_charts = [*charts(makers, records), *charts(PICTURES["shapes"], card.drawn())]
    return [f"<figure>{chart.drawing(in_words(cases, card.kernels)).markup(f'{key}-{stem}-')}"
            "</figure>" for stem, chart, cases in drawn_charts]


def html_of(block):
    if isinstance(block, Notes):
        return "\n".join(paragraph(line, "note") for line in block.lines(str))
    return table_of(block) if isinstance(block, Table) else paragraph(block)


def paragraph(text, kind=""):
    return element("p", text, kind)


def element(name, text, kind=""):
    kind = kind and f' class="{kind}"'
    return f"<{name}{kind}>{clean(text)}</{name}>"


def table_of(table):
    if not table.rows:
        return ""
    kept = table.kept()

    def row(cells, name):
        made = [element(name, shown(cells[i]), "l" if i < table.left else "") for i in kept]
        return f"<tr>{''.join(made)}</tr>"

    return "\n".join(['<div class="wide"><table>', row(table.head, "th"),
                      *(row(cells, "td") for cells in table.rows), "</table></div>"])
