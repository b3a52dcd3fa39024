"""Gradients of the registered operations, in terms of the registered operations."""

from __future__ import annotations

import functools
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from tessera.shapes import SINKS

_aten = torch.ops.aten
_ours = torch.ops.tessera


def defaults(op: Any) -> tuple:
    """By position, None where an argument has no default. The dispatcher drops trailing arguments
    that have theirs before it calls a function of ours."""
    return tuple(x.default_value for x in op._schema.arguments)


def _keep(ctx: Any, arguments: tuple, *results: Tensor) -> None:
    """Saves a call: tensors for backward, everything else beside their places."""
    ctx.set_materialize_grads(False)
    ctx.at = [i for i, x in enumerate(arguments) if isinstance(x, Tensor)]
    ctx.save_for_backward(*(arguments[i] for i in ctx.at), *results)
    ctx.rest = [None if isinstance(x, Tensor) else x for x in arguments]


def _kept(ctx: Any) -> tuple[list, tuple]:
    """The arguments and the results of the call that `_keep` saved."""
    saved = ctx.saved_tensors
    arguments = list(ctx.rest)
    for i, x in zip(ctx.at, saved):
        arguments[i] = x
    return arguments, saved[len(ctx.at):]


# ---- Attention ---------------------------------------------------------------------------------


def _attention_setup(ctx: Any, inputs: tuple, output: tuple) -> None:
    _keep(ctx, inputs, *output)


def _attention_gradient(ctx: Any, needs: tuple, dout: Tensor | None,
                        dlse: Tensor | None) -> tuple:
    arguments, (out, lse) = _kept(ctx)
    q, k, v, *options = arguments
    sinks_at = 3 + SINKS
    wanted = [needs[i] for i in (0, 1, 2, sinks_at)]
    gradients = [None] * len(arguments)
    if not any(wanted) or (dout is None and dlse is None):
        return tuple(gradients)
    if dout is None:
        dout = torch.zeros_like(out)
    options[-1] = None  # a kernel that was asked for is the forward's
    results = _ours.attention_backward.default(dout, dlse, q, k, v, out, lse, wanted, *options)
    for at, want, result in zip((0, 1, 2, sinks_at), wanted, results):
        if want:
            gradients[at] = result.to(arguments[at].dtype)
    return tuple(gradients)


def _merge_setup(ctx: Any, inputs: tuple, output: tuple) -> None:
    outs, lses, sinks, ctx.bhld, *_ = inputs
    ctx.set_materialize_grads(False)
    ctx.parts = len(outs)
    ctx.has_sinks = sinks is not None
    ctx.save_for_backward(*outs, *lses, *output, *([sinks] if ctx.has_sinks else []))


def _merge_gradient(ctx: Any, dout: Tensor | None, dlse: Tensor | None) -> tuple:
    """With w_i = exp(lse_i - lse): out = sum w_i out_i, so d out_i = w_i dout and d lse_i = w_i
    (dout . (out_i - out) + dlse). A sink is one more part whose out is zero."""
    saved = ctx.saved_tensors
    outs, lses = saved[: ctx.parts], saved[ctx.parts : 2 * ctx.parts]
    out, lse = saved[2 * ctx.parts : 2 * ctx.parts + 2]

    def by_row(x: Tensor) -> Tensor:
        """A value a query and head, as out's rows are: [.., heads, length] or exchanged."""
        return x if ctx.bhld else x.transpose(-1, -2)

    rows = by_row(lse)
    dots = torch.zeros_like(rows) if dlse is None else by_row(dlse.float())
    whole = None if dout is None else (dout.float() * out.float()).sum(-1)
    shares = dots if whole is None else dots - whole
    douts, dlses = [], []
    for part, part_lse in zip(outs, lses):
        # No key at all in a part, or in any: its weight is zero, not NaN.
        weight = torch.where(by_row(part_lse) == -torch.inf, 0.0, (by_row(part_lse) - rows).exp())
        own = shares if dout is None else shares + (dout.float() * part.float()).sum(-1)
        douts.append(None if dout is None else (weight.unsqueeze(-1) * dout.float()).to(part.dtype))
        dlses.append(by_row(weight * own))
    dsinks = None
    if ctx.has_sinks and ctx.needs_input_grad[2]:
        sinks = saved[-1]
        over = tuple(i for i in range(lse.dim()) if i != lse.dim() - 2)
        dsinks = ((sinks.float().unsqueeze(-1) - lse).exp() * by_row(shares)).sum(over)
        dsinks = dsinks.to(sinks.dtype)
    return douts, dlses, dsinks, None, None, None, None


# ---- Products ----------------------------------------------------------------------------------

