"""Every failure folder keeps the contract, promtool agrees, and the contract can really be broken."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from alerts import build
from alerts.catalogue import BUILT, ROOT, alerts
from alerts.contract import metrics_in, problems
from enginescope import toolchain

TEST_FILES = [path for alert in alerts() for path in alert.test_files]


@pytest.fixture(scope="module")
def promtool() -> Path:
    try:
        return toolchain.find("promtool")
    except toolchain.ToolMissingError as error:
        if os.environ.get("CI"):
            pytest.fail(f"alert rules are not tested: {error}")
        pytest.skip(f"ALERT RULES ARE NOT TESTED: {error}")


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The failure folders, to be broken."""
    return Path(shutil.copytree(ROOT, tmp_path / "alerts", ignore=shutil.ignore_patterns("__pycache__")))


def _promtool(promtool: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([promtool, *arguments], check=False, capture_output=True, text=True, timeout=60)


def _problems(root: Path) -> list[str]:
    return problems(root, root / "built" / BUILT.name)


def test_the_shipped_folders_keep_the_contract() -> None:
    assert problems() == []


def test_promtool_accepts_the_built_rules(promtool: Path) -> None:
    done = _promtool(promtool, "check", "rules", BUILT)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", TEST_FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_promtool_passes_the_rule_tests(promtool: Path, path: Path) -> None:
    done = _promtool(promtool, "test", "rules", path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("factor", [0.01, 0.1, 2.0])
def test_scaled_rules_are_rules(promtool: Path, tmp_path: Path, factor: float) -> None:
    output = tmp_path / "rules.yaml"
    assert build.main(["--output", str(output), "--time-scale", str(factor)]) == 0
    done = _promtool(promtool, "check", "rules", output)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("threshold", ["0.95", "0.0"])
def test_the_rule_tests_notice_another_threshold(promtool: Path, copy: Path, threshold: str) -> None:
    rule = copy / "tcp_backlog_full" / "rule.yaml"
    rule.write_text(rule.read_text().replace(">= 0.8", f">= {threshold}"))
    assert build.main(["--folders", str(copy), "--output", str(copy / "built" / BUILT.name)]) == 0
    test = copy / "tcp_backlog_full" / "test.yaml"
    assert _promtool(promtool, "test", "rules", test).returncode == 1


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("connection_growth", "connections:sum[5m] offset 5m", "connections:sum[5m]"),
        ("fd_growth", "open_fds:max[10m] offset 10m", "open_fds:max[10m]"),
        ("fd_exhausted", "> 0.9", "> 0.95"),
        ("connections_near_limit", "established|close_wait", "established"),
        ("close_wait_leak", '{kind="owned"}', ""),
    ],
)
def test_the_rule_tests_notice_half_a_rule(promtool: Path, copy: Path, name: str, old: str, new: str) -> None:
    rule = copy / name / "rule.yaml"
    assert old in rule.read_text()
    rule.write_text(rule.read_text().replace(old, new))
    assert build.main(["--folders", str(copy), "--output", str(copy / "built" / BUILT.name)]) == 0
    assert _promtool(promtool, "test", "rules", copy / name / "test.yaml").returncode == 1


def test_an_unbroken_copy_has_no_problems(copy: Path) -> None:
    assert _problems(copy) == []


@pytest.mark.parametrize("name", ["rule.yaml", "test.yaml", "runbook.md", "drill.py"])
def test_a_missing_file_is_a_problem(copy: Path, name: str) -> None:
    (copy / "engine_down" / name).unlink()
    assert f"{copy}/engine_down/{name} is missing" in _problems(copy)


