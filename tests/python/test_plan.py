"""Plans that are made once and run often, for NumPy and PyTorch."""

import numpy as np
import pytest
import support

import tessera
from tessera import BlockMask, BsrMatrix


@pytest.fixture(params=["numpy", "torch"])
def make(request):
    if request.param == "numpy":
        return lambda array: array
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    return lambda array: torch.from_numpy(np.array(array))


def qkv(make, seed=0, length=64, heads=4, kv_heads=2):
    return [make(support.random(2, length, n, 16, seed=seed + i))
            for i, n in enumerate((heads, kv_heads, kv_heads))]


def same(got, want):
    assert type(got) is type(want)
    np.testing.assert_array_equal(np.asarray(got), np.asarray(want))


@pytest.mark.parametrize("operation", ["attention", tessera.attention])
def test_attention_runs_on_new_values(make, operation):
    plan = tessera.plan(operation, *qkv(make), causal=True, return_lse=True)
    for seed in (1, 2):
        new = qkv(make, seed)
        out, lse = plan.run(*new)
        want = tessera.attention(*new, causal=True, return_lse=True)
        same(out, want[0])
        same(lse, want[1])
    written, room = make(np.full((2, 64, 4, 16), np.nan, np.float32)), make(
        np.full((2, 4, 64), np.nan, np.float32))
    got = plan.run(*new, out=written, lse=room)
    assert got[0] is written and got[1] is room
    same(written, want[0])
    same(room, want[1])


def test_attributes_of_a_plan(make):
    q, k, v = qkv(make)
    plan = tessera.plan(tessera.attention, q, k, v, causal=True)
    answer = plan.explain()
    assert answer == tessera.explain(tessera.attention, q, k, v, causal=True)
    assert plan.kernel_name == answer["plan"]["kernel_name"] and plan.backend == "cpu"
    assert plan.workspace_bytes == answer["plan"]["workspace_bytes"]
    assert plan.schedule_bytes == answer["plan"]["schedule_bytes"]
    assert plan.signature in repr(plan) and plan.kernel_name in repr(plan)
    assert str(answer).startswith("problem ")


def test_a_mask_is_prepared_and_changes(make):
    new = qkv(make)
    masks = [BlockMask.from_blocks(make(np.array(blocks) == 1), 64, 64, 16, capacity=2)
             for blocks in (np.eye(4), np.eye(4)[::-1], np.eye(4, k=1))]
    plan = tessera.plan("attention", *new, mask=masks[0])
    with pytest.raises(ValueError, match=r"run: plan: expected a prepared one, got one whose "
                                         r"prepare\(\) was not called"):
        plan.run(*new)
    plan.prepare()
    same(plan.run(*new), tessera.attention(*new, mask=masks[0]))
    for mask in masks[1:]:
        plan.prepare(mask)
        for seed in (3, 4):
            new = qkv(make, seed)
            same(plan.run(*new), tessera.attention(*new, mask=mask))
    # prepare() reads lists that changed in place again.
    mask.full_indices[...] = make(np.zeros((1, 1, 4, 2), np.int32))
    mask.full_counts[...] = make(np.ones((1, 1, 4), np.int32))
    plan.prepare()
    same(plan.run(*new), tessera.attention(*new, mask=mask))


def test_a_mask_has_to_fit_the_plan(make):
    new = qkv(make)
    blocks = make(np.eye(4) == 1)
    plan = tessera.plan("attention", *new,
                        mask=BlockMask.from_blocks(blocks, 64, 64, 16, capacity=2))
    made_for = "prepare: pattern: made for 64 queries and 64 keys, got 63"
    with pytest.raises(ValueError, match=made_for):
        plan.prepare(BlockMask.from_blocks(blocks, 63, 64, 16, capacity=2))
    with pytest.raises(ValueError, match=r"run: plan: made for .*; plan again"):
        plan.prepare(BlockMask.from_blocks(blocks, 64, 64, 16, capacity=3))
    with pytest.raises(TypeError, match="prepare: pattern: expected a BlockMask as planned, got"):
        plan.prepare(blocks)
    dense = tessera.plan("attention", *new)
    dense.prepare()  # a dense plan has no pattern to read
    with pytest.raises(TypeError, match="prepare: pattern: expected none"):
        dense.prepare(BlockMask.from_blocks(blocks, 64, 64, 16))
    same(dense.run(*new), tessera.attention(*new))


