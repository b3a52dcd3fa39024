"""A reference of its own in float64, and what tests share. Nothing here uses tessera."""

import numpy as np


def visible(q_length, kv_length, *, causal=False, left=None, right=None, begin=0, end=None,
            q_position=None, kv_position=0, elements=None):
    """Booleans [q_length, kv_length]: the rules of attention, element by element."""
    end = kv_length if end is None else end
    if q_position is None:
        q_position = kv_position + end - q_length
    seen = np.zeros((q_length, kv_length), bool)
    for i in range(q_length):
        for j in range(max(0, begin), min(end, kv_length)):
            d = (kv_position + j) - (q_position + i)
            seen[i, j] = ((not causal or d <= 0) and (left is None or d >= -left)
                          and (right is None or d <= right)
                          and (elements is None or elements[i, j]))
    return seen


def attention(q, k, v, seen, *, scale=None, softcap=0.0, sinks=None):
    """out [b, l, h, d] and lse [b, h, l] in float64; seen broadcasts to [b, h, q, kv]."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    heads, kv_heads = q.shape[2], k.shape[2]
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    out = np.zeros((*q.shape[:3], v.shape[-1]))
    lse = np.full((q.shape[0], heads, q.shape[1]), -np.inf)
    seen = np.broadcast_to(seen, (q.shape[0], heads, q.shape[1], k.shape[1]))
    for b, h, i in np.ndindex(q.shape[0], heads, q.shape[1]):
        g = h // (heads // kv_heads)
        keys = np.flatnonzero(seen[b, h, i])
        scores = k[b, keys, g] @ q[b, i, h] * scale
        if softcap:
            scores = softcap * np.tanh(scores / softcap)
        every = scores if sinks is None else np.append(scores, float(sinks[h]))
        if not len(every):
            continue
        top = every.max()
        lse[b, h, i] = top + np.log(np.exp(every - top).sum())
        out[b, i, h] = np.exp(scores - lse[b, h, i]) @ v[b, keys, g]
    return out, lse


def random(*shape, seed=0, dtype=np.float32):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def sparse(rows, cols, block, density=0.4, seed=0):
    """A dense float32 matrix with some blocks empty, its last row of blocks among them."""
    rng = np.random.default_rng(seed)
    r, c = block
    keep = rng.random((rows // r, cols // c)) < density
    keep[0, 0], keep[-1] = True, False
    return (rng.standard_normal((rows, cols)) * np.kron(keep, np.ones(block))).astype(np.float32)


ATTENTION_KERNEL = "src/kernels/cuda/sm90/attention/launch.cuh"
PRODUCT_KERNEL = "src/kernels/cuda/sm90/matmul/launch.cuh"


def kernel_tree(folder):
    """The least that has kernels of both kinds: a row each, and what they share."""
    rows = "".join(f'{{.name = "sm90_{op}_64", .ops = ops({{Op::{op}}}), .tile = {{.m = 64}},\n'
                   ' .measured = "quickly"},\n' for op in ("attention", "matmul"))
    files = {
        "src/select/sm90_rows.hpp": rows, "src/select/sm80_rows.hpp": "",
        "src/select/tile_table.hpp": "",
        "cmake/TesseraCuda.cmake": "", "cmake/row.cu.in": '#include "@folder@/launch.cuh"\n',
        "src/kernels/cuda/prepare/mask_lists.cu": "", "src/kernels/cuda/prepare/transpose.cu": "",
        "src/kernels/cuda/spgemm/order.cu": "", "src/kernels/cuda/spgemm/symbolic.cu": "",
        ATTENTION_KERNEL: '#include <cuda.h>\n#include "src/cuda/tile/map.hpp"\n'
                          '#include "src/plan/attention.hpp"\n',
        PRODUCT_KERNEL: '#include "src/cuda/tile/map.hpp"\n',
        "src/cuda/tile/map.hpp": "", "src/cuda/tile/map.cpp": '#include "src/plan/attention.hpp"\n',
        "src/plan/attention.hpp": "", "src/plan/attention.cpp": "",
        "src/kernels/cuda/README.md": "prose", "src/plan/other.cpp": "",
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder
