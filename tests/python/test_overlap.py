"""Outputs that share memory with another argument are refused, for NumPy and PyTorch alike."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import support

import tessera


def from_numpy(array: np.ndarray) -> Any:
    torch = pytest.importorskip("torch")
    return torch.from_numpy(array)


@pytest.fixture(params=["numpy", "torch"])
def make(request: pytest.FixtureRequest) -> Callable[[np.ndarray], Any]:
    return from_numpy if request.param == "torch" else lambda array: array


def refused(message: str) -> Any:
    return pytest.raises(ValueError, match=f"{message} memory of its own")


def test_attention(make):
    q, k, v = (make(x) for x in support.random(3, 1, 8, 2, 4))
    before = np.asarray(k).copy()
    for name, x in (("q", q), ("k", k), ("v", v)):
        with refused(f"attention: out: shares memory with {name}; give out"):
            tessera.attention(q, k, v, out=x)
    room = make(np.zeros((1, 8, 2, 4), np.float32))
    with refused("attention: lse: shares memory with out; give lse"):
        tessera.attention(q, k, v, out=room, lse=room.reshape(-1)[:16].reshape(1, 2, 8))
    with refused("attention: out: shares memory with q; give out"):
        tessera.attention(q, q, q, out=q, layout="bhld", causal=True)
    np.testing.assert_array_equal(np.asarray(k), before)


def test_attention_in_one_packed_array(make):
    packed = support.random(1, 8, 4, 2, 4)
    expected = tessera.attention(*(packed[:, :, i].copy() for i in range(3)))
    packed = make(packed)
    q, k, v, out = (packed[:, :, i] for i in range(4))
    assert tessera.attention(q, k, v, out=out) is out
    np.testing.assert_array_equal(np.asarray(out), expected)


def test_matmul(make):
    a, b, c = (make(x) for x in support.random(3, 6, 6))
    with refused("matmul: out: shares memory with a; give out"):
        tessera.matmul(a, b, out=a)
    with refused("matmul: out: shares memory with b; give out"):
        tessera.matmul(a, b, out=b.T)
    with refused(r"matmul: out: shares memory with c; give out"):
        tessera.matmul(a, b, c=c.T, beta=1, out=c)
    expected = tessera.matmul(a, b, c=c, beta=0.5)
    assert tessera.matmul(a, b, c=c, beta=0.5, out=c) is c
    np.testing.assert_array_equal(np.asarray(c), np.asarray(expected))


def test_matmul_between_columns(make):
    whole = support.random(6, 12)
    b = make(support.random(6, 6, seed=1))
    expected = tessera.matmul(make(whole[:, ::2].copy()), b)
    whole = make(whole)
    tessera.matmul(whole[:, ::2], b, out=whole[:, 1::2])
    np.testing.assert_array_equal(np.asarray(whole[:, 1::2]), np.asarray(expected))
    with refused("matmul: out: shares memory with a; give out"):
        tessera.matmul(whole[:, ::2], b, out=whole[:, 4:10])


def test_merge_states(make):
    outs = [make(x) for x in support.random(2, 2, 5, 3, 4)]
    lses = [make(x) for x in support.random(2, 2, 3, 5, seed=1)]
    room = make(support.random(3, 5, 3, 4))
    with refused(r"merge_states: out: shares memory with outs\[0\]; give out"):
        tessera.merge_states([room[:2], outs[1]], lses, out=room[1:])
    expected = tessera.merge_states(outs, lses)
    out, lse = tessera.merge_states(outs, lses, out=outs[1], lse=lses[0])
    assert out is outs[1] and lse is lses[0]
    np.testing.assert_array_equal(np.asarray(out), np.asarray(expected[0]))
    np.testing.assert_array_equal(np.asarray(lse), np.asarray(expected[1]))
