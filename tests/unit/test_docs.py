"""The documents name only what exists."""

import re
from pathlib import Path

import pytest

from telemetry.catalog import BY_NAME, Kind
from telemetry.reference import PAGE, render

ROOT = PAGE.parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "alerts").glob("*/runbook.md"))]


def test_the_metric_reference_is_current() -> None:
    assert PAGE.read_text() == render()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_metrics_in_documents_are_in_the_catalogue(document: Path) -> None:
    series = set(BY_NAME) | {
        f"{metric.name}_{suffix}"
        for metric in BY_NAME.values()
        if metric.kind is Kind.HISTOGRAM
        for suffix in ("bucket", "sum", "count")
    }
    named = set(re.findall(r"\benginescope_[a-z0-9_]+\b", document.read_text()))
    unknown = {name for name in named - series if not any(known.startswith(name) for known in series)}
    assert not unknown


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_to_files_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", document.read_text()):
        if "://" not in target:
            assert (document.parent / target).exists(), target


def test_make_targets_in_the_readme_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    assert set(re.findall(r"(?:`|\$ )make ([a-z-]+)", (ROOT / "README.md").read_text())) <= targets
