"""The operations on PyTorch tensors, registered as ``torch.ops.tessera.*``.

A plain eager call goes to the exports directly. Where autograd, a compiler, autocast, a functorch
transform or a dispatch mode is to see the call, it goes through the registered operation, which
calls the same exports."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tessera import _ffi, _signatures, torch_grad
from tessera._signatures import (
    ATTENTION,
    ATTENTION_BACKWARD,
    LINEAR,
    LIST_BLOCKS,
    MATMUL,
    MERGE_STATES,
    SDDMM,
    SPGEMM,
    TOP_K_BLOCKS,
    TRANSPOSE_LISTS,
    Operand,
    Signature,
    operands_of,
    weight_of,
)
from tessera.shapes import attention_shapes, matmul_shape, sddmm_shape
from tessera.tensors import check_dense, type_name

library = torch.library.Library("tessera", "DEF")
for _signature in _signatures.SIGNATURES:
    if _signature.returns:
        library.define(_signature.schema)

# The types of tensors whose calls may go straight to the exports.
PLAIN_TYPES = (Tensor, torch.nn.Parameter)
FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)

# Bound once, as every eager call asks them.
_is_compiling = torch.compiler.is_compiling
_is_autocasting = torch._C._is_any_autocast_enabled
_dispatch_modes = torch._C._len_torch_dispatch_stack
_has_function_mode = torch._C._is_torch_function_mode_enabled
_transform = torch._C._functorch.peek_interpreter_stack
_is_grad_enabled = torch.is_grad_enabled
_empty_like = torch.empty_like
_plain_attention = _ffi.plain_attention_export


def is_plain(*tensors: Any) -> bool:
    """Whether the call may go straight to an export: no gradient, compiler, autocast, transform,
    mode or tensor subclass has to see it."""
    if (_is_compiling() or _is_autocasting() or _dispatch_modes() or _has_function_mode()
            or _transform() is not None):
        return False
    grad = _is_grad_enabled()
    for x in tensors:
        if x is not None and (type(x) not in PLAIN_TYPES or (grad and x.requires_grad)):
            return False
    return True


def have_memory(*tensors: Any) -> bool:
    """Whether the exports can read the tensors: they are dense and not on the meta device. Asked
    after an export refused a call, as the answer costs a microsecond."""
    return all(x is None or (x.layout is torch.strided and not x.is_meta) for x in tensors)


def check_plain(where: str, *tensors: Any) -> None:
    """Refuses a call that is to be recorded, compiled or changed."""
    if not is_plain(*tensors):
        for x in tensors:
            if x is not None and not isinstance(x, Tensor):
                raise TypeError(f"{where}: expected PyTorch tensors throughout, got a "
                                f"{type_name(x)}")
        raise RuntimeError(f"{where}: expected a plain call (no gradient, torch.compile, autocast, "
                           "functorch transform or mode); call the operation itself there, or run "
                           "under torch.no_grad()")


def _check_tensors(signature: Signature, inputs: tuple[Any, ...], *outputs: Any) -> None:
    """Refuses what is no dense tensor of PyTorch, by its name."""
    if not _is_compiling() and all(
            x is None or (isinstance(x, Tensor) and x.layout is torch.strided)
            for x in (*signature.input_tensors(inputs), *outputs)):
        return
    given = (*inputs, *outputs)
    # Up to 2.9, PyTorch compiles no zip of unequal lengths.
    labels = (*signature.input_labels, *signature.output_labels)[:len(given)]
    for x, where in zip(given, labels, strict=True):
        if x is None or where is None:
            continue
        if not isinstance(x, Tensor):
            raise TypeError(f"{where}: expected PyTorch tensors throughout, got a {type_name(x)}")
        check_dense(where, x)


def _deliver(op: str, result: Tensor, out: Tensor | None) -> Tensor:
    """A registered operation's result, in `out` where one was given."""
    if out is None:
        return result
    if torch.is_grad_enabled() and (result.requires_grad or out.requires_grad):
        raise RuntimeError(f"{op}: out: cannot be given where a gradient is recorded; use the "
                           "returned tensor, or torch.no_grad()")
    if out.shape != result.shape:
        raise ValueError(f"{op}: out: expected {list(result.shape)}, got {list(out.shape)}")
    return out.copy_(result)


def stored_dtype(x: Tensor) -> torch.dtype:
    """What results of operands of this dtype are stored as: FP8 goes in, not out."""
    return torch.bfloat16 if x.dtype in FP8 else x.dtype