@pytest.mark.parametrize(
    ("name", "old", "new", "sentence"),
    [
        ("rule.yaml", "enginescope_engine_up", "enginescope_engine_alive", "uses enginescope_engine_alive"),
        ("rule.yaml", "is down:", "{{ query `enginescope_gone` }}", "uses enginescope_gone"),
        ("rule.yaml", "severity: critical", "severity: urgent", "has severity 'urgent'"),
        ("rule.yaml", "summary:", "title:", "lacks a summary or a description"),
        ("rule.yaml", "for: 30s", "for: 31s", "is out of date"),
        ("test.yaml", "enginescope_listener_up", "enginescope_listener_there", "uses enginescope_listener_there"),
        ("test.yaml", "alertname: EngineDown", "alertname: EngineGone", "expects EngineDown to fire"),
        ("runbook.md", "## Impact", "## Effect", "has the headings"),
        ("runbook.md", "# EngineDown\n", "# EngineGone\n", "is not titled EngineDown"),
        ("drill.py", "def evidence", "def proof", "lacks evidence"),
        ("drill.py", '"""Kills', '# """Kills', "has no docstring"),
        ("drill.py", "\n\n\n@", '\nNEEDS = "luck"\n\n@', "needs 'luck', not one of gpu, "),
        ("drill.py", "\n\n\n@", "\nNEEDS = signal\n\n@", "no literals"),
        (
            "drill.py",
            "\n\n\n@",
            '\nMAY_ALSO_PAGE = {"Nothing": "why"}\n\n@',
            "with a reason, not 'Nothing'",
        ),
        ("drill.py", "\n\n\n@", '\nMAY_ALSO_PAGE = {"SidecarDown": ""}\n\n@', "takes alerts with a reason"),
        ("drill.py", "\n\n\n@", '\nMAY_ALSO_PAGE = {"FDGrowth": "why"}\n\n@', "because EngineDown holds it back"),
    ],
)
def test_a_broken_folder_is_a_problem(copy: Path, name: str, old: str, new: str, sentence: str) -> None:
    path = copy / "engine_down" / name
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    assert any(sentence in problem for problem in _problems(copy))


@pytest.mark.parametrize(
    ("name", "old", "new", "sentence"),
    [
        ("rule.yaml", "fd_exhausted: [engine, process]", "fd_gone: [engine]", "is inhibited by 'fd_gone', which is no"),
        ("rule.yaml", "fd_exhausted: [engine, process]", "fd_growth: [engine]", "FDGrowth would hold back itself"),
        ("rule.yaml", "[engine, process]", "[process]", "inhibited_by takes failures, each with a list of labels"),
        ("rule.yaml", "[engine, process]", "[engine, port]", "no test of FDGrowth expects the label port"),
        (
            "rule.yaml",
            "fd_exhausted: [engine, process]",
            "close_wait_leak: [engine]",
            "alertmanager.yaml is out of date",
        ),
        ("runbook.md", "FDExhausted", "Something", "does not say that FDExhausted holds it back"),
    ],
)
def test_what_holds_an_alert_back_is_checked(copy: Path, name: str, old: str, new: str, sentence: str) -> None:
    path = copy / "fd_growth" / name
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    found = _problems(copy)
    assert any(sentence in problem for problem in found), found


def test_two_alerts_that_hold_each_other_back_are_a_problem(copy: Path) -> None:
    path = copy / "fd_exhausted" / "rule.yaml"
    path.write_text("inhibited_by: {fd_growth: [engine]}\n" + path.read_text())
    assert any("would hold back itself" in problem for problem in _problems(copy))


def test_a_recorded_name_belongs_to_its_folder(copy: Path) -> None:
    rule = copy / "engine_down" / "rule.yaml"
    rule.write_text(rule.read_text().replace("enginescope_engine_up", "engine_port:listener_accept_queue_fill:ratio"))
    assert any("engine_port:listener_accept_queue_fill:ratio" in problem for problem in _problems(copy))


def test_a_half_named_recording_rule_is_a_problem(copy: Path) -> None:
    rule = copy / "tcp_backlog_full" / "rule.yaml"
    rule.write_text(rule.read_text().replace("engine_port:listener_accept_queue_fill:ratio", "fill_ratio"))
    assert any("level:metric:operations" in problem for problem in _problems(copy))


@pytest.mark.parametrize(
    ("expression", "metrics"),
    [
        ('up{job="enginescope"} == 0 or absent(up{job="x"})', {"up"}),
        ("sum by (engine, port) (rate(a_total[5m])) / on (engine) group_left (role) b", {"a_total", "b"}),
        ("a:b:c offset 5m > bool 0.8 and on () vector(1) unless d", {"a:b:c", "d"}),
        ('label_replace(x{a=~"b|c}"}, "k", "$1", "z", "(.*) y")', {"x"}),
        ("histogram_quantile(0.99, sum by (le) (rate(h_bucket[1m:15s]))) > 1e3", {"h_bucket"}),
        ("-q + Inf", {"q"}),
    ],
)
def test_metrics_in_an_expression(expression: str, metrics: set[str]) -> None:
    assert metrics_in(expression) == metrics
