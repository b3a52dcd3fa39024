"""tools/sweep.py: candidates become rows of a copy's table, and a compiler's words a reason."""

import json
import re
import sys
from pathlib import Path

import pytest

from tessera.bench.cases import read_workload

ROOT = Path(__file__).resolve().parents[2]
if not (ROOT / "tools").is_dir():
    pytest.skip("runs from the source tree alone", allow_module_level=True)
sys.path.insert(0, str(ROOT / "tools"))

import sweep  # noqa: E402

ROW = re.compile(r'\.name = "(?P<name>(?P<backend>[a-z0-9]+)_(?P<family>[a-z0-9]+)\w*)"')
SWEEPS = sorted((ROOT / "bench" / "sweeps").glob("*.json"))


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
def test_each_sweep_has_rows_that_the_build_would_find_and_problems(path, tmp_path):
    family = json.loads(path.read_text())["family"]
    table = sweep.TABLE.format(family=family)
    (tmp_path / table).parent.mkdir(parents=True)
    _, tiles = sweep.read_candidates(path)
    sweep.append_rows(tmp_path, family, tiles)
    source, own = (tmp_path / table).read_text(), (ROOT / table).read_text()
    assert source.startswith(own.rsplit("};", 1)[0][:1000])
    names = re.compile(r'\.name = "')
    assert len(names.findall(source)) == len(tiles) + len(names.findall(own))
    rows = {row["name"]: row for row in ROW.finditer(source) if "_try_" in row["name"]}
    assert list(rows) == list(tiles) and len(tiles) > 1
    for row in rows.values():
        assert (row["backend"], row["family"]) == ("sm90", family)
    assert read_workload(path)


def test_the_copy_finds_what_the_tree_has_installed_and_can_be_made_again(tmp_path):
    for _ in range(2):
        sweep.copy_tree(tmp_path)
        assert (tmp_path / ".venv").readlink() == ROOT / ".venv"
        table = sweep.TABLE.format(family="matmul")
        assert (tmp_path / table).read_text() == (ROOT / table).read_text()


def test_a_tile_that_is_none_is_refused(tmp_path):
    path = tmp_path / "x.json"
    for tile in ({"m": 64, "n": 64}, {"m": 64, "n": 64, "k": 64, "depth": 3}):
        path.write_text(json.dumps({"family": "matmul", "op": "matmul", "tiles": [tile]}))
        with pytest.raises(SystemExit, match="expected m, n, k"):
            sweep.read_candidates(path)


def test_the_reason_is_the_first_error_with_the_assertion(tmp_path):
    header = tmp_path / "traits.cuh"
    header.write_text("a\n  static_assert(kBytes <= kMost);\n")
    assert sweep.first_error(f"note\n{header}(2): error: static assertion failed\n"
                             f"{header}(1): error: second\n") == (
        "traits.cuh: static_assert(kBytes <= kMost);")
    assert sweep.first_error("x.cu(7): error: odd\nninja: stopped") == "odd"
    assert sweep.first_error("a\nninja: unknown target") == "ninja: unknown target"


@pytest.mark.parametrize("returncode, report, outcome", [
    (0, "ptxas info : Used 168 registers\n0 bytes spill stores, 0 bytes spill loads\n",
     {"fits": True, "registers": 168, "reason": None}),
    (1, "ptxas info    : (C7512) Potential Performance Loss: wgmma.mma_async instructions are "
        "serialized due to insufficient register resources for the function 'f'\n"
        "Compiling entry function 'f' for\nptxas info : Used 255 registers\n"
        "    8 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads\n",
     {"fits": False, "registers": 255,
      "reason": "wgmma serialised; 8 bytes stack frame, 8 bytes spill stores, "
                "12 bytes spill loads"}),
    (1, None, {"fits": False, "registers": None, "reason": "too much"})])
def test_what_is_said_of_a_compilation(tmp_path, monkeypatch, returncode, report, outcome):
    def compiles(*command):
        if report:
            (tmp_path / "rows" / "ptxas").mkdir(parents=True)
            (tmp_path / "rows" / "ptxas" / "row.cu.o.ptxas").write_text(report)
        return type("Done", (), {"returncode": returncode, "stdout": "a.cu(1): error: too much"})

    monkeypatch.setattr(sweep, "run", compiles)
    assert sweep.compile_row(tmp_path, "row") == outcome


