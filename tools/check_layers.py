#!/usr/bin/env python3
"""Checks includes: layers include only lower layers, CUDA stays in src/kernels/cuda, and the kernel
families there do not include each other.

  check_layers.py [ROOT]        check a tree (default: the one that this script is in)
  check_layers.py --self-test   prove that planted violations are found
"""

import pathlib
import re
import sys
import tempfile

# The planning code of families is compiled in every build: files of these names below src/kernels,
# and those in src/kernels itself.
PLANS = "src/kernels/**/plan"
PLAN_NAMES = ("plan", "refuse", "cost", "layout", "order", "walk")
PLAN_FILES = {"rows.hpp", *(f"{name}.{end}" for name in PLAN_NAMES for end in ("cpp", "hpp"))}
FAMILY = ["src/kernels/cost.hpp", "src/kernels/family.hpp", "src/kernels/reasons.hpp",
          "src/kernels/row.hpp"]

# {folder: (folders and files of this tree that it may include, external headers that it may use
# besides the standard library's)}. The longest folder that matches a file decides.
RULES = {
    "include/tessera": ([], []),
    "src/core": ([], ["posix"]),
    "src/problem": (["src/core"], []),
    "src/walk": (["src/core", "src/problem"], []),
    "src/sparse": (["src/core"], ["posix"]),
    PLANS: (["src/core", "src/problem", "src/walk", "src/kernels/families.hpp", PLANS, *FAMILY],
            []),
    "src/select": (["src/core", "src/problem", "src/walk", "src/kernels/families.hpp", *FAMILY],
                   []),
    "src/kernels/cpu": (["src/core", "src/problem", "src/walk", "src/sparse", PLANS, *FAMILY],
                        ["posix", "highway", "openmp"]),
    "src/kernels/cuda": (["src/core", "src/problem", "src/walk", PLANS, *FAMILY],
                         ["cuda", "cutlass"]),
    # Code that is not specific to an architecture.
    "src/kernels/cuda/common": (
        ["src/core", "src/walk/launch_count.hpp", "src/walk/walk.hpp", *FAMILY], ["cuda"]),
    "src/kernels/cuda/cublaslt": (
        ["src/core", "src/problem", "src/kernels/cuda/common", PLANS, *FAMILY], ["cuda", "posix"]),
    "src/kernels/cuda/attention": (
        ["src/core", "src/problem", "src/walk", "src/kernels/cuda/common",
         "src/kernels/cuda/prepare/compose_mask.hpp"], ["cuda"]),
    "src/api": (["src"], ["posix"]),
    "src/ffi": ([], ["ffi", "signatures"]),
    "apps": (["tests/support"], ["posix", "cli", "json"]),
    "tests/support": ([], []),
    "tests/gpu": (["src", "tests"], ["cuda", "gtest", "json"]),
    "tests/cublaslt": (["src", "tests"], ["cuda", "posix", "gtest"]),
    "tests/nvtx": (["tests"], ["cuda", "gtest"]),
    "tests/install": ([], []),
    "tests": (["src", "tests", "apps"], ["posix", "gtest", "json", "openmp"]),
    # Ceilings are measured with the building blocks of the kernels.
    "bench/ceilings": (["src/core", "src/kernels/cuda", "bench"], ["posix", "cuda", "cutlass"]),
    "bench": (["src/core", "tests/support", "bench"], ["posix", "cuda", "json", "openmp"]),
}

# Families of which others use parts, as they have no folder of building blocks like sm90/tile.
SHARED_FAMILIES = {"src/kernels/cuda/sm80/attention", "src/kernels/cuda/sm90/attention",
                   "src/kernels/cuda/spgemm"}

OUTSIDE = {
    "posix": r"(unistd|sched|pthread|fcntl|dlfcn|poll|signal|spawn|termios|sys/.*)\.h",
    "highway": r"hwy/.*",
    "openmp": r"omp\.h",
    "cuda": r"cuda.*|cublas.*|cusparse.*|nvtx3/.*|nvml\.h",
    "cutlass": r"(cute|cutlass)/.*",
    "ffi": r"(tvm|dlpack)/.*",
    "signatures": r"generated/signatures\.hpp",  # written by tools/signatures_header.py
    "cli": r"CLI/.*",
    "json": r"nlohmann/.*",
    "gtest": r"(gtest|gmock)/.*",
    "blas": r"cblas\.h",
    # Names of standard headers have neither a dot nor a slash.
    "standard": r"[a-z0-9_]+",
}

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)
SUFFIXES = {".hpp", ".h", ".cpp", ".cu", ".cuh"}


def rule_of(path):
    folder, _, name = path.rpartition("/")
    if folder == "src/kernels" or (path.startswith("src/kernels/") and name in PLAN_FILES):
        return PLANS
    fitting = [folder for folder in RULES if path.startswith(folder + "/")]
    return max(fitting, key=len) if fitting else None


def kind_of(header):
    for kind, pattern in OUTSIDE.items():
        if re.fullmatch(pattern, header):
            return kind
    return "unknown"


def family_of(root, path):
    """The folder of the GPU kernel family that a file belongs to; None if it belongs to none."""
    folder = path.rpartition("/")[0]
    is_family = folder.startswith("src/kernels/cuda/") and (root / folder / "rows.hpp").is_file()
    return folder if is_family else None


def crosses_families(root, name, header):
    """Whether a file of one family includes a header of another that is not shared."""
    mine, other = family_of(root, name), family_of(root, header)
    return mine and other and mine != other and other not in SHARED_FAMILIES


