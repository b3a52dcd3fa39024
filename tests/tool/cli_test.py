"""The tool's promises to scripts: exit codes, JSON, one-line complaints."""

import fcntl
import os
import pty
import stat
import struct
import subprocess
import termios
import unittest.mock

import tool

SUBCOMMANDS = ["info", "explain", "demo", "verify", "bench", "pattern"]


class Help(tool.ToolTest):
    def test_help_has_examples_and_exit_codes(self):
        for words in [[]] + [[name] for name in SUBCOMMANDS]:
            text = self.run_tool(*words, "--help").stdout
            self.assertIn("Examples:\n  tessera", text)
            self.assertIn("Exit codes: 0 fine, 1", text)

    def test_every_subcommand_has_json(self):
        for name in SUBCOMMANDS:
            self.assertIn("--json", self.run_tool(name, "--help").stdout)

    def test_version(self):
        self.assertRegex(self.run_tool("--version").stdout, r"^\d+\.\d+\.\d+\n$")
        self.assertEqual(self.run_tool("version").stdout, self.run_tool("--version").stdout)


class BadUsage(tool.ToolTest):
    def test_complaints_are_one_line_that_names_the_argument(self):
        self.assert_refused(naming="subcommand")
        self.assert_refused("fly", naming="fly")
        self.assert_refused("explain", naming="OP")
        self.assert_refused("explain", "fly", naming="fly")
        self.assert_refused("explain", "attention", "--heads", "many", naming="--heads")
        self.assert_refused("explain", "attention", "--heads", "-1", naming="--heads")
        self.assert_refused("explain", "attention", "--density", "nan", naming="--density")
        self.assert_refused("explain", "attention", "--device", "abacus", naming="abacus")
        self.assert_refused("explain", "matmul", "--backend", "abacus", naming="abacus")
        self.assert_refused("explain", "matmul", "--kernel", "abacus",
                            naming="cpu_matmul_m64_n384_k512")
        self.assert_refused("demo", "--length", "100", naming="--length")
        self.assert_refused("demo", "--size", "100", naming="--size")
        self.assert_refused("verify", "fly", naming="fly")
        self.assert_refused("verify", "--seconds", "nan", naming="--seconds")
        self.assert_refused("verify", "--seed", "-1", naming="--seed")
        self.assert_refused("bench", "fly", naming="fly")
        self.assert_refused("bench", "--filter", "fly", naming="--filter")
        self.assert_refused("bench", "--json", "matmul", naming="--json")
        self.assert_refused("pattern", "fly", naming="fly")
        self.assert_refused("pattern", "random", "--rows", "-3", naming="--rows")

    def test_numbers_say_what_is_expected_and_what_came(self):
        for words, message in (
                (["explain", "attention", "--heads", "abc"],
                 "--heads: expected a positive integer, got abc"),
                (["explain", "attention", "--heads", "0"],
                 "--heads: expected a positive integer, got 0"),
                (["explain", "matmul", "--m", "9" * 30],
                 f"--m: expected an integer of 0 or more below 2^63, got {'9' * 30}"),
                (["explain", "attention", "--softcap", "x"],
                 "--softcap: expected a number of 0 or more, got x"),
                (["explain", "merge_states", "--parts", "1e9"],
                 "--parts: expected an integer from 1 to 1024, got 1e9"),
                (["pattern", "random", "--density", "2"],
                 "--density: expected a number from 0 to 1, got 2"),
                (["pattern", "mesh", "--volume", "4,x,4"],
                 "--volume: expected a positive integer, got x"),
                (["demo", "--length", "many"],
                 "--length: expected an integer from 64 to 1048576, got many"),
                (["verify", "--count", "0"], "--count: expected a positive integer, got 0"),
                (["verify", "--seed", "1.5"], "--seed: expected an integer of 0 or more, got 1.5"),
                (["bench", "--threads", ""], "--threads: expected an integer from 1 to 4096, got "),
                (["bench", "--seconds", "fast"],
                 "--seconds: expected a number from 0 to 3600, got fast")):
            self.assertEqual(self.run_tool(*words, code=2).stderr, f"tessera: {message}\n")

    def test_near_misses_are_named(self):
        for words, message in (
                (["inf"], "unknown command inf; did you mean info?"),
                (["fly"], "unknown command fly; tessera --help lists the commands"),
                (["fly", "--json"], "unknown command fly; tessera --help lists the commands"),
                (["--verison"], "unknown option --verison; did you mean --version?"),
                (["explain", "attention", "--q-lenght", "64"],
                 "explain: unknown option --q-lenght; did you mean --q-length?"),
                (["explain", "attention", "--altitude=64"],
                 "explain: unknown option --altitude; tessera explain --help lists the options"),
                (["info", "all"], "info: unexpected argument all"),
                (["explain", "matmull"], "did you mean matmul?"),
                (["explain", "matmul", "--dtype", "fp16"], "did you mean f16?"),
                (["verify", "sdmm"], "did you mean sddmm?"),
                (["pattern", "bigbirds"], "did you mean bigbird?"),
                (["bench", "matmull"], "did you mean matmul?")):
            self.assertIn(message, self.run_tool(*words, code=2).stderr)

    def test_options_that_do_not_apply_are_refused(self):
        for words, message in (
                (["explain", "attention", "--block", "64"],
                 "explain: --block applies to bsr_matmul, sddmm, spgemm, not to attention"),
                (["explain", "matmul", "--causal"],
                 "explain: --causal applies to attention, attention_backward, not to matmul"),
                (["explain", "matmul", "--density", "0.5"], "--density applies to"),
                (["explain", "spgemm", "--out-dtype", "f32"], "--out-dtype applies to"),
                (["explain", "attention", "--parts", "2"], "--parts applies to merge_states,"),
                (["pattern", "random", "--half-width", "3"],
                 "pattern: --half-width applies to banded, bigbird, not to random"),
                (["pattern", "random", "--block", "3"], "--block applies to files, mesh, not to"),
                (["pattern", "mesh", "--rows", "3"], "--rows applies to"),
                (["pattern", "causal", "--not-causal"], "--not-causal applies to"),
                (["pattern", "some.mtx", "--seed", "3"], "not to files")):
            self.assertIn(message, self.run_tool(*words, code=2).stderr)
        self.assert_refused("verify", "--count", "1", "--seconds", "1", naming="--seconds")

    def test_sizes_that_overflow_are_refused(self):
        huge = str(2**62)
        self.assert_refused("explain", "matmul", "--m", huge, "--k", huge, naming=huge)
        self.assert_refused("explain", "bsr_matmul", "--m", huge, "--k", huge, "--block", "1",
                            naming="overflow")
        self.assert_refused("pattern", "random", "--rows", huge, naming="--rows")

    def test_problems_that_make_no_sense_name_their_field(self):
        self.assert_refused("explain", "attention", "--heads", "6", "--kv-heads", "4",
                            naming="heads")
        self.assert_refused("explain", "bsr_matmul", "--m", "100", "--block", "64", naming="rows")


