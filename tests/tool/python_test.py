"""Subcommands in Python: the tool passes on its arguments and returns the exit status."""

import os
import signal
import stat
import subprocess
import sys

import tool

COMMANDS = ("bench", "verify", "report")
# A stand-in for Python: prints its arguments, and ends as WHAT says.
STAND_IN = """#!/bin/sh
shift 2
printf '%s\\n' "$@"
case "$WHAT" in
  signal) kill -TERM $$ ;;
  *) exit "${WHAT:-0}" ;;
esac
"""


class PythonCommands(tool.ToolTest):
    def setUp(self):
        super().setUp()
        path = self.write("stand-in", STAND_IN)
        os.chmod(path, stat.S_IRWXU)
        self.environment = {**os.environ, "TESSERA_PYTHON": path}

    def call(self, *arguments, **environment):
        return subprocess.run([tool.PROGRAM, *arguments], check=False, capture_output=True,
                              text=True, env={**self.environment, **environment},
                              cwd=self.folder, timeout=60)

    def test_arguments_go_on_untouched(self):
        words = ["matmul", "--m", "1,2", "--help", "--", "-x", "", "a b", "--version"]
        for name in COMMANDS:
            done = self.call(name, *words)
            self.assertEqual(done.stdout, "\n".join([name, f"tessera.{name}", *words, ""]))

    def test_the_exit_status_and_signals_come_back(self):
        codes = [0, 1, 2, 130]
        self.assertEqual([self.call("bench", WHAT=str(code)).returncode for code in codes], codes)
        self.assertEqual(self.call("report", WHAT="signal").returncode, -signal.SIGTERM)

    def test_they_are_listed(self):
        text = self.call("--help").stdout
        for name in COMMANDS:
            self.assertRegex(text, rf"(?m)^  {name} ")

    def test_without_python_or_the_package_one_line_says_what_to_do(self):
        for name in COMMANDS:
            done = self.call(name, TESSERA_PYTHON="/no/such/python")
            self.assertEqual((done.returncode, done.stdout), (3, ""))
            self.assertRegex(done.stderr, rf"^tessera: {name}: cannot start /no/such/python: .*\n$")
            # -I -S: a Python without installed packages.
            bare = self.write("bare", '#!/bin/sh\nexec python3 -I -S "$@"\n')
            os.chmod(bare, stat.S_IRWXU)
            os.makedirs(f"{self.folder}/tessera", exist_ok=True)
            done = self.call(name, TESSERA_PYTHON=bare)
            self.assertEqual((done.returncode, done.stdout), (3, ""))
            self.assertRegex(done.stderr, rf"^tessera: {name}: .* has no package tessera; in the "
                                          r"source tree, make python installs it.*TESSERA_PYTHON.*"
                                          r"\n$")

    def test_an_interrupt_while_the_package_is_loaded_is_one_line(self):
        os.makedirs(f"{self.folder}/tessera")
        self.write("tessera/__init__.py", "raise KeyboardInterrupt")
        done = self.call("bench", TESSERA_PYTHON=sys.executable, PYTHONPATH=self.folder)
        self.assertEqual((done.returncode, done.stderr), (130, "tessera: bench: stopped\n"))

    def test_the_environment_of_the_tree_is_found_from_the_current_folder(self):
        os.makedirs(f"{self.folder}/.venv/bin")
        os.makedirs(f"{self.folder}/below")
        os.rename(f"{self.folder}/stand-in", f"{self.folder}/.venv/bin/python3")
        environment = {name: value for name, value in os.environ.items()
                       if name != "TESSERA_PYTHON"}
        # An environment above the program would come first.
        program = os.path.join(self.folder, "tool")
        subprocess.run(["cp", tool.PROGRAM, program], check=True)
        libraries = os.path.dirname(os.path.abspath(tool.PROGRAM))
        done = subprocess.run([program, "bench", "x"], check=False, capture_output=True, text=True,
                              timeout=60, cwd=f"{self.folder}/below",
                              env={**environment, "LD_LIBRARY_PATH": libraries})
        self.assertEqual(done.stdout.split(), ["bench", "tessera.bench", "x"])


if __name__ == "__main__":
    tool.main()
