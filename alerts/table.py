"""The table of alerts, made from the failure folders and from what the last drills measured.

python -m alerts.table                      # fill in docs/alerts.md, and README.md where it has the markers
python -m alerts.table --check              # exit status 1 when one of them is out of date
python -m alerts.table --check FILE...      # other files
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, TypedDict

from alerts.catalogue import ROOT, Alert, AlertError, alerts
from alerts.marked import fill

DRILLS: Final = ROOT / "drills.json"
PAGE: Final = ROOT.parent / "docs" / "alerts.md"
README: Final = ROOT.parent / "README.md"
_BEGIN: Final = "<!-- alerts, written by `python -m alerts.table` -->"
_END: Final = "<!-- /alerts -->"
_HEADING: Final = "| alert | means | severity | held back by | last drill: seconds to page |\n|---|---|---|---|---|\n"
_WHO: Final = {"critical": "page", "warning": "ticket", "none": "dead-man"}
_MEANING: Final = re.compile(r"^## Meaning\n+(.+?)(?:\n\n|\Z)", re.MULTILINE | re.DOTALL)
_SENTENCE: Final = re.compile(r".+?(?<!\be\.g)(?<!\bi\.e)[.:](?=\s|$)", re.DOTALL)


class Drilled(TypedDict):
    """What a drill measured; seconds from the moment something was broken."""

    date: str
    time_scale: float
    seconds_to_evidence: float | None
    seconds_to_page: float | None
    seconds_to_resolved: float | None


def last_drills(path: Path = DRILLS) -> dict[str, Drilled]:
    """The last good drill of each failure.

    Raises:
        AlertError: the file is no such thing.
    """
    try:
        noted: dict[str, Drilled] = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise AlertError(f"cannot read {path}: {error}") from error
    return noted


def render(found: Sequence[Alert], drilled: dict[str, Drilled], folder: Path) -> str:
    """The table, with links as they lead from a document in that folder."""
    names = {alert.name: alert.alert for alert in found}
    return _HEADING + "".join(_row(alert, names, drilled.get(alert.name), folder) for alert in found)


def meaning(alert: Alert) -> str:
    """What the alert tells: the folder's own sentence, else the first one of the runbook's Meaning.

    Raises:
        AlertError: there is none.
    """
    if alert.means:
        return alert.means
    found = _MEANING.search(alert.runbook.read_text()) if alert.runbook.is_file() else None
    if found is None:
        raise AlertError(f"{alert.runbook} has no sentence under Meaning")
    text = " ".join(found[1].split())
    sentence = _SENTENCE.match(text)
    return (sentence[0] if sentence else text).rstrip(":.") + "."


def _row(alert: Alert, names: dict[str, str], drilled: Drilled | None, folder: Path) -> str:
    link = os.path.relpath(ROOT / alert.name / "runbook.md", folder)
    by = sorted(names[source] for source in alert.inhibited_by)
    severity = f"{alert.severity} ({_WHO.get(alert.severity, 'ticket')})"
    cells = (f"[{alert.alert}]({link})", meaning(alert), severity, ", ".join(by), _seconds(drilled))
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |\n"


def _seconds(drilled: Drilled | None) -> str:
    if drilled is None or drilled["seconds_to_page"] is None:
        return ""
    scaled = "" if drilled["time_scale"] == 1 else f", rules {1 / drilled['time_scale']:.0f} times faster"
    return f"{drilled['seconds_to_page']:.1f} ({drilled['date']}{scaled})"


def filled(found: Sequence[Alert], documents: Sequence[Path] = ()) -> dict[Path, str]:
    """The text of each document with its table brought up to date; without any named, of those that have one.

    Raises:
        AlertError: a document lacks the markers, or a folder a sentence.
    """
    drilled = last_drills()
    chosen = documents or [PAGE, *([README] if _BEGIN in README.read_text() else [])]
    return {path: fill(path, _BEGIN, _END, render(found, drilled, path.absolute().parent)) for path in chosen}


def _arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m alerts.table", description="Write the table of alerts.")
    parser.add_argument("--check", action="store_true", help="only compare; exit status 1 when out of date")
    parser.add_argument("documents", type=Path, nargs="*", metavar="FILE", help="default: docs/alerts.md and README.md")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit status."""
    options, status = _arguments(sys.argv[1:] if arguments is None else arguments), 0
    try:
        for path, text in filled(alerts(), options.documents).items():
            if not options.check:
                path.write_text(text)
            elif text != path.read_text():
                print(f"{path} is out of date: run `python -m alerts.table` and commit the result", file=sys.stderr)
                status = 1
    except (AlertError, OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    return status


if __name__ == "__main__":
    sys.exit(main())
