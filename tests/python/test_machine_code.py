"""Hashes of the kernels' machine code: tools/machine_code.py makes and compares them, and
tessera.bench.machine_code decides with them whether a figure is stale."""

import json
import struct

import pytest
from support import ROOT, tool

from tessera.bench import machine_code as measured

machine_code = tool("machine_code")


def cubin(**functions):
    """An ELF file with a text section per function, {mangled name: instructions}."""
    sections = [("", b""), (".nv.info", b"no instructions"),
                *((f".text.{name}", code) for name, code in functions.items())]
    names = b"".join(name.encode() + b"\0" for name, _ in sections) + b".shstrtab\0"
    sections.append((".shstrtab", names))
    body, headers, name_at = b"", b"", 0
    for name, content in sections:
        headers += struct.pack("<IIQQQQIIQQ", name_at, 1, 0, 0, 64 + len(body), len(content),
                               0, 0, 1, 0)
        body += content
        name_at += len(name) + 1
    header = b"\x7fELF\x02\x01\x01".ljust(0x28, b"\0") + struct.pack("<Q", 64 + len(body))
    header += bytes(0x3A - len(header)) + struct.pack("<HHH", 64, len(sections), len(sections) - 1)
    assert len(header) == 64
    return header + body + headers


def file_of(toolkit="13.0", **rows):
    """The hashes that a build with these cubins would write."""
    return {"toolkit": toolkit,
            "kernels": {row: machine_code.instances([one]) for row, one in rows.items()}}


HALF, WHOLE = "_ZN7tessera4cuda6kernelI6__halfEEvi", "_ZN7tessera4cuda6kernelIfEEvi"
SMALL = {HALF: b"load, add, store", WHOLE: b"load, store"}


def test_the_instructions_of_each_function_are_found_under_readable_names():
    assert machine_code.text_sections(cubin(**SMALL)) == SMALL
    assert list(machine_code.instances([cubin(**SMALL)])) == ["kernel<__half>", "kernel<float>"]
    with pytest.raises(ValueError, match="ELF"):
        machine_code.text_sections(b"no such file")


def test_new_instructions_are_a_difference_and_new_names_are_not():
    before = file_of(row=cubin(**SMALL), other=cubin(f=b"nop"))
    renamed = cubin(_Z7renamedI6__halfEvv=SMALL[HALF], _Z7renamedIfEvv=SMALL[WHOLE])
    assert machine_code.differences(before, file_of(row=renamed, other=cubin(g=b"nop"))) == []
    changed = cubin(**{**SMALL, HALF: b"load, multiply, store"})
    assert machine_code.differences(before, file_of(row=changed, other=cubin(f=b"nop"))) == [
        "row: 1 of 2 kernels differ: kernel<__half>"]
    assert machine_code.differences(before, file_of(row=cubin(**SMALL), new=cubin(f=b"nop"))) == [
        "new: only in the second", "other: only in the first"]


def test_code_of_every_architecture_counts():
    both = machine_code.instances([cubin(f=b"sm_80"), cubin(f=b"sm_90")])
    assert list(both) == ["f"]
    for other in ([cubin(f=b"sm_90")], [cubin(f=b"sm_80"), cubin(f=b"sm_90 changed")]):
        assert machine_code.instances(other) != both


def test_two_kernels_of_one_name_are_refused():
    one = cubin(_ZN1a1fEv=b"1", _ZN1b1fEv=b"2")
    with pytest.raises(ValueError, match="two kernels are called f"):
        machine_code.instances([one])


@pytest.fixture
def committed(tmp_path, monkeypatch):
    path = tmp_path / "committed.json"
    monkeypatch.setattr(machine_code, "COMMITTED", path)
    path.write_text(json.dumps(file_of(row=cubin(**SMALL))))
    return path


def test_the_check_compares_builds_of_one_toolkit(tmp_path, committed, capsys):
    built, other = tmp_path / "built.json", cubin(f=b"changed")

    def check(content):
        built.write_text(json.dumps(content))
        return machine_code.main(["check", str(built)]), capsys.readouterr().out

    assert check(file_of(row=cubin(**SMALL))) == (0, "")
    status, told = check(file_of(row=other))
    assert status == 1 and told == "machine_code: row: 1 of 1 kernels differ: f\n"
    status, told = check(file_of("12.8", row=other))
    assert status == 0 and "not compared: the toolkit is 12.8" in told
    assert machine_code.main(["accept", str(built)]) == 0
    assert json.loads(committed.read_text()) == file_of("12.8", row=other)


