"""PyTorch on the CPU: values, gradients against float64, registration, compilation, modes."""

import itertools
import subprocess
import sys

import numpy as np
import pytest
import support

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import torch_support  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch_support import close, double, reference  # noqa: E402

import tessera  # noqa: E402
from tessera import BlockMask, BsrMatrix, torch_ops  # noqa: E402
from tessera._signatures import ATTENTION_BACKWARD  # noqa: E402
from tessera.compat.flash_attn import flash_attn_func  # noqa: E402
from tessera.inputs import attention_inputs  # noqa: E402

F = torch.nn.functional


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)
    torch._dynamo.reset()


def qkv(q_length=37, kv_length=53, heads=4, kv_heads=2, dim=16, dim_v=24, batch=2,
        dtype=torch.float32, grad=False):
    shapes = ((batch, q_length, heads, dim), (batch, kv_length, kv_heads, dim),
              (batch, kv_length, kv_heads, dim_v))
    return [torch.randn(s, dtype=dtype).requires_grad_(grad) for s in shapes]


def seen(q_length=37, kv_length=53, **rules):
    return torch_support.seen(q_length, kv_length, **rules)


def options(q, k, **given):
    defaults = dict(layout="blhd", scale=None, softcap=0.0, causal=False, window_left=None,
                    window_right=None, q_offsets=None, kv_offsets=None, kv_begin=None, kv_end=None,
                    q_position=None, kv_position=None, page_table=None, max_q_length=0,
                    max_kv_length=0, batch_invariant=False, deterministic=True, sinks=None,
                    k_scale=None, v_scale=None, q_scale=None, mask=None, threads=0, backend=None,
                    kernel=None)
    _, _, _, *rest = attention_inputs(q, k, k, **(defaults | given))
    return tuple(rest)


