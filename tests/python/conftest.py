"""At the end of a run, each reason for skipping is printed once."""

from collections import Counter


def pytest_terminal_summary(terminalreporter):
    skipped = terminalreporter.stats.get("skipped", [])
    # longrepr is (file, line, "Skipped: reason").
    reasons = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in skipped
                      if isinstance(report.longrepr, tuple))
    if reasons:
        terminalreporter.ensure_newline()
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"skipped {count}: {reason}")
