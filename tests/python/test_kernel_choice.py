"""Kernels that are forced by name."""

import numpy as np
import pytest

import tessera
from tessera._signatures import ATTENTION_BACKWARD

PRODUCT, ATTENTION = "cpu_matmul_m64_n384_k512", "cpu_attention_q128_k192"
SAMPLED, SPARSE = PRODUCT.replace("matmul", "sddmm"), PRODUCT.replace("matmul", "spgemm")
RNG = np.random.default_rng(0)


def numbers(*shape):
    return RNG.standard_normal(shape, dtype=np.float32)


def blocks():
    return tessera.BsrMatrix.from_dense(np.eye(64, dtype=np.float32), block=(16, 16))


A, Q = numbers(64, 64), numbers(1, 32, 2, 16)
CALLS = [
    (tessera.attention, (Q, Q, Q), ATTENTION, PRODUCT),
    (tessera.matmul, (A, A), PRODUCT, ATTENTION),
    (tessera.bsr_matmul, (blocks(), A), PRODUCT, ATTENTION),
    (tessera.linear, (A, A), PRODUCT, ATTENTION),
    (tessera.sddmm, (A, A, blocks()), SAMPLED, PRODUCT),
    (tessera.spgemm, (blocks(), blocks()), SPARSE, SAMPLED),
]


@pytest.mark.parametrize("function, arguments, own, other", CALLS)
def test_a_forced_kernel_runs_or_the_error_lists_the_rows(function, arguments, own, other):
    function(*arguments, kernel=own)
    answer = tessera.explain(function, *arguments, kernel=own)
    assert answer["chosen_by"] == "execution.kernel" and len(answer["candidates"]) == 1
    assert tessera.explain(function, *arguments)["chosen_by"] == "cost model"
    with pytest.raises(ValueError, match=f"kernel: expected a row for .*{own}.*got '{other}'"):
        function(*arguments, kernel=other)
    with pytest.raises(NotImplementedError, match="runs on a GPU, the device is CPU"):
        name = next(one["kernel"] for one in tessera.explain(function, *arguments)["candidates"]
                    if one["kernel"] and one["kernel"].startswith("sm90"))
        function(*arguments, kernel=name)


def test_merge_states_can_be_forced_too():
    out, lse = tessera.attention(Q, Q, Q, return_lse=True)
    tessera.merge_states([out], [lse], kernel="cpu_merge_r1")
    with pytest.raises(ValueError, match="cpu_merge_r1"):
        tessera.merge_states([out], [lse], kernel=PRODUCT)


def test_gradients_choose_their_own_kernel():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    q = torch.from_numpy(Q).requires_grad_()
    seen = []
    backward = tessera._ffi.attention_backward
    try:
        names = ATTENTION_BACKWARD.Inputs._fields
        tessera._ffi.attention_backward = lambda *call: seen.append(
            dict(zip(names, call, strict=False))["kernel_name"]) or backward(*call)
        tessera.attention(q, q, q, kernel=ATTENTION).sum().backward()
    finally:
        tessera._ffi.attention_backward = backward
    assert seen == [None] and q.grad.isfinite().all()
    a = torch.from_numpy(A).requires_grad_()
    tessera.matmul(a, a, activation="silu", kernel=PRODUCT).sum().backward()
    assert a.grad.isfinite().all()
