"""PyTorch on a GPU: values against float64, streams, graphs, devices, refusals."""

import functools
import re
import threading

import pytest
import support

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import tessera  # noqa: E402
from tessera import BlockMask, BsrMatrix  # noqa: E402

HAS_GPU = torch.cuda.is_available() and tessera.cuda_device_count() > 0
IS_HOPPER = HAS_GPU and torch.cuda.get_device_capability()[0] == 9

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not HAS_GPU, reason="no GPU, or a build without TESSERA_CUDA=ON"),
]
products = pytest.mark.skipif(not IS_HOPPER, reason="products need compute capability 9.x")
halves = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
# The relative error of rounding a result once; sums are float32.
ROUNDING = {torch.bfloat16: 2**-8, torch.float16: 2**-11, torch.float32: 1e-5}


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def normal(*shape, dtype=torch.bfloat16, device="cuda"):
    return torch.randn(shape, dtype=torch.float32, device=device).to(dtype)


def close(got, want):
    assert got.is_cuda and got.device == want.device
    torch.testing.assert_close(got.double(), want.double(), rtol=ROUNDING[got.dtype], atol=1e-4)


def sparse(rows, cols, block, dtype=torch.bfloat16):
    """A matrix with an empty row of blocks, and its dense form in float64."""
    dense = torch.as_tensor(support.sparse(rows, cols, (block, block))).to("cuda", dtype)
    return BsrMatrix.from_dense(dense, block), dense.double()


def merged(outs, lses, sinks=None):
    """[.., length, heads, dim] and [.., heads, length], in float64."""
    lses = torch.stack(lses).double()
    columns = [lses] if sinks is None else [lses, sinks.double()[:, None].expand_as(lses[:1])]
    lse = torch.cat(columns).logsumexp(0)
    weights = torch.where(lses == -torch.inf, 0.0, (lses - lse).exp()).transpose(-1, -2)
    return (weights[..., None] * torch.stack(outs).double()).sum(0), lse


def parts(count=3, dtype=torch.bfloat16):
    """Partial results; the last part saw no key in its first rows."""
    outs = [normal(2, 37, 4, 72, dtype=dtype) for _ in range(count)]
    lses = [normal(2, 4, 37, dtype=torch.float32) for _ in range(count)]
    lses[-1][..., :5] = -torch.inf
    return outs, lses


# ---- Values ------------------------------------------------------------------------------------


@pytest.mark.parametrize("with_sinks", [False, True])
@pytest.mark.parametrize("dtype", ROUNDING)
def test_merge_states(dtype, with_sinks):
    outs, lses = parts(dtype=dtype)
    sinks = normal(4, dtype=torch.float32) if with_sinks else None
    out, lse = tessera.merge_states(outs, lses, sinks=sinks)
    want = merged(outs, lses, sinks)
    assert out.dtype == dtype and lse.dtype == torch.float32
    close(out, want[0])
    close(lse, want[1])
    turned = [x.transpose(1, 2) for x in outs]
    assert torch.equal(tessera.merge_states(turned, lses, sinks=sinks, layout="bhld")[0],
                       out.transpose(1, 2))


@products
@halves
@pytest.mark.parametrize("transpose_a", [False, True])
@pytest.mark.parametrize("transpose_b", [False, True])
def test_matmul(dtype, transpose_a, transpose_b):
    a, b = normal(2, 200, 104, dtype=dtype), normal(104, 136, dtype=dtype)
    want = a.double() @ b.double()
    out = tessera.matmul(a.mT.contiguous() if transpose_a else a,
                         b.mT.contiguous() if transpose_b else b,
                         transpose_a=transpose_a, transpose_b=transpose_b)
    assert out.dtype == dtype
    close(out, want)


@products
@halves
def test_epilogue(dtype):
    a, b = normal(64, 96, dtype=dtype), normal(96, 72, dtype=dtype)
    c, bias = normal(64, 72, dtype=dtype), normal(72, dtype=dtype)
    out = tessera.matmul(a, b, c=c, bias=bias, alpha=0.5, beta=2.0, activation="silu",
                         out_dtype=torch.float32)
    close(out, torch.nn.functional.silu(0.5 * (a.double() @ b.double()) + 2 * c.double()
                                        + bias.double()))
    given = torch.full((64, 72), torch.nan, dtype=dtype, device="cuda")
    assert tessera.matmul(a, b, out=given) is given
    close(given, a.double() @ b.double())


