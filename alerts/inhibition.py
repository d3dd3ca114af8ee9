"""Which alert holds back which others: written in the failure folders, generated into Alertmanager's configuration."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml

from alerts.catalogue import ROOT, Alert, AlertError
from alerts.marked import fill

ALERTMANAGER: Final = ROOT.parent / "deploy" / "alertmanager.yaml"

_BEGIN: Final = "# <inhibition, written by `python -m alerts.build`>"
_END: Final = "# </inhibition>"
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


def render(found: Sequence[Alert]) -> str:
    """The inhibit rules of the folders, as YAML at the indentation of a list in a mapping.

    Raises:
        AlertError: a folder names a failure that does not exist, or two failures would hold each other back.
    """
    _check(found)
    names = {alert.name: alert.alert for alert in found}
    targets: dict[tuple[str, tuple[str, ...]], list[str]] = defaultdict(list)
    for alert in found:
        for source, labels in alert.inhibited_by.items():
            targets[names[source], labels].append(alert.alert)
    return "".join(_rule(source, labels, targets[source, labels]) for source, labels in sorted(targets))


def _rule(source: str, labels: Sequence[str], targets: Sequence[str]) -> str:
    return (
        f"  - source_matchers: ['alertname=\"{source}\"', 'engine!=\"\"']\n"
        f"    target_matchers: ['alertname=~\"{'|'.join(sorted(targets))}\"', 'engine!=\"\"']\n"
        f"    equal: [{', '.join(labels)}]\n"
    )


def fill_in(found: Sequence[Alert], path: Path = ALERTMANAGER) -> str:
    """The configuration with its inhibit rules brought up to date.

    Raises:
        AlertError: as ``render``, or the configuration lacks the markers.
    """
    return fill(path, _BEGIN, _END, render(found))


def _check(found: Sequence[Alert]) -> None:
    by_name = {alert.name: alert for alert in found}
    for alert in found:
        for source in alert.inhibited_by:
            if source not in by_name:
                raise AlertError(f"{alert.rule_file} is inhibited by {source!r}, which is no failure")
        if alert.name in _sources(alert, by_name, set()):
            raise AlertError(f"{alert.rule_file}: {alert.alert} would hold back itself, by way of what it holds back")


def _sources(alert: Alert, by_name: Mapping[str, Alert], seen: set[str]) -> Iterator[str]:
    """Everything that holds an alert back, and what holds that back."""
    for source in alert.inhibited_by.keys() - seen:
        seen.add(source)
        yield source
        if source in by_name:
            yield from _sources(by_name[source], by_name, seen)