# Positions in the arguments of matmul, after both operands.
(_C, _BIAS, _GROUPS, _ALPHA, _BETA, _BIAS_ROWS, _ACTIVATION, _INNER, _THREADS,
 _BACKEND) = range(12, 22)


def _dense(x: Tensor, transposed: bool = False) -> tuple:
    return (x, None, None, 0, 0, transposed)


def _flip(operand: tuple) -> tuple:
    return (*operand[:5], not operand[5])


def _is_sparse(operand: tuple) -> bool:
    return operand[1] is not None


def _sum_to(x: Tensor, like: Tensor) -> Tensor:
    """Adds up a batch that `like` shares, and takes its dtype."""
    if x.dim() > like.dim():
        x = x.sum(0)
    elif x.shape[0] != like.shape[0]:
        x = x.sum(0, keepdim=True)
    return x.to(like.dtype)


def _product(a: tuple, b: tuple, alpha: float, arguments: tuple, groups: Tensor | None = None,
             inner: bool = False, dtype: torch.dtype | None = None) -> Tensor:
    return _ours.matmul.default(*a, *b, None, None, groups, alpha, 0.0, False, "none", inner,
                                arguments[_THREADS], arguments[_BACKEND], None, dtype)


def _operand_gradient(left: tuple, right: tuple, operand: tuple, alpha: float,
                      arguments: tuple) -> Tensor:
    """left * right is the gradient of `operand` as it is read; returns that of what it stores."""
    if operand[5]:  # the gradient of the transpose
        left, right = _flip(right), _flip(left)
    if not _is_sparse(operand):
        return _sum_to(_product(left, right, alpha, arguments), operand[0])
    values = _ours.sddmm.default(*left, *right, *operand[:5], alpha, 0.0, arguments[_THREADS],
                                 arguments[_BACKEND], None, operand[0].dtype)
    return _sum_to(values, operand[0])


def _activation_gradient(name: str, dout: Tensor, before: Tensor) -> Tensor:
    if name == "relu":
        return _aten.threshold_backward(dout, before, 0)
    if name == "silu":
        return _aten.silu_backward(dout, before)
    return _aten.gelu_backward(dout, before, approximate="tanh" if name == "gelu_tanh" else "none")


def _matmul_setup(ctx: Any, inputs: tuple, output: Tensor) -> None:
    _keep(ctx, inputs)


def _grouped_gradients(dout: Tensor, a: tuple, b: tuple, needs: tuple, arguments: tuple) -> tuple:
    if _is_sparse(a) or _is_sparse(b):
        raise NotImplementedError("matmul: no gradient is recorded for grouped products with a "
                                  "block-sparse operand; use torch.no_grad()")
    groups, alpha = arguments[_GROUPS], arguments[_ALPHA]
    da = db = None
    if arguments[_INNER]:  # out[g] = A[:, g] B[g, :]
        if needs[0]:  # the transpose of A's gradient: B[g, :] dout[g]^T
            da = _product(b, _dense(dout, True), alpha, arguments, groups)
            da = da if a[5] else da.mT
        if needs[6]:
            db = _product(_flip(a), _dense(dout), alpha, arguments, groups)
            db = db.mT if b[5] else db
    else:  # rows of group g of out = those of A, times B[g]
        if needs[0]:
            da = _product(_dense(dout), _flip(b), alpha, arguments, groups)
            da = da.mT if a[5] else da
        if needs[6]:
            db = _product(_flip(a), _dense(dout), alpha, arguments, groups, inner=True)
            db = db.mT if b[5] else db
    return (None if da is None else da.to(a[0].dtype), None if db is None else db.to(b[0].dtype))


def _matmul_gradient(ctx: Any, needs: tuple, dout: Tensor | None) -> tuple:
    arguments, _ = _kept(ctx)
    gradients = [None] * len(arguments)
    if dout is None:
        return tuple(gradients)
    a, b = tuple(arguments[:6]), tuple(arguments[6:12])
    if arguments[_ACTIVATION] != "none":
        before = _ours.matmul.default(*arguments[:_ACTIVATION], "none",
                                      *arguments[_ACTIVATION + 1 :])
        dout = _activation_gradient(arguments[_ACTIVATION], dout, before)
    narrow = dout.to(a[0].dtype)
    alpha = arguments[_ALPHA]
    if arguments[_GROUPS] is not None:
        gradients[0], gradients[6] = _grouped_gradients(narrow, a, b, needs, arguments)
    else:
        if needs[0]:
            gradients[0] = _operand_gradient(_dense(narrow), _flip(b), a, alpha, arguments)
        if needs[6]:
            gradients[6] = _operand_gradient(_flip(a), _dense(narrow), b, alpha, arguments)
    if needs[_C]:
        gradients[_C] = (arguments[_BETA] * dout).to(arguments[_C].dtype)
    if needs[_BIAS]:
        bias = arguments[_BIAS]
        total = dout.float().sum(-1 if arguments[_BIAS_ROWS] else -2)
        if total.dim() > bias.dim():
            total = total.sum(0)
        gradients[_BIAS] = _sum_to(total, bias).to(bias.dtype)
    return tuple(gradients)