def test_tensors_beside_the_operands_stay_or_change(make):
    new = qkv(make)
    ends = [make(np.array(x, np.int32)) for x in ([64, 20], [7, 64])]
    plan = tessera.plan("attention", *new, kv_end=ends[0], causal=True, layout="blhd")
    same(plan.run(*new), tessera.attention(*new, kv_end=ends[0], causal=True))
    same(plan.run(*new, kv_end=ends[1]), tessera.attention(*new, kv_end=ends[1], causal=True))
    same(plan.run(*new), tessera.attention(*new, kv_end=ends[0], causal=True))
    for name in ("q", "full_counts", "scale", "weight"):
        with pytest.raises(TypeError, match=f"run: {name}: expected the name of a tensor"):
            plan.run(*new, **{name: ends[0]})


def test_layout_is_the_planned_one(make):
    new = [x.swapaxes(1, 2) for x in qkv(make)]
    plan = tessera.plan("attention", *new, layout="bhld", window_left=5)
    same(plan.run(*new), tessera.attention(*new, layout="bhld", window_left=5))


def test_dense_products(make):
    a, b, c = (make(support.random(*shape, seed=i))
               for i, shape in enumerate(((8, 32), (32, 16), (8, 16))))
    plan = tessera.plan("matmul", a, b, bias=b[0], activation="gelu")
    same(plan.run(a * 2, b), tessera.matmul(a * 2, b, bias=b[0], activation="gelu"))
    same(plan.run(a, b, bias=b[1]), tessera.matmul(a, b, bias=b[1], activation="gelu"))
    added = tessera.plan("matmul", a, b, c=c, beta=2.0)
    same(added.run(a, b), tessera.matmul(a, b, c=c, beta=2.0))
    room = c * 1
    former = tessera.plan("matmul", a, b, beta=2.0, out=room)
    with pytest.raises(ValueError, match="run: out: expected the former contents"):
        former.run(a, b)
    assert former.run(a, b, out=room) is room
    same(room, tessera.matmul(a, b, c=c, beta=2.0))
    with pytest.raises(TypeError, match="run: lse: expected none, as matmul has no such result"):
        plan.run(a, b, lse=c)
    transposed = tessera.plan("matmul", b, a, transpose_a=True, transpose_b=True)
    same(transposed.run(b, a), tessera.matmul(b, a, transpose_a=True, transpose_b=True))
    with pytest.raises(ValueError, match="matmul: b: expected 8 rows to match the 8 columns of a"):
        transposed.run(a, b[:16].T)


def test_linear_with_leading_dimensions(make):
    x, weight, bias = (make(support.random(*shape, seed=i))
                       for i, shape in enumerate(((2, 3, 32), (16, 32), (16,))))
    plan = tessera.plan(tessera.linear, x, weight, bias)
    same(plan.run(x * 2, weight), tessera.linear(x * 2, weight, bias))
    same(plan.run(x, weight, bias=bias * 2), tessera.linear(x, weight, bias * 2))
    pruned = BsrMatrix.prune(weight, (8, 8), 0.5)
    sparse = tessera.plan(tessera.linear, x, pruned, bias)
    sparse.prepare()
    same(sparse.run(x, pruned), tessera.linear(x, pruned, bias))
    same(sparse.run(x.swapaxes(0, 1).swapaxes(0, 1), pruned.with_values(pruned.values * 2)),
         tessera.linear(x, pruned.with_values(pruned.values * 2), bias))


def test_linear_keeps_the_leading_dimensions_of_a_run(make):
    """Also where they are not those of the plan, but as many rows."""
    x, weight = make(support.random(6, 32)), make(support.random(24, 32, seed=1))
    deep = x.reshape(2, 3, 32)
    for planned in (x, deep):
        plan = tessera.plan("linear", planned, weight)
        for given in (x, deep, x.reshape(3, 2, 32)):
            same(plan.run(given, weight), tessera.linear(given, weight))
        with pytest.raises(ValueError, match="run: plan: made for"):
            plan.run(x[:4], weight)



