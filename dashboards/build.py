"""Builds the dashboards.

python -m dashboards.build               # write dashboards/built/*.json
python -m dashboards.build --check       # exit status 1 when one is out of date or has a fault
python -m dashboards.build --output DIR  # to provision them from there
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from dashboards import grafana
from dashboards.internals import internals
from dashboards.lint import lint
from dashboards.model import Dashboard
from dashboards.overview import overview
from dashboards.promql import DashboardError
from dashboards.sockets import sockets
from dashboards.traces import traces

BUILT: Final = Path(__file__).parent / "built"


def dashboards() -> list[Dashboard]:
    """All of them, in reading order.

    Raises:
        DashboardError: one cannot be built.
    """
    return [overview(), sockets(), internals(), traces()]


def texts() -> dict[str, str]:
    """File name -> content."""
    return {f"{dashboard.uid}.json": grafana.render(dashboard) for dashboard in dashboards()}


def write(folder: Path) -> list[Path]:
    """Write every dashboard into a folder; the paths.

    Raises:
        OSError: the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, text in texts().items():
        (folder / name).write_text(text)
        paths.append(folder / name)
    return paths


def stale(folder: Path) -> list[str]:
    """Which files are missing, old or too many there, in sentences."""
    wanted = texts()
    there = {path.name: path.read_text() for path in folder.glob("*.json")} if folder.is_dir() else {}
    return [
        f"{folder / name} is out of date: run `python -m dashboards.build` and commit the result"
        for name in sorted(wanted.keys() | there.keys())
        if wanted.get(name) != there.get(name)
    ]


def _arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m dashboards.build", description="Build the Grafana dashboards.")
    parser.add_argument("--check", action="store_true", help="only compare and lint; exit status 1 when not in order")
    parser.add_argument("--output", type=Path, default=BUILT, metavar="DIR", help=f"default: {BUILT}")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit status."""
    options = _arguments(sys.argv[1:] if arguments is None else arguments)
    try:
        if options.check:
            return _report([*stale(options.output), *lint([json.loads(text) for text in texts().values()])])
        write(options.output)
    except DashboardError as error:
        return _report([str(error)])
    except OSError as error:
        return _report([f"cannot write {options.output}: {error.strerror}"])
    return 0


def _report(problems: Sequence[str]) -> int:
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
