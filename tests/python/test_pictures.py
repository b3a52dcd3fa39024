"""The pictures of results, on results that were never measured: every figure here is invented."""

import itertools
import json
import re
from xml.etree import ElementTree

import pytest
from invented import (
    DENSE,
    DENSITIES,
    GPU,
    LENGTHS,
    PRODUCTS,
    attention,
    masked,
    product,
    put,
    record,
    result_of,
    run,
    tables,
)
from support import ATTENTION_ROW, KERNELS, change_kernel, marked, page_tree

pictures, line_chart = tables.pictures, tables.package_module("report.line_chart")
RIGHT = line_chart.RIGHT
SVG = "{http://www.w3.org/2000/svg}"


def drawn(name, cases, **more):
    return pictures.draw(name, [{**result_of(cases), **more}])


def parsed(picture):
    return ElementTree.fromstring(picture.svg)


def description(picture):
    return parsed(picture).find(f"{SVG}desc").text


def lines_of(picture):
    return [group for group in parsed(picture).iter(f"{SVG}g") if "l k" in group.get("class", "")]


def labels(picture):
    """{text at a line's end: height}."""
    return {group.find(f"{SVG}text").text: float(group.find(f"{SVG}text").get("y"))
            for group in lines_of(picture)}


def markers(picture, label):
    """(x, y) of a line's points."""
    group = next(group for group in lines_of(picture)
                 if group.find(f"{SVG}text").text.startswith(label))
    return [(float(circle.get("cx")), float(circle.get("cy")))
            for circle in group.iter(f"{SVG}circle") if circle.get("class") is None]


def test_rates_over_lengths_stand_where_they_belong():
    (picture,) = drawn("attention_128", LENGTHS)
    assert "fa4: 102 at 1024, 102 at 2048, 512 at 4096" in description(picture)
    assert "flex: 25.6 at 1024" in description(picture) and "absent" not in picture.svg
    assert list(labels(picture)) == ["fa4 512", "flex", "tessera 410"]  # ours is on top
    # Lengths are an octave apart, rates proportional; larger ones are higher up.
    (x1, y1), (x2, y2), (x4, y4) = markers(picture, "tessera")
    assert x2 - x1 == pytest.approx(x4 - x2, abs=0.11) and x4 == RIGHT
    assert y2 - y4 == pytest.approx(2 * (y1 - y2), abs=0.31) and y4 < y1
    assert markers(picture, "flex")[0][0] == x1


def test_each_head_dimension_and_mask_has_its_chart():
    cases = [attention(1024, 1.0, {}, d=d, causal=causal)
             for d in (64, 128) for causal in (False, True)]
    assert [picture.title for picture in drawn("attention_64", cases)] == [
        "Attention, head dimension 64, full", "Attention, head dimension 64, causal"]
    assert [picture.file for picture in drawn("attention_128", cases)] == [
        "invented-card-attention-128-full.svg", "invented-card-attention-128-causal.svg"]


@pytest.mark.parametrize("case", [
    attention(1024, 1.0, {"fa4": 1.0}, window=64),
    attention(1024, 1.0, {"fa4": 1.0}, hk=2),
    attention(1024, 1.0, {"fa4": 1.0}, d=96),
    attention(1024, "no kernel", {"fa4": 1.0}),
    {**attention(1024, 1.0, {"fa4": 1.0}), "state": "burst"},
    masked(0.5, 1.0, {"fa4": 1.0}),
    masked(0.5, "no kernel", {"tessera_dense": 1.0, "fa4": 1.0}),
    masked(0.5, 1.0, {"tessera_dense": 1.0}, lists="per_head"),
    product(64, 0.5, 1.0, {"torch_bsr": 1.0}),
    product(64, 0.5, 1.0, {"cublaslt": 1.0}, side="b"),
    record("matmul", DENSE, 1.0, {"cublaslt": 1.0}),
])
def test_other_cases_make_no_picture(case):
    names = [name for name in pictures.PICTURES if name not in pictures.OF_SWEEPS]
    assert [drawn(name, [case]) for name in names] == [[]] * len(names)