@products
@halves
@pytest.mark.parametrize("block", [16, 32, 64, 128])
def test_bsr_matmul(dtype, block):
    weight, dense = sparse(512, 384, block, dtype)
    right, left = normal(384, 88, dtype=dtype), normal(88, 512, dtype=dtype)
    close(tessera.bsr_matmul(weight, right), dense @ right.double())
    close(tessera.bsr_matmul(left, weight), left.double() @ dense)
    close(weight.T @ left.T.contiguous(), dense.T @ left.double().T)


@products
@halves
@pytest.mark.parametrize("block", [16, 32, 64, 128])
def test_sddmm(dtype, block):
    pattern, _ = sparse(512, 384, block, dtype)
    a, b = normal(512, 96, dtype=dtype), normal(96, 384, dtype=dtype)
    got = tessera.sddmm(a, b, pattern).to_dense()
    stored = pattern.with_values(torch.ones_like(pattern.values)).to_dense().double()
    close(got, (a.double() @ b.double()) * stored)


@products
@halves
@pytest.mark.parametrize("block", [16, 64, 128])
def test_spgemm(dtype, block):
    (a, dense_a), (b, dense_b) = sparse(512, 384, block, dtype), sparse(384, 256, block, dtype)
    close(tessera.spgemm(a, b).to_dense(), dense_a @ dense_b)


@products
@halves
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dim", [64, 72, 128])
def test_attention(dtype, causal, dim):
    q = normal(2, 200, 8, dim, dtype=dtype)
    k, v = normal(2, 200, 2, dim, dtype=dtype), normal(2, 200, 2, dim, dtype=dtype)
    out, lse = tessera.attention(q, k, v, causal=causal, return_lse=True)
    # Four query heads per KV head.
    heads, keys, values = (x.double().transpose(1, 2).repeat_interleave(n, 1)
                           for x, n in ((q, 1), (k, 4), (v, 4)))
    scores = heads @ keys.mT / dim**0.5
    if causal:
        scores.masked_fill_(torch.ones(200, 200, device="cuda").triu(1).bool(), -torch.inf)
    assert out.dtype == dtype and lse.dtype == torch.float32
    want = (scores.softmax(-1) @ values).transpose(1, 2)
    mask = tessera.BlockMask.causal(200, 200, block=128, device="cuda")
    listed = [tessera.attention(q, k, v, mask=mask)] if causal else []
    for one in (out, *listed):  # P and results are rounded
        torch.testing.assert_close(one.double(), want, rtol=2 * ROUNDING[dtype], atol=1e-2)
    torch.testing.assert_close(lse.double(), scores.logsumexp(-1), rtol=1e-4, atol=1e-4)


@products
@halves
@pytest.mark.parametrize("dim", [64, 96, 128, 192, 256])
def test_bits_do_not_depend_on_lse_or_on_the_compiler(dtype, dim):
    q, k, v = (normal(1, 384, 4, dim if x < 2 or dim != 192 else 128, dtype=dtype)
               for x in range(3))
    scores = torch.rand(1, 4, 3, 3, device="cuda")
    torch.compiler.reset()  # each call below recompiles, and PyTorch limits that per function
    compiled = torch.compile(tessera.attention, fullgraph=True)
    for options in [{}, {"causal": True}, {"mask": BlockMask.from_top_k(scores, 2, 384, 384)}]:
        want = tessera.attention(q, k, v, **options)
        assert torch.equal(tessera.attention(q, k, v, return_lse=True, **options)[0], want)
        assert torch.equal(compiled(q, k, v, **options), want)
        assert torch.equal(compiled(q, k, v, return_lse=True, **options)[0], want)


