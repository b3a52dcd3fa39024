"""What test programs report, as entries of "tests" in a result."""

import json
import xml.etree.ElementTree


def outcome(name, status, seconds, output, skipped=(), cut=False):
    """One entry of "tests". Without a status it was stopped: as it took too long, or (`cut`) as the
    budget of the run ended first, which says nothing of it."""
    word = "passed" if status == 0 else "skipped" if status in skipped else "failed"
    if status is None and cut:
        word = "unfinished"
    entry = {"name": name, "outcome": word, "seconds": round(seconds, 3)}
    if word != "passed":
        lines = [line for line in output.strip().splitlines() if line.strip()]
        reason = "out of time" if status is None else f"exit status {status}"
        entry["detail"] = " / ".join([reason, *lines[-6:]])[:1500]
    return entry


def gtest_outcomes(executable, report):
    if not report.exists():
        return []
    tests = []
    for suite in json.loads(report.read_text()).get("testsuites", []):
        for case in suite.get("testsuite", []):
            failed, skipped = case.get("failures"), case.get("result") == "SKIPPED"
            entry = {"name": f"cpp.{executable}.{suite['name']}.{case['name']}",
                     "outcome": "failed" if failed else "skipped" if skipped else "passed",
                     "seconds": float(case.get("time", "0s").rstrip("s"))}
            if failed:
                entry["detail"] = failed[0].get("failure", "")[:1500]
            tests.append(entry)
    return tests


def junit_outcomes(report):
    if not report.exists():
        return []
    tests = []
    for case in xml.etree.ElementTree.parse(report).getroot().iter("testcase"):
        bad = case.find("failure") if case.find("failure") is not None else case.find("error")
        skipped = case.find("skipped")
        entry = {"name": f"python.{case.get('classname')}.{case.get('name')}",
                 "outcome": "failed" if bad is not None else
                 "skipped" if skipped is not None else "passed",
                 "seconds": float(case.get("time", 0))}
        reason = bad if bad is not None else skipped
        if reason is not None:
            entry["detail"] = (reason.get("message") or reason.text or "")[:1500]
        tests.append(entry)
    return tests


def listed_tests(text):
    """Names of --gtest_list_tests: suites at the margin, tests below them."""
    names, suite = [], None
    for line in text.splitlines():
        if line and not line[0].isspace() and line.split("#")[0].rstrip().endswith("."):
            suite = line.split("#")[0].strip()
        elif suite and line.startswith("  "):
            names.append(suite + line.split("#")[0].strip())
    return [name for name in names if "DISABLED_" not in name]
