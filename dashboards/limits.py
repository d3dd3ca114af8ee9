"""The numbers that alerts compare with, read from their rules, so that a panel's line is where the alert fires."""

from __future__ import annotations

import math
import re
from functools import cache
from typing import Final

from alerts.catalogue import alerts
from dashboards.promql import DashboardError

_LITERAL: Final = r"\d+(?:\.\d+)?(?:e\d+)?"
_NUMBER: Final = rf"(-?{_LITERAL}(?:\s*\*\s*{_LITERAL})*)(?![\d.e]|\s*\*)"
"""A number or a product of numbers, and not a factor of something else."""
_COMPARISON: Final = r"\s*(?:>=|<=|==|!=|>|<)\s*(?:bool\s+)?"


@cache
def _expressions() -> dict[str, str]:
    return {alert.name: next(_one_line(rule["expr"]) for rule in alert.rules if "alert" in rule) for alert in alerts()}


def _one_line(expression: str) -> str:
    return re.sub(r"\s+", " ", expression)


def _product(text: str) -> float:
    return math.prod(float(factor) for factor in text.split("*"))


def limit(failure: str, operand: str) -> float:
    """The number with which the alert of a failure compares an expression, written as in its rule.

    Raises:
        DashboardError: there is no such comparison, or there are several.
    """
    rule = _expressions().get(failure, "")
    found = {_product(number) for number in re.findall(re.escape(_one_line(operand)) + _COMPARISON + _NUMBER, rule)}
    if len(found) != 1:
        what = f"{len(found)} numbers" if found else "no number"
        raise DashboardError(f"the alert of {failure} compares {operand} with {what}: change dashboards/ with its rule")
    return found.pop()
