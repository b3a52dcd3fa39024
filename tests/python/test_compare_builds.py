"""tools/compare_builds.py on the CPU: one build against itself."""

import shutil
from pathlib import Path

import pytest
from support import tool

import tessera

compare_builds = tool("compare_builds")
PACKAGE = Path(tessera.__file__).parent
ATTENTION = "attention --q-length 16 --heads 1 --dim 16 --dtype f32"
SMALL = ["--device", "cpu", "--turns", "2", "--seconds", "0.01", "--cases"]
CASE = "matmul --m 32 --n 32 --k 32 --dtype f32"


@pytest.fixture
def build(tmp_path):
    def linked(name):
        (tmp_path / name).mkdir()
        (tmp_path / name / "tessera").symlink_to(PACKAGE)
        return str(tmp_path / name)

    return linked


def test_builds_take_turns_and_have_ratios_to_the_first(build, capfd):
    old, new = build("old"), build("new")
    assert compare_builds.main([old, new, *SMALL, CASE, ATTENTION]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert [line for line in lines if line[0] != " "] == ["matmul 32x32x32 f32",
                                                         "attention B1 H1 S16 D16 f32"]
    for first, second in (lines[1:3], lines[4:6]):
        assert first.split()[0] == old and "1.000x  cpu_" in first
        assert second.split()[0] == new and " us " in second


def test_turns_go_both_ways_and_ratios_are_those_of_medians(build, capsys):
    class Scripted:
        kernel = ""

        def __init__(self, name, *times):
            self.name, self.left = name, list(times)

        def ask(self, **request):
            if "op" in request:
                return {"row": "cpu_matmul_m64_n384_k512"}
            turns.append(self.name)
            return {"ms": self.left.pop(0)}

    turns = []
    options = compare_builds.parse([build("any"), *SMALL, CASE])
    both = [Scripted("old", 3, 5), Scripted("new", 9, 1, 3)]
    assert compare_builds.compare(both, options.cases[0], options)
    assert turns == ["new", "old", "new", "new", "old"]  # the first one does not count
    _, old, new = (line.split() for line in capsys.readouterr().out.splitlines())
    assert old == ["old", "4000.0", "us", "50.0%", "1.000x", "cpu_matmul_m64_n384_k512"]
    assert new == ["new", "2000.0", "us", "100.0%", "2.000x", "cpu_matmul_m64_n384_k512"]


def test_a_kernel_that_does_not_take_the_case_says_why_and_the_others_have_times(build, capfd):
    one = build("one")
    assert compare_builds.main([one, f"{one}:sm90_matmul_m128_n256_k64_s4", *SMALL, CASE]) == 1
    _, mine, other = capfd.readouterr().out.splitlines()
    assert "1.000x" in mine and "Unavailable: " in other and "runs on a GPU" in other


def test_a_process_that_ends_is_told(build, tmp_path, capfd):
    broken = tmp_path / "broken"
    shutil.copytree(PACKAGE / "lib", broken / "tessera" / "lib")
    (broken / "tessera" / "__init__.py").write_text("import os; os._exit(7)\n")
    assert compare_builds.main([build("one"), str(broken), *SMALL, CASE, CASE]) == 1
    assert capfd.readouterr().out.count("its process ended with 7") == 2


def test_a_wrong_result_gets_no_time(build, tmp_path, capfd):
    wrong = tmp_path / "wrong"
    shutil.copytree(PACKAGE, wrong / "tessera")
    with open(wrong / "tessera" / "products.py", "a") as file:
        file.write("\nimport functools\nright = matmul\n\n@functools.wraps(right)\n"
                   "def matmul(*arguments, **options):\n"
                   "    result = right(*arguments, **options)\n"
                   "    result += 1\n    return result\n")
    assert compare_builds.main([build("one"), str(wrong), *SMALL, CASE]) == 1
    assert "WrongResult" in capfd.readouterr().out.splitlines()[2]


@pytest.mark.parametrize("wrong, said", [
    ([".", *SMALL, CASE], "tessera/lib"),
    (["{one}", "{one}", *SMALL, CASE], "each build and kernel once"),
    (["{one}", *SMALL, "matmul --m 3"], "--cases: matmul: the following arguments are required"),
    (["{one}", *SMALL, CASE.replace("f32", "f8")], "--dtype: invalid choice"),
    (["{one}", *SMALL, CASE, "--turns", "0"], "--turns"),
    (["{one}", *SMALL, CASE, "--turns", "3"], "--turns: expected an even number"),
    (["{one}", *SMALL, CASE, "--seconds", "0"], "--seconds: expected more than 0, got 0"),
])
def test_bad_input_is_refused(build, capsys, wrong, said):
    one = build("one")
    with pytest.raises(SystemExit) as status:
        compare_builds.main([word.format(one=one) for word in wrong])
    assert status.value.code == 2 and said in capsys.readouterr().err
