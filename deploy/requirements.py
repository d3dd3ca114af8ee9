"""Prints what a build of the images installs before the package itself, one requirement a line.

    python3 deploy/requirements.py [EXTRA ...]

pip cannot install only the dependencies of a project, and a layer that holds them alone survives changes of our code.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path


def requirements(pyproject: Path, extras: Iterable[str]) -> list[str]:
    """The dependencies of the project and of these extras of it.

    Raises:
        KeyError: there is no such extra.
    """
    project = tomllib.loads(pyproject.read_text())["project"]
    found: list[str] = list(project["dependencies"])
    for extra in extras:
        found += project["optional-dependencies"][extra]
    return found


def _pyproject() -> Path:
    here = Path(__file__).parent
    return next(path for path in (here / "pyproject.toml", here.parent / "pyproject.toml") if path.exists())


if __name__ == "__main__":
    print("\n".join(requirements(_pyproject(), sys.argv[1:])))
