import dataclasses
import re

import numpy as np
import pytest
import support

import tessera

TOLERANCE = dict(atol=2e-6, rtol=2e-5)


def tensors(q_length=37, kv_length=53, heads=4, kv_heads=2, dim=24, dim_v=17, batch=2):
    return (support.random(batch, q_length, heads, dim, seed=1),
            support.random(batch, kv_length, kv_heads, dim, seed=2),
            support.random(batch, kv_length, kv_heads, dim_v, seed=3))


def check(result, expected, **tolerance):
    for got, want in zip(result, expected, strict=True):
        np.testing.assert_allclose(np.asarray(got, np.float64), want, **(tolerance or TOLERANCE))


RULES = {
    "dense": ({}, {}),
    "causal": (dict(causal=True), dict(causal=True)),
    "window": (dict(window_left=9, window_right=3), dict(left=9, right=3)),
    "softcap": (dict(causal=True, softcap=2.0), dict(causal=True)),
    "scale": (dict(scale=0.3), {}),
}


@pytest.mark.parametrize("layout", ["blhd", "bhld"])
@pytest.mark.parametrize("rule", RULES)
def test_rules(rule, layout):
    q, k, v = tensors()
    options, seen = RULES[rule]
    expected = support.attention(q, k, v, support.visible(37, 53, **seen),
                                 scale=options.get("scale"), softcap=options.get("softcap", 0.0))
    if layout == "bhld":
        q, k, v = (x.swapaxes(1, 2) for x in (q, k, v))
    out, lse = tessera.attention(q, k, v, layout=layout, return_lse=True, **options)
    check((out if layout == "blhd" else out.swapaxes(1, 2), lse), expected)


def test_ranges_positions_and_sinks():
    q, k, v = tensors()
    begin, end = np.array([3, 0], np.int32), np.array([40, 0], np.int32)
    position = np.array([11, 5], np.int32)
    sinks = support.random(4, seed=5)
    seen = np.stack([support.visible(37, 53, causal=True, begin=b, end=e, q_position=p)
                     for b, e, p in zip(begin, end, position, strict=True)])[:, None]
    result = tessera.attention(q, k, v, causal=True, kv_begin=begin, kv_end=end,
                               q_position=position, sinks=sinks, return_lse=True)
    check(result, support.attention(q, k, v, seen, sinks=sinks))
    assert (result[0][1] == 0).all(), "a query that sees no key gives zeros"


def test_no_key_gives_minus_infinity():
    q, k, v = tensors(kv_length=0)
    out, lse = tessera.attention(q, k, v, return_lse=True)
    assert (out == 0).all() and (lse == -np.inf).all()


def test_packed():
    q = support.random(30, 4, 16)
    k, v = (support.random(50, 2, 16, seed=s) for s in (1, 2))
    q_offsets, kv_offsets = np.array([0, 11, 11, 30]), np.array([0, 20, 29, 50])
    out, lse = tessera.attention(q, k, v, causal=True, q_offsets=q_offsets, kv_offsets=kv_offsets,
                                 return_lse=True)
    assert out.shape == q.shape and lse.shape == (4, 30)
    for b in range(3):
        at, keys = slice(*q_offsets[b : b + 2]), slice(*kv_offsets[b : b + 2])
        n, m = at.stop - at.start, keys.stop - keys.start
        want = support.attention(q[None, at], k[None, keys], v[None, keys],
                                 support.visible(n, m, causal=True))
        check((out[None, at], lse[None, :, at]), want)


def test_packed_rows_after_the_last_offset_are_zero():
    q, k, v = (support.random(64, 2, 16, seed=s) for s in range(3))
    out, lse = np.full_like(q, np.nan), np.full((2, 64), np.nan, np.float32)
    tessera.attention(q, k, v, q_offsets=np.array([0, 20, 50]), kv_offsets=np.array([0, 30, 64]),
                      sinks=np.ones(2, np.float32), out=out, lse=lse)
    assert (out[50:] == 0).all() and (lse[:, 50:] == -np.inf).all()
    assert np.isfinite(out[:50]).all() and np.isfinite(lse[:, :50]).all()


