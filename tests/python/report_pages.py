"""What tests of the report share: results that were never measured, the command that makes a page
of them, and a reader of pages."""

import csv
import io
import itertools
import json
import re
from html.parser import HTMLParser
from urllib.parse import unquote

from support import KERNELS, OTHER_ROW, kernel_tree
from test_pictures import DENSITIES, LENGTHS, PRODUCTS
from test_tables import CASES, machine_code, record, result_of, tables

cli = tables.package_module("report.cli")
make_case = tables.package_module("bench.cases").make_case

MATMUL = make_case("matmul", {"m": 1000, "n": 1000, "k": 1000}).params
RICH = [*CASES[:4], *LENGTHS, *DENSITIES, *PRODUCTS]
HOSTILE = ('<script>alert(1)</script>', '"><img src=x onerror=alert(1)>', "'onload='alert(1)",
           "</style><script>alert(1)</script>", "a&b]]>\x00\x1b\u202e", "=1+1", "-2", "@SUM(A1)",
           "javascript:alert(1)", "\t=cmd", "x" * 500)
VOID = ("area", "base", "br", "col", "hr", "img", "input", "link", "meta")


def product(m, ms, peers=None, **more):
    made = record("matmul", {**MATMUL, "m": m}, ms, {"cublaslt": 1.0} if peers is None else peers)
    made["ours"].update(more)
    return made


class Page(HTMLParser):
    """Elements as (name, attributes, depth-first text), and whether all were closed in turn."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.elements, self.wrong = [], [], []
        self.feed(text)
        self.close()
        self.text = text
        if self.open:
            self.wrong.append(f"{self.open[-1][0]} is not closed")

    def handle_starttag(self, name, attributes):
        element = [name, dict(attributes), ""]
        self.elements.append(element)
        if name not in VOID:
            self.open.append(element)

    def handle_endtag(self, name):
        if not self.open or self.open[-1][0] != name:
            self.wrong.append(f"{name} is closed within {self.open[-1:]}")
        else:
            self.open.pop()

    def handle_data(self, data):
        for element in self.open:
            element[2] += data

    def of(self, *names):
        return [element for element in self.elements if element[0] in names]

    def ids(self):
        return [given["id"] for _, given, _ in self.elements if "id" in given]

    def section(self, key):
        """What a section says; its key is the end of its heading's id."""
        return next(text for name, given, text in self.of("section")
                    if given.get("aria-labelledby", "").endswith(key))

    def csv(self, name):
        """The rows of a download."""
        href = next(given["href"] for _, given, _ in self.of("a")
                    if given.get("download", "").endswith(f"{name}.csv"))
        text = unquote(href.removeprefix("data:text/csv;charset=utf-8,"))
        return list(csv.reader(io.StringIO(text)))


def maker(tmp_path, capsys):
    """What writes results, runs the command, and reads what it made."""
    kernel_tree(tmp_path)

    def run(*results, against=(), options=()):
        paths = []
        for place, result in enumerate((*results, *against)):
            path = tmp_path / f"r{place}.json"
            path.write_text(result if isinstance(result, str) else json.dumps(result))
            paths.append(str(path))
        split = len(results)
        words = [*paths[:split], "-o", str(tmp_path / "page.html"), "--tree", str(tmp_path)]
        words += ["--against", *paths[split:]] if against else []
        run.status = cli.main([*words, *options])
        run.told = capsys.readouterr()
        page = tmp_path / "page.html"
        return Page(page.read_text(encoding="utf-8")) if page.exists() else None

    return run


def rich(**more):
    cases = json.loads(json.dumps(RICH))
    for case in cases:
        if "ms" in case["ours"]:
            code = machine_code.code_of(KERNELS, OTHER_ROW, case["params"]["dtype"])
            case["ours"].update(predicted_ms=2 * case["ours"]["ms"], row=OTHER_ROW,
                                machine_code=code, joules_per_tflop=2.0)
            case["max_error"], case["error_budget"] = 0.25, 0.5
        for entry in case["peers"].values():
            if "ms" in entry:
                entry["joules_per_tflop"] = 4.0
    return {**result_of(cases), **more}


def check_form(page):
    """What holds of every page."""
    assert page.wrong == []
    ids = page.ids()
    assert len(ids) == len(set(ids))
    levels = [int(name[1]) for name, _, _ in page.of("h1", "h2", "h3", "h4")]
    assert levels.count(1) == 1 and levels[0] == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
    for name, given, _ in page.elements:
        for key in ("href", "src"):
            address = given.get(key, "")
            assert re.match(r"#|data:|$", address), (name, address)
            assert not address.startswith("#") or address[1:] in ids
        for key in ("aria-labelledby", "aria-describedby"):
            assert all(one in ids for one in given.get(key, "").split()), (name, given)
        assert not any(key.startswith("on") for key in given), (name, given)
        assert name != "th" or given.get("scope") in ("row", "col")
    counts = {name: len(page.of(name)) for name in ("table", "caption", "figure", "svg", "desc")}
    assert counts["table"] == counts["caption"] and counts["figure"] == counts["svg"]
    assert all(given.get("role") == "img" for _, given, _ in page.of("svg"))
    assert counts["desc"] == counts["svg"]
    for name in ("header", "nav", "main", "footer"):
        assert len(page.of(name)) == 1
    assert page.of("a")[0][1]["href"] == "#results" and "results" in ids
