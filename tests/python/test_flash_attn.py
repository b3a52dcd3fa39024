"""tessera.compat.flash_attn against attention written out in PyTorch."""

import inspect

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch_support import close, double, gradients, reference, seen  # noqa: E402

import tessera  # noqa: E402
from tessera.compat import flash_attn as fa  # noqa: E402


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def normal(*shape, dtype=torch.float32, grad=False):
    return torch.randn(*shape, dtype=dtype).requires_grad_(grad)


def rules(causal, window):
    left, right = (None if side < 0 else side for side in window)
    return {"causal": causal, "left": left, "right": right}


MASKS = [(False, (-1, -1)), (True, (-1, -1)), (False, (3, 2)), (True, (4, 0)), (False, (-1, 1)),
         (True, (5, 7)), (False, (0, 0)), (False, (2, -1))]


@pytest.mark.parametrize(("causal", "window"), MASKS)
@pytest.mark.parametrize(("q_length", "kv_length"), [(7, 7), (3, 11), (11, 4), (1, 9)])
def test_masks_count_from_the_bottom_right(causal, window, q_length, kv_length):
    q, k, v = normal(2, q_length, 4, 16), *normal(2, 2, kv_length, 2, 16)
    out, lse = fa.flash_attn_func(q, k, v, causal=causal, window_size=window, return_lse=True)
    want, want_lse = reference(q, k, v, seen(q_length, kv_length, **rules(causal, window)))
    close(out, want)
    close(lse, want_lse)


@pytest.mark.parametrize("causal", [False, True])
def test_gradients_of_dense_and_packed_forms(causal):
    q, k, v = normal(2, 6, 4, 16, grad=True), normal(2, 9, 2, 16, grad=True), normal(
        2, 9, 2, 16, grad=True)
    weight = normal(2, 6, 4, 16)
    options = {"softmax_scale": 0.3, "causal": causal, "softcap": 2.0}
    q64, k64, v64 = double(q, k, v)
    want, _ = reference(q64, k64, v64, seen(6, 9, causal=causal), softcap=2.0, scale=0.3)
    wanted = gradients([want], [weight], (q64, k64, v64))
    for out in (fa.flash_attn_func(q, k, v, **options),
                fa.flash_attn_func(q, k, v, 0.0, 0.3, causal, (-1, -1), 2.0, None, True),
                fa.flash_attn_kvpacked_func(q, torch.stack([k, v], 2), **options)):
        close(out, want)
        for got, one in zip(gradients([out], [weight], (q, k, v)), wanted, strict=True):
            close(got, one)


def test_qkvpacked():
    qkv = normal(2, 5, 3, 4, 16, grad=True)
    out = fa.flash_attn_qkvpacked_func(qkv, causal=True)
    (whole,) = double(qkv)
    want, _ = reference(*whole.unbind(2), seen(5, 5, causal=True))
    close(out, want)
    weight = normal(2, 5, 4, 16)
    (got,), (wanted,) = gradients([out], [weight], qkv), gradients([want], [weight], whole)
    close(got, wanted)


def offsets(lengths):
    return torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32)


Q_LENGTHS, KV_LENGTHS = [3, 0, 7, 1], [5, 4, 7, 0]


def by_sequence(q, k, v, q_lengths, kv_lengths, **masks):
    """out [total, h, d] and lse [h, total] of packed sequences."""
    outs, lses = [], []
    for one, keys, values in zip(q.split(q_lengths), k.split(kv_lengths), v.split(kv_lengths),
                                 strict=True):
        out, lse = reference(one[None], keys[None], values[None],
                             seen(len(one), len(keys), **masks))
        outs.append(out[0])
        lses.append(lse[0])
    return torch.cat(outs), torch.cat(lses, 1)


