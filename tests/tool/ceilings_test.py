"""The program that measures ceilings: what it refuses, and what it says where there is no GPU."""

import os

import tool


class Arguments(tool.ToolTest):
    def refused(self, *arguments, naming, code=2):
        done = self.run_tool(*arguments, code=code)
        self.assertEqual(done.stdout, "")
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        self.assertTrue(done.stderr.startswith("ceilings: "), done.stderr)
        self.assertIn(naming, done.stderr)

    def test_refusals_name_what_came(self):
        for words in (["--only", "tensor,cpu"], ["--only", ""], ["--only", "Tensor"]):
            self.refused(*words, naming="--only: expected some of tensor, l2, memory, launch, got")
        for text in ("0", "-1", "61", "nan", "2s", "", "two"):
            self.refused("--seconds", text,
                         naming=f"expected a number from 0.1 to 60, got '{text}'")
        self.refused("--seconds", naming="--seconds: a value is missing")
        self.refused("--second", "2", naming="expected --only or --seconds, got '--second'")

    def test_help_names_the_parts(self):
        text = self.run_tool("--help").stdout
        for word in ("--only", "--seconds", "tensor", "l2", "memory", "launch"):
            self.assertIn(word, text)

    def test_without_a_gpu_it_says_so(self):
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        try:
            self.refused("--only", "launch", naming="no GPU here", code=1)
        finally:
            del os.environ["CUDA_VISIBLE_DEVICES"]
            if hidden is not None:
                os.environ["CUDA_VISIBLE_DEVICES"] = hidden


if __name__ == "__main__":
    tool.main()
