"""What all pictures share: SVG that is readable in light and dark mode, stands alone or in a page,
and has equal bytes on every machine."""

import math
from dataclasses import dataclass
from html import escape

# The last one is for what has no colour of its own.
LIGHT = ("#0969da", "#bc4c00", "#1a7f37", "#8250df", "#bf3989", "#9a6700", "#1b7c83", "#59636e")
DARK = ("#4493f8", "#f0883e", "#3fb950", "#ab7df8", "#db61a2", "#d29922", "#39c5cf", "#9198a1")
GREY = len(LIGHT) - 1
HEAD, MARGIN = 84, 24  # of a picture that stands alone: above what is drawn, and beside titles
LONGEST_LINE = 84  # in characters

SHAPES = """
.card{fill:#fff;stroke:#d0d7de}.t{fill:#1f2328}.s{fill:#59636e}.g{stroke:#d0d7de}.e{stroke:#59636e}
svg text{font:12px ui-sans-serif,-apple-system,"Segoe UI",Helvetica,Arial,sans-serif}
.g,.e{fill:none}
.l text{fill:currentColor}.l path{stroke:currentColor;fill:none;stroke-width:1.6}
.l circle{fill:currentColor}.l .even{fill:none;stroke:currentColor;stroke-width:1.6}
.l .lead{stroke-width:1;stroke-dasharray:1 3}.ours path{stroke-width:3}
.ideal path{stroke-dasharray:5 4}
svg .b,.ours text{font-weight:600}svg .h{font-size:14px}.r{text-anchor:end}.m{text-anchor:middle}
"""


def style():
    colours = ["".join(f".k{place}{{color:{colour}}}" for place, colour in enumerate(palette))
               for palette in (LIGHT, DARK)]
    dark = (".card{fill:#151b23;stroke:#3d444d}.t{fill:#f0f6fc}.s{fill:#9198a1}.g{stroke:#3d444d}"
            ".e{stroke:#9198a1}")
    return (f"{SHAPES}{colours[0]}\n@media (prefers-color-scheme:dark){{{dark}{colours[1]}}}\n")


@dataclass
class Drawing:
    title: str
    about: list  # lines below the title
    says: str  # the picture in words
    width: int
    height: float
    body: list

    def alone(self):
        """A file of its own."""
        return self.markup("", f"<style>{style()}</style>")

    def markup(self, key, *more):
        """Its SVG, whose identifiers begin with `key`; a page has its style."""
        top = HEAD + 16 * max(0, len(self.about) - 2)
        height = round(top + self.height)
        head = [text(MARGIN, 32, self.title, "t b h")]
        head += [text(MARGIN, 52 + 16 * row, line, "s") for row, line in enumerate(self.about)]
        return "\n".join([
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{self.width}" height="{height}" '
            f'viewBox="0 0 {self.width} {height}" role="img" aria-labelledby="{key}t {key}d">',
            f'<title id="{key}t">{clean(self.title)}</title>',
            f'<desc id="{key}d">{clean(". ".join([*self.about, self.says]))}.</desc>', *more,
            f'<rect class="card" x="0.5" y="0.5" width="{self.width - 1}" height="{height - 1}" '
            'rx="8"/>', *head, f'<g transform="translate(0 {top})">', *self.body, "</g>", "</svg>",
            ""])


def clean(content, longest=None):
    """Text for XML, in one line."""
    content = " ".join("".join(c if c.isprintable() else " " for c in content).split())
    if longest and len(content) > longest:
        content = content[: longest - 3] + "..."
    return escape(content, quote=False)


def text(x, y, content, kind, longest=LONGEST_LINE):
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{clean(content, longest)}</text>'


def circle(x, y, radius, says, kind=""):
    """A point of a picture; what it says is shown beside the pointer."""
    kind = f' class="{kind}"' if kind else ""
    return (f'<circle{kind} cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}">'
            f"<title>{clean(says)}</title></circle>")


def linear_ticks(low, high):
    """Round numbers around a range, about five steps apart."""
    rough = (high - low or high) / 5
    power = 10 ** math.floor(math.log10(rough))
    step = power * next(factor for factor in (1, 2, 5, 10) if factor * power >= rough)
    first, last = math.floor(low / step), max(math.ceil(high / step), math.floor(low / step) + 1)
    return [step * count for count in range(first, last + 1)]