def refusal(root, folder, quote, header):
    """Why files of a folder may not include a header; None if they may."""
    inner, outer = RULES[folder]
    if quote == "<":
        if header.startswith("tessera/"):
            return None
        kind = kind_of(header)
        if kind == "standard" or kind in outer:
            return None
        return f"{folder} may not use {kind} headers"
    if not (root / header).is_file():
        return "quoted includes start at the root of the tree"
    # Files may include all of the folder that their rule names.
    if any(header == allowed or header.startswith(allowed + "/") for allowed in [folder, *inner]):
        return None
    if PLANS in inner and rule_of(header) == PLANS and header.count("/") != 2:
        return None
    if folder != "include/tessera" and header.startswith("include/"):
        return "public headers are included as <tessera/...>"
    return f"{folder} may not include {header.rsplit('/', 1)[0]}"


def violations(root):
    found = []
    for top in ("include", "src", "apps", "tests", "bench"):
        for path in sorted((root / top).rglob("*")):
            if path.suffix not in SUFFIXES:
                continue
            name = path.relative_to(root).as_posix()
            folder = rule_of(name)
            if folder is None:
                found.append(f"{name}: no layer has this folder")
                continue
            text = path.read_text()
            for match in INCLUDE.finditer(text):
                reason = refusal(root, folder, *match.groups())
                if not reason and crosses_families(root, name, match.group(2)):
                    reason = "families share code outside of their folders"
                if reason:
                    line = text.count("\n", 0, match.start(2)) + 1
                    found.append(f"{name}:{line}: {match.group(2)}: {reason}")
    return found


def self_test():
    good = {
        "include/tessera/a.hpp": "#include <vector>\n#include <tessera/b.hpp>\n",
        "include/tessera/b.hpp": "#include <cstdint>\n",
        "src/core/a.hpp": "#include <tessera/a.hpp>\n",
        "src/problem/a.hpp": '#include "src/core/a.hpp"\n',
        "src/kernels/cpu/a.cpp": '#include <hwy/highway.h>\n#include "src/problem/a.hpp"\n',
        "src/kernels/cuda/a.cuh": '#include <cute/arch/mma_sm90.hpp>\n#include <cuda_fp16.h>\n',
        "src/kernels/family.hpp": "",
        "src/kernels/families.hpp": '#include "src/kernels/family.hpp"\n',
        "src/kernels/families.cpp": '#include "src/kernels/cuda/a/plan.hpp"\n',
        "src/kernels/cuda/a/plan.hpp": '#include "src/kernels/family.hpp"\n',
        "src/kernels/cuda/a/launch.cuh": '#include "src/kernels/cuda/a/plan.hpp"\n',
        "src/kernels/cuda/a/rows.hpp": "",
        "src/kernels/cuda/d/rows.hpp": "",
        "src/kernels/cuda/d/plan.hpp": '#include "src/kernels/cuda/c/layout.hpp"\n',
        "src/kernels/cuda/c/layout.hpp": "",
        "src/select/a.cpp": '#include "src/kernels/families.hpp"\n',
        "src/api/a.cpp": '#include "src/kernels/cpu/a.hpp"\n',
        "src/kernels/cpu/a.hpp": "",
        "apps/tessera/a.cpp": '#include <CLI/CLI.hpp>\n#include "tests/support/a.hpp"\n',
        "tests/support/a.hpp": "#include <tessera/a.hpp>\n",
    }
    planted = {
        "include/tessera/c.hpp": "#include <cuda_runtime.h>\n",
        "include/tessera/d.hpp": '#include "src/core/a.hpp"\n',
        "src/core/b.cpp": '#include "src/problem/a.hpp"\n',
        "src/problem/b.cpp": "#include <cuda_runtime_api.h>\n",
        "src/sparse/b.cpp": '#include "src/problem/a.hpp"\n',
        "src/kernels/cpu/b.cpp": '  #  include "src/kernels/cuda/a.cuh"\n',
        "src/kernels/cpu/c.cpp": "#include <cutlass/version.h>\n",
        "src/kernels/cpu/d.cpp": '#include "a.hpp"\n',
        "src/kernels/cuda/b.cuh": '#include "src/kernels/cpu/a.hpp"\n',
        "src/kernels/cuda/b/plan.cpp": "#include <cuda_runtime.h>\n",
        "src/kernels/cuda/common/b.cuh": '#include "src/walk/a.hpp"\n',
        "src/kernels/cuda/attention/b.cuh": '#include "src/kernels/cuda/a.cuh"\n',
        "src/kernels/cuda/c/plan.cpp": '#include "src/kernels/cuda/a.cuh"\n',
        "src/kernels/cuda/d/plan.cpp": '#include "src/kernels/cuda/a/plan.hpp"\n',
        "src/select/b.cpp": '#include "src/kernels/cuda/a/plan.hpp"\n',
        "src/api/b.cpp": "#include <cuda_runtime.h>\n",
        "apps/tessera/b.cpp": '#include "src/problem/a.hpp"\n',
        "tests/support/b.hpp": '#include "src/core/a.hpp"\n',
        "tests/unit/b.cpp": "#include <cute/tensor.hpp>\n",
        "src/new/b.cpp": "\n",
    }
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)

        def write(files):
            for name, text in files.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(text)

        write(good)
        assert violations(root) == [], violations(root)
        write(planted)
        named = [line.split(":")[0] for line in violations(root)]
        assert sorted(named) == sorted(planted), set(planted) ^ set(named)
    print("check_layers: self-test passed")
    return 0


def main(arguments):
    if arguments == ["--self-test"]:
        return self_test()
    root = pathlib.Path(arguments[0] if arguments else pathlib.Path(__file__).parents[1]).resolve()
    found = violations(root)
    for line in found:
        print(line, file=sys.stderr)
    if not found:
        print("check_layers: all includes are allowed")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
