"""`tessera demo`: the table, the JSON and the page that it writes."""

import html.parser
import re
import xml.etree.ElementTree

import tool


class Balance(html.parser.HTMLParser):
    """Notes tags that are not closed in the order in which they were opened."""

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
        result = self.run_json("demo", "--length", "512", "--size", "512", "--output", "page.html", "--json")
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

        # Nothing is fetched: the only address is the name of SVG's vocabulary.
        self.assertEqual(set(re.findall(r"https?://[^\"' )]*", page)),
                         {"http://www.w3.org/2000/svg"})
        self.assertIsNone(re.search(r"<script|<link|<img|@import|url\(|\ssrc=|href=", page))
        self.assertIn("prefers-color-scheme:dark", page)
        self.assertIn('name="viewport"', page)
        self.assertEqual(page.count("<svg"), 4)

    def test_unwritable_output(self):
        self.assert_refused("demo", "--output", "no/such/page.html",
                            naming="no/such")


if __name__ == "__main__":
    tool.main()