class Info(tool.ToolTest):
    def test_json(self):
        info = self.run_json("info", "--json")
        self.assertIn("cpu", info["backends"])
        self.assertEqual(info["devices"][0]["kind"], "cpu")
        self.assertGreaterEqual(info["devices"][0]["units"], 1)
        done = {op for kernel in info["kernels"] for op in kernel["operations"]}
        self.assertLessEqual({"attention", "attention_backward", "matmul", "bsr_matmul", "sddmm",
                              "spgemm", "merge_states"}, done)

    def test_text_names_the_same_kernels(self):
        text = self.run_tool("info").stdout
        for kernel in self.run_json("info", "--json")["kernels"]:
            self.assertIn(kernel["name"], text)


class Output(tool.ToolTest):
    def test_what_cannot_be_printed_is_a_failure(self):
        matrix = self.write("a.mtx", "%%MatrixMarket matrix coordinate pattern general\n"
                                     "2 2 1\n1 1\n")
        for words in (["info"], ["info", "--json"], ["--help"], ["--version"], ["version"],
                      ["explain", "matmul", "--device", "h100"], ["pattern", matrix],
                      ["verify", "matmul", "--count", "1"], ["bench", "--list"],
                      ["demo", "--length", "64", "--size", "64"]):
            with open("/dev/full", "w", encoding="utf-8") as full:
                done = subprocess.run([tool.PROGRAM, *words], check=False, stdout=full,
                                      stderr=subprocess.PIPE, text=True, cwd=self.folder,
                                      timeout=60)
            self.assertEqual(done.returncode, 2, words)
            self.assertIn("tessera: cannot write to standard output", done.stderr)

    def in_columns(self, columns, *arguments):
        with unittest.mock.patch.dict(os.environ, COLUMNS=columns):
            return self.run_tool(*arguments).stdout

    def test_narrow_terminals_get_a_line_for_each_value(self):
        text = self.in_columns("40", "info")
        self.assertIn("kernel: cpu_matmul_m64_n384_k512\nbackend: cpu\noperations: ", text)
        self.assertNotIn("───", text)
        for columns in ("60", "", "0", "wide"):
            self.assertIn("───", self.in_columns(columns, "info"))

    def test_a_table_that_fits_stays_one(self):
        self.assertIn("───", self.in_columns("45", "pattern", "causal", "--no-preview"))

    def test_previews_are_as_wide_as_the_terminal(self):
        for columns, width in (("40", 40), ("200", 64), ("", 64)):
            text = self.in_columns(columns, "pattern", "causal", "--rows", "1280")
            self.assertEqual(len(text.split("\n", 1)[0]), width)

    def test_the_terminal_says_how_wide_it_is(self):
        for columns, table in ((40, False), (200, True)):
            ours, its = pty.openpty()
            fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
            environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
            with subprocess.Popen([tool.PROGRAM, "bench", "--list"], stdout=its,
                                  env=environment) as process:
                os.close(its)
                text = b""
                while chunk := self.read_terminal(ours):
                    text += chunk
            os.close(ours)
            self.assertEqual((process.returncode, "───".encode() in text), (0, table))

    @staticmethod
    def read_terminal(terminal):
        try:
            return os.read(terminal, 4096)
        except OSError:  # its other end is closed
            return b""


