import re

from telemetry.catalog import BY_NAME, METRICS, Kind

ALLOWED_LABELS = {
    *(
        "port",
        "role",
        "state",
        "stage",
        "process",
        "kind",
        "fault",
        "outcome",
        "collector",
        "fact",
        "version",
        "reason",
        "class",
        "level",
    ),
}


def test_names_follow_prometheus_practice() -> None:
    for metric in METRICS:
        assert re.fullmatch(r"enginescope_[a-z0-9]+(_[a-z0-9]+)*", metric.name)
        assert metric.name.endswith("_total") == (metric.kind is Kind.COUNTER), metric.name
        assert not re.search(r"_(ms|us|ns|kb|mb|percent)(_|$)", metric.name), "base units only"


def test_every_metric_has_help_and_bounded_labels() -> None:
    assert len(BY_NAME) == len(METRICS)
    for metric in METRICS:
        assert metric.help.endswith("."), metric.name
        assert set(metric.labels) <= ALLOWED_LABELS, metric.name
