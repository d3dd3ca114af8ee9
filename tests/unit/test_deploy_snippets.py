"""What the pages in docs/ offer to copy: the systemd unit, the compose snippet, the sysctls and the Ansible tasks."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from sidecar.config import SidecarSettings
from telemetry.settings import parse

ROOT = Path(__file__).parents[2]
UNIT = ROOT / "deploy/systemd/enginescope-sidecar.service"
SCENARIOS = ("text", "multimodal", "streaming")
SYSCTLS = ROOT / "deploy/sysctl"


def _help(*module: str) -> str:
    command = [sys.executable, "-m", *module, "--help"]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout


# --- docs/attach.md


def test_the_flags_and_variables_of_the_attach_page_are_the_sidecars() -> None:
    page = (ROOT / "docs/attach.md").read_text().split("## As a systemd unit")[0]
    named = set(re.findall(r"(?m)^\| `(--[a-z-]+)", page))
    assert named == set(re.findall(r"(?m)^  (--[a-z-]+)", _help("sidecar")))
    for variable in re.findall(r"ENGINESCOPE_SIDECAR_([A-Z_]+)", page):
        assert variable.lower() in SidecarSettings.__dataclass_fields__


def test_the_engines_that_the_attach_page_names_are_understood() -> None:
    page = (ROOT / "docs/attach.md").read_text()
    named = set(re.findall(r"--engine[ =]([A-Za-z]+=\w+:[^`\s,\]]+)", page))
    assert len(named) >= 3
    for engine in named:
        assert parse(SidecarSettings, "sidecar", [f"--engine={engine}"], {}).engine == engine


def test_the_compose_snippet_keeps_the_sidecar_out_of_the_engines_namespaces() -> None:
    (snippet,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs/attach.md").read_text(), re.S)
    services: dict[str, Any] = yaml.safe_load(snippet)["services"]
    for name in ("engine", "sidecar"):
        assert services[name]["network_mode"] == services[name]["pid"] == "service:pod"
        assert services[name]["user"] == "1000:1000"
        assert services[name]["depends_on"]["pod"]["restart"] is True
    for name in ("pod", "sidecar"):
        assert services[name]["read_only"] is True
        assert services[name]["cap_drop"] == ["ALL"]
    assert all(port.startswith("127.0.0.1:") for port in services["pod"]["ports"])
    for flag in services["sidecar"]["command"]:
        assert re.search(rf"{flag.split('=')[0]}\b", _help("sidecar"))


# --- deploy/systemd


def _unit() -> configparser.RawConfigParser:
    parser = configparser.RawConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read(UNIT)
    return parser


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    if not shutil.which("systemd-analyze"):
        pytest.skip("systemd-analyze is not here")
    text = UNIT.read_text().replace("/opt/enginescope/bin/python", sys.executable)
    copy = tmp_path / UNIT.name
    copy.write_text(text)
    done = subprocess.run(["systemd-analyze", "verify", copy], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_unit_gives_the_sidecar_what_it_takes_and_nothing_to_do_harm_with() -> None:
    service = _unit()["Service"]
    variables = dict(re.findall(r"(?m)^Environment=(\w+)=(.*)$", UNIT.read_text()))
    settings = parse(SidecarSettings, "sidecar", [], variables, "ENGINESCOPE_SIDECAR_")
    assert (settings.engine, settings.listen) == ("chat=port:8000", "127.0.0.1:9177")
    assert service["User"] != "root"
    assert service["CapabilityBoundingSet"] == ""
    assert service["NoNewPrivileges"] == "yes"
    assert service["Restart"] == "always"
    # Each of these would hide the engine.
    assert not {"PrivateNetwork", "PrivateUsers", "PrivateTmp", "ProtectProc", "ProcSubset"} & set(service)
    assert "AF_NETLINK" in service["RestrictAddressFamilies"]


# --- deploy/sysctl and deploy/ansible


def sysctls(scenario: str) -> dict[str, str]:
    """Name -> value of a scenario's file."""
    lines = (SYSCTLS / f"60-enginescope-{scenario}.conf").read_text().splitlines()
    pairs = (line.partition(" = ") for line in lines if line and not line.startswith("#"))
    return {name: value for name, _, value in pairs}


def _table() -> dict[str, dict[str, str]]:
    """Scenario -> row -> cell, of the first table of the page."""
    lines = [line for line in (ROOT / "docs/sysctls.md").read_text().splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    rows = rows[: next(index for index, row in enumerate(rows) if row[0] == "often read")]
    names = [row[0].strip("`") for row in rows[2:]]
    return {
        scenario: {name: row[column] for name, row in zip(names, rows[2:], strict=True) if row[column]}
        for column, scenario in enumerate(rows[0])
        if scenario in SCENARIOS
    }


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_page_has_the_values_of_the_files(scenario: str) -> None:
    written = _table()[scenario]
    backlog = int(written.pop("the engine's `--backlog"))
    assert written == sysctls(scenario)
    assert backlog <= int(sysctls(scenario)["net.core.somaxconn"])
    text = (SYSCTLS / f"60-enginescope-{scenario}.conf").read_text()
    assert f"--backlog {backlog}" in text


def test_the_ansible_tasks_install_each_scenario_with_built_in_modules() -> None:
    tasks: list[dict[str, Any]] = yaml.safe_load((ROOT / "deploy/ansible/sysctl.yaml").read_text())
    modules = [next(key for key in task if key.startswith("ansible.")) for task in tasks]
    assert modules == [f"ansible.builtin.{name}" for name in ("assert", "copy", "command", "debug")]
    assert all(task["name"] for task in tasks)
    assert all(f'"{scenario}"' in tasks[0]["ansible.builtin.assert"]["that"] for scenario in SCENARIOS)
    assert "60-enginescope-{{ enginescope_scenario }}.conf" in tasks[1]["ansible.builtin.copy"]["src"]
    assert {path.name for path in SYSCTLS.iterdir()} == {f"60-enginescope-{scenario}.conf" for scenario in SCENARIOS}
