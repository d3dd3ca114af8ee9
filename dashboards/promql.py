"""PromQL from the metric catalogue, so that no dashboard spells the name or a label of a metric.

Every selector names the engine that the reader chose, and rates take the window that Grafana fits to the scrape
interval and to the width of the panel.
"""

from __future__ import annotations

from typing import Final

from alerts.catalogue import alerts
from telemetry.catalog import Kind, Metric

ENGINE: Final = 'engine="$engine"'
WINDOW: Final = "$__rate_interval"


class DashboardError(Exception):
    """A dashboard cannot be built; the message is one sentence."""


def series(metric: Metric, *, suffix: str = "", **labels: str) -> str:
    """Selector of a metric of the chosen engine; a label value that begins with ``~`` is a regular expression.

    Raises:
        DashboardError: the metric has no such label.
    """
    if unknown := labels.keys() - set(metric.labels):
        raise DashboardError(f"{metric.name} has no label {', '.join(sorted(unknown))}")
    matchers = [ENGINE, *(_matcher(label, value) for label, value in labels.items())]
    return f"{metric.name}{suffix}{{{','.join(matchers)}}}"


def _matcher(label: str, value: str) -> str:
    return f'{label}=~"{value[1:]}"' if value.startswith("~") else f'{label}="{value}"'


def rate(metric: Metric, **labels: str) -> str:
    """Increase a second of a counter.

    Raises:
        DashboardError: the metric is no counter.
    """
    return f"rate({_counter(metric, **labels)}[{WINDOW}])"


def increase(metric: Metric, **labels: str) -> str:
    """Increase of a counter within the window.

    Raises:
        DashboardError: the metric is no counter.
    """
    return f"increase({_counter(metric, **labels)}[{WINDOW}])"


def _counter(metric: Metric, **labels: str) -> str:
    if metric.kind is not Kind.COUNTER:
        raise DashboardError(f"{metric.name} is no counter")
    return series(metric, **labels)


def total(expression: str, *by: str) -> str:
    """Sum over everything but these labels."""
    return _aggregate("sum", expression, by)


def highest(expression: str, *by: str) -> str:
    """Maximum over everything but these labels."""
    return _aggregate("max", expression, by)


def _aggregate(operator: str, expression: str, by: tuple[str, ...]) -> str:
    return f"{operator} by ({', '.join(by)}) ({expression})" if by else f"{operator}({expression})"


def observations(metric: Metric, *by: str, **labels: str) -> str:
    """Observations a second of a histogram."""
    return total(f"rate({series(metric, suffix='_count', **labels)}[{WINDOW}])", *by)


def busy(metric: Metric, *by: str, **labels: str) -> str:
    """Sum of a histogram's observations, a second."""
    return total(f"rate({series(metric, suffix='_sum', **labels)}[{WINDOW}])", *by)


def mean(metric: Metric, *by: str, **labels: str) -> str:
    """Mean of a histogram's observations; without any it has no value."""
    return f"{busy(metric, *by, **labels)} / {observations(metric, *by, **labels)}"


def quantile(share: float, metric: Metric, *by: str, **labels: str) -> str:
    """Quantile of a histogram's observations, such as 0.95."""
    return f"histogram_quantile({share:g}, {total(f'rate({_bucket(metric, **labels)}[{WINDOW}])', 'le', *by)})"


def heat(metric: Metric, **labels: str) -> str:
    """Observations by bucket, as a heatmap takes them."""
    return total(f"increase({_bucket(metric, **labels)}[{WINDOW}])", "le")


def _bucket(metric: Metric, **labels: str) -> str:
    if metric.kind is not Kind.HISTOGRAM:
        raise DashboardError(f"{metric.name} is no histogram")
    return series(metric, suffix="_bucket", **labels)


def age(metric: Metric, **labels: str) -> str:
    """Seconds since the moment that a gauge holds."""
    return f"time() - {series(metric, **labels)}"


def recorded(failure: str, record: str) -> str:
    """Selector of a series that an alert's rules record: the panel draws what the alert looks at.

    Raises:
        DashboardError: the failure's rules do not record it.
    """
    rules = [rule for alert in alerts() if alert.name == failure for rule in alert.rules]
    if record not in {rule.get("record") for rule in rules}:
        raise DashboardError(f"the rules of {failure} do not record {record}")
    return f"{record}{{{ENGINE}}}"
