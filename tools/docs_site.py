"""The MkDocs hook of `make docs`, which mkdocs.yml names.

- README.md is the front page. Pages outside docs/ that a page links to (README files of kernels,
  CONTRIBUTING.md) become pages of the site, and so do source files and folders. The build
  fails if a link is broken.
- The API reference is made from the comments of the headers and the docstrings of the package
  (docs_reference.py). The READMEs of kernel folders and the decisions are added to the navigation.
- Blocks such as "```cpp run" are shown as C++.
"""

import posixpath
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import docs_reference

ROOT = Path(__file__).resolve().parents[1]
# Folders of the site for generated pages, and for pages of files outside docs/.
REFERENCE = {"reference/python.md": docs_reference.python_page,
             "reference/cpp.md": docs_reference.cpp_page}
OUTSIDE = "tree"
LANGUAGES = {".hpp": "cpp", ".cpp": "cpp", ".cuh": "cuda", ".cu": "cuda", ".py": "python",
             ".json": "json", ".sh": "sh", ".cmake": "cmake"}
LONGEST_SOURCE = 100_000
FENCED = re.compile(r"^ *(```+).*?^ *\1$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<=\]\()([^)\s]+)(?=\))")
OPENING = re.compile(r"^( *```+)(\w+) (?:run|file=(\S+))$", re.MULTILINE)


def page_of(path):
    """The page of a file or folder of the tree, as MkDocs names sources."""
    if path == "README.md":
        return "index.md"
    if (ROOT / path).is_dir():
        path = posixpath.join(path, "README.md")
    within = path.removeprefix("docs/")
    if within != path:
        return within
    return posixpath.join(OUTSIDE, path if path.endswith(".md") else path + ".md")


def path_of(page):
    """The file of the tree that a page of the site is made from."""
    if page == "index.md":
        return "README.md"
    within = page.removeprefix(OUTSIDE + "/")
    if within == page:
        return "docs/" + page
    source = within.removesuffix(".md")
    return source if (ROOT / source).is_file() else within


def content_of(path):
    """The Markdown for a file or folder that is not a Markdown page."""
    file = ROOT / path
    if file.is_dir():
        entries = sorted(entry for entry in file.iterdir() if not entry.name.startswith("."))
        lines = [f"- [{heading_of(entry)}]({entry.name})" if entry.suffix == ".md"
                 else f"- `{entry.name}{'/' * entry.is_dir()}`" for entry in entries]
        return "\n".join([f"# `{path}/`", "", *lines, ""])
    if file.suffix == ".md":
        return file.read_text(encoding="utf-8")
    if file.stat().st_size > LONGEST_SOURCE:
        return f"# `{path}`\n\n{file.stat().st_size:,} bytes: see the file itself.\n"
    language = LANGUAGES.get(file.suffix, "text")
    return f"# `{path}`\n\n````{language}\n{file.read_text(encoding='utf-8')}\n````\n"


def heading_of(file):
    found = re.search(r"^# (.+)$", file.read_text(encoding="utf-8"), re.MULTILINE)
    return found[1] if found else file.name


def outside_fences(text, change):
    """Applies `change` to the text outside fenced code blocks."""
    parts, at = [], 0
    for block in FENCED.finditer(text):
        parts += [change(text[at:block.start()]), block[0]]
        at = block.end()
    return "".join([*parts, change(text[at:])])


def target_of(link, path):
    """(file or folder of the tree, anchor) of a link in the file `path`; None for links that leave
    the tree, are broken, or stay on the page."""
    if re.match(r"[a-z]+:", link) or link.startswith("#"):
        return None
    name, mark, anchor = link.partition("#")
    target = posixpath.normpath(posixpath.join(posixpath.dirname(path), name))
    if target.startswith("..") or not (ROOT / target).exists():
        return None
    return target, mark + anchor


def is_image(path):
    return Path(path).suffix in (".svg", ".png")


def linked(text, path):
    """The files and folders of the tree that a page links to."""
    found = []

    def collect(part):
        found.extend(target_of(link, path) for link in LINK.findall(part))
        return part

    outside_fences(text, collect)
    return [target for target, _ in filter(None, found) if not is_image(target)]


def rewritten(text, page):
    """The Markdown of a page, with links changed for the site."""
    path, folder = path_of(page), posixpath.dirname(page)

    def moved(link):
        found = target_of(link[1], path)
        if found is None:
            return link[1]
        target, anchor = found
        at = target.removeprefix("docs/") if is_image(target) else page_of(target)
        return posixpath.relpath(at, folder or ".") + anchor

    def opening(block):
        title = f' title="{block[3]}"' if block[3] else ""
        return f"{block[1]}{block[2]}{title}"

    return OPENING.sub(opening, outside_fences(text, lambda part: LINK.sub(moved, part)))


def pages_beyond(texts):
    """{page: Markdown} of all other pages that these {page: Markdown} link to, directly or not."""
    made, waiting = {}, [(text, path_of(page)) for page, text in texts.items()]
    while waiting:
        text, path = waiting.pop()
        for target in linked(text, path):
            page = page_of(target)
            if page not in texts and page not in made:
                made[page] = content_of(target)
                waiting.append((made[page], path_of(page)))
    return made


def kernel_pages():
    return sorted(path.relative_to(ROOT).as_posix()
                  for path in (ROOT / "src" / "kernels").rglob("README.md"))


def filled(nav):
    """The navigation with the kernels' pages and the decisions in their sections."""
    found = {"Kernel pages": [page_of(path) for path in kernel_pages()],
             "Decisions": sorted(f"decisions/{file.name}"
                                 for file in (ROOT / "docs" / "decisions").glob("*.md"))}
    return [{name: [*value, *found.get(name, [])] if isinstance(value, list) else value
             for name, value in entry.items()} if isinstance(entry, dict) else entry
            for entry in nav]


def nav_pages(nav):
    for entry in nav:
        for value in entry.values() if isinstance(entry, dict) else [entry]:
            yield from nav_pages(value) if isinstance(value, list) else [value]


def on_config(config):
    config.nav = filled(config.nav)
    return config


def on_files(files, config):
    from mkdocs.structure.files import File

    texts = {file.src_uri: file.content_string for file in files.documentation_pages()}
    made = {page: make() for page, make in REFERENCE.items()}
    made |= {page: content_of(path_of(page)) for page in nav_pages(config.nav)
             if page not in texts and page not in made}
    made |= pages_beyond({**texts, **made})
    for page, text in made.items():
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown, page, **_):
    return rewritten(markdown, page.file.src_uri)
