"""Shapes drawn at random, and how their ratios are summed up."""

from collections import Counter

import pytest

from tessera.bench import cli, measure, ratios, results, schema, shapes, suite, sweep
from tessera.bench.cases import make_case
from tessera.bench.measure import Settings

COUNT = 400


@pytest.mark.parametrize("op", shapes.DRAWN)
def test_a_seed_gives_one_list_everywhere(op):
    first, longer = shapes.draw(op, 7, 20), shapes.draw(op, 7, 40)
    assert [case.key for case in longer[:20]] == [case.key for case in first]
    assert len({case.key for case in longer}) == 40
    assert not {case.key for case in shapes.draw(op, 8, 20)} & {case.key for case in first}


@pytest.mark.parametrize("op", shapes.DRAWN)
def test_no_shape_is_too_large(op):
    for case in shapes.draw(op, 1, COUNT):
        assert shapes.flops(case.op, case.params) <= shapes.MAX_FLOPS
        assert shapes.elements(case.op, case.params) <= shapes.MAX_ELEMENTS


def share(cases, which):
    return sum(bool(which(case.params)) for case in cases) / len(cases)


def test_attention_is_drawn_as_stated():
    cases = shapes.draw("attention", 1, COUNT)
    assert share(cases, lambda p: p["causal"]) == pytest.approx(.6, abs=.08)
    assert share(cases, lambda p: "sequences" in p) == pytest.approx(.1, abs=.05)
    assert share(cases, lambda p: "window" in p) == pytest.approx(.1, abs=.05)
    assert share(cases, lambda p: "pattern" in p) == pytest.approx(.2, abs=.06)
    assert share(cases, lambda p: p["d"] == 128) == pytest.approx(.4, abs=.08)
    assert {case.params["d"] for case in cases} == {64, 80, 96, 128, 192, 256}
    assert {case.params["h"] // case.params["hk"] for case in cases} == {1, 2, 4, 5, 8}
    assert {case.params.get("block_q") for case in cases} == {None, 64, 128}
    assert {case.params.get("pattern") for case in cases} == {
        None, "random", "banded", "vertical_slash", "block_diagonal"}
    assert all(p["skv"] >= p["s"] for p in (case.params for case in cases) if p["causal"])


def test_attention_in_fp8_is_a_sweep_of_its_own():
    cases = shapes.draw("attention_fp8", 1, 40)
    assert {(case.op, case.params["dtype"]) for case in cases} == {("attention", "e4m3")}
    records = [{"op": case.op, "params": case.params} for case in cases]
    assert {ratios.op_of(one) for one in records} == {"attention_fp8"}
    narrow = record(1.0, 3.0) | {"op": "attention", "params": cases[0].params}
    made = sweep.summaries("attention_fp8", 1, [narrow])
    whole = {"sweeps": made, "cases": [narrow]}
    assert made[0]["op"] == "attention_fp8" and ratios.summary_faults(whole) == []
    assert not schema.problems(made[0], schema.of_results()["properties"]["sweeps"]["items"],
                               schema.of_results())


def test_products_are_drawn_as_stated():
    cases = shapes.draw("matmul", 1, COUNT)
    assert Counter(case.params["transpose"] for case in cases).keys() == {"nn", "nt"}
    eighths = share(cases, lambda p: p["n"] % 8 == 0 and p["k"] % 8 == 0)
    assert eighths > .7
    assert share(cases, lambda p: min(p["m"], p["n"], p["k"]) < 64) > .3
    for op, side in (("linear", "b"), ("bsr_matmul", "a")):
        cases = shapes.draw(op, 1, COUNT)
        assert {case.params["side"] for case in cases} == {side}
        assert {case.params["block"] for case in cases} == {16, 32, 64, 128}
        tokens = "m" if side == "b" else "n"
        assert share(cases, lambda p, tokens=tokens: p[tokens] == 1) > .2
    assert {case.params["pattern"] for case in cases} == {
        "random", "banded", "butterfly", "power_law", "power_law_graph", "mesh"}


def record(ours_ms, *peers_ms, state="graph", m=8, **more):
    params = make_case("matmul", {"m": m, "n": 8, "k": 8}).params
    flops = 2 * m * 64
    entry = {"spread": 0.0, "clock_mhz": None, "watts": None, "joules_per_tflop": None,
             "host_us": None}

    def timed(ms):
        return {**entry, "ms": ms, "tflops": flops / ms / 1e9}

    ours = {"unavailable": "no kernel"} if ours_ms is None else {
        **timed(ours_ms), "row": "r1", "predicted_ms": 1.0, "machine_code": None}
    peers = {f"p{i}": {"unavailable": "not here"} if ms is None else {
        **timed(ms), "version": "1", "max_error": 0.0} for i, ms in enumerate(peers_ms)}
    return {"op": "matmul", "params": params, "state": state, "useful_flops": flops, "bytes": 1,
            "ours": ours, "peers": peers, "max_error": None, "error_budget": None, **more}


def test_the_best_alternative_counts():
    assert sweep.ratio(record(2.0, 3.0, 1.0, None)) == 0.5
    assert sweep.ratio(record(None, 3.0)) == 0.0
    assert sweep.ratio(record(2.0, None)) is None
    assert sweep.ratio(record(2.0, 1.0, ratios=[.5, .9, .8, .7])) == pytest.approx(.75)


def test_summaries_are_percentiles_of_what_has_an_alternative():
    records = [record(1.0, ms, m=i + 1) for i, ms in enumerate((.5, .7, 1.0, 1.5, 2.0))]
    records += [record(1.0, None, m=9), record(1.0, 4.0, state="burst")]
    graph, eager = sweep.summaries("matmul", 3, records)
    assert (graph["state"], graph["count"], graph["seed"]) == ("graph", 5, 3)
    assert graph["ratio"] == pytest.approx({"worst": .5, "p5": .54, "p25": .7, "median": 1.0,
                                            "p75": 1.5, "best": 2.0})
    assert eager["state"] == "eager" and eager["ratio"]["worst"] == 4.0
    assert "regret" not in graph


def test_regret_is_of_the_row_that_ran():
    records = [record(1.0, 1.0, m=1, rows={"r1": 1.2, "r2": 1.0, "r3": None}),
               record(1.0, 1.0, m=2, rows={"r1": 1.0, "r2": 3.0}), record(1.0, 1.0, m=3)]
    (graph,) = sweep.summaries("matmul", 1, records)
    assert graph["regret"] == pytest.approx({"median": 1.1, "p95": 1.19, "worst": 1.2})


def test_ours_without_the_dense_copy_counts_apart():
    records = [record(1.0, 2.0, m=1), record(1.0, 3.0, m=2), record(1.0, 4.0, m=3)]
    for one, ms in zip(records[1:], (6.0, None), strict=True):
        one["ours"].update(expanded_bytes=100, unexpanded_ms=ms)
    assert [ratios.unexpanded_ratio(one) for one in records] == [2.0, .5, 0.0]
    (graph,) = sweep.summaries("linear", 1, records)
    assert graph["ratio"]["median"] == 3.0 and graph["unexpanded_median"] == .5
    assert sweep.regret(records[1] | {"rows": {"r1": 1.0}}) is None
    tables = sweep.report({"sweeps": [graph]}, "linear", 1, records)
    assert any("without dense copies" in table.head for table in tables)
    assert "unexpanded_median" not in sweep.summaries("linear", 1, records[:1])[0]


@pytest.mark.parametrize(("density", "expanded"), [(.9, True), (.1, False)])
def test_a_linear_layer_is_measured_with_and_without_its_copy(density, expanded, monkeypatch):
    asked, prepare = [], measure.prepare_ours

    def prepare_ours(problem, kernel, expand):
        asked.append(expand)
        return prepare(problem, kernel, expand)

    monkeypatch.setattr(measure, "prepare_ours", prepare_ours)
    case = make_case("bsr_matmul", {"side": "b", "m": 64, "n": 48, "k": 64, "block": 2, "seed": 1,
                                    "pattern": "random", "density": density, "dtype": "f32"})
    (made,) = measure.measure_case(case, Settings(seconds=.01, peers=(), expand=True))
    assert made["max_error"] <= made["error_budget"] and made["peers"] == {}
    assert ("unexpanded_ms" in made["ours"]) == expanded
    assert asked == ([True, False] if expanded else [True])
    if expanded:
        assert made["ours"]["expanded_bytes"] == 48 * 64 * 4 and made["ours"]["unexpanded_ms"] > 0
    (given,) = measure.measure_case(case, Settings(seconds=.01, peers=()))
    assert not {"expanded_bytes", "unexpanded_ms"} & given["ours"].keys()
    case_schema = {"$ref": "#/$defs/case"}
    assert not schema.problems(made, case_schema, schema.of_results())


def test_only_linear_layers_may_expand(tmp_path):
    for op in ("linear", "bsr_matmul"):
        made = sweep.Sweep(op, 1, 1, (0, 1), str(tmp_path / op), Settings(), quiet=True)
        assert made.settings.expand == (op == "linear")


@pytest.fixture
def measured(monkeypatch):
    """What was measured, by label; ours takes as long as its m, the peer 10."""
    calls = []

    def measure_case(case, settings, say=None):
        assert settings.quick
        calls.append(case.label)
        return [record(float(case.params["m"]), 10.0, state=state, m=case.params["m"])
                | {"params": case.params, "useful_flops": 2 * case.params["m"] * 64}
                for state in settings.states or case.states for _ in range(settings.times)]

    def draw(op, seed, count):
        return [make_case("matmul", {"m": m, "n": 8, "k": 8}, shapes.STATES)
                for m in range(1, count + 1)]

    monkeypatch.setattr(suite, "measure_case", measure_case)
    monkeypatch.setattr(shapes, "draw", draw)
    return calls


def sweep_of(path, count=12, shard=(0, 1), **options):
    settings = Settings(states=("graph", "burst"))
    return sweep.Sweep("matmul", 5, count, shard, str(path), settings, quiet=True, **options)


def test_the_worst_are_measured_again_and_once_only(measured, tmp_path):
    path = tmp_path / "one.json"
    assert sweep_of(path).sweep() == suite.DONE
    again = measured[12:]
    assert len(again) == 2 * sweep.AGAIN
    assert not any(label.startswith(("matmul 1x", "matmul 2x")) for label in again)
    result = results.read(path)
    assert not schema.problems(result, schema.of_results())
    assert {one["state"] for one in result["sweeps"]} == {"graph", "eager"}
    assert all(one["count"] == 12 and one["seed"] == 5 for one in result["sweeps"])
    assert result["sweeps"][0]["ratio"]["worst"] == pytest.approx(10 / 12)
    assert sum("ratios" in one for one in result["cases"]) == 2 * sweep.AGAIN
    assert {len(one["ratios"]) for one in result["cases"] if "ratios" in one} == {
        1 + sweep.REPEATS}, "a repetition measures the state of its record alone"
    measured.clear()
    assert sweep_of(path, resume=True).sweep() == suite.DONE
    assert measured == []


def test_a_repetition_that_is_interrupted_or_fails_keeps_the_first_time(measured, tmp_path,
                                                                        monkeypatch):
    path, once = tmp_path / "one.json", suite.measure_case

    def stops(error):
        def measure_case(*arguments):
            if len(measured) > 24:
                raise error
            return once(*arguments)
        return measure_case

    for error, outcome in ((KeyboardInterrupt(), suite.STOPPED), (ValueError("no"), suite.FAILED)):
        measured.clear()
        monkeypatch.setattr(suite, "measure_case", stops(error))
        assert sweep_of(path).sweep() == outcome
        result = results.read(path)
        assert len(result["sweeps"]) == 2
        assert ("interrupted" in result) == (outcome == suite.STOPPED)
        assert sum("ratios" in one for one in result["cases"]) == 25 - 12


def test_shards_are_joined_before_they_are_summed_up(measured, tmp_path):
    paths = [tmp_path / "a.json", tmp_path / "b.json"]
    for i, path in enumerate(paths):
        sweep_of(path, shard=(i, 2)).sweep()
        assert len(results.read(path)["cases"]) == 12
    whole = tmp_path / "whole.json"
    assert cli.main(["merge", *map(str, paths), "--json", str(whole)]) == 0
    assert sweep_of(whole, resume=True).sweep() == suite.DONE
    assert {one["count"] for one in results.read(whole)["sweeps"]} == {12}


def test_a_spent_budget_leaves_the_rest(measured, tmp_path):
    path = tmp_path / "one.json"
    assert sweep_of(path, budget=-1).sweep() == suite.BUDGET_SPENT
    assert measured == [] and results.read(path)["cases"] == []


def test_the_command_prints_the_distribution(measured, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(measure.Settings, "find_gpu", lambda self: None)
    assert cli.main(["sweep", "matmul", "--count", "3", "--seed", "5", "--device", "cpu", "--json",
                     str(tmp_path / "one.json"), "--quiet"]) == 0
    out = capsys.readouterr().out
    assert "| matmul, seed 5 | shapes | worst |" in out and "p0 10.0000" in out
    assert "matmul 3x8x8" in out


def test_the_command_lists_the_shapes(capsys):
    assert cli.main(["sweep", "linear", "--count", "2", "--list"]) == 0
    assert capsys.readouterr().out.count("sparse w") == 2


@pytest.mark.parametrize(("arguments", "message"), [
    (["--count", "0"], "--count: expected 1 to 10000, got 0"),
    (["--seed", "-1"], "--seed: expected 0 or more, got -1"),
    (["--shard", "3/2"], "shard: expected I/N"),
])
def test_what_makes_no_sense_is_refused(arguments, message, capsys):
    assert cli.main(["sweep", "matmul", *arguments]) == 2
    assert message in capsys.readouterr().err