def test_block_sparse_products(make):
    x = make(support.random(8, 32))
    matrices = [BsrMatrix.prune(make(support.random(32, 16, seed=i)), (8, 8), 0.5) for i in (1, 2)]
    plan = tessera.plan("bsr_matmul", x, matrices[0])
    with pytest.raises(ValueError, match="run: plan: expected a prepared one"):
        plan.run(x, matrices[0])
    plan.prepare()
    same(plan.run(x, matrices[0]), tessera.matmul(x, matrices[0]))
    with pytest.raises(ValueError, match=r"run: b: expected the lists of the prepared matrix"):
        plan.run(x, matrices[1])
    plan.prepare(matrices[1])
    same(plan.run(x, matrices[1]), tessera.matmul(x, matrices[1]))
    with pytest.raises(TypeError, match="run: b: expected a BsrMatrix as planned, got"):
        plan.run(x, x)
    with pytest.raises(TypeError, match="run: a: expected a dense operand as planned"):
        plan.run(matrices[1], matrices[1])
    with pytest.raises(TypeError, match="run: a: expected an operand as planned, got None"):
        plan.run(None, matrices[1])
    with pytest.raises(ValueError, match="prepare: pattern: expected a matrix that is transposed"):
        plan.prepare(matrices[1].T)
    flipped = tessera.plan("matmul", matrices[0].T, x, transpose_b=True)
    flipped.prepare()
    same(flipped.run(matrices[0].T, x), tessera.matmul(matrices[0].T, x, transpose_b=True))


def expandable(make):
    """x and a weight for which the dense product is predicted to be faster, and its bytes."""
    matrix = BsrMatrix.prune(make(support.random(32, 24, seed=1)), (2, 2), 0.9)
    return make(support.random(40, 24)), matrix, 32 * 24 * 4


def near(got, want):
    np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=1e-5, atol=1e-5)


def test_a_dense_copy_has_to_fit_the_limit(make):
    x, matrix, limit = expandable(make)
    plan = tessera.plan("linear", x, matrix, expand_bytes=limit)
    assert plan.expanded_bytes == limit < plan.schedule_bytes
    answer = plan.explain()
    assert answer == tessera.explain("linear", x, matrix, expand_bytes=limit)
    assert answer["plan"]["expanded_bytes"] == limit
    assert {one["expanded_bytes"] for one in answer["candidates"]} == {0, limit}
    assert "expanded to a dense copy of 3.07 kB" in str(answer)
    with pytest.raises(ValueError, match="expected a prepared one"):
        plan.run(x, matrix)
    plan.prepare()
    near(plan.run(x * 2, matrix), tessera.linear(x * 2, matrix))
    bias = make(support.random(32))
    near(plan.run(x, matrix, bias=bias), tessera.linear(x, matrix, bias))
    for smaller in (0, limit - 1):
        assert tessera.plan("linear", x, matrix, expand_bytes=smaller).expanded_bytes == 0
        assert "expanded" not in str(tessera.explain("linear", x, matrix, expand_bytes=smaller))
    for call in (tessera.plan, tessera.explain):
        with pytest.raises(ValueError, match="expand_bytes: expected 0 or more, got -1"):
            call("linear", x, matrix, expand_bytes=-1)
    assert tessera.plan("linear", x, make(support.random(32, 24)), expand_bytes=limit).run


@pytest.mark.parametrize("operation", ["linear", "matmul", "transposed"])
def test_a_dense_copy_holds_the_prepared_values(make, operation):
    x, matrix, limit = expandable(make)
    call = {"linear": lambda m: ("linear", x, m), "matmul": lambda m: ("matmul", m, x.T),
            "transposed": lambda m: ("bsr_matmul", x, m.T)}[operation]

    def operands(m):
        return call(m)[1:]

    def want(m):
        name, *given = call(m)
        return getattr(tessera, name)(*given)

    plan = tessera.plan(*call(matrix), expand_bytes=limit)
    assert plan.expanded_bytes == limit
    plan.prepare()
    near(plan.run(*operands(matrix)), want(matrix))
    other = matrix.with_values(matrix.values * 2)
    with pytest.raises(ValueError, match=r"expected the values that prepare\(\) copied, got other"):
        plan.run(*operands(other))
    given = other.T if operation == "transposed" else other
    plan.prepare(given)
    near(plan.run(*operands(other)), want(other))
    with pytest.raises(ValueError, match="got other ones"):
        plan.run(*operands(matrix))


