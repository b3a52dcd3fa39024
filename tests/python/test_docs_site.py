"""The output of `make docs`: links, and the API reference from comments and docstrings. MkDocs is
not needed."""

import sys
from pathlib import Path

import tessera

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import docs_reference  # noqa: E402
import docs_site  # noqa: E402


def test_links_that_leave_docs_stay_in_the_site():
    page = docs_site.rewritten(
        "[a](../src/walk/walk.hpp) [b](../README.md#install) [c](formats.md#batches) "
        "[d](https://x.org) [e](../src/kernels/cuda/merge/README.md) [f](decisions/) [g](#here)\n"
        "```cpp run\n[h](../README.md)\n```\n", "map.md")
    assert page == (
        "[a](tree/src/walk/walk.hpp.md) [b](index.md#install) [c](formats.md#batches) "
        "[d](https://x.org) [e](tree/src/kernels/cuda/merge/README.md) [f](decisions/README.md) "
        "[g](#here)\n```cpp\n[h](../README.md)\n```\n")
    # From pages of the site outside docs/.
    assert docs_site.rewritten("[a](../../../docs/formats.md)",
                               "tree/src/kernels/cuda/README.md") == (
        "[a](../../../../formats.md)")
    assert docs_site.rewritten("![p](docs/images/bsr.svg)", "index.md") == "![p](images/bsr.svg)"
    assert docs_site.rewritten("```cpp file=src/a.hpp\n```", "map.md") == (
        '```cpp title="src/a.hpp"\n```')


def test_links_to_nothing_are_left_for_mkdocs_to_refuse():
    for link in ("../src/nowhere.hpp", "nowhere.md", "../../outside.md"):
        assert docs_site.rewritten(f"[a]({link})", "map.md") == f"[a]({link})"


def test_linked_files_become_pages():
    made = docs_site.pages_beyond({
        "map.md": "[a](../src/walk/walk.hpp) [b](decisions/) [c](guide.md)", "guide.md": ""})
    assert "namespace tessera" in made["tree/src/walk/walk.hpp.md"]
    assert "0012-kernel-families.md" in made["decisions/README.md"]
    assert "guide.md" not in made
    assert all(docs_site.path_of(page) for page in made)
    for page in ("index.md", "map.md", "tree/CONTRIBUTING.md", "tree/src/walk/walk.hpp.md"):
        assert docs_site.page_of(docs_site.path_of(page)) == page


def test_every_kernel_page_and_page_of_docs_is_in_the_navigation():
    text = (ROOT / "mkdocs.yml").read_text()
    for page in (ROOT / "docs").rglob("*.md"):
        name = page.relative_to(ROOT / "docs").as_posix()
        assert name in text or name.startswith("decisions/"), f"{name} is not in mkdocs.yml"
    nav = docs_site.filled([{"Kernel pages": []}, {"Decisions": []}, "index.md"])
    pages = list(docs_site.nav_pages(nav))
    assert "tree/src/kernels/cuda/merge/README.md" in pages and pages[-1] == "index.md"
    assert "decisions/0012-kernel-families.md" in pages


def test_the_python_reference_has_every_public_name():
    page = docs_reference.python_page()
    for name in tessera.__all__:
        assert f"### `tessera.{name}`" in page or f"## `tessera.{name}`" in page, name
    assert "    window_left: int | None = None,\n" in page
    assert "#### `tessera.BlockMask.from_top_k`" in page
    assert "### `tessera.nn.BsrLinear`" in page and "_signature" not in page
    assert page.count("```") % 2 == 0


def test_the_cpp_reference_has_every_exported_declaration():
    page = docs_reference.cpp_page()
    for header in docs_reference.HEADERS.glob("*.hpp"):
        if header.stem in docs_reference.NOT_SHOWN:
            continue
        assert f"## `tessera/{header.name}`" in page
        for line in header.read_text().splitlines():
            if line.startswith("TESSERA_EXPORT"):
                assert line.removeprefix("TESSERA_EXPORT ") in page, line
    assert "TESSERA_EXPORT" not in page and "### `patterns::bigbird`" in page
    assert "storage_;" not in page  # private


def test_comments_are_prose_in_markdown():
    assert docs_reference.escaped("rows [i*r, (i+1)*r), `a*b` and ``c*d``") == (
        r"rows \[i\*r, (i+1)\*r), `a*b` and ``c*d``")
    header = ("namespace tessera {\n\n// ---- Part ----\n\n/// One.\n///\n/// Two.\n"
              "TESSERA_EXPORT void f(int a,\n                      int b);\nvoid g();\n\n"
              "namespace inner {\n/// Three.\nstruct S {\n  int a;  ///< four\n};\n"
              "}  // namespace inner\n}  // namespace tessera\n")
    assert docs_reference.units(header) == [
        ("Part", "", ""),
        ("One.\n\nTwo.",
         "TESSERA_EXPORT void f(int a,\n                      int b);\nvoid g();", ""),
        ("Three.", "struct S {\n  int a;  ///< four\n};", "inner::")]
