"""A float64 reference and helpers of the tests. Nothing here uses tessera."""

import importlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]


def tool(name):
    """A program of tools/ as a module. Where there is no source tree the test file is skipped."""
    if not (ROOT / "tools").is_dir():
        pytest.skip("runs from the source tree alone", allow_module_level=True)
    if str(ROOT / "tools") not in sys.path:
        sys.path.insert(0, str(ROOT / "tools"))
    return importlib.import_module(name)


def visible(q_length, kv_length, *, causal=False, left=None, right=None, begin=0, end=None,
            q_position=None, kv_position=0, elements=None):
    """Booleans [q_length, kv_length]: which key each query sees, element by element."""
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
    """A dense float32 matrix with some empty blocks; its last row of blocks is empty."""
    rng = np.random.default_rng(seed)
    r, c = block
    keep = rng.random((rows // r, cols // c)) < density
    keep[0, 0], keep[-1] = True, False
    return (rng.standard_normal((rows, cols)) * np.kron(keep, np.ones(block))).astype(np.float32)


# The kernels of an invented tree, as machine_code.json has them.
ATTENTION_ROW, PRODUCT_ROW, OTHER_ROW = "attention_row", "product_row", "sm90_kernel_64"
KERNELS = {row: {"kernel<__half>": "1" * 16, "kernel<__nv_bfloat16>": place * 16}
           for row, place in ((ATTENTION_ROW, "2"), (PRODUCT_ROW, "3"), (OTHER_ROW, "4"),
                              ("prepare/mask_lists", "5"))}


def kernel_tree(folder):
    """A minimal source tree with these kernels."""
    (folder / "src" / "kernels").mkdir(parents=True, exist_ok=True)
    (folder / "bench").mkdir(exist_ok=True)
    write_kernels(folder, KERNELS)
    return folder


def write_kernels(folder, kernels):
    (folder / "bench" / "machine_code.json").write_text(
        json.dumps({"toolkit": "99.0", "kernels": kernels}))


def change_kernel(folder, row, code="f" * 16):
    """Changes the machine code of a row's kernels, for all dtypes."""
    write_kernels(folder, {**KERNELS, row: dict.fromkeys(KERNELS[row], code)})


def page_tree(folder, **pages):
    """A tree with kernels and pages, {name: text}, without a result."""
    for name in ("bench/results", "docs"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for name, text in pages.items():
        page = folder / ("README.md" if name == "readme" else f"docs/{name}.md")
        page.write_text(text)
    return kernel_tree(folder)


def marked(*names, kind="table"):
    """A page's marks for tables or pictures."""
    return "".join(f"<!-- {kind}: {name} -->\n<!-- end -->\n" for name in names)