class Backwards(TorchDispatchMode):
    """Collects the arguments of attention's backward passes."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function is torch.ops.tessera.attention_backward.default:
            self.calls.append(ATTENTION_BACKWARD.Arguments(*args, **(kwargs or {})))
        return function(*args, **(kwargs or {}))


# ---- Values ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype,tolerance", [(torch.float32, 1e-5), (torch.float16, 4e-3),
                                             (torch.bfloat16, 3e-2)])
def test_attention(dtype, tolerance):
    q, k, v = qkv(dtype=dtype)
    out, lse = tessera.attention(q, k, v, causal=True, return_lse=True)
    want = reference(*double(q, k, v), seen(causal=True))
    assert out.dtype == dtype and lse.dtype == torch.float32
    close(out, want[0], tolerance, tolerance)
    close(lse, want[1], tolerance, tolerance)


def test_layout_and_out():
    q, k, v = qkv()
    expected = tessera.attention(q, k, v)
    turned = [x.transpose(1, 2) for x in (q, k, v)]
    assert torch.equal(tessera.attention(*turned, layout="bhld").transpose(1, 2), expected)
    out = torch.full_like(expected, torch.nan)
    assert tessera.attention(q, k, v, out=out) is out
    assert torch.equal(out, expected)
    via_op = torch.full_like(expected, torch.nan)
    with torch.autocast("cpu", enabled=True, dtype=torch.bfloat16):
        assert tessera.attention(q, k, v, out=via_op) is via_op
    close(via_op, expected, 3e-2, 3e-2)


def test_results_are_memory_of_pytorch():
    """Memory from DLPack could neither be resized nor recorded on a stream."""
    q, k, v = qkv()
    x, weight = torch.randn(4, 32), torch.randn(16, 32)
    results = [*tessera.attention(q, k, v, return_lse=True), tessera.matmul(x, weight.T),
               tessera.linear(x[None], weight), tessera.linear(x, BsrMatrix.from_dense(weight, 8)),
               tessera.plan("attention", q, k, v).run(q, k, v)]
    assert all(y.untyped_storage().resizable() for y in results)


def test_rare_options_have_the_same_arguments_as_common_ones():
    q, k, v = qkv(64, 64)
    mask = BlockMask.from_blocks(torch.ones(4, 4) == 1, 64, 64, 16)
    for options in (dict(), dict(mask=mask), dict(softcap=5.0), dict(mask=mask, window_left=3),
                    dict(scale=0.5, causal=True, sinks=torch.randn(4)),
                    dict(mask=mask, scale=0.5, causal=True)):
        want = tessera.attention(q, k, v, threads=1, return_lse=True, **options)
        results = tessera.attention(q, k, v, return_lse=True, **options)
        for got, one in zip(results, want, strict=True):
            assert torch.equal(got, one)
    a, b, c = torch.randn(8, 32), torch.randn(32, 16), torch.randn(8, 16)
    matrix = BsrMatrix.prune(b, 8, 0.5)
    for options in (dict(), dict(bias=b[0], activation="silu"), dict(out_dtype=torch.float16),
                    dict(alpha=2.0), dict(c=c, beta=0.5), dict(bias=a[:, 0], bias_axis="row")):
        for right in (b, matrix):
            want = tessera.matmul(a, right, threads=1, **options)
            assert torch.equal(tessera.matmul(a, right, **options), want)


def test_numpy_and_torch_agree():
    q, k, v = qkv()
    same = tessera.attention(*(x.numpy() for x in (q, k, v)), causal=True)
    assert np.array_equal(tessera.attention(q, k, v, causal=True).numpy(), same)


def test_products():
    a, b = torch.randn(3, 8, 32), torch.randn(32, 16)
    close(tessera.matmul(a, b), a.double() @ b.double())
    matrix = BsrMatrix.from_dense(torch.randn(64, 32), (16, 8))
    close(tessera.linear(a, matrix), a.double() @ matrix.to_dense().double().T)
    assert torch.equal(BsrMatrix.from_torch(matrix.to_torch()).to_dense(), matrix.to_dense())
    assert torch.equal(matrix.to_torch().to_dense(), matrix.to_dense())
    sampled = tessera.sddmm(torch.randn(64, 8), torch.randn(8, 32), matrix)
    assert sampled.row_offsets is matrix.row_offsets
    squared = tessera.spgemm(matrix, matrix.T)
    close(squared.to_dense(), matrix.to_dense().double() @ matrix.to_dense().double().T)


def test_workspace_comes_from_torch():
    q = torch.randn(1, 256, 4, 64)
    out = torch.empty_like(q)
    asked = tessera.explain(tessera.attention, q, q, q, out=out)["plan"]["workspace_bytes"]
    with torch.profiler.profile(profile_memory=True) as profile:
        tessera.attention(q, q, q, out=out)
    taken = sum(e.self_cpu_memory_usage for e in profile.events() if e.self_cpu_memory_usage > 0)
    allocated = [e for e in profile.profiler.kineto_results.events() if e.nbytes() > 0]
    assert max([taken, *(e.nbytes() for e in allocated)]) >= asked > 0


# ---- Gradients ---------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [None, 2, "no"])
def test_deterministic_is_true_or_false(given):
    q, k, v = qkv(dim=16, dim_v=16)
    for function in (tessera.attention, flash_attn_func):
        with pytest.raises(TypeError, match="attention: deterministic: expected True or False"):
            function(q, k, v, deterministic=given)


def test_only_the_caller_allows_any_order_of_sums():
    q, k, v = qkv(dim=16, dim_v=16, grad=True)
    for function, options, wanted in [
            (tessera.attention, {}, True), (tessera.attention, {"deterministic": False}, False),
            (flash_attn_func, {}, False), (flash_attn_func, {"deterministic": True}, True)]:
        with Backwards() as backwards:
            function(q, k, v, **options).sum().backward()
        assert [call.deterministic for call in backwards.calls] == [wanted]

RULES = {
    "dense": ({}, {}),
    "causal": (dict(causal=True), dict(causal=True)),
    "window and softcap": (dict(window_left=9, window_right=3, softcap=3.0),
                           dict(left=9, right=3)),
}


@pytest.mark.parametrize("layout", ["blhd", "bhld"])
@pytest.mark.parametrize("rule", RULES)
def test_attention_gradients(rule, layout):
    given, rules = RULES[rule]
    q, k, v = qkv(grad=True)
    sinks = torch.randn(4, requires_grad=True)
    wide = double(q, k, v, sinks)
    want = reference(*wide[:3], seen(**rules), given.get("softcap", 0.0), wide[3])
    turn = (lambda x: x.transpose(1, 2)) if layout == "bhld" else (lambda x: x)
    out, lse = tessera.attention(turn(q), turn(k), turn(v), sinks=sinks, return_lse=True,
                                 layout=layout, **given)
    out = turn(out)
    dout, dlse = torch.randn_like(out), torch.randn_like(lse)
    torch.autograd.backward((out, lse), (dout, dlse))
    torch.autograd.backward(want, (dout.double(), dlse.double()))
    close(out, want[0])
    for got, expected in zip((q, k, v, sinks), wide, strict=True):
        close(got.grad, expected.grad)


@pytest.mark.parametrize("heads", [1, 2, 4])
def test_gradients_under_a_block_mask(heads):
    q, k, v = qkv(64, 64, grad=True)
    elements = torch.rand(2, heads, 64, 64) < 0.4
    mask = BlockMask.from_dense(elements, 16)
    wide = double(q, k, v)
    want, _ = reference(*wide, elements.repeat_interleave(4 // heads, 1))
    dout = torch.randn_like(want)
    tessera.attention(q, k, v, mask=mask).backward(dout.float())
    want.backward(dout)
    for got, expected in zip((q, k, v), wide, strict=True):
        close(got.grad, expected.grad)


def test_only_wanted_gradients():
    q, k, v = qkv()
    k.requires_grad_()
    _, lse = tessera.attention(q, k, v, return_lse=True)
    lse.sum().backward()
    assert q.grad is None and v.grad is None and k.grad.abs().sum() > 0


def test_one_trained_argument_is_enough():
    q, k, v = qkv()
    a, b, c, bias = torch.randn(32, 48), torch.randn(48, 64), torch.randn(32, 64), torch.randn(64)
    pattern = BsrMatrix.from_dense(torch.as_tensor(support.sparse(32, 64, (16, 8))), (16, 8))
    calls = [
        (lambda q, k, v, sinks: tessera.attention(q, k, v, sinks=sinks), (q, k, v, torch.randn(4))),
        (lambda a, b, c, bias: tessera.matmul(a, b, c=c, beta=2.0, bias=bias), (a, b, c, bias)),
        (lambda a, b, values: tessera.sddmm(a, b, pattern.with_values(values), beta=2.0).values,
         (a, b, pattern.values)),
    ]
    for call, given in calls:
        leaves = [x.clone().requires_grad_() for x in given]
        for i, want in enumerate(torch.autograd.grad(call(*leaves).sum(), leaves)):
            (got,) = torch.autograd.grad(call(*given[:i], leaves[i], *given[i + 1 :]).sum(),
                                         leaves[i])
            close(got, want)


def test_no_second_derivative():
    q, k, v = qkv(grad=True)
    (dq,) = torch.autograd.grad(tessera.attention(q, k, v).sum(), q, create_graph=True)
    with pytest.raises(NotImplementedError, match="attention: no second derivative"):
        dq.sum().backward()
    dout = torch.randn(2, 37, 4, 24, requires_grad=True)
    out = tessera.attention(q, *(x.detach() for x in (k, v)))
    (dq,) = torch.autograd.grad(out, q, dout, create_graph=True)
    with pytest.raises(NotImplementedError, match="attention: no second derivative"):
        dq.sum().backward()


@pytest.mark.parametrize("layout", ["blhd", "bhld"])
def test_merge_gradients(layout):
    q, k, v = qkv(grad=True)
    sinks = torch.randn(4, requires_grad=True)
    wide = double(q, k, v, sinks)
    want = reference(*wide[:3], torch.ones(37, 53, dtype=bool), 0.0, wide[3])
    turn = (lambda x: x.transpose(1, 2)) if layout == "bhld" else (lambda x: x)
    parts = [tessera.attention(turn(q), turn(k[:, s]), turn(v[:, s]), layout=layout,
                               return_lse=True) for s in (slice(20), slice(20, 20), slice(20, 53))]
    out, lse = tessera.merge_states(*zip(*parts, strict=True), sinks=sinks, layout=layout)
    out = turn(out)
    dout, dlse = torch.randn_like(out), torch.randn_like(lse)
    torch.autograd.backward((out, lse), (dout, dlse))
    torch.autograd.backward(want, (dout.double(), dlse.double()))
    for got, expected in zip((q, k, v, sinks), wide, strict=True):
        close(got.grad, expected.grad)


def operand(kind, rows, cols, transposed, batch=()):
    """An operand of matmul, its trainable tensor, that tensor and the operand in float64."""
    shape = (cols, rows) if transposed else (rows, cols)
    if kind == "dense":
        x = torch.randn(*batch, *shape, requires_grad=True)
        w = x.detach().double().requires_grad_()
        return x, x, w, w.mT if transposed else w
    matrix = BsrMatrix.from_dense(torch.as_tensor(support.sparse(*shape, (16, 8), seed=5)), (16, 8))
    values = matrix.values.clone().requires_grad_()
    w = values.detach().double().requires_grad_()
    dense = matrix.with_values(w).to_dense()
    return matrix.with_values(values), values, w, dense.mT if transposed else dense


@pytest.mark.parametrize("activation", ["none", "relu", "gelu", "gelu_tanh", "silu"])
@pytest.mark.parametrize("kinds", ["dense dense", "sparse dense", "dense sparse"])
@pytest.mark.parametrize("transposed", [(False, False), (True, True)])
def test_matmul_gradients(kinds, transposed, activation):
    first, second = kinds.split()
    a, a_leaf, a_wide, a_dense = operand(first, 32, 48, transposed[0])
    b, b_leaf, b_wide, b_dense = operand(second, 48, 64, transposed[1])
    bias, c = torch.randn(64, requires_grad=True), torch.randn(32, 64, requires_grad=True)
    wide_bias, wide_c = double(bias, c)
    out = tessera.matmul(a, b, transpose_a=transposed[0], transpose_b=transposed[1], bias=bias,
                         c=c, alpha=0.5, beta=2.0, activation=activation)
    functions = {"none": lambda x: x, "relu": F.relu, "gelu": F.gelu, "silu": F.silu,
                 "gelu_tanh": lambda x: F.gelu(x, approximate="tanh")}
    want = functions[activation](0.5 * a_dense @ b_dense + 2.0 * wide_c + wide_bias)
    close(out, want)
    dout = torch.randn_like(out)
    out.backward(dout)
    want.backward(dout.double())
    for got, expected in ((a_leaf, a_wide), (b_leaf, b_wide), (bias, wide_bias), (c, wide_c)):
        close(got.grad, expected.grad, 2e-4, 2e-4)


@pytest.mark.parametrize("kinds", ["dense dense", "sparse dense", "dense sparse"])
def test_shared_operand_of_a_batch(kinds):
    first, second = kinds.split()
    a, a_leaf, a_wide, a_dense = operand(first, 32, 48, False,
                                         (3,) if second == "sparse" else ())
    b, b_leaf, b_wide, b_dense = operand(second, 48, 64, False, (3,))
    out, want = tessera.matmul(a, b), a_dense @ b_dense
    dout = torch.randn_like(out)
    out.backward(dout)
    want.backward(dout.double())
    close(a_leaf.grad, a_wide.grad, 2e-4, 2e-4)
    close(b_leaf.grad, b_wide.grad, 2e-4, 2e-4)


@pytest.mark.parametrize("axis", ["rows", "inner"])
@pytest.mark.parametrize("transposed", [False, True])
def test_grouped_gradients(axis, transposed):
    offsets = torch.tensor([0, 5, 5, 20], dtype=torch.int32)
    a_shape, b_shape = ((20, 16), (3, 16, 8)) if axis == "rows" else ((16, 20), (20, 8))
    a, b = torch.randn(a_shape), torch.randn(b_shape)
    if transposed:
        a, b = a.mT.contiguous(), b.mT.contiguous()
    a.requires_grad_(), b.requires_grad_()
    wide = double(a, b)
    x, y = (w.mT if transposed else w for w in wide)
    cuts = list(itertools.pairwise(offsets))
    if axis == "rows":
        want = torch.cat([x[s:e] @ y[g] for g, (s, e) in enumerate(cuts)])
    else:
        want = torch.stack([x[:, s:e] @ y[s:e] for s, e in cuts])
    out = tessera.matmul(a, b, transpose_a=transposed, transpose_b=transposed,
                         group_offsets=offsets, group_axis=axis)
    close(out, want)
    dout = torch.randn_like(out)
    out.backward(dout)
    want.backward(dout.double())
    close(a.grad, wide[0].grad)
    close(b.grad, wide[1].grad)


@pytest.mark.parametrize("transposed", [(False, False), (True, True)])
def test_sddmm_gradients(transposed):
    pattern = BsrMatrix.from_dense(torch.as_tensor(support.sparse(32, 64, (16, 8))), (16, 8))
    values = pattern.values.clone().requires_grad_()
    a = torch.randn((24, 32) if transposed[0] else (32, 24), requires_grad=True)
    b = torch.randn((64, 24) if transposed[1] else (24, 64), requires_grad=True)
    wide = double(a, b, values)
    out = tessera.sddmm(a, b, pattern.with_values(values), transpose_a=transposed[0],
                        transpose_b=transposed[1], alpha=0.5, beta=3.0)
    stored = pattern.with_values(torch.ones_like(pattern.values)).to_dense()
    x, y = (w.mT if t else w for w, t in zip(wide[:2], transposed, strict=True))
    want = 0.5 * (x @ y) * stored + 3.0 * pattern.with_values(wide[2]).to_dense()
    close(out.to_dense(), want)
    dout = torch.randn(32, 64)
    out.to_dense().backward(dout)
    want.backward(dout.double())
    for got, expected in zip((a, b, values), wide, strict=True):
        close(got.grad, expected.grad)


# ---- Registration, compilation, modes ----------------------------------------------------------


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("case", ["causal", "mask", "bhld", "packed"])
def test_opcheck_attention(case, grad):
    q, k, v = qkv(64, 64, grad=grad)
    given = {"causal": dict(causal=True, sinks=torch.randn(4, requires_grad=grad)),
             "mask": dict(mask=BlockMask.from_dense(torch.rand(64, 64) < 0.5, 16)),
             "bhld": dict(layout="bhld", window_left=3),
             "packed": dict(q_offsets=torch.tensor([0, 10, 64]),
                            kv_offsets=torch.tensor([0, 20, 64]))}[case]
    if case == "bhld":
        q, k, v = (x.detach().transpose(1, 2).requires_grad_(grad) for x in (q, k, v))
    if case == "packed":
        q, k, v = (x.detach()[0].requires_grad_(grad) for x in (q, k, v))
    torch.library.opcheck(torch.ops.tessera.attention.default, (q, k, v, *options(q, k, **given)))


def test_opcheck_the_others():
    q, k, v = qkv(64, 64)
    given = options(q, k, causal=True)
    out, lse = torch.ops.tessera.attention.default(q, k, v, *given)
    torch.library.opcheck(torch.ops.tessera.attention_backward.default,
                          (out, lse, q, k, v, out, lse, *given, [True, False, True, False]))
    torch.library.opcheck(torch.ops.tessera.merge_states.default,
                          ([out.clone().requires_grad_(), out.clone()], [lse.clone(), lse.clone()],
                           torch.randn(4), False, 0, None, None))
    dense = torch.randn(32, 48, requires_grad=True)
    matrix = BsrMatrix.from_dense(torch.as_tensor(support.sparse(48, 64, (16, 8))), (16, 8))
    values = matrix.values.clone().requires_grad_()
    torch.library.opcheck(
        torch.ops.tessera.matmul.default,
        (dense, None, None, 0, 0, False, None, values, *matrix.arrays[1:], False, None, None,
         torch.randn(64), None, 1.0, 0.0, False, "silu", False, 0, None, None, None))
    torch.library.opcheck(
        torch.ops.tessera.sddmm.default,
        (torch.randn(48, 8, requires_grad=True), None, None, 0, 0, False, None, torch.randn(8, 64),
         None, None, 0, 0, False, None, values, *matrix.arrays[1:], 1.0, 2.0, 0, None, None, None))


def test_opcheck_lists():
    blocks, scores = torch.rand(2, 3, 5, 7) < 0.5, torch.rand(2, 3, 5, 7)
    lists = torch.ops.tessera.list_blocks.default(blocks, 7)
    torch.library.opcheck(torch.ops.tessera.list_blocks.default, (blocks, 4))
    torch.library.opcheck(torch.ops.tessera.top_k_blocks.default, (scores, 2, 3))
    torch.library.opcheck(torch.ops.tessera.transpose_lists.default, (*lists, 7, 5))


def test_options_of_the_operation_have_defaults():
    op = torch.ops.tessera.attention.default
    q, k, v = qkv(grad=True)
    sinks = torch.randn(4, requires_grad=True)
    for given in (dict(), dict(causal=True, window_left=5), dict(sinks=sinks), dict(threads=1)):
        out, lse = op(q, k, v, **given)
        all_given = op(q, k, v, *options(q, k, **given))
        assert torch.equal(out, all_given[0]) and torch.equal(lse, all_given[1])
        leaves = (q, k, v, *([sinks] if "sinks" in given else []))
        for a, b in zip(torch.autograd.grad(out.sum() + lse.sum(), leaves),
                        torch.autograd.grad(sum(x.sum() for x in all_given), leaves), strict=True):
            assert torch.equal(a, b)
    assert op(*(x.to("meta") for x in (q, k, v)), bhld=True)[1].shape == (2, 37, 4)


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiles_with_tensors_among_the_options(dynamic):
    q, k, v = (x[0].detach().requires_grad_() for x in qkv(64, 64))
    sinks = torch.randn(4)

    def model(q, k, v, q_offsets, kv_offsets, sinks):
        out = tessera.attention(q, k, v, q_offsets=q_offsets, kv_offsets=kv_offsets, causal=True)
        return out + tessera.attention(q[None], k[None], v[None], sinks=sinks)[0]

    given = (q, k, v, torch.tensor([0, 10, 64]), torch.tensor([0, 20, 64]), sinks)
    expected = model(*given)
    got = torch.compile(model, fullgraph=True, dynamic=dynamic)(*given)
    close(got, expected)
    wanted = torch.autograd.grad(expected.sum(), (q, k, v))
    for a, b in zip(torch.autograd.grad(got.sum(), (q, k, v)), wanted, strict=True):
        close(a, b)


@pytest.mark.parametrize("grad", [False, True])
def test_compiles_whole(grad):
    q, k, v = qkv(64, 64, grad=grad)
    mask = BlockMask.window(64, 64, 20, 0, 16, device="cpu")
    matrix = BsrMatrix.from_dense(torch.as_tensor(support.sparse(32, 24, (16, 8))), (16, 8))

    def model(q, k, v):
        out, lse = tessera.attention(q, k, v, mask=mask, return_lse=True)
        return tessera.linear(out * 2, matrix, activation="relu").sum() + lse.sum()

    expected = model(q, k, v)
    got = torch.compile(model, fullgraph=True)(q, k, v)
    close(got, expected)
    if grad:
        wanted = torch.autograd.grad(expected, (q, k, v))
        for a, b in zip(torch.autograd.grad(got, (q, k, v)), wanted, strict=True):
            close(a, b)


def test_new_lengths_do_not_recompile():
    compiled = torch.compile(lambda q, k, v: tessera.attention(q, k, v, causal=True) + 1,
                             fullgraph=True, dynamic=True)
    compiled(*qkv(33, 33))
    counters = torch._dynamo.utils.counters
    before = counters["stats"]["unique_graphs"]
    with torch._dynamo.config.patch(error_on_recompile=True):
        for length in (40, 57, 96):
            q, k, v = qkv(length, length)
            close(compiled(q, k, v), tessera.attention(q, k, v, causal=True) + 1)
    assert counters["stats"]["unique_graphs"] == before


def test_autocast():
    q, k, v = qkv(grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = tessera.attention(q, k, v)
        product = tessera.linear(q, torch.randn(8, 16))
    assert out.dtype == product.dtype == torch.bfloat16
    out.float().sum().backward()
    assert q.grad.dtype == torch.float32
    close(out, reference(*double(q, k, v), seen())[0], 3e-2, 3e-2)


def test_modes_see_the_call():
    from torch.utils._python_dispatch import TorchDispatchMode

    class Recorder(TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.names = []

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            self.names.append(str(function))
            return function(*args, **(kwargs or {}))

    with Recorder() as recorder:
        tessera.attention(*qkv())
    assert "tessera.attention.default" in recorder.names


def test_fake_and_meta_tensors_give_shapes():
    from torch._subclasses.fake_tensor import FakeTensorMode

    q, k, v = (x.to("meta") for x in qkv())
    assert tessera.attention(q, k, v).shape == (2, 37, 4, 24)
    with FakeTensorMode():
        out = tessera.attention(*qkv())
    assert out.shape == (2, 37, 4, 24)


def test_plain_calls_go_direct():
    q, k, v = qkv()
    assert torch_ops.is_plain(q, k, v)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not torch_ops.is_plain(q)
    q.requires_grad_()
    assert not torch_ops.is_plain(q)
    with torch.no_grad():
        assert torch_ops.is_plain(q)
    seen_inside = []
    torch.func.vmap(lambda x: seen_inside.append(torch_ops.is_plain(k)) or x)(torch.ones(2))
    assert seen_inside == [False]


def test_plain_attention_leaves_other_calls_alone():
    q, k, v = qkv(dim_v=16)
    expected = tessera.attention(q, k, v, causal=True)
    assert torch.equal(torch_ops.plain_attention(q, k, v, False, None, True), expected)
    wide = torch.randn(*v.shape[:-1], 40)  # out has another shape than q
    out = torch_ops.plain_attention(q, k, wide, False, None, False)
    assert torch.equal(out, tessera.attention(q, k, wide, softcap=0.0))
    assert out.shape == (*q.shape[:-1], 40)
    assert torch_ops.plain_attention(q, k.numpy(), v, False, None, False) is None
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch_ops.plain_attention(q, k, v, False, None, False) is None
    k.requires_grad_()
    assert torch_ops.plain_attention(q, k, v, False, None, False) is None
    with torch.no_grad():
        assert torch_ops.plain_attention(q, k, v, False, None, False) is not None


def test_an_out_of_another_shape_is_refused_in_a_plain_call():
    q, k, v = qkv()
    with pytest.raises(ValueError, match="attention: out: expected shape"):
        tessera.attention(q, k, v, out=torch.empty_like(q))


# ---- Masks and matrices of torch tensors -------------------------------------------------------


def test_masks_agree_with_numpy():
    elements = np.random.default_rng(0).random((2, 1, 50, 70)) < 0.5
    ours = BlockMask.from_dense(torch.as_tensor(elements), (16, 32))
    theirs = BlockMask.from_dense(elements, (16, 32))
    for a, b in zip(ours.arrays, theirs.arrays, strict=True):
        assert np.array_equal(np.asarray(a), b)
    assert torch.equal(ours.to_dense(), torch.as_tensor(elements))
    assert torch.equal(theirs.to("cpu").to_dense(), torch.as_tensor(elements))
    scores = torch.rand(4, 6)
    assert torch.equal(BlockMask.from_top_k(scores, 2, 64, 96, 16).block_map(),
                       torch.as_tensor(BlockMask.from_top_k(scores.numpy(), 2, 64, 96,
                                                            16).block_map()))
    assert all(np.array_equal(a, b) for one, same in zip(ours.lists_by_column(),
                                                         theirs.lists_by_column(), strict=True)
               for a, b in zip(one, same, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_top_k_of_scores_with_a_gradient(dtype):
    scores = torch.rand(2, 1, 4, 6, requires_grad=True).to(dtype)
    mask = BlockMask.from_top_k(scores.masked_fill(torch.tensor([1, 0, 0, 0, 0, 1]) == 1,
                                                   -torch.inf), 3, 64, 96, 16)
    columns = scores[..., 1:5].topk(3).indices.sort().values + 1
    assert torch.equal(mask.full_indices, columns.int())


def test_masks_are_made_inside_compiled_code():
    def model(scores, q):
        mask = BlockMask.from_top_k(scores, 2, 64, 64, 16)
        return tessera.attention(q, q, q, mask=mask)

    scores, q = torch.rand(1, 4, 4, 4), torch.randn(1, 64, 4, 16)
    close(torch.compile(model, fullgraph=True)(scores, q), model(scores, q))


@pytest.mark.parametrize("lengths", [(256, 256), (200, 300)])
def test_flex_masks(lengths):
    flex = pytest.importorskip("torch.nn.attention.flex_attention")
    document = torch.arange(max(lengths)) // 90

    def mod(b, h, q, kv):
        return (document[q] == document[kv]) & (q >= kv)

    theirs = flex.create_block_mask(mod, None, None, *lengths, device="cpu", BLOCK_SIZE=64)
    expected = mod(0, 0, torch.arange(lengths[0])[:, None], torch.arange(lengths[1]))
    ours = BlockMask.from_flex(theirs)
    assert torch.equal(ours.to_dense()[0, 0], expected)
    back = BlockMask.from_flex(ours.to_flex())
    assert torch.equal(back.to_dense()[0, 0], expected)


@pytest.mark.filterwarnings("ignore:flex_attention called without")
def test_flex_attention_runs_our_mask():
    flex = pytest.importorskip("torch.nn.attention.flex_attention")
    q = torch.randn(1, 2, 128, 16)
    mask = BlockMask.from_dense(torch.rand(128, 128) < 0.5, 32)
    theirs = flex.flex_attention(q, q, q, block_mask=mask.to_flex())
    close(tessera.attention(q, q, q, mask=mask, layout="bhld"), theirs)


# ---- Bad input ---------------------------------------------------------------------------------


def test_refusals():
    q, k, v = qkv()
    with pytest.raises(TypeError, match=r"attention: q: .*got float64; convert it first"):
        tessera.attention(q.double(), k.double(), v.double())
    with pytest.raises(ValueError, match="attention: k: expected dtype f32"):
        tessera.attention(q, k.half(), v)
    with pytest.raises(TypeError, match=r"PyTorch tensors throughout, got a numpy\.ndarray"):
        tessera.attention(q, k.numpy(), v)
    with pytest.raises(TypeError, match="NumPy arrays throughout, got a Tensor"):
        tessera.attention(q.numpy(), k, v)
    for x in (torch.ones(4, 4), torch.ones(4), torch.ones(())):
        for grad in (False, True):
            with pytest.raises(ValueError, match="attention: q: expected"):
                tessera.attention(x.requires_grad_(grad), x, x, return_lse=True)
    out = torch.empty(2, 37, 4, 24)
    with pytest.raises(RuntimeError, match="out: cannot be given where a gradient is recorded"):
        tessera.attention(q.requires_grad_(), k, v, out=out)
    matrix = BsrMatrix.from_dense(torch.eye(32), 16)
    trained = matrix.with_values(matrix.values.clone().requires_grad_())
    with pytest.raises(NotImplementedError, match="spgemm: no gradient"):
        tessera.spgemm(trained, matrix)
    with pytest.raises(TypeError, match=r"from_torch: expected a torch\.sparse_bsr tensor"):
        BsrMatrix.from_torch(torch.eye(4))


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("convert", ["to_sparse_csr", "to_sparse", "to_sparse_bsr"])
def test_sparse_tensors_are_refused_by_name(convert, grad):
    dense = torch.eye(32, requires_grad=grad)
    sparse = getattr(torch.eye(32), convert)(*([16] if convert == "to_sparse_bsr" else []))
    pattern = BsrMatrix.from_dense(torch.eye(32), 16)
    calls = {
        "matmul: a": lambda: tessera.matmul(sparse, dense),
        "matmul: b": lambda: tessera.matmul(dense, sparse),
        "matmul: c": lambda: tessera.matmul(dense, dense, c=sparse, beta=1.0),
        "linear: x": lambda: tessera.linear(sparse, dense),
        "linear: weight": lambda: tessera.linear(dense, sparse),
        "sddmm: b": lambda: tessera.sddmm(dense, sparse, pattern),
        "attention: q": lambda: tessera.attention(sparse, dense, dense),
        "attention: k": lambda: tessera.attention(dense, sparse, dense),
        "attention: v": lambda: tessera.attention(dense, dense, sparse),
    }
    for name, call in calls.items():
        with pytest.raises(TypeError, match=rf"^{name}: .*sparse.*BsrMatrix\.from_torch"):
            call()


@pytest.mark.parametrize("dtype,name", [(torch.float64, "float64"), (torch.complex64, "complex64")])
@pytest.mark.parametrize("grad", [False, True])
def test_dtypes_are_refused_by_name(dtype, name, grad):
    q, k, v = qkv(grad=grad)
    with pytest.raises(TypeError, match=f"attention: k: expected float32.*got {name}; convert"):
        tessera.attention(q, k.to(dtype), v)
    with pytest.raises(TypeError, match=r"attention: k: .*got list"):
        tessera.attention(q, [1.0], v)


def test_the_error_for_a_flex_mask_names_the_converter():
    flex = pytest.importorskip("torch.nn.attention.flex_attention")
    theirs = flex.create_block_mask(lambda b, h, q, kv: q >= kv, None, None, 37, 37, device="cpu")
    q, k, v = qkv(37, 37)
    with pytest.raises(TypeError, match=r"attention: mask: .*got torch\.nn\.attention.*BlockMask; "
                                        r".*BlockMask\.from_flex"):
        tessera.attention(q, k, v, mask=theirs)
    with pytest.raises(TypeError, match=r"attn_mask: .*BlockMask\.from_flex"):
        tessera.nn.attention(q, q, q, attn_mask=theirs)
    with pytest.raises(TypeError, match=r"from_flex: mask: expected a torch\.nn\.attention"):
        BlockMask.from_flex(BlockMask.causal(64, 64))


def test_merge_states_needs_lists():
    with pytest.raises(TypeError, match=r"outs: expected a list of tensors.*got a single Tensor"):
        tessera.merge_states(torch.zeros(2, 4, 2, 8), torch.zeros(2, 2, 4))


def test_zero_sizes():
    q, k, v = qkv(0, 5, grad=True)
    tessera.attention(q, k, v).sum().backward()
    assert k.grad.abs().sum() == 0
    q, k, v = qkv(5, 0)
    assert tessera.attention(q, k, v).abs().sum() == 0
    assert tessera.matmul(torch.ones(0, 4), torch.ones(4, 3)).shape == (0, 3)
    assert tessera.matmul(torch.ones(2, 0), torch.ones(0, 3)).abs().sum() == 0


def test_import_needs_no_torch():
    script = ("import sys; sys.modules['torch'] = None\n"
              "import numpy as np, tessera\n"
              "q = np.ones((1, 4, 2, 8), np.float32)\n"
              "assert tessera.attention(q, q, q).shape == q.shape\n")
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_explain_plans_for_a_gpu_that_is_not_here(device):
    q = torch.empty((1, 4096, 16, 128), dtype=torch.bfloat16, device=device)
    k = q.new_empty((1, 4096, 4, 128))
    answer = tessera.explain(tessera.attention, q, k, k, causal=True, device="h100")
    assert answer["supported"] and answer["plan"]["backend"] == "sm90", answer
    a = torch.empty((16, 8192), dtype=torch.float16, device=device)
    b = a.new_empty((8192, 8192))
    answer = tessera.explain(tessera.matmul, a, b, transpose_b=True, device="h200")
    assert answer["supported"] and answer["plan"]["backend"] == "sm90", answer
    if device == "meta":
        with pytest.raises(ValueError, match="explain: device: expected the device to plan for"):
            tessera.explain(tessera.attention, q, k, k)


@pytest.mark.skipif(
    tuple(map(int, torch.__version__.split(".")[:2])) < (2, 10) and not torch.cuda.is_available(),
    reason="without a GPU, PyTorch before 2.10 aborts where a fake tensor of one has a gradient")
@pytest.mark.parametrize("trained", ["q", "k", "v", "sinks"])
def test_a_gradient_on_a_gpu_is_recorded(trained):
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        given = {name: torch.empty((1, 128, 4, 64), dtype=torch.bfloat16, device="cuda")
                 for name in "qkv"}
        given["sinks"] = torch.empty(4, device="cuda")
        given[trained].requires_grad_()
        assert tessera.attention(**given).requires_grad
        with torch.no_grad():
            assert tessera.attention(**given).shape == (1, 128, 4, 64)
        a = torch.empty((64, 64), dtype=torch.bfloat16, device="cuda", requires_grad=True)
        assert tessera.matmul(a, a).requires_grad  # products have their gradients on GPUs
