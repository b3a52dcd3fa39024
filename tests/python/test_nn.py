import copy

import pytest
import support

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch.utils.checkpoint import checkpoint  # noqa: E402
from torch_support import close  # noqa: E402

import tessera.nn  # noqa: E402
from tessera import BlockMask  # noqa: E402

F = torch.nn.functional


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


# ---- BsrLinear ---------------------------------------------------------------------------------


@pytest.mark.parametrize("bias", [False, True])
def test_from_linear(bias):
    dense = torch.nn.Linear(64, 48, bias=bias)
    x = torch.randn(2, 3, 64)
    whole = tessera.nn.BsrLinear.from_linear(dense, 16)
    torch.testing.assert_close(whole(x), dense(x), atol=1e-5, rtol=1e-5)
    some = tessera.nn.BsrLinear.from_linear(dense, (16, 8), density=0.25)
    assert some.weight.density == 0.25
    torch.testing.assert_close(some(x), F.linear(x, some.weight.to_dense(), dense.bias),
                               atol=1e-5, rtol=1e-5)


def test_state_dict_round_trip_between_densities():
    first = tessera.nn.BsrLinear(64, 48, 16, density=0.75, seed=1)
    second = tessera.nn.BsrLinear(64, 48, 16, density=0.25, seed=2)
    result = second.load_state_dict(first.state_dict())
    assert not result.missing_keys and not result.unexpected_keys
    x = torch.randn(5, 64)
    assert torch.equal(first(x), second(x))
    assert torch.equal(copy.deepcopy(first)(x), first(x))
    with pytest.raises(RuntimeError, match="size mismatch"):
        tessera.nn.BsrLinear(64, 96, 16).load_state_dict(first.state_dict())


def test_trains():
    target = torch.randn(64, 48) * 0.2
    layer = tessera.nn.BsrLinear(64, 48, 16, density=1.0)
    optimizer = torch.optim.Adam(layer.parameters(), lr=2e-2)
    x = torch.randn(256, 64)
    first = None
    for _ in range(60):
        loss = F.mse_loss(layer(x), x @ target)
        first = first or loss.item()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.02 * first


def test_the_pattern_fits_the_layer():
    with pytest.raises(ValueError, match="block: expected a divisor of 50 x 64"):
        tessera.nn.BsrLinear(64, 50, 16)


def test_compiles_in_a_model():
    model = torch.nn.Sequential(tessera.nn.BsrLinear(32, 64, 16), torch.nn.ReLU(),
                                tessera.nn.BsrLinear(64, 32, 16))
    x = torch.randn(4, 32)
    expected = model(x)
    got = torch.compile(model, fullgraph=True)(x)
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)
    got.sum().backward()
    assert all(p.grad is not None for p in model.parameters())


# ---- BsrLinear with a dense copy ---------------------------------------------------------------


def expanding(**options):
    """A layer for which the dense product is predicted to be faster."""
    return tessera.nn.BsrLinear(48, 64, 2, density=0.9, **options).expand()


def check_layer(layer, x, *, copied=True, tolerance=1e-5):
    want = F.linear(x, layer.weight.to_dense(), layer.bias)
    torch.testing.assert_close(layer(x), want, atol=tolerance, rtol=tolerance)
    assert (layer._expansion._dense is not None) == copied


def test_inference_with_a_dense_copy():
    layer, x = expanding(), torch.randn(3, 20, 48)
    assert layer(x).requires_grad and layer._expansion._dense is None
    with torch.no_grad():
        check_layer(layer, x)
        dense = layer._expansion._dense
        check_layer(layer, x[:1])
        assert layer._expansion._dense is dense
    layer(x).sum().backward()
    assert layer.values.grad is not None
    with torch.inference_mode():
        check_layer(layer.eval(), x)
    layer.requires_grad_(False)
    layer(x)
    assert "dense" not in "".join(layer.state_dict())


def test_a_changed_weight_is_copied_again():
    layer, x = expanding(), torch.randn(20, 48)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.5)
    with torch.no_grad():
        check_layer(layer, x)
    layer(x).square().mean().backward()
    optimizer.step()
    with torch.no_grad():
        check_layer(layer, x)
        layer.load_state_dict(expanding(seed=3).state_dict())
        check_layer(layer, x)
        layer.load_state_dict(tessera.nn.BsrLinear(48, 64, 2, density=0.95, seed=4).state_dict())
        check_layer(layer, x)
        layer._take(tessera.BsrMatrix.prune(torch.randn(64, 48), 2, 0.95))
        check_layer(layer, x)
        layer.load_state_dict(tessera.nn.BsrLinear(48, 64, 2, density=0.1, seed=5).state_dict())
        weight = layer.weight
        assert layer._expansion.weight_for(x, weight, layer.bias, 1 << 40) is weight
        torch.testing.assert_close(layer(x), F.linear(x, weight.to_dense(), layer.bias), atol=1e-5,
                                   rtol=1e-5)
        layer.load_state_dict(expanding(seed=6).state_dict())
        half = layer.to(torch.float16)
        assert half._expansion._dense is None
        check_layer(half, x.half(), tolerance=2e-2)


