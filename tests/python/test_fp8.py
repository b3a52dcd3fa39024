"""FP8: quantize in every form, and products of operands with factors."""

import numpy as np
import pytest
import support

import tessera

ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
FP8 = {"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}
LARGEST = {"e4m3": 448.0, "e5m2": 57344.0}
KINDS = ["numpy", "torch"]


def made(kind, array):
    """An array of NumPy or PyTorch's tensor of it."""
    if kind == "numpy" or array is None:
        return array
    return pytest.importorskip("torch", reason="PyTorch is not installed").from_numpy(array)


def floats(x):
    return np.asarray(x.astype(np.float32) if isinstance(x, np.ndarray) else x.float())


def spread(scale, shape):
    """Factors of matrices [.., rows, cols] beside their elements."""
    scale = np.asarray(scale)
    if scale.ndim == 1:
        return scale
    for axis in (-2, -1):
        count, length = scale.shape[axis], shape[axis]
        if count not in (1, length):
            scale = np.repeat(scale, 128, axis).take(range(length), axis)
    return scale


FORMS = {"tensor": (1,), "matrix": (2, 1, 1), "row": (2, 150, 1), "column": (2, 1, 300),
         "1x128": (2, 150, 3), "128x1": (2, 2, 300), "128x128": (2, 2, 3)}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["e4m3", "e5m2"])
@pytest.mark.parametrize("per", FORMS)
def test_quantize_matrices(kind, dtype, per):
    x = support.random(2, 150, 300, seed=1)
    x *= (10.0 ** np.arange(-3, 3).repeat(50)).astype(np.float32)
    x[0, 3, 5], x[1, 0, 0] = np.nan, np.inf
    out, scale = tessera.quantize(made(kind, x), per=per, dtype=dtype)
    assert tuple(scale.shape) == FORMS[per] and tuple(out.shape) == x.shape
    assert FP8[dtype].__name__ in str(out.dtype)
    factors = spread(floats(scale), x.shape)
    finite = np.where(np.isfinite(x), np.abs(x), 0)
    # The largest magnitude of each box, by its own factor, is the largest value of FP8.
    assert np.isclose((finite / factors).max(), LARGEST[dtype])
    limit = LARGEST[dtype]
    quotient = x / factors
    with np.errstate(invalid="ignore"):
        kept = np.isinf(x) if dtype == "e5m2" else np.zeros_like(x, bool)
        want = np.where(kept, quotient, np.clip(quotient, -limit, limit)).astype(FP8[dtype])
    np.testing.assert_array_equal(floats(out), want.astype(np.float32))
    again, same = tessera.quantize(made(kind, x), scale=scale, dtype=dtype)
    assert same is scale
    np.testing.assert_array_equal(floats(again), floats(out))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("per", [64, 128])
def test_quantize_rows_of_heads(kind, per):
    x = support.random(2, 150, 3, 8, seed=2)
    _, scale = tessera.quantize(made(kind, x), per=per)
    blocks = -(-150 // per)
    assert tuple(scale.shape) == (2, 3, blocks)
    padded = np.zeros((2, blocks * per, 3, 8), np.float32)
    padded[:, :150] = np.abs(x)
    want = padded.reshape(2, blocks, per, 3, 8).max(axis=(2, 4)).swapaxes(1, 2) / np.float32(448)
    np.testing.assert_array_equal(floats(scale), want)


def test_quantize_refuses_by_name():
    x = support.random(4, 8)
    for text, options in (("per: expected tensor, matrix, row", {"per": "rows"}),
                          ("dtype: expected e4m3 or e5m2", {"dtype": "e3m4"}),
                          (r"x: expected \[.., heads, dim\] of rank 3 or 4", {"per": "head"}),
                          (r"scale: expected \[1\] or \[1, 1\] \(all\)",
                           {"scale": np.ones((3, 1), np.float32)})):
        with pytest.raises(ValueError, match=f"quantize: {text}"):
            tessera.quantize(x, **options)
    matrix = tessera.BsrMatrix.from_dense(np.eye(32, dtype=np.float32), block=16)
    with pytest.raises(ValueError, match="per: expected tensor or block of a BsrMatrix"):
        tessera.quantize(matrix, per="row")


def near(out, x, w, share=0.05):
    """Beside the product of what was narrowed."""
    want = x.astype(np.float64) @ w.astype(np.float64)
    error = np.sqrt(np.mean((floats(out) - want) ** 2) / np.mean(want**2))
    assert error < share, error


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("x_per", "w_per"), [("tensor", "tensor"), ("row", "row"),
                                              ("1x128", "128x128"), ("1x128", "1x128"),
                                              ("tensor", "row")])
