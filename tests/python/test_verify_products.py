"""tessera.verify of products on the CPU: right results pass, and each kind of wrong result is
found."""

import json

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import tessera  # noqa: E402
from tessera.verify import cli, numbers, operations  # noqa: E402
from tessera.verify.products import build, draw, judge, oracle  # noqa: E402
from tessera.verify.products.draw import Blocks, Drawn, Layout, Side  # noqa: E402

MOST = 1 << 16


def run(op, *more):
    return cli.main([op, "--device", "cpu", "--quiet", "--multiplies", str(MOST),
                     *map(str, more)])


def plain(op, **options):
    """A plain problem, apart from the given options: two blocks of rows, three of depth."""
    options = {"dtype": "f32", "out_dtype": "f32", "m": 32, "n": 24, "k": 48, **options}
    if op == "sddmm":
        options.setdefault("pattern", Blocks(16, 8, density=0.7))
    if op == "bsr_matmul":
        options.setdefault("a", Side(blocks=Blocks(16, 16, "full")))
    if op == "spgemm":
        options.setdefault("a", Side(blocks=Blocks(16, 16, density=0.7)))
        options.setdefault("b", Side(blocks=Blocks(16, 8, density=0.7)))
    if op == "linear":
        options = {"b": Side(transposed=True), "given_out": False, **options}
    if op == "grouped":
        options.setdefault("groups", [10, 0, 22])
        options.setdefault("b", Side(batch=3))
    return Drawn(7, op, **options)


def ran(d):
    built = build.build(d, "cpu")
    (out,) = built.outputs()
    built.run(out)
    return built, out


def verdict(d):
    return judge.judge(*ran(d))


