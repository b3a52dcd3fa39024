"""The API reference as Markdown, from the comments of the headers and the docstrings of the
package. Nothing is imported or compiled."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HEADERS = ROOT / "include" / "tessera"
PACKAGE = ROOT / "python" / "tessera"
# In an order for newcomers; others follow by name.
FIRST_HEADERS = ("tensor", "host_tensor", "attention", "matmul", "spgemm", "bsr", "block_mask",
                 "pattern", "convert", "plan", "execution", "device", "error")
NOT_SHOWN = ("export", "tessera", "version")  # macros; the header that includes the others
FIRST_NAMES = ("attention", "merge_states", "quantize", "BlockMask", "matmul", "bsr_matmul",
               "linear", "sddmm", "spgemm", "BsrMatrix", "plan", "Plan", "explain", "Explanation")
# Modules with a section of their own.
MODULES = ("nn", "paged", "patterns", "compat.flash_attn", "integrations.transformers")
WIDTH = 96
EXPORT = "TESSERA_EXPORT "


def escaped(text):
    """The text of a comment as Markdown: `code` stays code, and everything else is escaped."""
    pieces = re.split(r"(``.+?``|`[^`]+`)", text, flags=re.DOTALL)
    return "".join(re.sub(r"([*_<\[\\])", r"\\\1", piece) if i % 2 == 0 else piece
                   for i, piece in enumerate(pieces))


# ---- C++ -----------------------------------------------------------------------------------------

NAME = re.compile(r"(?:struct|class|enum class|using|namespace)\s+(?:TESSERA_EXPORT\s+)?(\w+)"
                  r"|(?:constexpr\s+[\w:]+\s+)(k\w+)|([\w~]+)\s*\(|(operator\S+)\(")


def name_of(declaration):
    code = re.sub(r"//.*|^template <.*>$", "", declaration, flags=re.MULTILINE)
    found = NAME.search(code)
    return next(filter(None, found.groups())) if found else ""


def units(text):
    """(comment, declaration, namespace) of each declaration in a header's namespace, in order.
    Lines that follow a declaration without an empty line or comment belong to it. A comment without
    a declaration is a heading."""
    body = text[text.index("namespace tessera {"):].split("\n")[1:]
    comment, declaration, depth, inner, found = [], [], 0, "", []

    def finish():
        nonlocal comment, declaration
        if declaration:
            joined = "\n".join(declaration)
            if not comment and found and found[-1][1] and glued:
                found[-1] = (found[-1][0], f"{found[-1][1]}\n{joined}", inner)
            else:
                found.append(("\n".join(comment), joined, inner))
        comment, declaration = [], []

    glued = False
    for line in body:
        code = re.sub(r"//.*", "", line)
        if depth == 0 and not declaration:
            if heading := re.match(r"// -{2,} (.+?) -+$", line):
                found.append((heading[1], "", inner))
                glued = False
                continue
            if line.startswith("///"):
                comment.append(line[4:])
                continue
            if not line.strip() or line.startswith(("//", "}", "#")):
                inner = "" if line.startswith("}") else inner
                glued = glued and bool(line.strip())
                continue
            if namespace := re.match(r"namespace (\w+) \{", line):
                comment, inner = [], f"{namespace[1]}::"
                continue
        declaration.append(line)
        depth += code.count("{") - code.count("}") + code.count("(") - code.count(")")
        if depth == 0 and re.search(r"[;}]\s*$", code):
            finish()
            glued = True
    return found


def shown_code(declaration):
    """The declaration without its attribute, private members and marks for tools."""
    lines, narrower = [], False
    for line in declaration.split("\n"):
        if line == " private:":
            lines.append("};")
            break
        # Continuation lines stay aligned with the first parameter.
        kept = line.removeprefix(" " * len(EXPORT)) if narrower and line.startswith(" ") else line
        narrower = (EXPORT in line or narrower) and not line.endswith((";", "{"))
        kept = re.sub(r"\s*// NOLINT.*", "", kept.replace(EXPORT, ""))
        lines.append(kept.replace("///<", "//").replace("///", "//"))
    return "\n".join(["```cpp", *lines, "```"])


def header_lines(path):
    text = path.read_text(encoding="utf-8")
    lines = [f"## `tessera/{path.name}`", ""]
    last = None
    for comment, declaration, namespace in units(text):
        if not declaration:
            lines += [f"**{comment}**", ""]
            continue
        if not comment and re.match(r"struct \w+;$", declaration):
            continue
        name = namespace + name_of(declaration)
        lines += [f"### `{name}`", ""] if name != last else []
        last = name
        lines += [escaped(comment), ""] if comment else []
        lines += [shown_code(declaration), ""]
    return lines


def cpp_page():
    names = [*FIRST_HEADERS, *sorted(path.stem for path in HEADERS.glob("*.hpp")
                                     if path.stem not in (*FIRST_HEADERS, *NOT_SHOWN))]
    lines = ["# C++ reference", "",
             "What the headers in `include/tessera/` declare, in namespace `tessera`; "
             "`#include <tessera/tessera.hpp>` includes all of them. Made from their comments.", ""]
    for name in names:
        lines += header_lines(HEADERS / f"{name}.hpp")
    return "\n".join(lines)


# ---- Python --------------------------------------------------------------------------------------


def docstring_lines(node):
    """The lines of a docstring, with examples as code."""
    lines, example = [], False
    for paragraph in re.split(r"\n\s*\n", ast.get_docstring(node) or ""):
        is_example = paragraph.startswith(">>>")
        if is_example:
            lines += ["" if example else "```pycon", paragraph]
        else:
            lines += [*(["```", ""] if example else []), escaped(paragraph), ""]
        example = is_example
    return [*lines, *(["```", ""] if example else [])]


def signature(name, function, drop_first=False):
    """A function's signature, with a parameter per line if it is long, without types `Any`."""
    arguments = ast.parse(ast.unparse(function)).body[0].args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs,
             *filter(None, (arguments.vararg, arguments.kwarg))]
    for argument in every:
        if argument.annotation and ast.unparse(argument.annotation) == "Any":
            argument.annotation = None
    if drop_first:
        arguments.args = arguments.args[1:]
    # Commas inside brackets do not separate parameters.
    parts = re.split(r", (?![^\[\(]*[\]\)])", ast.unparse(arguments))
    parts = [re.sub(r"=", " = ", part, count=1) if ": " in part else part for part in parts]
    call = f"{name}({', '.join(parts)})"
    returns = ast.unparse(function.returns) if function.returns else "Any"
    result = "" if returns in ("Any", "None") else f" -> {returns}"
    if len(call + result) > WIDTH:
        call = f"{name}(\n    " + ",\n    ".join(parts) + ",\n)"
    return f"```python\n{call}{result}\n```"


