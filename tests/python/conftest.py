"""At the end of a run, each reason for skipping is printed once. Fixtures of several files."""

from collections import Counter

import pytest


@pytest.fixture
def torch_on_gpu():
    """PyTorch, where it and tessera have a GPU; other tests are skipped."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    import tessera
    if not torch.cuda.is_available() or tessera.cuda_device_count() == 0:
        pytest.skip("no GPU, or a build without TESSERA_CUDA=ON")
    return torch


def pytest_terminal_summary(terminalreporter):
    skipped = terminalreporter.stats.get("skipped", [])
    # longrepr is (file, line, "Skipped: reason").
    reasons = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in skipped
                      if isinstance(report.longrepr, tuple))
    if reasons:
        terminalreporter.ensure_newline()
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"skipped {count}: {reason}")
