import numpy as np
import pytest
import support

import tessera
from tessera import BlockMask

LENGTHS = [(64, 64), (37, 53), (100, 30), (1, 70)]


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("block", [16, (8, 32), 128])
def test_dense_round_trip(lengths, block):
    rng = np.random.default_rng(0)
    elements = rng.random((2, 3, *lengths)) < 0.5
    elements[0, 0, :16] = True
    elements[1, 1] = False
    mask = BlockMask.from_dense(elements, block)
    np.testing.assert_array_equal(mask.to_dense(), elements)


def test_classification():
    elements = np.zeros((40, 40), bool)
    elements[:16, :16] = True  # full
    elements[32:, 32:] = True  # ragged, all elements that exist
    elements[16, 0] = True  # partial
    blocks = BlockMask.from_dense(elements, 16).block_map()[0, 0]
    np.testing.assert_array_equal(blocks, [[2, 0, 0], [1, 0, 0], [0, 0, 2]])


def test_equal_tiles_are_stored_once():
    mask = BlockMask.causal(512, 512, block=32)
    assert mask.bits.shape == (1, 32, 4)


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("left,right", [(None, 0), (10, 0), (0, 0), (5, 7), (None, None), (200, 3)])
@pytest.mark.parametrize("block", [16, (8, 32)])
def test_window(lengths, left, right, block):
    mask = BlockMask.window(*lengths, left, right, block)
    expected = support.visible(*lengths, left=left, right=right)
    np.testing.assert_array_equal(mask.to_dense()[0, 0], expected)
    same = BlockMask.from_dense(expected, block)
    np.testing.assert_array_equal(mask.block_map(), same.block_map())


@pytest.mark.parametrize("left,right", [(-1, 0), (3, -1), (-1, -1)])
def test_minus_one_is_no_limit(left, right):
    mask = BlockMask.window(37, 53, left, right, 16)
    limits = [None if limit == -1 else limit for limit in (left, right)]
    np.testing.assert_array_equal(mask.to_dense(),
                                  BlockMask.window(37, 53, *limits, 16).to_dense())


def test_mask_mod_in_chunks(monkeypatch):
    def mod(b, h, q, kv):
        return (q + b * 3 + h) % 5 >= kv % 4

    whole = BlockMask.from_mask_mod(mod, 100, 70, 16, batch=2, heads=3)
    monkeypatch.setattr("tessera.block_mask._CHUNK", 1)
    parts = BlockMask.from_mask_mod(mod, 100, 70, 16, batch=2, heads=3)
    for a, b in zip(whole.arrays, parts.arrays, strict=True):
        np.testing.assert_array_equal(a, b)
    b, h, q, kv = np.ogrid[:2, :3, :100, :70]
    np.testing.assert_array_equal(whole.to_dense(), mod(b, h, q, kv))


def test_top_k():
    scores = np.array([[1.0, 3, 3, 2], [0, 0, 0, 0]])
    blocks = BlockMask.from_top_k(scores, 2, 32, 64, block=16).block_map()[0, 0]
    np.testing.assert_array_equal(blocks, [[0, 2, 2, 0], [2, 2, 0, 0]])


def test_top_k_by_sorting():
    rng = np.random.default_rng(1)
    scores = rng.integers(0, 6, (2, 3, 7, 40)).astype(np.float32)
    scores[rng.random(scores.shape) < 0.6] = -np.inf
    scores[rng.random(scores.shape) < 0.1] = np.nan
    view = scores[:, ::-1, :, ::2]
    mask = BlockMask.from_top_k(view, 5, 7 * 16, 20 * 16, block=16)
    chosen = np.isfinite(view)
    order = np.argsort(np.where(chosen, -view, np.inf), axis=-1, kind="stable")
    want = chosen & (np.argsort(order, axis=-1, kind="stable") < 5)
    np.testing.assert_array_equal(mask.block_map() == 2, want)
    assert mask.full_indices.shape[-1] == 5
    assert mask.full_counts.min() < 5


def test_a_capacity_keeps_the_first_blocks():
    blocks = np.random.default_rng(2).random((1, 2, 5, 9)) < 0.6
    mask = BlockMask.from_blocks(blocks, 5 * 8, 9 * 8, 8, capacity=3)
    assert mask.full_indices.shape == (1, 2, 5, 3)
    np.testing.assert_array_equal(mask.block_map() == 2, blocks & (blocks.cumsum(-1) <= 3))