def test_mask_of_packed_sequences():
    lengths, kv_lengths = (20, 37), (53, 30)
    offsets = dict(q_offsets=np.cumsum([0, *lengths]), kv_offsets=np.cumsum([0, *kv_lengths]))
    q = support.random(57, 4, 16)
    k, v = (support.random(83, 2, 16, seed=s) for s in (1, 2))
    elements = np.random.default_rng(3).random((37, 53)) < 0.5
    mask = tessera.BlockMask.from_dense(elements, (8, 16))
    out = tessera.attention(q, k, v, mask=mask, max_q_length=37, max_kv_length=53, **offsets)
    for b, (n, m) in enumerate(zip(lengths, kv_lengths, strict=True)):
        at, keys = (slice(*x[b : b + 2]) for x in offsets.values())
        want, _ = support.attention(q[None, at], k[None, keys], v[None, keys], elements[:n, :m])
        check((out[None, at],), (want,))

    def refused(message, mask, **lengths):
        with pytest.raises(ValueError, match=message):
            tessera.attention(q, k, v, mask=mask, **lengths, **offsets)

    # The mask applies to each sequence by itself.
    whole = tessera.BlockMask.from_dense(np.ones((57, 83), bool), 16)
    refused("attention: max_q_length: expected the length of the longest sequence, .* mask", whole)
    refused("attention: max_kv_length: expected the length of the", whole, max_q_length=57)
    refused("mask: made for 57 queries and 83 keys, got 37 and 53 in the longest sequence", whole,
            max_q_length=37, max_kv_length=53)
    refused("mask: made for 37 queries and 53 keys, got 37 and 60 in the longest sequence", mask,
            max_q_length=37, max_kv_length=60)
    # A single sequence has the length of the tensors.
    tessera.attention(q, k, v, mask=whole, q_offsets=np.array([0, 57]),
                      kv_offsets=np.array([0, 83]))


@pytest.mark.parametrize("layout", ["blhd", "bhld"])
def test_mask_over_pages(layout):
    def laid(x):
        return x.swapaxes(1, 2) if layout == "bhld" else x

    q, pages, values = (support.random(2, 37, 4, 16), support.random(6, 16, 2, 16, seed=1),
                        support.random(6, 16, 2, 16, seed=2))
    table, end = np.array([[4, 0, 2], [1, 5, 3]], np.int32), np.array([40, 33])
    given = dict(page_table=table, kv_end=end, layout=layout)
    elements = np.random.default_rng(3).random((37, 48)) < 0.5
    k, v = (x[table].reshape(2, 48, 2, 16) for x in (pages, values))
    for keys in (48, 40):
        mask = tessera.BlockMask.from_dense(elements[:, :keys], 8)
        out = tessera.attention(laid(q), laid(pages), laid(values), mask=mask, **given,
                                max_kv_length=0 if keys == 48 else keys)
        for b in range(2):
            seen = support.visible(37, 48, end=end[b], elements=elements)
            want, _ = support.attention(q[b : b + 1], k[b : b + 1], v[b : b + 1], seen)
            check((laid(out)[b : b + 1],), (want,))
    with pytest.raises(ValueError, match="mask: made for 37 queries and 32 keys, got 37 and 48 in"):
        tessera.attention(laid(q), laid(pages), laid(values), **given,
                          mask=tessera.BlockMask.causal(37, 32))
    with pytest.raises(ValueError, match=r"kv_end: expected 0 to 39, .* got 40 for sequence 0"):
        tessera.attention(laid(q), laid(pages), laid(values), **given, max_kv_length=39)


def test_batch_invariant_results_are_those_of_a_sequence_alone():
    q, k, v = (support.random(3, n, 4, 16, seed=n) for n in (5, 90, 91))
    v = v[:, :90]
    end = np.array([90, 3, 41])
    options = dict(causal=True, batch_invariant=True, return_lse=True)
    out, lse = tessera.attention(q, k, v, kv_end=end, **options)
    for b in range(3):
        alone = tessera.attention(q[b : b + 1], k[b : b + 1], v[b : b + 1], kv_end=end[b : b + 1],
                                  **options)
        assert np.array_equal(alone[0], out[b : b + 1]) and np.array_equal(alone[1], lse[b : b + 1])
    explained = tessera.explain("attention", q, k, v, batch_invariant=True)
    assert "batch-invariant" in explained["problem"]


