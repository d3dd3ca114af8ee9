"""Which alert holds back which others, as Alertmanager's configuration has it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml

from alerts.catalogue import ROOT, Alert

ALERTMANAGER: Final = ROOT.parent / "deploy" / "alertmanager.yaml"

_MATCHER: Final = re.compile(r"""\s*(\w+)\s*(=~|!~|!=|=)\s*"((?:\\.|[^"\\])*)"\s*""")


class MatcherError(ValueError):
    """A matcher that is not written as Alertmanager writes them; the message is one sentence."""


def matches(matchers: Sequence[str], labels: Mapping[str, str]) -> bool:
    """Whether labels satisfy all of Alertmanager's matchers; a label that is missing is empty.

    Raises:
        MatcherError: one of them is none.
    """
    return all(_matches(matcher, labels) for matcher in matchers)


def _matches(matcher: str, labels: Mapping[str, str]) -> bool:
    parsed = _MATCHER.fullmatch(matcher)
    if parsed is None:
        raise MatcherError(f'{matcher!r} is not a matcher such as severity="critical"')
    name, operator, wanted = parsed.groups()
    found = labels.get(name, "")
    same = found == wanted if operator in ("=", "!=") else re.fullmatch(wanted, found) is not None
    return same is not operator.startswith("!")


@cache
def inhibit_rules(path: Path = ALERTMANAGER) -> list[dict[str, Any]]:
    """The rules as the configuration has them."""
    rules: list[dict[str, Any]] = yaml.safe_load(path.read_text())["inhibit_rules"]
    return rules


def holds_back(source: Alert, target: Alert, path: Path = ALERTMANAGER) -> bool:
    """Whether one alert, while it fires, keeps another of the same engine, port and process from being sent."""
    if source.alert == target.alert:
        return False
    return any(
        matches(rule["source_matchers"], _labels(source)) and matches(rule["target_matchers"], _labels(target))
        for rule in inhibit_rules(path)
    )


def _labels(alert: Alert) -> dict[str, str]:
    # Severity "none" marks what speaks of no engine.
    engine = {} if alert.severity == "none" else {"engine": "engine"}
    return {"alertname": alert.alert, "severity": alert.severity, **engine}
