"""Gradients of the registered operations, in terms of the registered operations."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from tessera._signatures import (
    ATTENTION,
    ATTENTION_BACKWARD,
    MATMUL,
    MERGE_STATES,
    SDDMM,
    Operand,
    Signature,
    operands_of,
)

_aten = torch.ops.aten
_ours = torch.ops.tessera


def _keep(ctx: Any, arguments: tuple[Any, ...], *results: Tensor) -> None:
    """Saves a call: tensors for backward, everything else beside their places."""
    ctx.set_materialize_grads(False)
    ctx.at = [i for i, x in enumerate(arguments) if isinstance(x, Tensor)]
    ctx.save_for_backward(*(arguments[i] for i in ctx.at), *results)
    ctx.rest = [None if isinstance(x, Tensor) else x for x in arguments]


def _kept(ctx: Any, signature: Signature) -> tuple[Any, tuple[Any, ...]]:
    """The arguments and the results of the call that `_keep` saved."""
    saved = ctx.saved_tensors
    arguments = list(ctx.rest)
    for i, x in zip(ctx.at, saved, strict=False):
        arguments[i] = x
    return signature.Arguments(*arguments), saved[len(ctx.at):]


# ---- Attention ---------------------------------------------------------------------------------


def _attention_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
    q, k, *_ = inputs
    if q.dtype == torch.float8_e4m3fn:
        raise NotImplementedError("attention: q: no gradient is recorded of FP8; call under "
                                  "torch.no_grad() or detach the inputs")
    if k.dtype != q.dtype:
        raise NotImplementedError("attention: k: no gradient is recorded beside keys in FP8, got "
                                  f"{k.dtype}; call under torch.no_grad() or detach the inputs")
    _keep(ctx, inputs, *output)


def _attention_gradient(ctx: Any, needs: Any, dout: Tensor | None,
                        dlse: Tensor | None) -> tuple[Any, ...]:
    call, (out, lse) = _kept(ctx, ATTENTION)
    wanted = [needs.q, needs.k, needs.v, needs.sinks]
    if not any(wanted) or (dout is None and dlse is None):
        return ATTENTION.Gradients()
    if dout is None:
        dout = torch.zeros_like(out)
    # A kernel that was asked for is the forward's.
    given = call._replace(kernel_name=None)._asdict()
    results = _ours.attention_backward.default(*ATTENTION_BACKWARD.Arguments(
        dout=dout, dlse=dlse, out=out, lse=lse, wanted=wanted, **given))
    trained = (call.q, call.k, call.v, call.sinks)
    return ATTENTION.Gradients(**{
        name: result.to(x.dtype)
        for name, x, want, result in zip(ATTENTION.trained_names, trained, wanted, results,
                                         strict=True)
        if want})


def _merge_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
    call = MERGE_STATES.Inputs(*inputs)
    ctx.bhld = call.bhld
    ctx.set_materialize_grads(False)
    ctx.parts = len(call.outs)
    ctx.has_sinks = call.sinks is not None
    ctx.save_for_backward(*call.outs, *call.lses, *output,
                          *([call.sinks] if ctx.has_sinks else []))


def _merge_gradient(ctx: Any, dout: Tensor | None, dlse: Tensor | None) -> tuple[Any, ...]:
    """With w_i = exp(lse_i - lse): out = sum w_i out_i, so d out_i = w_i dout and d lse_i = w_i
    (dout . (out_i - out) + dlse). A sink is one more part whose out is zero."""
    saved = iter(ctx.saved_tensors)
    outs, lses = ([next(saved) for _ in range(ctx.parts)] for _ in ("outs", "lses"))
    out, lse, *rest = saved

    def by_row(x: Tensor) -> Tensor:
        """A value a query and head, as out's rows are: [.., heads, length] or exchanged."""
        return x if ctx.bhld else x.transpose(-1, -2)

    rows = by_row(lse)
    dots = torch.zeros_like(rows) if dlse is None else by_row(dlse.float())
    whole = None if dout is None else (dout.float() * out.float()).sum(-1)
    shares = dots if whole is None else dots - whole
    douts, dlses = [], []
    for part, part_lse in zip(outs, lses, strict=True):
        # No key at all in a part, or in any: its weight is zero, not NaN.
        weight = torch.where(by_row(part_lse) == -torch.inf, 0.0, (by_row(part_lse) - rows).exp())
        own = shares if dout is None else shares + (dout.float() * part.float()).sum(-1)
        douts.append(None if dout is None else (weight.unsqueeze(-1) * dout.float()).to(part.dtype))
        dlses.append(by_row(weight * own))
    dsinks = None
    if ctx.has_sinks and MERGE_STATES.Inputs(*ctx.needs_input_grad).sinks:
        (sinks,) = rest
        over = tuple(i for i in range(lse.dim()) if i != lse.dim() - 2)
        dsinks = ((sinks.float().unsqueeze(-1) - lse).exp() * by_row(shares)).sum(over)
        dsinks = dsinks.to(sinks.dtype)
    gradients = MERGE_STATES.Gradients(outs=douts, lses=dlses, sinks=dsinks)
    # Up to PyTorch 2.10 arguments that were left at their defaults have no gradient.
    return tuple(gradients)[:len(ctx.needs_input_grad)]


