"""Texts for numbers that are states, and reasons that several panels share."""

from __future__ import annotations

from typing import Final

from dashboards.model import Limit, Word

PORT: Final = "{{role}} {{port}}"
"""The legend of a series of a port."""
THREAD: Final = "{{process}} {{kind}}"

UP: Final = {0: Word("down", "red"), 1: Word("up", "green")}
THERE: Final = {0: Word("gone", "red"), 1: Word("there", "green")}
FOUND: Final = {0: Word("no", "green"), 1: Word("yes", "red")}

NONE_IS_GOOD: Final = (Limit(1, "red"),)
"""A count that should be 0."""

HEALTHY_STATE: Final = "a state that only a fault changes"
HEALTHY_COUNT: Final = "stays at 0 until something goes wrong"
AT_ONCE: Final = "stays at 0 while requests are answered at once"
A_SETTING: Final = "a setting or limit, which only an operator changes"
ONLY_WHEN_BAD: Final = "there is none while all is well"
"""Of a query that has no data then."""
NEEDS_JAEGER: Final = "a trace store behind Grafana's Jaeger data source"
NEEDS_GPU: Final = "an NVIDIA GPU whose driver the sidecar can ask (NVML)"