def test_values_that_changed_in_place_are_prepared_again():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    x, matrix, limit = expandable(torch.from_numpy)
    plan = tessera.plan("linear", x, matrix, expand_bytes=limit)
    plan.prepare()
    matrix.values.mul_(2)
    with pytest.raises(ValueError, match=r"run: weight: .* got changed ones; prepare\(matrix\)"):
        plan.run(x, matrix)
    plan.prepare()
    near(plan.run(x, matrix), tessera.linear(x, matrix))
    with torch.inference_mode():
        frozen = matrix.with_values(matrix.values * 3)
        plan.prepare(frozen)
        near(plan.run(x, frozen), tessera.linear(x, frozen))


def test_sampled_products(make):
    a, b = make(support.random(32, 8)), make(support.random(8, 16, seed=1))
    patterns = [BsrMatrix.prune(make(support.random(32, 16, seed=i)), (8, 8), 0.5) for i in (1, 2)]
    plan = tessera.plan("sddmm", a, b, patterns[0], alpha=2.0)
    for pattern in patterns:
        plan.prepare(pattern)
        got = plan.run(a, b)
        assert got.row_offsets is pattern.row_offsets
        same(got.values, tessera.sddmm(a, b, pattern, alpha=2.0).values)
    added = tessera.plan("sddmm", a, b, patterns[0], beta=1.0)
    added.prepare()
    same(added.run(a, b).values, tessera.sddmm(a, b, patterns[0], beta=1.0).values)


def test_another_problem_is_refused(make):
    plan = tessera.plan("attention", *qkv(make))
    with pytest.raises(ValueError, match=r"run: plan: made for 'attention f32 B2 .*Q64.*', the "
                                         r"problem is 'attention f32 B2 .*Q63.*'; plan again"):
        plan.run(*qkv(make, length=63))
    with pytest.raises(TypeError, match="run: expected q, k, v, got 2 operands"):
        plan.run(*qkv(make)[:2])
    with pytest.raises(TypeError, match=r"attention: k: |run: "):
        plan.run(qkv(make)[0], [1.0], qkv(make)[2])
    with pytest.raises(ValueError, match=r"plan: operation: expected one of tessera\.attention"):
        tessera.plan("merge", *qkv(make))
    matrix = BsrMatrix.prune(make(support.random(16, 16)), (8, 8), 0.5)
    with pytest.raises(NotImplementedError, match="plan: operation: the size of spgemm's result"):
        tessera.plan(tessera.spgemm, matrix, matrix)
    with pytest.raises(NotImplementedError, match=r"plan: b: .* got two of them"):
        tessera.plan("matmul", matrix, matrix)
    with pytest.raises(NotImplementedError, match="rejected"):
        tessera.plan("attention", *qkv(make), backend="sm90")


def test_plans_keep_no_operands():
    import gc
    import weakref

    class Watched(np.ndarray):
        """An array that allows weak references."""

    q, k, v = (x.view(Watched) for x in qkv(lambda array: array))
    gone = [weakref.ref(x) for x in (q, k, v)]
    plan = tessera.plan("attention", q, k, v)
    del q, k, v
    gc.collect()
    assert [x() for x in gone] == [None] * 3
    plan.run(*qkv(lambda array: array))


def test_a_plan_records_no_gradient():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    q, k, v = qkv(torch.from_numpy)
    plan = tessera.plan("attention", q, k, v)
    trained = q.clone().requires_grad_()
    with pytest.raises(RuntimeError, match="run: expected a plain call"):
        plan.run(trained, k, v)
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(RuntimeError, match="plain"):
        plan.run(q, k, v)
    with torch.no_grad():
        same(plan.run(trained, k, v), plan.run(q, k, v))
    with pytest.raises(TypeError, match="run: expected PyTorch tensors throughout, got a list"):
        plan.run(q, [1.0], v)