def export_arguments(signature: Signature, inputs: tuple[Any, ...],
                     *outputs: Any) -> tuple[Any, ...]:
    """A call of the signature's export."""
    return (*inputs, *outputs)


# Outputs are allocated here, not by the exports: what they allocate comes to Python as a view of
# foreign memory, which record_stream() ignores and which cannot be resized.

# ---- Attention ---------------------------------------------------------------------------------

_ATTENTION = torch.ops.tessera.attention.default


def attention_outputs(q: Tensor, v: Tensor, bhld: bool, out: Any, lse: Any,
                      want_lse: bool) -> tuple[Any, Any]:
    if out is None:
        if q.dtype not in FP8 and q.dim() == v.dim() > 2 and q.size(-1) == v.size(-1):
            out = _empty_like(q)
        else:
            shape, _ = attention_shapes(q, v, bhld)
            out = q.new_empty(shape, dtype=stored_dtype(q))
    if want_lse and lse is None:
        _, lse_shape = attention_shapes(q, v, bhld)
        lse = q.new_empty(lse_shape or (0,), dtype=torch.float32)
    return out, lse


def plain_attention(q: Any, k: Any, v: Any, bhld: bool, scale: Any, causal: bool) -> Tensor | None:
    """Attention without other options or outputs; None where the call may not go straight to the
    export. One function with as few steps as possible: most calls of short sequences wait for the
    host."""
    if (_is_compiling() or _is_autocasting() or _dispatch_modes() or _has_function_mode()
            or _transform() is not None or type(q) not in PLAIN_TYPES or type(k) not in PLAIN_TYPES
            or type(v) not in PLAIN_TYPES
            or (_is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad))):
        return None
    try:
        out = _empty_like(q)
        if not _plain_attention(q, k, v, bhld, scale, causal, out, None):
            shape, _ = attention_shapes(q, v, bhld)
            out = q.new_empty(shape, dtype=stored_dtype(q))
            _ffi.attention(q, k, v, bhld=bhld, scale=scale, causal=causal, out=out)
        return out
    except Exception:
        if have_memory(q, k, v):
            raise
        return None


def attention(inputs: Any, out: Any, lse: Any, want_lse: bool) -> tuple[Any, Any]:
    tensors = (inputs.q, inputs.k, inputs.v, out, lse, inputs.sinks)
    if is_plain(*tensors):
        try:
            results = attention_outputs(inputs.q, inputs.v, inputs.bhld, out, lse, want_lse)
            _ffi.attention(*inputs, *results)
            return results
        except Exception:
            if have_memory(*tensors):
                raise
    _check_tensors(ATTENTION, inputs, out, lse)
    new_out, new_lse = _ATTENTION(*ATTENTION.shortened(inputs))
    return _deliver("attention", new_out, out), _deliver("attention", new_lse, lse)


def _attention_results(inputs: Any) -> tuple[Tensor, Tensor]:
    return attention_outputs(inputs.q, inputs.v, inputs.bhld, None, None, True)


def _attention(*arguments: Any) -> tuple[Tensor, Tensor]:
    inputs = ATTENTION.Inputs(*arguments)
    out, lse = _attention_results(inputs)
    _ffi.attention(*inputs, out, lse)
    return out, lse


def _attention_fake(*arguments: Any) -> tuple[Tensor, Tensor]:
    return _attention_results(ATTENTION.Inputs(*arguments))


def _gradients(call: Any) -> list[Tensor]:
    """Room for dq, dk, dv and dsinks; empty where not wanted."""
    *wanted, want_sinks = call.wanted
    dsinks = call.q.new_empty(call.sinks.shape if want_sinks else (0,), dtype=torch.float32)
    return [*(torch.empty_like(x) if want else x.new_empty(0)
              for x, want in zip((call.q, call.k, call.v), wanted, strict=True)), dsinks]


def _attention_backward(*arguments: Any) -> tuple[Tensor, ...]:
    call = ATTENTION_BACKWARD.Arguments(*arguments)
    *inputs, wanted = arguments
    gradients = _gradients(call)
    written = (x if want else None for x, want in zip(gradients, wanted, strict=True))
    _ffi.attention_backward(*inputs, *written)
    return tuple(gradients)


def _attention_backward_fake(*arguments: Any) -> tuple[Tensor, ...]:
    return tuple(_gradients(ATTENTION_BACKWARD.Arguments(*arguments)))