# ---- Products ----------------------------------------------------------------------------------


def _flip(operand: Operand) -> Operand:
    return operand._replace(transposed=not operand.transposed)


def _is_sparse(operand: Operand) -> bool:
    return operand.row_offsets is not None


def _sum_to(x: Tensor, like: Tensor) -> Tensor:
    """Adds up a batch that `like` shares, and takes its dtype."""
    if x.dim() > like.dim():
        x = x.sum(0)
    elif x.shape[0] != like.shape[0]:
        x = x.sum(0, keepdim=True)
    return x.to(like.dtype)


def _product(a: Operand, b: Operand, alpha: float, call: Any, groups: Tensor | None = None,
             inner: bool = False) -> Tensor:
    """`call` is the forward's: how to run."""
    return _ours.matmul.default(*MATMUL.Arguments(
        *a, *b, group_offsets=groups, alpha=alpha, group_inner=inner, threads=call.threads,
        backend=call.backend))


def _operand_gradient(left: Operand, right: Operand, operand: Operand, alpha: float,
                      call: Any) -> Tensor:
    """left * right is the gradient of `operand` as it is read; returns that of what it stores."""
    if operand.transposed:  # the gradient of the transpose
        left, right = _flip(right), _flip(left)
    stored = operand.values
    if not _is_sparse(operand):
        return _sum_to(_product(left, right, alpha, call), stored)
    values = _ours.sddmm.default(*SDDMM.Arguments(
        *left, *right, values=stored, row_offsets=operand.row_offsets,
        col_indices=operand.col_indices, rows=operand.rows, cols=operand.cols, alpha=alpha,
        threads=call.threads, backend=call.backend, out_dtype=stored.dtype))
    return _sum_to(values, stored)


def _activation_gradient(name: str, dout: Tensor, before: Tensor) -> Tensor:
    if name == "relu":
        return _aten.threshold_backward(dout, before, 0)
    if name == "silu":
        return _aten.silu_backward(dout, before)
    return _aten.gelu_backward(dout, before, approximate="tanh" if name == "gelu_tanh" else "none")


def _matmul_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    a, *_ = inputs
    if a.dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        raise NotImplementedError(f"matmul: a: no gradient is recorded of operands in FP8, got "
                                  f"{a.dtype}; call under torch.no_grad() or detach the inputs")
    _keep(ctx, inputs)


def _grouped_gradients(dout: Tensor, a: Operand, b: Operand, needs: Any,
                       call: Any) -> dict[str, Any]:
    if _is_sparse(a) or _is_sparse(b):
        raise NotImplementedError("matmul: no gradient is recorded for grouped products with a "
                                  "block-sparse operand; use torch.no_grad()")
    groups, alpha = call.group_offsets, call.alpha
    gradients = {}
    if call.group_inner:  # out[g] = A[:, g] B[g, :]
        if needs.a:  # the transpose of A's gradient: B[g, :] dout[g]^T
            da = _product(b, Operand(dout, transposed=True), alpha, call, groups)
            gradients["a"] = da if a.transposed else da.mT
        if needs.b:
            db = _product(_flip(a), Operand(dout), alpha, call, groups)
            gradients["b"] = db.mT if b.transposed else db
    else:  # rows of group g of out = those of A, times B[g]
        if needs.a:
            da = _product(Operand(dout), _flip(b), alpha, call, groups)
            gradients["a"] = da.mT if a.transposed else da
        if needs.b:
            db = _product(_flip(a), Operand(dout), alpha, call, groups, inner=True)
            gradients["b"] = db.mT if b.transposed else db
    return {name: gradient.to(getattr(call, name).dtype) for name, gradient in gradients.items()}