@pytest.mark.parametrize(("causal", "window"), MASKS)
def test_packed_sequences(causal, window):
    q, k, v = (normal(sum(n), h, 16, grad=True) for n, h in
               ((Q_LENGTHS, 4), (KV_LENGTHS, 2), (KV_LENGTHS, 2)))
    leaves = (q, k, v)
    given = (offsets(Q_LENGTHS), offsets(KV_LENGTHS), 7, 7)
    out, lse, probabilities = fa.flash_attn_varlen_func(
        q, k, v, *given, causal=causal, window_size=window, return_attn_probs=True)
    assert probabilities.numel() == 0
    doubles = double(*leaves)
    want, want_lse = by_sequence(*doubles, Q_LENGTHS, KV_LENGTHS, **rules(causal, window))
    close(out, want)
    close(lse, want_lse)
    weight = normal(*out.shape)
    wanted = gradients([want], [weight], doubles)
    packed = fa.flash_attn_varlen_kvpacked_func(q, torch.stack([k, v], 1), *given, causal=causal,
                                                window_size=window)
    for result in (out, packed):
        close(result, want)
        for got, one in zip(gradients([result], [weight], leaves), wanted, strict=True):
            close(got, one)


def test_varlen_qkvpacked():
    qkv = normal(sum(Q_LENGTHS), 3, 4, 16)
    out = fa.flash_attn_varlen_qkvpacked_func(qkv, offsets(Q_LENGTHS), 7, causal=True)
    want, _ = by_sequence(*qkv.unbind(1), Q_LENGTHS, Q_LENGTHS, causal=True)
    close(out, want)


def test_used_keys_of_packed_sequences():
    q, k, v = normal(6, 4, 16), *normal(2, 10, 2, 16)
    k[3:5], v[8:] = torch.nan, torch.nan  # behind the used keys of each sequence
    used = torch.tensor([3, 3], dtype=torch.int32)
    out = fa.flash_attn_varlen_func(q, k, v, offsets([2, 4]), offsets([5, 5]), 4, 5,
                                    seqused_k=used, causal=True)
    want, _ = by_sequence(q, torch.cat([k[:3], k[5:8]]), torch.cat([v[:3], v[5:8]]), [2, 4], [3, 3],
                          causal=True)
    close(out, want)


def test_sinks():
    q, k, v, sinks = normal(1, 5, 4, 16), *normal(2, 1, 5, 4, 16), normal(4)
    out = fa.flash_attn_func(q, k, v, learnable_sink=sinks)
    close(out, reference(q, k, v, seen(5, 5), sinks=sinks)[0])


def test_results_are_repeatable_and_come_in_flash_attns_forms():
    q, k, v = normal(3, 1, 40, 4, 16, dtype=torch.bfloat16)
    one = fa.flash_attn_func(q, k, v, deterministic=True, num_splits=3, pack_gqa=True, sm_margin=8)
    assert isinstance(one, torch.Tensor) and one.dtype == torch.bfloat16
    assert torch.equal(one, fa.flash_attn_func(q, k, v))
    out, lse, probabilities = fa.flash_attn_func(q, k, v, return_attn_probs=True)
    assert torch.equal(out, one) and lse.dtype == torch.float32 and lse.shape == (1, 4, 40)
    assert probabilities.numel() == 0


def test_compiles_without_graph_breaks():
    q, k, v = normal(3, 1, 24, 4, 16)
    run = torch.compile(lambda *x: fa.flash_attn_func(*x, causal=True, window_size=(8, 0)),
                        fullgraph=True, backend="aot_eager")
    assert torch.equal(run(q, k, v), fa.flash_attn_func(q, k, v, causal=True, window_size=(8, 0)))


# ---- Caches ------------------------------------------------------------------------------------


PAGE, LENGTHS = 4, [5, 0, 9]