def merge_states(inputs: Any, out: Any, lse: Any) -> tuple[Any, Any]:
    outs, lses = inputs.outs, inputs.lses
    if is_plain(*outs, *lses, out, lse, inputs.sinks) and have_memory(*outs, *lses):
        out, lse = _merge_states_outputs(inputs, out, lse)
        _ffi.merge_states(*inputs, out, lse)
        return out, lse
    _check_tensors(MERGE_STATES, inputs, out, lse)
    for name, parts in (("outs", outs), ("lses", lses)):
        for x in parts:
            if not isinstance(x, Tensor):
                raise TypeError(f"merge_states: {name}: expected PyTorch tensors throughout, got a "
                                f"{type_name(x)}")
            check_dense(f"merge_states: {name}", x)
    new_out, new_lse = torch.ops.tessera.merge_states.default(*inputs)
    return _deliver("merge_states", new_out, out), _deliver("merge_states", new_lse, lse)


def _merge_states_outputs(inputs: Any, out: Any = None, lse: Any = None) -> tuple[Tensor, Tensor]:
    return (torch.empty_like(inputs.outs[0]) if out is None else out,
            torch.empty_like(inputs.lses[0]) if lse is None else lse)


def _merge_states(*arguments: Any) -> tuple[Tensor, Tensor]:
    inputs = MERGE_STATES.Inputs(*arguments)
    out, lse = _merge_states_outputs(inputs)
    inputs = inputs._replace(outs=tuple(inputs.outs), lses=tuple(inputs.lses))
    _ffi.merge_states(*inputs, out, lse)
    return out, lse


def _merge_states_fake(*arguments: Any) -> tuple[Tensor, Tensor]:
    return _merge_states_outputs(MERGE_STATES.Inputs(*arguments))


# ---- Products ----------------------------------------------------------------------------------


def new_result(like: Tensor, shape: tuple[Any, ...], out_dtype: Any) -> Tensor:
    if out_dtype is None and like.dtype not in FP8:
        return like.new_empty(*shape)  # a dtype, or the shape as a tuple, takes longer to read
    return like.new_empty(shape, dtype=out_dtype or stored_dtype(like))


def matmul_output(a: tuple[Any, ...], b: tuple[Any, ...], group_offsets: Any, group_inner: bool,
                  out_dtype: Any) -> Tensor:
    """`a` and `b` are Operands, or tuples of their fields."""
    a_values, a_offsets, _, a_rows, a_cols, a_transposed, _ = a
    b_values, b_offsets, _, b_rows, b_cols, b_transposed, _ = b
    # Two matrices without a batch, in less than half of the time that the general case takes.
    if a_values.dim() == (2 if a_offsets is None else 3) and b_values.dim() == (
            2 if b_offsets is None else 3) and group_offsets is None and out_dtype is None:
        if a_offsets is None:
            a_rows, a_cols = a_values.shape
        if b_offsets is None:
            b_rows, b_cols = b_values.shape
        if ((a_offsets is None or a_offsets.dim() == 1)
                and (b_offsets is None or b_offsets.dim() == 1) and a_values.dtype not in FP8):
            return a_values.new_empty(a_cols if a_transposed else a_rows,
                                      b_rows if b_transposed else b_cols)
    return new_result(a_values, matmul_shape(a, b, group_offsets, group_inner), out_dtype)


def matmul(inputs: Any, out: Any, out_dtype: Any) -> Tensor:
    tensors = (inputs.a, inputs.b, out, inputs.c, inputs.bias, inputs.group_offsets)
    if is_plain(*tensors):
        try:
            result = out
            if out is None:
                result = matmul_output(*operands_of(inputs), inputs.group_offsets,
                                       inputs.group_inner, out_dtype)
            _ffi.matmul(*inputs, result)
            return result
        except Exception:
            if have_memory(*tensors):
                raise
    _check_tensors(MATMUL, inputs, out)
    if out is not None:
        out_dtype = out.dtype
        if inputs.beta != 0 and inputs.c is None:  # beta reads what out holds
            inputs = inputs._replace(c=out)
    arguments = MATMUL.shortened((*inputs, out_dtype))
    return _deliver("matmul", torch.ops.tessera.matmul.default(*arguments), out)


def _matmul(*arguments: Any) -> Tensor:
    *inputs, _ = arguments
    out = _matmul_fake(*arguments)
    _ffi.matmul(*inputs, out)
    return out


def _matmul_fake(*arguments: Any) -> Tensor:
    call = MATMUL.Arguments(*arguments)
    return matmul_output(*operands_of(call), call.group_offsets, call.group_inner, call.out_dtype)


