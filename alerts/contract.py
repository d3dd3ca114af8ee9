"""What every failure folder must keep; ``problems`` says in sentences where one does not.

promtool proves that rules behave. This proves what promtool cannot know: that metrics exist in the catalogue, that all
four files are there, and that the built file is the folders'.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml

from alerts.build import build
from alerts.catalogue import BUILT, ROOT, Alert, AlertError, alert_name, alerts, folders
from alerts.inhibition import ALERTMANAGER, fill_in, holds_back
from enginescope.drills.needs import NEEDS
from telemetry.catalog import METRICS, Kind

FILES: Final = ("rule.yaml", "test.yaml", "runbook.md", "drill.py")
HEADINGS: Final = ["Meaning", "Impact", "Diagnosis", "Mitigation"]
SEVERITIES: Final = ("critical", "warning", "info", "none")

_PROMETHEUS_OWN: Final = {"up", "ALERTS"}
_RECORDED: Final = re.compile(r"[a-z_]+:[a-z0-9_]+:[a-z0-9_]+")
_STRING: Final = re.compile(r""""(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'""")
_NOT_METRICS: Final = re.compile(
    r"""
    \{[^}]*\} | \[[^\]]*\]                                                # matchers, windows
    | \b(?:by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)       # lists of labels
    | \boffset\s+-?\w+
    | \b(?:and|or|unless|bool|group_left|group_right|inf|nan)\b
    """,
    re.VERBOSE | re.IGNORECASE,
)


def metrics_in(expression: str) -> set[str]:
    """Names of the metrics that a PromQL expression reads."""
    bare = _NOT_METRICS.sub(" ", _STRING.sub("", expression))
    return set(re.findall(r"(?<![\w:.])[a-zA-Z_:][\w:]*(?![\w:]|\s*\()", bare))


def problems(root: Path = ROOT, built: Path = BUILT) -> list[str]:
    """Everything that is wrong; empty when all is well."""
    found = [
        f"{folder / name} is missing" for folder in folders(root) for name in FILES if not (folder / name).is_file()
    ]
    try:
        all_alerts = alerts(root)
    except AlertError as error:
        return [*found, str(error)]
    for alert in all_alerts:
        found += _rule_problems(alert)
        found += _test_problems(alert)
        found += _runbook_problems(alert)
        found += _inhibition_problems(alert, {other.name: other for other in all_alerts})
        found += _drill_problems(alert, {other.alert: other for other in all_alerts})
    if not built.is_file() or built.read_text() != build(all_alerts):
        found.append(f"{built} is out of date: run `python -m alerts.build`")
    try:
        if ALERTMANAGER.read_text() != fill_in(all_alerts):
            found.append(f"{ALERTMANAGER} is out of date: run `python -m alerts.build`")
    except AlertError as error:
        found.append(str(error))
    return found


def exposed() -> set[str]:
    """Every name that PromQL can read: of the catalogue and of Prometheus itself."""
    names = set(_PROMETHEUS_OWN)
    for metric in METRICS:
        suffixes = ("_bucket", "_sum", "_count") if metric.kind is Kind.HISTOGRAM else ("",)
        names.update(metric.name + suffix for suffix in suffixes)
    return names


def _unknown(alert: Alert, path: Path, expressions: Iterator[str]) -> Iterator[str]:
    known = exposed() | {rule["record"] for rule in alert.rules if "record" in rule}
    used = set().union(*(metrics_in(expression) for expression in expressions))
    for name in sorted(used - known):
        yield f"{path} uses {name}, which is neither in telemetry.catalog nor recorded in this folder"


def _rule_problems(alert: Alert) -> Iterator[str]:
    yield from _unknown(alert, alert.rule_file, _rule_expressions(alert))
    for severity in (rule["labels"]["severity"] for rule in alert.rules if "alert" in rule):
        if severity not in SEVERITIES:
            yield f"{alert.rule_file} has severity {severity!r}, not one of {', '.join(SEVERITIES)}"
    for rule in alert.rules:
        if "record" in rule and not _RECORDED.fullmatch(rule["record"]):
            yield f"{alert.rule_file} records {rule['record']!r}, which is not named level:metric:operations"
        if "alert" in rule and not {"summary", "description"} <= rule.get("annotations", {}).keys():
            yield f"{alert.rule_file} lacks a summary or a description"


