"""The operations on PyTorch tensors, registered as ``torch.ops.tessera.*``.

A plain eager call goes to the exports directly. Where autograd, a compiler, autocast, a functorch
transform or a dispatch mode is to see the call, it goes through the registered operation, which
calls the same exports."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tessera import _ffi, torch_grad
from tessera.shapes import SINKS, attention_shapes, matmul_shape, sddmm_shape
from tessera.tensors import check_dense, type_name

# What the functions call kernel is kernel_name here: PyTorch's compiler passes arguments on by name
# beside a `kernel` of its own.
_ATTENTION_OPTIONS = (
    "bool bhld=False, float? scale=None, float softcap=0.0, bool causal=False, "
    "SymInt? window_left=None, SymInt? window_right=None, Tensor? q_offsets=None, "
    "Tensor? kv_offsets=None, Tensor? kv_begin=None, Tensor? kv_end=None, "
    "Tensor? q_position=None, Tensor? kv_position=None, Tensor? page_table=None, "
    "SymInt max_q_length=0, SymInt max_kv_length=0, Tensor? sinks=None, SymInt block_q=0, "
    "SymInt block_kv=0, Tensor? full_counts=None, Tensor? full_indices=None, "
    "Tensor? partial_counts=None, Tensor? partial_indices=None, Tensor? bit_tile=None, "
    "Tensor? bits=None, int threads=0, str? backend=None, str? kernel_name=None"
)
_OPERAND = ("Tensor {0}, Tensor? {0}_row_offsets, Tensor? {0}_col_indices, SymInt {0}_rows, "
            "SymInt {0}_cols, bool {0}_transposed")
_OPERANDS = f"{_OPERAND.format('a')}, {_OPERAND.format('b')}"

library = torch.library.Library("tessera", "DEF")
library.define(f"attention(Tensor q, Tensor k, Tensor v, {_ATTENTION_OPTIONS}) -> (Tensor, Tensor)")
library.define(
    "attention_backward(Tensor dout, Tensor? dlse, Tensor q, Tensor k, Tensor v, Tensor out, "
    f"Tensor lse, bool[4] wanted, {_ATTENTION_OPTIONS}) -> (Tensor, Tensor, Tensor, Tensor)")
library.define("merge_states(Tensor[] outs, Tensor[] lses, Tensor? sinks, bool bhld, int threads, "
               "str? backend, str? kernel_name) -> (Tensor, Tensor)")
library.define(
    f"matmul({_OPERANDS}, Tensor? c, Tensor? bias, Tensor? group_offsets, float alpha, float beta, "
    "bool bias_rows, str activation, bool group_inner, int threads, str? backend, "
    "str? kernel_name, ScalarType? out_dtype) -> Tensor")
library.define(
    f"sddmm({_OPERANDS}, Tensor values, Tensor row_offsets, Tensor col_indices, SymInt rows, "
    "SymInt cols, float alpha, float beta, int threads, str? backend, str? kernel_name, "
    "ScalarType? out_dtype) -> Tensor")
library.define("list_blocks(Tensor blocks, SymInt capacity) -> (Tensor, Tensor)")
library.define("top_k_blocks(Tensor scores, SymInt k, SymInt capacity) -> (Tensor, Tensor)")
library.define("transpose_lists(Tensor counts, Tensor indices, SymInt cols, SymInt capacity) -> "
               "(Tensor, Tensor, Tensor)")


STRIDED = torch.strided


def is_plain(*tensors: Any) -> bool:
    """Whether nothing but the values is asked for: no gradient, compiler, autocast, transform,
    mode or tensor subclass sees the call, and no sparse tensor came."""
    if (torch.compiler.is_compiling() or torch._C._is_any_autocast_enabled()
            or torch._C._len_torch_dispatch_stack() or torch._C._is_torch_function_mode_enabled()
            or torch._C._functorch.peek_interpreter_stack() is not None):
        return False
    grad = torch.is_grad_enabled()
    for x in tensors:
        if x is None:
            continue
        if type(x) is not Tensor and type(x) is not torch.nn.Parameter:
            return False
        if (grad and x.requires_grad) or x.is_meta or x.layout != STRIDED:
            return False
    return True


def _check_tensors(op: str, names: tuple[str, ...], *tensors: Any) -> None:
    for name, x in zip(names, tensors):
        if x is None:
            continue
        if not isinstance(x, Tensor):
            raise TypeError(f"{op}: {name}: expected PyTorch tensors throughout, got a "
                            f"{type_name(x)}")
        if x.layout != STRIDED:
            check_dense(f"{op}: {name}", x)


_OPERAND_NAMES = ("a", "a.row_offsets", "a.col_indices", "b", "b.row_offsets", "b.col_indices")


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
    return torch.bfloat16 if x.dtype == torch.float8_e4m3fn else x.dtype


def _new_out(q: Tensor, shape: tuple) -> Tensor:
    if q.dtype == torch.float8_e4m3fn or shape != q.shape:
        return q.new_empty(*shape, dtype=stored_dtype(q))
    return torch.empty_like(q)


# ---- Attention ---------------------------------------------------------------------------------


_ATTENTION = torch.ops.tessera.attention.default
_COMMON = 6  # options that every call names: up to window_right
_UNUSED = torch_grad.defaults(_ATTENTION)[3 + _COMMON :]


def attention_arguments(q: Tensor, k: Tensor, v: Tensor, out: Any, lse: Any, want_lse: bool,
                        options: tuple) -> tuple[Any, Any, tuple]:
    if out is None or (lse is None and want_lse):
        shape, lse_shape = attention_shapes(q, v, options)
        if out is None:
            out = _new_out(q, shape)
        if lse is None and want_lse:
            lse = q.new_empty(*lse_shape or (0,), dtype=torch.float32)
    return out, lse, (q, k, v, out, lse, *options)


def attention(q: Tensor, k: Tensor, v: Tensor, out: Any, lse: Any, want_lse: bool,
              options: tuple) -> tuple[Any, Any]:
    if is_plain(q, k, v, out, lse, options[SINKS]):
        out, lse, arguments = attention_arguments(q, k, v, out, lse, want_lse, options)
        _ffi.attention(*arguments)
        return out, lse
    _check_tensors("attention", ("q", "k", "v", "out", "lse"), q, k, v, out, lse)
    if not torch.compiler.is_compiling() and options[_COMMON:] == _UNUSED:
        options = options[:_COMMON]  # what the dispatcher need not take apart costs no time
    new_out, new_lse = _ATTENTION(q, k, v, *options)
    return _deliver("attention", new_out, out), _deliver("attention", new_lse, lse)


def _attention(q: Tensor, k: Tensor, v: Tensor, *options: Any) -> tuple[Tensor, Tensor]:
    out, lse, arguments = attention_arguments(q, k, v, None, None, True, options)
    _ffi.attention(*arguments)
    return out, lse


def _attention_fake(q: Tensor, k: Tensor, v: Tensor, *options: Any) -> tuple[Tensor, Tensor]:
    out, lse, _ = attention_arguments(q, k, v, None, None, True, options)
    return out, lse


def _gradients(q: Tensor, k: Tensor, v: Tensor, wanted: list[bool], sinks: Any) -> list[Tensor]:
    """Room for dq, dk, dv and dsinks; empty where not wanted."""
    dsinks = q.new_empty(sinks.shape if wanted[3] else (0,), dtype=torch.float32)
    return [*(torch.empty_like(x) if want else x.new_empty(0)
              for x, want in zip((q, k, v), wanted)), dsinks]


def _attention_backward(dout: Tensor, dlse: Any, q: Tensor, k: Tensor, v: Tensor, out: Tensor,
                        lse: Tensor, wanted: list[bool], *options: Any) -> tuple[Tensor, ...]:
    gradients = _gradients(q, k, v, wanted, options[SINKS])
    written = (x if want else None for x, want in zip(gradients, wanted))
    _ffi.attention_backward(q, k, v, out, lse, dout, dlse, *written, *options)
    return tuple(gradients)


def _attention_backward_fake(dout: Tensor, dlse: Any, q: Tensor, k: Tensor, v: Tensor, out: Tensor,
                             lse: Tensor, wanted: list[bool],
                             *options: Any) -> tuple[Tensor, ...]:
    return tuple(_gradients(q, k, v, wanted, options[SINKS]))


def merge_states(outs: list, lses: list, out: Any, lse: Any, sinks: Any, bhld: bool,
                 execution: tuple) -> tuple[Any, Any]:
    if is_plain(*outs, *lses, out, lse, sinks):
        out = torch.empty_like(outs[0]) if out is None else out
        lse = torch.empty_like(lses[0]) if lse is None else lse
        _ffi.merge_states(out, lse, sinks, bhld, len(outs), *outs, *lses, *execution)
        return out, lse
    names = ("outs",) * len(outs) + ("lses",) * len(lses) + ("out", "lse", "sinks")
    _check_tensors("merge_states", names, *outs, *lses, out, lse, sinks)
    new_out, new_lse = torch.ops.tessera.merge_states.default(outs, lses, sinks, bhld, *execution)
    return _deliver("merge_states", new_out, out), _deliver("merge_states", new_lse, lse)


def _merge_states(outs: list[Tensor], lses: list[Tensor], sinks: Any, bhld: bool,
                  *execution: Any) -> tuple[Tensor, Tensor]:
    out, lse = torch.empty_like(outs[0]), torch.empty_like(lses[0])
    _ffi.merge_states(out, lse, sinks, bhld, len(outs), *outs, *lses, *execution)
    return out, lse


def _merge_states_fake(outs: list[Tensor], lses: list[Tensor], *_: Any) -> tuple[Tensor, Tensor]:
    return torch.empty_like(outs[0]), torch.empty_like(lses[0])


# ---- Products ----------------------------------------------------------------------------------


def matmul_arguments(a: tuple, b: tuple, out: Any, out_dtype: Any,
                     options: tuple) -> tuple[Any, tuple]:
    if out is None:
        out = a[0].new_empty(matmul_shape(a, b, options), dtype=out_dtype or stored_dtype(a[0]))
    return out, (*a, *b, out, *options)


def matmul(a: tuple, b: tuple, out: Any, out_dtype: Any, options: tuple) -> Tensor:
    if is_plain(a[0], b[0], out, *options[:3]):
        out, arguments = matmul_arguments(a, b, out, out_dtype, options)
        _ffi.matmul(*arguments)
        return out
    _check_tensors("matmul", (*_OPERAND_NAMES, "out", "c", "bias", "group_offsets"), *a[:3], *b[:3],
                   out, *options[:3])
    if options[4] != 0 and options[0] is None:  # beta reads what out holds
        options = (out, *options[1:])
    result = torch.ops.tessera.matmul.default(
        *a, *b, *options, out_dtype if out is None else out.dtype)
    return _deliver("matmul", result, out)


def _matmul(*arguments: Any) -> Tensor:
    a, b, options = arguments[:6], arguments[6:12], arguments[12:-1]
    out, call = matmul_arguments(a, b, None, arguments[-1], options)
    _ffi.matmul(*call)
    return out


def _matmul_fake(*arguments: Any) -> Tensor:
    a, b, options = arguments[:6], arguments[6:12], arguments[12:-1]
    return matmul_arguments(a, b, None, arguments[-1], options)[0]


def sddmm_arguments(a: tuple, b: tuple, pattern: tuple, out: Any, out_dtype: Any,
                    options: tuple) -> tuple[Any, tuple]:
    if out is None:
        out = a[0].new_empty(sddmm_shape(a, b, pattern), dtype=out_dtype or stored_dtype(a[0]))
        if options[1] != 0:  # beta
            out.copy_(pattern[0])
    return out, (*a, *b, out, *pattern[1:], *options)


def sddmm(a: tuple, b: tuple, pattern: tuple, out: Any, out_dtype: Any, options: tuple) -> Tensor:
    if is_plain(a[0], b[0], out, pattern[0] if options[1] != 0 else None):
        out, arguments = sddmm_arguments(a, b, pattern, out, out_dtype, options)
        _ffi.sddmm(*arguments)
        return out
    names = (*_OPERAND_NAMES, "out", "pattern.values", "pattern.row_offsets", "pattern.col_indices")
    _check_tensors("sddmm", names, *a[:3], *b[:3], out, *pattern[:3])
    if out is not None:
        pattern, out_dtype = (out, *pattern[1:]), out.dtype
    result = torch.ops.tessera.sddmm.default(*a, *b, *pattern, *options, out_dtype)
    return _deliver("sddmm", result, out)


def _sddmm(*arguments: Any) -> Tensor:
    a, b, pattern, options = arguments[:6], arguments[6:12], arguments[12:17], arguments[17:-1]
    out, call = sddmm_arguments(a, b, pattern, None, arguments[-1], options)
    _ffi.sddmm(*call)
    return out


def _sddmm_fake(*arguments: Any) -> Tensor:
    a, b, pattern = arguments[:6], arguments[6:12], arguments[12:17]
    return a[0].new_empty(sddmm_shape(a, b, pattern), dtype=arguments[-1] or stored_dtype(a[0]))


def spgemm_arguments(a: tuple, b: tuple, options: tuple) -> tuple:
    return (*a, *b, *options)


def spgemm_symbolic(a: tuple, b: tuple, block: tuple[int, int], shape: tuple[int, int],
                    out_dtype: Any, options: tuple) -> tuple[tuple, Callable[[], None]]:
    """The result's tensors, and what computes them: as often as the operands' values change. Not a
    registered operation: the size of its result comes from data."""
    _check_tensors("spgemm", _OPERAND_NAMES, *a[:3], *b[:3])
    if torch.is_grad_enabled() and (a[0].requires_grad or b[0].requires_grad):
        raise NotImplementedError("spgemm: no gradient is recorded for block-sparse times "
                                  "block-sparse; use bsr_matmul with one operand as to_dense(), or "
                                  "torch.no_grad()")
    arguments = spgemm_arguments(a, b, options)
    stored, fill = _ffi.spgemm(*arguments)
    values = a[0].new_empty((stored, *block), dtype=out_dtype or stored_dtype(a[0]))
    row_offsets = a[1].new_empty(shape[0] // block[0] + 1, dtype=torch.int32)
    col_indices = a[1].new_empty(stored, dtype=torch.int32)

    def numeric(operands: tuple = arguments) -> None:  # which live as long as this does
        fill(values, row_offsets, col_indices, *shape)

    return (values, row_offsets, col_indices), numeric


def spgemm(*arguments: Any) -> tuple:
    tensors, numeric = spgemm_symbolic(*arguments)
    numeric()
    return tensors


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


def _autocast(name: str, device: str, floats: tuple[int, ...]) -> None:
    """Under autocast the named arguments are taken in autocast's dtype."""
    op = getattr(torch.ops.tessera, name).default
    key = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, f"Autocast{device}"))
    kind = device.lower()

    def cast(x: Any, dtype: torch.dtype) -> Any:
        if isinstance(x, (list, tuple)):
            return [cast(y, dtype) for y in x]
        wanted = (isinstance(x, Tensor) and x.dtype in (torch.float32, torch.float16,
                                                        torch.bfloat16) and x.device.type == kind)
        return x.to(dtype) if wanted else x

    def run(*arguments: Any) -> Any:
        dtype = torch.get_autocast_dtype(kind)
        with torch._C._ExcludeDispatchKeyGuard(key):
            return op(*(cast(x, dtype) if i in floats else x for i, x in enumerate(arguments)))

    library.impl(name, run, f"Autocast{device}")


def _filled(name: str, kernel: Any) -> Any:
    """The kernel with all its arguments."""
    rest = torch_grad.defaults(getattr(torch.ops.tessera, name).default)
    return lambda *arguments: kernel(*arguments, *rest[len(arguments) :])


def _register() -> None:
    operations = {
        "attention": (_attention, _attention_fake, (0, 1, 2)),
        "attention_backward": (_attention_backward, _attention_backward_fake, ()),
        "merge_states": (_merge_states, _merge_states_fake, ()),
        "matmul": (_matmul, _matmul_fake, (0, 6, 12)),
        "sddmm": (_sddmm, _sddmm_fake, (0, 6)),
        "list_blocks": (_list_blocks, _list_blocks_fake, ()),
        "top_k_blocks": (_top_k_blocks, _top_k_blocks_fake, ()),
        "transpose_lists": (_transpose_lists, _transpose_lists_fake, ()),
    }
    for name, (run, fake, floats) in operations.items():
        for device in _DEVICES:
            library.impl(name, _filled(name, run), device)
            if floats:
                _autocast(name, device, floats)
        torch.library.register_fake(f"tessera::{name}", _filled(name, fake), lib=library)
    torch_grad.register(library, {name: run for name, (run, _, _) in operations.items()})


_register()