def linear_tensors(x: Tensor, outputs: int, out_dtype: Any,
                   out: Any = None) -> tuple[Tensor, Tensor]:
    """x with leading dimensions that lie as one, and the result: `out` if given."""
    shape = x.shape
    if len(shape) != 2:
        x = x.contiguous()
    if out is not None:
        return x, out
    return x, new_result(x, (*shape[:-1], outputs), out_dtype)


def linear(inputs: Any, out_dtype: Any) -> Tensor:
    """As matmul, which compilers and autograd see."""
    _check_tensors(LINEAR, inputs)
    x = inputs.x
    lead, features = x.shape[:-1], x.shape[-1] if x.dim() else 0
    rows = 1
    for size in lead:
        rows *= size
    x_scale, weight = inputs.x_scale, weight_of(inputs)
    if x_scale is not None and x_scale.dim() > 2:
        x_scale = x_scale.reshape(rows, x_scale.shape[-1])
    result = matmul(MATMUL.Inputs(
        *Operand(x.reshape(rows, features), scale=x_scale),
        *weight._replace(transposed=not weight.transposed), bias=inputs.bias,
        activation=inputs.activation, threads=inputs.threads, backend=inputs.backend,
        kernel_name=inputs.kernel_name), None, out_dtype)
    return result.reshape(*lead, result.shape[-1])


def sddmm_output(inputs: Any, out_dtype: Any) -> Tensor:
    """Room for the values; beta's operand, where there is a beta."""
    out = _sddmm_values(inputs, out_dtype)
    return out.copy_(inputs.values) if inputs.beta != 0 else out


def _sddmm_values(inputs: Any, out_dtype: Any) -> Tensor:
    shape = sddmm_shape(*operands_of(inputs), inputs.values, inputs.row_offsets)
    return new_result(inputs.a, shape, out_dtype)


def sddmm(inputs: Any, out: Any, out_dtype: Any) -> Tensor:
    tensors = (inputs.a, inputs.b, out, inputs.values if inputs.beta != 0 else None)
    if is_plain(*tensors):
        try:
            result = sddmm_output(inputs, out_dtype) if out is None else out
            _ffi.sddmm(*inputs, result)
            return result
        except Exception:
            if have_memory(*tensors):
                raise
    _check_tensors(SDDMM, inputs, out)
    if out is not None:
        inputs, out_dtype = inputs._replace(values=out), out.dtype
    arguments = SDDMM.shortened((*inputs, out_dtype))
    return _deliver("sddmm", torch.ops.tessera.sddmm.default(*arguments), out)


def _sddmm(*arguments: Any) -> Tensor:
    *inputs, out_dtype = arguments
    out = sddmm_output(SDDMM.Inputs(*inputs), out_dtype)
    _ffi.sddmm(*inputs, out)
    return out


def _sddmm_fake(*arguments: Any) -> Tensor:
    *inputs, out_dtype = arguments
    return _sddmm_values(SDDMM.Inputs(*inputs), out_dtype)