def _rule_expressions(alert: Alert) -> Iterator[str]:
    for rule in alert.rules:
        yield rule["expr"]
        # Queries in annotations are inside strings of a template; whatever looks like one of our metrics counts.
        yield from (
            name for text in rule.get("annotations", {}).values() for name in re.findall(r"enginescope_\w+", text)
        )


def _test_problems(alert: Alert) -> Iterator[str]:
    expected = set()
    for path in alert.test_files:
        tests = yaml.safe_load(path.read_text())["tests"]
        yield from _unknown(alert, path, _test_expressions(tests))
        expected |= {
            bool(step["exp_alerts"])
            for test in tests
            for step in test.get("alert_rule_test", [])
            if step["alertname"] == alert.alert
        }
    if True not in expected:
        yield f"no test of {alert.folder} expects {alert.alert} to fire"
    if False not in expected and alert.severity != "none":
        yield f"no test of {alert.folder} expects {alert.alert} to stay silent"


def _test_expressions(tests: list[dict[str, Any]]) -> Iterator[str]:
    for test in tests:
        yield from (series["series"] for series in test.get("input_series", []))
        yield from (step["expr"] for step in test.get("promql_expr_test", []))


def _runbook_problems(alert: Alert) -> Iterator[str]:
    if not alert.runbook.is_file():
        return
    text = alert.runbook.read_text()
    headings = re.findall(r"^## (.+)$", text, re.MULTILINE)
    if headings != HEADINGS:
        yield f"{alert.runbook} has the headings {headings}, not {HEADINGS}"
    if not text.startswith(f"# {alert.alert}\n"):
        yield f"{alert.runbook} is not titled {alert.alert}"
    for source in alert.inhibited_by:
        if alert_name(source) not in text:
            yield f"{alert.runbook} does not say that {alert_name(source)} holds it back"


def _inhibition_problems(alert: Alert, known: dict[str, Alert]) -> Iterator[str]:
    """A label that must be equal and that one side lacks would hold back nothing, or the wrong thing."""
    for source, labels in alert.inhibited_by.items():
        for side in (alert, known[source]) if source in known else ():
            if missing := set(labels) - _labels(side):
                yield f"{alert.rule_file}: no test of {side.alert} expects the label {' or '.join(sorted(missing))}"


def _labels(alert: Alert) -> set[str]:
    """Labels that the alert has in its tests."""
    return {
        label
        for path in alert.test_files
        for test in yaml.safe_load(path.read_text())["tests"]
        for step in test.get("alert_rule_test", [])
        for expected in (step["exp_alerts"] if step["alertname"] == alert.alert else [])
        for label in expected["exp_labels"]
    }


def _drill_problems(alert: Alert, known: dict[str, Alert]) -> Iterator[str]:
    path = alert.folder / "drill.py"
    if not path.is_file():
        return
    module = ast.parse(path.read_text())
    functions = {node.name for node in module.body if isinstance(node, ast.FunctionDef)}
    if not ast.get_docstring(module):
        yield f"{path} has no docstring that says what it breaks"
    if missing := {"inject", "evidence"} - functions:
        yield f"{path} lacks {' and '.join(sorted(missing))}"
    yield from _declaration_problems(alert, path, module, known)


def _declaration_problems(alert: Alert, path: Path, module: ast.Module, known: dict[str, Alert]) -> Iterator[str]:
    try:
        wanted, others = _declared(module, "NEEDS", ()), _declared(module, "MAY_ALSO_PAGE", {})
    except ValueError:
        yield f"{path} has NEEDS or MAY_ALSO_PAGE that are no literals"
        return
    for need in [wanted] if isinstance(wanted, str) else wanted:
        if need not in NEEDS:
            yield f"{path} needs {need!r}, not one of {', '.join(NEEDS)}"
    for name, why in others.items():
        if name not in known or not why:
            yield f"{path}: MAY_ALSO_PAGE takes alerts with a reason, not {name!r}: {why!r}"
        elif holds_back(alert, known[name]):
            yield f"{path}: {name} may not page too, because {alert.alert} holds it back"


def _declared(module: ast.Module, name: str, default: Any) -> Any:
    """The literal value of a module's constant."""
    for node in module.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            return ast.literal_eval(getattr(node, "value", None) or ast.Constant(None))
    return default