@products
@pytest.mark.parametrize("block", [32, 64])
def test_gradients_of_a_sparse_layer(block):
    weight, dense = sparse(512, 384, block)
    values = weight.values.clone().requires_grad_()
    x = normal(40, 384).requires_grad_()
    wide, wide_x = dense.clone().requires_grad_(), x.detach().double().requires_grad_()
    out, want = tessera.linear(x, weight.with_values(values)), wide_x @ wide.T
    close(out, want)
    dout = normal(40, 512)
    out.backward(dout)
    want.backward(dout.double())
    close(x.grad, wide_x.grad)
    stored = weight.with_values(torch.ones_like(weight.values)).to_dense().double()
    close(weight.with_values(values.grad).to_dense(), wide.grad * stored)


@products
@halves
@pytest.mark.parametrize("block", [None, 16, 32, 64, 128])
def test_linear(dtype, block):
    if block is None:
        weight = normal(512, 384, dtype=dtype)
        dense = weight.double()
    else:
        weight, dense = sparse(512, 384, block, dtype)
    x, bias = normal(2, 5, 384, dtype=dtype), normal(512, dtype=dtype)
    out = tessera.linear(x, weight, bias, activation="gelu")
    assert out.shape == (2, 5, 512)
    close(out, torch.nn.functional.gelu(x.double() @ dense.T + bias.double()))


@products
def test_gradients_on_autograd_s_own_thread():
    a, b = normal(64, 96).requires_grad_(), normal(96, 72).requires_grad_()
    wide = [x.detach().double().requires_grad_() for x in (a, b)]
    out, want = tessera.matmul(a, b), wide[0] @ wide[1]
    close(out, want)
    dout = normal(64, 72)
    out.backward(dout)
    want.backward(dout.double())
    close(a.grad, wide[0].grad)
    close(b.grad, wide[1].grad)


# ---- Gradients of attention --------------------------------------------------------------------


def gradients_are_right(dlse=False, one_dout=False, **options):
    """Gradients through PyTorch, by the error budget of `tessera verify attention_backward`."""
    from tessera.verify.attention import backward, draw, judge_backward

    names = ("dq", "dk", "dv", "dsinks")
    for tensors in (("q", "k", "v", "out"), ("dout", *names)):
        options.setdefault("heads_first", {}).update(dict.fromkeys(tensors, False))
        options.setdefault("padding", {}).update(dict.fromkeys(tensors, (0, 0, 0)))
    d = draw.Drawn(11, **options)
    d.out_dtype = d.dtype
    wanted = dict.fromkeys(names, True) | {"dsinks": d.sinks is not None}
    built = backward.build_backward(backward.DrawnBackward(
        d, d.dtype, dlse, one_dout, wanted, d.heads_first, d.padding), "cuda", 1 << 23)
    _, inputs, given = built.forward.call(built.out, built.lse)
    leaves = [x.detach().clone().requires_grad_() for x in (*inputs, built.forward.sinks)
              if x is not None]
    given |= {"out": None, "lse": None, "sinks": leaves[3] if d.sinks else None}
    out, lse = tessera.attention(*leaves[:3], **given)
    if dlse:
        torch.autograd.backward((out, lse), (built.dout, built.dlse))
    else:
        out.backward(built.dout)
    # The results that the backward pass has read.
    built.out.tensor.copy_(out.detach())
    built.lse.tensor.copy_(lse.detach())
    outputs = built.outputs()
    for buffer, leaf in zip(outputs, leaves, strict=False):
        buffer.tensor.copy_(leaf.grad)
    share, trouble = judge_backward.judge(built, *outputs)
    assert trouble is None and share > 0, trouble
    return built, leaves


@products
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("dim", [64, 80, 128, 192, 256])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_attention_gradients(dtype, dim, kv_heads):
    gradients_are_right(dlse=True, dtype=dtype, dim=dim, dim_v=dim, heads=4, kv_heads=kv_heads,
                        q_lengths=[300] * 2, kv_lengths=[333] * 2, causal=True)


@products
def test_gradients_of_sinks_and_softcap():
    gradients_are_right(heads=4, kv_heads=2, q_lengths=[200], kv_lengths=[200], causal=True,
                        softcap=5.0, sinks="f32")