def test_pages():
    pages = support.random(6, 8, 2, 16, seed=1)
    values = support.random(6, 8, 2, 16, seed=2)
    table = np.array([[4, 0, 2], [1, 5, 3]], np.int32)
    end = np.array([19, 8], np.int32)
    q = support.random(2, 3, 4, 16)
    out = tessera.attention(q, pages, values, causal=True, page_table=table, kv_end=end)
    for b in range(2):
        k = pages[table[b]].reshape(-1, 2, 16)[None, : end[b]]
        v = values[table[b]].reshape(-1, 2, 16)[None, : end[b]]
        want, _ = support.attention(q[b : b + 1], k, v, support.visible(3, end[b], causal=True))
        check((out[b : b + 1],), (want,))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_narrow_dtypes(dtype):
    if dtype == "bfloat16":
        dtype = pytest.importorskip("ml_dtypes").bfloat16
    q, k, v = (x.astype(dtype) for x in tensors())
    out = tessera.attention(q, k, v, causal=True)
    assert out.dtype == np.dtype(dtype)
    want, _ = support.attention(*(x.astype(np.float64) for x in (q, k, v)),
                                support.visible(37, 53, causal=True))
    check((out,), (want,), atol=2e-2, rtol=2e-2)


def test_fp8_on_gpus_is_refused_by_name():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    q, k, v = (x.astype(ml_dtypes.float8_e4m3fn) for x in tensors())
    assert tessera.attention(q, k, v).dtype == ml_dtypes.bfloat16
    answer = tessera.explain(tessera.attention, q, k, v, device="h100")
    refusal = r"e4m3->bf16.*\n(.*\n)*.*dtype e4m3 is not supported"
    assert not answer["supported"] and re.search(refusal, str(answer))


def test_strides_and_read_only_arrays():
    q, k, v = tensors()
    expected = tessera.attention(q, k, v)
    spread = np.zeros((2, 37, 4, 48), np.float32)[..., ::2]
    spread[...] = q
    k.flags.writeable = False
    reverse = v[:, ::-1][:, ::-1]
    np.testing.assert_array_equal(tessera.attention(spread, k, reverse), expected)


