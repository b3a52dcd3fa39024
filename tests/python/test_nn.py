import copy

import pytest
import support

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

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


# ---- attention as scaled_dot_product_attention -------------------------------------------------


def both(q, k, v, *arguments, **options):
    ours = tessera.nn.attention(q, k, v, *arguments, **options)
    theirs = F.scaled_dot_product_attention(q, k, v, *arguments, **options)
    assert ours.shape == theirs.shape
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


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
    both(q, k[:1].repeat_interleave(2, 1), k[:1].repeat_interleave(2, 1))


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
    with pytest.raises(TypeError, match="attn_mask: expected a boolean tensor"):
        tessera.nn.attention(q, q, q, "causal")