@products
@pytest.mark.parametrize("block", [16, 64, 128])
def test_attention_gradients_under_a_block_mask(block):
    from tessera.verify.attention import draw

    # Gradients of keys that no query sees have to be exact zeros.
    blocks = draw.Blocks(block, block, batch=1, heads=4, density=0.3, partial=0.3, empty_rows=0.2,
                         tiles=3)
    gradients_are_right(heads=4, kv_heads=4, q_lengths=[512], kv_lengths=[512], mask=blocks)


@products
def test_the_gradient_of_a_sum_is_broadcast():
    """dout has strides of zero."""
    gradients_are_right(one_dout=True, dim=128, dim_v=128, heads=2, kv_heads=2, q_lengths=[130],
                        kv_lengths=[130])


@products
def test_attention_trains_compiled_and_checkpointed():
    from torch.utils.checkpoint import checkpoint

    def step(run):
        torch.manual_seed(1)
        narrow = [normal(1, 256, 4, 64).requires_grad_() for _ in range(3)]
        out = run(*narrow)
        out.backward(torch.ones_like(out) + out.detach())
        return [x.grad for x in narrow]

    def call(q, k, v):
        return tessera.attention(q, k, v, causal=True)

    want = step(call)
    compiled = torch.compile(call, fullgraph=True)
    for run in (compiled, lambda *x: checkpoint(call, *x, use_reentrant=False)):
        for got, expected in zip(step(run), want, strict=True):
            assert torch.equal(got, expected)  # the same bits


@products
def test_attention_trains_under_autocast():
    q = torch.randn(1, 128, 2, 64, device="cuda", requires_grad=True)
    with torch.autocast("cuda", torch.bfloat16):
        out = tessera.attention(q, q, q)
    out.sum().backward()
    assert q.grad.dtype == torch.float32 and q.grad.isfinite().all()


# ---- Streams, graphs, devices ------------------------------------------------------------------


def work(a, b, outs, lses):
    """Results of several operations, for the tests below."""
    out, lse = tessera.merge_states(outs, lses)
    return [tessera.matmul(a, b), out, lse] if IS_HOPPER else [out, lse]


def wanted(a, b, outs, lses):
    out, lse = merged(outs, lses)
    return [a.double() @ b.double(), out, lse] if IS_HOPPER else [out, lse]


def problem():
    return (normal(128, 96), normal(96, 64), *parts())


def test_runs_on_the_current_stream():
    a, b, outs, lses = problem()
    late, late_out = torch.full_like(a, torch.nan), torch.full_like(outs[0], torch.nan)
    work(a, b, outs, lses)  # the first call loads kernels, for which all streams wait
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(100_000_000)  # a kernel on another stream would read the NaN
        late.copy_(a)
        late_out.copy_(outs[0])
        got = work(late, b, [late_out, *outs[1:]], lses)
    stream.synchronize()
    for one, want in zip(got, wanted(a, b, outs, lses), strict=True):
        close(one, want)


def test_a_graph_replays_with_new_values():
    given = problem()
    work(*given)  # the first call, which loads kernels, is not captured
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = work(*given)
    for _ in range(2):
        a, b, outs, lses = given
        for x in (a, b, *outs, *lses):
            x.normal_()
        for x in got:
            x.fill_(torch.nan)
        graph.replay()
        torch.cuda.synchronize()
        for one, want in zip(got, wanted(*given), strict=True):
            close(one, want)


def long_walk():
    """Attention that needs a workspace, as several thread blocks share the keys of a tile."""
    q, k, v = normal(1, 64, 2, 64), *(normal(1, 16384, 2, 64) for _ in "kv")
    if not tessera.plan("attention", q, k, v).workspace_bytes:
        pytest.skip("no kernel row of this GPU splits the keys")
    return q, k, v


def test_repeated_calls_allocate_nothing():
    q, k, v = long_walk()
    out = tessera.attention(q, k, v)
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    for _ in range(3):
        tessera.attention(q, k, v, out=out)
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before


