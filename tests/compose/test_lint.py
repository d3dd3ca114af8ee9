"""compose.yaml as others read it: compose itself with every profile, and a linter for hardening."""

from __future__ import annotations

import os
import re
import sys

import pytest
import yaml

from tests.compose import tools

pytestmark = pytest.mark.docker

LINTER = "compose-lint==0.36.2"


def _fetched(what: str, *command: str) -> None:
    try:
        tools.run(*command)
    except tools.MissingError as error:
        if os.environ.get("CI"):
            pytest.fail(f"{what} cannot be fetched: {error}")
        pytest.skip(f"COMPOSE.YAML IS NOT LINTED: {error}")


def test_compose_understands_every_profile() -> None:
    try:
        tools.fetch_docker()
    except tools.MissingError as error:
        pytest.skip(f"COMPOSE.YAML IS NOT READ: {error}")
    shown = yaml.safe_load(tools.run("docker", "compose", "--profile", "*", "config"))
    assert len(shown["services"]) == 13
    for service in shown["services"].values():
        for port in service.get("ports", []):
            assert port["host_ip"] == "127.0.0.1"


def test_the_linter_finds_nothing_high() -> None:
    # Medium is: images pinned by tag and not by digest, for digests are the registries' to tell.
    where = tools.home() / "lint"
    _fetched(
        "compose-lint", sys.executable, "-m", "pip", "install", "--quiet", "--target", str(where), "--upgrade", LINTER
    )
    said = tools.run(sys.executable, "-m", "compose_lint", "compose.yaml", env={**os.environ, "PYTHONPATH": str(where)})
    assert " PASS " in said
    # The other one is /tmp of vLLM, which compiles kernels and then loads them.
    assert set(re.findall(r"CL-\d+", said)) <= {"CL-0019", "CL-0022"}, said