def _matmul_gradient(ctx: Any, needs: Any, dout: Tensor | None) -> tuple[Any, ...]:
    call, _ = _kept(ctx, MATMUL)
    if dout is None:
        return MATMUL.Gradients()
    a, b = operands_of(call)
    if call.activation != "none":
        before = _ours.matmul.default(*call._replace(activation="none"))
        dout = _activation_gradient(call.activation, dout, before)
    narrow = dout.to(call.a.dtype)
    gradients = {}
    if call.group_offsets is not None:
        gradients = _grouped_gradients(narrow, a, b, needs, call)
    else:
        if needs.a:
            gradients["a"] = _operand_gradient(Operand(narrow), _flip(b), a, call.alpha, call)
        if needs.b:
            gradients["b"] = _operand_gradient(_flip(a), Operand(narrow), b, call.alpha, call)
    if needs.c:
        gradients["c"] = (call.beta * dout).to(call.c.dtype)
    if needs.bias:
        bias = call.bias
        total = dout.float().sum(-1 if call.bias_rows else -2)
        if total.dim() > bias.dim():
            total = total.sum(0)
        gradients["bias"] = _sum_to(total, bias).to(bias.dtype)
    return MATMUL.Gradients(**gradients)


def _sddmm_gradient(ctx: Any, needs: Any, dvalues: Tensor | None) -> tuple[Any, ...]:
    """out is block-sparse, so the gradients are products with a block-sparse operand."""
    call, _ = _kept(ctx, SDDMM)
    if dvalues is None:
        return SDDMM.Gradients()
    a, b = operands_of(call)
    sparse = Operand(dvalues.to(call.a.dtype), call.row_offsets, call.col_indices, call.rows,
                     call.cols)
    gradients = {}
    if needs.a:
        gradients["a"] = _operand_gradient(sparse, _flip(b), a, call.alpha, call)
    if needs.b:
        gradients["b"] = _operand_gradient(_flip(a), sparse, b, call.alpha, call)
    if needs.values and call.beta != 0:
        gradients["values"] = _sum_to(call.beta * dvalues, call.values)
    return SDDMM.Gradients(**gradients)


def _second_order(name: str) -> Any:
    def refuse(ctx: Any, *_: Any) -> Any:
        raise NotImplementedError(f"{name}: no second derivative")

    return refuse


def _record(library: torch.library.Library, signature: Signature, kernel: Any, gradient: Any,
            setup: Any) -> None:
    """What `torch.library.register_autograd` does, for operations that take no lists of
    tensors. It looks defaults up anew at every call that records a gradient, which takes 200 us for
    as many arguments as attention has. Only the arguments that gradients reach are asked whether
    they require one: to ask all of them costs more than a microsecond."""
    name = signature.name
    op = getattr(_ours, name).default
    after_autograd = torch._C._after_ADInplaceOrView_keyset
    devices = (torch._C.DispatchKey.CPU, torch._C.DispatchKey.CUDA)
    trained = signature.trained()

    @functools.cache
    def is_direct(keyset: int) -> bool:
        """Whether no mode or fake tensor stands between: the dispatcher would call the kernel
        next, after it has taken every argument apart and put it together again."""
        keys = torch._C.DispatchKeySet.from_raw_repr(keyset) & after_autograd
        return keys.highestPriorityTypeId() in devices

    def below(keyset: Any, arguments: tuple[Any, ...]) -> Any:
        if is_direct(keyset.raw_repr()):
            return kernel(*arguments)
        with torch._C._AutoDispatchBelowAutograd():
            return op.redispatch(keyset & after_autograd, *arguments)

    class Recorded(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, keyset: Any, *arguments: Any) -> Any:
            result = below(keyset, arguments)
            setup(ctx, arguments, result)
            return result

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Any, ...]:
            _, *needs = ctx.needs_input_grad  # the keyset's comes first
            return (None, *gradient(ctx, signature.Arguments(*needs), *gradients))

    def run(keyset: Any, *arguments: Any) -> Any:
        arguments = signature.complete(arguments)
        if torch.is_grad_enabled() and torch._C._any_requires_grad(*trained(arguments)):
            return Recorded.apply(keyset, *arguments)
        return below(keyset, arguments)

    library.impl(name, run, "Autograd", with_keyset=True)


def register(library: torch.library.Library, kernels: dict[str, Any]) -> None:
    """`kernels`: by name, what an operation runs on every device."""
    formulas = {
        ATTENTION: (_attention_gradient, _attention_setup),
        ATTENTION_BACKWARD: (_second_order("attention"), lambda ctx, inputs, output: None),
        MATMUL: (_matmul_gradient, _matmul_setup),
        SDDMM: (_sddmm_gradient, _matmul_setup),
    }
    for signature, formula in formulas.items():
        _record(library, signature, kernels[signature.name], *formula)
    torch.library.register_autograd("tessera::merge_states", _merge_gradient,
                                    setup_context=_merge_setup, lib=library)