def test_lists_by_column():
    elements = np.random.default_rng(3).random((2, 2, 60, 50)) < 0.9
    elements[:, 0, :20] = True
    mask = BlockMask.from_dense(elements, (5, 10))
    by_column = mask.lists_by_column()
    sources = [(mask.full_counts, mask.full_indices), (mask.partial_counts, mask.partial_indices)]
    for value, (counts, rows, entries), (_, indices) in zip((2, 1), by_column, sources,
                                                            strict=True):
        there = mask.block_map() == value
        np.testing.assert_array_equal(counts, there.sum(2))
        for b, h, j in np.ndindex(*counts.shape):
            found = rows[b, h, j, : counts[b, h, j]]
            np.testing.assert_array_equal(found, np.flatnonzero(there[b, h, :, j]))
            at = entries[b, h, j, : counts[b, h, j]]
            assert (indices[b, h, found, at] == j).all()
    assert BlockMask.from_blocks(np.ones((2, 2), bool), 4, 4, 2).lists_by_column()[1] is None


def test_bigbird_is_the_seeded_pattern():
    mask = BlockMask.bigbird(256, 256, 32, half_width=1, globals=1, random=2, seed=3)
    blocks = mask.block_map()[0, 0] != 0
    np.testing.assert_array_equal(blocks, tessera.patterns.bigbird(8, 8, 1, 1, 2, 3))
    assert blocks[0].all() and blocks[:, 0].all()
    assert mask.density == blocks.mean()


@pytest.mark.parametrize("per_head", [False, True])
def test_attention_under_a_mask(per_head):
    q, k, v = (support.random(2, 70, 4, 16, seed=s) for s in range(3))
    shape = (2, 4, 70, 70) if per_head else (70, 70)
    elements = np.random.default_rng(4).random(shape) < 0.3
    elements[..., 32:64, :] = False
    unused = np.zeros(70, bool)
    unused[48:64] = True  # a block of keys that no query sees
    elements[..., unused] = False
    k[:, unused], v[:, unused] = np.nan, np.nan
    out, lse = tessera.attention(q, k, v, mask=BlockMask.from_dense(elements, 16), return_lse=True)
    seen = elements if per_head else elements[None, None]
    want = support.attention(q, k, v, seen)
    np.testing.assert_allclose(out, want[0], atol=2e-6, rtol=2e-5)
    np.testing.assert_allclose(lse, want[1], atol=2e-6, rtol=2e-5)


def test_plot():
    plt = pytest.importorskip("matplotlib")
    plt.use("Agg")
    axes = BlockMask.causal(256, 256, 64).plot()
    np.testing.assert_array_equal(axes.images[0].get_array(), np.tril(np.full((4, 4), 2)) -
                                  np.eye(4))


CONSTRUCTORS = {
    "from_mask_mod": lambda *sizes: BlockMask.from_mask_mod(lambda b, h, q, kv: q >= kv, *sizes),
    "from_blocks": lambda *sizes: BlockMask.from_blocks(np.ones((4, 4), bool), *sizes),
    "from_top_k": lambda *sizes: BlockMask.from_top_k(np.ones((4, 4)), 1, *sizes),
    "window": lambda q, kv, block: BlockMask.window(q, kv, 1, 1, block),
    "causal": BlockMask.causal,
    "bigbird": BlockMask.bigbird,
}


@pytest.mark.parametrize("name", CONSTRUCTORS)
def test_sizes_are_checked(name):
    make = CONSTRUCTORS[name]
    assert make(np.int64(64), np.int32(64), np.int64(16)).grid == (4, 4)
    assert make(64, 64, (16, np.int64(16))).grid == (4, 4)
    for block in (16.0, "16", (16, 16, 1), (16, 2.5), None, True,
                  np.array([16, 16])):
        with pytest.raises(TypeError, match=f"{name}: block: expected an integer or two, got"):
            make(64, 64, block)
    with pytest.raises(ValueError, match=f"{name}: block: expected positive sizes"):
        make(64, 64, 0)
    for length in (64.0, "64", None):
        with pytest.raises(TypeError, match=f"{name}: q_length: expected an integer, got"):
            make(length, 64, 16)
        with pytest.raises(TypeError, match=f"{name}: kv_length: expected an integer, got"):
            make(64, length, 16)
    for length in (-64, 1 << 31):
        with pytest.raises(ValueError, match=f"{name}: q_length: expected 0 to .*, got {length}"):
            make(length, 64, 16)


@pytest.mark.parametrize("limits,error", [((2.5, 0), TypeError), ((0, "3"), TypeError),
                                          ((-2, 0), ValueError), ((0, -3), ValueError)])
def test_window_limits_are_checked(limits, error):
    name = "left" if limits[1] == 0 else "right"
    with pytest.raises(error, match=f"window: {name}: expected None, -1 .*no limit.*, got"):
        BlockMask.window(64, 64, *limits, 16)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex64, object])
def test_scores_are_refused_as_blocks(dtype):
    with pytest.raises(ValueError, match="from_blocks: blocks: expected booleans or integers, "
                                         r"got .* \[1, 1, 4, 4\]; scores > threshold .* "
                                         "from_top_k takes"):
        BlockMask.from_blocks(np.ones((4, 4), dtype), 64, 64, 16)
    assert BlockMask.from_blocks(np.eye(4, dtype=np.uint8), 64, 64, 16).density == 0.25