def test_speed_ups_of_attention_are_over_our_own_dense():
    (picture,) = drawn("attention_density", DENSITIES)
    assert "fa4: 1.5 at 0.25. tessera: 6 at 0.125, 3 at 0.25." in description(picture)
    assert list(labels(picture)) == ["ideal, 1/density", "fa4", "tessera 6x"]
    # Both axes are logarithmic: twice the speed-up at half the density is parallel to the ideal.
    ideal = re.search(r'ideal">\n<path d="M([\d.]+) ([\d.]+)L([\d.]+) ([\d.]+)"', picture.svg)
    x0, y0, x1, y1 = map(float, ideal.groups())
    (xa, ya), (xb, yb) = markers(picture, "tessera")
    assert (yb - ya) / (xb - xa) == pytest.approx((y1 - y0) / (x1 - x0), rel=0.01)
    assert xa == x0 == RIGHT and ya > y0  # sparser to the right, below the ideal


def test_speed_ups_of_products_are_over_one_dense_product():
    (picture,) = drawn("product_density", PRODUCTS)
    text = description(picture)
    assert "blocks of 64: 2 at 0.25, 0.667 at 0.75. blocks of 16: 0.5 at 0.25." in text
    assert "random values" in text and "as fast as dense at 0.50 (blocks of 64)" in text
    assert picture.svg.count('class="even"') == 1
    # Where random values were not measured, zeros stand in for them, and the picture says so.
    (other,) = drawn("product_density", [product(64, 0.25, 0.5, {"cublaslt": 1.5})])
    assert "multiplies the zeros" in description(other) and "3 at 0.25" in description(other)
    # They do not where others were held against random values.
    mixed = [*PRODUCTS, product(32, 0.25, 0.5, {"cublaslt": 1.5})]
    assert "blocks of 32" not in description(*drawn("product_density", mixed))


@pytest.mark.parametrize("name, cases", [
    ("attention_128", LENGTHS[:1]), ("attention_density", DENSITIES[:1]),
    ("product_density", PRODUCTS[2:]), ("product_density", [
        product(128, 1.0, 1.0, {"cublaslt": 1.0})]),
])
def test_one_point_is_enough(name, cases):
    (picture,) = drawn(name, cases)
    ours = [group for group in lines_of(picture) if "ours" in group.get("class")]
    assert len(ours) == 1 and len(ours[0].findall(f"{SVG}circle")) == 1
    assert not re.search("nan|inf", picture.svg)


def test_labels_keep_apart_and_inside():
    peers = {f"peer {number}": 0.01 + number * 1e-5 for number in range(30)}
    (picture,) = drawn("attention_128", [attention(1024, 0.01, peers), LENGTHS[0]])
    heights = sorted(labels(picture).values())
    assert len(heights) == 32  # with fa4 and ours
    assert min(b - a for a, b in itertools.pairwise(heights)) > 15.8
    assert heights[0] > line_chart.TOP and heights[-1] < float(parsed(picture).get("height")) - 50


def test_hostile_names_stay_text():
    names = ["<script>alert(1)</script>", "a&b]]>\x00\x1b\ud800", 'q"\'>' + "long" * 99]
    (picture,) = drawn("attention_128", [attention(1024, 1.0, dict.fromkeys(names, 1.0))],
                       gpu={**GPU, "name": "../<b>&\n"})
    assert picture.file == "b-attention-128-full.svg"
    picture.svg.encode("utf-8")
    tags = {element.tag.removeprefix(SVG) for element in parsed(picture).iter()}
    assert tags == {"svg", "title", "desc", "style", "rect", "text", "path", "g", "circle"}
    assert all(len(label) <= line_chart.LONGEST_LABEL for label in labels(picture))


def test_a_picture_says_how_many_of_its_cases_are_stale():
    new = result_of(LENGTHS[:1])
    old = {**result_of(json.loads(json.dumps(LENGTHS[1:]))), "date": "2000-01-02T00:00:00Z"}
    for case in old["cases"]:
        case["ours"]["machine_code"] = "0" * 16
    (picture,) = pictures.draw("attention_128", [new, old], KERNELS)
    said = "2 of 3 cases are stale: their kernels have changed since"
    assert f"Invented Card, 100 W, 2000-01-02, 2001-02-03. {said}" in description(picture)
    assert picture.title.endswith(f"full, {said}")
    (picture,) = pictures.draw("attention_128", [old], KERNELS)
    assert ">2 of 2 cases are stale: their kernels have changed since</text>" in picture.svg
    # Without known kernels nothing is said.
    for results, kernels in (([new], KERNELS), ([old], None)):
        (picture,) = pictures.draw("attention_128", results, kernels)
        assert "stale" not in picture.svg + picture.title


