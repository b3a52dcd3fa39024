"""The interface of the tool for scripts: exit codes, JSON, errors of one line."""

import fcntl
import os
import pty
import stat
import struct
import subprocess
import termios
import unittest.mock

import tool

SUBCOMMANDS = ["info", "explain", "demo", "pattern"]


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
    def test_errors_are_one_line_that_names_the_argument(self):
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
        self.assert_refused("pattern", "fly", naming="fly")
        self.assert_refused("pattern", "random", "--rows", "-3", naming="--rows")

    def test_errors_of_numbers_have_the_expected_and_the_given_value(self):
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
                (["pattern", "random", "--seed", "1.5"],
                 "--seed: expected an integer of 0 or more, got 1.5"),
                (["demo", "--threads", ""], "--threads: expected an integer from 1 to 4096, got "),
                (["demo", "--length", "many"],
                 "--length: expected an integer from 64 to 1048576, got many")):
            self.assertEqual(self.run_tool(*words, code=2).stderr, f"tessera: {message}\n")

    def test_typos_get_a_suggestion(self):
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
                (["pattern", "bigbirds"], "did you mean bigbird?")):
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

    def test_sizes_that_overflow_are_refused(self):
        huge = str(2**62)
        self.assert_refused("explain", "matmul", "--m", huge, "--k", huge, naming=huge)
        self.assert_refused("explain", "bsr_matmul", "--m", huge, "--k", huge, "--block", "1",
                            naming="overflow")
        self.assert_refused("pattern", "random", "--rows", huge, naming="--rows")

    def test_a_dense_copy_is_explained(self):
        words = ["explain", "bsr_matmul", "--m", "8192", "--n", "1024", "--k", "2048", "--block",
                 "16", "--density", "0.9", "--device", "h100", "--expand-bytes"]
        copy = 8192 * 2048 * 2
        self.assertIn("expanded to a dense copy of 33.6 MB\n",
                      self.run_tool(*words, str(copy)).stdout)
        self.assertNotIn("expanded", self.run_tool(*words, str(copy - 1)).stdout)
        self.assertEqual(self.run_json(*words, str(copy), "--json")["plan"]["expanded_bytes"], copy)
        self.assert_refused(*words, "-1", naming="--expand-bytes")
        self.assertIn("--expand-bytes applies to bsr_matmul",
                      self.run_tool("explain", "sddmm", "--expand-bytes", "1", code=2).stderr)

    def test_invalid_problems_name_their_field(self):
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
    def test_a_failed_write_is_a_failure(self):
        matrix = self.write("a.mtx", "%%MatrixMarket matrix coordinate pattern general\n"
                                     "2 2 1\n1 1\n")
        for words in (["info"], ["info", "--json"], ["--help"], ["--version"], ["version"],
                      ["explain", "matmul", "--device", "h100"], ["pattern", matrix],
                      ["demo", "--length", "64", "--size", "64"]):
            with open("/dev/full", "w", encoding="utf-8") as full:
                done = subprocess.run([tool.PROGRAM, *words], check=False, stdout=full,
                                      stderr=subprocess.PIPE, text=True, cwd=self.folder,
                                      timeout=60)
            self.assertEqual(done.returncode, 2, words)
            self.assertIn("tessera: cannot write to standard output", done.stderr)

    def test_output_files_are_checked_before_the_work(self):
        self.write("file", "")
        for path, reason in (("no/such/x.svg", "No such file or directory"),
                             ("file/x.svg", "Not a directory"),
                             ("/dev/shm/no-such/x.svg", "No such file or directory")):
            done = self.run_tool("pattern", "causal", "--output", path, code=2)
            self.assertEqual(done.stderr,
                             f"tessera: pattern: --output: cannot write {path}: {reason}\n")
        self.assertEqual(os.listdir(self.folder), ["file"])

    def test_a_file_is_complete_or_unchanged(self):
        self.write("former.svg", "former\n")
        os.symlink("former.svg", f"{self.folder}/link.svg")
        self.run_tool("pattern", "causal", "--no-preview", "--output", "link.svg")
        self.assertTrue(os.path.islink(f"{self.folder}/link.svg"))
        self.assertIn("</svg>", self.read("former.svg"))
        self.assertEqual(sorted(os.listdir(self.folder)), ["former.svg", "link.svg"])
        self.run_tool("demo", "--length", "64", "--size", "64", "--output", "/dev/null")
        self.assertTrue(stat.S_ISCHR(os.stat("/dev/null").st_mode))

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

    def test_the_width_of_the_terminal_is_used(self):
        for columns, table in ((40, False), (200, True)):
            ours, its = pty.openpty()
            fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
            environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
            with subprocess.Popen([tool.PROGRAM, "info"], stdout=its,
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
        except OSError:  # the other end is closed
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
        text = self.run_tool("explain", "attention", "--device", "cpu", "--batch", "3",
                             "--q-length", "5", "--kv-length", "70", "--packed", "--lse").stdout
        self.assertIn(" B3 H16/16 Q5 KV70 D128/128 q packed 15 kv packed 210 lse", text)
        text = self.run_tool("explain", "attention_backward", "--device", "cpu", "--batch", "3",
                             "--q-length", "5", "--kv-length", "70", "--packed", "--block-q",
                             "4").stdout
        self.assertIn(" q packed 15 kv packed 210 mask 4x4 lists 2x", text)
        text = self.run_tool("explain", "attention", "--device", "cpu", "--batch", "3",
                             "--q-length", "5", "--kv-length", "70", "--packed", "--page",
                             "16").stdout
        self.assertIn(" q packed 15 pages 15x16 table 5", text)
        text = self.run_tool("explain", "attention", "--device", "cpu", "--kv-dtype",
                             "e4m3").stdout
        self.assertIn(" kv e4m3 scales", text)
        text = self.run_tool("explain", "bsr_matmul", "--m", "768", "--k", "1280", "--n", "96",
                             "--block", "32", "--device", "cpu").stdout
        for word in ["768", "1280", "96", "32"]:
            self.assertIn(word, text)

    def test_batch_invariance_decides_the_family(self):
        words = ["explain", "attention", "--q-length", "1", "--kv-length", "8192", "--device",
                 "h100", "--json", "--batch-invariant"]
        names = [self.run_json(*words, "--batch", batch)["plan"]["kernel_name"]
                 for batch in ("1", "64")]
        self.assertRegex(names[0], "^sm90_decode_")
        self.assertEqual(names[0], names[1])
        done = self.run_tool(*words[:-2], "--batch-invariant", "--kernel",
                             "sm90_attention_d128_q192_k64_s3", code=3)
        self.assertIn("batch_invariant", done.stdout)

    def test_gradients_in_any_order_are_named(self):
        words = ["explain", "attention_backward", "--q-length", "4096", "--device", "h100"]
        self.assertNotIn("any order", self.run_tool(*words).stdout)
        self.assertIn("sums of dq in any order", self.run_tool(*words, "--any-order").stdout)

    def test_fp8_is_multiplied_in_one_layout(self):
        words = ["explain", "matmul", "--m", "512", "--n", "512", "--k", "512", "--dtype", "e4m3",
                 "--device", "h100", "--backend", "sm80"]
        self.assertEqual(self.run_json(*words, "--transpose-b", "--json")["plan"]["kernel_name"],
                         "sm80_cublaslt_e4m3_e5m2")
        refused = self.run_tool(*words, code=3).stdout
        self.assertIn("b: expected FP8 that is contiguous along the depth", refused)
        self.assertIn("e4m3[512x512] * e4m3[512x512] -> bf16", refused)

    def test_narrow_keys_have_their_own_rows(self):
        words = ["explain", "attention", "--device", "cpu", "--kv-dtype"]
        self.run_tool(*words, "e4m3")
        self.assert_refused(*words, "e5m3", naming="--kv-dtype")
        self.assertIn("--kv-dtype applies to attention,",
                      self.run_tool("explain", "attention_backward", "--kv-dtype", "e4m3",
                                    code=2).stderr)


if __name__ == "__main__":
    tool.main()