def shown_signature(function, functions):
    """The function whose parameters `shown_as` names, or the function itself."""
    for decorator in function.decorator_list:
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "shown_as":
            return functions[decorator.args[0].id]
    return function


def decorators(function):
    return {ast.unparse(one) for one in function.decorator_list}


def class_lines(node, name):
    lines = [f"### `{name}`", "", *docstring_lines(node)]
    fields = [statement for statement in node.body if isinstance(statement, ast.AnnAssign)]
    if fields and any("dataclass" in one for one in decorators(node)):
        lines += ["```python", *(ast.unparse(field) for field in fields), "```", ""]
    for method in node.body:
        if not isinstance(method, ast.FunctionDef) or not ast.get_docstring(method):
            continue
        if method.name.startswith("_"):
            continue
        lines += [f"#### `{name}.{method.name}`", ""]
        if "property" not in decorators(method):
            static = "staticmethod" in decorators(method)
            called = f"{name}.{method.name}" if static else method.name
            lines += [signature(called, method, drop_first=not static), ""]
        lines += docstring_lines(method)
    return lines


def module_lines(module, names=None, prefix="tessera."):
    """The public functions and classes of a module, or those of these names."""
    tree = ast.parse((PACKAGE / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8"))
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    lines = []
    for node in tree.body:
        if not isinstance(node, (ast.FunctionDef, ast.ClassDef)) or not ast.get_docstring(node):
            continue
        if node.name.startswith("_") or (names is not None and node.name not in names):
            continue
        name = prefix + node.name
        if isinstance(node, ast.ClassDef):
            lines += class_lines(node, name)
        else:
            lines += [f"### `{name}`", "", signature(name, shown_signature(node, functions)), "",
                      *docstring_lines(node)]
    return lines


def exported():
    """{name: module} of the package's exports."""
    tree = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    found = {}
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tessera."):
            found |= {alias.name: node.module.removeprefix("tessera.") for alias in node.names}
        elif isinstance(node, ast.FunctionDef):
            found[node.name] = "__init__"
    (names,) = (ast.literal_eval(node.value) for node in tree.body if isinstance(node, ast.Assign)
                and ast.unparse(node.targets[0]) == "__all__")
    return {name: found[name] for name in names if name in found}


def python_page():
    modules = exported()
    names = [*FIRST_NAMES, *sorted(set(modules) - set(FIRST_NAMES))]
    lines = ["# Python reference", "",
             "Arrays are NumPy's or PyTorch's. Made from the docstrings, which `help()` shows; "
             "their examples are tests.", "", "## `tessera`", ""]
    for name in names:
        lines += module_lines(modules[name], {name})
    for module in MODULES:
        tree = ast.parse((PACKAGE / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8"))
        lines += [f"## `tessera.{module}`", "", *docstring_lines(tree),
                  *module_lines(module, prefix=f"tessera.{module}.")]
    return "\n".join(lines)
