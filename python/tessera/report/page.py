"""The whole page: what stands around the cards, and the parts of each."""

import base64
import hashlib
from pathlib import Path

from ..bench import files
from . import card_page, svg
from .markup import Markup, heading, join, paragraph, tag

TITLE = "tessera: what was measured"
ABOUT = ("Block-sparse and dense attention and matrix products beside other libraries. All "
         "competitors of a case ran in one process, in turns, on the same data; each result was "
         "held against double precision first. Rates count useful work alone: operations on stored "
         "blocks and unmasked elements. A spread is the distance of the quartiles of a case's runs "
         "over their median.")


def text_of(name):
    return (Path(__file__).parent / name).read_text(encoding="utf-8")


def slugs(cards):
    """A part of an address for each card, all different."""
    names = []
    for card in cards:
        name = files.slug(card.title)[:40] or "card"
        names.append(name if name not in names else f"{name}-{len(names) + 1}")
    return names


def make(cards, old=()):
    """The page's text. old: cards of results to compare with."""
    parts, entries = [], []
    for card, slug in zip(cards, slugs(cards), strict=True):
        before = [one for one in old if one.key == card.key]
        sections = card_page.sections(card, slug, before, bool(old))
        parts.append(tag("section", heading(2, card.title, slug), *card_page.opening(card),
                         *(section.html(slug) for section in sections),
                         aria_labelledby=slug, class_="card-part"))
        links = [tag("li", tag("a", section.title, href=f"#{slug}-{section.key}"))
                 for section in sections]
        entries.append(tag("li", tag("a", card.title, href=f"#{slug}"), tag("ul", *links)))
    strange = [one.title for one in old if one.key not in {card.key for card in cards}]
    if strange:
        parts.append(paragraph(f"To compare with, there are also results of {', '.join(strange)}; "
                               "nothing here was measured on that.", class_="note"))
    body = join(
        tag("a", "To the results", class_="skip", href="#results"),
        tag("header", heading(1, TITLE), paragraph(ABOUT)),
        tag("nav", tag("p", "On this page"), tag("ul", *entries), aria_label="On this page"),
        tag("main", *parts, id="results"),
        tag("footer", paragraph("Points of pictures tell their figures beneath the pointer, and "
                                "to the arrow keys once a picture has the focus. Every picture has "
                                "its figures as a table and as CSV.")))
    return document(body)


def document(body):
    """Nothing may be loaded from anywhere, and no script may run but the page's own."""
    script = text_of("script.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; "
              "img-src data:; base-uri 'none'; form-action 'none'")
    return "\n".join([
        "<!DOCTYPE html>", '<html lang="en">', "<head>", '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">', '<link rel="icon" href="data:,">',
        f"<title>{TITLE}</title>", f"<style>{svg.style()}{text_of('style.css')}</style>", "</head>",
        "<body>", Markup(body.replace("</tr>", "</tr>\n")), f"<script>{script}</script>", "</body>",
        "</html>", ""])
