"""Matrix products whose operands or results are dense or block-sparse."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from tessera import _ffi
from tessera.bsr import BsrMatrix, define_product
from tessera.dispatch import module_of, operations
from tessera.inputs import linear_inputs, matmul_inputs, sddmm_inputs, spgemm_inputs


def matmul(
    a: Any, b: Any, *,
    transpose_a: bool = False, transpose_b: bool = False, a_scale: Any = None, b_scale: Any = None,
    bias: Any = None, bias_axis: str = "column", activation: str = "none",
    alpha: float = 1.0, beta: float = 0.0, c: Any = None,
    group_offsets: Any = None, group_axis: str = "rows",
    out: Any = None, out_dtype: Any = None, threads: int = 0, backend: str | None = None,
    kernel: str | None = None,
) -> Any:
    """activation(alpha * a b + beta * c + bias). a and b: arrays ``[rows, cols]`` or ``[batch,
    rows, cols]``, or `BsrMatrix`; each read transposed where asked, without moving a value.

    ``bias`` has a value a column of the result (or a row: ``bias_axis="row"``); ``activation`` is
    "none", "relu", "gelu", "gelu_tanh" or "silu". ``group_offsets`` cuts the rows of a among the
    matrices of b (experts), or the inner dimension (``group_axis="inner"``). Sums are float32;
    the result has a's dtype (bfloat16 if that is FP8) unless ``out`` or ``out_dtype`` says
    otherwise.

    Operands in float8_e4m3fn and float8_e5m2 are multiplied by their ``a_scale`` and ``b_scale``,
    as `quantize` writes them: for all, per row of a and column of b, per 1 x 128 or 128 x 128
    elements, per stored block. No gradient is recorded of them.

    >>> import numpy as np, tessera
    >>> a = np.ones((64, 128), np.float32)
    >>> b = tessera.BsrMatrix.from_dense(np.eye(128, dtype=np.float32), block=(32, 32))
    >>> b.stored_blocks
    4
    >>> bool((tessera.matmul(a, b, activation="relu") == a).all())
    True
    """
    # Calls with few options go to the export at once: Python passes more than 15 by name slowly.
    if (alpha == 1 and not beta and c is None and group_offsets is None and bias_axis == "column"
            and group_axis == "rows" and not threads and backend is None and kernel is None):
        if isinstance(a, BsrMatrix):
            a_values, a_row_offsets, a_col_indices = a.values, a.row_offsets, a.col_indices
            a_rows, a_cols, a_transposed = a.rows, a.cols, transpose_a != a.transposed
        else:
            a_values, a_row_offsets, a_col_indices = a, None, None
            a_rows, a_cols, a_transposed = 0, 0, transpose_a
        if isinstance(b, BsrMatrix):
            b_values, b_row_offsets, b_col_indices = b.values, b.row_offsets, b.col_indices
            b_rows, b_cols, b_transposed = b.rows, b.cols, transpose_b != b.transposed
        else:
            b_values, b_row_offsets, b_col_indices = b, None, None
            b_rows, b_cols, b_transposed = 0, 0, transpose_b
        module = module_of.get(type(a_values)) or operations("matmul: a", a_values)
        if module.is_plain(a_values, b_values, out, bias):
            try:
                result = out
                if out is None:
                    result = module.matmul_output(
                        (a_values, a_row_offsets, a_col_indices, a_rows, a_cols, a_transposed,
                         None),
                        (b_values, b_row_offsets, b_col_indices, b_rows, b_cols, b_transposed,
                         None),
                        None, False, out_dtype)
                if (a_row_offsets is None and b_row_offsets is None and bias is None
                        and activation == "none" and a_scale is None and b_scale is None):
                    _ffi.plain_matmul(a_values, b_values, a_transposed, b_transposed, result)
                    return result
                _ffi.matmul(
                    a=a_values, a_row_offsets=a_row_offsets, a_col_indices=a_col_indices,
                    a_rows=a_rows, a_cols=a_cols, a_transposed=a_transposed, a_scale=a_scale,
                    b=b_values, b_row_offsets=b_row_offsets, b_col_indices=b_col_indices,
                    b_rows=b_rows, b_cols=b_cols, b_transposed=b_transposed, b_scale=b_scale,
                    bias=bias, activation=activation, out=result)
                return result
            except Exception:
                if b is not None and module.have_memory(a_values, b_values, out, bias):
                    raise
    inputs = matmul_inputs(a, b, transpose_a, transpose_b, a_scale, b_scale, bias, bias_axis,
                           activation, alpha, beta, c, group_offsets, group_axis, out, threads,
                           backend, kernel)
    return operations("matmul: a", inputs.a).matmul(inputs, out, out_dtype)


@define_product
def _product(a: Any, b: Any) -> Any:
    both = isinstance(a, BsrMatrix) and isinstance(b, BsrMatrix)
    return spgemm(a, b) if both else matmul(a, b)


def bsr_matmul(a: Any, b: Any, **options: Any) -> Any:
    """`matmul` where at least one operand is a `BsrMatrix`; the same options.

    >>> import numpy as np, tessera
    >>> w = tessera.BsrMatrix.from_dense(np.eye(64, dtype=np.float32), block=(16, 16))
    >>> tessera.bsr_matmul(w, np.ones((64, 8), np.float32)).shape
    (64, 8)
    """
    check_has_bsr(a, b)
    return matmul(a, b, **options)


def check_has_bsr(a: Any, b: Any) -> None:
    if not isinstance(a, BsrMatrix) and not isinstance(b, BsrMatrix):
        raise TypeError(f"bsr_matmul: expected a BsrMatrix as a or b, got {type(a).__name__} and "
                        f"{type(b).__name__}; matmul takes two dense ones")


def linear(x: Any, weight: Any, bias: Any = None, *, activation: str = "none",
           x_scale: Any = None, weight_scale: Any = None, out_dtype: Any = None, threads: int = 0,
           backend: str | None = None, kernel: str | None = None) -> Any:
    """activation(x weight^T + bias) with weight ``[outputs, inputs]``, an array or a `BsrMatrix`;
    x has any leading dimensions. ``x_scale`` and ``weight_scale`` are factors of operands in FP8,
    as in `matmul`; x_scale may have the leading dimensions of x.

    >>> import numpy as np, tessera
    >>> weight = tessera.BsrMatrix.prune(np.random.default_rng(0).random((64, 32)).astype("f4"),
    ...                                  block=(16, 16), density=0.5)
    >>> tessera.linear(np.ones((2, 5, 32), np.float32), weight, np.zeros(64, np.float32)).shape
    (2, 5, 64)
    """
    if isinstance(weight, BsrMatrix):
        values, row_offsets, col_indices = weight.values, weight.row_offsets, weight.col_indices
        rows, cols, transposed = weight.rows, weight.cols, weight.transposed
        outputs = cols if transposed else rows
    else:
        values, row_offsets, col_indices = weight, None, None
        rows, cols, transposed, outputs = 0, 0, False, None
    module = module_of.get(type(x)) or operations("linear: x", x)
    try:
        if module.is_plain(x, values, bias):
            try:
                if outputs is None:
                    outputs, *_ = values.shape
                x_rows, out = module.linear_tensors(x, outputs, out_dtype)
                _ffi.linear(
                    x=x_rows, weight=values, weight_row_offsets=row_offsets,
                    weight_col_indices=col_indices, weight_rows=rows, weight_cols=cols,
                    weight_transposed=transposed, weight_scale=weight_scale, x_scale=x_scale,
                    bias=bias, activation=activation,
                    threads=threads, backend=backend, kernel_name=kernel, out=out)
                return out
            except Exception:
                if weight is not None and module.have_memory(x, values, bias):
                    raise
        inputs = linear_inputs(x, weight, x_scale, weight_scale, bias, activation, threads,
                               backend, kernel)
        return module.linear(inputs, out_dtype)
    except (TypeError, ValueError) as error:
        if not str(error).startswith("matmul: "):
            raise
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(_linear_message(str(error), x, weight)) from None


def _linear_message(message: str, x: Any, weight: Any) -> str:
    """A message of matmul in the words of linear: x for a, weight for b."""
    inputs = x.shape[-1] if len(x.shape) else 0
    if re.match(r"matmul: b: expected \d+ rows to match", message):
        return (f"linear: weight: expected {inputs} columns to match those of x, got "
                f"{list(weight.shape)}")
    message = re.sub(r"^matmul: a(?=\b|_scale)", "linear: x", message)
    message = re.sub(r"^matmul: b(?=\b|_scale)", "linear: weight", message)
    for of_matmul, of_linear in ((" as a has", " as x has"), ("(per row of a)", "(per row of x)"),
                                 ("(per column of b)", "(per row of weight)")):
        message = message.replace(of_matmul, of_linear)
    return re.sub(r"^matmul: ", "linear: ", message)


def sddmm(
    a: Any, b: Any, pattern: BsrMatrix, *,
    transpose_a: bool = False, transpose_b: bool = False, alpha: float = 1.0, beta: float = 0.0,
    out: Any = None, out_dtype: Any = None, threads: int = 0, backend: str | None = None,
    kernel: str | None = None,
) -> BsrMatrix:
    """alpha * (a b at the blocks that pattern stores) + beta * pattern's values: a `BsrMatrix` with
    pattern's lists. ``out`` takes the values in place (they are beta's operand then).

    >>> import numpy as np, tessera
    >>> pattern = tessera.BsrMatrix.from_dense(np.eye(64, dtype=np.float32), block=(16, 16))
    >>> a = np.ones((64, 8), np.float32)
    >>> tessera.sddmm(a, a, pattern, transpose_b=True).to_dense().sum() == 8 * 16 * 64
    np.True_
    """
    inputs = sddmm_inputs(a, b, pattern, transpose_a, transpose_b, alpha, beta, threads, backend,
                          kernel)
    return pattern.with_values(operations("sddmm: a", inputs.a).sddmm(inputs, out, out_dtype))


def spgemm(a: BsrMatrix, b: BsrMatrix, *, transpose_a: bool = False, transpose_b: bool = False,
           alpha: float = 1.0, out_dtype: Any = None, threads: int = 0,
           backend: str | None = None, kernel: str | None = None) -> BsrMatrix:
    """alpha * a b, both block-sparse, and so is the result: it stores every block that a pair of
    stored blocks reaches.

    >>> import numpy as np, tessera
    >>> a = tessera.BsrMatrix.from_dense(np.eye(64, dtype=np.float32), block=(16, 16))
    >>> tessera.spgemm(a, a).stored_blocks
    4
    """
    result, numeric = spgemm_symbolic(a, b, transpose_a, transpose_b, alpha, out_dtype, threads,
                                      backend, kernel)
    numeric()
    return result


def spgemm_symbolic(a: BsrMatrix, b: BsrMatrix, transpose_a: bool = False,
                    transpose_b: bool = False, alpha: float = 1.0, out_dtype: Any = None,
                    threads: int = 0, backend: str | None = None,
                    kernel: str | None = None) -> tuple[BsrMatrix, Callable[[], None]]:
    """The result with its pattern, and what computes its values: as often as those of a and b
    change."""
    inputs = spgemm_inputs(a, b, transpose_a, transpose_b, alpha, threads, backend, kernel)

    def read(x: BsrMatrix, transposed: bool) -> tuple[tuple[int, int], tuple[int, int]]:
        (rows, cols), (r, c) = (x.rows, x.cols), x.block
        return ((cols, rows), (c, r)) if transposed else ((rows, cols), (r, c))

    (rows, _), (r, _) = read(a, inputs.a_transposed)
    (_, cols), (_, c) = read(b, inputs.b_transposed)
    (values, row_offsets, col_indices), numeric = operations("spgemm: a", inputs.a).spgemm_symbolic(
        inputs, (r, c), (rows, cols), out_dtype)
    return BsrMatrix(values, row_offsets, col_indices, rows, cols), numeric