def test_captured_calls_have_buffers_of_their_own():
    q, k, v = long_walk()
    want = tessera.attention(q, k, v)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = [tessera.attention(q, k, v) for _ in range(20)]
    for _ in range(10):  # side by side with eager calls, of other values
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            graph.replay()
        eager = [tessera.attention(-q, k, v) for _ in range(20)]
        torch.cuda.synchronize()
        assert all(torch.equal(got, want) for got in captured)
        assert all(torch.equal(got, eager[0]) for got in eager)


def test_the_current_device_stays():
    last = torch.cuda.device_count() - 1  # not the current device if there are two
    outs, lses = ([x.to(f"cuda:{last}") for x in given] for given in parts())
    a, b = normal(128, 96, device=f"cuda:{last}"), normal(96, 64, device=f"cuda:{last}")
    before = torch.cuda.current_device()
    for one, want in zip(work(a, b, outs, lses), wanted(a, b, outs, lses), strict=True):
        close(one, want)
    assert torch.cuda.current_device() == before == 0


second = pytest.mark.skipif(not HAS_GPU or torch.cuda.device_count() < 2, reason="only one GPU")


def eager(device, seed=0):
    """Eager calls and runs of a plan: (inputs, calls, expected results in float64)."""
    generator = torch.Generator(device).manual_seed(seed)

    def numbers(*shape):
        return torch.randn(shape, device=device, generator=generator).to(torch.bfloat16)

    q, x, weight = numbers(1, 96, 2, 64), numbers(64, 128), numbers(192, 128)
    mask = BlockMask.causal(96, 96, block=32, device=device)
    matrix = BsrMatrix.prune(weight, 64, 0.5)
    plan = tessera.plan("attention", q, q, q, mask=mask)
    plan.prepare()
    calls = [lambda q, x: tessera.attention(q, q, q, causal=True),
             lambda q, x: tessera.attention(q, q, q, mask=mask),
             lambda q, x: plan.run(q, q, q),
             lambda q, x: tessera.matmul(x, weight, transpose_b=True),
             lambda q, x: tessera.linear(x[None], weight),
             lambda q, x: tessera.linear(x, matrix)]
    seen = torch.ones(96, 96, device=device).tril() == 1
    heads = q.double().transpose(1, 2)
    attended = torch.nn.functional.scaled_dot_product_attention(heads, heads, heads, attn_mask=seen)
    dense = x.double() @ weight.double().T
    wanted = [*[attended.transpose(1, 2)] * 3, dense, dense[None],
              x.double() @ matrix.to_dense().double().T]
    return (q, x), calls, wanted


def check(got, wanted):
    for one, want in zip(got, wanted, strict=True):
        assert one.device == want.device
        torch.testing.assert_close(one.double(), want, rtol=2**-6, atol=2**-6)


@products
@pytest.mark.parametrize("device", ["cuda:0", pytest.param("cuda:1", marks=second)])
def test_eager_calls_and_plans_run_on_a_side_stream(device):
    (q, x), calls, wanted = eager(device)
    check([call(q, x) for call in calls], wanted)  # the first call loads kernels
    late = [torch.full_like(y, torch.nan) for y in (q, x)]
    torch.cuda.synchronize(device)
    stream = torch.cuda.Stream(device)
    with torch.cuda.device(0):
        with torch.cuda.device(device), torch.cuda.stream(stream):
            torch.cuda._sleep(100_000_000)  # a kernel on another stream would read the NaN
            for to, y in zip(late, (q, x), strict=True):
                to.copy_(y)
            got = [call(*late) for call in calls]
            late = None  # freed memory returns to the side stream first
        assert torch.cuda.current_device() == 0
    stream.synchronize()
    check(got, wanted)


@products
@second
def test_calls_on_another_device_than_the_current_one():
    (q, x), calls, wanted = eager("cuda:1")
    with torch.cuda.device(0):
        got = [call(q, x) for call in calls]
        assert torch.cuda.current_device() == 0
    check(got, wanted)
    ours, _, _ = eager("cuda:0")
    with pytest.raises(ValueError, match=r"expected a tensor on cuda:1|on cuda:[01]"):
        tessera.attention(q, ours[0], ours[0])


