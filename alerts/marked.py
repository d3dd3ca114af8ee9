"""Text between two markers, generated in a file that people write."""

from __future__ import annotations

from pathlib import Path

from alerts.catalogue import AlertError


def fill(path: Path, begin: str, end: str, body: str) -> str:
    """The file's text with ``body`` on the lines between the lines that hold the markers.

    Raises:
        AlertError: the file cannot be read, or does not hold the two markers once each, in that order.
    """
    try:
        text = path.read_text()
    except OSError as error:
        raise AlertError(f"cannot read {path}: {error.strerror}") from error
    before, _, rest = text.partition(begin)
    between, ended, after = rest.partition(end)
    if not ended or text.count(begin) != 1 or text.count(end) != 1:
        raise AlertError(f"{path} must hold {begin!r} and then {end!r}, once each")
    indentation = between.rpartition("\n")[2]
    return f"{before}{begin}\n{body}{indentation}{end}{after}"
