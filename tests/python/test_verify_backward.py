"""tessera.verify attention_backward on the CPU."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from tessera.verify import cli  # noqa: E402
from tessera.verify.attention import backward, draw, judge_backward  # noqa: E402

NAMES = ("dq", "dk", "dv", "dsinks")


def drawn(dlse=True, dtype="bf16", **options):
    """A plain problem, apart from the given options."""
    d = draw.Drawn(7, q_lengths=[100, 100], kv_lengths=[130, 130], heads=4, kv_heads=2,
                   dtype=dtype, out_dtype=dtype, **options)
    d.heads_first = dict.fromkeys(("q", "k", "v", "out"), False)
    d.padding = dict.fromkeys(("q", "k", "v", "out"), (1, 0, 2))
    wanted = dict.fromkeys(NAMES, True) | {"dsinks": d.sinks is not None}
    return backward.DrawnBackward(d, dtype, dlse, False, wanted,
                                  dict.fromkeys(("dout", *NAMES), True),
                                  dict.fromkeys(("dout", *NAMES), (0, 1, 1)))


def results(d, stretch=1 << 18):
    built = backward.build_backward(d, "cpu", stretch)
    outputs = built.outputs()
    built.run(*outputs)
    return built, outputs


def test_random_gradients_are_right(capsys):
    assert cli.main(["attention_backward", "--device", "cpu", "--quiet", "--pairs", "20000",
                     "--count", "60", "--repeat"]) == 0
    said = capsys.readouterr().out
    assert "60 problems, 60 right, 0 refused, 0 failed" in said
    assert "ran 60: cpu_attention_backward" in said


def test_the_oracle_agrees_with_autograd():
    d = drawn(dtype="f32", softcap=3.0)
    built = backward.build_backward(d, "cpu", 1 << 12)  # several stretches
    q, k, v = leaves = [x.transpose(1, 2).double().requires_grad_()
                        for x in (built.forward.q, built.forward.k, built.forward.v)]
    scores = q @ k.repeat_interleave(2, 1).mT / 8
    scores = 3 * (scores / 3).tanh()
    out = scores.softmax(-1) @ v.repeat_interleave(2, 1)
    torch.autograd.backward((out, scores.logsumexp(-1)),
                            (built.dout.transpose(1, 2).double(), built.dlse.double()))
    for b in range(2):
        found = judge_backward._gradients(built, b, None)
        for name, x in zip(NAMES, leaves, strict=False):
            torch.testing.assert_close(found[name].value, x.grad[b])


def test_stretches_of_queries_do_not_change_the_verdict():
    d = drawn(causal=True, sinks="f32")
    shares = [judge_backward.judge(*_flat(results(d, stretch))) for stretch in (1 << 12, 1 << 20)]
    assert shares[0][1] is None
    assert shares[0][0] == pytest.approx(shares[1][0], rel=1e-3)


def _flat(found):
    built, outputs = found
    return built, *outputs


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("damage", ["nan", "stale", "much", "scaled", "around"])
def test_each_kind_of_wrong_gradient_is_found(name, damage):
    built, outputs = results(drawn(sinks="f32", causal=True))
    buffer = outputs[NAMES.index(name)]
    x = buffer.tensor
    place = (0,) * x.dim()
    if damage == "nan":
        x[place] = torch.nan
    elif damage == "stale":
        x[0] = 3.0
    elif damage == "much":
        x[place] += 0.2 * x.abs().max()
    elif damage == "scaled":
        x *= 1.05
    else:
        buffer.words[3] = 0
    share, trouble = judge_backward.judge(built, *outputs)
    assert share > 1 and trouble is not None and trouble.startswith(name)


def test_gradients_of_unseen_keys_are_exactly_zero():
    built, outputs = results(drawn(kv_end=[70, 130]))
    assert (outputs[1].tensor[0, 70:] == 0).all()
    outputs[1].tensor[0, 71, 0, 0] = 1e-30
    assert "expected 0" in judge_backward.judge(built, *outputs)[1]


def test_sums_beyond_the_largest_number_are_infinite():
    d = drawn(dtype="f16", kv_end=[50, 50])
    built = backward.build_backward(d, "cpu", 1 << 18)
    built.forward.k.zero_()  # P is the same for all keys, and each has 100 queries of two heads
    built.dout[..., :32] = 6e4
    outputs = built.outputs()
    built.run(*outputs)
    dv = outputs[2].tensor
    assert dv[:, :50, :, :32].isinf().all() and not dv[..., 32:].isinf().any()
    assert judge_backward.judge(built, *outputs)[1] is None
    place = tuple(int(at) for at in (~dv.isinf()).nonzero()[0])
    dv[place] = torch.inf
    assert judge_backward.judge(built, *outputs)[1] is not None


def test_a_key_too_many_is_found(monkeypatch):
    """A causal edge that is one key late."""
    d = drawn(causal=True)
    built = backward.build_backward(d, "cpu", 1 << 18)
    outputs = built.outputs()
    late = torch.tensor([31, 31])  # the default is 30
    monkeypatch.setitem(built.forward.lists, "q_position", late)
    built.run(*outputs)
    assert judge_backward.judge(built, *outputs)[0] > 1


def test_the_same_problem_as_the_forward_pass():
    for seed in range(40):
        d = backward.draw_backward(seed, ("f16", "bf16"), 10000)
        forward = draw.draw(seed, ("f16", "bf16"), 10000)
        forward.lse, forward.batch_invariant = True, False
        if forward.page:  # keys in pages have no gradients
            forward.page = forward.more_pages = forward.max_kv_length = 0
        assert d.forward == forward and d.seed == seed
