"""From HTML to PNG, with a headless Chromium."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

_BROWSERS: Final = ("chromium", "chromium-browser", "google-chrome", "chrome")
_SECONDS: Final = 120


class PictureError(Exception):
    """No picture can be made; the message is one sentence."""


def photograph(html: Path, picture: Path, width: int, height: int) -> None:
    """Write the picture of a page.

    Raises:
        PictureError: there is no Chromium, or it fails.
    """
    browser = next((found for name in _BROWSERS if (found := shutil.which(name))), None)
    if browser is None:
        raise PictureError(f"pictures need Chromium (Debian: apt-get install chromium); {html} can be opened by hand")
    with tempfile.TemporaryDirectory() as profile:
        command = [
            browser,
            "--headless",
            "--no-sandbox",  # which a container or root does not allow; the page is ours
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--hide-scrollbars",
            "--no-first-run",
            f"--user-data-dir={profile}",
            f"--window-size={width},{height}",
            f"--screenshot={picture.absolute()}",
            html.absolute().as_uri(),
        ]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_SECONDS)
        except subprocess.TimeoutExpired:
            raise PictureError(f"{browser} took more than {_SECONDS} s for {html}") from None
    if picture.is_file():
        _shrink(picture)
    else:
        said = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise PictureError(f"{browser} made no picture of {html}: {said[-1]}")


def _shrink(picture: Path) -> None:
    """A picture of few colours, where pngquant is installed, in a third of the bytes."""
    if quantizer := shutil.which("pngquant"):
        command = [quantizer, "--force", "--skip-if-larger", "--strip", "--output", str(picture), str(picture)]
        subprocess.run(command, check=False, timeout=_SECONDS)
