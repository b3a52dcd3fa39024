#!/usr/bin/env python3
"""Runs Nsight Compute on our kernels of one case and writes an extract beside the results:
bench/results/profiles/CARD-CASE.json, and the same as text. docs/profiling.md says how to read it.

  tools/ncu_profile.py "attention --q-length 16384 --causal"
  tools/ncu_profile.py bench/workloads/hopper_products.json:3
  tools/ncu_profile.py "bench/workloads/check.json:matmul 8192x8192x8192 bf16"
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from check_results import ROOT, bench_module, profile_problems
from gpu_check import card_name
from gpu_steps import CUDA_BIN, run

# Of the kernels of one call, ours. Made of lists, copies and the like, there may be a few.
KERNELS = "regex:.*tessera::cuda::.*"
MOST_KERNELS = 16
FORBIDDEN = "ERR_NVGPUCTRPERM"
UNKNOWN = re.compile(r"==ERROR== .*metric", re.IGNORECASE)
SECONDS = 900


class Refused(RuntimeError):
    """Why there is no profile."""


def ncu_command(options, counters, log):
    return [options.ncu, "--csv", "--page", "raw", "--print-units", "base", "--log-file", log,
            "--profile-from-start", "off", "--target-processes", "all",
            "--kernel-name-base", "demangled", "--kernel-name", KERNELS,
            "--launch-count", MOST_KERNELS, "--cache-control", "all",
            "--clock-control", options.clocks, "--metrics", ",".join(counters),
            sys.executable, "-m", "tessera.bench.one_call",
            json.dumps({"op": options.case.op, "params": options.case.params})]


def profile_once(options, counters, folder):
    """(exit status, what ncu said, what the call said)."""
    log = Path(folder) / "ncu.csv"
    log.unlink(missing_ok=True)
    environment = dict(os.environ, LC_ALL="C", PYTHONDONTWRITEBYTECODE="1")
    paths = [str(Path(path).resolve()) for path in options.python_path]
    paths.append(os.environ.get("PYTHONPATH", ""))
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    status, output = run(ncu_command(options, counters, log), SECONDS, environment)
    said = log.read_text() if log.exists() else ""
    return status, said, output


def unknown_counters(said, counters):
    """Those that ncu complains of. It says regular expressions, of whole names or of the part
    before the first dot."""
    unknown = set()
    for line in said.splitlines():
        if UNKNOWN.search(line):
            plain = line.replace("\\", "")
            whole = [name for name in counters
                     if re.search(rf"\b{re.escape(name)}(?![\w.])", plain)]
            unknown.update(whole or [name for name in counters if re.search(
                rf"\b{re.escape(name.partition('.')[0])}\b", plain)])
    return [name for name in counters if name in unknown]


def measured(options):
    """(ncu's table, what the call said of itself): without the counters that this ncu or this card
    does not know."""
    counters = list(dict.fromkeys(bench_module("profiles").counters()))
    with tempfile.TemporaryDirectory() as folder:
        while counters:
            status, said, output = profile_once(options, counters, folder)
            everything = said + output
            if FORBIDDEN in everything:
                raise Refused(f"{FORBIDDEN}: the driver gives performance counters to "
                              "administrators only: run as root, or set the driver's option "
                              "NVreg_RestrictProfilingToAdminUsers=0")
            unknown = unknown_counters(everything, counters)
            if not unknown:
                break
            print(f"ncu_profile: without {', '.join(unknown)}: not known here", flush=True)
            counters = [name for name in counters if name not in unknown]
    if not counters:
        raise Refused("ncu knows none of the counters")
    if status is None:
        raise Refused(f"ncu did not end within {SECONDS} s")
    if "No kernels were profiled" in everything:
        raise Refused(f"ncu saw no kernel that matches {KERNELS} {ending(output)}")
    if status != 0:
        raise Refused(f"ncu ended with exit status {status} {ending(everything)}")
    calls = [line for line in output.splitlines() if line.startswith("{")]
    if not calls:
        raise Refused(f"the profiled call said nothing of itself {ending(output)}")
    return said, json.loads(calls[-1])


def ending(text):
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return "(" + (" / ".join(lines[-4:])[:600] or "no output") + ")"


def version_of(ncu):
    _, output = run([ncu, "--version"], 60)
    found = re.search(r"Version (\S+)", output)
    return f"ncu {found[1]}" if found else "ncu"


def make_profile(options):
    """The extract, whole."""
    profiles = bench_module("profiles")
    table, call = measured(options)
    found = profiles.extract_of(profiles.read_raw(table))
    seconds = (found["duration_us"] or 0) * 1e-6
    flops = call["useful_flops"]
    return {"schema": 1, "date": bench_module("files").timestamp(), "gpu": call["gpu"],
            "label": options.case.label, "op": options.case.op, "params": options.case.params,
            "row": call["row"], "machine_code": call["machine_code"],
            "commit": options.commit or bench_module("tree").commit(str(ROOT)),
            "ncu": version_of(options.ncu), "clocks": options.clocks, **found,
            "useful_tflops": flops / seconds * 1e-12 if seconds and flops else None}


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0], epilog=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", help="an operation with its options, or a case of a workload")
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results" / "profiles")
    parser.add_argument("--ncu", help=f"the program [on PATH, or in {CUDA_BIN}]")
    parser.add_argument("--clocks", choices=("none", "base"), default="none",
                        help="none leaves the card as it is; base lets ncu lock it [none]")
    parser.add_argument("--python-path", action="append", default=[], metavar="DIR",
                        help="a folder with the tessera package; may come again")
    parser.add_argument("--commit", help="of the sources, where git cannot say")
    options = parser.parse_args(arguments)
    try:
        options.case = bench_module("options").parse_case(options.case)
    except ValueError as error:
        raise Refused(f"CASE: {error}") from None
    given = options.ncu or "ncu"
    options.ncu = shutil.which(given) or shutil.which(given, path=CUDA_BIN)
    if options.ncu is None:
        raise Refused(f"no {given} on PATH or in {CUDA_BIN}: it is part of Nsight Compute")
    return options


def main(arguments=None):
    profiles = bench_module("profiles")
    try:
        options = parse(arguments)
        card = card_name(dict(os.environ))
        if card is None:
            raise Refused("there is no GPU here (nvidia-smi shows none)")
        print(f"ncu_profile: {options.case.label}", flush=True)
        profile = make_profile(options)
    except (Refused, profiles.NoProfile, OSError, subprocess.SubprocessError) as error:
        print(f"ncu_profile: {error}", file=sys.stderr)
        return 2
    found = profile_problems(profile)
    for text in found:
        print(f"ncu_profile: schema: {text}", file=sys.stderr)
    if found:
        return 1
    options.out.mkdir(parents=True, exist_ok=True)
    stem = profiles.file_stem(card, options.case.label)
    text = profiles.text_of(profile)
    bench_module("files").write_json(options.out / f"{stem}.json", profile)
    (options.out / f"{stem}.txt").write_text(text, encoding="utf-8")
    print(text + f"ncu_profile: {options.out / stem}.json")
    return 0


if __name__ == "__main__":
    sys.exit(main())