@pytest.mark.parametrize("heads", [1, 2, 4])
def test_mask_per_kv_head(heads):
    q, k, v = tensors()
    elements = np.random.default_rng(0).random((2, heads, 37, 53)) < 0.4
    mask = tessera.BlockMask.from_dense(elements, (8, 16))
    assert mask.full_counts.shape[:2] == (2, heads)
    every = elements.repeat(4 // heads, 1)
    result = tessera.attention(q, k, v, mask=mask, return_lse=True)
    check(result, support.attention(q, k, v, every))
    repeated = tessera.BlockMask.from_dense(every, (8, 16))
    others = tessera.attention(q, k, v, mask=repeated, return_lse=True)
    for got, same in zip(result, others, strict=True):
        np.testing.assert_array_equal(got, same)


def test_mask_of_other_heads_is_refused():
    mask = tessera.BlockMask.from_dense(np.ones((1, 3, 37, 53), bool), 16)
    with pytest.raises(ValueError, match="heads = 4 or kv_heads = 2 or 1, rows"):
        tessera.attention(*tensors(), mask=mask)


def test_out_and_lse_are_written_in_place():
    q, k, v = tensors()
    out, lse = np.full((2, 37, 4, 17), np.nan, np.float32), np.full((2, 4, 37), np.nan, np.float32)
    assert tessera.attention(q, k, v, out=out, lse=lse) is out
    check((out, lse), support.attention(q, k, v, True))


def test_same_bits_every_time():
    q, k, v = tensors()
    first = tessera.attention(q, k, v, causal=True)
    for _ in range(5):
        np.testing.assert_array_equal(tessera.attention(q, k, v, causal=True), first)


@pytest.mark.parametrize("layout", ["blhd", "bhld"])
def test_merge_states(layout):
    q, k, v = tensors()
    sinks = support.random(4, seed=7)
    expected = support.attention(q, k, v, True, sinks=sinks)
    if layout == "bhld":
        q, k, v = (x.swapaxes(1, 2) for x in (q, k, v))
    axis = 1 if layout == "blhd" else 2
    parts = [tessera.attention(q, np.take(k, keys, axis), np.take(v, keys, axis), layout=layout,
                               return_lse=True) for keys in (range(0, 20), range(20, 20),
                                                             range(20, 53))]
    out, lse = tessera.merge_states(*zip(*parts, strict=True), sinks=sinks, layout=layout)
    check((out if layout == "blhd" else out.swapaxes(1, 2), lse), expected)


# ---- Bad input ---------------------------------------------------------------------------------


def test_float64_is_refused_by_name():
    q = np.zeros((1, 4, 2, 8))
    with pytest.raises(TypeError, match=r"attention: q: .*float32.*got float64; convert it first"):
        tessera.attention(q, q, q)


@pytest.mark.parametrize("x", ["text", [1.0], None, 3])
def test_other_objects_are_refused(x):
    with pytest.raises(TypeError, match="expected a NumPy array or a PyTorch tensor"):
        tessera.attention(x, x, x)


def test_other_objects_beside_arrays_are_refused():
    q, k, v = tensors()
    for x, kind in (("text", "str"), ([1.0], "list"), (None, "NoneType")):
        for name in ("k", "v"):
            with pytest.raises(TypeError, match=f"attention: {name}: expected a NumPy array or a "
                                                f"PyTorch tensor, got {kind}"):
                tessera.attention(**{**dict(q=q, k=k, v=v), name: x})
    with pytest.raises(TypeError, match="attention: scale: expected a number, got str"):
        tessera.attention(q, k, v, scale="0.1")
    with pytest.raises(TypeError, match="attention: threads: expected an integer, got str"):
        tessera.attention(q, k, v, threads="2")
    with pytest.raises(TypeError, match="attention: sinks: expected a tensor or None, got list"):
        tessera.attention(q, k, v, sinks=[1.0])


@pytest.mark.parametrize("name", ["q", "k", "v", "sinks", "out"])
def test_masked_arrays_are_refused(name):
    q, k, v = tensors()
    given = dict(q=q, k=k, v=v, sinks=np.zeros(4, np.float32), out=np.zeros((2, 37, 4, 17), "f4"))
    given[name] = np.ma.masked_array(given[name])
    with pytest.raises(TypeError, match=f"attention: {name}: expected .*, got a masked array"):
        tessera.attention(**given)


@pytest.mark.parametrize("name,dtype,expected", [
    ("q", np.float64, "float32, float16, bfloat16 or float8_e4m3fn, got float64"),
    ("k", np.complex64, "float32, float16, bfloat16 or float8_e4m3fn, got complex64"),
    ("sinks", np.float64, "float32, float16 or bfloat16, got float64"),
    ("kv_end", np.float64, "int32 or int64, got float64"),
    ("out", np.float64, "float32, float16 or bfloat16, got float64"),
    ("k", ">f4", r"native .*got dtype\('>f4'\).*; convert it first: x.astype\('float32'\)"),
    ("kv_end", ">i4", r"native .*got dtype\('>i4'\).*; convert it first: x.astype\('int32'\)"),
    ("v", object, r"numbers, got dtype\('O'\); convert it first: x.astype\('float32'\)"),
])
def test_dtypes_are_refused_by_name(name, dtype, expected):
    q, k, v = tensors()
    given = dict(q=q, k=k, v=v, sinks=np.zeros(4, np.float32), kv_end=np.full(2, 53, np.int32),
                 out=np.zeros((2, 37, 4, 17), np.float32))
    given[name] = given[name].astype(dtype)
    with pytest.raises(TypeError, match=f"attention: {name}: expected .*{expected}"):
        tessera.attention(**given)


def test_minus_one_is_no_limit():
    q, k, v = tensors()
    for limits in ((-1, 3), (3, -1), (-1, -1)):
        left, right = (None if limit == -1 else limit for limit in limits)
        got = tessera.attention(q, k, v, window_left=limits[0], window_right=limits[1])
        want, _ = support.attention(q, k, v, support.visible(37, 53, left=left, right=right))
        check((got,), (want,))
    with pytest.raises(ValueError, match=r"attention: window_left: expected .*got -2"):
        tessera.attention(q, k, v, window_left=-2)


def test_names_of_mask_arrays_are_those_of_the_class():
    q, k, v = tensors()
    mask = tessera.BlockMask.causal(37, 53, 16)
    for wrong in (mask.full_counts[:, :, :2], mask.full_counts.astype(float)):
        with pytest.raises((TypeError, ValueError), match=r"attention: mask\.full_counts: "):
            tessera.attention(q, k, v, mask=dataclasses.replace(mask, full_counts=wrong))


def test_merge_states_needs_lists():
    out, lse = np.zeros((2, 4, 2, 8), np.float32), np.zeros((2, 2, 4), np.float32)
    with pytest.raises(TypeError, match="merge_states: outs: expected a list of tensors, one for "
                                        "each part, got a single ndarray"):
        tessera.merge_states(out, lse)
    with pytest.raises(TypeError, match="merge_states: lses: expected a list"):
        tessera.merge_states([out, out], lse)


BAD = {
    "dtypes differ": (dict(k=np.float16), "attention: k: expected dtype f32"),
    "integers": (dict(v=np.int32), "attention: v: expected dtype f32"),
}


@pytest.mark.parametrize("case", BAD)
def test_dtypes(case):
    q, k, v = tensors()
    given = dict(q=q, k=k, v=v)
    change, message = BAD[case]
    for name, dtype in change.items():
        given[name] = given[name].astype(dtype)
    with pytest.raises(ValueError, match=message):
        tessera.attention(**given)


def test_shapes_and_options():
    q, k, v = tensors()
    with pytest.raises(ValueError, match="attention: v: expected"):
        tessera.attention(q, k, v[:, :5])
    with pytest.raises(ValueError, match=r"attention: softcap: .*got -1"):
        tessera.attention(q, k, v, softcap=-1.0)
    with pytest.raises(ValueError, match="layout: expected 'blhd' or 'bhld', got 'bshd'"):
        tessera.attention(q, k, v, layout="bshd")
    with pytest.raises(ValueError, match="attention: q: expected"):
        tessera.attention(q[0, 0, 0], k, v)
    with pytest.raises(TypeError, match="attention: window_left: expected an integer"):
        tessera.attention(q, k, v, window_left=1.5)
    with pytest.raises(TypeError, match=r"mask: expected a tessera\.BlockMask, got numpy\.ndarray"):
        tessera.attention(q, k, v, mask=np.ones((37, 53), bool))
    with pytest.raises(ValueError, match="mask: made for 64 queries and 64 keys, got 37 and 53"):
        tessera.attention(q, k, v, mask=tessera.BlockMask.causal(64, 64))
    with pytest.raises(ValueError, match="backend"):
        tessera.attention(q, k, v, backend="sm70")
    with pytest.raises(NotImplementedError, match="rejected"):
        tessera.attention(q, k, v, backend="sm90")


def test_read_only_out():
    q, k, v = tensors()
    out = np.zeros((2, 37, 4, 17), np.float32)
    out.flags.writeable = False
    with pytest.raises(ValueError, match=r"attention: out: .*read-only"):
        tessera.attention(q, k, v, out=out)


def test_byte_order():
    q, k, v = tensors()
    with pytest.raises(TypeError, match="native"):
        tessera.attention(q.astype(">f4"), k, v)


def test_failed_call_leaves_out_untouched():
    q, k, v = tensors()
    out = np.full((2, 37, 4, 17), 7, np.float32)
    with pytest.raises(ValueError):
        tessera.attention(q, k, v[:, :5], out=out)
    assert (out == 7).all()