@pytest.mark.parametrize("limit, error, said", [(-1, ValueError, "0 or more, got -1"),
                                                ("1 GB", TypeError, "an integer or None, got str")])
def test_invalid_limits_are_refused(limit, error, said):
    layer = tessera.nn.BsrLinear(32, 32, 16).expand(0)
    with pytest.raises(error, match=f"expand: max_bytes: expected {said}"):
        layer.expand(limit)
    assert layer._expand_bytes == 0


def test_copies_of_a_layer_and_limits():
    layer, x = expanding(), torch.randn(20, 48)
    with torch.no_grad():
        check_layer(layer, x)
        other = copy.deepcopy(layer)
        assert other._expansion._dense is None
        other.values.mul_(2)
        check_layer(other, x)
        check_layer(layer, x)
        for limit in (0, 48 * 64 * 4 - 1):
            check_layer(layer.expand(limit), x, copied=False)
        check_layer(layer.expand(48 * 64 * 4), x)
        torch.testing.assert_close(torch.compile(layer, fullgraph=True)(x), layer(x), atol=1e-5,
                                   rtol=1e-5)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert layer.expand()(x).dtype == torch.bfloat16
        assert layer._expansion._dense is None
        for wrong in (torch.randn(20, 47), torch.randn(20, 48).half()):
            with pytest.raises((ValueError, TypeError)) as given:
                layer.expand(0)(wrong)
            with pytest.raises(type(given.value)) as expanded:
                layer.expand()(wrong)
            assert str(expanded.value) == str(given.value)


def test_rows_of_a_dense_copy_are_aligned():
    layer = tessera.nn.BsrLinear(42, 64, 2, density=0.9, dtype=torch.float16).expand()
    with torch.no_grad():
        check_layer(layer, torch.randn(20, 42, dtype=torch.float16), tolerance=2e-2)
    assert layer._expansion._dense.stride() == (48, 1)


# ---- attention as scaled_dot_product_attention -------------------------------------------------


def both(q, k, v, *arguments, **options):
    """Values and gradients of both."""
    operands = [x.detach().clone().requires_grad_() for x in (q, k, v)]
    ours = tessera.nn.attention(*operands, *arguments, **options)
    theirs = F.scaled_dot_product_attention(*operands, *arguments, **options)
    assert ours.shape == theirs.shape
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    weight = torch.randn_like(theirs)
    for got, want in zip(torch.autograd.grad(ours, operands, weight),
                         torch.autograd.grad(theirs, operands, weight), strict=True):
        torch.testing.assert_close(got, want, atol=2e-5, rtol=2e-5)


SHAPES = {"4-D": (2, 4), "3-D": (4,), "5-D": (2, 3, 4)}


@pytest.mark.parametrize("lead", SHAPES)
@pytest.mark.parametrize("options", [{}, dict(is_causal=True), dict(scale=0.5)])
def test_drop_in(lead, options):
    q, k, v = (torch.randn(*SHAPES[lead], n, 16) for n in (37, 37, 37))
    both(q, k, v, **options)
    both(q, k[..., :20, :], v[..., :20, :], **options)


def test_shared_heads_and_batches():
    q, k = torch.randn(2, 4, 9, 16), torch.randn(2, 2, 9, 16)
    both(q, k, k, enable_gqa=True)
    both(q, k, k, is_causal=True, enable_gqa=True)
    both(q[None], k[None], k[None], scale=0.3, enable_gqa=True)
    both(q, k[:1].repeat_interleave(2, 1), k[:1].repeat_interleave(2, 1))
    both(q, k[:, :1], k[:, :1])
    both(q, k[:, :1], torch.randn(2, 4, 9, 16))
    both(q, torch.randn(2, 4, 9, 16), k[:, :1])
    both(q[:1], k.repeat_interleave(2, 1), k.repeat_interleave(2, 1))
    both(torch.randn(3, 1, 4, 9, 16), *torch.randn(2, 1, 5, 4, 7, 16))


@pytest.mark.parametrize("sizes", [(0, 4, 5, 7), (2, 4, 0, 7), (2, 4, 5, 0)])
def test_sizes_of_zero(sizes):
    batch, heads, q_length, kv_length = sizes
    q, k = torch.randn(batch, heads, q_length, 16), torch.randn(batch, heads, kv_length, 16)
    both(q, k, k)
    both(q[None], k[None], k[None])