class Explain(tool.ToolTest):
    OPS = ("attention", "attention_backward", "matmul", "bsr_matmul", "sddmm", "spgemm",
           "merge_states")

    def test_every_operation_here(self):
        for op in self.OPS:
            answer = self.run_json("explain", op, "--json", "--device", "cpu")
            self.assertTrue(answer["supported"], answer)

    def test_every_preset_answers(self):
        for preset in self.run_json("info", "--json")["presets"]:
            for op in self.OPS:
                done = tool.subprocess.run([tool.PROGRAM, "explain", op, "--device", preset,
                                            "--json"], check=False, capture_output=True,
                                           text=True)
                self.assertIn(done.returncode, (0, 3), done.stderr)
                answer = tool.json.loads(done.stdout)
                self.assertEqual(done.returncode == 0, answer["supported"])
                self.assertTrue(answer["candidates"])

    def test_no_kernel_is_code_3_with_reasons(self):
        done = self.run_tool("explain", "attention", "--device", "cpu", "--backend", "sm90",
                             code=3)
        self.assertIn("sm90", done.stdout)

    def test_a_kernel_by_its_name(self):
        answer = self.run_json("explain", "matmul", "--device", "h200", "--kernel",
                               "sm90_matmul_m128_n128_k64_s5", "--json")
        self.assertEqual(answer["chosen_by"], "execution.kernel")
        self.assertEqual(answer["plan"]["kernel_name"], "sm90_matmul_m128_n128_k64_s5")
        done = self.run_tool("explain", "matmul", "--device", "cpu", "--kernel",
                             "sm90_matmul_m128_n128_k64_s5", code=3)
        self.assertIn("runs on a GPU", done.stdout)

    def test_a_tuning_file_is_named_and_said_to_be_ignored(self):
        device = self.run_json("info", "--json")["devices"][0]["name"]
        head = f"tessera-tuning 1\ndevice {device}\n"
        for contents, state in ((head, "in use (0 problems)"), (head + "?\n", "ignored: line 3: ")):
            path = self.write("one.tuning", contents)
            with unittest.mock.patch.dict(os.environ, TESSERA_TUNING=path):
                self.assertIn(f"{path}: {state}", self.run_tool("info").stdout)
                self.assertIn(f"tuning    {path}: {state}",
                              self.run_tool("explain", "matmul", "--device", "here").stdout)

    def test_devices_in_capitals(self):
        self.assertEqual(self.run_tool("explain", "matmul", "--device", "H100").stdout,
                         self.run_tool("explain", "matmul", "--device", "h100").stdout)

    def test_one_block_size_is_also_the_other(self):
        for name in ("--block-q", "--block-kv"):
            text = self.run_tool("explain", "attention", "--device", "cpu", name, "32").stdout
            self.assertIn("32x32", text)

    def test_options_reach_the_problem(self):
        text = self.run_tool("explain", "attention", "--device", "cpu", "--heads", "12",
                             "--kv-heads", "3", "--q-length", "640", "--dim", "96", "--dtype",
                             "f16").stdout
        for word in ["12", "3", "640", "96", "f16"]:
            self.assertIn(word, text)
        text = self.run_tool("explain", "bsr_matmul", "--m", "768", "--k", "1280", "--n", "96",
                             "--block", "32", "--device", "cpu").stdout
        for word in ["768", "1280", "96", "32"]:
            self.assertIn(word, text)