def drawn(count=1500, device="cuda", most=1 << 28):
    return [draw.draw(op, seed, device, most) for op in draw.OPS for seed in range(count // 6)]


# ---- Right results -----------------------------------------------------------------------------


@pytest.mark.parametrize("op", draw.OPS)
def test_random_products_are_right(op, capsys):
    assert run(op, "--count", 60, "--repeat") == 0
    said = capsys.readouterr().out
    assert f"{op}: 60 problems, 60 right, 0 refused, 0 failed" in said
    assert "of the budget, seed" in said and "ran 60: cpu_" in said


def test_every_tensor_is_made_where_the_problem_is(monkeypatch):
    right = cli.drawn_problem

    def without_plans(*arguments):  # a plan runs in no mode
        d = right(*arguments)
        d.planned, d.given_out = False, d.given_out and d.op != "linear"
        return d

    monkeypatch.setattr(cli, "drawn_problem", without_plans)
    with torch.device("meta"):  # tensors without a device would be made on meta and fail
        assert run("products", "--count", 60, "--seed", 200) == 0


def test_several_operations_share_the_seeds(capsys):
    assert run("all", "--count", 40, "--pairs", 20000, "--jobs", 2) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("all: 40 problems, 40 right, 0 refused, 0 failed")
    counts = {line.split(":")[0]: int(line.split()[1]) for line in said[1:] if line[0] != " "}
    assert set(counts) == set(operations.OPERATIONS) and sum(counts.values()) == 40
    # A seed has the same problem, whatever it is drawn among.
    for seed in range(1, 41):
        assert operations.operation_of("all", seed).name in counts


@pytest.mark.parametrize("op", draw.OPS)
def test_the_oracle_agrees_with_pytorch(op):
    d = plain(op, alpha=2.0 if op != "linear" else 1.0)
    built, _ = ran(d)
    truth = oracle.truth_of(built).value
    a, b = (x.values for x in (built.a, built.b))
    by_group = op == "grouped"
    want = torch.cat([a[0, :10] @ b[0], a[0, 10:] @ b[2]]) if by_group else (a @ b)[0]
    want = d.alpha * want
    if op in ("sddmm", "spgemm"):
        blocks = want.view(2, 16, 3, 8).transpose(1, 2)
        reached = built.pattern[0] if op == "sddmm" else torch.ones(2, 3, dtype=torch.bool)
        if op == "spgemm":
            stored = a[0].view(2, 16, 3, 16).transpose(1, 2).abs().amax((2, 3)) > 0
            other = b[0].view(3, 16, 3, 8).transpose(1, 2).abs().amax((2, 3)) > 0
            reached = (stored.float() @ other.float()) > 0
        want = blocks[reached]
    torch.testing.assert_close(truth, want)


@pytest.mark.parametrize("activation, function", [
    ("relu", torch.relu), ("gelu", torch.nn.functional.gelu), ("silu", torch.nn.functional.silu),
    ("gelu_tanh", lambda x: torch.nn.functional.gelu(x, approximate="tanh"))])
def test_activations_of_the_oracle(activation, function):
    x = torch.linspace(-9, 9, 77, dtype=torch.float64)
    torch.testing.assert_close(oracle._activated(activation, x), function(x))


def test_the_budget_grows_with_what_is_added_up():
    """(terms + 2) roundings of the sum of magnitudes, and half an ulp."""
    d = plain("matmul")
    built, _ = ran(d)
    truth = oracle.truth_of(built)
    size = (built.a.values.abs() @ built.b.values.abs())[0]
    torch.testing.assert_close(truth.slack, 50 * 2.0**-24 * size)
    sparse, _ = ran(plain("bsr_matmul", a=Side(blocks=Blocks(16, 16, "one_row"))))
    stored = sparse.a.stored[0].sum(-1)
    assert set(stored.tolist()) == {0, 48}
    assert (oracle.truth_of(sparse).slack[stored == 0] == 0).all()


def test_infinite_results_are_right_where_the_truth_rounds_to_infinity():
    built, out = ran(plain("matmul", dtype="f16", out_dtype="f16"))
    truth = oracle.Truth(torch.full((32, 24), 65519.0).double(), torch.zeros(32, 24).double())
    out.tensor.fill_(65504)
    assert judge._used(built, out.tensor, truth).max() <= 1
    out.tensor.fill_(torch.inf)
    assert judge._used(built, out.tensor, truth).min() > 1
    truth.value.fill_(65520)
    assert judge._used(built, out.tensor, truth).max() <= 1
    truth.value.fill_(1e6)
    assert judge._used(built, out.tensor, truth).max() == 0
    out.tensor.fill_(65504)
    assert judge._used(built, out.tensor, truth).min() > 1
    # The other infinity, unless sums may be off by so much.
    out.tensor.fill_(-torch.inf)
    assert judge._used(built, out.tensor, truth).min() > 1
    truth.slack.fill_(2e6)
    assert judge._used(built, out.tensor, truth).max() <= 1


# ---- FP8 ---------------------------------------------------------------------------------------


def narrow(op="matmul", a="none", b="none", kind="usual", **options):
    """A plain problem in FP8 with factors of these forms: two blocks of 128 of each length."""
    batch = options.get("batch", 0)
    sides = {"a": Side(factors=a, factor_kind=kind, batch=batch),
             "b": Side(factors=b, factor_kind=kind, batch=batch, transposed=op == "linear")}
    if op == "bsr_matmul":
        sides["a"].blocks = Blocks(16, 16, density=0.5)
    if op == "grouped":
        sides["b"].batch = 3
        options.setdefault("groups", [60, 0, 140])
    return plain(op, **{"dtype": "e4m3", "m": 160 if op == "bsr_matmul" else 200, "n": 136,
                        "k": 160, **sides, **options})


def test_random_products_in_fp8_are_right(capsys):
    assert run("products_fp8", "--count", 120, "--repeat") == 0
    said = capsys.readouterr().out
    assert "products_fp8: 120 problems, 120 right, 0 refused, 0 failed" in said
    assert "ran 120: cpu_" in said


def test_everything_of_fp8_is_drawn():
    problems = [draw.draw_fp8(seed, "cuda", MOST) for seed in range(1500)]
    assert {d.op for d in problems} == set(draw.FP8_OPS) and {d.dtype for d in problems} == {"e4m3"}
    assert {d.out_dtype for d in problems} == {"bf16", "f16", "f32"}
    sides = [side for d in problems for side in (d.a, d.b)]
    assert {side.factors for side in sides if side.blocks} == set(draw.BLOCK_FACTORS)
    assert {side.factors for side in sides if not side.blocks} == set(draw.DENSE_FACTORS)
    assert {side.factor_kind for side in sides} == set(draw.FACTOR_KINDS)
    assert 0.04 < sum(side.dtype == "e5m2" for side in sides) / len(sides) < 0.12
    assert not any(side.factors != "none" for d in drawn(300) for side in (d.a, d.b))


def test_many_fp8_problems_have_a_hopper_row():
    count = 0
    for seed in range(60):
        built = build.build(draw.draw_fp8(seed, "cpu", MOST), "cpu")
        name, arguments, options = built.call(*built.outputs())
        found = tessera.explain(name, *arguments, device="h100", **options)["candidates"]
        count += any(one["accepted"] and "sm90_matmul" in one["kernel"] for one in found)
    assert count > 25


@pytest.mark.parametrize("op, a, b", [
    ("matmul", a, b) for a, b in (("tensor", "line"), ("line", "128x128"), ("1x128", "1x128"),
                                  ("matrix", "tensor"))] + [
    ("linear", "1x128", "128x128"), ("bsr_matmul", "stored", "1x128"),
    ("bsr_matmul", "tensor", "line"), ("grouped", "1x128", "128x128"),
    ("grouped", "line", "matrix")])
@pytest.mark.parametrize("kind", ["usual", "extreme", "zeros", "nan"])
def test_the_oracle_multiplies_fp8_by_its_factors(op, a, b, kind):
    """Beside products of elements times factors that are looked up one by one."""
    built, out = ran(narrow(op, a, b, kind))
    assert judge.judge(built, out)[1] is None
    truth = oracle.truth_of(built).value
    assert truth.isnan().any() or kind != "nan" or op == "bsr_matmul" or {a, b} <= {
        "tensor", "matrix"}
    scale = built.b.scale
    if b == "128x128" and op == "grouped":
        assert scale.shape == (3, 2, 2)
        assert built.b.boxes.each[2, 130, 128] == scale[2, 1, 1] or scale[2, 1, 1].isnan()
    if b == "1x128":
        assert scale.shape == (2, 136) and torch.equal(
            built.b.boxes.each[0, 140].nan_to_num(9), scale[1].double().nan_to_num(9))
    if a == "line":
        assert built.a.scale.shape[-2:] == (200, 1)


def test_a_nan_factor_makes_nan_of_its_products_only():
    d = narrow("bsr_matmul", "stored")
    built = build.build(d, "cpu")
    built.a.scale.fill_(1)
    built.a.scale[0] = torch.nan
    built.a.values = built.a.values.masked_fill(~built.a.stored, 0)
    first = built.a.stored[0].view(10, 16, 10, 16)[:, 0, :, 0].nonzero()[0]
    rows = slice(16 * int(first[0]), 16 * int(first[0]) + 16)
    out, = built.outputs()
    built.run(out)
    assert out.tensor[rows].isnan().all()
    others = torch.ones(160, dtype=torch.bool)
    others[rows] = False
    assert out.tensor[others].isfinite().all()


def test_factors_that_nothing_needs_are_nan():
    one_row = Blocks(16, 16, "one_row")
    d = narrow("bsr_matmul", b="1x128", k=256)
    d.a.blocks, d.a.transposed = one_row, True
    built = build.build(d, "cpu")
    needed = built.a.stored[0].any(0).view(2, 128).any(1)
    assert needed.sum() == 1
    assert torch.equal(built.b.scale.isnan().all(1), ~needed)
    built = build.build(narrow("grouped", "line", "matrix"), "cpu")
    assert built.b.scale.flatten().isnan().tolist() == [False, True, False]


@pytest.mark.parametrize("name", ["a_scale", "b_scale"])
def test_wrong_factors_are_found(monkeypatch, name):
    right = tessera.matmul

    def wrong(*arguments, **options):
        scale = options[name].clone()
        scale.view(-1)[-1] *= 1.1
        return right(*arguments, **{**options, name: scale})

    d = narrow("matmul", "line", "1x128")
    assert verdict(d)[1] is None
    monkeypatch.setattr(tessera, "matmul", wrong)
    assert verdict(d)[0] > 1


def test_tensor_cores_lose_less_than_the_budget_of_fp8():
    """Sums that keep 13 bits below the largest of 32 products and of the sum so far."""

    def emulated(a, b):
        total = torch.zeros(a.shape[0], b.shape[1], dtype=torch.float64)
        for step in range(0, a.shape[1], 128):
            sums = torch.zeros_like(total)
            for first in range(step, min(a.shape[1], step + 128), 32):
                terms = a[:, first : first + 32, None] * b[None, first : first + 32]
                terms = torch.cat([terms, sums[:, None]], 1)
                exponent = torch.frexp(terms.abs().amax(1, keepdim=True))[1].double()
                unit = torch.exp2(exponent - 14)
                sums = ((terms / unit).floor() * unit).sum(1)
            total += sums
        return total

    for values in ("normal", "wide", "positive"):
        d = narrow(out_dtype="f32", m=40, n=40, k=300)
        d.a.values = d.b.values = values
        d.a.exponent = d.b.exponent = 5
        built = build.build(d, "cpu")
        a, b = built.a.values[0], built.b.values[0]
        lost = ((emulated(a, b) - a @ b).abs() / (a.abs() @ b.abs())).max()
        uneven = oracle.UNEVEN if values in oracle.UNEVEN_VALUES else 1
        assert 0.1 < lost / (uneven * numbers.FP8_UNIT) < 0.8, values


# ---- Drawn problems ----------------------------------------------------------------------------


@pytest.mark.parametrize("op", draw.OPS)
def test_a_seed_repeats_its_problem(op):
    for seed in range(40):
        assert draw.draw(op, seed, "cuda", MOST) == draw.draw(op, seed, "cuda", MOST)
    d = draw.draw(op, 3, "cpu", MOST)
    one, other = (build.build(d, "cpu") for _ in range(2))
    for name in ("a", "b"):
        x, y = getattr(one, name), getattr(other, name)
        assert torch.equal(x.values, y.values)
        assert x.memory is None or torch.equal(x.memory.nan_to_num(9), y.memory.nan_to_num(9))


def test_everything_is_drawn_and_nothing_too_large():
    problems = drawn(6000)
    assert all(d.multiplies <= 2 << 28 and d.numbers <= 2 * draw.MOST_NUMBERS for d in problems)
    sizes = [size for d in problems for size in (d.m, d.n, d.k)]
    assert {0, 1, 15, 16, 17, 63, 64, 65, 127, 128, 129, 255, 256, 257} < set(sizes)
    assert max(sizes) > 4096
    assert sum(d.multiplies > 1 << 26 for d in problems) < 0.2 * len(problems)
    for name in ("dtype", "out_dtype", "c", "bias", "activation", "index"):
        assert len({getattr(d, name) for d in problems}) >= 2, name
    for name in ("planned", "given_out", "inner", "bias_rows", "bias_batch"):
        assert len({getattr(d, name) for d in problems}) == 2, name
    assert {d.out_dtype for d in problems} == set(numbers.DTYPES) - {"e4m3"}
    assert any(d.dtype != d.out_dtype for d in problems)
    assert any(d.alpha == 0 for d in problems) and any(d.beta for d in problems)
    sides = [side for d in problems for side in (d.a, d.b)]
    for name in ("transposed", "view"):
        assert len({getattr(side, name) for side in sides}) == 2, name
    assert {side.values for side in sides} == set(draw.VALUES)
    layouts = [side.layout for side in sides]
    assert {layout.step for layout in layouts} == {1, 2, 3}
    for name in ("columns", "shared"):
        assert len({getattr(layout, name) for layout in layouts}) == 2, name
    assert any(layout.offset for layout in layouts)
    assert any(layout.padding % 8 for layout in layouts)
    blocks = [side.blocks for side in sides if side.blocks]
    assert {8, 16, 32, 64, 128} < {x.rows for x in blocks} and len({x.rows for x in blocks}) > 15
    assert {x.pattern for x in blocks} == set(draw.PATTERNS)
    assert {x.form for x in blocks} == {"shared", *draw.FORMS}
    grouped = [d for d in problems if d.groups is not None]
    assert any(0 in d.groups for d in grouped) and any(d.before or d.after for d in grouped)
    assert not any(d.before or d.after for d in drawn(600, "cpu"))


@pytest.mark.parametrize("form", ["shared", *draw.FORMS])
def test_matrices_hold_what_was_drawn(form):
    batch = 0 if form == "shared" else 3
    side = Side(batch=batch, blocks=Blocks(8, 16, density=0.5, form=form), transposed=True)
    d = plain("bsr_matmul", a=side, batch=batch, b=Side(batch=batch))
    made = build.build(d, "cpu").a
    matrix = made.given
    assert made.option and made.values.shape == (max(1, batch), 32, 48)
    for i in range(max(1, batch)):
        lists = [x if x.dim() == 1 else x[i] for x in (matrix.row_offsets, matrix.col_indices)]
        values = matrix.values[i] if matrix.values.dim() == 4 else matrix.values
        offsets, columns = lists
        if form == "pool":
            begin, end = int(offsets[0]), int(offsets[-1])
            offsets, columns, values = offsets - begin, columns[begin:end], values[begin:end]
        dense = tessera.BsrMatrix(values, offsets, columns, 48, 32).to_dense()
        assert torch.equal(dense.T.double(), made.values[i]) and dense.any()


def test_what_is_not_needed_is_nan():
    one_row = Blocks(16, 16, "one_row")
    built = build.build(plain("bsr_matmul", a=Side(transposed=True, blocks=one_row)), "cpu")
    assert built.b.memory[0, 16:32].isfinite().all()  # the row of blocks that the seed chooses
    assert built.b.memory[0, :16].isnan().all() and built.b.memory[0, 32:].isnan().all()
    (out,) = built.outputs()
    assert out.tensor.isnan().all()

    built = build.build(plain("sddmm", pattern=Blocks(16, 8, "one_row")), "cpu")
    assert built.a.memory[0, :16].isnan().all() and built.a.memory[0, 16:].isfinite().all()
    built = build.build(plain("grouped"), "cpu")
    assert built.b.memory[1].isnan().all() and built.b.memory[::2].isfinite().all()
    built = build.build(plain("grouped", inner=True, groups=[20], before=9, after=19, b=Side()),
                        "cpu")
    for lines in (built.a.memory[0].T, built.b.memory[0]):
        assert lines[:9].isnan().all() and lines[29:].isnan().all()
        assert lines[9:29].isfinite().all()


def test_layouts_lie_as_they_were_drawn():
    for d in drawn(600, "cpu", MOST):
        built = build.build(d, "cpu")
        for side, made in ((d.a, built.a), (d.b, built.b)):
            if made.memory is None or 0 in made.memory.shape:
                continue
            memory = made.memory.mT if side.transposed else made.memory
            if d.lead is None:
                along = -2 if side.layout.columns else -1
                assert memory.stride(along) == side.layout.step
                assert memory.storage_offset() * memory.itemsize % 16 == (
                    side.layout.offset * memory.itemsize % 16)


# ---- Wrong results -----------------------------------------------------------------------------


@pytest.fixture
def damaged(monkeypatch):
    """Makes an operation change its result with `damage(result)`."""

    def arm(op, damage):
        name = {"grouped": "matmul"}.get(op, op)
        right = getattr(tessera, name)

        def wrong(*arguments, **options):
            result = right(*arguments, **options)
            damage(result.values if op == "sddmm" else result)
            return result

        monkeypatch.setattr(tessera, name, wrong)

    return arm


def truncated(x):
    """Rounds a float32 result towards zero to bf16, which a right one is not."""
    x.copy_((x.view(torch.int32) & -65536).view(torch.float32))


def element(out, offset):
    """The element at an offset from the first one of a tensor, also outside of the tensor."""
    return out.as_strided((1,), (1,), out.storage_offset() + offset)


@pytest.mark.parametrize("op", ["matmul", "linear", "bsr_matmul", "grouped", "sddmm"])
@pytest.mark.parametrize("damage", [
    lambda out: out.mul_(1 + 2e-5), truncated, lambda out: out.view(-1)[-1].fill_(torch.nan),
    lambda out: out.view(-1)[5].fill_(torch.inf), lambda out: out.copy_(out.flip(-2)),
    lambda out: out.copy_(out.roll(1, -1)), lambda out: out.zero_()],
    ids=["scaled", "truncated", "nan", "inf", "flipped", "rolled", "zeros"])
def test_each_kind_of_wrong_result_is_found(damaged, op, damage):
    d = plain(op)
    assert verdict(d)[1] is None
    damaged(op, damage)
    share, trouble = verdict(d)
    assert share > 1 and trouble.startswith("out at ")


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_results_that_are_rounded_the_wrong_way_are_found(dtype):
    """Truncation instead of rounding to the nearest number."""
    built, out = ran(plain("matmul", dtype=dtype, out_dtype=dtype, n=200))
    assert judge.judge(built, out)[1] is None
    value = oracle.truth_of(built).value
    rounded = value.to(built.out_dtype)
    beyond = rounded.double().abs() > value.abs()
    bits = rounded.view(torch.int16) - beyond.to(torch.int16)
    out.tensor.copy_(bits.view(built.out_dtype))
    assert judge.judge(built, out)[0] > 1


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_sums_of_the_operands_precision_are_found(dtype):
    """Products that are added up in 16 bits."""
    d = plain("matmul", dtype=dtype, out_dtype="f32", k=512)
    built, out = ran(d)
    left, right = (x.values[0].to(built.out_dtype) for x in (built.a, built.b))
    total = torch.zeros(32, 24, dtype=numbers.DTYPES[dtype])
    for i in range(0, 512, 16):
        total += (left[:, i : i + 16] @ right[i : i + 16]).to(total.dtype)
    out.tensor.copy_(total)
    assert judge.judge(built, out)[0] > 1


def test_a_block_at_the_next_column_is_found():
    d = plain("bsr_matmul", a=Side(blocks=Blocks(16, 16, density=0.6)), k=96)
    built = build.build(d, "cpu")
    columns = built.a.given.col_indices
    assert 0 < columns.shape[0] < 12
    built.b.memory.copy_(built.b.values)  # no NaN, which would be found at once
    row = built.a.given.row_offsets
    begin, end = int(row[0]), int(row[1])
    assert end > begin
    free = next(j for j in range(6) if j not in columns[begin:end].tolist())
    entries = [*columns[begin + 1 : end].tolist(), free]
    built.a.given.col_indices[begin:end] = torch.tensor(sorted(entries), dtype=columns.dtype)
    (out,) = built.outputs()
    built.run(out)
    assert judge.judge(built, out)[0] > 1


@pytest.mark.parametrize("more, wrong", [
    ({"bias": "f32"}, {"bias": None}),
    ({"bias": "f32", "n": 32}, {"bias_axis": "row"}),
    ({"activation": "gelu"}, {"activation": "gelu_tanh"}),
    ({"activation": "silu"}, {"activation": "none"}),
    ({"alpha": 2.0}, {"alpha": 2.0001}),
    ({"beta": 0.5, "c": "f32"}, {"beta": 0.0}),
    ({"beta": 0.5}, {"beta": 0.5001}),
    ({"a": Side(transposed=True), "m": 48}, {"transpose_a": False}),
])
def test_a_wrong_option_is_found(monkeypatch, more, wrong):
    d = plain("matmul", **more)
    assert verdict(d)[1] is None
    right = tessera.matmul
    monkeypatch.setattr(tessera, "matmul",
                        lambda *arguments, **options: right(*arguments, **{**options, **wrong}))
    assert verdict(d)[0] > 1


@pytest.mark.parametrize("layout", [Layout(), Layout(padding=8), Layout(columns=True, offset=3)])
@pytest.mark.parametrize("place", [lambda out: -1,
                                   lambda out: sum((n - 1) * s for n, s in zip(
                                       out.shape, out.stride(), strict=True)) + 1])
def test_writes_around_a_result_are_found(damaged, layout, place):
    d = plain("matmul", out=layout)
    damaged("matmul", lambda out: element(out, place(out)).fill_(0))
    assert verdict(d) == (float("inf"), "out: memory around it was written")


def test_writes_between_rows_are_found(damaged):
    damaged("matmul", lambda out: element(out, 24).fill_(0))
    assert verdict(plain("matmul", out=Layout(padding=8)))[0] == float("inf")


@pytest.mark.parametrize("damage, told", [
    (lambda made: made.values[-1, 3].mul_(1.001), "out at block "),
    (lambda made: made.col_indices.copy_(made.col_indices.flip(0)), "out: col_indices: expected"),
    (lambda made: made.row_offsets[1].add_(1), "out: row_offsets: expected")])
def test_wrong_sparse_results_are_found(monkeypatch, damage, told):
    d = plain("spgemm")
    assert verdict(d)[1] is None
    right = tessera.products.spgemm_symbolic

    def wrong(*arguments, **options):
        result, numeric = right(*arguments, **options)

        def damaged():
            numeric()
            damage(result)

        return result, damaged

    monkeypatch.setattr(tessera.products, "spgemm_symbolic", wrong)
    share, trouble = verdict(d)
    assert share > 1 and trouble.startswith(told)


def test_a_result_of_another_dtype_or_shape_is_found():
    built, out = ran(plain("matmul", given_out=False))
    right = out.tensor
    out.tensor = right.half()
    assert judge.judge(built, out)[1] == "out: expected torch.float32, got torch.float16"
    out.tensor = right[1:]
    assert judge.judge(built, out)[1] == "out: expected [32, 24], got [31, 24]"


# ---- The command -------------------------------------------------------------------------------


def test_failures_are_printed_with_the_command_that_repeats_them(damaged, capsys):
    damaged("matmul", lambda out: out.fill_(torch.nan))
    assert run("products", "--count", 200, "--seed", 5, "--failures", 2) == 1
    said = capsys.readouterr().out
    assert said.count("FAILED out at ") == 2 and "stopped here" in said
    assert " on cpu_matmul_m64_n384_k512\n" in said
    commands = [line.strip() for line in said.splitlines() if "python -m" in line]
    assert len(commands) == 2
    assert cli.main([*commands[0].split()[3:], "--quiet"]) == 1
    assert capsys.readouterr().out.splitlines()[:3] == said.splitlines()[:3]


@pytest.fixture
def candidates(monkeypatch):
    """Rows that `explain` accepts, and those that ran."""
    asked = []
    right = tessera.matmul

    def matmul(*arguments, **options):
        asked.append(options.pop("kernel", None))
        return right(*arguments, **options)

    def explain(name, *arguments, **options):
        return {"candidates": [{"kernel": f"row{i}", "accepted": i != 2} for i in range(4)],
                "plan": {"kernel_name": "row0"}}

    monkeypatch.setattr(tessera, "matmul", matmul)
    monkeypatch.setattr(tessera, "explain", explain)
    monkeypatch.setattr(tessera, "plan", None)
    monkeypatch.setattr(cli, "drawn_problem", lambda op, seed, options: plain("matmul"))
    return asked


def test_rows_are_drawn_among_those_that_support_the_problem(candidates, tmp_path, capsys):
    path = tmp_path / "found.json"
    assert run("matmul", "--count", 60, "--json", path) == 0
    assert set(candidates) == {None, "row0", "row1", "row3"}
    assert 5 < candidates.count(None) < 35
    rows = json.loads(path.read_text())["rows"]
    assert set(rows) == {"row0", "row1", "row3"} and sum(rows.values()) == 60
    assert f"ran {rows['row1']}: row1\n" in capsys.readouterr().out


def test_a_row_that_explain_accepts_may_not_refuse(candidates, monkeypatch, capsys):
    def refuse(*arguments, **options):
        raise NotImplementedError("no kernel supports this problem")

    monkeypatch.setattr(tessera, "matmul", refuse)
    assert run("matmul", "--count", 1) == 1
    said = capsys.readouterr().out
    assert "FAILED NotImplementedError: no kernel supports" in said and " on row" in said
    assert run("matmul", "--count", 1, "--rows", "fastest") == 0
    assert "1 refused" in capsys.readouterr().out


def test_rows_may_be_the_librarys_choice(candidates, capsys):
    assert run("matmul", "--count", 20, "--rows", "fastest") == 0
    assert set(candidates) == {None} and "ran " not in capsys.readouterr().out