@products
def test_threads_at_once_each_on_its_stream():
    count = torch.cuda.device_count()
    made = [eager(f"cuda:{i % count}", seed=i) for i in range(6)]
    for (q, x), calls, wanted in made:
        check([call(q, x) for call in calls], wanted)
    torch.cuda.synchronize()
    failures = []

    def run(i):
        try:
            (q, x), calls, wanted = made[i]
            stream = torch.cuda.Stream(q.device)
            with torch.cuda.device(q.device), torch.cuda.stream(stream):
                for _ in range(20):
                    got = [call(q, x) for call in calls]
                stream.synchronize()
                check(got, wanted)
        except BaseException as failure:  # handed to the test
            failures.append(failure)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(made))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


@products
def test_results_may_be_recorded_on_streams():
    """Results come from PyTorch's allocator, so record_stream() keeps their memory from reuse."""
    (q, x), calls, _ = eager("cuda:0")
    stream = torch.cuda.Stream()
    for call in calls:
        out = call(q, x)
        place = out.data_ptr()
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(100_000_000)
        out.record_stream(stream)
        like = torch.empty_like(out)
        del out
        again = [torch.empty_like(like) for _ in range(8)]
        assert place not in [y.data_ptr() for y in again]
        torch.cuda.synchronize()


# ---- Random problems ---------------------------------------------------------------------------


@products
def test_random_attention_is_right(capsys):
    """A few hundred problems of `python -m tessera.verify attention`, each run twice."""
    from tessera.verify import cli

    status = cli.main(["attention", "--device", "cuda", "--count", "300", "--quiet", "--repeat"])
    said = capsys.readouterr().out
    assert status == 0, said
    assert int(re.search(r"(\d+) right", said)[1]) > 150, said


@products
@pytest.mark.parametrize(("operation", "right"),
                         [("attention_fp8", 100), ("attention_backward", 150),
                          ("products_fp8", 120)])
def test_random_problems_are_right_on_random_rows(capsys, operation, right):
    """FP8 attention, gradients and FP8 products, each on a random kernel row that supports it."""
    from tessera.verify import cli

    status = cli.main([operation, "--device", "cuda", "--count", "300", "--quiet", "--repeat"])
    said = capsys.readouterr().out
    assert status == 0, said
    assert int(re.search(r"(\d+) right", said)[1]) > right, said


@products
def test_random_products_are_right(capsys):
    """The same of products, each on a random kernel row of those that support it."""
    from tessera.verify import cli

    status = cli.main(["products", "--device", "cuda", "--count", "600", "--quiet", "--repeat"])
    said = capsys.readouterr().out
    assert status == 0, said
    assert int(re.search(r"(\d+) right", said)[1]) > 300, said


@products
@pytest.mark.parametrize("kernel", ["d64_q192_k128_s3", "d64_q256_k64_s6", "d80_q192_k64_s4",
                                    "d96_q192_k64_s4", "d128_q128_k64_s4", "d128_q192_k64_s3",
                                    "d128_q192_k64_s4"])
def test_rows_that_see_nothing_of_a_tile_hold_nobody_up(kernel, monkeypatch):
    """Past the last used keys, the window of a tile's first rows has some keys and that of its last
    rows none; consumers join the next tile late. There are more tiles than an H200 runs at once."""
    from tessera.verify.attention import build, draw, judge

    dim = int(re.match(r"d(\d+)", kernel)[1])
    forced = functools.partial(tessera.attention, kernel=f"sm90_attention_{kernel}")
    monkeypatch.setattr(tessera, "attention", forced)
    for seed, behind in enumerate((60, 110, 150, 190)):
        d = draw.Drawn(
            seed, dim=dim, dim_v=dim, heads=16, kv_heads=16, q_lengths=[768] * 16,
            kv_lengths=[768] * 16, causal=True, window_left=100, kv_end=[550, 600] * 8,
            q_position=[behind, 130] * 8)
        d.heads_first = dict.fromkeys(("q", "k", "v", "out"), False)
        d.padding = dict.fromkeys(("q", "k", "v", "out"), (0, 0, 0))
        built = build.build(d, "cuda", 1 << 24)
        out, lse = built.outputs()
        built.run(out, lse)
        share, trouble = judge.judge(built, out, lse)
        assert trouble is None and share > 0


