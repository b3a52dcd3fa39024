"""tools/gpu_check.py with stand-ins for the GPU's tools: what it runs, what it writes down."""

import json
import os
import shutil
import signal
import sys
import types
from pathlib import Path

import pytest
from support import tool

gpu_check, gpu_steps = tool("gpu_check"), tool("gpu_steps")

# A GoogleTest executable in miniature: two tests, of which Broken fails.
EXECUTABLE = """#!{python}
import sys
options = dict(word.lstrip("-").split("=", 1) for word in sys.argv[1:] if "=" in word)
if "--gtest_list_tests" in sys.argv:
    print("Running main() from somewhere")
    print("Merge.\\n  Small\\n  Broken  # GetParam() = 1\\n  HostileLists")
    print("Other/Param.\\n  DISABLED_Slow/0")
    sys.exit(0)
if {status} == 77:
    sys.exit(77)
failure = '<failure message="2 is not 3"/>' if {status} else ""
if "gtest_output" in options:
    with open(options["gtest_output"].removeprefix("xml:"), "w") as report:
        report.write('<testsuites><testsuite name="Merge">'
                     '<testcase classname="Merge" name="Small" status="run" time="0.5"/>'
                     '<testcase classname="Merge" name="Off" status="notrun" time="0"/>'
                     '<testcase classname="Merge" name="Broken" status="run" time="0">'
                     + failure + "</testcase></testsuite></testsuites>")
sys.exit({status})
"""
SANITIZER = """#!/bin/sh
echo "$@" >> {log}
case "$3" in --error-exitcode) ;; *) exit 1;; esac
exit {status}
"""


HOST_TIME = """#!/bin/sh
echo '{{"op": "attention", "call": "attention of a word", "us": 3.5, "spread": 0.01,' \\
     '"with_plan_us": 9.0, "row": "sm90_attention_d64_q192_k128_s3"}}'
echo a word of warning >&2
echo once >> {log}
exit {status}
"""