@pytest.mark.parametrize("dtype", [np.complex64, object])
def test_scores_are_real(dtype):
    with pytest.raises(TypeError, match="from_top_k: scores: expected real numbers, got "):
        BlockMask.from_top_k(np.ones((4, 4), dtype), 1, 64, 64, 16)
    for real in (bool, np.int64, np.float16):
        assert BlockMask.from_top_k(np.ones((4, 4), real), 1, 64, 64, 16).density == 0.25


@pytest.mark.parametrize("name", ["half_width", "globals", "random", "seed"])
def test_bigbird_counts_are_checked(name):
    with pytest.raises(TypeError, match=f"bigbird: {name}: expected an integer, got 1.5"):
        BlockMask.bigbird(64, 64, 16, **{name: 1.5})


def test_capacity_is_an_integer():
    with pytest.raises(TypeError, match=r"from_blocks: capacity: expected an integer, got 1\.5"):
        BlockMask.from_blocks(np.ones((4, 4), bool), 64, 64, 16, capacity=1.5)


@pytest.mark.parametrize("name", ["batch", "heads"])
def test_mask_mod_counts_are_checked(name):
    with pytest.raises(ValueError, match=f"from_mask_mod: {name}: expected 0 or more, got -1"):
        BlockMask.from_mask_mod(lambda b, h, q, kv: q >= kv, 64, 64, 16, **{name: -1})


@pytest.mark.parametrize("device", [None, "cpu"])
def test_mask_mod_results_broadcast(device):
    torch = pytest.importorskip("torch") if device else None
    wrong = torch.ones(3, 3, dtype=torch.bool) if device else np.ones((3, 3), bool)
    with pytest.raises(ValueError, match=r"mask_mod: expected a result that broadcasts to "
                                         r"\[1, 1, 64, 64\], got \[3, 3\]"):
        BlockMask.from_mask_mod(lambda b, h, q, kv: wrong, 64, 64, 16, device=device)


@pytest.mark.parametrize("make", [
    lambda: BlockMask.from_dense(np.ma.masked_array(np.ones((4, 4), bool))),
    lambda: BlockMask.from_blocks(np.ma.masked_array(np.ones((4, 4), bool)), 64, 64, 16),
    lambda: BlockMask.from_top_k(np.ma.masked_array(np.ones((4, 4))), 1, 64, 64, 16),
])
def test_masked_arrays_are_refused(make):
    with pytest.raises(TypeError, match=r"from_\w+: \w+: expected .*, got a masked array"):
        make()


@pytest.mark.parametrize("call,message", [
    (lambda: BlockMask.from_dense(np.ones((4, 4))), "expected booleans"),
    (lambda: BlockMask.from_dense(np.ones(4, bool)), "expected booleans"),
    (lambda: BlockMask.from_dense(np.ones((4, 4), bool), 0), "positive"),
    (lambda: BlockMask.from_blocks(np.ones((2, 2), bool), 64, 64, 16), r"\[.., 4, 4\]"),
    (lambda: BlockMask.from_blocks(np.ones((4, 4), bool), 64, 64, 16, capacity=0), "capacity"),
    (lambda: BlockMask.from_top_k(np.ones((2, 4)), 1, 64, 64, 16),
     r"scores: expected \[.., 4, 4\]"),
    (lambda: BlockMask.from_top_k(np.ones((4, 4)), -1, 64, 64, 16), "k: expected 0 and more"),
])
def test_refusals(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("mask_mod,message", [
    (lambda b, h, q, kv: q - kv, "expected booleans, got (torch.)?int"),
    (lambda b, h, q, kv: True, "expected booleans .*index arrays b, h, q, kv, got bool"),
    (lambda q, kv: q >= kv, r"expected a function mask_mod\(b, h, q, kv\)"),
    (True, r"expected a function mask_mod\(b, h, q, kv\), got bool"),
    (lambda b, h, q, kv: q >= kv and q < 3, "use & and | in place of and, or"),
])
@pytest.mark.parametrize("device", [None, "cpu"])
def test_mask_mod_is_checked(mask_mod, message, device):
    if device:
        pytest.importorskip("torch")
    with pytest.raises(TypeError, match=f"from_mask_mod: mask_mod: {message}"):
        BlockMask.from_mask_mod(mask_mod, 8, 8, 4, device=device)


def test_errors_inside_a_mask_mod_are_passed_on():
    def broken(b, h, q, kv):
        return q.no_such_method()

    with pytest.raises(AttributeError, match="no_such_method"):
        BlockMask.from_mask_mod(broken, 8, 8, 4)