def test_times_are_added_to_the_outcome(tmp_path, monkeypatch, capsys):
    out, times = tmp_path / "out.json", tmp_path / "times.json"
    out.write_text(json.dumps({"family": "matmul", "rows": [{"row": "a", "fits": True}],
                               "problems": []}))
    times.write_text(json.dumps({"device": "X", "state": "burst", "file": None,
                                 "problems": [{"winner": "a"}]}))
    monkeypatch.setattr(sys, "argv", ["sweep.py", "matmul", "--out", str(out), "--times",
                                      str(times)])
    assert sweep.main() == 0
    outcome = json.loads(out.read_text())
    assert outcome["device"] == "X" and outcome["problems"] == [{"winner": "a"}]
    assert "1 of 1 fit, 1 problems timed" in capsys.readouterr().out
    times.write_text('{"device": "X"}')
    with pytest.raises(SystemExit, match=r"what tessera\.tune --json prints"):
        sweep.main()
    assert json.loads(out.read_text()) == outcome


def test_a_part_leaves_the_outcome_of_all(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sweep, "ROOT", tmp_path)
    monkeypatch.setattr(sweep, "sweep", lambda family, arguments: {
        "rows": [{"row": "a", "fits": True}], "problems": []})
    whole, part = tmp_path / "bench/results/sweeps/matmul.json", tmp_path / "part.json"
    for more, written in ((["--only", "a"], None), (["--only", "a", "--out", str(part)], part),
                          ([], whole)):
        monkeypatch.setattr(sys, "argv", ["sweep.py", "matmul", *more])
        assert sweep.main() == 0
        assert [path for path in (whole, part) if path.exists()] == ([written] if written else [])
        assert "1 of 1 fit" in capsys.readouterr().out
        part.unlink(missing_ok=True)


def test_names_of_candidates_are_a_regular_expression():
    with pytest.raises(SystemExit, match="--only: 'zzz' is in none of sm90_"):
        sweep.read_candidates(SWEEPS[0], "zzz")
    with pytest.raises(SystemExit, match="--only: '\\(' is no regular expression"):
        sweep.read_candidates(SWEEPS[0], "(")


def outcome(**more):
    rows = [{"row": "sm90_x_try_1x2x3", "fits": True, "registers": 99, "reason": None},
            {"row": "sm90_x_try_4x5x6", "fits": False, "registers": None, "reason": "too large"}]
    return {"family": "x", "op": "matmul", "date": "2001-02-03T04:05:06Z", "cuda": "99.0",
            "rows": rows, "device": None, "problems": [], **more}


def timed(row, ms):
    return {"row": row, "ms": ms, "tflops": ms and 1000 / ms}


def test_an_outcome_says_what_fits_when_and_with_which_toolkit():
    lines = sweep.outcome_lines(outcome())
    assert lines[0] == "*compiled only, CUDA 99.0, 2001-02-03*"
    assert lines[-2:] == ["| `1x2x3` | 99 |", "| `4x5x6` | too large |"]


def test_candidates_stand_beside_the_tables_choice_the_quickest_first():
    case = next(case for case in read_workload(SWEEPS[-1]) if case.op == "matmul")
    problems = [{"op": case.op, "params": case.params,
                 "rows": [timed("sm90_x_try_4x5x6", 4.0), timed("sm90_x_try_1x2x3", 2.0),
                          timed("sm90_x_try_7x8x9", None), *own]}
                for own in ([timed("sm90_x_7x7", 5.0)], [])]
    lines = sweep.outcome_lines(outcome(device="Card", problems=problems))
    assert lines[0].startswith("*Card, bursts, ")
    assert lines[-2] == f"| {case.label} | `7x7` | 200 | `1x2x3` 500, `4x5x6` 250 |"
    assert lines[-1] == f"| {case.label} |  |  | `1x2x3` 500, `4x5x6` 250 |"
