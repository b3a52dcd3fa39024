"""The signature of every operation: the one place that states its arguments and their order.

From this table come the tuples of arguments, the schemas of ``torch.ops.tessera`` and their
defaults, what autograd and autocast look at, and, written by ``tools/signatures_header.py`` when
the package is built, the C++ header by which ``src/ffi`` reads the arguments. It needs the standard
library alone, so that the build can read it without the package.

A call of an export passes the inputs, then the outputs; a call of the registered operation passes
the inputs, then what PyTorch alone needs (``extras``)."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, NamedTuple

REQUIRED = object()

# The dtypes of a tensor, as messages list them; names of constants in src/ffi/arguments.hpp.
FLOATS, INPUTS, KEYS, INDICES, INT32, FLOAT32, FP8, BYTES, BLOCKS = (
    "kFloats", "kInputs", "kKeys", "kIndices", "kInt32", "kFloat32", "kFp8", "kBytes", "kBlocks")


@dataclass(frozen=True)
class Argument:
    """``type`` is the argument's type in PyTorch's schemas. ``label`` is its name in messages,
    ``dtypes`` what a tensor may hold. Autocast converts the arguments with ``cast``; gradients
    reach those with ``trained``."""

    name: str
    type: str
    default: Any = REQUIRED
    dtypes: str = ""
    label: str = ""
    cast: bool = False
    trained: bool = False

    @property
    def is_tensor(self) -> bool:
        return self.type in ("Tensor", "Tensor?")

    @property
    def schema(self) -> str:
        text = f"{self.type} {self.name}"
        if self.default is REQUIRED:
            return text
        return f'{text}="{self.default}"' if isinstance(self.default, str) else (
            f"{text}={self.default}")


@dataclass(frozen=True)
class Group:
    """Arguments that C++ reads as one thing: `type` names the struct in src/ffi/arguments.hpp, and
    `fields` its members."""

    name: str
    type: str
    fields: dict[str, Argument | Group]


class Signature:
    """Of one operation. ``Inputs`` is the tuple type of the arguments that the export and the
    registered operation share, ``Arguments`` that of all arguments of the registered operation."""

    def __init__(self, name: str, inputs: Sequence[Argument | Group], *,
                 outputs: Sequence[Argument | Group] = (), extras: Sequence[Argument] = (),
                 returns: str = "", op: str = "") -> None:
        self.name = name
        self.op = op or name  # in messages
        self.parts = (*inputs, *outputs)
        self.returns = returns
        self.inputs = _flat(inputs)
        self.outputs = _flat(outputs)
        self.extras = tuple(extras)
        # In tuples a required tensor is None where the caller names it later.
        fields = [x.name for x in self.inputs]
        self.Inputs = _tuple_type(f"{name}_inputs", fields, map(_default, self.inputs))
        whole = (*self.inputs, *self.extras)
        fields = [x.name for x in whole]
        self.Arguments = _tuple_type(f"{name}_arguments", fields, map(_default, whole))
        self.Gradients = _tuple_type(f"{name}_gradients", fields, [None] * len(fields))
        self.defaults = tuple(map(_default, whole))
        self.required = sum(x.default is REQUIRED for x in whole)  # come first
        # For each argument its name in messages where it is a tensor, else None.
        self.input_labels = tuple(self._label(x) if x.is_tensor else None for x in self.inputs)
        self.output_labels = tuple(map(self._label, self.outputs))  # all of them tensors
        tensors = [i for i, x in enumerate(self.inputs) if x.is_tensor]
        # Picks the inputs that are tensors; always a tuple.
        self.input_tensors = itemgetter(*tensors, *tensors[:1]) if tensors else lambda inputs: ()
        self.trained_names = tuple(x.name for x in whole if x.trained)

    @property
    def exported(self) -> tuple[Argument, ...]:
        """What the export is called with, in order."""
        return (*self.inputs, *self.outputs)

    @property
    def schema(self) -> str:
        """As PyTorch's library takes it."""
        arguments = ", ".join(x.schema for x in (*self.inputs, *self.extras))
        return f"{self.name}({arguments}) -> {self.returns}"

    def _label(self, argument: Argument) -> str:
        return f"{self.op}: {argument.label or argument.name}"

    def trained(self) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
        """Picks the arguments that gradients reach from a call of the registered operation."""
        whole = self.Arguments._fields
        picked: Any = itemgetter(*(whole.index(name) for name in self.trained_names))
        return picked

    def complete(self, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """With the trailing arguments that PyTorch's dispatcher drops where they have their
        defaults."""
        return arguments + self.defaults[len(arguments) :]

    def shortened(self, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """Without trailing arguments that have their defaults: what the dispatcher need not take
        apart costs no time."""
        end = len(arguments)
        for x, default in zip(reversed(arguments), reversed(self.defaults[:end]), strict=True):
            if x is not default or end == self.required:
                break
            end -= 1
        return tuple(arguments)[:end]  # up to 2.8, PyTorch compiles no slice of a named tuple


def _flat(parts: Iterable[Argument | Group]) -> tuple[Argument, ...]:
    flat: list[Argument] = []
    for part in parts:
        flat += _flat(part.fields.values()) if isinstance(part, Group) else [part]
    return tuple(flat)


def _tuple_type(name: str, fields: Iterable[str], defaults: Iterable[Any]) -> Any:
    """A named tuple type. It is Any to type checkers, as its fields come from the table."""
    return namedtuple(name, fields, defaults=defaults)


def _default(argument: Argument) -> Any:
    return None if argument.default is REQUIRED else argument.default


# ---- What several operations take --------------------------------------------------------------


def _bsr(name: str, label: str, prefix: str, dtypes: str) -> Group:
    return Group(name, "Bsr", {
        "values": Argument(f"{prefix}values", "Tensor", dtypes=dtypes, label=f"{label}.values",
                           trained=True),
        "row_offsets": Argument(f"{prefix}row_offsets", "Tensor", dtypes=INDICES,
                                label=f"{label}.row_offsets"),
        "col_indices": Argument(f"{prefix}col_indices", "Tensor", dtypes=INDICES,
                                label=f"{label}.col_indices"),
        "rows": Argument(f"{prefix}rows", "SymInt", label=f"{label}.rows"),
        "cols": Argument(f"{prefix}cols", "SymInt", label=f"{label}.cols"),
    })


def _operand(name: str) -> Group:
    """A dense tensor, or a BSR matrix where there are row offsets."""
    return Group(name, "Operand", {
        "values": Argument(name, "Tensor", dtypes=INPUTS, cast=True, trained=True),
        "row_offsets": Argument(f"{name}_row_offsets", "Tensor?", dtypes=INDICES,
                                label=f"{name}.row_offsets"),
        "col_indices": Argument(f"{name}_col_indices", "Tensor?", dtypes=INDICES,
                                label=f"{name}.col_indices"),
        "rows": Argument(f"{name}_rows", "SymInt", label=f"{name}.rows"),
        "cols": Argument(f"{name}_cols", "SymInt", label=f"{name}.cols"),
        "transposed": Argument(f"{name}_transposed", "bool", label=f"{name}.transposed"),
        "scale": Argument(f"{name}_scale", "Tensor?", dtypes=FLOAT32),
    })


class Operand(NamedTuple):
    """The fields of an operand, as its group states them."""

    values: Any
    row_offsets: Any = None
    col_indices: Any = None
    rows: int = 0
    cols: int = 0
    transposed: bool = False
    scale: Any = None


def operands_of(inputs: Any) -> tuple[Operand, Operand]:
    """The Operands a and b of a call of matmul, sddmm or spgemm."""
    return (Operand(inputs.a, inputs.a_row_offsets, inputs.a_col_indices, inputs.a_rows,
                    inputs.a_cols, inputs.a_transposed, inputs.a_scale),
            Operand(inputs.b, inputs.b_row_offsets, inputs.b_col_indices, inputs.b_rows,
                    inputs.b_cols, inputs.b_transposed, inputs.b_scale))


def weight_of(inputs: Any) -> Operand:
    """The Operand weight of a call of linear."""
    return Operand(inputs.weight, inputs.weight_row_offsets, inputs.weight_col_indices,
                   inputs.weight_rows, inputs.weight_cols, inputs.weight_transposed,
                   inputs.weight_scale)


# The fields of a block mask: attributes of BlockMask, by the names of the arguments.
MASK = Group("mask", "BlockMask", {
    "block_q": Argument("block_q", "SymInt", 0, label="mask.block_q"),
    "block_kv": Argument("block_kv", "SymInt", 0, label="mask.block_kv"),
    **{name: Argument(name, "Tensor?", None, INDICES, f"mask.{name}")
       for name in ("full_counts", "full_indices", "partial_counts", "partial_indices",
                    "bit_tile")},
    "bits": Argument("bits", "Tensor?", None, BYTES, "mask.bits"),
})


# What the functions call kernel is kernel_name here: PyTorch's compiler passes arguments on by name
# beside a `kernel` of its own.
EXECUTION = Group("execution", "Execution", {
    "threads": Argument("threads", "int", 0),
    "backend": Argument("backend", "str?", None),
    "kernel": Argument("kernel_name", "str?", None, label="kernel"),
})


def _attention_tensors(trained: bool = True, cast: bool = True) -> list[Argument]:
    """q, k and v; keys and values may be narrower than queries."""
    return [Argument(name, "Tensor", dtypes=KEYS, cast=cast, trained=trained)
            for name in "qkv"]


def _attention_options() -> Group:
    options: list[Argument | Group] = [
        Argument("bhld", "bool", False),
        Argument("scale", "float?", None),
        Argument("softcap", "float", 0.0),
        Argument("causal", "bool", False),
        Argument("window_left", "SymInt?", None),
        Argument("window_right", "SymInt?", None),
        *(Argument(name, "Tensor?", None, INDICES) for name in (
            "q_offsets", "kv_offsets", "kv_begin", "kv_end", "q_position", "kv_position")),
        Argument("page_table", "Tensor?", None, INT32),
        Argument("max_q_length", "SymInt", 0),
        Argument("max_kv_length", "SymInt", 0),
        Argument("batch_invariant", "bool", False),
        Argument("deterministic", "bool", True),
        Argument("sinks", "Tensor?", None, FLOATS, trained=True),
        Argument("k_scale", "Tensor?", None, FLOAT32),
        Argument("v_scale", "Tensor?", None, FLOAT32),
        Argument("q_scale", "Tensor?", None, FLOAT32),
        MASK,
        EXECUTION,
    ]
    return Group("options", "AttentionOptions", {x.name: x for x in options})


# ---- The operations ----------------------------------------------------------------------------

ATTENTION = Signature("attention", [
    *_attention_tensors(),
    _attention_options(),
], outputs=[
    Argument("out", "Tensor", dtypes=FLOATS),
    Argument("lse", "Tensor?", dtypes=FLOAT32),
], returns="(Tensor, Tensor)")

# What most calls of attention come with: arguments that are not passed cost no time. Not
# registered with PyTorch.
PLAIN_ATTENTION = Signature("plain_attention", [
    *_attention_tensors(trained=False, cast=False),
    Argument("bhld", "bool", False),
    Argument("scale", "float?", None),
    Argument("causal", "bool", False),
], outputs=[
    Argument("out", "Tensor", dtypes=FLOATS),
    Argument("lse", "Tensor?", dtypes=FLOAT32),
], op="attention")

ATTENTION_BACKWARD = Signature("attention_backward", [
    Argument("dout", "Tensor", dtypes=FLOATS, trained=True),
    Argument("dlse", "Tensor?", dtypes=FLOAT32, trained=True),
    *(Argument(name, "Tensor", dtypes=KEYS, trained=True) for name in "qkv"),
    Argument("out", "Tensor", dtypes=FLOATS, trained=True),
    Argument("lse", "Tensor", dtypes=FLOAT32, trained=True),
    _attention_options(),
], outputs=[
    *(Argument(name, "Tensor?", dtypes=FLOATS) for name in ("dq", "dk", "dv")),
    Argument("dsinks", "Tensor?", dtypes=FLOAT32),
], extras=[
    Argument("wanted", "bool[4]", [True, True, True, True]),
], returns="(Tensor, Tensor, Tensor, Tensor)")

MERGE_STATES = Signature("merge_states", [
    Argument("outs", "Tensor[]", dtypes=FLOATS, trained=True),
    Argument("lses", "Tensor[]", dtypes=FLOAT32, trained=True),
    Argument("sinks", "Tensor?", None, FLOATS, trained=True),
    Argument("bhld", "bool", False),
    EXECUTION,
], outputs=[
    Argument("out", "Tensor", dtypes=FLOATS),
    Argument("lse", "Tensor?", dtypes=FLOAT32),
], returns="(Tensor, Tensor)")

MATMUL = Signature("matmul", [
    _operand("a"),
    _operand("b"),
    Argument("c", "Tensor?", None, FLOATS, cast=True, trained=True),
    Argument("bias", "Tensor?", None, FLOATS, trained=True),
    Argument("group_offsets", "Tensor?", None, INDICES),
    Argument("alpha", "float", 1.0),
    Argument("beta", "float", 0.0),
    Argument("bias_rows", "bool", False),
    Argument("activation", "str", "none"),
    Argument("group_inner", "bool", False),
    EXECUTION,
], outputs=[
    Argument("out", "Tensor", dtypes=FLOATS),
], extras=[
    Argument("out_dtype", "ScalarType?", None),
], returns="Tensor")

# What most calls of matmul come with, as PLAIN_ATTENTION: dense operands and nothing else.
PLAIN_MATMUL = Signature("plain_matmul", [
    Argument("a", "Tensor", dtypes=INPUTS),
    Argument("b", "Tensor", dtypes=INPUTS),
    Argument("a_transposed", "bool", False),
    Argument("b_transposed", "bool", False),
], outputs=[
    Argument("out", "Tensor", dtypes=FLOATS),
], op="matmul")

# matmul(x, weight^T) whose x and out have any leading dimensions. Not registered with PyTorch:
# compilers and autograd see matmul.
LINEAR = Signature("linear", [
    Argument("x", "Tensor", dtypes=INPUTS, trained=True),
    _operand("weight"),
    Argument("x_scale", "Tensor?", None, FLOAT32),
    Argument("bias", "Tensor?", None, FLOATS, trained=True),
    Argument("activation", "str", "none"),
    EXECUTION,
], outputs=[
    Argument("out", "Tensor", dtypes=FLOATS),
])

# `pattern` gives the lists of the result; where beta is not 0, out holds its values beforehand.
SDDMM = Signature("sddmm", [
    _operand("a"),
    _operand("b"),
    _bsr("pattern", "pattern", "", FLOATS),
    Argument("alpha", "float", 1.0),
    Argument("beta", "float", 0.0),
    EXECUTION,
], outputs=[
    Argument("out", "Tensor", dtypes=FLOATS, label="out.values"),
], extras=[
    Argument("out_dtype", "ScalarType?", None),
], returns="Tensor")

# Not registered: the size of the result comes from data.
SPGEMM = Signature("spgemm", [
    _operand("a"),
    _operand("b"),
    Argument("alpha", "float", 1.0),
    Argument("beta", "float", 0.0),
    EXECUTION,
])

SPGEMM_FILL = Signature("spgemm_fill", [], outputs=[_bsr("out", "out", "", FLOATS)])

# Conversions to FP8 and caches. Not registered with PyTorch: they write into their arguments.
QUANTIZE = Signature("quantize", [
    Argument("x", "Tensor", dtypes=FLOATS),
    Argument("given", "bool", False),
    Argument("threads", "int", 0),
], outputs=[
    Argument("out", "Tensor", dtypes=FP8),
    Argument("scale", "Tensor", dtypes=FLOAT32),
])

APPEND = Signature("append", [
    Argument("k", "Tensor", dtypes=FLOATS),
    Argument("v", "Tensor", dtypes=FLOATS),
    Argument("page_table", "Tensor", dtypes=INT32),
    Argument("lengths", "Tensor", dtypes=INDICES),
    Argument("offsets", "Tensor?", None, INDICES),
    Argument("k_scale", "Tensor?", None, FLOAT32),
    Argument("v_scale", "Tensor?", None, FLOAT32),
    Argument("threads", "int", 0),
], outputs=[
    Argument("k_cache", "Tensor", dtypes=KEYS),
    Argument("v_cache", "Tensor", dtypes=KEYS),
])

LIST_BLOCKS = Signature("list_blocks", [
    Argument("blocks", "Tensor", dtypes=BLOCKS),
], outputs=[
    Argument("counts", "Tensor", dtypes=INDICES, label="out.counts"),
    Argument("indices", "Tensor", dtypes=INDICES, label="out.indices"),
], extras=[
    Argument("capacity", "SymInt"),
], returns="(Tensor, Tensor)")

TOP_K_BLOCKS = Signature("top_k_blocks", [
    Argument("scores", "Tensor", dtypes=FLOATS),
    Argument("k", "SymInt"),
], outputs=[
    Argument("counts", "Tensor", dtypes=INDICES, label="out.counts"),
    Argument("indices", "Tensor", dtypes=INDICES, label="out.indices"),
], extras=[
    Argument("capacity", "SymInt"),
], returns="(Tensor, Tensor)")

TRANSPOSE_LISTS = Signature("transpose_lists", [
    Argument("counts", "Tensor", dtypes=INDICES, label="list.counts"),
    Argument("indices", "Tensor", dtypes=INDICES, label="list.indices"),
], outputs=[
    Argument("column_counts", "Tensor", dtypes=INDICES, label="out.counts"),
    Argument("rows", "Tensor", dtypes=INDICES, label="out.indices"),
    Argument("entries", "Tensor?", dtypes=INDICES),
], extras=[
    Argument("cols", "SymInt"),
    Argument("capacity", "SymInt"),
], returns="(Tensor, Tensor, Tensor)")

SIGNATURES = (ATTENTION, PLAIN_ATTENTION, ATTENTION_BACKWARD, MERGE_STATES, MATMUL, PLAIN_MATMUL,
              LINEAR, SDDMM, SPGEMM, SPGEMM_FILL, QUANTIZE, APPEND, LIST_BLOCKS, TOP_K_BLOCKS,
              TRANSPOSE_LISTS)