def make_program(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine that looks as if it had a GPU, with one test executable."""
    def make(status=0, sanitizer=0):
        make_program(tmp_path / "bin" / "nvidia-smi", "#!/bin/sh\necho NVIDIA H200\n")
        make_program(tmp_path / "bin" / "compute-sanitizer",
                     SANITIZER.format(log=tmp_path / "log", status=sanitizer))
        make_program(tmp_path / "build" / "tests" / "gpu_merge_test",
                     EXECUTABLE.format(python=sys.executable, status=status))
        monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
        return tmp_path

    return make


def one_step(step, folder, *, device="cpu", budget=None, result=(), **more):
    """(tests, figures by section) of a single step, with reports in a folder of its own."""
    work = folder / "work"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    options = types.SimpleNamespace(build=folder, quick=False, device=device, **more)
    return gpu_steps.TEST_STEPS[step](gpu_steps.Context(options, gpu_steps.Clock(budget), work,
                                               result=dict(result)))


def only(*steps):
    return "--skip", ",".join(step for step in gpu_check.STEPS if step not in steps)


def run(folder, *more):
    out = folder / "out.json"
    status = gpu_check.main(["--build", str(folder / "build"), "--out", str(out), "--device", "cpu",
                             *more])
    return status, json.loads(out.read_text())


def test_outcomes_of_cpp_tests_and_sanitizer_are_written(machine):
    folder = machine()
    _, result = run(folder, *only("cpp", "sanitizer"))
    outcomes = {test["name"]: test["outcome"] for test in result["tests"]}
    assert outcomes == {"cpp.gpu_merge_test.Merge.Small": "passed",
                        "cpp.gpu_merge_test.Merge.Broken": "passed",
                        "sanitizer.memcheck.gpu_merge_test": "passed",
                        "sanitizer.racecheck.gpu_merge_test": "passed"}
    memcheck, racecheck = sorted((folder / "log").read_text().splitlines())
    assert memcheck.startswith("--tool memcheck ")
    assert memcheck.endswith("--gtest_filter=Merge.Small:Merge.Broken:Merge.HostileLists")
    assert racecheck.startswith("--tool racecheck ")
    assert racecheck.endswith("--gtest_filter=Merge.Small:Merge.Broken")  # hostile lists race
    assert not list(folder.glob(".*-work"))


def test_racecheck_takes_the_executables_of_its_own_build(machine):
    folder = machine()
    own = folder / "race" / "tests" / "gpu_merge_test"
    make_program(own, EXECUTABLE.format(python=sys.executable, status=0))
    make_program(folder / "build" / "tests" / "gpu_other_test",
                 EXECUTABLE.format(python=sys.executable, status=0))
    run(folder, *only("sanitizer"), "--race-build", str(folder / "race"))
    ran = {tuple(line.split()[1:5:3]) for line in (folder / "log").read_text().splitlines()}
    built = folder / "build" / "tests"
    assert ran == {("memcheck", str(built / "gpu_merge_test")), ("racecheck", str(own)),
                   ("memcheck", str(built / "gpu_other_test")),
                   ("racecheck", str(built / "gpu_other_test"))}


@pytest.mark.parametrize("how, steps, last", [
    ({"status": 1}, ["cpp"], ("cpp.gpu_merge_test.Merge.Broken", "failed")),
    ({"status": 77}, ["cpp"], ("cpp.gpu_merge_test", "skipped")),
    ({"sanitizer": 9}, ["cpp", "sanitizer"], ("sanitizer.memcheck.gpu_merge_test", "failed"))])
def test_what_fails_fails_the_check(machine, how, steps, last):
    status, result = run(machine(**how), "--quick", *only(*steps))
    test = result["tests"][-1]
    assert status == 1 and (test["name"], test["outcome"]) == last
    assert ("2 is not 3" in test["detail"]) == (how == {"status": 1})


def test_reports_tell_what_failed_and_what_was_skipped(tmp_path):
    report = tmp_path / "report.xml"
    assert gpu_steps.reported_outcomes("cpp", report) == []
    report.write_text("<testsuites")
    assert gpu_steps.reported_outcomes("cpp", report) == []
    report.write_text('<a><testcase classname="A" name="b"><skipped message="no card"/></testcase>'
                      '<testcase classname="A" name="c"><error>it ended</error></testcase></a>')
    assert gpu_steps.reported_outcomes("cpp", report) == [
        {"name": "cpp.A.b", "outcome": "skipped", "seconds": 0.0, "detail": "no card"},
        {"name": "cpp.A.c", "outcome": "failed", "seconds": 0.0, "detail": "it ended"}]


@pytest.mark.parametrize("status, report, outcomes", [
    (0, "<a><testcase/></a>", ["passed"]), (1, "<a><testcase><error/></testcase></a>", ["failed"]),
    (2, "<a><testcase/></a>", ["passed", "failed"]),  # it stopped before its end
    (0, "", ["failed"]), (1, "", ["failed"]), (5, "", ["skipped"])])
def test_what_pytest_says_is_the_outcome_of_the_python_tests(monkeypatch, tmp_path, status, report,
                                                             outcomes):
    def run(command, *_, **__):
        Path(command[-1].removeprefix("--junitxml=")).write_text(report)
        return status, ""

    monkeypatch.setattr(gpu_steps, "run", run)
    assert [test["outcome"] for test in one_step("python", tmp_path)[0]] == outcomes


def test_nothing_built_is_a_failure(tmp_path):
    (test,), _ = one_step("cpp", tmp_path)
    assert test["outcome"] == "failed" and "tessera_gpu_tests" in test["detail"]


def test_figures_of_the_host_cases_and_tests_share_one_file(machine, tmp_path):
    folder, log, workload = machine(), tmp_path / "host-log", tmp_path / "w.json"
    program = folder / "build" / "tests" / "host_time"
    workload.write_text(json.dumps({"cases": [
        {"op": "matmul", "params": {"m": 8, "n": 8, "k": 8, "dtype": "f32"},
         "vary": [[{"m": 8}, {"m": 9}, {"m": 10}]]}]}))
    common = [*only("cpp", "host", "bench"), "--workloads", str(workload), "--seconds", "0.01",
              "--peers", "none", "--commit", "0123abc"]

    def outcomes(*more):
        status, result = run(folder, *common, *more)
        assert status == 1  # measured on the CPU here, which is the least to complain about
        return result, [test["outcome"] for test in result["tests"] if test["name"] == "host"]

    result, host = outcomes("--shard", "1/2")
    assert host == ["skipped"] and result["host"] == []
    assert len(result["cases"]) == 2 and len(result["tests"]) == 3
    assert result["commit"] == "0123abc"
    make_program(program, HOST_TIME.format(log=log, status=1))
    result, host = outcomes()
    # What was measured before it failed is kept; the cases do not overwrite it.
    assert host == ["failed"] and "a word of warning" in result["tests"][-1]["detail"]
    assert len(result["host"]) == 1 and len(result["cases"]) == 3
    make_program(program, HOST_TIME.format(log=log, status=0))
    for _ in range(2):  # the second time it has passed already
        result, host = outcomes("--resume")
    assert host == ["passed"] and [one["us"] for one in result["host"]] == [3.5]
    assert log.read_text().split() == ["once"] * 2
    assert gpu_check.bench_module("results").problems(result) == []
    assert gpu_check.parse(["--shard", "2/2", *common]).steps == ["bench"]


def test_the_card_s_ceilings_are_those_of_the_benchmark(monkeypatch, tmp_path):
    (tmp_path / "tests").mkdir()

    def measured(status):
        def run(command, *_, **__):
            words = [str(word) for word in command]
            assert words[1:6] == ["-m", "tessera.bench", "ceilings", "--library", library]
            if status == 0:
                Path(words[words.index("--json") + 1]).write_text('{"ceilings": {"launch_us": 1}}')
            return status, "[1/1] launch"

        monkeypatch.setattr(gpu_steps, "run", run)
        (test,), figures = one_step("ceilings", tmp_path)
        return figures.get("ceilings", {}), test["outcome"]

    library = str(tmp_path / "tests" / "ceilings.so")
    assert measured(0) == ({}, "skipped")
    Path(library).touch()
    assert measured(1) == ({}, "failed")
    assert measured(0) == ({"launch_us": 1}, "passed")


def test_random_problems_go_on_where_the_file_stopped(machine):
    pytest.importorskip("torch", reason="PyTorch is not installed")
    folder = machine()
    for wanted in (1, 2, 2):
        _, result = run(folder, *only("verify"), "--problems", str(wanted), "--resume")
        assert [(test["name"], test["outcome"]) for test in result["tests"]] == [
            (f"verify.{op}", "passed") for op in gpu_steps.VERIFIED]
        for op in gpu_steps.VERIFIED:
            runs = [found for found in result["verify"] if found["op"] == op]
            assert sum(found["right"] for found in runs) == wanted
    assert gpu_check.bench_module("results").problems(result) == []
    assert len(result["verify"]) == 2 * len(gpu_steps.VERIFIED)
    for i, op in enumerate(gpu_steps.VERIFIED):
        first, second = result["verify"][2 * i : 2 * i + 2]
        assert first["op"] == second["op"] == op
        assert first["last_seed"] < second["first_seed"]
        assert first["first_seed"] == gpu_steps.code_number(folder / "build", op) + 1


def test_random_problems_of_other_kernels_do_not_count(monkeypatch, tmp_path):
    other = {"op": "attention", "first_seed": 1000, "last_seed": 1019, "problems": 20,
             "failed": [1001]}
    found, test = found_by(monkeypatch, tmp_path, 0, [other], problems=20)
    assert [one["first_seed"] for one in found] == [16] and test["outcome"] == "passed"
    assert found_by(monkeypatch, tmp_path, 0, [other, *found]) == ([], None)


def test_seeds_follow_the_kernels_of_the_build(tmp_path):
    def code_with(op="attention", **kernels):
        (tmp_path / "machine_code.json").write_text(json.dumps(
            {"toolkit": "99.0", "kernels": {row: {"name": code} for row, code in kernels.items()}}))
        return gpu_steps.code_number(tmp_path, op)

    committed = gpu_steps.code_number(tmp_path, "attention")
    first = code_with(sm90_attention_d128_q128_k128_s2="a" * 16, sm90_matmul_64="b" * 16)
    assert first == code_with(sm90_attention_d128_q128_k128_s2="a" * 16, sm90_matmul_64="c" * 16)
    assert len({first, committed, code_with(sm90_attention_d128_q128_k128_s2="d" * 16)}) == 3
    product = code_with("products", sm90_attention_d128_q128_k128_s2="a" * 16,
                        sm90_matmul_64="b" * 16)
    assert product == code_with("products", sm90_matmul_64="b" * 16)
    assert product != code_with("products", sm90_matmul_64="c" * 16)


def found_by(monkeypatch, tmp_path, status, before=(), budget=None, **found):
    """What the step makes of a run of verify that ended so and wrote that, or nothing."""
    def ended(command, *_, **__):
        command = [str(word) for word in command]
        if found:
            seed = int(command[command.index("--seed") + 1])
            Path(command[command.index("--json") + 1]).write_text(json.dumps(
                {"op": "attention", "first_seed": seed, "last_seed": seed + 9, "failed": [],
                 **found}))
        return status, ""

    monkeypatch.setattr(gpu_steps, "run", ended)
    monkeypatch.setattr(gpu_steps, "VERIFIED", {"attention": lambda row: True})
    monkeypatch.setattr(gpu_steps, "code_number", lambda build, op: 15)
    tests, figures = one_step("verify", tmp_path, budget=budget, result={"verify": list(before)},
                              problems=20)
    return figures.get("verify", []), *(tests or [None])


def test_random_problems_that_are_left_or_wrong_are_no_pass(monkeypatch, tmp_path):
    found, test = found_by(monkeypatch, tmp_path, 0, problems=12)
    assert found[0]["first_seed"] == 16
    assert test["outcome"] == "unfinished" and test["detail"] == "8 of 20 are left"
    more, test = found_by(monkeypatch, tmp_path, 0, found, problems=8)
    assert [one["first_seed"] for one in more] == [16, 26] and test["outcome"] == "passed"
    assert found_by(monkeypatch, tmp_path, 0, more) == ([], None)
    wrong, test = found_by(monkeypatch, tmp_path, 1, problems=4, failed=[17])
    assert test["outcome"] == "failed" and test["detail"] == "seeds 17"
    _, test = found_by(monkeypatch, tmp_path, 0, wrong, problems=16)
    assert test["outcome"] == "failed", "what was wrong before is wrong still"
    found, test = found_by(monkeypatch, tmp_path, 2)
    assert not found and test["outcome"] == "failed" and "exit status 2" in test["detail"]
    found, test = found_by(monkeypatch, tmp_path, None, budget=1)
    assert not found and test["outcome"] == "unfinished"


def test_resume_repeats_what_failed_or_ran_at_another_commit(machine):
    folder = machine(status=1)
    skip = [*only("cpp", "sanitizer"), "--commit"]
    _, result = run(folder, *skip, "0123abc")
    assert [test["outcome"] for test in result["tests"]].count("failed") == 1
    for status, commit, outcomes, sanitized in (
            (0, "0123abc", {"passed"}, False),  # it is repaired
            (1, "0123abc", {"passed"}, False), (1, "4567def", {"passed", "failed"}, True)):
        (folder / "log").unlink(missing_ok=True)
        machine(status=status)
        _, result = run(folder, *skip, commit, "--resume")
        assert {test["outcome"] for test in result["tests"]} == outcomes
        assert (folder / "log").exists() == sanitized
    assert [part["commit"] for part in result["parts"]] == ["0123abc", "4567def"]


def test_outcomes_of_an_earlier_run_make_room(tmp_path):
    out = tmp_path / "out.json"

    def write(*names):
        out.write_text(json.dumps({"tests": [{"name": name, "outcome": "failed"}
                                             for name in names]}))

    write("cpp.gpu_a", "cpp.gpu_b.S.t", "sanitizer.memcheck.gpu_a", "python.x.y")
    gpu_check.add_tests(out, [{"name": "cpp.gpu_a.S.t", "outcome": "passed"}])
    result = json.loads(out.read_text())
    assert [test["name"] for test in result["tests"]] == [
        "cpp.gpu_b.S.t", "sanitizer.memcheck.gpu_a", "python.x.y", "cpp.gpu_a.S.t"]
    assert gpu_check.passed_before(result) == {"cpp.gpu_a"}


def test_tests_are_part_of_the_first_shard_only():
    assert gpu_check.parse(["--shard", "2/3"]).steps == ["bench"]
    assert gpu_check.parse(["--shard", "1/3"]).steps == list(gpu_check.STEPS)


def test_the_file_is_named_after_card_and_workload(machine, monkeypatch, tmp_path):
    machine()
    monkeypatch.setattr(gpu_check, "ROOT", tmp_path)
    workloads = tmp_path / "bench" / "workloads"
    workloads.mkdir(parents=True)
    for name in ("check", "quick", "hopper_products"):
        (workloads / f"{name}.json").write_text('{"cases": []}')
    named = []
    monkeypatch.setattr(gpu_check, "start_file", lambda options, out, env: named.append(out.name))
    for words in ([], ["--quick"], ["--workloads", str(workloads / "hopper_products.json")],
                  ["--shard", "2/4"]):
        assert gpu_check.main(words) == 1
    assert named == ["h200-check.json", "h200-quick.json", "h200-hopper_products.json",
                     "h200-check-2-of-4.json"]


@pytest.mark.parametrize("option, value", [("--workloads", "/none.json"), ("--problems", "0"),
                                           ("--race-build", "/none"), ("--skip", "all")])
def test_what_cannot_be_is_refused_before_any_test_runs(machine, capsys, option, value):
    machine()
    with pytest.raises(SystemExit) as ended:
        gpu_check.main([option, value])
    assert ended.value.code == 2 and f"{option}: " in capsys.readouterr().err


def test_without_a_card_for_pytorch_nothing_is_run(machine, monkeypatch, capsys):
    folder = machine()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    out = folder / "x.json"
    assert gpu_check.main(["--build", str(folder / "build"), "--out", str(out)]) == 1
    assert "could not write" in capsys.readouterr().out and not out.exists()


def test_merge_joins_files_of_one_card_alone(tmp_path, machine):
    folder = machine()
    run(folder, *only("cpp"))
    first = json.loads((folder / "out.json").read_text())
    (tmp_path / "a.json").write_text(json.dumps(first))
    other = {**first, "cpu": {"name": "Another", "threads": 1}}
    (tmp_path / "b.json").write_text(json.dumps(other))
    out = tmp_path / "m.json"
    for name, written in (("b.json", False), ("a.json", True)):
        names = [str(tmp_path / "a.json"), str(tmp_path / name)]
        assert gpu_check.main(["--merge", *names, "--out", str(out)]) == 1  # not from a GPU
        assert out.exists() == written


def test_no_gpu_is_said(monkeypatch, tmp_path, capsys):
    make_program(tmp_path / "nvidia-smi", "#!/bin/sh\nexit 9\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert gpu_check.main(["--out", str(tmp_path / "x.json")]) == 2
    assert "no GPU" in capsys.readouterr().out


def test_a_few_tests_come_from_all_over_an_executable(tmp_path):
    listing = ("Running main()\nA.\n  one\n  two  # note\nB/C.\n  x/0  # GetParam() = 3\n"
               "  DISABLED_y\n")
    assert gpu_steps.listed_tests(listing) == ["A.one", "A.two", "B/C.x/0"]
    program = tmp_path / "gpu_test"
    make_program(program, "#!/bin/sh\necho S.; for i in 0 1 2 3 4 5 6; do echo \"  t$i\"; done\n")
    assert gpu_steps.spread(program) == ["S.t0", "S.t2", "S.t4"]
    assert len(gpu_steps.spread(program, 9)) == 7


def test_an_unfinished_step_is_a_failure_with_its_last_words():
    status, output = gpu_steps.run(["sh", "-c", "echo started; sleep 30"], 0.5)
    assert status is None
    entry = gpu_steps.outcome("x", status, 0.5, output)
    assert entry["outcome"] == "failed" and "out of time" in entry["detail"]
    assert "started" in entry["detail"]
    entry = gpu_steps.outcome("x", status, 0.5, output, cut=True)
    assert entry["outcome"] == "unfinished" and "started" in entry["detail"]
    assert gpu_steps.outcome("x", 1, 0.5, output, cut=True)["outcome"] == "failed"


def test_an_interrupt_leaves_no_process_behind(tmp_path):
    def interrupt(*_):
        raise KeyboardInterrupt

    former = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    try:
        with pytest.raises(KeyboardInterrupt):
            gpu_steps.run(["sh", "-c", f"echo $$ > {tmp_path / 'pid'}; exec sleep 30"], 20)
    finally:
        signal.signal(signal.SIGALRM, former)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_what_the_budget_cut_is_no_failure_and_runs_again(tmp_path):
    make_program(tmp_path / "tests" / "gpu_slow_test", "#!/bin/sh\nsleep 60\n")
    tests, _ = one_step("cpp", tmp_path, budget=4)
    assert [(test["name"], test["outcome"]) for test in tests] == [
        ("cpp.gpu_slow_test", "unfinished")]
    assert gpu_steps.endings(tests) == "1 unfinished"
    assert gpu_check.passed_before({"tests": tests}) == set()


def test_no_step_begins_when_the_budget_is_spent(monkeypatch, tmp_path):
    monkeypatch.setattr(gpu_check, "TEST_STEPS", {"python": lambda context: pytest.fail("it ran")})
    options = types.SimpleNamespace(steps=["python", "bench"], resume=False)
    gpu_check.run_tests(options, tmp_path / "out.json", {}, {}, gpu_steps.Clock(-1))