@pytest.fixture
def tree(tmp_path):
    """A tree with two pages and a result."""
    (tmp_path / "docs" / "kernels").mkdir(parents=True)
    page_tree(tmp_path, readme=marked("attention_128", kind="picture"), **{
        "kernels/page": marked("attention_128", kind="picture")
        + "<!-- picture: product_density -->\ntyped by hand\n<!-- end -->\n"})
    put(tmp_path, "card.json", LENGTHS)
    return tmp_path


def test_the_check_sees_changed_missing_and_stray_files(tree, capsys):
    folder = tree / "docs/images/measured"
    picture = folder / "invented-card-attention-128-full.svg"
    assert run(tree, "--check") == 1 and not folder.exists()
    assert run(tree) == 0 and run(tree, "--check") == 0
    content = picture.read_text()
    picture.write_text(content.replace("410", "999"))
    capsys.readouterr()
    assert run(tree, "--check") == 1
    assert f"{picture.relative_to(tree)}: not what" in capsys.readouterr().out
    assert run(tree) == 0 and picture.read_text() == content
    picture.unlink()
    assert run(tree, "--check") == 1 and run(tree) == 0 and picture.read_text() == content
    (folder / "stray.svg").write_text("<svg/>")
    assert run(tree, "--check") == 1 and run(tree) == 0 and not (folder / "stray.svg").exists()


def test_pages_refer_to_what_there_is(tree):
    run(tree)
    name = "invented-card-attention-128-full.svg"
    title = "Attention, head dimension 128, full"
    assert f"\n\n![{title}](docs/images/measured/{name})\n\n" in (tree / "README.md").read_text()
    page = (tree / "docs/kernels/page.md").read_text()
    assert f"![{title}](../images/measured/{name})" in page
    assert page.endswith("<!-- picture: product_density -->\n<!-- end -->\n")
    # A kernel changes: the check fails until picture and page say that they are stale.
    change_kernel(tree, ATTENTION_ROW)
    assert run(tree, "--check") == 1
    run(tree)
    assert "full, 3 of 3 cases are stale" in (tree / "README.md").read_text()
    # The cases are no longer in any result: nothing refers to the picture, and it is gone.
    put(tree, "card.json", [])
    assert run(tree, "--check") == 1
    run(tree)
    assert run(tree, "--check") == 0 and not list((tree / "docs/images/measured").iterdir())
    assert (tree / "README.md").read_text() == "<!-- picture: attention_128 -->\n<!-- end -->\n"


def test_cards_do_not_share_a_file(tree, capsys):
    put(tree, "other.json", LENGTHS[:1], gpu={**GPU, "name": "Invented-Card"})
    assert run(tree) == 1 and "too alike" in capsys.readouterr().out


def narrow(s, ms, errors, peers):
    """Attention in FP8; errors: (normal, difficult) of ours. peers: {name: (ms, error, error)}."""
    made = attention(s, ms, {name: time for name, (time, *_) in peers.items()}, dtype="e4m3")
    made["ours"]["rms_error"] = dict(zip(("normal", "difficult"), errors, strict=True))
    for name, (_, *of_peer) in peers.items():
        made["peers"][name]["rms_error"] = dict(zip(("normal", "difficult"), of_peer, strict=True))
    return made


def test_speed_over_error_of_fp8():
    cases = [narrow(2048, 0.01, (0.02, 0.002), {"fa3": (0.02, 0.03, 0.2)}),
             narrow(1024, 0.01, (0.02, 0.001), {"fa3": (0.01, 0.03, None)}),
             attention(4096, 0.01, {"fa4": 0.008})]  # in bf16
    (picture,) = drawn("attention_fp8_error", cases)
    said = description(picture)
    assert "normal inputs, tessera, length 1024: 102 TFLOPS, error 0.02" in said
    assert "difficult inputs, fa3, length 2048: 102 TFLOPS, error 0.2" in said
    assert "difficult inputs, fa3, length 1024" not in said and "4096" not in said
    ours, peer = (next(group for group in lines_of(picture)[2:]
                       if group.find(f"{SVG}text").text.startswith(name))
                  for name in ("tessera", "fa3"))
    left, right = (max(float(one.get("cx")) for one in group.iter(f"{SVG}circle"))
                   for group in (ours, peer))
    assert left < right  # the more exact one
    assert drawn("attention_fp8_error", cases[2:]) == []