class Verify(tool.ToolTest):
    def test_a_few_of_each(self):
        report = self.run_json("verify", "--count", "3", "--seed", "7", "--json")
        self.assertTrue(report["ok"], report)
        self.assertEqual(len(report["operations"]), 8)
        for tally in report["operations"].values():
            self.assertEqual((tally["problems"], tally["wrong"]), (3, 0))

    def test_one_operation(self):
        done = self.run_tool("verify", "attention", "--count", "2")
        self.assertIn("attention", done.stdout)
        self.assertNotIn("\x1b", done.stdout + done.stderr)

    def test_an_interrupt_keeps_what_was_found(self):
        code, out, err = self.interrupt("random problems", "verify", "--seconds", "600", "--json")
        self.assertEqual((code, tool.json.loads(out)["interrupted"]), (130, True))
        self.assertTrue(err.endswith("tessera: verify: interrupted\n"), err)


class Bench(tool.ToolTest):
    def test_list(self):
        text = self.run_tool("bench", "--list").stdout
        for name in ["matmul", "bsr_matmul_16", "attention", "attention_memory"]:
            self.assertIn(name, text)
        names = [one["name"] for one in self.run_json("bench", "--list", "--json")]
        self.assertIn("attention_memory", names)
        some = self.run_json("bench", "--list", "--filter", "bsr", "--json")
        self.assertEqual([one["name"] for one in some],
                         [name for name in names if "bsr" in name])

    def test_files_are_tried_before_anything_is_measured(self):
        self.write("file", "")
        for path, reason in (("no/such/x.json", "No such file or directory"),
                             (".", "it is a folder"), ("file/x.json", "Not a directory"),
                             ("/dev/shm/no-such/x.json", "No such file or directory")):
            done = self.run_tool("bench", "matmul", "--json", path, code=2)
            self.assertEqual(done.stderr,
                             f"tessera: bench: --json: cannot write {path}: {reason}\n")
        self.assertEqual(os.listdir(self.folder), ["file"])
        self.assert_refused("bench", "attention", "--python", "/no/such/python",
                            naming="--python: cannot start /no/such/python: No such file")
        self.assert_refused("pattern", "causal", "--output", "no/such/x.svg", naming="--output")

    def test_a_file_is_whole_or_as_it_was(self):
        self.write("former", "former\n")
        os.symlink("former", f"{self.folder}/link")
        self.run_tool("bench", "--list", "--json", "link")
        self.assertTrue(os.path.islink(f"{self.folder}/link"))
        self.assertTrue(tool.json.loads(self.read("former")))
        self.assertEqual(sorted(os.listdir(self.folder)), ["former", "link"])
        self.run_tool("bench", "--list", "--json", "/dev/null")
        self.assertTrue(stat.S_ISCHR(os.stat("/dev/null").st_mode))

    def test_an_interrupt_keeps_the_cases_that_are_done(self):
        code, out, err = self.interrupt("[2/2]", "bench", "matmul_bf16", "bsr_matmul_16",
                                        "--seconds", "0.1", "--json", "out.json")
        self.assertEqual(code, 130)
        self.assertIn("matmul_bf16 ", out)
        self.assertTrue(err.endswith("tessera: bench: interrupted after 1 of 2 cases\n"), err)
        result = tool.json.loads(self.read("out.json"))
        self.assertEqual([case["name"] for case in result["cases"]], ["matmul_bf16"])
        self.assertIs(result["interrupted"], True)

    def test_an_interrupt_before_the_first_case_leaves_the_former_file(self):
        self.write("out.json", "former\n")
        code, out, _ = self.interrupt("[1/1]", "bench", "matmul_bf16", "--json", "out.json")
        self.assertEqual((code, out, self.read("out.json")), (130, "", "former\n"))

    def test_missing_peers_come_with_what_to_do(self):
        python = self.write("bare", '#!/bin/sh\nexec python3 -I -S "$@"\n')
        os.chmod(python, stat.S_IRWXU)
        done = tool.subprocess.run([tool.PROGRAM, "bench", "attention", "--seconds", "0",
                                    "--python", python],
                                   capture_output=True, text=True, timeout=240)
        self.assertRegex(done.stdout, r"(?m)^torch is missing: .*No module named 'torch'; "
                                      r".*pip install torch.*--python.*$")
        self.assertEqual(done.stdout.count(python), 1)


if __name__ == "__main__":
    tool.main()
