"""Keys and values in FP8 and in pages: quantize, paged.append, and attention over them."""

import itertools

import numpy as np
import pytest
import support

import tessera
from tessera.paged import Cache

ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
E4M3 = ml_dtypes.float8_e4m3fn


KINDS = ["numpy", "torch"]


def made(kind, array):
    """An array of NumPy or PyTorch's tensor of it."""
    if kind == "numpy" or array is None:
        return array
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    if array.dtype == E4M3:
        return torch.from_numpy(array.view(np.uint8)).view(torch.float8_e4m3fn)
    return torch.from_numpy(array)


def floats(x):
    """float32 on the host of either kind."""
    return np.asarray(x.astype(np.float32) if isinstance(x, np.ndarray) else x.float())


def narrowed(x, scale):
    quotient = x.astype(np.float32) / scale
    return np.clip(quotient, -448, 448).astype(E4M3)


def spread(scale):
    """A factor [1], [heads] or [pages, heads] beside [.., heads, dim]."""
    return scale[..., None] if scale.ndim == 1 else scale[:, None, :, None]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("per", ["tensor", "head", "page"])
def test_quantize(kind, per):
    x = support.random(3, 5, 4, 16, seed=1) * np.array([1, 100, 1e-3, 1], np.float32)[:, None]
    out, scale = tessera.quantize(made(kind, x), per=per)
    axes = {"tensor": (0, 1, 2, 3), "head": (0, 1, 3), "page": (1, 3)}[per]
    want = (np.abs(x).max(axis=axes) / np.float32(448)).astype(np.float32).reshape(
        {"tensor": 1, "head": 4, "page": (3, 4)}[per])
    assert np.array_equal(floats(scale), want)
    assert np.array_equal(floats(out), floats(narrowed(x, spread(want))))
    assert ("float8_e4m3fn" in str(out.dtype)) and tuple(out.shape) == x.shape
    again, same = tessera.quantize(made(kind, x), scale=scale)
    assert same is scale and np.array_equal(floats(again), floats(out))


def test_quantize_saturates_keeps_nan_and_takes_packed_tensors():
    x = np.array([1000, -1000, np.nan, 0.5, np.inf, 0], np.float32).reshape(3, 1, 2)
    out, _ = tessera.quantize(x, scale=np.ones(1, np.float32))
    assert floats(out).ravel()[[0, 1, 3, 4, 5]].tolist() == [448, -448, 0.5, 448, 0]
    assert np.isnan(floats(out)).ravel().tolist() == [False, False, True, False, False, False]
    _, scale = tessera.quantize(x)
    assert scale == np.float32(1000) / np.float32(448)
    assert tessera.quantize(np.zeros((2, 2, 4), np.float16), per="head")[1].tolist() == [1, 1]


