"""The summary that a run of the Python tests prints."""

import shutil
import subprocess
import sys
from pathlib import Path


def run_pytest(folder: Path, tests: str) -> str:
    shutil.copy(Path(__file__).with_name("conftest.py"), folder)
    (folder / "test_sample.py").write_text(tests)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(folder)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=folder)
    return done.stdout


def test_each_reason_for_skipping_is_printed_once(tmp_path):
    said = run_pytest(tmp_path, """
import pytest

@pytest.mark.skipif(True, reason="no GPU")
@pytest.mark.parametrize("i", range(3))
def test_marked(i): pass

@pytest.mark.skip(reason="no GPU")
def test_marked_elsewhere(): pass

def test_inside(): pytest.skip("no browser")

def test_passes(): pass
""")
    lines = [line for line in said.splitlines() if line.startswith("skipped")]
    assert lines == ["skipped 4: no GPU", "skipped 1: no browser"], said


def test_nothing_is_printed_without_skips(tmp_path):
    said = run_pytest(tmp_path, "def test_passes(): pass\n")
    assert "1 passed" in said and "skipped" not in said


def test_a_module_that_is_skipped_as_a_whole_counts_once(tmp_path):
    said = run_pytest(tmp_path, "import pytest\npytest.importorskip('absent_module', "
                                "reason='absent_module is not installed')\n")
    assert "skipped 1: absent_module is not installed" in said.splitlines(), said
