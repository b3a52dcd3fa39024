"""Runs the built tool for the tests in this folder: `python3 cli_test.py PATH_OF_TESSERA`."""

import json
import subprocess
import sys
import tempfile
import unittest

PROGRAM = None


class ToolTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def run_tool(self, *arguments, code=0):
        """Runs in an empty folder and checks the exit code."""
        done = subprocess.run([PROGRAM, *arguments], check=False, capture_output=True, text=True,
                              cwd=self.folder, timeout=240)
        self.assertEqual(done.returncode, code, f"{arguments}: {done.stdout}{done.stderr}")
        return done

    def run_json(self, *arguments, code=0):
        return json.loads(self.run_tool(*arguments, code=code).stdout)

    def assert_refused(self, *arguments, naming, code=2):
        """Expects one line on stderr that begins with the program's name and contains `naming`."""
        done = self.run_tool(*arguments, code=code)
        self.assertEqual(done.stdout, "")
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        self.assertTrue(done.stderr.startswith("tessera: "), done.stderr)
        self.assertIn(naming, done.stderr)

    def write(self, name, contents):
        path = f"{self.folder}/{name}"
        with open(path, "w", encoding="utf-8") as file:
            file.write(contents)
        return path

    def read(self, name):
        with open(f"{self.folder}/{name}", encoding="utf-8") as file:
            return file.read()


def main():
    global PROGRAM  # noqa: PLW0603  the first argument of every test
    PROGRAM = sys.argv.pop(1)
    unittest.main(module="__main__")