def _sddmm_gradient(ctx: Any, needs: tuple, dvalues: Tensor | None) -> tuple:
    """out is block-sparse, so the gradients are products with a block-sparse operand."""
    arguments, _ = _kept(ctx)
    gradients = [None] * len(arguments)
    if dvalues is None:
        return tuple(gradients)
    a, b, pattern = tuple(arguments[:6]), tuple(arguments[6:12]), tuple(arguments[12:17])
    alpha, beta, threads, backend = arguments[17:21]
    sparse = (dvalues.to(a[0].dtype), *pattern[1:], False)
    execution = dict(zip((_THREADS, _BACKEND), (threads, backend)))
    if needs[0]:
        gradients[0] = _operand_gradient(sparse, _flip(b), a, alpha, execution)
    if needs[6]:
        gradients[6] = _operand_gradient(_flip(a), sparse, b, alpha, execution)
    if needs[12] and beta != 0:
        gradients[12] = _sum_to(beta * dvalues, pattern[0])
    return tuple(gradients)


def _second_order(name: str) -> Any:
    def refuse(ctx: Any, *_: Any) -> Any:
        raise NotImplementedError(f"{name}: no second derivative")

    return refuse


# Operations whose gradients run on the CPU alone, with the names of the arguments that they reach.
_CPU_GRADIENTS = {"attention": ("q", "k", "v", "sinks")}


def _check_gradient(name: str, trained: tuple) -> None:
    """Refuses to record a gradient that backward could not compute, at the call rather than there."""
    for argument, x in zip(_CPU_GRADIENTS.get(name, ()), trained):
        if x is not None and x.requires_grad and x.device.type == "cuda":
            raise NotImplementedError(
                f"{name}: {argument}: requires a gradient, and the backward pass is not implemented "
                f"on GPUs yet (supported: tensors on the CPU), got a tensor on {x.device}; for "
                "inference call under torch.no_grad() or detach the inputs")


def _record(library: torch.library.Library, name: str, kernel: Any, gradient: Any,
            setup: Any, trained: tuple[int, ...]) -> None:
    """What `torch.library.register_autograd` does, for operations that take no lists of
    tensors. It looks defaults up anew at every call that records a gradient, which takes 200 us for
    as many arguments as attention has. `trained`: the places of arguments that gradients reach; to
    ask all of them costs more than a microsecond."""
    op = getattr(_ours, name).default
    after_autograd = torch._C._after_ADInplaceOrView_keyset
    devices = (torch._C.DispatchKey.CPU, torch._C.DispatchKey.CUDA)
    candidates, rest = itemgetter(*trained), defaults(op)

    @functools.cache
    def is_direct(keyset: int) -> bool:
        """Whether no mode or fake tensor stands between: the dispatcher would call the kernel
        next, after it has taken every argument apart and put it together again."""
        keys = torch._C.DispatchKeySet.from_raw_repr(keyset) & after_autograd
        return keys.highestPriorityTypeId() in devices

    def below(keyset: Any, arguments: tuple) -> Any:
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
        def backward(ctx: Any, *gradients: Tensor | None) -> tuple:
            return (None, *gradient(ctx, ctx.needs_input_grad[1:], *gradients))

    def run(keyset: Any, *arguments: Any) -> Any:
        arguments += rest[len(arguments) :]
        if torch.is_grad_enabled() and torch._C._any_requires_grad(*candidates(arguments)):
            _check_gradient(name, candidates(arguments))
            return Recorded.apply(keyset, *arguments)
        return below(keyset, arguments)

    library.impl(name, run, "Autograd", with_keyset=True)


def register(library: torch.library.Library, kernels: dict[str, Any]) -> None:
    """`kernels`: by name, what an operation runs on every device."""
    formulas = {
        "attention": (_attention_gradient, _attention_setup, (0, 1, 2, 3 + SINKS)),
        "attention_backward": (_second_order("attention"), lambda ctx, inputs, output: None,
                               (*range(7), 8 + SINKS)),
        "matmul": (_matmul_gradient, _matmul_setup, (0, 6, _C, _BIAS)),
        "sddmm": (_sddmm_gradient, _matmul_setup, (0, 6, 12)),
    }
    for name, formula in formulas.items():
        _record(library, name, kernels[name], *formula)
    torch.library.register_autograd("tessera::merge_states", _merge_gradient,
                                    setup_context=_merge_setup, lib=library)