def test_a_build_collects_the_notes_of_its_compilations(tmp_path):
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "a.cubin").write_bytes(cubin(**SMALL))
    notes = tmp_path / "rows" / "machine_code"
    objects = ["x/rows/sm90_row.cu.o", "src/kernels/cuda/prepare/select.cu.o"]
    machine_code.note(notes, objects[0], kept)
    words = ["collect", str(tmp_path), "13.0", *objects]
    with pytest.raises(SystemExit, match=r"^machine_code: prepare/select: .*select\.cu\.o"):
        machine_code.main(words)
    assert not (tmp_path / "machine_code.json").exists()
    machine_code.note(notes, objects[1], kept)
    assert machine_code.main(words) == 0
    made = machine_code.read(tmp_path / "machine_code.json")
    assert made["toolkit"] == "13.0" and list(made["kernels"]) == ["prepare/select", "sm90_row"]
    assert made["kernels"]["sm90_row"] == file_of(row=cubin(**SMALL))["kernels"]["row"]


# ---- Figures -----------------------------------------------------------------------------------

KERNELS = {"row": {"kernel<__half>": "1" * 16, "kernel<__nv_bfloat16>": "2" * 16,
                   "kernel<__half, float>": "3" * 16, "align<8>": "4" * 16},
           measured.MAKES_LISTS: {"columns_kernel": "5" * 16}}


def test_the_code_of_a_dtype_has_its_instances_and_those_without_a_dtype():
    def changed_by(instance):
        row = {**KERNELS["row"], instance: "f" * 16}
        return [dtype for dtype in measured.DTYPES if measured.code_of({"row": row}, "row", dtype)
                != measured.code_of(KERNELS, "row", dtype)]

    assert changed_by("kernel<__half>") == ["f16"]
    assert changed_by("kernel<__nv_bfloat16>") == ["bf16"]
    assert changed_by("kernel<__half, float>") == ["f16", "f32"]
    assert changed_by("kernel<__half, __nv_fp8_e4m3>") == ["f16", "e4m3"]
    assert changed_by("align<8>") == list(measured.DTYPES)
    renamed = {"row": {name.replace("kernel", "run"): code
                       for name, code in KERNELS["row"].items()}}
    assert measured.code_of(renamed, "row", "f16") == measured.code_of(KERNELS, "row", "f16")
    assert measured.code_of(KERNELS, "no such row", "f16") is None
    assert measured.code_of(None, "row", "f16") is None


def test_the_version_of_a_library_stands_for_its_code():
    row = "sm80_cublaslt_f16_bf16"

    def code(version):
        kernels = measured.with_libraries(KERNELS, {"cublaslt": version})
        return kernels, measured.code_of_call(kernels, "matmul", row, "f16")

    kernels, old = code("13.0.2")
    later, new = code("13.1.0")
    assert old and new and old != new
    assert code("") == (KERNELS, None)
    assert measured.stale([record("matmul", row, old)], kernels) == []
    assert len(measured.stale([record("matmul", row, old)], later)) == 1
    # A source tree says nothing of the library.
    assert measured.stale([record("matmul", row, old)], KERNELS) == []
    assert len(measured.stale([record("matmul", row, None)], KERNELS)) == 1


def record(op, row, code, dtype="f16"):
    return {"op": op, "params": {"dtype": dtype}, "ours": {"row": row, "machine_code": code}}


def test_figures_of_changed_or_unknown_kernels_are_stale():
    own = measured.code_of(KERNELS, "row", "f16")
    lists = measured.code_of(KERNELS, measured.MAKES_LISTS, "f16")
    fresh = [record("attention", "row", own), record("list_blocks", None, lists),
             record("top_k_blocks", None, lists),
             {**record("matmul", None, None), "ours": {"unavailable": "no kernel"}}]
    old = [record("attention", "row", "0" * 16), record("attention", "row", own, "bf16"),
           record("attention", "gone", own), record("list_blocks", None, own)]
    unknown = record("attention", "row", None)
    assert measured.stale([*fresh, *old, unknown], KERNELS) == [*old, unknown]
    assert measured.stale(old, None) == []
    assert measured.in_words(fresh, KERNELS) == []
    for records, words in (
            ([*fresh, *old], "4 of 8 cases are stale: their kernels have changed since"),
            ([fresh[0], old[0]], "1 of 2 cases is stale: its kernel has changed since"),
            ([unknown], "1 of 1 case is stale: its machine code is unknown"),
            ([old[0], unknown], "2 of 2 cases are stale: their kernels have changed since or their "
                                "machine code is unknown")):
        assert measured.in_words(records, KERNELS) == [words]


def test_the_committed_kernels_are_read():
    kernels = measured.committed(ROOT)
    assert measured.MAKES_LISTS in kernels and any("attention" in row for row in kernels)
    for row, instances in kernels.items():
        assert any(measured.code_of(kernels, row, dtype) for dtype in measured.DTYPES), row
        assert all(len(code) == 16 for code in instances.values())


def test_the_installed_kernels_lie_beside_the_library(tmp_path, monkeypatch):
    from tessera import _ffi

    monkeypatch.setattr(_ffi, "package_folder", tmp_path)
    monkeypatch.setattr(_ffi, "cublaslt_version", lambda: "")
    assert measured.installed() is None  # a CPU build
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "machine_code.json").write_text(
        json.dumps({"toolkit": "13.0", "kernels": KERNELS}))
    assert measured.installed() == KERNELS