def test_products(kind, x_per, w_per):
    x = support.random(33, 300, seed=3) * (1 + np.arange(33, dtype=np.float32)[:, None])
    w = support.random(140, 300, seed=4)
    bias = support.random(140, seed=5)
    (x8, x_scale), (w8, w_scale) = (tessera.quantize(made(kind, a), per=per)
                                    for a, per in ((x, x_per), (w, w_per)))
    f32 = np.float32 if kind == "numpy" else pytest.importorskip("torch").float32
    out = tessera.linear(x8, w8, x_scale=x_scale, weight_scale=w_scale, out_dtype=f32)
    exact = ((floats(x8) * spread(floats(x_scale), x.shape)).astype(np.float64)
             @ (floats(w8) * spread(floats(w_scale), w.shape)).astype(np.float64).T)
    np.testing.assert_allclose(floats(out), exact, rtol=1e-4, atol=1e-4 * np.abs(exact).max())
    near(out, x, w.T)
    same = tessera.matmul(x8, w8, transpose_b=True, a_scale=x_scale, b_scale=w_scale,
                          bias=made(kind, bias), activation="relu", out_dtype=f32)
    np.testing.assert_allclose(floats(same), np.maximum(floats(out) + bias, 0), rtol=1e-5,
                               atol=1e-5 * np.abs(exact).max())
    assert "bfloat16" in str(tessera.matmul(x8, w8, transpose_b=True).dtype)


@pytest.mark.parametrize("kind", KINDS)
def test_leading_dimensions_of_linear(kind):
    x, w = support.random(2, 5, 256, seed=1), support.random(64, 256, seed=2)
    x8, x_scale = tessera.quantize(made(kind, x), per="row")
    w8, w_scale = tessera.quantize(made(kind, w), per="row")
    out = tessera.linear(x8, w8, x_scale=x_scale, weight_scale=w_scale)
    assert tuple(out.shape) == (2, 5, 64)
    near(out.reshape(10, 64), x.reshape(10, 256), w.T)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("per", ["tensor", "block"])
def test_block_sparse(kind, per):
    rng = np.random.default_rng(0)
    dense = rng.standard_normal((128, 96)).astype(np.float32)
    keep = rng.random((8, 6)) < 0.4
    dense *= np.kron(keep, np.ones((16, 16), np.float32))
    dense *= np.kron(10.0 ** rng.integers(-2, 3, (8, 6)), np.ones((16, 16))).astype(np.float32)
    matrix = tessera.BsrMatrix.from_dense(made(kind, dense), block=16)
    narrow, scale = tessera.quantize(matrix, per=per)
    assert tuple(scale.shape) == ((1,) if per == "tensor" else (matrix.stored_blocks,))
    x = support.random(96, 20, seed=1)
    x8, x_scale = tessera.quantize(made(kind, x), per="column")
    near(tessera.matmul(narrow, x8, a_scale=scale, b_scale=x_scale), dense, x)
    y = support.random(20, 128, seed=2)
    y8, y_scale = tessera.quantize(made(kind, y), per="row")
    near(tessera.matmul(y8, narrow, a_scale=y_scale, b_scale=scale), y, dense)


def test_grouped():
    x, w = support.random(50, 256, seed=1), support.random(3, 256, 40, seed=2)
    x8, x_scale = tessera.quantize(x, per="1x128")
    w8, w_scale = tessera.quantize(w, per="128x128")
    ends = np.array([0, 20, 20, 50], np.int32)
    out = tessera.matmul(x8, w8, a_scale=x_scale, b_scale=w_scale, group_offsets=ends)
    near(out[:20], x[:20], w[0])
    near(out[20:], x[20:], w[2])


