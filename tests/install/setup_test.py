"""scripts/setup.sh and scripts/venv.sh, with stand-ins for the programs of the system."""

import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TOOLS = "sh bash env cat cut df dirname echo grep id mktemp printf rm tail tr".split()


class Scripts(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)
        self.bin = self.folder / "bin"
        self.bin.mkdir()
        for name in TOOLS:
            (self.bin / name).symlink_to(shutil.which(name))
        (self.folder / "scripts").mkdir()
        for name in ("setup.sh", "venv.sh"):
            shutil.copy(ROOT / "scripts" / name, self.folder / "scripts")

    def program(self, name: str, text: str) -> None:
        path = self.bin / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    def run_script(self, *words: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            ["bash" if "venv" in words[0] else "sh", *words], check=False, cwd=self.folder,
            text=True, timeout=120, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={"PATH": str(self.bin), "CPATH": "", "HOME": str(self.folder)})

    def test_lists_what_is_missing_without_apt(self) -> None:
        done = self.run_script("scripts/setup.sh")
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertIn("no apt on this machine", done.stdout)
        self.assertIn("  cmake: the build (3.25 or later)", done.stdout)
        self.assertIn("  make: ", done.stdout)
        self.assertNotIn("python3-dev", done.stdout)

    def test_torch_requires_the_headers_of_python(self) -> None:
        done = self.run_script("scripts/setup.sh", "torch")
        self.assertIn("python3-dev: torch.compile", done.stdout)

    def test_a_failure_of_apt_is_shown_and_its_other_output_is_not(self) -> None:
        self.program("apt-get", 'case "$*" in *update*) echo "Hit:1 mirror"; exit 0 ;; esac\n'
                     'echo pmstatus:cmake:40.5:Installing; echo "E: no such package"; exit 100')
        self.program("sudo", 'exec "$@"')
        done = self.run_script("scripts/setup.sh")
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertIn("installed 40%", done.stdout)
        self.assertIn("E: no such package", done.stdout)
        self.assertIn("'apt-get install' failed", done.stdout)
        self.assertNotIn("Hit:1", done.stdout)

    def test_a_group_that_does_not_exist(self) -> None:
        done = self.run_script("scripts/setup.sh", "cuda")
        self.assertEqual(done.returncode, 2)
        self.assertIn("unknown group 'cuda': expected torch or dev", done.stdout)

    def test_an_incomplete_environment_is_made_again(self) -> None:
        (self.bin / "python3").symlink_to(sys.executable)
        # Debian's venv leaves this if ensurepip is missing.
        made = self.folder / ".venv" / "bin"
        made.mkdir(parents=True)
        (made / "python3").symlink_to(sys.executable)
        (self.folder / ".venv" / "pyvenv.cfg").write_text(
            f"home = {Path(sys.executable).parent}\ninclude-system-site-packages = false\n")
        done = self.run_script("scripts/venv.sh")
        self.assertEqual(done.returncode, 0, done.stdout)
        pip = subprocess.run([made / "python3", "-m", "pip", "--version"], check=False,
                             capture_output=True)
        self.assertEqual(pip.returncode, 0, pip.stderr)

    def test_a_failed_environment_is_removed(self) -> None:
        self.program("python3", f'[ "$2" = venv ] && {shutil.which("mkdir")} -p "$3/bin"; exit 1')
        done = self.run_script("scripts/venv.sh")
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertIn("apt-get install python3-venv", done.stdout)
        self.assertFalse((self.folder / ".venv").exists())


if __name__ == "__main__":
    unittest.main()