def pages_of(cache, table):
    """The same cache in pages; NaN in those that the table does not name."""
    batch, capacity, heads, dim = cache.shape
    pages = torch.full((int(table.max()) + 3, PAGE, heads, dim), torch.nan)
    pages[table.long()] = cache.reshape(batch, capacity // PAGE, PAGE, heads, dim)
    return pages


def caches(capacity=16):
    k, v = normal(2, 3, capacity, 2, 16)
    for x in (k, v):
        for row, length in zip(x, LENGTHS, strict=True):
            row[length:] = torch.nan  # what is not in the cache is never read
    table = torch.randperm(3 * capacity // PAGE)[: 3 * capacity // PAGE].reshape(3, -1).int()
    return k, v, table


def wanted(q, k, v, lengths, begin=(0, 0, 0), **masks):
    outs, lses = [], []
    for i, length in enumerate(lengths):
        keys = slice(begin[i], length)
        out, lse = reference(q[i : i + 1], k[i : i + 1, keys], v[i : i + 1, keys],
                             seen(q.shape[1], max(0, length - begin[i]), **masks))
        outs.append(out)
        lses.append(lse)
    return torch.cat(outs), torch.cat(lses)


@pytest.mark.parametrize("paged", [False, True])
@pytest.mark.parametrize(("causal", "window"), MASKS)
@pytest.mark.parametrize("new", [0, 1, 3])
def test_cache(paged, causal, window, new):
    k, v, table = caches()
    q = normal(3, max(new, 2), 4, 16)
    fresh = normal(2, 3, new, 2, 16) if new else (None, None)
    lengths = torch.tensor(LENGTHS, dtype=torch.int32)
    given = [pages_of(x, table) if paged else x.clone() for x in (k, v)]
    out, lse = fa.flash_attn_with_kvcache(
        q, *given, *fresh, cache_seqlens=lengths, block_table=table if paged else None,
        causal=causal, window_size=window, num_splits=0, return_softmax_lse=True)
    for x, more in zip((k, v), fresh, strict=True):
        for i, length in enumerate(LENGTHS if new else ()):
            x[i, length : length + new] = more[i]
    want, want_lse = wanted(q, k, v, [n + new for n in LENGTHS], **rules(causal, window))
    close(out, want)
    close(lse, want_lse)
    assert lengths.tolist() == LENGTHS
    for x, cache in zip((k, v), given, strict=True):  # and nothing else is written
        held = cache[table.long()].reshape(x.shape) if paged else cache
        torch.testing.assert_close(held, x, rtol=0, atol=0, equal_nan=True)
        if paged:
            unused = [page for page in range(len(cache)) if page not in table]
            assert unused and cache[unused].isnan().all()


def test_rows_of_a_contiguous_cache_and_left_padding():
    k, v, _ = caches()
    rows = torch.tensor([2, 0], dtype=torch.int32)
    q, lengths = normal(2, 2, 4, 16), torch.tensor([9, 5], dtype=torch.int32)
    out = fa.flash_attn_with_kvcache(q, k, v, cache_seqlens=lengths, cache_batch_idx=rows,
                                     causal=True)
    close(out, wanted(q, k[rows.long()], v[rows.long()], [9, 5], causal=True)[0])
    fresh = normal(2, 2, 1, 2, 16)
    fa.flash_attn_with_kvcache(q[:, :1], k, v, *fresh, cache_seqlens=lengths, cache_batch_idx=rows)
    assert torch.equal(k[2, 9], fresh[0, 0, 0]) and torch.equal(v[0, 5], fresh[1, 1, 0])
    pad = torch.tensor([2, 0, 4], dtype=torch.int32)
    q = normal(3, 2, 4, 16)
    out = fa.flash_attn_with_kvcache(q, k, v, cache_seqlens=torch.tensor(LENGTHS).int(),
                                     cache_leftpad=pad, causal=True, window_size=(2, 0))
    close(out, wanted(q, k, v, LENGTHS, pad.tolist(), causal=True, left=2)[0])


def test_one_length_for_all_and_a_full_cache():
    q, k, v = normal(2, 3, 4, 16), *normal(2, 2, 8, 2, 16)
    for given, length in ((None, 8), (5, 5)):
        out = fa.flash_attn_with_kvcache(q, k, v, cache_seqlens=given, causal=True)
        close(out, wanted(q, k, v, [length] * 2, causal=True)[0])


@pytest.mark.parametrize("paged", [False, True])
def test_packed_queries_over_a_cache(paged):
    k, v, table = caches()
    q = normal(sum([2, 0, 3]), 4, 16)
    given = [pages_of(x, table) if paged else x for x in (k, v)]
    lengths = torch.tensor(LENGTHS, dtype=torch.int32)
    more = {"page_table": table} if paged else {}
    out = fa.flash_attn_with_kvcache(q, *given, cache_seqlens=lengths, causal=True,
                                     cu_seqlens_q=offsets([2, 0, 3]), max_seqlen_q=3, **more)
    keys, values = (torch.cat([x[i, :n] for i, n in enumerate(LENGTHS)]) for x in (k, v))
    close(out, by_sequence(q, keys, values, [2, 0, 3], LENGTHS, causal=True)[0])
    if paged:
        same = fa.flash_attn_varlen_func(q, *given, offsets([2, 0, 3]), offsets(LENGTHS), 3, 9,
                                         causal=True, block_table=table)
        assert torch.equal(same, out)
        used = fa.flash_attn_varlen_func(q, *given, offsets([2, 0, 3]), None, 3, 9, causal=True,
                                         page_table=table, seqused_k=lengths)
        assert torch.equal(used, out)


def test_a_cache_records_no_gradient():
    q, k, v = normal(1, 1, 4, 16, grad=True), *normal(2, 1, 8, 2, 16)
    assert not fa.flash_attn_with_kvcache(q, k, v, cache_seqlens=4).requires_grad


# ---- Refusals ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "value"), [
    ("dropout_p", 0.1), ("alibi_slopes", torch.ones(4)), ("attention_chunk", 4),
    ("qv", torch.ones(1)), ("q_descale", torch.ones(1)), ("k_descale", torch.ones(1)),
    ("v_descale", torch.ones(1))])
