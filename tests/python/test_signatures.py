"""The table of signatures, the code that is generated from it, and the imports between modules."""

import ast
import importlib.util
import inspect
import re
from pathlib import Path

import numpy as np
import pytest

import tessera
from tessera import _ffi, _signatures
from tessera._signatures import REQUIRED, SIGNATURES, Group, Signature
from tessera.keywords import shown_as

ROOT = Path(__file__).resolve().parents[2]


def script():
    path = ROOT / "tools/signatures_header.py"
    spec = importlib.util.spec_from_file_location("signatures_header", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def descriptors(header, name):
    """(position, name in messages) of each descriptor of an operation in the header."""
    body = re.search(rf"namespace {name} {{\n(.*?)\n}}  // namespace {name}\n", header, re.S)[1]
    return [(int(at), label) for at, label in re.findall(r'\{(\d+), "([^"]+)"', body)], body


@pytest.mark.parametrize("signature", SIGNATURES, ids=lambda s: s.name)
def test_the_header_states_every_argument_once_where_the_table_has_it(signature):
    made = script()
    table = made.read_table()
    header = made.header_of(table.SIGNATURES, table.Group)
    found, body = descriptors(header, signature.name)
    assert sorted(found) == [(i, x.label or x.name) for i, x in enumerate(signature.exported)]
    assert f'kSignature{{"{signature.op}", {len(signature.exported)}}}' in body


def test_names_are_unique_and_required_arguments_come_first():
    for signature in SIGNATURES:
        names = [x.name for x in (*signature.inputs, *signature.outputs, *signature.extras)]
        assert len(set(names)) == len(names), signature.name
        if signature.returns:
            given = [x.default is REQUIRED for x in (*signature.inputs, *signature.extras)]
            assert given == sorted(given, reverse=True), signature.name


@pytest.mark.parametrize("signature", [x for x in SIGNATURES if x.returns], ids=lambda s: s.name)
def test_pytorch_has_the_table_s_schemas(signature):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    from tessera import torch_ops  # noqa: F401  registers the operations

    schema = getattr(torch.ops.tessera, signature.name).default._schema
    whole = (*signature.inputs, *signature.extras)
    assert [x.name for x in schema.arguments] == [x.name for x in whole]
    for registered, stated in zip(schema.arguments, whole, strict=True):
        assert registered.has_default_value() == (stated.default is not REQUIRED), stated.name
        if stated.default is not REQUIRED:
            assert registered.default_value == stated.default, stated.name


def test_tuples_and_pickers_follow_the_names():
    matmul = _signatures.MATMUL
    call = matmul.Arguments(a="A", b="B", c="C", bias="D", out_dtype="T")
    assert matmul.trained()(call) == ("A", "B", "C", "D")
    assert matmul.Gradients(bias=1)._asdict() == {
        name: 1 if name == "bias" else None for name in matmul.Arguments._fields}
    short = matmul.shortened(call._replace(out_dtype=None))
    assert short[-1] == "D" and matmul.complete(short) == call._replace(out_dtype=None)
    toy = Signature("toy", [Group("g", "Bsr", {"values": _signatures.Argument("x", "Tensor")}),
                            _signatures.Argument("n", "int", 3)],
                    outputs=[_signatures.Argument("out", "Tensor?", label="the.out")],
                    returns="Tensor")
    assert toy.schema == "toy(Tensor x, int n=3) -> Tensor"
    assert toy.input_labels == ("toy: x", None) and toy.output_labels == ("toy: the.out",)
    assert toy.Inputs("X") == ("X", 3)
    group = next(x for x in matmul.parts if x.name == "a")
    assert _signatures.Operand._fields == tuple(group.fields)


def test_exports_are_called_by_names_and_count_their_arguments():
    q = np.ones((1, 4, 2, 8), np.float32)
    out = np.empty_like(q)
    _ffi.attention(q=q, k=q, v=q, out=out, lse=None)
    assert np.array_equal(out, tessera.attention(q, q, q))
    with pytest.raises(TypeError, match="unexpected keyword argument 'keys'"):
        _ffi.attention(q, keys=q)
    raw = _ffi.attention.__globals__["export"]
    with pytest.raises(TypeError, match="attention: arguments: expected 37, got 3"):
        raw(q, q, q)


def imports_of(path):
    """The modules of the package that a file imports, also inside functions."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {x.name for x in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found |= {node.module, *(f"{node.module}.{x.name}" for x in node.names)}
    return found


def test_imports_have_no_cycle():
    """`import tessera` imports the package, which imports its public modules."""
    folder = ROOT / "python/tessera"
    names = {f"tessera.{path.stem}": path for path in folder.glob("*.py")
             if path.stem not in ("__init__", "overhead")}
    graph = {name: imports_of(path) & set(names) for name, path in names.items()}
    for name, path in names.items():
        assert "tessera" not in {node.name for tree in [ast.parse(path.read_text())]
                                 for stmt in ast.walk(tree) if isinstance(stmt, ast.Import)
                                 for node in stmt.names}, f"{name} imports the package"
    done = set()

    def visit(name, way):
        assert name not in way, " -> ".join([*way[way.index(name):], name])
        if name not in done:
            for other in sorted(graph[name]):
                visit(other, [*way, name])
            done.add(name)

    for name in graph:
        visit(name, [])


def test_includes_have_no_cycle():
    files = {path.relative_to(ROOT).as_posix(): path
             for top in ("include", "src") for path in (ROOT / top).rglob("*")
             if path.suffix in (".hpp", ".cuh", ".cpp", ".cu")}
    includes = {name: set(re.findall(r'#include "([^"]+)"', path.read_text()))
                | {f"include/{x}" for x in re.findall(r"#include <(tessera/[^>]+)>",
                                                      path.read_text())}
                for name, path in files.items()}
    both = [(a, b) for a, others in includes.items() for b in others
            if a in includes.get(b, ()) and a <= b]
    assert both == []


def test_options_of_attention_go_by_name():
    q = np.ones((1, 4, 2, 16), np.float32)
    with pytest.raises(TypeError, match="takes 3 positional arguments"):
        tessera.attention(q, q, q, True)
    kinds = {p.name: p.kind for p in inspect.signature(tessera.attention).parameters.values()}
    assert list(kinds)[:3] == ["q", "k", "v"] and "_" not in kinds
    assert kinds["causal"] is inspect.Parameter.KEYWORD_ONLY


def test_a_function_has_the_parameters_that_it_is_shown_with():
    def shown(a, *, b=1): ...

    @shown_as(shown)
    def right(a, _=..., b=1):
        return a, b

    assert right(2, b=3) == (2, 3) and inspect.signature(right) == inspect.signature(shown)
    with pytest.raises(TypeError, match="wrong: its parameters are not those"):
        @shown_as(shown)
        def wrong(a, _=..., b=2): ...
