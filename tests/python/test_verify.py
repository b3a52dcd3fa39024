"""tessera.verify on the CPU: right results pass, and each kind of wrong result is found."""

import json
import os

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import tessera  # noqa: E402
from tessera import attention as right_attention  # noqa: E402
from tessera.verify import cli, numbers  # noqa: E402
from tessera.verify.attention import build, draw, judge, oracle  # noqa: E402

SMALL = ["attention", "--device", "cpu", "--quiet", "--pairs", "20000"]
HALVES = ("f16", "bf16")


def run(*more):
    return cli.main([*SMALL, *map(str, more)])


def drawn(**options):
    """A plain problem, apart from the given options."""
    d = draw.Drawn(7, q_lengths=[100, 100], kv_lengths=[130, 130], heads=4, kv_heads=2, **options)
    d.heads_first = dict.fromkeys(("q", "k", "v", "out"), False)
    d.padding = dict.fromkeys(("q", "k", "v", "out"), (1, 0, 2))
    return d


@pytest.fixture
def damaged(monkeypatch):
    """Makes tessera.attention change its results with `damage`."""
    right = tessera.attention

    def arm(damage):
        def wrong(*arguments, **options):
            result = right(*arguments, **options)
            damage(options["out"], options["lse"])
            return result

        monkeypatch.setattr(tessera, "attention", wrong)

    return arm


def verdict(d, stretch=1 << 18):
    built = build.build(d, "cpu", stretch)
    out, lse = built.outputs()
    built.run(out, lse)
    return judge.judge(built, out, lse)


# ---- Right results -----------------------------------------------------------------------------


def test_random_problems_are_right(capsys):
    assert run("--count", 60, "--repeat") == 0
    said = capsys.readouterr().out
    assert "60 problems, 60 right, 0 refused, 0 failed" in said and "of the budget, seed" in said


def test_a_forced_backend_is_the_only_one(capsys):
    assert run("--count", 3, "--backend", "cpu") == run("--count", 3, "--backend", "sm80") == 0
    said = capsys.readouterr().out
    assert "3 right, 0 refused" in said and "0 right, 3 refused" in said
    assert "execution.backend requires sm80" in said


def test_every_tensor_is_made_where_the_problem_is():
    with torch.device("meta"):  # tensors without a device would be made on meta and fail
        assert run("--count", 20, "--seed", 200) == 0


def test_random_problems_in_fp8_are_right(capsys):
    assert cli.main(["attention_fp8", *SMALL[1:], "--count", "60", "--repeat"]) == 0
    said = capsys.readouterr().out
    assert "60 problems, 60 right, 0 refused, 0 failed" in said
    assert "ran 60: cpu_attention" in said


@pytest.mark.parametrize("dtype", numbers.DTYPES)
def test_right_results_are_far_below_their_budgets(dtype):
    out_dtype = "bf16" if dtype == "e4m3" else dtype
    share, trouble = verdict(drawn(dtype=dtype, out_dtype=out_dtype, causal=True, sinks="f32"))
    assert trouble is None and 0 < share < 0.9


@pytest.mark.parametrize("dtype", ["bf16", "e4m3"])
@pytest.mark.parametrize("queries", [1, 2, 63])
def test_a_right_result_of_few_numbers_is_right(queries, dtype):
    """The result of a kernel that rounds P as the emulation does, but with another row max."""
    for seed in range(6):
        d = drawn(dtype=dtype, out_dtype="f32", scale=0.05, dim_v=8)
        d.seed, d.q_lengths, d.kv_lengths, d.heads, d.kv_heads = seed, [queries], [500], 40, 40
        built = build.build(d, "cpu", 1 << 22)
        q, k, v = (x[0].transpose(0, 1).float() for x in (built.q, built.k, built.v))
        hidden = ~oracle.seen(d, None, 0, 0, queries, "cpu")
        rounded, *_ = oracle._softmax(d, q, k, v, hidden, None, d.scale,
                                      numbers.DTYPES[dtype], 0.3)
        out, lse = built.outputs()
        built.run(out, lse)
        out.tensor[0] = rounded.transpose(0, 1)
        share, trouble = judge.judge(built, out, lse)
        assert trouble is None and share > 0.2