def test_unsupported_arguments_are_refused_by_name(name, value):
    q, k, v = normal(3, 1, 8, 4, 16)
    with pytest.raises(NotImplementedError, match=f"flash_attn_func: {name}: expected"):
        fa.flash_attn_func(q, k, v, **{name: value})
    packed = (q[0], k[0], v[0], offsets([8]), offsets([8]), 8, 8)
    with pytest.raises(NotImplementedError, match=f"flash_attn_varlen_func: {name}: expected"):
        fa.flash_attn_varlen_func(*packed, **{name: value})
    default = 0 if isinstance(value, (int, float)) else None
    fa.flash_attn_func(q, k, v, **{name: default})


def test_a_scale_in_the_place_of_dropout_is_explained():
    q, k, v = normal(3, 1, 8, 4, 16)
    with pytest.raises(NotImplementedError, match=r"dropout_p: expected 0, got 0.25; .*by name"):
        fa.flash_attn_func(q, k, v, 0.25)


@pytest.mark.parametrize("name", ["rotary_cos", "rotary_sin", "rotary_seqlens", "cu_seqlens_k_new"])
def test_caches_refuse_by_name(name):
    q, k, v = normal(3, 1, 8, 4, 16)
    with pytest.raises(NotImplementedError, match=f"flash_attn_with_kvcache: {name}: expected"):
        fa.flash_attn_with_kvcache(q, k, v, cache_seqlens=4, **{name: torch.ones(1)})