def test_products_refuse_by_name():
    x8, scale = tessera.quantize(support.random(4, 300), per="row")
    w8, _ = tessera.quantize(support.random(300, 8))
    along_depth = np.ones((1, 300), np.float32)
    for text, options in (("matmul: a_scale: expected", {"a_scale": along_depth}),
                          ("matmul: b_scale: expected", {"b_scale": scale})):
        with pytest.raises(ValueError, match=text):
            tessera.matmul(x8, w8, **options)
    with pytest.raises(ValueError, match="matmul: a_scale: expected none, as the values are f32"):
        tessera.matmul(support.random(4, 4), support.random(4, 4), a_scale=np.ones(1, np.float32))
    with pytest.raises(TypeError, match="matmul: a_scale: expected float32, got float64"):
        tessera.matmul(x8, w8, a_scale=np.ones(1))
    with pytest.raises(TypeError, match="linear: weight_scale: expected float32, got float64"):
        tessera.linear(x8, np.ascontiguousarray(w8.T), weight_scale=np.ones(1))
    with pytest.raises(ValueError, match="matmul: b: expected dtype e4m3 as a has"):
        tessera.matmul(x8, support.random(300, 8))
    with pytest.raises(ValueError, match=r"linear: weight_scale: .* \(per row of weight\)"):
        tessera.linear(x8, np.ascontiguousarray(w8.T), weight_scale=along_depth)
    bsr = tessera.BsrMatrix.from_dense(np.eye(32, dtype=np.float32), block=16)
    narrow, scale = tessera.quantize(bsr, per="block")
    x8, _ = tessera.quantize(support.random(32, 16))
    answer = tessera.explain(tessera.matmul, narrow, x8, a_scale=scale, device="h100")
    assert not answer["supported"] and "dtype e4m3 is not supported" in str(answer)
    answer = tessera.explain(tessera.matmul, narrow, x8, a_scale=scale)
    assert answer["supported"] and "scales per block" in str(answer)


def test_plans_keep_the_factors():
    x8, x_scale = tessera.quantize(support.random(4, 64), per="row")
    w8, w_scale = tessera.quantize(support.random(64, 8))
    plan = tessera.plan("matmul", x8, w8, a_scale=x_scale, b_scale=w_scale)
    plan.prepare()
    want = tessera.matmul(x8, w8, a_scale=x_scale, b_scale=w_scale)
    assert np.array_equal(floats(plan.run(x8, w8)), floats(want))
    twice = plan.run(x8, w8, a_scale=2 * x_scale)
    np.testing.assert_allclose(floats(twice), 2 * floats(want), rtol=1e-2)


def test_pytorch_records_no_gradient():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    x8, x_scale = tessera.quantize(torch.randn(4, 64, requires_grad=True), per="row")
    w8, w_scale = tessera.quantize(torch.randn(8, 64))
    bias = torch.zeros(8, requires_grad=True)
    with pytest.raises(NotImplementedError, match="matmul: a: no gradient is recorded of operands"):
        tessera.linear(x8, w8, bias, x_scale=x_scale, weight_scale=w_scale)
    with torch.no_grad():
        want = tessera.linear(x8, w8, bias, x_scale=x_scale, weight_scale=w_scale)
    assert want.dtype == torch.bfloat16
    run = torch.compile(lambda *x: tessera.linear(x[0], x[1], x_scale=x[2], weight_scale=x[3]),
                        fullgraph=True, backend="aot_eager")
    assert torch.equal(run(x8, w8, x_scale, w_scale), want)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("per", ["tensor", "head", "page", 64, 128])