# ---- Masks --------------------------------------------------------------------------------------


def masks(blocks, scores):
    """Lists of two masks, made on the device; the host reads no values."""
    lengths = (16 * blocks.shape[-2], 16 * blocks.shape[-1], 16)
    chosen = BlockMask.from_blocks(blocks, *lengths, capacity=blocks.shape[-1])
    best = BlockMask.from_top_k(scores, 5, *lengths)
    return [x for mask in (chosen, best) for x in (*mask.arrays[2:4], *mask.lists_by_column()[0])]


def block_problem(device="cuda"):
    return torch.rand(2, 3, 40, 70, device=device) < 0.3, torch.randn(2, 1, 40, 70, device=device)


def test_masks_are_made_on_the_gpu():
    blocks, scores = block_problem()
    for given in ((blocks, scores), (blocks.mT, scores.mT.bfloat16())):
        for one, want in zip(masks(*given), masks(*(x.cpu() for x in given)), strict=True):
            assert one.is_cuda and torch.equal(one.cpu(), want)


def test_masks_in_a_graph_follow_the_blocks():
    given = block_problem()
    masks(*given)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = masks(*given)
    for _ in range(2):
        for x, new in zip(given, block_problem(), strict=True):
            x.copy_(new)
        graph.replay()
        torch.cuda.synchronize()
        for one, want in zip(got, masks(*(x.cpu() for x in given)), strict=True):
            assert torch.equal(one.cpu(), want)


# ---- What is refused ---------------------------------------------------------------------------


def test_devices_do_not_mix():
    outs, lses = parts()
    with pytest.raises(ValueError, match=r"merge_states: .*cpu"):
        tessera.merge_states(outs, [*lses[:-1], lses[-1].cpu()])
    a, b = normal(64, 64), normal(64, 64)
    with pytest.raises(ValueError, match=r"matmul: b: .*cpu"):
        tessera.matmul(a, b.cpu())
    with pytest.raises(ValueError, match=r"matmul: out: .*cpu"):
        tessera.matmul(a, b, out=torch.empty(64, 64, dtype=a.dtype))


def test_what_no_kernel_takes_is_refused_with_reasons():
    q = normal(1, 64, 4, 64, dtype=torch.float32)
    with pytest.raises(NotImplementedError, match=r"(?s)attention f32 .*rejected.*runs on a CPU"):
        tessera.attention(q, q, q, causal=True)
    a = normal(64, 64, dtype=torch.float32)
    b = tessera.BsrMatrix.from_dense(a, 32)
    with pytest.raises(NotImplementedError, match="dtype f32 is not supported"):
        tessera.bsr_matmul(b, a)


@products
@pytest.mark.parametrize("n", [64, 72, 65])
@pytest.mark.parametrize("index", [torch.int32, torch.int64])
def test_rows_after_the_last_offset_are_zeros(n, index):
    a, b = normal(300, 64), normal(2, 64, n)
    offsets = torch.tensor([0, 130, 257], dtype=index, device="cuda")
    out = torch.full((300, n + 3), torch.nan, dtype=torch.bfloat16, device="cuda")[:, :n]
    tessera.matmul(a, b, group_offsets=offsets, out=out)
    close(out[:130], a[:130].double() @ b[0].double())
    close(out[130:257], a[130:257].double() @ b[1].double())
    assert (out[257:] == 0).all()
    q, k = normal(300, 4, 64), normal(300, 2, 64)
    out = torch.full_like(q, torch.nan)
    lse = torch.full((4, 300), torch.nan, device="cuda")
    tessera.attention(q, k, k, q_offsets=offsets, kv_offsets=offsets, out=out, lse=lse)
    assert out[:257].isfinite().all() and (out[257:] == 0).all()
    assert lse[:, :257].isfinite().all() and (lse[:, 257:] == -torch.inf).all()
