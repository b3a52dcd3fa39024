"""tools/compare_builds.py on the CPU: one build against itself."""

import shutil
import sys
from pathlib import Path

import pytest

import tessera

ROOT = Path(__file__).resolve().parents[2]
if not (ROOT / "tools").is_dir():
    pytest.skip("runs from the source tree alone", allow_module_level=True)
sys.path.insert(0, str(ROOT / "tools"))

import compare_builds  # noqa: E402

PACKAGE = Path(tessera.__file__).parent
SMALL = ["--device", "cpu", "--turns", "1", "--seconds", "0.01", "--cases"]
CASE = "matmul --m 32 --n 32 --k 32 --dtype f32"


@pytest.fixture
def build(tmp_path):
    """A folder with the package, or one that ends as soon as it is imported."""
    def made(name, broken=False):
        (tmp_path / name / "tessera" / "lib").mkdir(parents=True)
        if broken:
            (tmp_path / name / "tessera" / "__init__.py").write_text("import os; os._exit(7)\n")
        else:
            shutil.copytree(PACKAGE, tmp_path / name / "tessera", dirs_exist_ok=True)
        return str(tmp_path / name)

    return made


def test_builds_have_ratios_to_the_first_or_a_reason(build, capfd):
    old, broken = build("old"), build("broken", broken=True)
    assert compare_builds.main([old, broken, *SMALL, CASE]) == 1
    title, mine, other = capfd.readouterr().out.splitlines()
    assert title == "matmul 32x32x32 f32"
    assert mine.split()[0] == old and "1.000x  cpu_matmul" in mine
    assert other.split() == [broken, "not", "measured"]


def test_turns_go_both_ways_and_ratios_are_those_of_medians(build, monkeypatch, capsys):
    builds, turns = [build("old"), build("new")], []
    left = {builds[0]: [3, 4, 8], builds[1]: [1, 2, 2]}

    def measure(one, options, work):
        turns.append(one)
        return {options.cases[0].key: {"ms": left[one].pop(0), "row": "row"}}

    monkeypatch.setattr(compare_builds, "measure", measure)
    assert compare_builds.main([*builds, *SMALL, CASE, "--turns", "3"]) == 0
    assert turns == [*builds, *builds[::-1], *builds]
    _, old, new = (line.split()[1:] for line in capsys.readouterr().out.splitlines())
    assert old == ["4000.0", "us", "125.0%", "1.000x", "row"]
    assert new == ["2000.0", "us", "50.0%", "2.000x", "row"]


@pytest.mark.parametrize("wrong, said", [
    ([".", *SMALL, CASE], "tessera/lib"), (["{one}", "{one}", *SMALL, CASE], "each once"),
    (["{one}", *SMALL, "matmul --m 3"], "--cases: matmul: the following arguments are required"),
    (["{one}", *SMALL, CASE, "--turns", "0"], "--turns"),
])
def test_bad_input_is_refused(build, capsys, wrong, said):
    one = build("one")
    with pytest.raises(SystemExit) as status:
        compare_builds.main([word.format(one=one) for word in wrong])
    assert status.value.code == 2 and said in capsys.readouterr().err