@pytest.mark.parametrize("causal", [False, True])
def test_attention(kind, per, causal):
    q, k, v = (support.random(2, n, h, 16, seed=n) for n, h in ((70, 4), (200, 2), (200, 2)))
    rows = np.arange(1, 201, dtype=np.float32)[:, None, None]
    (q8, q_scale), (k8, k_scale), (v8, v_scale) = (
        tessera.quantize(made(kind, x), per=per) for x in (q, k * rows / 100, v * rows))
    scales = {"q_scale": q_scale, "k_scale": k_scale, "v_scale": v_scale}
    out, lse = tessera.attention(q8, k8, v8, causal=causal, return_lse=True, **scales)
    assert "bfloat16" in str(out.dtype) and tuple(out.shape) == (2, 70, 4, 16)

    def widened(x8, scale):
        x, scale = floats(x8), floats(scale)
        if scale.ndim == 3:  # [batch, heads, blocks of rows]
            scale = np.repeat(scale, per, 2)[..., : x.shape[1]].swapaxes(1, 2)[..., None]
        else:
            scale = scale[..., None] if scale.ndim == 1 else scale[:, None, :, None]
        return x * scale

    wide = [widened(q8, q_scale), widened(k8, k_scale), widened(v8, v_scale)]
    want, want_lse = tessera.attention(*wide, causal=causal, return_lse=True)
    np.testing.assert_allclose(floats(lse), want_lse, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(floats(out), want, rtol=2**-8, atol=2e-3)


def test_attention_refuses_by_name():
    q8, scale = tessera.quantize(support.random(1, 70, 2, 16), per=64)
    q16 = support.random(1, 70, 2, 16).astype(np.float16)
    with pytest.raises(ValueError, match="q_scale: expected none, as the values are f16"):
        tessera.attention(q16, q8, q8, q_scale=scale)
    with pytest.raises(ValueError, match=r"q_scale: expected shape \[batch = 1, heads = 2, "):
        tessera.attention(q8, q8, q8, q_scale=np.ones((1, 2, 3), np.float32))
    assert tessera.explain(tessera.attention, q8, q8, q8, q_scale=scale, device="h100")["supported"]
    answer = tessera.explain(tessera.attention, q8, q8, q8, q_scale=scale, device="a100")
    assert not answer["supported"] and "q, k and v: dtype e4m3 is not supported" in str(answer)
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    q8, scale = tessera.quantize(torch.randn(1, 70, 2, 16))
    sinks = torch.zeros(2, requires_grad=True)
    with pytest.raises(NotImplementedError, match="attention: q: no gradient is recorded of FP8"):
        tessera.attention(q8, q8, q8, q_scale=scale, sinks=sinks)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["e4m3", "e5m2"])
def test_gpus_quantize_as_cpus(torch_on_gpu, dtype):
    torch = torch_on_gpu
    x = torch.randn(2, 150, 300, dtype=torch.bfloat16)
    for per in FORMS:
        want, want_scale = tessera.quantize(x, per=per, dtype=dtype)
        out, scale = tessera.quantize(x.cuda(), per=per, dtype=dtype)
        assert torch.equal(scale.cpu(), want_scale), per
        assert torch.equal(out.cpu().view(torch.uint8), want.view(torch.uint8)), per


@pytest.mark.gpu
@pytest.mark.parametrize(("x_per", "w_per"), [("tensor", "tensor"), ("row", "row"),
                                              ("1x128", "128x128"), ("1x128", "1x128")])
def test_products_on_gpus(torch_on_gpu, x_per, w_per):
    torch = torch_on_gpu
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("factors of rows and blocks need compute capability 9.0")
    x, w = torch.randn(256, 512), torch.randn(384, 512)
    (x8, x_scale), (w8, w_scale) = (tessera.quantize(a.cuda(), per=per)
                                    for a, per in ((x, x_per), (w, w_per)))
    out = tessera.linear(x8, w8, x_scale=x_scale, weight_scale=w_scale, out_dtype=torch.float32,
                         backend="sm80")
    want = tessera.linear(x8.cpu(), w8.cpu(), x_scale=x_scale.cpu(), weight_scale=w_scale.cpu(),
                          out_dtype=torch.float32)
    assert (out.cpu() - want).abs().max() < 1e-3 * want.abs().max()