def spgemm_symbolic(inputs: Any, block: tuple[int, int], shape: tuple[int, int],
                    out_dtype: Any) -> tuple[tuple[Any, ...], Callable[[], None]]:
    """The result's tensors, and what computes them: as often as the operands' values change. Not a
    registered operation: the size of its result comes from data."""
    _check_tensors(SPGEMM, inputs)
    a = inputs.a
    if torch.is_grad_enabled() and (a.requires_grad or inputs.b.requires_grad):
        raise NotImplementedError("spgemm: no gradient is recorded for block-sparse times "
                                  "block-sparse; use bsr_matmul with one operand as to_dense(), or "
                                  "torch.no_grad()")
    stored, fill = _ffi.spgemm(*inputs)
    rows, cols = shape
    height, width = block
    values = a.new_empty((stored, height, width), dtype=out_dtype or stored_dtype(a))
    row_offsets = inputs.a_row_offsets.new_empty(rows // height + 1, dtype=torch.int32)
    col_indices = row_offsets.new_empty(stored)

    def numeric(operands: tuple[Any, ...] = inputs) -> None:  # which live as long as this does
        fill(values, row_offsets, col_indices, rows, cols)

    return (values, row_offsets, col_indices), numeric


# ---- Lists of block masks ----------------------------------------------------------------------
#
# Registered, so that compilers see them; their results have sizes that no data decides.


def list_blocks(blocks: Tensor, capacity: int) -> tuple[Tensor, Tensor]:
    return torch.ops.tessera.list_blocks.default(blocks, capacity)


def _list_blocks(blocks: Tensor, capacity: int) -> tuple[Tensor, Tensor]:
    counts, indices = _list_blocks_fake(blocks, capacity)
    _ffi.list_blocks(blocks, counts, indices)
    return counts, indices


def _list_blocks_fake(blocks: Tensor, capacity: int) -> tuple[Tensor, Tensor]:
    sets = blocks.shape[:-1]
    return (blocks.new_zeros(sets, dtype=torch.int32),
            blocks.new_zeros((*sets, capacity), dtype=torch.int32))


def top_k_blocks(scores: Tensor, k: int, capacity: int) -> tuple[Tensor, Tensor]:
    return torch.ops.tessera.top_k_blocks.default(scores.detach(), k, capacity)


def _top_k_blocks(scores: Tensor, k: int, capacity: int) -> tuple[Tensor, Tensor]:
    counts, indices = _list_blocks_fake(scores, capacity)
    _ffi.top_k_blocks(scores, k, counts, indices)
    return counts, indices


def _top_k_blocks_fake(scores: Tensor, k: int, capacity: int) -> tuple[Tensor, Tensor]:
    return _list_blocks_fake(scores, capacity)


def transpose_lists(counts: Tensor, indices: Tensor, cols: int,
                    capacity: int) -> tuple[Tensor, Tensor, Tensor]:
    return torch.ops.tessera.transpose_lists.default(counts, indices, cols, capacity)


def _transpose_lists(counts: Tensor, indices: Tensor, cols: int,
                     capacity: int) -> tuple[Tensor, Tensor, Tensor]:
    out = _transpose_lists_fake(counts, indices, cols, capacity)
    _ffi.transpose_lists(counts, indices, *out)
    return out


def _transpose_lists_fake(counts: Tensor, indices: Tensor, cols: int,
                          capacity: int) -> tuple[Tensor, Tensor, Tensor]:
    columns = (*counts.shape[:2], cols)
    rows = counts.new_zeros((*columns, capacity), dtype=torch.int32)
    return counts.new_zeros(columns, dtype=torch.int32), rows, torch.zeros_like(rows)


# ---- Registration ------------------------------------------------------------------------------

_DEVICES = ("CPU", "CUDA")


def _autocast(signature: Signature, device: str) -> None:
    """Under autocast the arguments that the signature names are converted to autocast's dtype."""
    op = getattr(torch.ops.tessera, signature.name).default
    key = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, f"Autocast{device}"))
    kind = device.lower()
    converted = [x.cast for x in (*signature.inputs, *signature.extras)]

    def cast(x: Any, dtype: torch.dtype) -> Any:
        wanted = (isinstance(x, Tensor) and x.dtype in (torch.float32, torch.float16,
                                                        torch.bfloat16) and x.device.type == kind)
        return x.to(dtype) if wanted else x

    def run(*arguments: Any) -> Any:
        dtype = torch.get_autocast_dtype(kind)
        with torch._C._ExcludeDispatchKeyGuard(key):
            return op(*(cast(x, dtype) if convert else x
                        for x, convert in zip(arguments, converted, strict=False)))

    library.impl(signature.name, run, f"Autocast{device}")


def _filled(signature: Signature, kernel: Any) -> Any:
    """The kernel with all its arguments."""
    return lambda *arguments: kernel(*signature.complete(arguments))


def _register() -> None:
    operations = {
        ATTENTION: (_attention, _attention_fake),
        ATTENTION_BACKWARD: (_attention_backward, _attention_backward_fake),
        MERGE_STATES: (_merge_states, _merge_states_fake),
        MATMUL: (_matmul, _matmul_fake),
        SDDMM: (_sddmm, _sddmm_fake),
        LIST_BLOCKS: (_list_blocks, _list_blocks_fake),
        TOP_K_BLOCKS: (_top_k_blocks, _top_k_blocks_fake),
        TRANSPOSE_LISTS: (_transpose_lists, _transpose_lists_fake),
    }
    for signature, (run, fake) in operations.items():
        for device in _DEVICES:
            library.impl(signature.name, _filled(signature, run), device)
            if any(x.cast for x in signature.inputs):
                _autocast(signature, device)
        torch.library.register_fake(f"tessera::{signature.name}", _filled(signature, fake),
                                    lib=library)
    torch_grad.register(library, {signature.name: run
                                  for signature, (run, _) in operations.items()})


_register()
