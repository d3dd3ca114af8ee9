"""The shipped configurations are valid, say what the alerts need, and fit a local stack once rendered."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from alerts.catalogue import BUILT, alerts
from deploy import render
from enginescope import toolchain


def _tool(name: str) -> Path:
    try:
        return toolchain.find(name)
    except toolchain.ToolMissingError as error:
        if os.environ.get("CI"):
            pytest.fail(f"configurations are not checked: {error}")
        pytest.skip(f"CONFIGURATIONS ARE NOT CHECKED: {error}")


def _check(tool: str, *arguments: str | Path) -> None:
    done = subprocess.run([_tool(tool), *arguments], check=False, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def prometheus() -> str:
    return render.render_prometheus(
        engine="chat",
        sidecar="127.0.0.1:19177",
        prometheus="127.0.0.1:19090",
        alertmanager="127.0.0.1:19093",
        rules=BUILT,
    )


@pytest.fixture
def alertmanager() -> str:
    return render.render_alertmanager(page_receiver="127.0.0.1:19095")


def test_promtool_accepts_the_shipped_prometheus_configuration() -> None:
    _check("promtool", "check", "config", render.FOLDER / "prometheus.yaml")


def test_amtool_accepts_the_shipped_alertmanager_configuration() -> None:
    _check("amtool", "check-config", render.FOLDER / "alertmanager.yaml")


def test_amtool_accepts_the_commented_receivers(tmp_path: Path) -> None:
    text = (render.FOLDER / "alertmanager.yaml").read_text()
    uncommented = re.sub(r"(?m)^(\s*)# (?=smtp_|(?:pagerduty|slack|email)_configs:|\s)", r"\1", text)
    assert {"pagerduty_configs", "slack_configs", "email_configs"} <= {
        key for receiver in yaml.safe_load(uncommented)["receivers"] for key in receiver
    }
    assert "password:" not in text
    (tmp_path / "alertmanager.yaml").write_text(uncommented)
    _check("amtool", "check-config", tmp_path / "alertmanager.yaml")


def test_the_rendered_configurations_are_valid(prometheus: str, alertmanager: str, tmp_path: Path) -> None:
    (tmp_path / "prometheus.yaml").write_text(prometheus)
    (tmp_path / "alertmanager.yaml").write_text(alertmanager)
    _check("promtool", "check", "config", tmp_path / "prometheus.yaml")
    _check("amtool", "check-config", tmp_path / "alertmanager.yaml")


def test_prometheus_is_rendered_for_one_engine_every_second(prometheus: str) -> None:
    config = yaml.safe_load(prometheus)
    assert set(config["global"].values()) == {"1s"}
    assert config["rule_files"] == [str(BUILT)]
    job = config["scrape_configs"][0]
    assert job["job_name"] == "enginescope"
    assert job["static_configs"] == [{"targets": ["127.0.0.1:19177"], "labels": {"engine": "chat"}}]
    assert "9177" not in prometheus.replace("19177", "")
    assert "9090" not in prometheus.replace("19090", "")
    assert "9093" not in prometheus.replace("19093", "")


def test_alertmanager_is_rendered_to_send_at_once_to_the_page_receiver(alertmanager: str) -> None:
    config = yaml.safe_load(alertmanager)
    urls = {item["name"]: item["webhook_configs"][0]["url"] for item in config["receivers"]}
    assert urls == {
        "page": "http://127.0.0.1:19095/webhook",
        "ticket": "http://127.0.0.1:19095/webhook",
        "deadman": "http://127.0.0.1:19095/deadman",
    }
    routes = [config["route"], *config["route"]["routes"]]
    assert {route["group_wait"] for route in routes} == {"0s"}
    assert config["inhibit_rules"] == yaml.safe_load((render.FOLDER / "alertmanager.yaml").read_text())["inhibit_rules"]


@pytest.mark.parametrize(
    ("labels", "receiver"),
    [
        ("alertname=TCPBacklogFull severity=critical", "page"),
        ("alertname=FDExhausted severity=critical", "page"),
        ("alertname=ConnectionGrowth severity=warning", "ticket"),
        ("alertname=Odd severity=urgent", "ticket"),
        ("alertname=Watchdog severity=none", "deadman"),
    ],
)
def test_routes(labels: str, receiver: str) -> None:
    config = f"--config.file={render.FOLDER / 'alertmanager.yaml'}"
    _check("amtool", "config", "routes", "test", config, f"--verify.receivers={receiver}", *labels.split())


def test_inhibition_names_alerts_that_exist_and_needs_an_engine() -> None:
    known = {alert.alert for alert in alerts()}
    rules: list[dict[str, Any]] = yaml.safe_load((render.FOLDER / "alertmanager.yaml").read_text())["inhibit_rules"]
    for rule in rules:
        for side in ("source_matchers", "target_matchers"):
            assert 'engine!=""' in rule[side]
            named = re.findall(r'alertname(?:!?=|=~)"([\w|]+)"', " ".join(rule[side]))
            assert named
            assert set("|".join(named).split("|")) <= known


def test_commands_switch_exemplars_on_and_gossip_off(tmp_path: Path) -> None:
    prometheus = render.prometheus_command(Path("p"), tmp_path / "c", tmp_path / "d", "127.0.0.1:1")
    assert "--enable-feature=exemplar-storage" in prometheus
    alertmanager = render.alertmanager_command(Path("a"), tmp_path / "c", tmp_path / "d", "127.0.0.1:1")
    assert "--cluster.listen-address=" in alertmanager