def test_wrong_calls_name_their_arguments():
    q, k, v = normal(3, 1, 8, 4, 16)
    table = torch.zeros(1, 1, dtype=torch.int32)
    packed = (q[0], k[0], v[0], offsets([8]))
    for error, text, call in (
            (TypeError, "unexpected keyword argument 'windows'",
             lambda: fa.flash_attn_func(q, k, v, windows=1)),
            (ValueError, "flash_attn_func: window_size: expected a pair",
             lambda: fa.flash_attn_func(q, k, v, window_size=4)),
            (ValueError, r"flash_attn_qkvpacked_func: qkv: expected 3 at dimension 2 of 5",
             lambda: fa.flash_attn_qkvpacked_func(q)),
            (ValueError, r"flash_attn_varlen_kvpacked_func: kv: expected 2 at dimension 1 of 4",
             lambda: fa.flash_attn_varlen_kvpacked_func(q[0], k[0], offsets([8]), offsets([8]), 8,
                                                        8)),
            (ValueError, "cu_seqlens_k: expected offsets, got None",
             lambda: fa.flash_attn_varlen_func(*packed, None, 8, 8)),
            (ValueError, "cu_seqlens_k: expected offsets, or lengths as seqused_k",
             lambda: fa.flash_attn_varlen_func(*packed, None, 8, 8, block_table=table)),
            (ValueError, "page_table: expected block_table or page_table, got both",
             lambda: fa.flash_attn_with_kvcache(q, k, v, cache_seqlens=1, block_table=table,
                                                page_table=table)),
            (ValueError, "cache_seqlens: expected the lengths of the sequences beside k",
             lambda: fa.flash_attn_with_kvcache(q, k, v, k, v)),
            (ValueError, "cache_seqlens: expected the lengths of the sequences beside block_table",
             lambda: fa.flash_attn_with_kvcache(q, k, v, block_table=table)),
            (ValueError, "cache_batch_idx: expected None beside block_table",
             lambda: fa.flash_attn_with_kvcache(q, k, v, cache_seqlens=1, block_table=table,
                                                cache_batch_idx=table[0])),
            (ValueError, "v: expected k and v, or neither",
             lambda: fa.flash_attn_with_kvcache(q, k, v, k, cache_seqlens=1)),
            (ValueError, r"attention: k: ",
             lambda: fa.flash_attn_func(q, k[:, :, :3], v))):
        with pytest.raises(error, match=text):
            call()


def test_arguments_stand_in_the_order_of_flash_attn():
    """Of flash-attn 2.8."""
    end = ["dropout_p", "softmax_scale", "causal", "window_size", "softcap", "alibi_slopes",
           "deterministic", "return_attn_probs"]
    packed = ["cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k"]
    orders = {
        "flash_attn_func": ["q", "k", "v", *end],
        "flash_attn_kvpacked_func": ["q", "kv", *end],
        "flash_attn_qkvpacked_func": ["qkv", *end],
        "flash_attn_varlen_func": ["q", "k", "v", *packed, *end, "block_table"],
        "flash_attn_varlen_kvpacked_func": ["q", "kv", *packed, *end],
        "flash_attn_varlen_qkvpacked_func": ["qkv", "cu_seqlens", "max_seqlen", *end],
        "flash_attn_with_kvcache": [
            "q", "k_cache", "v_cache", "k", "v", "rotary_cos", "rotary_sin", "cache_seqlens",
            "cache_batch_idx", "cache_leftpad", "block_table", "softmax_scale", "causal",
            "window_size", "softcap", "rotary_interleaved", "alibi_slopes", "num_splits",
            "return_softmax_lse"]}
    assert sorted(orders) == sorted(fa.__all__)
    for name, order in orders.items():
        parameters = inspect.signature(getattr(fa, name)).parameters.values()
        assert [one.name for one in parameters
                if one.kind is one.POSITIONAL_OR_KEYWORD] == order, name


def test_the_package_shows_it():
    assert tessera.compat.__name__ == "tessera.compat"


@pytest.mark.gpu
@pytest.mark.usefixtures("torch_on_gpu")
def test_a_contiguous_cache_on_a_gpu():
    k, v = normal(2, 2, 256, 2, 64, dtype=torch.bfloat16)
    q, lengths = normal(2, 1, 8, 64, dtype=torch.bfloat16), torch.tensor([100, 7]).int()
    fresh = normal(2, 2, 1, 2, 64, dtype=torch.bfloat16)
    there = [x.cuda() for x in (q, k, v, *fresh)]
    out = fa.flash_attn_with_kvcache(*there, cache_seqlens=lengths.cuda(), causal=True)
    want = fa.flash_attn_with_kvcache(q, k, v, *fresh, cache_seqlens=lengths, causal=True)
    assert torch.equal(there[1].cpu(), k) and torch.equal(there[2].cpu(), v)
    torch.testing.assert_close(out.cpu(), want, atol=2e-2, rtol=2e-2)