def test_stretches_of_queries_do_not_change_the_verdict():
    d = drawn(causal=True, window_left=40, dtype="bf16")
    assert verdict(d)[0] == pytest.approx(verdict(d, stretch=1)[0], rel=1e-6)


def test_visible_keys():
    d = draw.Drawn(1, q_lengths=[2], kv_lengths=[4], causal=True, window_left=1, kv_end=[3])
    # The last query is at the position of key 2.
    assert oracle.seen(d, None, 0, 0, 2, "cpu").int().tolist() == [[[1, 1, 0, 0], [0, 1, 1, 0]]]
    d.q_position, d.kv_position, d.kv_begin = [10], [9], [1]
    assert oracle.seen(d, None, 0, 0, 2, "cpu").int().tolist() == [[[0, 1, 0, 0], [0, 1, 1, 0]]]


def test_the_oracle_agrees_with_pytorch():
    d = drawn(dtype="f32", out_dtype="f32")
    built = build.build(d, "cpu", 1 << 18)
    truth = judge.truth_of(built, 1, 0, 100)
    q, k, v = (x[1].transpose(0, 1).double() for x in (built.q, built.k, built.v))
    k, v = (x.repeat_interleave(2, 0) for x in (k, v))
    want = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    torch.testing.assert_close(truth.out, want)
    torch.testing.assert_close(truth.lse, (q @ k.mT / 8).logsumexp(-1))


@pytest.mark.parametrize("factors", [form for form in draw.FACTORS if form != "none"])
@pytest.mark.parametrize("more", [{}, {"page": 48, "kv_end": [110, 130]},
                                  {"packed_q": True, "packed_kv": True}])
