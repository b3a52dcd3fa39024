"""Cases as data, and useful work against brute force."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from tessera.bench import cases, cli, flops, patterns, peers
from tessera.bench.cases import CaseError, make_case
from tessera.bench.problem import Pages

WORKLOADS = sorted((Path(__file__).parents[2] / "bench" / "workloads").glob("*.json"))


def random_lists(rows, cols, density, seed):
    return patterns.lists_of(np.random.default_rng(seed).random((rows, cols)) < density)


@pytest.mark.parametrize("op, params, names", [
    ("nothing", {}, "op"),
    ("matmul", {"m": 1, "n": 1}, "k is missing"),
    ("matmul", {"m": 1, "n": 1, "k": 0}, "k"),
    ("matmul", {"m": 1, "n": 1, "k": True}, "k"),
    ("matmul", {"m": 1, "n": 1, "k": 1, "density": 0.5}, "density"),
    ("matmul", {"m": 1, "n": 1, "k": 1, "transpose": "xy"}, "transpose"),
    ("matmul", {"m": 1, "n": 1, "k": 1, "dtype": "f64"}, "dtype"),
    ("attention", {"s": 8, "h": 3, "hk": 2}, "h"),
    ("attention", {"s": 8, "dtype": "e4m3", "factors": "row"}, "factors"),
    ("attention", {"s": 8, "factors": "head"}, "factors: expected head or tensor, of e4m3 alone"),
    ("attention", {"s": 8, "backend": "sm70"}, "backend: expected cpu, sm80, sm90, got 'sm70'"),
    ("list_blocks", {"s": 8, "pattern": "banded", "half_width": 1, "block_q": 4,
                     "backend": "cpu"}, "no parameter 'backend'"),
    ("attention", {"s": 8, "kv_dtype": "f16"},
     "kv_dtype: expected e4m3 or the dtype of q, got 'f16'"),
    ("attention", {"s": 8, "v_layout": "heads"}, "v_layout: expected rows or keys, got 'heads'"),
    ("attention", {"s": 8, "v_layout": "keys"}, "packed sequences, got bf16"),
    ("attention", {"s": 8, "dtype": "e4m3", "v_layout": "keys", "sequences": 2, "lengths": 1.5},
     "v_layout: keys require dtype e4m3, without pages or packed sequences, got packed sequences"),
    ("attention_backward", {"s": 8, "dtype": "e4m3"}, "dtype"),
    ("sddmm", {"m": 8, "n": 8, "k": 8, "block": 8, "pattern": "random", "density": 0.5,
               "dtype": "e4m3"}, "dtype"),
    ("matmul", {"m": 8, "n": 8, "k": 8, "dtype": "e4m3", "transpose": "nn"}, "transpose"),
    ("matmul", {"m": 8, "n": 8, "k": 8, "dtype": "e4m3", "factors": "head"}, "factors"),
    ("matmul", {"m": 8, "n": 8, "k": 8, "factors": "row"}, "factors: expected tensor or row"),
    ("bsr_matmul", {"m": 8, "n": 8, "k": 8, "block": 8, "pattern": "random", "density": 0.5,
                    "dtype": "e4m3", "side": "a"}, "side"),
    ("list_blocks", {"s": 8, "factors": "head"}, "no parameter 'factors'"),
    ("list_blocks", {"s": 8, "block_q": 4}, "pattern is missing"),
    ("top_k_blocks", {"s": 8, "pattern": "random", "density": 0.5}, "block_q"),
    ("attention", {"s": 8, "pattern": "random", "density": 0.5}, "block_q"),
    ("attention", {"s": 8, "pattern": "spiral", "block_q": 4}, "spiral"),
    ("attention", {"s": 8, "pattern": "random", "block_q": 4}, "density is missing"),
    ("attention", {"s": 8, "sequences": 2, "b": 2}, "sequences"),
    ("attention", {"s": 8, "sequences": 2, "page": 8}, "page: packed"),
    ("attention", {"s": 8, "page": 0}, "page"),
    ("attention_backward", {"s": 8, "page": 8}, "gradients require dense or packed keys"),
    ("attention", {"s": 8, "page": 8, "lengths": 1.0, "causal": True}, "lengths"),
    ("attention", {"s": 8, "pattern": "random", "density": 1, "block_q": 4, "similar": 0.5},
     "similar"),
    ("attention", {"s": 8, "pattern": "random", "density": 1, "block_q": 4, "alike": 2,
                   "similar": 1.5}, "similar"),
    ("bsr_matmul", {"m": 30, "n": 8, "k": 64, "block": 16, "pattern": "random", "density": 0.5},
     "block"),
    ("bsr_matmul", {"m": 32, "n": 8, "k": 64, "block": 16}, "pattern is missing"),
    ("spgemm", {"m": 32, "n": 8, "k": 64, "block": 16, "pattern": "random", "density": 0.5},
     "block"),
])
def test_invalid_cases_are_refused_by_name(op, params, names):
    with pytest.raises(CaseError, match=names):
        make_case(op, params)


def test_equal_cases_have_equal_keys_however_they_are_written():
    short = make_case("attention", {"s": 128, "pattern": "random", "density": 0.5, "block_q": 64})
    whole = make_case("attention", {"block_kv": 64, "block_q": 64, "density": 0.5, "hk": 16,
                                    "h": 16, "pattern": "random", "s": 128, "skv": 128, "seed": 1})
    other = make_case("attention", {"s": 128, "pattern": "random", "density": 0.5, "block_q": 64,
                                    "seed": 2})
    assert short.key == whole.key != other.key
    assert "half_width" not in short.params  # a parameter of other patterns
    by_rows = make_case("attention", {"s": 128, "dtype": "e4m3", "v_layout": "rows"})
    assert by_rows.key == make_case("attention", {"s": 128, "dtype": "e4m3"}).key
    by_keys = make_case("attention", {"s": 128, "dtype": "e4m3", "v_layout": "keys"})
    assert by_keys.dense().key == by_keys.key != by_rows.key
    wide = make_case("attention", {"s": 128, "kv_dtype": "bf16"})
    assert wide.key == make_case("attention", {"s": 128}).key and not wide.fp8


def test_workload_files_hold_distinct_cases():
    assert {path.stem for path in WORKLOADS} >= {"check", "cpu", "hopper_attention",
                                                 "hopper_attention_fp8", "hopper_products",
                                                 "hopper_products_fp8", "quick"}
    for path in WORKLOADS:
        found = cases.read_workload(path)
        assert found
        assert len({case.label for case in found}) == len(found), path


def test_product_cases_have_blocks_and_power_law_has_as_many_as_random():
    found = cases.read_workload(WORKLOADS[0].parent / "hopper_products.json")
    stored = {}
    for case in found:
        p = case.params
        if case.op == "bsr_matmul":
            lists = patterns.product_lists(case.op, p)
            assert 0 < lists.stored < lists.rows * lists.cols
            stored[p["pattern"], p["block"], p.get("density"), p["side"]] = lists.stored
        elif case.op == "spgemm":
            assert flops.product_flops(case.op, p, patterns.spgemm_lists(p)) > 0
    for block, density in ((128, 0.09375), (64, 0.1015625)):
        assert stored["power_law", block, density, "a"] == stored["random", block, 0.1, "a"]


def test_attention_cases_have_lists_and_peers_that_support_them():
    for case in cases.read_workload(WORKLOADS[0].parent / "hopper_attention.json"):
        if case.op != "attention":
            continue
        p, names = case.params, peers.peers_for(case, "cuda")
        taking = [name for name in names if peers.get_peer(name).refuse(case) is None]
        assert len(taking) >= 2 or taking == ["fa4"], case.label
        if case.sparse and p["s"] <= 32768:
            lists = patterns.attention_lists(p)
            assert len(lists) in (1, p["h"]) and len({one.stored for one in lists}) <= len(lists)
            share = np.mean([one.stored for one in lists]) / (lists[0].rows * lists[0].cols)
            assert abs(share - p["density"]) < 0.1 * p["density"], case.label


EXTRAS = {"window": {"window": 9}, "softcap": {"softcap": 5.0}, "sequences": {"sequences": 3},
          "pattern": {"pattern": "random", "density": 0.5, "block_q": 8}, "page": {"page": 8}}


@pytest.mark.parametrize("name, extras", [
    ("sdpa_flash", ""), ("fa3", "window softcap sequences page"),
    ("flex", "window softcap sequences pattern"), ("fa4", " ".join(EXTRAS)),
    ("flashinfer", "softcap sequences pattern page"),
    ("openblas", "window pattern"), ("torch", "window pattern")])
def test_peers_refuse_what_is_beyond_them(name, extras):
    refuse = peers.get_peer(name).refuse
    assert [extra for extra, more in EXTRAS.items() if refuse(make_case(
        "attention", {"s": 64, "dtype": "f32", **more})) is None] == extras.split()


def test_lists_are_made_for_an_attention_case_that_is_measured():
    found = cases.read_workload(WORKLOADS[0].parent / "hopper_attention.json")
    walked = [case.params for case in found if case.op == "attention"]
    made = [case for case in found if case.op in cases.LISTS]
    assert {case.op for case in made} == set(cases.LISTS)
    for case in made:
        assert case.params in walked and case.states == ("burst", "graph")
        assert peers.peers_for(case, "cuda") == []
        p = case.params
        assert (p["s"] // p["block_q"], p["skv"] // p["block_kv"], p["h"]) == (1024, 1024, 16)


@pytest.mark.parametrize("op, params, dense", [
    ("bsr_matmul", {"m": 32, "n": 64, "k": 96, "block": 16, "pattern": "random", "density": 0.5},
     ("matmul", {"m": 32, "n": 64, "k": 96})),
    ("bsr_matmul", {"m": 5, "n": 64, "k": 96, "block": 16, "pattern": "random", "density": 0.5,
                    "side": "b", "dtype": "f16"},
     ("matmul", {"m": 5, "n": 64, "k": 96, "transpose": "nt", "dtype": "f16"})),
    ("attention", {"s": 64, "h": 8, "hk": 2, "d": 64, "dv": 32, "causal": True, "window": 9,
                   "softcap": 5.0}, ("attention", {"s": 64, "h": 8, "d": 64, "dv": 32,
                                                   "causal": True})),
    ("attention", {"s": 64, "block_q": 8, "pattern": "random", "density": 0.5},
     ("attention", {"s": 64})),
    ("attention", {"s": 64, "sequences": 3}, ("attention", {"s": 64})),
    ("attention", {"s": 64, "hk": 2, "dtype": "e4m3", "factors": "tensor"},
     ("attention", {"s": 64, "dtype": "e4m3", "factors": "tensor"})),
])
def test_the_dense_case_has_the_sizes_only(op, params, dense):
    case = make_case(op, params)
    assert case.dense().key == make_case(*dense).key != case.key
    assert case.dense().dense().key == case.dense().key


def test_the_dense_case_of_pages_has_the_same_heads_over_contiguous_keys():
    case = make_case("attention", {"s": 2, "skv": 64, "h": 8, "hk": 2, "page": 16, "block_q": 1,
                                   "pattern": "random", "density": 0.5, "block_kv": 8})
    assert case.dense().key == make_case("attention", {"s": 2, "skv": 64, "h": 8, "hk": 2}).key


def test_vary_is_every_combination(tmp_path):
    path = tmp_path / "w.json"
    path.write_text('{"cases": [{"op": "matmul", "params": {"m": 8}, "vary": '
                    '[[{"n": 1}, {"n": 2}], [{"k": 3}, {"k": 4, "m": 9}]], "states": ["burst"]}]}')
    found = [(c.params["m"], c.params["n"], c.params["k"]) for c in cases.read_workload(path)]
    assert found == [(8, 1, 3), (9, 1, 4), (8, 2, 3), (9, 2, 4)]
    assert {c.seconds for c in cases.read_workload(path)} == {None}
    path.write_text('{"cases": [{"op": "matmul", "params": {"m": 8, "n": 1, "k": 2}, '
                    '"seconds": 0.5}]}')
    assert cases.read_workload(path)[0].seconds == 0.5
    path.write_text('{"cases": [{"op": "matmul", "params": {"m": 8, "n": 1, "k": 2}, '
                    '"vary": [[{}, {"k": 2}]]}]}')
    with pytest.raises(CaseError, match="comes twice"):
        cases.read_workload(path)


PRODUCT = {"op": "matmul", "params": {"m": 1, "n": 2, "k": 3}}


@pytest.mark.parametrize("workload, told", [
    (None, "No such file"), ("{", "not a whole JSON file"), ([], "the file: expected object"),
    ({}, "'cases' is missing"), ({"cases": 3}, "cases: expected array"),
    ({"cases": [3]}, r"cases\[0\]: expected object"),
    ({"cases": [{"params": {}}]}, r"cases\[0\]: 'op' is missing"),
    ({"cases": [PRODUCT, {**PRODUCT, "depth": 3}]}, r"cases\[1\].depth: is not in the schema"),
    ({"cases": [{**PRODUCT, "vary": 3}]}, r"cases\[0\].vary: expected array"),
    ({"cases": [{**PRODUCT, "vary": [{}]}]}, r"cases\[0\].vary\[0\]: expected array"),
    ({"cases": [{**PRODUCT, "params": [3]}]}, r"cases\[0\].params: expected object"),
    ({"cases": [{**PRODUCT, "states": "burst"}]}, r"cases\[0\].states: expected array"),
    ({"cases": [{**PRODUCT, "seconds": "long"}]}, r"cases\[0\].seconds: expected number"),
    ({"cases": [{**PRODUCT, "params": {"m": 1}}]}, r"cases\[0\]: matmul: n is missing")])
def test_an_invalid_workload_file_is_named(tmp_path, capsys, workload, told):
    path = tmp_path / "w.json"
    if workload is not None:
        path.write_text(workload if isinstance(workload, str) else json.dumps(workload))
    with pytest.raises(ValueError, match=told) as refused:
        cases.read_workload(path)
    assert str(refused.value).startswith(str(path))
    assert cli.main(["suite", str(path), "--list"]) == 2
    assert capsys.readouterr().err == f"tessera.bench: {refused.value}\n"


def test_cases_in_fp8_have_the_peers_that_run_them():
    found = cases.read_workload(WORKLOADS[0].parent / "hopper_attention_fp8.json")
    for case in found:
        assert case.params["dtype"] == "e4m3" and case.params["factors"] == "head"
        names = peers.peers_for(case, "cuda")
        assert set(names) == set(case.peers)
        assert [name for name in names if peers.get_peer(name).refuse(case)] == []
    sizes = {(p["d"], p["h"], p["b"], p["s"], p["causal"]) for p in (case.params for case in found)}
    assert {(128, 16, 1, 32768, True), (64, 32, 1, 16384, False), (256, 16, 1, 16384, True)} < sizes
    wide = make_case("attention", {"s": 64})
    assert "tessera_bf16" not in peers.peers_for(wide, "cuda")


def test_products_in_fp8_have_the_peers_that_run_them():
    found = cases.read_workload(WORKLOADS[0].parent / "hopper_products_fp8.json")
    assert 10 <= len(found) <= 16
    for case in found:
        assert case.params["dtype"] == "e4m3" and case.transpose == "nt"
        names = peers.peers_for(case, "cuda")
        assert set(names) == set(case.peers)
        assert [name for name in names if peers.get_peer(name).refuse(case)] == []
        dense = case.dense()
        assert (dense.params["factors"], dense.transpose) == (case.params["factors"], "nt")
    assert {case.params["factors"] for case in found if case.op == "matmul"} == {
        *cases.PRODUCT_FACTORS}
    assert {case.params.get("experts") for case in found} == {None, 8, 64}
    short = make_case("bsr_matmul", {"m": 8, "n": 8, "k": 8, "block": 8, "pattern": "random",
                                     "density": 0.5, "dtype": "e4m3"})
    assert short.params["side"] == "b" and short.params["factors"] == "tensor"


def element_mask(p, lists=None):
    """Which key each query sees, by brute force."""
    s, skv = p["s"], p["skv"]
    seen = np.zeros((s, skv), bool)
    for i, j in itertools.product(range(s), range(skv)):
        distance = j - (i + skv - s)
        seen[i, j] = not (p["causal"] and distance > 0)
        seen[i, j] &= "window" not in p or -p["window"] <= distance
        if lists is not None:
            seen[i, j] &= j // p["block_kv"] in lists.row(i // p["block_q"])
    return seen


MASKS = [{}, {"causal": True}, {"window": 5}, {"causal": True, "window": 3}]


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("s, skv", [(32, 32), (29, 43), (43, 29), (1, 9)])
def test_visible_pairs_and_kinds_of_blocks(mask, s, skv):
    p = make_case("attention", {"s": s, "skv": skv, "b": 2, "h": 3, **mask}).params
    assert flops.visible_pairs(p) == 6 * element_mask(p).sum()
    p = make_case("attention", {"s": s, "skv": skv, "h": 2, "block_q": 8, "block_kv": 4, **mask,
                                "pattern": "random", "density": 0.5}).params
    both = [random_lists(-(-s // 8), -(-skv // 4), 0.5, seed) for seed in (1, 2)]
    masks = [element_mask(p, lists) for lists in both]
    assert flops.visible_pairs(p, both) == sum(mask.sum() for mask in masks)
    assert flops.visible_pairs(p, both[:1]) == 2 * masks[0].sum()
    rules = element_mask({key: value for key, value in p.items() if key != "pattern"})
    for lists in both:
        full, partial = flops.classify(p, lists)
        for row in range(lists.rows):
            kinds = {0: set(), 1: set(), 2: set()}
            for col in lists.row(row):
                block = rules[row * 8 : row * 8 + 8, col * 4 : col * 4 + 4]
                kinds[2 if block.all() else 1 if block.any() else 0].add(int(col))
            assert set(full.row(row)) == kinds[2]
            assert set(partial.row(row)) == kinds[1]


def test_packed_sequences_fill_the_total():
    p = make_case("attention", {"s": 1000, "sequences": 7, "h": 2, "causal": True}).params
    lengths = flops.sequence_lengths(p)
    assert lengths.sum() == 1000 and len(lengths) == 7 and lengths.min() >= 1
    assert lengths.max() > 3 * lengths.min()
    assert flops.visible_pairs(p) == 2 * sum(n * (n + 1) // 2 for n in lengths)
    p = make_case("attention", {"s": 16, "h": 1, "d": 8, "dv": 4}).params
    assert flops.attention_flops(p) == 2 * 16 * 16 * (8 + 4)  # both products


def test_lengths_over_pages_follow_zipfs_law():
    p = make_case("attention", {"s": 1, "skv": 65536, "b": 32, "page": 64, "lengths": 1.8}).params
    lengths = flops.key_lengths(p)
    assert (lengths.max(), lengths.min(), len(lengths)) == (65536, 128, 32)
    assert flops.visible_pairs(p) == 16 * lengths.sum()
    whole = make_case("attention", {"s": 1, "skv": 90, "b": 3, "page": 64}).params
    assert list(flops.key_lengths(whole)) == [90] * 3 and "lengths" not in whole


def test_pages_hold_every_key_once():
    pages = Pages(make_case("attention", {"s": 1, "skv": 50, "b": 3, "page": 8, "lengths": 1.0,
                                          "h": 2}).params, "cpu")
    assert sorted(pages.numbers) == list(range(pages.count))
    pool = np.arange(pages.count * 8 * 2.0).reshape(pages.count, 8, 2, 1)
    seen = set()
    for sequence, length in enumerate(pages.lengths):
        keys = pages.keys_of(pool, sequence, 1)
        assert keys.shape == (length, 1)
        whole = pool[pages.host_table[sequence]].reshape(-1, 2)
        assert np.array_equal(keys[:, 0], whole[:length, 1])
        seen |= set(keys[:, 0])
    assert len(seen) == pages.lengths.sum()


def test_product_flops_against_counting():
    lists, other = random_lists(4, 6, 0.4, 3), random_lists(6, 5, 0.4, 4)
    base = {"m": 32, "n": 40, "k": 48, "block": 8, "pattern": "random", "density": 0.4}
    stored = 2 * len(lists.indices) * 64
    pairs = sum(j in other.row(k) for i in range(4) for k in lists.row(i) for j in range(5))
    for op, params, given, counted in (
            ("bsr_matmul", base, lists, stored * 40),
            ("bsr_matmul", {**base, "side": "b"}, lists, stored * 32),
            ("sddmm", base, lists, stored * 48), ("spgemm", base, (lists, other), 2 * pairs * 8**3),
            ("matmul", {"m": 3, "n": 5, "k": 7}, None, 2 * 3 * 5 * 7)):
        assert flops.product_flops(op, make_case(op, params).params, given) == counted


def test_lists_pad_repeat_and_keep():
    lists = patterns.lists_of(np.array([[1, 0, 1], [0, 0, 0], [0, 1, 0]], bool))
    counts, table = lists.padded(fill=-1)
    assert counts.tolist() == [2, 0, 1]
    assert table.tolist() == [[0, 2], [-1, -1], [1, -1]]
    assert lists.repeat_rows(2, 5).counts.tolist() == [2, 2, 0, 0, 1]
    kept = lists.keep(np.array([False, True, True]))
    assert [kept.row(i).tolist() for i in range(3)] == [[2], [], [1]]


def test_lists_by_kv_head_repeat_over_the_group():
    p = make_case("attention", {"s": 64, "h": 4, "hk": 2, "block_q": 8, "pattern": "random",
                                "density": 0.3, "lists": "per_kv_head", "alike": 2}).params
    lists = patterns.attention_lists(p)
    assert len(lists) == 4
    assert np.array_equal(lists[0].indices, lists[1].indices)
    assert not np.array_equal(lists[0].indices, lists[2].indices)
    assert np.array_equal(lists[0].row(4), lists[0].row(5))


def test_similar_rows_share_a_part_and_keep_their_lengths():
    p = make_case("attention", {"s": 512, "block_q": 8, "pattern": "random", "density": 0.4,
                                "alike": 4, "seed": 3}).params
    same, = patterns.attention_lists(p)
    near, = patterns.attention_lists({**p, "similar": 0.75})
    assert same.counts.tolist() == near.counts.tolist() and (same.rows, near.rows) == (64, 64)
    for first in range(0, 64, 4):
        rows = [set(near.row(first + i)) for i in range(4)]
        common = set.intersection(*rows, set(same.row(first)))
        assert len(common) == int(0.75 * len(rows[0]))
        assert len(set.union(*rows)) > len(rows[0])
        assert all(np.all(np.diff(near.row(first + i)) > 0) for i in range(4))
    full = patterns.lists_of(np.ones((4, 8), bool))
    assert full.blended(full, 0.5).counts.tolist() == [4] * 4  # full rows have no other blocks
