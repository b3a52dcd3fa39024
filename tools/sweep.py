#!/usr/bin/env python3
"""Compiles tiles that a family of kernels might have as rows, in a copy of the tree, and says which
fit: those that spill, serialise wgmma or need too much shared memory do not.

  sweep.py FAMILY                the candidates of bench/sweeps/FAMILY.json
  sweep.py FAMILY --only 128x    those whose name has this; written to --out alone
  sweep.py FAMILY --times FILE   adds what `tessera.tune --json` measured of them on a card

The outcome goes to bench/results/sweeps/FAMILY.json. The copy is left with the rows that fit, so
that a package built from it times them; the last lines printed say how.
"""

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys

from check_ptxas import SERIALISED, offences
from check_results import bench_module

ROOT = pathlib.Path(__file__).resolve().parent.parent
TABLE = "src/kernels/cuda/sm90/{family}/rows.hpp"
FIELDS = ("m", "n", "k", "stages", "warpgroups", "v", "row_groups", "kv_splits")
ROW = """    {{.name = "{name}",
     .tile = {{{tile}}},
     .dtypes = core::dtypes({{DType::f16, DType::bf16}}),
     .why = "candidate of a sweep",
     .measured = ""}},
"""


def name_of(family, tile):
    more = "".join(f"_{field[0]}{tile[field]}" for field in FIELDS[3:] if field in tile)
    return f"sm90_{family}_try_" + "x".join(str(tile[field]) for field in "mnk") + more


def read_candidates(path, only=""):
    """(operation, {name: tile})"""
    sweep = bench_module("files").read_json(path)
    try:
        wanted = re.compile(only)
    except re.error as error:
        raise SystemExit(f"sweep: --only: {only!r} is no regular expression: {error}") from None
    tiles = {}
    for tile in sweep["tiles"]:
        unknown = [field for field in tile if field not in FIELDS]
        if unknown or not set("mnk") < set(tile):
            raise SystemExit(f"sweep: {path}: tile {tile}: expected m, n, k and of "
                             f"{', '.join(FIELDS[3:])}")
        tiles[name_of(sweep["family"], tile)] = tile
    chosen = {name: tile for name, tile in tiles.items() if wanted.search(name)}
    if not chosen:
        raise SystemExit(f"sweep: --only: {only!r} is in none of {', '.join(tiles)}")
    return sweep["op"], chosen


def copy_tree(target):
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True,
                           check=True).stdout.split("\0")
    for name in filter(None, names):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)  # times too: nothing is built again for it
    if not os.path.lexists(target / ".venv"):
        (target / ".venv").symlink_to(ROOT / ".venv")  # which holds CUTLASS' headers


def append_rows(tree, family, tiles):
    """The tree's table and these rows after it."""
    table = TABLE.format(family=family)
    source = (ROOT / table).read_text(encoding="utf-8")
    at = source.rindex("};\n\n}  // namespace")
    rows = "".join(ROW.format(name=name, tile=", ".join(
        f".{field} = {tile[field]}" for field in FIELDS if field in tile))
        for name, tile in tiles.items())
    (tree / table).write_text(source[:at] + rows + source[at:], encoding="utf-8")


def run(*command):
    return subprocess.run([str(word) for word in command], check=False, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True)


def configure(tree, build):
    done = run("cmake", "-G", "Ninja", "-S", tree, "-B", build, "-DCMAKE_BUILD_TYPE=Release",
               "-DTESSERA_CUDA=ON", "-DTESSERA_KERNELS=_try_", "-DTESSERA_DEVELOPER=OFF")
    if done.returncode:
        raise SystemExit(f"sweep: cannot configure the copy:\n{done.stdout[-2000:]}")


def first_error(output):
    """What the compiler did not like, with the assertion that did not hold."""
    error = re.search(r"^(.+)\((\d+)\): error:?\s*(.*)$", output, re.MULTILINE)
    if not error:
        return output.strip().splitlines()[-1] if output.strip() else "no word of why"
    path, line, message = pathlib.Path(error[1]), int(error[2]), error[3]
    if "static assertion" in message and path.is_file():
        held = path.read_text(encoding="utf-8").splitlines()[line - 1].strip()
        message = f"{path.name}: {held}"
    return message


def compile_row(build, name):
    """{registers, fits, reason}"""
    log = build / "rows" / "ptxas" / f"{name}.cu.o.ptxas"
    log.unlink(missing_ok=True)
    stem = f"CMakeFiles/tessera_cuda.dir/rows/{name}.cu.o"
    (build / stem).unlink(missing_ok=True)
    done = run("cmake", "--build", build, "--target", stem)
    report = log.read_text() if log.exists() else ""
    registers = [int(count) for count in re.findall(r"Used (\d+) registers", report)]
    bad = ["wgmma serialised" if SERIALISED.search(line) else line.split(": ", 1)[1]
           for line in offences(report)]
    if done.returncode and not bad:
        bad = [first_error(done.stdout)]
    return {"fits": not bad, "registers": max(registers, default=None),
            "reason": "; ".join(dict.fromkeys(bad)) or None}


