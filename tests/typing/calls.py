"""Calls that mypy checks (`make lint`). Each `type: ignore` marks a wrong call; mypy reports unused
ones, so the check fails if mypy accepts a wrong call. This file never runs."""

from typing import Any

import numpy as np

import tessera

q = np.ones((1, 4, 2, 8), np.float32)
a = np.ones((4, 4), np.float32)

# Options are keyword-only, with types.
out: Any = tessera.attention(q, q, q)
out = tessera.attention(q, q, q, causal=True, window_left=3, mask=None, kernel=None)
out, lse = tessera.attention(q, q, q, return_lse=True)
tessera.attention(q, q, q, True)  # type: ignore[call-arg]
tessera.attention(q, q)  # type: ignore[call-arg]
tessera.attention(q, q, q, _=1)  # type: ignore[call-arg]
tessera.attention(q, q, q, keys=1)  # type: ignore[call-arg]
tessera.attention(q, q, q, causal="yes")  # type: ignore[arg-type]
tessera.attention(q, q, q, mask=a)  # type: ignore[arg-type]
tessera.matmul(a, a, True)  # type: ignore[call-arg]
tessera.linear(a, a, None, "relu")  # type: ignore[call-arg]
tessera.merge_states([out], [lse], None)  # type: ignore[call-arg]

# Results have types.
matrix: tessera.BsrMatrix = tessera.BsrMatrix.from_dense(a, block=2)
matrix = tessera.spgemm(matrix, matrix.T)
shape: tuple[int, int] = matrix.shape
mask: tessera.BlockMask = tessera.BlockMask.causal(4, 4, block=2)
(counts, rows, entries), partial = mask.lists_by_column()
plan: tessera.Plan = tessera.plan(tessera.attention, q, q, q, mask=mask)
name: str = plan.kernel_name
kernel: str = tessera.explain("matmul", a, a)["plan"]["kernel_name"]
number: int = plan.kernel_name  # type: ignore[assignment]
