"""FP8 by Hopper's own kernels. Products: weights in blocks, experts, graphs, refusals. Attention:
values whose keys are contiguous."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import tessera  # noqa: E402

IS_HOPPER = (torch.cuda.is_available() and tessera.cuda_device_count() > 0
             and torch.cuda.get_device_capability()[0] == 9)
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not IS_HOPPER, reason="FP8 needs compute capability 9.x"),
]
DEVICE = "cuda"
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


@pytest.mark.parametrize("queries, first", [(200, 100), (2, 230)])
def test_factors_of_keys_that_no_query_sees_are_not_read(queries, first):
    """The window of the last queries begins behind the last key, in a block that lists name."""
    mask = tessera.BlockMask.from_dense(torch.ones(queries, 100, dtype=torch.bool), (64, 256))
    position = torch.tensor([first], dtype=torch.int32)
    options = {"window_left": 20, "mask": mask, "q_position": position}
    q, q_scale = tessera.quantize(torch.randn(1, queries, 4, 128), per=64)
    if queries < 64:  # a decode step
        q, q_scale = q.float().bfloat16(), None
    for name in "kv":
        values, scale = tessera.quantize(torch.randn(1, 100, 2, 128), per=64)
        around = torch.full((1, 2, 8), torch.nan)
        around[..., : scale.shape[-1]] = scale
        options[name], options[f"{name}_scale"] = values, around[..., : scale.shape[-1]]
    want = tessera.attention(q, q_scale=q_scale, **options)
    on_gpu = {name: x.to("cuda") if hasattr(x, "to") else x for name, x in options.items()}
    for name in ("k_scale", "v_scale"):  # with what lies around them
        base = options[name]._base
        on_gpu[name] = base.to("cuda")[..., : options[name].shape[-1]]
    out = tessera.attention(q.to("cuda"), q_scale=None if q_scale is None else q_scale.to("cuda"),
                            **on_gpu)
    torch.testing.assert_close(out.cpu().float(), want.float(), rtol=0.1, atol=0.05)
    assert not out.cpu()[want == 0].any()


# ---- Attention with contiguous keys of v ---------------------------------------------------------


def by_keys(v):
    """v [.., length, heads, dim] with contiguous keys, in lines of a multiple of 16 bytes. What the
    lines have more is NaN."""
    *outer, length, heads, dim = v.shape
    lines = torch.full((*outer, heads, dim, -(-length // 16) * 16), -1, dtype=torch.int8,
                       device=v.device)
    keys = lines[..., :length].movedim(-1, -3)
    keys.copy_(v.view(torch.int8))
    return keys.view(v.dtype)


def narrow_values(*shape, per="head"):
    generator = torch.Generator().manual_seed(sum(shape))
    values, scale = tessera.quantize(torch.randn(shape, generator=generator), per=per)
    return values.to(DEVICE), scale.to(DEVICE)


def operands(q_shape, k_shape, dim_v=None, per="head"):
    """q, k and v with the factors of all three as options."""
    shapes = (q_shape, k_shape, (*k_shape[:-1], dim_v or k_shape[-1]))
    pairs = [narrow_values(*shape, per=per) for shape in shapes]
    return [x for x, _ in pairs], {f"{name}_scale": scale
                                   for name, (_, scale) in zip("qkv", pairs, strict=True)}


def expect_same_results(q, k, v, **options):
    """The results of v by keys are those of v by rows in the same kernel row. P has the same bits
    in both; what differs is the order in which tensor cores and threads add up, and rows that see
    no key differ in nothing."""
    turned = by_keys(v)
    found = tessera.explain(tessera.attention, q, k, turned, return_lse=True, **options)
    assert " v by keys" in found["problem"], found["problem"]
    want, want_lse = tessera.attention(q, k, v, return_lse=True, **options,
                                       kernel=found["plan"]["kernel_name"])
    out, lse = tessera.attention(q, k, turned, return_lse=True, **options)
    assert out.isfinite().all()
    error = (out.float() - want.float()).abs().max()
    assert error <= 2**-6 * want.float().abs().max(), error
    torch.testing.assert_close(lse, want_lse, rtol=1e-5, atol=1e-4)
    assert torch.equal(tessera.attention(q, k, turned, **options), out)  # without LSE
    return out


@pytest.mark.parametrize("dim, dim_v", [(64, 64), (80, 80), (96, 96), (128, 128), (192, 128),
                                        (192, 192), (256, 256)])
@pytest.mark.parametrize("length", [128, 1, 63, 333, 1000])
def test_attention_with_contiguous_keys_of_v(dim, dim_v, length):
    (q, k, v), scales = operands((2, 200, 4, dim), (2, length, 2, dim), dim_v)
    expect_same_results(q, k, v, **scales)
    expect_same_results(q, k, v, causal=True, **scales)


@pytest.mark.parametrize("options", [
    {"window_left": 100}, {"window_left": 70, "window_right": 33}, {"softcap": 20.0},
    {"scale": -0.1}, {"sinks": True}, {"per": 64}, {"per": 128, "causal": True}])
def test_contiguous_keys_of_v_with_other_options(options):
    options = dict(options)
    (q, k, v), scales = operands((2, 700, 4, 128), (2, 700, 2, 128), per=options.pop("per", "head"))
    if "sinks" in options:
        options["sinks"] = torch.tensor([0.5, -1.0, 2.0, 0.0], device=DEVICE)
    expect_same_results(q, k, v, **options, **scales)


def test_contiguous_keys_of_v_are_close_to_float32():
    (q, k, v), scales = operands((1, 500, 4, 128), (1, 777, 2, 128))
    out = tessera.attention(q, k, by_keys(v), causal=True, **scales)
    want = tessera.attention(*(x.cpu() for x in (q, k, v)), causal=True,
                             **{name: scale.cpu() for name, scale in scales.items()})
    error = (out.cpu().float() - want.float()).square().mean().sqrt()
    assert error < 0.06 * want.float().square().mean().sqrt(), error  # P is rounded to e4m3


@pytest.mark.parametrize("block", [(64, 64), (128, 128), (16, 16)])
def test_contiguous_keys_of_v_under_a_block_mask(block):
    (q, k, v), scales = operands((1, 640, 4, 128), (1, 640, 2, 128))
    torch.manual_seed(5)
    elements = torch.rand(640 // block[0], 640 // block[1]) < 0.4
    elements[:, 0] = True
    elements = elements.repeat_interleave(block[0], 0).repeat_interleave(block[1], 1)
    elements &= torch.ones(640, 640).tril(3) == 1  # partial blocks on the diagonal
    mask = tessera.BlockMask.from_dense(elements, block).to(DEVICE)
    expect_same_results(q, k, v, mask=mask, **scales)


@pytest.mark.parametrize("length", [1000, 1024])
def test_nan_in_keys_that_no_query_sees_reaches_nothing(length):
    (q, k, v), scales = operands((3, 300, 4, 128), (3, length, 2, 128))
    ends = torch.tensor([length, 513, 70], dtype=torch.int32, device=DEVICE)
    begins = torch.tensor([5, 0, 69], dtype=torch.int32, device=DEVICE)
    for b in range(3):
        for x in (k, v):
            x.view(torch.int8)[b, int(ends[b]):] = -1  # NaN
            x.view(torch.int8)[b, : int(begins[b])] = -1
    expect_same_results(q, k, v, kv_begin=begins, kv_end=ends, **scales)
    expect_same_results(q, k, v, kv_begin=begins, kv_end=ends, window_left=40, **scales)


def test_graph_replays_read_new_contiguous_keys_of_v():
    (q, k, v), scales = operands((2, 300, 4, 128), (2, 500, 2, 128))
    turned = by_keys(v)
    tessera.attention(q, k, turned, **scales)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = tessera.attention(q, k, turned, **scales)
    for seed in (1, 2):
        new = torch.randn(v.shape, generator=torch.Generator().manual_seed(seed)).to(v.dtype)
        turned.view(torch.int8).copy_(new.view(torch.int8))
        got.fill_(torch.nan)
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(got, tessera.attention(q, k, by_keys(new.to(DEVICE)), **scales))


def test_layouts_of_v_without_a_kernel_are_refused_with_the_reason():
    (q, k, v), scales = operands((2, 64, 4, 128), (2, 100, 2, 128))
    lines = torch.zeros(2, 2, 128, 104, dtype=torch.int8, device=DEVICE).view(v.dtype)
    with pytest.raises(NotImplementedError, match="multiples of 16 bytes, or contiguous keys of v"):
        tessera.attention(q, k, lines[..., :100].permute(0, 3, 1, 2), **scales)
    pages = torch.zeros(4, 64, 2, 128, dtype=torch.int8, device=DEVICE).view(v.dtype)
    table = torch.tensor([[0, 1], [2, 3]], dtype=torch.int32, device=DEVICE)
    ends = torch.tensor([100, 128], dtype=torch.int32, device=DEVICE)
    with pytest.raises(NotImplementedError, match="v: expected pages of contiguous rows"):
        tessera.attention(q, pages, by_keys(pages), page_table=table, kv_end=ends)
    offsets = torch.tensor([0, 30, 64], dtype=torch.int32, device=DEVICE)
    packed = torch.zeros(64, 2, 128, dtype=torch.int8, device=DEVICE).view(v.dtype)
    with pytest.raises(NotImplementedError, match="v: expected packed sequences of"):
        tessera.attention(packed, packed, by_keys(packed), q_offsets=offsets, kv_offsets=offsets,
                          max_q_length=34, max_kv_length=34)
    q, k, v = (x.float().bfloat16() for x in (q, k, v))
    with pytest.raises(NotImplementedError, match="q, k and v: expected contiguous rows"):
        tessera.attention(q, k, v.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2))
