"""Imports go one way, and the lean processes stay lean."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HOUSES = {"telemetry", "instrumented_engine", "sidecar", "enginescope", "alerts", "dashboards", "deploy"}
MAY_IMPORT = {
    "telemetry": set[str](),
    "instrumented_engine": {"telemetry"},
    "sidecar": {"telemetry"},
    "deploy": set[str](),
}
NOT_IN_SIDECAR = {"fastapi", "pydantic", "rich", "typer", "torch", "zmq", "opentelemetry"}


def imported(source: str) -> Iterator[str]:
    """Top-level names of every import in a module."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.partition(".")[0]


def imports_of(house: str) -> dict[Path, set[str]]:
    return {path: set(imported(path.read_text())) for path in (ROOT / house).rglob("*.py")}


@pytest.mark.parametrize("house", MAY_IMPORT)
def test_imports_go_one_way(house: str) -> None:
    banned = HOUSES - MAY_IMPORT[house] - {house}
    assert {path.name: names & banned for path, names in imports_of(house).items() if names & banned} == {}


def test_the_sidecar_stays_lean() -> None:
    found = imports_of("sidecar")
    assert {path.name: names & NOT_IN_SIDECAR for path, names in found.items() if names & NOT_IN_SIDECAR} == {}


def test_the_check_sees_imports() -> None:
    assert set(imported("import rich.table\ndef f():\n    from enginescope.up import x")) == {"rich", "enginescope"}
