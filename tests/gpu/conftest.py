"""Without a CUDA device these tests are skipped, and the end of the run says so."""

import pytest
import torch

HERE = "tests/gpu/"


def why_not() -> str:
    """One sentence when there is no CUDA device, else nothing."""
    if torch.cuda.is_available():
        return ""
    built = torch.version.cuda or "without CUDA"
    return f"no CUDA device: torch {torch.__version__} (built {built}) sees none, so that nothing here was tested"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = why_not()
    for item in items:
        if item.nodeid.startswith(HERE):
            item.add_marker(pytest.mark.gpu)
            if reason:
                item.add_marker(pytest.mark.skip(reason=reason))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = [report for report in terminalreporter.stats.get("skipped", []) if report.nodeid.startswith(HERE)]
    if skipped and (reason := why_not()):
        terminalreporter.write_line(f"{len(skipped)} GPU tests SKIPPED: {reason}", yellow=True, bold=True)
