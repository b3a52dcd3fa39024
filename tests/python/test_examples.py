"""The programs in examples/, run as a user runs them. Each checks its own result and fails if it is
wrong. The test of the installation runs the C++ example."""

import importlib.util
import os
import re
import subprocess
import sys
import xml.etree.ElementTree
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def run(name, *arguments, needs=(), cwd=None):
    for module in needs:
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed")
    # With one thread, these small programs stay fast on a busy machine.
    return subprocess.run([sys.executable, EXAMPLES / name, *map(str, arguments)], check=False,
                          cwd=cwd, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True,
                          text=True)


def says(done, *patterns):
    """Checks that a run succeeded and printed a line for each pattern, in order."""
    assert done.returncode == 0, done.stdout + done.stderr
    lines = iter(done.stdout.splitlines())
    for pattern in patterns:
        assert any(re.search(pattern, line) for line in lines), f"{pattern}\n{done.stdout}"


TORCH, TRANSFORMERS = ("torch",), ("torch", "transformers")
MS = r" +[\d.]+ ms"


def test_long_context():
    # The last block is ragged.
    says(run("long_context.py", "--length", 1000, "--heads", 2, needs=TORCH),
         r"^1000 tokens, 2 heads of 64, \w+ on \w", r"visits \d+\.\d% .* lists take [\d,]+ bytes",
         "tessera +torch, dense", f"^forward{MS}{MS} +[\\d.]+x", "^with gradients",
         r"error beside float64.*: out \d\.\de-\d+")


def test_train_block_mask():
    says(run("train_block_mask.py", "--steps", 12, "--seeds", 2, "--length", 100, "--batch", 4,
             "--width", 64, "--block", 16, needs=TORCH),
         r"^2 layers of 64, 4 texts of 100 words a step, \w+ on \w", "^blocks of 16: a word sees",
         r"^seed 0, block mask +12: +\d\.\d+ +[\d.]+ ms a step", "^seed 0, element mask",
         "^seed 1, block mask", "^seed 1, element mask",
         r"^mean loss .*: \d\.\d+ with the block mask, \d\.\d+ with the element mask")


def test_prune_mlp():
    done = run("prune_mlp.py", "--steps", 60, needs=TORCH)
    says(done, "^MLP 512-512-512-10 on ", "loss +accuracy", f"^dense .*%.*{MS}",
         r"^pruned +\d\.\d+ +\d+\.\d%", f"^fine-tuned .*%.*{MS}")
    weights = [int(w.replace(",", "")) for w in re.findall(r"% +([\d,]+)", done.stdout)[:3]]
    assert weights[1] == weights[2] < 0.12 * weights[0]
    found = re.search(r"(\d+)% of the blocks kept .* a sensor that matters", done.stdout)
    assert int(found[1]) >= 90


def test_transformers_model():
    says(run("transformers_model.py", "--length", 64, "--words", 4, needs=TRANSFORMERS),
         "^gemma2, .* two prompts of 64 tokens", f"^prompt{MS}{MS}", f"^and 4 more tokens{MS}{MS}",
         "difference of the logits", r"^\d of 8 generated tokens are the same")


def test_serve_paged():
    done = run("serve_paged.py", "--length", 200, "--requests", 5, "--words", 70, needs=TORCH)
    state = r": 0 requests wait, 0 run, 10 pages are free, [1-9] evicted, [\d,]+ tokens/s"
    says(done, r"^5 prompts, 10 pages of 64, [\w.]+ on \w", f"^dense{state}", f"^lists{state}",
         *5 * [r"^logits after \d+ tokens beside float64: error \d\.\de-\d+"],
         r"^attention with lists beside float64: error \d\.\de-\d+")


def test_matrix_market(tmp_path):
    done = run("matrix_market.py", "--picture", "grid.svg", "--device", "cpu", cwd=tmp_path)
    says(done, "^1728 x 1728, 44,100 elements", "block +stored +fill", r"^ +3 +4,900 +100\.0%",
         "chosen", "largest error",
         "picture of the pattern: grid.svg")
    assert done.stdout.count("chosen") == 1
    picture = xml.etree.ElementTree.parse(tmp_path / "grid.svg").getroot()
    assert picture.get("viewBox") == "0 0 247 247"
    assert "M0 0h1v1h-1z" in "".join(path.get("d", "") for path in picture)


def test_matrix_market_of_a_user(tmp_path):
    # 7 x 5 is a multiple only of blocks of 1.
    path = tmp_path / "small.mtx"
    path.write_text("%%MatrixMarket matrix coordinate pattern general\n7 5 3\n1 1\n2 4\n7 5\n")
    says(run("matrix_market.py", path, "--columns", 3, "--device", "cpu", cwd=tmp_path),
         "^7 x 5, 3 elements", "chosen", "largest error")


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["long_context.py", "train_block_mask.py", "prune_mlp.py",
                                  "transformers_model.py", "matrix_market.py", "serve_paged.py"])
def test_on_a_gpu(torch_on_gpu, name, tmp_path):
    torch = torch_on_gpu
    if name == "serve_paged.py" and torch.cuda.get_device_capability()[0] < 8:
        pytest.skip("pages need compute capability 8.0")
    needs = TRANSFORMERS if name == "transformers_model.py" else ()
    says(run(name, "--device", "cuda", needs=needs, cwd=tmp_path),
         re.escape(torch.cuda.get_device_name()))


@pytest.mark.parametrize("name, arguments, message", [
    ("long_context.py", ["--length", "-4"],
     "--length: expected a whole number from 2 on, got '-4'"),
    ("long_context.py", ["--block", "20", "--device", "cpu"],
     "--block: expected a multiple of 16 from 16 on, got '20'"),
    ("train_block_mask.py", ["--width", "100"],
     "--width: expected a multiple of 64 from 64 on, got '100'"),
    ("prune_mlp.py", ["--density", "nan"],
     "--density: expected a number between 0 and 1, got 'nan'"),
    ("matrix_market.py", ["--colour", "red"], "unrecognized arguments: --colour"),
    ("matrix_market.py", ["absent.mtx"], "absent.mtx: expected a readable file"),
    ("matrix_market.py", ["--picture", "x.png"], "expected a name that ends in .svg, got x.png"),
])
def test_bad_arguments_are_refused_in_one_line(name, arguments, message, tmp_path):
    needs = () if name == "matrix_market.py" else TORCH
    done = run(name, *arguments, needs=needs, cwd=tmp_path)
    assert done.returncode != 0 and done.stdout == ""
    assert re.fullmatch(rf"{name}: error: .*\n", done.stderr), done.stderr
    assert message in done.stderr


def test_every_example_is_in_the_readme():
    text = (EXAMPLES / "README.md").read_text()
    for path in [*EXAMPLES.glob("*.py"), EXAMPLES / "cpp"]:
        assert path.name in text, path.name