def sweep(family, arguments):
    op, tiles = read_candidates(ROOT / "bench" / "sweeps" / f"{family}.json", arguments.only)
    work = pathlib.Path(arguments.work or ROOT / "build" / "sweep" / family).resolve()
    tree, build = work / "tree", work / "build"
    copy_tree(tree)
    append_rows(tree, family, tiles)
    configure(tree, build)
    rows = []
    for number, (name, tile) in enumerate(tiles.items(), 1):
        outcome = compile_row(build, name)
        rows.append({"row": name, "tile": tile, **outcome})
        said = outcome["reason"] or f"fits, {outcome['registers']} registers"
        print(f"[{number}/{len(tiles)}] {name}: {said}", flush=True)
    append_rows(tree, family, {one["row"]: one["tile"] for one in rows if one["fits"]})
    nvcc = re.findall(r"CMAKE_CUDA_COMPILER_VERSION \"(.*)\"", "".join(
        path.read_text() for path in build.glob("CMakeFiles/*/CMakeCUDACompiler.cmake")))
    print(f"To time them on a card, with the package built from {tree}\n"
          f"  pip install {tree} --config-settings=cmake.define.TESSERA_CUDA=ON "
          f"--config-settings=cmake.define.TESSERA_KERNELS=sm90_{family}\n"
          f"  python -m tessera.tune --workload bench/sweeps/{family}.json --rows _try_ --dry-run "
          f"--json > times.json\n  tools/sweep.py {family} --times times.json")
    return {"family": family, "op": op, "date": bench_module("files").timestamp(),
            "cuda": nvcc[0] if nvcc else None, "rows": rows, "device": None, "problems": []}


def outcome_lines(outcome):
    """The outcome as Markdown, for the documentation."""
    family, label = outcome["family"], bench_module("cases").label
    where = [outcome["device"], "bursts"] if outcome["problems"] else ["compiled only"]
    where += [f"CUDA {outcome['cuda']}", outcome["date"][:10]]

    def short(row):
        return f"`{row.removeprefix(f'sm90_{family}_').removeprefix('try_')}`"

    lines = [f"*{', '.join(where)}*", "",
             "| tile | registers, or why it does not fit |", "|---|---|"]
    lines += [f"| {short(row['row'])} | {row['registers'] if row['fits'] else row['reason']} |"
              for row in outcome["rows"]]
    if outcome["problems"]:
        lines += ["", "| problem | the table's choice | TFLOPS | best candidates, TFLOPS |",
                  "|---|---|---:|---|"]
    for problem in outcome["problems"]:
        timed = sorted((row for row in problem["rows"] if row.get("ms")), key=lambda row: row["ms"])
        ours = [row for row in timed if "_try_" not in row["row"]][:1]
        tried = [row for row in timed if "_try_" in row["row"]][:3]
        lines.append(" | ".join(
            [f"| {label(problem['op'], problem['params'])}",
             short(ours[0]["row"]) if ours else "",
             f"{ours[0]['tflops']:.0f}" if ours else "",
             ", ".join(f"{short(row['row'])} {row['tflops']:.0f}" for row in tried)]) + " |")
    return lines


def add_times(out, path):
    """The outcome with the times that tessera.tune took of it."""
    read, fields = bench_module("files").read_json, ("device", "state", "problems")
    outcome, times = read(out), read(path)
    if not isinstance(times, dict) or not set(fields) <= set(times):
        raise SystemExit(f"sweep: --times: expected what tessera.tune --json prints, got {path}")
    return {**outcome, **{field: times[field] for field in fields}}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("family", help="a file of bench/sweeps")
    parser.add_argument("--only", default="", metavar="REGEX", help="names of candidates")
    parser.add_argument("--work", help="where the copy lies [build/sweep/FAMILY]")
    parser.add_argument("--out", help="[bench/results/sweeps/FAMILY.json]")
    parser.add_argument("--times", metavar="FILE", help="the output of tessera.tune --json")
    arguments = parser.parse_args()
    out = pathlib.Path(arguments.out
                       or ROOT / "bench" / "results" / "sweeps" / f"{arguments.family}.json")
    if arguments.times:
        outcome = add_times(out, arguments.times)
    else:
        outcome = sweep(arguments.family, arguments)
    written = not arguments.only or arguments.out or arguments.times  # a part replaces no whole
    if written:
        out.parent.mkdir(parents=True, exist_ok=True)
        bench_module("files").write_json(out, outcome)
    fits = [one["fits"] for one in outcome["rows"]]
    print(f"{out if written else 'a part, not written'}: {sum(fits)} of {len(fits)} fit, "
          f"{len(outcome['problems'])} problems timed")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ValueError as error:  # a file that cannot be read
        sys.exit(f"sweep: {error}")
