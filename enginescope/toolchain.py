"""Finds Prometheus, promtool, Alertmanager and amtool, and fetches Debian's packages where there are none.

``find`` looks on PATH first, then in the local folder. ``install`` fills that folder with ``apt-get download`` and
``dpkg -x``: no root, nothing outside the folder. It tries the package lists of the system, and when those are empty
or stale it reads fresh ones into a private place. apt verifies Debian's signatures in both cases.

    python -m enginescope.toolchain     # install what is missing, one line per tool
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Final

FOLDER_VARIABLE: Final = "ENGINESCOPE_TOOLS"

# What a tool may be called; Debian renames Alertmanager.
TOOLS: Final = {
    "prometheus": ("prometheus",),
    "promtool": ("promtool",),
    "alertmanager": ("prometheus-alertmanager", "alertmanager"),
    "amtool": ("amtool",),
}
_PACKAGES: Final = ("prometheus", "prometheus-alertmanager")
_OWN_PACKAGE_SINCE_DEBIAN_13: Final = "promtool"

# Read after the system's own configuration. Hooks of desktop packages would run as part of ``update`` otherwise.
APT_CONF: Final = """\
APT::Sandbox::User "root";
Acquire::Languages "none";
Acquire::Retries "2";
#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
#clear Acquire::IndexTargets::deb::DEP-11;
"""
APT_PRIVATE_CONF: Final = """\
Dir::State "{state}";
Dir::State::lists "{state}/lists";
Dir::State::status "/var/lib/dpkg/status";
Dir::Cache "{cache}";
"""

# Debian compiles the folder of Alertmanager's default templates in, and it does not start without them. In our copy
# that path is, at the same length, a descriptor which a wrapper opens on the folder where we unpacked them.
_COMPILED_FOLDER: Final = b"/usr/share/prometheus/alertmanager"
_DESCRIPTOR: Final = b"/proc/self/fd/".ljust(len(_COMPILED_FOLDER) - 1, b"/") + b"9"
_WRAPPER: Final = """\
#!/bin/sh
# Written by enginescope.toolchain: descriptor 9 stands for /usr/share/prometheus/alertmanager.
usr=${0%/*}/..
exec 9<"$usr/share/prometheus/alertmanager" && exec "$usr/lib/enginescope/prometheus-alertmanager" "$@"
"""


class ToolMissingError(Exception):
    """A tool is not there or cannot be fetched; the message is one sentence that names what to install."""


def folder() -> Path:
    """The local folder: ``$ENGINESCOPE_TOOLS``, else ``.tools`` in a checkout, else one in the user's cache."""
    if chosen := os.environ.get(FOLDER_VARIABLE):
        return Path(chosen).absolute()
    checkout = Path(__file__).resolve().parent.parent
    if (checkout / "pyproject.toml").is_file():
        return checkout / ".tools"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "enginescope" / "tools"


def find(tool: str) -> Path:
    """The executable of one of ``TOOLS``.

    Raises:
        ToolMissingError: it is neither on PATH nor in the local folder.
    """
    local = folder()
    for path in (None, f"{local / 'usr/bin'}:{local}"):
        for name in TOOLS[tool]:
            if found := shutil.which(name, path=path):
                return Path(found)
    raise ToolMissingError(
        f"{tool} is neither on PATH nor in {local}: run `python -m enginescope.toolchain`, or install Prometheus and "
        f"Alertmanager (Debian: prometheus and prometheus-alertmanager; elsewhere https://prometheus.io/download/)"
    )


def missing() -> list[str]:
    """The tools that ``find`` does not find."""
    absent = []
    for tool in TOOLS:
        try:
            find(tool)
        except ToolMissingError:
            absent.append(tool)
    return absent


def install(timeout: float = 300.0) -> None:
    """Fetch the tools that are missing into the local folder.

    Raises:
        ToolMissingError: they are still missing; says why.
    """
    if not missing():
        return
    for program in ("apt-get", "apt-cache", "dpkg"):
        if not shutil.which(program):
            raise ToolMissingError(
                f"{', '.join(missing())} cannot be fetched without {program}: install Prometheus and Alertmanager from "
                f"https://prometheus.io/download/ on PATH, or put the four binaries into {folder()}"
            )
    try:
        _fetch(folder(), time.monotonic() + timeout)
    except (OSError, subprocess.SubprocessError) as error:
        raise ToolMissingError(
            f"{', '.join(missing())} could not be fetched ({_reason(error)}): install Debian's packages prometheus and "
            f"prometheus-alertmanager, or put the binaries into {folder()}"
        ) from error
    if absent := missing():
        raise ToolMissingError(f"Debian's packages came without {', '.join(absent)}: put the binaries into {folder()}")


def _fetch(target: Path, deadline: float) -> None:
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target) as scratch:
        try:
            apt = Apt(Path(scratch), "system", APT_CONF, deadline)
            apt.download()
        except subprocess.CalledProcessError:
            apt = Apt(Path(scratch), "private", APT_CONF + APT_PRIVATE_CONF, deadline)
            apt.run("apt-get", "update")
            apt.download()
        for package in sorted(apt.home.glob("*.deb")):
            apt.run("dpkg", "-x", str(package), "unpacked")
        _move(apt.home / "unpacked/usr", target / "usr")


def _move(unpacked: Path, target: Path) -> None:
    """Move each file into place with one rename, so that nobody ever finds half a tool."""
    _relocate(unpacked)
    for path in sorted(unpacked.rglob("*")):
        place = target / path.relative_to(unpacked)
        if path.is_dir() and not path.is_symlink():
            place.mkdir(parents=True, exist_ok=True)
        else:
            path.replace(place)


def _relocate(usr: Path) -> None:
    binary = usr / "bin/prometheus-alertmanager"
    code = binary.read_bytes()
    if _COMPILED_FOLDER not in code:
        return
    moved = usr / "lib/enginescope/prometheus-alertmanager"
    moved.parent.mkdir(parents=True)
    moved.write_bytes(code.replace(_COMPILED_FOLDER, _DESCRIPTOR))
    moved.chmod(0o755)
    binary.write_text(_WRAPPER)


class Apt:
    """apt with one configuration and a folder of its own."""

    def __init__(self, scratch: Path, name: str, configuration: str, deadline: float) -> None:
        self.home = scratch / name
        self._deadline = deadline
        for directory in ("state/lists/partial", "cache/archives/partial"):
            (self.home / directory).mkdir(parents=True)
        (self.home / "apt.conf").write_text(configuration.format(state=self.home / "state", cache=self.home / "cache"))

    def run(self, program: str, *arguments: str) -> str:
        """Run a program to its end and return what it printed."""
        configuration = ["-c", "apt.conf"] if program.startswith("apt") else []
        done = subprocess.run(
            [program, *configuration, *arguments],
            cwd=self.home,
            env={**os.environ, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=True,
            timeout=max(self._deadline - time.monotonic(), 0.1),
        )
        return done.stdout

    def download(self) -> None:
        """Fetch the packages into this folder."""
        known = self.run("apt-cache", "pkgnames", _OWN_PACKAGE_SINCE_DEBIAN_13).split()
        extra = [name for name in known if name == _OWN_PACKAGE_SINCE_DEBIAN_13]
        self.run("apt-get", "-qq", "download", *_PACKAGES, *extra)


def _reason(error: OSError | subprocess.SubprocessError) -> str:
    if isinstance(error, subprocess.TimeoutExpired):
        return f"{Path(error.cmd[0]).name} took too long"
    if isinstance(error, subprocess.CalledProcessError):
        said = [line for line in str(error.stderr).splitlines() if line.startswith("E: ")]
        return f"{error.cmd[0]}: {said[0][3:] if said else f'exit status {error.returncode}'}"
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def main() -> None:
    """Install, then say where each tool is. Never fails: an installation goes on without an alerting stack."""
    try:
        install()
    except ToolMissingError as error:
        print(error)
    absent = missing()
    for tool in TOOLS:
        print(f"{tool}: {'missing' if tool in absent else find(tool)}")


if __name__ == "__main__":
    main()
