"""Matrix products whose operands or results are dense or block-sparse."""

from __future__ import annotations

import re
from typing import Any

from tessera.bsr import BsrMatrix
from tessera.tensors import operations


def _operand(x: Any, transposed: bool) -> tuple:
    if isinstance(x, BsrMatrix):
        return (*x.arrays, transposed != x.transposed)
    return (x, None, None, 0, 0, transposed)


def _axis(op: str, name: str, value: str, first: str, second: str) -> bool:
    if value not in (first, second):
        raise ValueError(f"{op}: {name}: expected {first!r} or {second!r}, got {value!r}")
    return value == second


def matmul(
    a: Any, b: Any, *,
    transpose_a: bool = False, transpose_b: bool = False,
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
    the result has a's dtype unless ``out`` or ``out_dtype`` says otherwise.

    >>> import numpy as np, tessera
    >>> a = np.ones((64, 128), np.float32)
    >>> b = tessera.BsrMatrix.from_dense(np.eye(128, dtype=np.float32), block=(32, 32))
    >>> b.stored_blocks
    4
    >>> bool((tessera.matmul(a, b, activation="relu") == a).all())
    True
    """
    if beta != 0 and c is None and out is None:
        raise ValueError("matmul: beta: needs c, or out with former contents, got neither")
    first, second, options = matmul_options(a, b, transpose_a, transpose_b, c, bias, group_offsets,
                                            alpha, beta, bias_axis, activation, group_axis,
                                            threads, backend, kernel)
    if type(first[0]) is not type(second[0]):
        operations("matmul: b", second[0])  # refuses what is no tensor
    return operations("matmul: a", first[0]).matmul(first, second, out, out_dtype, options)


def matmul_options(a: Any, b: Any, transpose_a: bool, transpose_b: bool, c: Any, bias: Any,
                   group_offsets: Any, alpha: float, beta: float, bias_axis: str, activation: str,
                   group_axis: str, threads: int, backend: Any,
                   kernel: Any) -> tuple[tuple, tuple, tuple]:
    """Both operands and what follows out in a call of the exports."""
    return _operand(a, transpose_a), _operand(b, transpose_b), (
        c, bias, group_offsets, alpha, beta,
        _axis("matmul", "bias_axis", bias_axis, "column", "row"), activation,
        _axis("matmul", "group_axis", group_axis, "rows", "inner"), threads, backend, kernel)


def bsr_matmul(a: Any, b: Any, **options: Any) -> Any:
    """`matmul` where at least one operand is a `BsrMatrix`; the same options.

    >>> import numpy as np, tessera
    >>> w = tessera.BsrMatrix.from_dense(np.eye(64, dtype=np.float32), block=(16, 16))
    >>> tessera.bsr_matmul(w, np.ones((64, 8), np.float32)).shape
    (64, 8)
    """
    if not isinstance(a, BsrMatrix) and not isinstance(b, BsrMatrix):
        raise TypeError(f"bsr_matmul: expected a BsrMatrix as a or b, got {type(a).__name__} and "
                        f"{type(b).__name__}; matmul takes two dense ones")
    return matmul(a, b, **options)


def linear(x: Any, weight: Any, bias: Any = None, *, activation: str = "none",
           out_dtype: Any = None, threads: int = 0, backend: str | None = None,
           kernel: str | None = None) -> Any:
    """activation(x weight^T + bias) with weight ``[outputs, inputs]``, an array or a `BsrMatrix`;
    x has any leading dimensions.

    >>> import numpy as np, tessera
    >>> weight = tessera.BsrMatrix.prune(np.random.default_rng(0).random((64, 32)).astype("f4"),
    ...                                  block=(16, 16), density=0.5)
    >>> tessera.linear(np.ones((2, 5, 32), np.float32), weight, np.zeros(64, np.float32)).shape
    (2, 5, 64)
    """
    operations("linear: x", x)
    inputs = x.shape[-1] if len(x.shape) else 0
    rows = 1
    for size in x.shape[:-1]:
        rows *= size
    try:
        result = matmul(x.reshape(rows, inputs), weight, transpose_b=True, bias=bias,
                        activation=activation, out_dtype=out_dtype, threads=threads,
                        backend=backend, kernel=kernel)
    except (TypeError, ValueError) as error:
        if not str(error).startswith("matmul: "):
            raise
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(_linear_message(str(error), inputs, weight)) from None
    return result.reshape(*x.shape[:-1], result.shape[-1])


def _linear_message(message: str, inputs: int, weight: Any) -> str:
    """A message of matmul in the words of linear: x for a, weight for b."""
    if re.match(r"matmul: b: expected \d+ rows to match", message):
        return (f"linear: weight: expected {inputs} columns to match those of x, got "
                f"{list(weight.shape)}")
    message = re.sub(r"^matmul: a\b", "linear: x", message)
    message = re.sub(r"^matmul: b\b", "linear: weight", message).replace(" as a has", " as x has")
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
    first, second, options = sddmm_options(a, b, pattern, transpose_a, transpose_b, alpha, beta,
                                           threads, backend, kernel)
    values = operations("sddmm: a", first[0]).sddmm(first, second, pattern.arrays, out, out_dtype,
                                                    options)
    return pattern.with_values(values)


def sddmm_options(a: Any, b: Any, pattern: Any, transpose_a: bool, transpose_b: bool, alpha: float,
                  beta: float, threads: int, backend: Any,
                  kernel: Any) -> tuple[tuple, tuple, tuple]:
    """Both operands and what follows out in a call of the exports."""
    if not isinstance(pattern, BsrMatrix) or pattern.transposed:
        raise TypeError("sddmm: pattern: expected a BsrMatrix that is not a transposed view "
                        "(transpose() stores one)")
    return (_operand(a, transpose_a), _operand(b, transpose_b),
            (alpha, beta, threads, backend, kernel))


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
    first, second, options = spgemm_options(a, b, transpose_a, transpose_b, alpha, threads, backend,
                                            kernel)

    def read(x: BsrMatrix, transposed: bool) -> tuple[tuple[int, int], tuple[int, int]]:
        shape, block = (x.rows, x.cols), x.block
        return (shape[::-1], block[::-1]) if transposed else (shape, block)

    (rows, _), (r, _) = read(a, first[5])
    (_, cols), (_, c) = read(b, second[5])
    arrays = operations("spgemm: a", first[0]).spgemm(first, second, (r, c), (rows, cols),
                                                      out_dtype, options)
    return BsrMatrix(*arrays, rows, cols)


def spgemm_options(a: Any, b: Any, transpose_a: bool, transpose_b: bool, alpha: float, threads: int,
                   backend: Any, kernel: Any) -> tuple[tuple, tuple, tuple]:
    """Both operands and what follows them in a call of the exports."""
    for name, x in (("a", a), ("b", b)):
        if not isinstance(x, BsrMatrix):
            raise TypeError(f"spgemm: {name}: expected a BsrMatrix, got {type(x).__name__}; "
                            "bsr_matmul takes one dense operand")
    return (_operand(a, transpose_a), _operand(b, transpose_b),
            (alpha, 0.0, threads, backend, kernel))
