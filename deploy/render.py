"""Fits ``prometheus.yaml`` and ``alertmanager.yaml`` to a local stack, and says how to start the two programs.

A local stack scrapes and evaluates every second and groups nothing, so that a condition becomes a page in seconds.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import yaml

FOLDER: Final = Path(__file__).parent

_RESEND_SECONDS: Final = 2
"""How often Prometheus repeats an alert. Alertmanager drops one it has not heard of for four times as long."""


def render_prometheus(
    *,
    engine: str,
    sidecar: str,
    prometheus: str,
    alertmanager: str,
    rules: Path,
    scrape_interval: str = "1s",
) -> str:
    """``prometheus.yaml`` for one engine; the first four are its label value and three ``host:port``."""
    config = load("prometheus.yaml")
    config["global"] = dict.fromkeys(("scrape_interval", "scrape_timeout", "evaluation_interval"), scrape_interval)
    config["rule_files"] = [str(rules.absolute())]
    config["alerting"]["alertmanagers"] = [{"static_configs": [{"targets": [alertmanager]}]}]
    targets = {
        "enginescope": {"targets": [sidecar], "labels": {"engine": engine}},
        "prometheus": {"targets": [prometheus]},
        "alertmanager": {"targets": [alertmanager]},
    }
    for job in config["scrape_configs"]:
        job["static_configs"] = [targets[job["job_name"]]]
        if job["job_name"] != "enginescope":
            job["scrape_interval"] = "15s"
    return dump(config)


def render_alertmanager(*, page_receiver: str, watchdog_repeat: str = "2s") -> str:
    """``alertmanager.yaml`` that sends at once, to the page receiver at ``host:port``."""
    config = load("alertmanager.yaml")
    config["templates"] = [str(FOLDER / pattern) for pattern in config["templates"]]
    for route in (config["route"], *config["route"]["routes"]):
        route.update(group_wait="0s", group_interval="1s")
        if route["receiver"] == "deadman":
            route["repeat_interval"] = watchdog_repeat
    for receiver in config["receivers"]:
        path = "deadman" if receiver["name"] == "deadman" else "webhook"
        for webhook in receiver["webhook_configs"]:
            webhook["url"] = f"http://{page_receiver}/{path}"
    return dump(config)


def prometheus_command(binary: Path, config: Path, data: Path, listen: str, retention: str = "1d") -> list[str]:
    """The command line of Prometheus with exemplars, listening on ``host:port``."""
    return [
        str(binary),
        f"--config.file={config.absolute()}",
        f"--storage.tsdb.path={data.absolute()}",
        f"--storage.tsdb.retention.time={retention}",
        f"--web.listen-address={listen}",
        f"--rules.alert.resend-delay={_RESEND_SECONDS}s",
        "--enable-feature=exemplar-storage",
        "--log.level=warn",
    ]


def alertmanager_command(binary: Path, config: Path, data: Path, listen: str) -> list[str]:
    """The command line of Alertmanager without clustering, listening on ``host:port``."""
    return [
        str(binary),
        f"--config.file={config.absolute()}",
        f"--storage.path={data.absolute()}",
        f"--web.listen-address={listen}",
        "--cluster.listen-address=",
        "--log.level=warn",
    ]


def load(name: str) -> dict[str, Any]:
    """One of the configurations in this folder."""
    loaded: dict[str, Any] = yaml.safe_load((FOLDER / name).read_text())
    return loaded


def dump(config: dict[str, Any]) -> str:
    """The configuration as text, keys in their order."""
    return yaml.safe_dump(config, sort_keys=False, width=1000)