def test_quantize_refuses_by_name():
    x = support.random(2, 3, 4, 8)
    for error, text, call in (
            (ValueError, "quantize: per: expected tensor, .* head, page, 64 or 128, got 'token'",
             lambda: tessera.quantize(x, per="token")),
            (ValueError, r"quantize: x: expected \[pages, page, heads, dim\]",
             lambda: tessera.quantize(x[0], per="page")),
            (ValueError, "quantize: x: expected .* of rank 3 or 4",
             lambda: tessera.quantize(x[0, 0], per="head")),
            (TypeError, "quantize: x: expected float32, float16 or bfloat16, got float64",
             lambda: tessera.quantize(x.astype(np.float64))),
            (ValueError, r"quantize: scale: expected \[1\], \[4\] \(heads\)",
             lambda: tessera.quantize(x, scale=np.ones(3, np.float32))),
            (ValueError, "quantize: out: expected dtype e4m3 or e5m2",
             lambda: tessera.quantize(x, out=np.empty_like(x)))):
        with pytest.raises(error, match=text):
            call()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("per", ["tensor", "head", "page"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_attention_reads_scaled_keys(kind, per, dtype):
    q = support.random(2, 7, 4, 16, seed=1, dtype=dtype)
    k, v = support.random(2, 2, 9, 2, 16, seed=2)
    (k8, k_scale), (v8, v_scale) = (tessera.quantize(x, per=per) for x in (k, v))
    out, lse = tessera.attention(*(made(kind, x) for x in (q, k8, v8)), causal=True,
                                 k_scale=made(kind, k_scale), v_scale=made(kind, v_scale),
                                 return_lse=True)
    wide = [floats(x) * spread(scale) for x, scale in ((k8, k_scale), (v8, v_scale))]
    want, want_lse = support.attention(q, *wide, support.visible(7, 9, causal=True))
    atol = 2e-5 if dtype == np.float32 else 4e-3
    np.testing.assert_allclose(floats(out), want, atol=atol)
    np.testing.assert_allclose(floats(lse), want_lse, atol=atol)
    assert str(out.dtype).endswith(np.dtype(dtype).name)


def test_keys_without_factors_and_wrong_ones():
    q = support.random(1, 3, 2, 8)
    k = narrowed(support.random(1, 5, 2, 8, seed=1), 1)
    np.testing.assert_allclose(tessera.attention(q, k, k),
                               tessera.attention(q, floats(k), floats(k)), atol=1e-6)
    for text, options in (("k_scale: expected shape", {"k_scale": np.ones(3, np.float32)}),
                          ("v_scale: expected dtype f32", {"v_scale": np.ones(2, np.float16)})):
        with pytest.raises((ValueError, TypeError), match=f"attention: {text}|float32"):
            tessera.attention(q, k, k, **options)
    with pytest.raises(ValueError, match="k_scale: expected none, as the values are f32"):
        tessera.attention(q, floats(k), floats(k), k_scale=np.ones(1, np.float32))
    with pytest.raises(ValueError, match="v: expected dtype e4m3 as k has"):
        tessera.attention(q, k, floats(k))
    answer = tessera.explain(tessera.attention, q.astype(np.float16), k, k, device="h100")
    assert not answer["supported"] and "e4m3" in str(answer)


LENGTHS, NEW, PAGE = [5, 0, 11], [3, 9, 1], 4


def cache_of(kind, dtype, scaled):
    pages = 14
    rng = np.random.default_rng(3)
    table = rng.permutation(pages)[:12].reshape(3, 4).astype(np.int32)
    k, v = rng.standard_normal((2, pages, PAGE, 2, 8), dtype=np.float32).astype(dtype)
    factors = [None, None]
    if scaled:
        factors = [np.full(shape, 0.01, np.float32) * (1 + np.arange(shape[-1], dtype=np.float32))
                   for shape in ((pages, 2), (2,))]
    return Cache(*(made(kind, x) for x in (k, v, table, np.array(LENGTHS, np.int32), *factors)))


def appended(cache, k, v):
    """The caches as they should be, of lists of new keys and values for each sequence."""
    results = []
    for held, new, scale in ((cache.k, k, cache.k_scale), (cache.v, v, cache.v_scale)):
        want = floats(held).copy()
        factors = np.ones((14, 2), np.float32)
        if scale is not None:
            factors = factors * floats(scale)
        for b, rows in enumerate(new):
            for i, row in enumerate(rows):
                at = LENGTHS[b] + i
                page = int(cache.page_table[b, at // PAGE])
                one = narrowed(row, factors[page][:, None]) if "float8" in str(held.dtype) else row
                want[page, at % PAGE] = one.astype(np.float32)
        results.append(want)
    return results


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("dtype", "scaled"), [(np.float32, False), (np.float16, False),
                                               (E4M3, False), (E4M3, True)])
@pytest.mark.parametrize("packed", [False, True])
def test_append(kind, dtype, scaled, packed):
    cache = cache_of(kind, dtype, scaled)
    counts = NEW if packed else [3, 3, 3]
    k, v = support.random(2, sum(counts), 2, 8, seed=4, dtype=np.float16)
    ends = np.cumsum([0, *counts])
    parts = [[x[a:b] for a, b in itertools.pairwise(ends)] for x in (k, v)]
    want = appended(cache, *parts)
    offsets = made(kind, ends.astype(np.int64)) if packed else None
    given = (k, v) if packed else (x.reshape(3, 3, 2, 8) for x in (k, v))
    assert tessera.paged.append(*(made(kind, x) for x in given), cache, offsets=offsets) is None
    assert np.array_equal(floats(cache.k), want[0]) and np.array_equal(floats(cache.v), want[1])
    assert np.asarray(cache.lengths).tolist() == LENGTHS


def test_attention_over_what_was_appended():
    """Step by step, as decoding does, beside one call over all keys."""
    cache = cache_of("numpy", E4M3, True)
    cache.lengths[:] = 0
    k, v = support.random(2, 3, 6, 2, 8, seed=5)
    q = support.random(3, 6, 4, 8, seed=6)
    outs = []
    for i in range(6):
        tessera.paged.append(k[:, i : i + 1], v[:, i : i + 1], cache)
        cache.lengths += 1
        outs.append(tessera.attention(q[:, i : i + 1], cache.k, cache.v, **cache.options()))
    steps = np.concatenate(outs, 1)
    whole = tessera.attention(q, cache.k, cache.v, causal=True, **cache.options())
    np.testing.assert_allclose(steps, whole, atol=1e-6)
    assert np.abs(whole - tessera.attention(q, k, v, causal=True)).max() < 0.2


def test_append_refuses_by_name_and_writes_nothing():
    k = support.random(3, 3, 2, 8)
    for text, change in (
            ("append: lengths: expected 0 to 13", lambda c: c.lengths.__setitem__(1, 14)),
            (r"append: page_table: expected pages in \[0, 14\), got 99",
             lambda c: c.page_table.__setitem__((2, 2), 99)),
            ("append: v_cache: expected shape", lambda c: setattr(c, "v", c.v[..., :4])),
            ("append: k_scale: expected none", lambda c: setattr(c, "k_scale", np.ones(1, "f4")))):
        cache = cache_of("numpy", np.float32, False)
        change(cache)
        before = cache.k.copy()
        with pytest.raises(ValueError, match=text):
            tessera.paged.append(k, k, cache)
        assert np.array_equal(cache.k, before)
    cache = cache_of("numpy", np.float32, False)
    cache.k.flags.writeable = False
    with pytest.raises(ValueError, match="k_cache: expected an array that can be written"):
        tessera.paged.append(k, k, cache)


def test_pytorch_records_no_gradient_beside_narrow_keys():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    q = torch.randn(1, 3, 2, 8, requires_grad=True)
    k, k_scale = tessera.quantize(torch.randn(1, 5, 2, 8, requires_grad=True))
    with pytest.raises(NotImplementedError, match="k: no gradient is recorded beside keys in FP8"):
        tessera.attention(q, k, k, k_scale=k_scale)
    with torch.no_grad():
        want = tessera.attention(q, k, k, k_scale=k_scale, v_scale=k_scale)
    run = torch.compile(lambda *x: tessera.attention(*x[:3], k_scale=x[3], v_scale=x[3]),
                        fullgraph=True, backend="aot_eager")
    assert torch.equal(run(q.detach(), k, k, k_scale), want)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn"])
def test_gpus_write_what_cpus_write(torch_on_gpu, dtype):
    torch = torch_on_gpu
    torch.manual_seed(0)
    k, v = torch.randn(2, 3, 40, 4, 128, dtype=torch.bfloat16)
    pages = torch.zeros(2, 20, 16, 4, 128, dtype=torch.bfloat16).to(getattr(torch, dtype))
    table = torch.randperm(20)[:18].reshape(3, 6).int()
    factors = [None, None]
    if dtype != "bfloat16":
        (_, k_scale), (_, v_scale) = (tessera.quantize(x, per="head") for x in (k, v))
        on_gpu = [tessera.quantize(x.cuda(), per=per)
                  for per in ("tensor", "head", "page") for x in (k, v)]
        on_cpu = [tessera.quantize(x, per=per)
                  for per in ("tensor", "head", "page") for x in (k, v)]
        for (out, scale), (want, want_scale) in zip(on_gpu, on_cpu, strict=True):
            assert torch.equal(scale.cpu(), want_scale)
            assert torch.equal(out.cpu().view(torch.uint8), want.view(torch.uint8))
        factors = [k_scale, v_scale]
    cache = Cache(*pages.clone().unbind(), table, torch.tensor([3, 0, 50]).int(), *factors)
    there = Cache(*(None if x is None else x.cuda() for x in vars(cache).values()))
    tessera.paged.append(k, v, cache)
    tessera.paged.append(k.cuda(), v.cuda(), there)
    for want, got in ((cache.k, there.k), (cache.v, there.v)):
        assert torch.equal(got.cpu().view(torch.uint8), want.view(torch.uint8))
