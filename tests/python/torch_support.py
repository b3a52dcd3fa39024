"""Differentiable references in PyTorch, and helpers of the tests that compare gradients with them.
Nothing here uses tessera."""

import pytest
import support

torch = pytest.importorskip("torch", reason="PyTorch is not installed")


def seen(q_length, kv_length, **rules):
    """`support.visible` as a tensor."""
    return torch.as_tensor(support.visible(q_length, kv_length, **rules))


def reference(q, k, v, mask, softcap=0.0, sinks=None, scale=None):
    """Attention in the dtype of the tensors: out [b, l, h, d], lse [b, h, l]. `mask` broadcasts to
    [b, h, q, kv]."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    scores = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    mask = mask.expand(scores.shape)
    if sinks is not None:
        column = sinks[None, :, None, None].expand(*scores.shape[:3], 1)
        scores = torch.cat([scores, column], -1)
        mask = torch.cat([mask, torch.ones_like(mask[..., :1])], -1)
    some = mask.any(-1, keepdim=True)
    # The scores of a query that sees nothing stay finite: NaN would reach every gradient.
    scores = scores.masked_fill(~mask & some, -torch.inf)
    lse = scores.logsumexp(-1) if scores.shape[-1] else scores.sum(-1)
    weights = (scores - lse[..., None]).exp() * mask
    out = (weights[..., : k.shape[2]] @ v).transpose(1, 2)
    return out, lse.masked_fill(~some.squeeze(-1), -torch.inf)


def double(*tensors):
    return [x.detach().double().requires_grad_() for x in tensors]


def close(got, want, atol=5e-5, rtol=5e-5):
    torch.testing.assert_close(got.double(), want.double(), atol=atol, rtol=rtol)


def gradients(results, weights, leaves):
    """Of the sum of results times weights."""
    total = sum((x * w.to(x.dtype)).sum() for x, w in zip(results, weights, strict=True))
    return torch.autograd.grad(total, leaves)
