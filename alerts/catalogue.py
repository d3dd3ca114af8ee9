"""The failures there are alerts for, read from the folders beside this file.

``rule.yaml`` holds the rules. ``means`` says in a sentence what the alert tells, and without it the runbook's first
sentence does. It may say what holds the alert back: ``inhibited_by: {fd_exhausted: [engine, process]}``
names a failure and the labels in which the two must agree. Every failure is held back by ``engine_down`` too, unless
``outlives_engine: true`` says that it matters just as much without an engine.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).parent
BUILT: Final = ROOT / "built" / "enginescope.rules.yaml"

_WITHOUT_IT_NOTHING: Final = "engine_down"
_ACRONYMS: Final = frozenset({"tcp", "syn", "fd", "gpu", "slo"})


class AlertError(Exception):
    """A failure folder that cannot be used; the message is one sentence."""


def alert_name(failure: str) -> str:
    """Name of the alert of a failure: ``tcp_backlog_full`` -> ``TCPBacklogFull``."""
    return "".join(word.upper() if word in _ACRONYMS else word.capitalize() for word in failure.split("_"))


@dataclass(frozen=True, slots=True)
class Alert:
    """One failure folder."""

    name: str
    """The failure, which is the folder's name."""
    alert: str
    severity: str
    """The first in ``rule.yaml``, where there are several."""
    folder: Path
    rules: tuple[dict[str, Any], ...]
    """Recording rules, then the alerting rule, as written in ``rule.yaml``."""
    inhibited_by: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Failures whose alert holds this one back, each with the labels that must be equal."""
    means: str = ""
    """What it tells, in a sentence; empty when the folder leaves that to the runbook."""

    @property
    def rule_file(self) -> Path:
        """The rules as people write them."""
        return self.folder / "rule.yaml"

    @property
    def test_files(self) -> tuple[Path, ...]:
        """The promtool tests; each runs at one scrape interval."""
        return tuple(sorted(self.folder.glob("test*.yaml")))

    @property
    def runbook(self) -> Path:
        """What to do when it fires."""
        return self.folder / "runbook.md"


def folders(root: Path = ROOT) -> list[Path]:
    """The failure folders in alphabetical order."""
    return sorted(
        path for path in root.iterdir() if path.is_dir() and path.name != "built" and path.name[0] not in "_."
    )


def alerts(root: Path = ROOT) -> list[Alert]:
    """Every failure folder, read.

    Raises:
        AlertError: a ``rule.yaml`` is missing, is not YAML, or does not hold exactly one alert of the right name. It
            may hold that one for several severities, the most severe first.
    """
    return [_read(folder) for folder in folders(root)]


def _read(folder: Path) -> Alert:
    path = folder / "rule.yaml"
    try:
        written = yaml.safe_load(path.read_text())
        rules = written["rules"]
        alerting = [rule for rule in rules if "alert" in rule]
        names = [rule["alert"] for rule in alerting]
    except OSError as error:
        raise AlertError(f"cannot read {path}: {error.strerror}") from error
    except (yaml.YAMLError, KeyError, TypeError) as error:
        raise AlertError(f"{path} does not have a list of rules under `rules:`") from error
    expected = alert_name(folder.name)
    severities = [rule.get("labels", {}).get("severity") for rule in alerting]
    if set(names) != {expected} or len(set(severities)) < len(severities):
        raise AlertError(f"{path} must hold exactly one alert, {expected}, not {', '.join(map(str, names)) or 'none'}")
    if not all(severities):
        raise AlertError(f"{path} gives {expected} no severity")
    inhibited_by, means = _inhibited_by(path, written, severities[0]), str(written.get("means", ""))
    return Alert(folder.name, expected, severities[0], folder, tuple(rules), inhibited_by, means)


def _inhibited_by(path: Path, written: dict[str, Any], severity: str) -> dict[str, tuple[str, ...]]:
    sources = written.get("inhibited_by", {})
    if not isinstance(sources, dict) or not all(_are_labels(labels) for labels in sources.values()):
        raise AlertError(f"{path}: inhibited_by takes failures, each with a list of labels that holds engine")
    if severity == "none" or written.get("outlives_engine"):
        return {name: tuple(labels) for name, labels in sources.items()}
    return {_WITHOUT_IT_NOTHING: ("engine",), **{name: tuple(labels) for name, labels in sources.items()}}


def _are_labels(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(label, str) for label in value) and "engine" in value
