"""The report in a browser: at a phone's width and a desktop's, in light and dark, with the pointer,
with the keyboard, without scripts."""

import json

import pytest
from chromium import PROGRAM, Chromium
from report_pages import HOSTILE, cli, rich
from test_tables import result_of, tables

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="there is no Chromium here "
                                                        "(scripts/setup.sh dev installs it)")
THEMES = [(width, dark) for width in (360, 1280) for dark in (False, True)]
OPEN_ALL = "document.querySelectorAll('details').forEach((one) => { one.open = true; })"
WIDE = """[...document.querySelectorAll('main *')].filter((one) => {
  const box = one.getBoundingClientRect();
  return box.width && box.right > innerWidth + 1 && !one.closest('.box');
}).map((one) => one.outerHTML.slice(0, 120))"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    browser = Chromium(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Of the committed results; of hostile names, two cards and a comparison; of nothing."""
    folder = tmp_path_factory.mktemp("pages")
    hostile = rich(gpu={**result_of([])["gpu"], "name": HOSTILE[0] + "x" * 300})
    for case in hostile["cases"]:
        case["peers"] = {HOSTILE[place % len(HOSTILE)]: entry
                         for place, entry in enumerate(case["peers"].values())}
    slower = json.loads(json.dumps(rich()))
    for case in slower["cases"]:
        if "ms" in case["ours"]:
            case["ours"]["ms"] *= 2
            case["ours"]["tflops"] /= 2
    for name, result in (("hostile", hostile), ("now", slower), ("old", rich()),
                         ("none", {**result_of([]), "ceilings": {}, "tests": []})):
        (folder / f"{name}.json").write_text(json.dumps(result))
    paths = {name: str(folder / f"{name}.json") for name in ("hostile", "now", "old", "none")}
    made = {name: folder / f"{name}.html" for name in ("committed", "hostile", "none")}
    assert tables.main(["--report", str(made["committed"])]) == 0
    assert cli.main([paths["now"], paths["hostile"], "-o", str(made["hostile"]), "--against",
                     paths["old"]]) == 0
    assert cli.main([paths["none"], "-o", str(made["none"])]) == 0
    return {name: path.as_uri() for name, path in made.items()}


@pytest.mark.parametrize("width, dark", THEMES)
@pytest.mark.parametrize("name", ["committed", "hostile", "none"])
def test_the_page_fits_and_is_quiet(browser, pages, name, width, dark):
    browser.open(pages[name], width, dark)
    for step in ("0", OPEN_ALL):
        browser.evaluate(step)
        assert browser.evaluate("document.scrollingElement.scrollWidth <= innerWidth")
        assert browser.evaluate("innerWidth") == width
        assert browser.evaluate(WIDE) == []
    assert browser.complaints() == []
    assert browser.requests() == [pages[name]]
    paper = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    assert paper == ("rgb(13, 17, 23)" if dark else "rgb(255, 255, 255)")
    assert len(browser.screenshot()) > 10000


def test_the_browser_finds_what_is_wrong(browser, tmp_path):
    """What the test above asserts can fail."""
    page = tmp_path / "wrong.html"
    page.write_text('<main><p style="width:900px">wide</p></main>'
                    '<img src="http://127.0.0.1:9/x.png"><script>nothing()</script>')
    browser.open(page.as_uri(), 360, False)
    assert browser.evaluate("document.scrollingElement.scrollWidth") > 900
    assert "wide" in browser.evaluate(WIDE)[0]
    assert len(browser.requests()) == 2 and browser.complaints()


@pytest.mark.parametrize("width", [360, 1280])
def test_texts_of_pictures_keep_inside_and_apart(browser, pages, width):
    browser.open(pages["committed"], width, False)
    found = browser.evaluate("""[...document.querySelectorAll('.plot svg')].flatMap((svg) => {
      const figure = svg.closest('figure').getBoundingClientRect();
      const texts = [...svg.querySelectorAll('text:not([transform])')];
      const boxes = texts.map((one) => [one.textContent, one.getBoundingClientRect()]);
      const wrong = boxes.filter(([, box]) => box.left < figure.left || box.right > figure.right);
      const small = boxes.filter(([, box]) => box.height < 8);
      boxes.forEach(([one, a], i) => boxes.slice(i + 1).forEach(([other, b]) => {
        const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
        const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
        if (across > 1 && down > 5) wrong.push([svg.getAttribute('aria-label'), one, other]);
      }));
      return [...wrong, ...small].map(JSON.stringify);
    })""")
    assert found == []


def test_points_tell_their_figures_to_pointer_and_keys(browser, pages):
    browser.open(pages["committed"], 1280, False)
    shown = "document.querySelector('.tip:not([hidden])')?.textContent ?? ''"
    read = "document.activeElement.closest('figure').querySelector('.read').textContent"
    spot = browser.evaluate("""(() => {
      const mark = document.querySelector('figure[id$=attention-128-full] .ours circle');
      mark.scrollIntoView({block: 'center', behavior: 'instant'});
      const box = mark.getBoundingClientRect();
      const spot = [box.x + box.width / 2 + 6, box.y + box.height / 2];
      // Scrolling hides what is told: not before it has ended.
      return new Promise((done) => setTimeout(() => done(spot), 300));
    })()""")
    browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=spot[0], y=spot[1])
    assert browser.evaluate(shown).startswith("tessera: ")
    browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=2, y=2)
    assert browser.evaluate(shown) == ""
    browser.evaluate("document.querySelector('figure[id$=attention-128-full] svg').focus()")
    told = []
    for key in ("ArrowRight", "ArrowRight", "ArrowLeft", "ArrowLeft"):
        browser.press(key)
        told.append(browser.evaluate(read))
        assert browser.evaluate(shown) == told[-1]
    assert told[0] == told[2] != told[1] and " at 1024" in told[0]
    assert told[3].startswith("tessera: ")  # round to the last line's last point
    browser.press("Escape")
    assert browser.evaluate(shown) == ""


def test_without_scripts_nothing_is_missing(browser, pages):
    browser.open(pages["committed"], 1280, False, script=False)
    assert browser.complaints() == []
    count = "document.querySelectorAll('{}').length"
    points = browser.evaluate(count.format(".plot circle > title, .plot rect > title"))
    assert points > 300 and browser.evaluate(count.format(".tip")) == 0
    figures = browser.evaluate(count.format("figure"))
    assert figures == browser.evaluate(count.format("figure details table")) >= 12
    assert figures == browser.evaluate(count.format("figure a[download]"))


def test_tables_scroll_in_their_own_box_on_a_phone(browser, pages):
    browser.open(pages["committed"], 360, False)
    wide = browser.evaluate("""[...document.querySelectorAll('.box')].filter(
      (one) => one.scrollWidth > one.clientWidth + 1).map((one) => one.tabIndex)""")
    assert len(wide) > 5 and set(wide) == {0}


def test_the_first_key_leads_past_the_navigation(browser, pages):
    browser.open(pages["committed"], 1280, False)
    browser.press("Tab")
    assert browser.evaluate("document.activeElement.className") == "skip"
    assert browser.evaluate("document.activeElement.getBoundingClientRect().left") >= 0
    outline = "getComputedStyle(document.activeElement).outlineStyle"
    assert browser.evaluate(outline) == "solid"
