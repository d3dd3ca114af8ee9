"""Grafana's variables in queries: which there are, and their values where there is no Grafana."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

_REFERENCE: Final = re.compile(r"\$(?:\{(\w+)(?:[:.][^}]*)?\}|(\w+))")

GRAFANA_OWN: Final = frozenset({"__rate_interval", "__interval", "__range", "__value", "__url_time_range"})
"""What Grafana itself defines, as far as these dashboards use it."""


def used(text: str) -> set[str]:
    """Names of the variables that a text refers to."""
    return {braced or bare for braced, bare in _REFERENCE.findall(text)}


def fill(expression: str, values: Mapping[str, str]) -> str:
    """The expression with values in place of variables; an unknown variable stays as it is."""
    return _REFERENCE.sub(lambda match: values.get(match[1] or match[2], match[0]), expression)


def usual(engine: str, window: str = "1m") -> dict[str, str]:
    """Values for an engine: what Grafana would fill in at a scrape interval of a quarter of the window."""
    return {"engine": engine, "__rate_interval": window, "__interval": window, "__range": "1h"}