def test_the_oracle_multiplies_fp8_by_its_factors(factors, more):
    """Beside float32 attention over the products, whose factors are repeated by hand."""
    d = drawn(dtype="e4m3", out_dtype="f32", factors=dict.fromkeys("qkv", factors), **more)
    built = build.build(d, "cpu", 1 << 18)
    q, k, v = ((getattr(built, name).float() * built.factors[name][..., None]).nan_to_num()
               for name in "qkv")
    lists = {name: one for name, one in built.lists.items() if name != "page_table"}
    want = right_attention(q, k, v, **lists)
    for b in range(2):
        truth = judge.truth_of(built, b, 0, 100)
        rows = build.sequence(want, built.q_offsets, b).transpose(0, 1).double()
        torch.testing.assert_close(truth.out, rows, rtol=1e-4, atol=1e-5)
    for name, pool in zip("kv", built.pools or (), strict=False):
        for b, j in ((0, 0), (0, 47), (1, 48), (1, 129)):
            page = int(built.lists["page_table"][b, j // 48])
            place = {"tensor": (0,), "head": (1,), "outer": (page, 1)}.get(factors, (page, 1, 0))
            assert built.factors[name][b, j, 1] == built.scales[name + "_scale"][place]
            assert torch.equal(pool[page, j % 48].float(), getattr(built, name)[b, j].float())


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("heads_first", [False, True])
def test_values_by_keys_have_the_same_numbers(packed, heads_first):
    d = drawn(dtype="e4m3", out_dtype="f32", packed_kv=packed, factors=dict.fromkeys("qkv", "head"))
    d.heads_first["v"] = heads_first
    by_rows = build.build(d, "cpu", 1 << 18).v
    d.v_by_keys = True
    v = build.build(d, "cpu", 1 << 18).v
    assert torch.equal(v.view(torch.int8), by_rows.view(torch.int8))
    assert v.stride(-3) == 1 and v.data_ptr() % 16 == 0
    assert all(v.stride(axis) % 16 == 0 for axis in range(v.dim()) if axis != v.dim() - 3)
    assert verdict(d)[1] is None


@pytest.mark.parametrize("factors", [None, torch.ones(2, 0)])
def test_no_keys_give_zeros(factors):
    d = drawn(dtype="e4m3", out_dtype="f32")
    q, k, v, visible = (torch.ones(shape) for shape in ((4, 3, 64), (2, 0, 64), (2, 0, 64),
                                                        (1, 3, 0)))
    truth = oracle.attend(d, q, k, v, visible.bool(), None, factors)
    assert (truth.out == 0).all() and (truth.lse == -torch.inf).all() and truth.empty.all()


def test_equal_scores_have_a_budget_for_factors_of_any_page():
    """Every P times 0.5 is exact; beside another page a kernel may scale P differently."""
    d = drawn(dtype="e4m3", out_dtype="f32")
    q, k, v = torch.zeros(4, 64, 64), torch.zeros(2, 128, 64), torch.ones(2, 128, 64)
    visible = torch.ones(1, 64, 128).bool()
    factors = torch.ones(2, 128)
    factors[:, :64] = 0.5
    assert (oracle.attend(d, q, k, v, visible, None, factors).yardstick > 0.01).all()
    assert (oracle.attend(d, q, k, v, visible, None).yardstick < 1e-6).all()


def test_ulp():
    values = torch.tensor([1.0, 1.5, 0.99, 0.0, 3e-8], dtype=torch.float64)
    assert numbers.ulp("bf16", values)[:3].tolist() == [2**-7, 2**-7, 2**-8]
    assert numbers.ulp("f16", values)[3:].tolist() == [2**-24, 2**-24]
    assert numbers.ulp("e4m3", values)[:4].tolist() == [2**-3, 2**-3, 2**-4, 2**-9]


# ---- Drawn problems ----------------------------------------------------------------------------


def test_a_seed_repeats_its_problem():
    for seed in range(40):
        assert draw.draw(seed, HALVES, 10000) == draw.draw(seed, HALVES, 10000)
    d = draw.draw(3, HALVES, 10000)
    one, other = (build.build(d, "cpu", 1 << 18) for _ in range(2))
    for name in ("q", "k", "v"):
        a, b = getattr(one, name), getattr(other, name)
        assert a.stride() == b.stride() and torch.equal(a.nan_to_num(9), b.nan_to_num(9))


def test_everything_is_drawn_and_nothing_too_large():
    problems = [draw.draw(seed, HALVES, 1 << 28) for seed in range(3000)]
    assert all(d.pairs <= 1 << 28 and d.numbers <= draw.MOST_NUMBERS for d in problems)
    lengths = [length for d in problems for length in d.q_lengths + d.kv_lengths]
    assert min(lengths) == 0 and 8192 < max(lengths) <= 16384
    assert 0.03 < sum(length > 4096 for length in lengths) / len(lengths) < 0.15
    for seen in ({d.dim for d in problems}, {d.dim_v for d in problems}):
        assert seen == set(range(8, 257, 8))
    for name in ("dtype", "layout", "index", "packed_q", "packed_kv", "causal", "lse"):
        assert len({getattr(d, name) for d in problems}) == 2, name
    for name in ("window_left", "window_right", "kv_begin", "kv_end", "q_position", "kv_position",
                 "scale", "sinks", "mask"):
        absent = sum(getattr(d, name) is None for d in problems)
        assert 0.5 * len(problems) < absent < 0.85 * len(problems), name
    assert any(d.scale is not None and d.scale < 0 for d in problems)
    assert any(d.packed_q and 0 in d.q_lengths for d in problems)
    assert any(d.q_tail and d.mask for d in problems) and any(d.tail for d in problems)
    masks = [d.mask for d in problems if d.mask]
    for sides in ({mask.block_q for mask in masks}, {mask.block_kv for mask in masks}):
        assert {16, 32, 48, 64, 96, 128, 192, 256} < sides and len(sides) > 20
    for d in problems:
        if d.mask:
            rows, columns = -(-d.q_bound // d.mask.block_q), -(-d.kv_bound // d.mask.block_kv)
            assert rows * columns * d.mask.batch * d.mask.heads <= draw.MOST_CELLS

    narrow = [draw.draw(seed, (draw.FP8,), 1 << 28) for seed in range(500)]
    assert {d.dtype for d in narrow} == {"e4m3"}
    assert {d.out_dtype for d in narrow} == {"bf16", "f16", "f32"}
    for name in "qkv":
        assert {d.factors[name] for d in narrow} == set(draw.FACTORS)
    assert 0.85 < sum(d.dim % 16 == d.dim_v % 16 == 0 for d in narrow) / len(narrow) < 1
    assert not any(d.factors or d.v_by_keys for d in problems)
    by_keys = [d for d in narrow if d.v_by_keys]
    assert 0.1 < len(by_keys) / len(narrow) < 0.3
    assert not any(d.page or d.packed_kv for d in by_keys)

    grouped = [d for d in problems if d.mask and 1 < d.kv_heads < d.heads]
    for lists in (lambda d: 1, lambda d: d.kv_heads, lambda d: d.heads):
        assert sum(d.mask.heads == lists(d) for d in grouped) > 0.2 * len(grouped)


@pytest.mark.parametrize("block", [(64, 64), (16, 48), (5, 7)])
@pytest.mark.parametrize("heads", [4, 2, 1])
def test_lists_hold_what_was_drawn(heads, block):
    d = drawn(mask=draw.Blocks(*block, 2, heads, 0.7, 0.5, 0.0, 3))
    built = build.build(d, "cpu", 1 << 18)
    everything = torch.stack([oracle.seen(d, built.cells, b, 0, 100, "cpu") for b in range(2)])
    held = built.mask.to_dense().repeat_interleave(everything.shape[1] // heads, 1)
    assert torch.equal(held, everything)
    assert 0 < everything.sum() < everything.numel()


def test_unused_keys_are_nan():
    d = drawn(kv_end=[70, 130], kv_begin=[5, 0])
    built = build.build(d, "cpu", 1 << 18)
    for tensor in (built.k, built.v):
        assert tensor[0, :5].isnan().all() and tensor[0, 70:].isnan().all()
        assert not tensor[0, 5:70].isnan().any() and not tensor[1].isnan().any()
    out, _ = built.outputs()
    assert out.tensor.isnan().all()


# ---- Wrong results -----------------------------------------------------------------------------


def element(out, offset):
    """The element at an offset from the first one of a tensor, also outside of the tensor."""
    return out.as_strided((1,), (1,), out.storage_offset() + offset)


def reach(out):
    return sum((n - 1) * stride for n, stride in zip(out.shape, out.stride(), strict=True))


def rounded(dtype, off):
    return dict(dtype=dtype, out_dtype=dtype), lambda out, lse: out.mul_(1 + off)


FP8 = {"dtype": "e4m3", "factors": dict.fromkeys("qkv", "head")}
PACKED, NO_KEYS = {"packed_q": True, "q_tail": 3}, {"causal": True, "q_position": [0, -1]}
AROUND, LOOSE = "out: memory around it was written", {"padding": (0, 0, 0)}


@pytest.mark.parametrize("problem, damage, told", [
    (*rounded("f32", 1e-5), "out of sequence"),
    (*rounded("f16", 2e-3), "out of sequence"),
    (*rounded("bf16", 1.6e-2), "out of sequence"),
    (FP8, lambda out, lse: out.mul_(1.2), "out of sequence"),
    (FP8, lambda out, lse: lse[1, 2, 3].add_(1e-4), "lse of sequence 1, head 2, query 3: got "),
    ({}, lambda out, lse: lse[1, 2, 3].add_(1e-4), "lse of sequence 1, head 2, query 3: got "),
    *(({}, lambda out, lse, value=value: out[1, 99, 3, 63].fill_(value),
       "out of sequence 1, head 3, query 99, column 63: got ")
      for value in (torch.nan, torch.inf, -torch.inf)),
    ({}, lambda out, lse: out[0, 4:6, 1].copy_(out[0, 4:6, 1].flip(0)),
     "out of sequence 0, head 1, query "),
    ({}, lambda out, lse: out[0, 7].fill_(torch.nan), "out of sequence 0, head 0, query 7"),
    (NO_KEYS, lambda out, lse: out[1, 0, 0, 0].fill_(1e-6),
     "out of sequence 1, head 0, query 0, column 0"),
    (NO_KEYS, lambda out, lse: lse[1, 0, 0].fill_(-1e30), "lse of sequence 1, head 0, query 0"),
    (PACKED, lambda out, lse: out[202, 3, 63].fill_(torch.nan),
     "out: an unused packed row is not 0.0"),
    (PACKED, lambda out, lse: lse[3, 200].fill_(0), "lse: an unused packed row is not -inf"),
    *((problem, damage, AROUND) for problem in ({}, LOOSE)
      for damage in (lambda out, lse: element(out, -1).fill_(0),
                     lambda out, lse: element(out, reach(out) + 1).fill_(0))),
    ({}, lambda out, lse: element(out, 64).fill_(0), AROUND),  # in its padding
])
def test_each_kind_of_wrong_result_is_found(damaged, problem, damage, told):
    more = dict(problem)
    padding = more.pop("padding", None)
    d = drawn(**more)
    if padding:
        d.padding = dict.fromkeys(d.padding, padding)
    assert verdict(d)[1] is None
    damaged(damage)
    share, trouble = verdict(d)
    assert share > 1 and trouble.startswith(told)


@pytest.mark.parametrize("name", ["q_scale", "k_scale", "v_scale"])
def test_wrong_factors_are_found(monkeypatch, name):
    def wrong(*arguments, **options):
        return right_attention(*arguments, **{**options, name: 1.2 * options[name]})

    d = drawn(**FP8)
    assert verdict(d)[1] is None
    monkeypatch.setattr(tessera, "attention", wrong)
    assert verdict(d)[0] > 1


def test_failures_are_printed_with_the_command_that_repeats_them(damaged, capsys):
    damaged(lambda out, lse: out.fill_(torch.nan))
    assert run("--count", 9, "--seed", 5, "--failures", 2) == 1
    said = capsys.readouterr().out
    assert said.count("FAILED out of sequence") == 2 and "stopped here" in said
    commands = [line.strip() for line in said.splitlines() if "python -m" in line]
    seeds = [command.split("--seed ")[1].split()[0] for command in commands]
    assert len(seeds) == 2 and said.splitlines()[-1] == "failed: seeds " + ", ".join(seeds)
    assert run_command(commands[0]) == 1
    again = capsys.readouterr().out
    assert again.splitlines()[:3] == said.splitlines()[:3]


@pytest.mark.parametrize("again, told", [
    (lambda turn, out: out.fill_(torch.nan), "the same bits"),
    (lambda turn, out: out.fill_(torch.nan) if turn == 0 else None, "other bits, right"),
    (lambda turn, out: out.add_(turn + 1), "other bits, wrong too"),
    (lambda turn, out: out.fill_(torch.nan) if turn == 0 else 1 // 0,
     "ZeroDivisionError: integer division or modulo by zero"),
])
def test_a_failure_says_whether_it_repeats(damaged, capsys, again, told):
    turn = iter(range(1000))
    damaged(lambda out, lse: again(next(turn), out))
    assert run("--count", 1, "--seed", 7) == 1
    said = capsys.readouterr().out
    assert "FAILED out of sequence" in said and f"; once more: {told}\n" in said


def run_command(command):
    return cli.main([*command.split()[3:], "--quiet"])


def test_out_of_memory_is_tried_once_more(monkeypatch, capsys):
    def short_of(times):
        left, right = [times], build.build

        def build_if_there_is_room(*arguments):
            left[0] -= 1
            if left[0] >= 0:
                raise torch.cuda.OutOfMemoryError("out of memory")
            return right(*arguments)

        monkeypatch.setattr(build, "build", build_if_there_is_room)

    short_of(1)
    assert run("--count", 2) == 0
    short_of(2)
    assert run("--count", 2) == 1
    assert "FAILED OutOfMemoryError: out of memory" in capsys.readouterr().out


def test_runs_that_differ_are_found(damaged, capsys):
    turn = iter(range(1000))
    damaged(lambda out, lse: out.add_(next(turn)))
    assert run("--count", 1, "--seed", 7, "--repeat") == 1
    assert "FAILED two runs differ in their bits" in capsys.readouterr().out


# ---- Refusals and the run ----------------------------------------------------------------------


@pytest.fixture
def answers(monkeypatch):
    """Makes call n of tessera.attention raise `answer(n)`, if that is an exception."""
    def arm(answer):
        right, turn = tessera.attention, iter(range(100))

        def instead(*arguments, **options):
            if error := answer(next(turn)):
                raise error
            return right(*arguments, **options)

        monkeypatch.setattr(tessera, "attention", instead)

    return arm


def test_other_errors_are_failures(answers, capsys):
    answers(lambda turn: ValueError("attention: q: a mistake of the generator"))
    assert run("--count", 1) == 1
    assert "FAILED ValueError: attention: q: a mistake" in capsys.readouterr().out


def test_refusals_are_counted_by_reason(answers, capsys):
    answers(lambda turn: NotImplementedError(
        "problem   attention\nchosen    no kernel supports this problem\n"
        f"rejected  cpu_x  takes dims of multiples of 8, got {turn}\nrejected  sm90  not here\n")
        if turn % 3 else None)
    assert run("--count", 6) == 0
    said = capsys.readouterr().out
    assert "6 problems, 2 right, 4 refused, 0 failed" in said
    assert "refused 4: cpu_x: takes dims of multiples of 8\n" in said
    with pytest.raises(NotImplementedError) as refusal:  # the library's own
        x = torch.zeros(1, 8, 1, 16)
        right_attention(x, x, x, backend="sm90")
    assert cli.reasons_of(refusal.value, "cpu") == [
        "cpu_attention: execution.backend requires sm90"]


def test_jobs_share_the_problems(capsys):
    said = []
    for jobs in (1, 3):
        assert run("--count", 7, "--seed", 50, "--jobs", jobs) == 0
        said.append(capsys.readouterr().out)
    assert all("7 problems, 7 right, 0 refused, 0 failed" in text for text in said)
    assert said[0].splitlines()[1] == said[1].splitlines()[1]  # the worst of all problems


def right_but_for_seed_3(seed, options):
    if seed == 3:
        os._exit(9)
    return cli.Outcome(seed, "attention")


def test_a_process_that_ends_early_has_failed(monkeypatch, capsys):
    monkeypatch.setattr(cli, "outcome_of", right_but_for_seed_3)
    assert run("--count", 6, "--jobs", 2) == 1  # seeds 1, 3 and 5; 2, 4 and 6
    said = capsys.readouterr().out
    assert "FAILED its process ended with 9\n  seed 3" in said
    assert "5 problems, 4 right, 0 refused, 1 failed" in said and said.endswith("failed: seeds 3\n")


def test_an_interrupt_still_sums_up(answers, tmp_path, capsys):
    answers(lambda turn: KeyboardInterrupt() if turn == 2 else None)
    path = tmp_path / "found.json"
    assert run("--count", 9, "--json", path) == 130
    assert "2 problems, 2 right" in capsys.readouterr().out
    assert json.loads(path.read_text())["interrupted"] is True


def test_what_was_found_is_written_in_numbers(damaged, tmp_path, capsys):
    path = tmp_path / "found.json"
    assert run("--count", 4, "--seed", 50, "--json", path) == 0
    found = json.loads(path.read_text())
    assert {key: found[key] for key in ("op", "device", "first_seed", "last_seed", "problems",
                                        "right", "refused", "failed")} == {
        "op": "attention", "device": "cpu", "first_seed": 50, "last_seed": 53, "problems": 4,
        "right": 4, "refused": 0, "failed": []}
    assert f"worst: {found['worst']:.2f} of the budget, seed {found['worst_seed']}" in (
        capsys.readouterr().out)
    damaged(lambda out, lse: out.fill_(torch.nan))
    assert run("--count", 9, "--seed", 5, "--failures", 2, "--json", path) == 1
    found = json.loads(path.read_text())
    assert found["problems"] - found["right"] == len(found["failed"]) == 2
    assert max(found["failed"]) == found["last_seed"]
    for no_file in (tmp_path / "none" / "found.json", tmp_path):
        with pytest.raises(SystemExit):
            run("--count", 1, "--json", no_file)
        assert f"--json: cannot write {no_file}: " in capsys.readouterr().err


def test_it_stops_in_time(capsys):
    assert run("--count", 10**6, "--seconds", 0) == 0
    assert "problems, " in capsys.readouterr().out


@pytest.mark.parametrize("option", [("--count", 0), ("--jobs", 0), ("--pairs", 3),
                                    ("--multiplies", 3), ("--rows", "slowest")])
def test_wrong_options_are_refused(option):
    with pytest.raises(SystemExit):
        run(*option)


def test_an_overflow_stands_for_the_nearest_number_that_overflows():
    inf = torch.inf
    got = numbers.beyond("f16", torch.tensor([inf, inf, -inf, 1.0]),
                         torch.tensor([-5.0, 1e9, -7e4, inf], dtype=torch.float64))
    assert got.tolist() == [2.0**16, 1e9, -7e4, 1.0]