@pytest.mark.parametrize("shape", [(37, 53), (1, 53), (2, 1, 37, 53), (1, 4, 37, 53),
                                   (2, 4, 37, 53), (4, 37, 53), (2, 1, 1, 53)])
def test_boolean_masks(shape):
    q, k, v = torch.randn(2, 4, 37, 16), torch.randn(2, 4, 53, 16), torch.randn(2, 4, 53, 8)
    mask = torch.rand(shape) < 0.5
    mask[..., 0] = True
    both(q, k, v, mask)


def test_block_masks_and_gradients():
    q, k, v = (torch.randn(1, 2, 64, 16, requires_grad=True) for _ in range(3))
    seen = torch.as_tensor(support.visible(64, 64, left=9, right=0))
    ours = tessera.nn.attention(q, k, v, BlockMask.window(64, 64, 9, 0, 16, device="cpu"))
    theirs = F.scaled_dot_product_attention(q, k, v, seen)
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    for a, b in zip(torch.autograd.grad(ours.sum(), (q, k, v)),
                    torch.autograd.grad(theirs.sum(), (q, k, v)), strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


def test_queries_that_see_nothing_train():
    """Zeros, and no NaN in a gradient."""
    q, k, v = (torch.randn(2, 3, 20, 16, requires_grad=True) for _ in range(3))
    mask = torch.rand(20, 20) < 0.5
    mask[[0, 7]] = False
    out = tessera.nn.attention(q, k, v, mask)
    grads = torch.autograd.grad(out.square().sum(), (q, k, v))
    assert (out[:, :, [0, 7]] == 0).all() and (grads[0][:, :, [0, 7]] == 0).all()
    some = mask.any(-1)
    want = F.scaled_dot_product_attention(q[:, :, some], k, v, mask[some])
    close(out[:, :, some], want)
    for got, expected in zip(grads, torch.autograd.grad(want.square().sum(), (q, k, v)),
                             strict=True):
        close(got, expected)


WINDOW = BlockMask.window(40, 40, 9, 0, 16, device="cpu")
TRAINED = {"causal": dict(is_causal=True), "block mask": dict(attn_mask=WINDOW),
           "scale": dict(scale=0.3)}


@pytest.mark.parametrize("name", TRAINED)
def test_attention_in_training_code(name):
    """Under torch.compile and activation checkpointing: the values and gradients of a plain
    call."""
    torch._dynamo.reset()
    operands = [torch.randn(2, 4, 40, 16, requires_grad=True) for _ in range(3)]

    def call(q, k, v):
        return tessera.nn.attention(q * 2, k, v, **TRAINED[name]).square()

    want = call(*operands)
    wanted = torch.autograd.grad(want.sum(), operands)
    for got in (torch.compile(call, fullgraph=True)(*operands),
                checkpoint(call, *operands, use_reentrant=False)):
        close(got, want)
        for a, b in zip(torch.autograd.grad(got.sum(), operands), wanted, strict=True):
            close(a, b)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_attention_under_autocast(dtype):
    """As scaled_dot_product_attention: results in the narrow dtype, gradients in that of the
    operands."""
    operands = [torch.randn(2, 4, 40, 16, requires_grad=True) for _ in range(3)]
    results = []
    for function in (tessera.nn.attention, F.scaled_dot_product_attention):
        with torch.autocast("cpu", dtype=dtype):
            out = function(*operands, is_causal=True)
        results.append((out, *torch.autograd.grad(out.float().square().sum(), operands)))
    for got, want in zip(*results, strict=True):
        assert got.dtype == want.dtype
        close(got, want, atol=5e-2, rtol=5e-2)
    assert results[0][0].dtype == dtype


def test_refusals():
    q = torch.randn(2, 4, 8, 16)
    with pytest.raises(NotImplementedError, match=r"dropout_p: expected 0, got 0\.1"):
        tessera.nn.attention(q, q, q, dropout_p=0.1)
    with pytest.raises(NotImplementedError, match=r"attn_mask: .*float32.*mask == 0"):
        tessera.nn.attention(q, q, q, torch.zeros(8, 8))
    with pytest.raises(ValueError, match="beside is_causal"):
        tessera.nn.attention(q, q, q, torch.ones(8, 8, dtype=bool), is_causal=True)
    with pytest.raises(ValueError, match="enable_gqa=True shares them"):
        tessera.nn.attention(q, q[:, :2], q[:, :2])
    with pytest.raises(ValueError, match="value: expected 4 heads as query has, or one, got 2"):
        tessera.nn.attention(q, q, q[:, :2])
    with pytest.raises(ValueError, match="key: expected leading dimensions that broadcast"):
        tessera.nn.attention(q, q[:1].repeat(3, 1, 1, 1), q)
    with pytest.raises(TypeError, match="attn_mask: expected a boolean tensor"):
        tessera.nn.attention(q, q, q, "causal")
