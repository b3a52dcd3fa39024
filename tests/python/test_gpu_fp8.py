"""Products in FP8 by Hopper's own kernels: weights in blocks, experts, graphs, refusals."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import tessera  # noqa: E402

IS_HOPPER = (torch.cuda.is_available() and tessera.cuda_device_count() > 0
             and torch.cuda.get_device_capability()[0] == 9)
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not IS_HOPPER, reason="products in FP8 need compute capability 9.x"),
]
# Relative to the largest result: sums of FP8 in tensor cores have few bits, and bf16 has eight.
TOLERANCE = {torch.bfloat16: 2**-7, torch.float32: 2**-10}


def close(out, want):
    error = (out.float().cpu() - want.float()).abs().max()
    assert error < TOLERANCE[out.dtype] * want.float().abs().max(), error


def weights(rows, cols, block, density=0.4):
    """A block-sparse matrix on the GPU in e4m3, with a factor per stored block, and both on the
    CPU."""
    dense = torch.randn(rows, cols)
    sparse = tessera.BsrMatrix.prune(dense, block=(block, block), density=density)
    narrow, scale = tessera.quantize(sparse, per="block")
    moved = tessera.BsrMatrix(narrow.values.cuda(), narrow.row_offsets.cuda(),
                              narrow.col_indices.cuda(), rows, cols)
    return moved, scale.cuda(), narrow, scale


def activations(rows, cols, per):
    narrow, scale = tessera.quantize(torch.randn(rows, cols, dtype=torch.bfloat16).cuda(), per=per)
    return narrow, scale, narrow.cpu(), scale.cpu()


@pytest.mark.parametrize("block", [64, 128])
@pytest.mark.parametrize("per", ["tensor", "row", "1x128"])
@pytest.mark.parametrize("rows", [1, 17, 300])
@pytest.mark.parametrize("out_dtype", [torch.bfloat16, torch.float32])
def test_linear_with_weights_in_blocks(block, per, rows, out_dtype):
    w8, w_scale, cpu_w8, cpu_w_scale = weights(384, 512, block)
    x8, x_scale, cpu_x8, cpu_x_scale = activations(rows, 512, per)
    bias = torch.randn(384)
    out = tessera.linear(x8, w8, bias.cuda().to(out_dtype), activation="relu", x_scale=x_scale,
                         weight_scale=w_scale, out_dtype=out_dtype)
    want = tessera.linear(cpu_x8, cpu_w8, bias.to(out_dtype).float(), activation="relu",
                          x_scale=cpu_x_scale, weight_scale=cpu_w_scale, out_dtype=torch.float32)
    close(out, want)
    found = tessera.explain(tessera.linear, x8, w8, x_scale=x_scale, weight_scale=w_scale)
    assert found["plan"]["kernel_name"].startswith("sm90_matmul_m128_")


@pytest.mark.parametrize("block", [64, 128])
def test_sparse_a_matches_cpu(block):
    w8, w_scale, cpu_w8, cpu_w_scale = weights(384, 512, block)
    x8, x_scale, cpu_x8, cpu_x_scale = activations(72, 512, "1x128")
    out = tessera.matmul(w8, x8.mT, a_scale=w_scale, b_scale=x_scale.mT, out_dtype=torch.float32)
    close(out, tessera.matmul(cpu_w8, cpu_x8.mT, a_scale=cpu_w_scale, b_scale=cpu_x_scale.mT,
                              out_dtype=torch.float32))


@pytest.mark.parametrize("x_per, w_per", [("tensor", "matrix"), ("row", "row"),
                                          ("1x128", "128x128")])
def test_experts(x_per, w_per):
    x8, x_scale, cpu_x8, cpu_x_scale = activations(400, 512, x_per)
    w8, w_scale = tessera.quantize(torch.randn(4, 384, 512), per=w_per)
    offsets = torch.tensor([0, 130, 130, 131, 400], dtype=torch.int32)
    options = {"transpose_b": True, "out_dtype": torch.float32}
    out = tessera.matmul(x8, w8.cuda(), a_scale=x_scale, b_scale=w_scale.cuda(),
                         group_offsets=offsets.cuda(), **options)
    close(out, tessera.matmul(cpu_x8, w8, a_scale=cpu_x_scale, b_scale=w_scale,
                              group_offsets=offsets, **options))


def test_a_nan_factor_makes_nan_of_its_products_only():
    w8, w_scale, *_ = weights(384, 512, 128)
    x8, x_scale, *_ = activations(200, 512, "row")
    want = tessera.linear(x8, w8, x_scale=x_scale, weight_scale=w_scale)
    x_scale[7], w_scale[0] = torch.nan, 0.0
    out = tessera.linear(x8, w8, x_scale=x_scale, weight_scale=w_scale)
    reached = w8.row_offsets.diff().repeat_interleave(128) > 0
    assert out[7, reached].isnan().all() and not out[7, ~reached].isnan().any()
    rest = torch.arange(200, device="cuda") != 7
    first = int((w8.row_offsets > 0).nonzero()[0]) - 1  # the row of blocks that has the zero
    others = torch.arange(384, device="cuda") // 128 != first
    assert torch.equal(out[rest][:, others], want[rest][:, others])
    assert out[rest].isfinite().all()


def test_graph_replays_use_new_values_and_factors():
    w8, w_scale, cpu_w8, cpu_w_scale = weights(384, 512, 64)
    x8, x_scale, *_ = activations(300, 512, "1x128")
    offsets = torch.tensor([0, 100, 300], dtype=torch.int32, device="cuda")
    e8, e_scale = (x.cuda() for x in tessera.quantize(torch.randn(2, 384, 512), per="128x128"))

    def work():
        return (tessera.linear(x8, w8, x_scale=x_scale, weight_scale=w_scale),
                tessera.matmul(x8, e8, transpose_b=True, a_scale=x_scale, b_scale=e_scale,
                               group_offsets=offsets))

    work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = work()
    for ends in ([0, 100, 300], [0, 299, 300]):
        new, new_scale = tessera.quantize(torch.randn(300, 512).cuda(), per="1x128")
        x8.copy_(new)
        x_scale.copy_(new_scale)
        offsets.copy_(torch.tensor(ends, dtype=torch.int32))
        for one in got:
            one.fill_(torch.nan)
        graph.replay()
        torch.cuda.synchronize()
        assert all(torch.equal(one, want) for one, want in zip(got, work(), strict=True))
    close(got[0], tessera.linear(x8.cpu(), cpu_w8, x_scale=x_scale.cpu(),
                                 weight_scale=cpu_w_scale, out_dtype=torch.float32))


def test_plans_run_with_other_factors():
    w8, w_scale, *_ = weights(384, 512, 128)
    x8, x_scale, *_ = activations(64, 512, "row")
    plan = tessera.plan("linear", x8, w8, x_scale=x_scale, weight_scale=w_scale)
    plan.prepare()
    want = tessera.linear(x8, w8, x_scale=x_scale, weight_scale=w_scale)
    assert torch.equal(plan.run(x8, w8), want)
    assert torch.equal(plan.run(x8, w8, x_scale=2 * x_scale), 2 * want)


def test_what_has_no_kernel_is_refused_with_the_reason():
    x8, x_scale, *_ = activations(64, 512, "1x128")
    for block, told in ((32, "block rows: expected a multiple of 64, got 32"),
                        (16, "block rows: expected a multiple of 64, got 16")):
        w8, w_scale, *_ = weights(384, 512, block)
        with pytest.raises(NotImplementedError, match=told):
            tessera.linear(x8, w8, x_scale=x_scale, weight_scale=w_scale)
    w8, w_scale, *_ = weights(512, 384, 128)
    with pytest.raises(NotImplementedError, match="requires transpose_b with a sparse b"):
        tessera.matmul(x8, w8, a_scale=x_scale, b_scale=w_scale)


def test_a_page_table_without_columns_gives_zeros():
    q = torch.randn(2, 70, 4, 112, device="cuda").to(torch.float8_e4m3fn)
    pool = torch.empty(0, 64, 4, 112, dtype=torch.float8_e4m3fn, device="cuda")
    table = torch.empty(2, 0, dtype=torch.int32, device="cuda")
    out = tessera.attention(q, pool, pool, page_table=table,
                            kv_end=torch.zeros(2, dtype=torch.int32, device="cuda"))
    assert out.shape == q.shape and not out.any()
