"""`tessera pattern`: statistics, pictures, and invalid files."""

import os
import xml.etree.ElementTree

import tool

SVG = "{http://www.w3.org/2000/svg}"


class Generators(tool.ToolTest):
    def test_statistics(self):
        figures = self.run_json("pattern", "banded", "--rows", "8", "--half-width", "1", "--json")
        self.assertEqual(figures["stored"], 8 + 7 + 7)
        self.assertEqual((figures["shortest_row"], figures["longest_row"]), (2, 3))
        self.assertEqual(sum(figures["histogram"]["counts"]), 8)

    def test_every_generator_draws(self):
        for name in ["random", "banded", "causal", "bigbird", "block_diagonal", "butterfly",
                     "power_law", "power_law_graph", "n_of_m", "mesh", "vertical_slash",
                     "heavy_hitters", "sliding_tile"]:
            size = [] if name in ("mesh", "sliding_tile") else ["--rows", "32"]
            self.run_tool("pattern", name, *size, "--output", "x.svg")
            xml.etree.ElementTree.fromstring(self.read("x.svg"))

    def test_volumes_say_how_large_they_are(self):
        figures = self.run_json("pattern", "sliding_tile", "--volume", "3,4,5", "--neighbourhood",
                                "1,3,5", "--tile-blocks", "2", "--json")
        self.assertEqual((figures["rows"], figures["cols"]), (120, 120))
        self.assertEqual((figures["shortest_row"], figures["longest_row"]), (30, 30))
        figures = self.run_json("pattern", "mesh", "--volume", "4,5,6", "--unknowns", "3",
                                "--block", "16", "--json")
        self.assertEqual((figures["rows"], figures["cols"]), (23, 23))
        for name in ["sliding_tile", "mesh"]:
            self.assert_refused("pattern", name, "--volume", "9000,9000,9000", naming="--volume")
            self.assert_refused("pattern", name, "--volume", "4,5", naming="--volume")

    def test_causal_or_not(self):
        for name in ["vertical_slash", "heavy_hitters"]:
            causal = self.run_json("pattern", name, "--rows", "8", "--json")
            whole = self.run_json("pattern", name, "--rows", "8", "--not-causal", "--json")
            self.assertEqual(causal["shortest_row"], 1)
            self.assertGreater(whole["stored"], causal["stored"])

    def test_same_seed_same_picture(self):
        self.run_tool("pattern", "random", "--seed", "5", "--output", "a.svg")
        self.run_tool("pattern", "random", "--seed", "5", "--output", "b.svg")
        self.run_tool("pattern", "random", "--seed", "6", "--output", "c.svg")
        self.assertEqual(self.read("a.svg"), self.read("b.svg"))
        self.assertNotEqual(self.read("a.svg"), self.read("c.svg"))

    def test_preview_shows_the_blocks(self):
        text = self.run_tool("pattern", "banded", "--rows", "4", "--half-width", "0").stdout
        self.assertEqual(text.split("\n")[:2], ["▀▄  ", "  ▀▄"])
        large = self.run_tool("pattern", "causal", "--rows", "512").stdout
        self.assertIn("\u28ff", large)
        plain = self.run_tool("pattern", "causal", "--rows", "8", "--no-preview").stdout
        self.assertNotIn("█", plain)

    def test_empty_patterns(self):
        for sizes in [("0", "0"), ("0", "5"), ("5", "0"), ("5", "5")]:
            self.run_tool("pattern", "random", "--rows", sizes[0], "--cols", sizes[1],
                          "--density", "0", "--output", "x.svg")


class Pictures(tool.ToolTest):
    def test_names_are_escaped(self):
        path = self.write("<b>&'\".mtx", "%%MatrixMarket matrix coordinate pattern general\n"
                                         "2 2 1\n1 1\n")
        self.run_tool("pattern", path, "--output", "x.svg")
        tree = xml.etree.ElementTree.fromstring(self.read("x.svg"))
        self.assertEqual(tree.find(SVG + "title").text, "<b>&'\".mtx")

    def test_bad_outputs(self):
        for name in ("x.png", "x.gif", "svg"):
            self.assert_refused("pattern", "causal", "--output", name,
                                naming=f"--output: expected a name that ends in .svg, got {name}")
        self.assert_refused("pattern", "causal", "--output", "no/such/x.svg", naming="no/such")
        self.assertEqual(os.listdir(self.folder), [])


class Files(tool.ToolTest):
    def test_elements_become_blocks(self):
        path = self.write("a.mtx", "%%MatrixMarket matrix coordinate real general\n"
                                   "4 6 3\n1 1 1.0\n2 2 -1.0\n4 6 2.5\n")
        figures = self.run_json("pattern", path, "--block", "2", "--json")
        self.assertEqual((figures["rows"], figures["cols"], figures["stored"]), (2, 3, 2))
        path = self.write("a.smtx", "2, 4, 3\n0 1 3\n3 0 1\n")
        figures = self.run_json("pattern", path, "--json")
        self.assertEqual((figures["rows"], figures["cols"], figures["stored"]), (2, 4, 3))

    def test_hostile_files(self):
        head = "%%MatrixMarket matrix coordinate real general\n"
        for name, contents in {
                "empty.mtx": "",
                "text.mtx": "hello\n",
                "huge.mtx": head + "9000000000000000000 9000000000000000000 9000000000000000000\n",
                "negative.mtx": head + "-4 4 1\n1 1 1\n",
                "short.mtx": head + "4 4 3\n1 1 1\n",
                "outside.mtx": head + "4 4 1\n5 1 1\n",
                "word.mtx": head + "4 4 1\n1 one 1\n",
                "empty.smtx": "",
                "huge.smtx": "9000000000000000000, 9000000000000000000, 9000000000000000000\n0\n",
                "negative.smtx": "-2, 2, 1\n0 1 1\n0\n",
                "decreasing.smtx": "2, 2, 2\n0 2 1\n0 1\n",
                "outside.smtx": "2, 2, 2\n0 1 2\n0 7\n",
        }.items():
            self.assert_refused("pattern", self.write(name, contents), naming=name)
        self.assert_refused("pattern", "nothing.mtx", naming="nothing.mtx")

    def test_a_small_file_may_not_ask_for_much_memory(self):
        # The sizes are valid, but the pattern would need much more memory than the file. The tool
        # checks that before it makes the pattern.
        path = self.write("tall.mtx", "%%MatrixMarket matrix coordinate pattern general\n"
                                      "9000000000000 4 1\n1 1\n")
        self.assert_refused("pattern", path, naming="tall.mtx")


if __name__ == "__main__":
    tool.main()
