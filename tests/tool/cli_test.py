"""The tool's promises to scripts: exit codes, JSON, one-line complaints."""

import os
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
        self.assert_refused("explain", "matmul", "--kernel", "abacus", naming="cpu_product")
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


class Explain(tool.ToolTest):
    OPS = ["attention", "attention_backward", "matmul", "bsr_matmul", "sddmm", "spgemm",
           "merge_states"]

    def test_every_operation_here(self):
        for op in self.OPS:
            answer = self.run_json("explain", op, "--json", "--device", "cpu")
            self.assertTrue(answer["supported"], answer)

    def test_every_preset_answers(self):
        for preset in self.run_json("info", "--json")["presets"]:
            for op in self.OPS:
                done = tool.subprocess.run([tool.PROGRAM, "explain", op, "--device", preset,
                                            "--json"], capture_output=True, text=True)
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
                               "sm90_matmul_128x128", "--json")
        self.assertEqual(answer["chosen_by"], "execution.kernel")
        self.assertEqual(answer["plan"]["kernel_name"], "sm90_matmul_128x128")
        done = self.run_tool("explain", "matmul", "--device", "cpu", "--kernel",
                             "sm90_matmul_128x128", code=3)
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


class Bench(tool.ToolTest):
    def test_list(self):
        text = self.run_tool("bench", "--list").stdout
        for name in ["matmul", "bsr_matmul_16", "attention", "attention_memory"]:
            self.assertIn(name, text)


if __name__ == "__main__":
    tool.main()
