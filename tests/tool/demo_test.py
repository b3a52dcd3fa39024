"""`tessera demo`: the table, the JSON and the page that it writes."""

import html
import html.parser
import os
import re
import shutil
import subprocess
import xml.etree.ElementTree

import tool


class Balance(html.parser.HTMLParser):
    """Records tags that are not closed in the order in which they were opened."""

    def __init__(self):
        super().__init__()
        self.open, self.wrong = [], []

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)


class Demo(tool.ToolTest):
    def test_page_and_json(self):
        result = self.run_json("demo", "--length", "512", "--size", "512", "--output", "page.html",
                               "--json")
        self.assertEqual([part["ok"] for part in result["parts"]], [True, True])
        for part in result["parts"]:
            self.assertGreater(part["dense_ms"], 0)
            self.assertLessEqual(part["max_error"], part["error_budget"])
            self.assertGreater(part["max_error"], 0)
        page = self.read("page.html")

        balance = Balance()
        balance.feed(page)
        self.assertEqual((balance.open, balance.wrong), ([], []))
        xml.etree.ElementTree.fromstring(page.split("\n", 1)[1])

        self.assertIn(f"Made by tessera {result['version']}", page)
        self.assertIn(html.escape(result["device"]), page)
        self.assertRegex(page, r"Run <code>(make test|tessera verify)</code>, or <code>\S+ explain")
        for word in ("block sparse row", "% visible", "% stored", "docs/formats.md"):
            self.assertIn(word, page)

        # The page loads nothing: its only URL is SVG's namespace.
        self.assertEqual(set(re.findall(r"https?://[^\"' )]*", page)),
                         {"http://www.w3.org/2000/svg"})
        self.assertIsNone(re.search(r"<script|<link|<img|@import|url\(|\ssrc=|href=", page))
        self.assertIn("prefers-color-scheme:dark", page)
        self.assertIn('name="viewport"', page)
        self.assertEqual(page.count("<svg"), 4)

    def test_in_the_source_tree_the_page_links_to_the_documentation(self):
        os.makedirs(f"{self.folder}/tree/apps/tessera")
        os.makedirs(f"{self.folder}/tree/below")
        self.write("tree/apps/tessera/main.cpp", "")
        program = os.path.join(self.folder, "tree", "tool")
        shutil.copy(tool.PROGRAM, program)
        libraries = os.path.dirname(os.path.abspath(tool.PROGRAM))
        for page, address in (("demo.html", "docs/formats.md"),
                              ("below/demo.html", "../docs/formats.md")):
            subprocess.run([program, "demo", "--length", "64", "--size", "64", "--output", page],
                           check=True, cwd=f"{self.folder}/tree", capture_output=True,
                           env={**os.environ, "LD_LIBRARY_PATH": libraries}, timeout=60)
            links = re.findall(r'href="([^"]*)"', self.read(f"tree/{page}"))
            self.assertIn(address, links)
            tree = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
            for link in links:
                target = os.path.normpath(os.path.join(os.path.dirname(page), link))
                self.assertTrue(os.path.exists(os.path.join(tree, target)), link)

    def test_words_on_the_terminal(self):
        done = self.run_tool("demo", "--length", "64", "--size", "64", "--threads", "1")
        version = self.run_tool("--version").stdout.strip()
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            models = [line.split(": ", 1)[1].strip() for line in file
                      if line.startswith("model name")]
        cpu = models[0] if models else "CPU"
        first, *_, last = done.stdout.splitlines()
        self.assertRegex(first, rf"^tessera {re.escape(version)} on {re.escape(cpu)} "
                                r"\(.*, 1 thread\)$")
        self.assertRegex(last, r"^open demo\.html in a browser; next: "
                               r"(make test|tessera verify), or \S+ explain attention ")
        self.assertRegex(done.stdout, r"(?m)^attention .*% visible")
        self.assertRegex(done.stdout, r"(?m)^BSR product .*% stored")
        self.assertEqual([line[:5] for line in done.stderr.splitlines()],
                         ["[1/4]", "[2/4]", "[3/4]", "[4/4]"])

    def test_unwritable_output(self):
        self.assert_refused("demo", "--output", "no/such/page.html",
                            naming="no/such")


if __name__ == "__main__":
    tool.main()
