"""Plans: what follows from shapes, dtypes and the device, worked out once for many runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tessera import _ffi
from tessera._signatures import ATTENTION, LINEAR, MASK, MATMUL, SDDMM
from tessera.block_mask import BlockMask
from tessera.bsr import BsrMatrix
from tessera.calls import bound, call_of, function_named
from tessera.explain import Explanation
from tessera.products import spgemm
from tessera.tensors import is_numpy, type_name, version_of

# The names of what `run` takes by position.
_OPERANDS = {ATTENTION: ("q", "k", "v"), MATMUL: ("a", "b"), LINEAR: ("x", "weight"),
             SDDMM: ("a", "b")}


def plan(operation: Callable[..., Any] | str, /, *arguments: Any, expand_bytes: int = 0,
         **options: Any) -> Plan:
    """The plan of a call: which kernel it uses, and the memory that it needs. Nothing runs.

    ``operation`` is `attention`, `matmul`, `bsr_matmul`, `linear` or `sddmm`, or its name; the rest
    is what one would call it with. The plan keeps the pattern (mask, block-sparse matrix) and the
    other tensors that were named (offsets, positions, bias), not the dense operands and results.

    ``expand_bytes`` is the memory that `prepare` may spend on a dense copy of a block-sparse
    operand. The plan then uses the dense product where its predicted time is less, and
    `Plan.expanded_bytes` says so. `run` computes with the values that `prepare` read: other ones
    are refused.

    >>> import numpy as np, tessera
    >>> q = np.ones((1, 256, 4, 64), np.float32)
    >>> mask = tessera.BlockMask.causal(256, 256, block=64)
    >>> plan = tessera.plan("attention", q, q, q, mask=mask)
    >>> plan.prepare()
    >>> plan.run(q, q, q).shape
    (1, 256, 4, 64)
    """
    function = function_named("plan", operation)
    if function is spgemm:
        raise NotImplementedError("plan: operation: the size of spgemm's result comes from data; "
                                  "call tessera.spgemm")
    given = bound(function, arguments, options)
    if isinstance(given.get("a"), BsrMatrix) and isinstance(given.get("b"), BsrMatrix):
        raise NotImplementedError("plan: b: expected at most one block-sparse operand, got two of "
                                  "them; call tessera.matmul")
    return Plan(function, given, expand_bytes)


class Plan:
    """What `plan` returns. Several threads may run it at once. On a GPU it prepares and runs on the
    current stream; keep it until the work that it started there is done.

    ``kernel_name``, ``backend``, ``signature`` (shapes and dtypes in words), ``workspace_bytes``
    (what a run takes from PyTorch's allocator, or from the host), ``schedule_bytes`` (what
    `prepare` fills, and the plan holds) and ``expanded_bytes`` (how much of that is a dense copy of
    a block-sparse operand) say what was planned."""

    kernel_name: str
    backend: str
    signature: str
    workspace_bytes: int
    schedule_bytes: int
    expanded_bytes: int

    def __init__(self, function: Callable[..., Any], given: dict[str, Any],
                 expand_bytes: int) -> None:
        call = call_of(function, given)
        (self.kernel_name, self.backend, self.signature, self.workspace_bytes, self.schedule_bytes,
         self.expanded_bytes, self._prepare, self._run, self._run_tensors, self._explain) = (
             _ffi.plan(call.signature.name, expand_bytes, *call.export_arguments()))
        self._call = call.signature
        self._module = call.module
        self._place = {name: i for i, name in enumerate(self._call.Inputs._fields)}
        self._operands = _OPERANDS[self._call]
        self._tensors = {x.name for x in self._call.inputs if x.is_tensor}
        self._tensors -= {*self._operands, *MASK.fields}
        self._trained = self._call.trained()
        self._return_lse = given.get("return_lse", False)
        out, *_ = call.outputs
        self._out_shape, self._out_dtype = tuple(out.shape), out.dtype
        # Of a linear layer whose x is a matrix: x of this shape gives a result as planned.
        x = call.inputs.x.shape if self._call is LINEAR else ()
        self._matrix_x = x if len(x) == 2 else None
        # The pattern: a mask, the matrix of sddmm, or a block-sparse operand.
        named = [(name, given[name]) for name in ("mask", "pattern", *self._operands)
                 if isinstance(given.get(name), (BlockMask, BsrMatrix))]
        self._pattern: Any
        self._pattern_name, self._pattern = named.pop(0) if named else ("", None)
        self._operand_places = [self._place[name] for name in self._operands]
        self._sparse_place = self._place.get(self._pattern_name, -1)
        self._prepared = self._pattern is None and self.schedule_bytes == 0
        # With a dense copy: the values that prepare read, and their version.
        self._copied: tuple[Any, tuple[int, ...]] = (None, ())
        self._inputs = call.inputs._replace(
            **{name: None for name in self._operands if name != self._pattern_name})
        self._alone = not is_numpy("plan", out) and self._has_tensors_alone()

    def _has_tensors_alone(self) -> bool:
        """Whether operands and results are the only tensors: runs pass these alone, which takes
        less time. A dense copy stands for its operand."""
        pattern = self._pattern_name
        others = self._tensors.difference([f"{pattern}_row_offsets", f"{pattern}_col_indices"])
        return (pattern in ("", *self._operands) and not getattr(self._inputs, "beta", None)
                and all(self._inputs[self._place[name]] is None for name in others))

    def __repr__(self) -> str:
        return f"Plan({self.kernel_name}: {self.signature})"

    def explain(self) -> Explanation:
        """Why this kernel, and why no other: `tessera.explain` of the planned call."""
        explanation = Explanation(json.loads(self._explain(True)))
        explanation.text = self._explain(False)
        return explanation

    def prepare(self, pattern: BlockMask | BsrMatrix | None = None, /) -> None:
        """Reads the pattern: before the first run of a problem that has one, and whenever its lists
        change. ``pattern`` is another mask or matrix, for this and the following runs, whose lists
        have the shapes of the planned ones. Nothing is read back from a GPU. A plan with
        ``expanded_bytes`` copies the matrix's values as well: prepare again whenever they change.
        """
        inputs = self._inputs
        if pattern is not None:
            self._check_pattern(pattern)
            inputs = inputs._replace(**self._fields(pattern))
        outputs = [None] * len(self._call.outputs)
        if self._call is SDDMM:  # the pattern is the result's, which has room for values
            outputs = [self._module.new_result(inputs.values, self._out_shape, self._out_dtype)]
        self._prepare(*self._module.export_arguments(self._call, inputs, *outputs))
        if pattern is not None:
            self._inputs, self._pattern = inputs, pattern
        if self.expanded_bytes:
            self._copied = self._pattern.values, version_of(self._pattern.values)
        self._prepared = True

    def run(self, *operands: Any, out: Any = None, lse: Any = None, **tensors: Any) -> Any:
        """Runs on operands of the planned shapes, dtypes and strides: ``q, k, v`` of attention,
        ``x, weight`` of linear, else ``a, b``. Returns what the operation returns. ``tensors`` are
        others in place of those that the plan keeps (``bias=``, ``kv_end=``). Records no gradient.
        """
        if not self._prepared:
            raise ValueError("run: plan: expected a prepared one, got one whose prepare() was not "
                             "called yet")
        if len(operands) != len(self._operands):
            raise TypeError(f"run: expected {', '.join(self._operands)}, got {len(operands)} "
                            "operands")
        alone = self._alone and not tensors
        if alone and self._call is not ATTENTION and lse is None:
            a, b = operands
            result = self._run_product(a, b, out)
            if result is not None:
                return result
        inputs = list(self._inputs)
        for place, x in zip(self._operand_places, operands, strict=False):  # of equal lengths
            if x is None:
                raise TypeError(f"run: {self._call.Inputs._fields[place]}: expected an operand as "
                                "planned, got None")
            sparse = place == self._sparse_place
            inputs[place] = self._values_of(place, x) if sparse or isinstance(x, BsrMatrix) else x
        for name, x in tensors.items():
            if name not in self._tensors:
                raise TypeError(f"run: {name}: expected the name of a tensor that "
                                f"{self._call.name} takes beside its operands")
            inputs[self._place[name]] = x
        self._module.check_plain("run", *self._trained(inputs), out, lse)
        if self._call is ATTENTION:
            q, k, v = (inputs[place] for place in self._operand_places)
            out, lse = self._module.attention_outputs(q, v, self._inputs.bhld, out, lse,
                                                      self._return_lse)
            if alone:
                self._run_tensors(q, k, v, out, lse)
            else:
                self._run(*self._module.export_arguments(self._call, inputs, out, lse))
            return (out, lse) if self._return_lse else out
        if lse is not None:
            raise TypeError(f"run: lse: expected none, as {self._call.name} has no such result")
        out = self._result(inputs, out)
        self._run(*self._module.export_arguments(self._call, inputs, out))
        return self._pattern.with_values(out) if self._call is SDDMM else out

    def _run_product(self, a: Any, b: Any, out: Any) -> Any:
        """Runs a product whose operands and result are its only tensors, in less time than `run`;
        None if an operand is missing or the call is not a plain one."""
        module, sparse = self._module, self._sparse_place
        given: tuple[Any, ...] = a, b
        dense, other = a, b
        if sparse >= 0:
            first = sparse == self._operand_places[0]
            if first:
                dense, other = b, a
            other = self._values_of(sparse, other)
            known = self._pattern
            if self.expanded_bytes:
                given = dense,
            elif first:
                given = other, known.row_offsets, known.col_indices, b
            else:
                given = a, other, known.row_offsets, known.col_indices
        if dense is None or other is None or not module.is_plain(dense, other, out):
            return None
        dtype = None if dense.dtype is self._out_dtype else self._out_dtype
        if self._call is LINEAR and a.shape != self._matrix_x:
            *_, outputs = self._out_shape
            x, out = module.linear_tensors(a, outputs, dtype, out)
            given = x, *given[1:]
        elif out is None:
            out = module.new_result(dense, self._out_shape, dtype)
        self._run_tensors(*given, out)
        return out

    def _result(self, inputs: list[Any], out: Any) -> Any:
        """The result of a product: `out`, or room for it."""
        place, module = self._place, self._module
        if self._call is LINEAR:
            *_, outputs = self._out_shape
            inputs[place["x"]], out = module.linear_tensors(inputs[place["x"]], outputs,
                                                            self._out_dtype, out)
        elif out is None and self._inputs.beta != 0:
            if self._call is MATMUL and inputs[place["c"]] is None:
                raise ValueError("run: out: expected the former contents that beta multiplies, got "
                                 "neither out nor c")
            if self._call is SDDMM:
                out = module.sddmm_output(SDDMM.Inputs._make(inputs), self._out_dtype)
        if out is None:
            out = module.new_result(inputs[place["a"]], self._out_shape, self._out_dtype)
        return out

    def _values_of(self, place: int, x: Any) -> Any:
        """The values of a block-sparse operand, whose lists have to be the prepared ones."""
        values, version = self._copied
        if x is self._pattern and place == self._sparse_place and (  # as in most calls
                not self.expanded_bytes or (x.values is values and version_of(values) == version)):
            return x.values
        name = self._call.Inputs._fields[place]
        if place != self._sparse_place:
            raise TypeError(f"run: {name}: expected a dense operand as planned, got a BsrMatrix")
        if not isinstance(x, BsrMatrix):
            raise TypeError(f"run: {name}: expected a BsrMatrix as planned, got {type_name(x)}")
        known = self._pattern
        if (x.row_offsets is not known.row_offsets or x.col_indices is not known.col_indices
                or x.transposed != known.transposed):
            raise ValueError(f"run: {name}: expected the lists of the prepared matrix, got others; "
                             "prepare(matrix) reads them")
        if self.expanded_bytes and (x.values is not values or version_of(values) != version):
            raise ValueError(f"run: {name}: expected the values that prepare() copied, got "
                             f"{'changed' if x.values is values else 'other'} ones; "
                             "prepare(matrix) copies them")
        return x.values

    def _check_pattern(self, pattern: Any) -> None:
        known = self._pattern
        if known is None or type(pattern) is not type(known):
            expected = "none" if known is None else f"a {type(known).__name__} as planned"
            raise TypeError(f"prepare: pattern: expected {expected}, got {type_name(pattern)}")
        if isinstance(known, BlockMask):
            known.check_lengths("prepare: pattern", pattern.q_length, pattern.kv_length)
        elif pattern.transposed != known.transposed:
            raise ValueError("prepare: pattern: expected a matrix that is transposed as the "
                             "planned one, got another")

    def _fields(self, pattern: Any) -> dict[str, Any]:
        if isinstance(pattern, BlockMask):
            return {name: getattr(pattern, name) for name in MASK.fields}
        name = self._pattern_name
        values, prefix = ("values", "") if name == "pattern" else (name, f"{name}_")
        return {values: pattern.values, f"{prefix}row_offsets": pattern.row_offsets,
                f"{prefix}col_indices": pattern.col_indices, f"{prefix}rows": pattern.rows,
                f"{prefix}cols": pattern.cols}
