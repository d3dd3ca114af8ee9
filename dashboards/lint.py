"""Faults of dashboards that Grafana would accept and show as an empty or a misleading panel.

It reads the JSON and not the builders, so that it also judges what was exported or edited by hand.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from alerts.catalogue import alerts
from alerts.contract import exposed, metrics_in
from dashboards.places import PLACES
from dashboards.variables import GRAFANA_OWN, fill, used, usual
from enginescope.toolchain import ToolMissingError, find

Json = dict[str, Any]

_COLUMNS: Final = 24
_NEEDS: Final = ("uid", "title", "description", "schemaVersion", "panels", "templating", "annotations", "time")
_TYPES: Final = frozenset({"row", "stat", "timeseries", "state-timeline", "heatmap", "table", "traces", "text"})
_WITHOUT_UNIT: Final = frozenset({"row", "text", "traces"})
_UNITS: Final = frozenset(
    {"none", "short", "s", "bytes", "Bps", "percentunit", "reqps", "ops", "cps", "watt", "joule", "string"}
)
_SOURCES: Final = ("${datasource}", "${traces}")
_PANEL_LINK: Final = re.compile(r"/d/([\w-]+)\?viewPanel=(\d+)")
_OUTSIDE_RATE: Final = re.compile(r"(?<!rate\()(?<!increase\()\b(enginescope_\w+_total|enginescope_\w+_bucket)\b")


def lint(found: Sequence[Json]) -> list[str]:
    """Every fault of these dashboards, as a sentence each."""
    problems = [problem for dashboard in found for problem in _dashboard(dashboard)]
    return [*problems, *_together(found), *parse_problems(found)]


def panels_of(dashboard: Json) -> list[Json]:
    """Its panels, headlines of rows included, those of collapsed rows too."""
    return [each for panel in dashboard.get("panels", []) for each in (panel, *panel.get("panels", []))]


def expressions(dashboard: Json) -> Iterator[tuple[str, str]]:
    """Where each PromQL expression stands, and what it says."""
    for panel in panels_of(dashboard):
        for target in panel.get("targets", []):
            if "expr" in target:
                yield f"panel {panel.get('id')}, query {target.get('refId')}", target["expr"]
    for annotation in dashboard.get("annotations", {}).get("list", []):
        if "expr" in annotation:
            yield f"annotation {annotation.get('name')}", annotation["expr"]


# --- one dashboard


def _dashboard(dashboard: Json) -> Iterator[str]:
    name = dashboard.get("uid", "a dashboard without uid")
    faults = (_structure, _grid, _words, _variables, _promql)
    yield from (f"{name}: {fault}" for find_faults in faults for fault in find_faults(dashboard))


def _structure(dashboard: Json) -> Iterator[str]:
    yield from (f"has no {key}" for key in _NEEDS if not dashboard.get(key))
    if dashboard.get("editable", True):
        yield "is editable, so that what Grafana shows can differ from what is in the repository"
    for panel in panels_of(dashboard):
        where = f"panel {panel.get('id')}"
        if panel.get("type") not in _TYPES:
            yield f"{where} has the unknown type {panel.get('type')!r}"
        targets = panel.get("targets", [])
        if not targets and panel.get("type") not in ("row", "text"):
            yield f"{where} has no query"
        yield from (f"{where}: the data source of {one} is no variable" for one in _fixed_sources(panel))
        repeated = [ref for ref, count in Counter(target.get("refId") for target in targets).items() if count > 1]
        yield from (f"{where} has several queries {ref}" for ref in repeated)


def _fixed_sources(panel: Json) -> list[str]:
    if panel.get("type") in ("row", "text"):
        return []
    sources = {"the panel": panel, **{f"query {one.get('refId')}": one for one in panel.get("targets", [])}}
    return [name for name, one in sources.items() if one.get("datasource", {}).get("uid") not in _SOURCES]


def _grid(dashboard: Json) -> Iterator[str]:
    taken: dict[tuple[int, int], Any] = {}
    for panel in dashboard.get("panels", []):
        place = panel.get("gridPos", {})
        if any(not isinstance(place.get(key), int) for key in "xywh"):
            yield f"panel {panel.get('id')} has no place in the grid"
            continue
        if place["x"] < 0 or place["w"] < 1 or place["h"] < 1 or place["x"] + place["w"] > _COLUMNS:
            yield f"panel {panel['id']} leaves the grid of {_COLUMNS} columns"
        cells = [
            (x, y)
            for y in range(place["y"], place["y"] + place["h"])
            for x in range(place["x"], place["x"] + place["w"])
        ]
        if overlapped := {taken[cell] for cell in cells if cell in taken}:
            yield f"panel {panel['id']} overlaps panel {', '.join(map(str, sorted(overlapped)))}"
        taken.update(dict.fromkeys(cells, panel["id"]))
    bottom = max((y for _, y in taken), default=-1)
    gaps = {y for y in range(bottom + 1) for x in range(_COLUMNS) if (x, y) not in taken}
    if gaps:
        yield f"has a gap in the grid at line {min(gaps)}"


def _words(dashboard: Json) -> Iterator[str]:
    for panel in panels_of(dashboard):
        where = f"panel {panel.get('id')}"
        if not panel.get("title"):
            yield f"{where} has no title"
        if panel.get("type") == "row":
            continue
        if not str(panel.get("description", "")).rstrip().endswith("."):
            yield f"{where} has no description in whole sentences"
        unit = panel.get("fieldConfig", {}).get("defaults", {}).get("unit")
        if panel.get("type") not in _WITHOUT_UNIT and unit not in _UNITS:
            yield f"{where} has the unit {unit!r}, which is not one of ours"
    titles = Counter(panel.get("title") for panel in panels_of(dashboard))
    yield from (f"has several panels titled {title!r}" for title, count in titles.items() if count > 1)


def _variables(dashboard: Json) -> Iterator[str]:
    known = {variable.get("name") for variable in dashboard.get("templating", {}).get("list", [])} | GRAFANA_OWN
    for where, text in _texts(dashboard, str(dashboard.get("uid"))):
        yield from (f"{where} uses the variable ${name}, which is not defined" for name in sorted(used(text) - known))


def _texts(value: object, where: str) -> Iterator[tuple[str, str]]:
    """Every text below a value, with the id or name of the nearest thing that has one."""
    if isinstance(value, str):
        yield where, value
    elif isinstance(value, Mapping):
        here = f"{'panel' if 'id' in value else 'variable'} {value.get('id', value.get('name'))}"
        named = isinstance(value.get("id"), int) or "name" in value
        for each in value.values():
            yield from _texts(each, here if named else where)
    elif isinstance(value, Iterable):
        for each in value:
            yield from _texts(each, where)


def _promql(dashboard: Json) -> Iterator[str]:
    known = exposed() | recorded()
    for where, expression in expressions(dashboard):
        names = metrics_in(expression)
        yield from (
            f"{where} reads {name}, which neither the catalogue nor a rule has" for name in sorted(names - known)
        )
        if "vector(" in expression:
            yield f"{where} invents a value with vector() where there is none"
        if "engine=" not in expression and "Watchdog" not in expression:
            yield f"{where} reads every engine at once"
        if expression.count("engine=") < len(names & exposed()) - ("Watchdog" in expression):
            yield f"{where} reads something of every engine"
        yield from (f"{where} reads {name} without a rate" for name in sorted(set(_OUTSIDE_RATE.findall(expression))))
        if re.search(r"\b(?:rate|increase)\([^()]*\[(?!\$__rate_interval\])", expression):
            yield f"{where} has a rate over a window that does not follow the scrape interval"


def recorded() -> set[str]:
    """Every name that a recording rule of an alert makes."""
    return {rule["record"] for alert in alerts() for rule in alert.rules if "record" in rule}


# --- all of them


def _together(found: Sequence[Json]) -> Iterator[str]:
    uids = Counter(dashboard.get("uid") for dashboard in found)
    yield from (f"several dashboards have the uid {uid}" for uid, count in uids.items() if count > 1)
    ids = Counter(panel.get("id") for dashboard in found for panel in panels_of(dashboard))
    yield from (f"several panels have the id {number}" for number, count in ids.items() if count > 1)
    there = {(dashboard.get("uid"), panel.get("id")) for dashboard in found for panel in panels_of(dashboard)}
    for failure, place in PLACES.items():
        if tuple(place) not in there:
            yield f"{failure} is seen in panel {place.panel} of {place.dashboard}, which is not there"
    for dashboard in found:
        for where, text in _texts(dashboard, str(dashboard.get("uid"))):
            for uid, panel in _PANEL_LINK.findall(text):
                if (uid, int(panel)) not in there:
                    yield f"{dashboard.get('uid')}: {where} leads to panel {panel} of {uid}, which is not there"
    yield from (
        f"no panel is named for the failure {alert.name}: add it to dashboards/places.py"
        for alert in alerts()
        if alert.name not in PLACES
    )


def parse_problems(found: Sequence[Json]) -> list[str]:
    """What Prometheus's own parser refuses; nothing when promtool is not there to ask."""
    try:
        promtool = find("promtool")
    except ToolMissingError:
        return []
    asked = {
        f"{dashboard.get('uid')}: {where}": fill(expression, usual("engine"))
        for dashboard in found
        for where, expression in expressions(dashboard)
    }
    if not _refused(promtool, asked):
        return []
    # One bad expression makes promtool refuse the file: ask again one by one to tell which.
    answers = {where: _refused(promtool, {where: expression}) for where, expression in asked.items()}
    return [f"{where} is no PromQL: {answer}" for where, answer in answers.items() if answer]


def _refused(promtool: Path, asked: Mapping[str, str]) -> str:
    """What promtool says against the expressions, as the rules of one file; empty when it takes them."""
    rules = [{"record": f"lint:{number}", "expr": expression} for number, expression in enumerate(asked.values())]
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump({"groups": [{"name": "lint", "rules": rules}]}, file)
        file.flush()
        done = subprocess.run([promtool, "check", "rules", file.name], capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return ""
    said = [line for line in (done.stdout + done.stderr).splitlines() if "parse" in line or "error" in line.lower()]
    return said[-1].strip() if said else f"promtool ended with status {done.returncode}"
