"""Flags and ``ENGINESCOPE_SIDECAR_*`` variables of the sidecar."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sidecar.probe import parse_probe
from sidecar.target import parse_engine
from telemetry.settings import setting

_LONGEST_KEEP_ALIVE: Final = 86400.0


@dataclass(frozen=True)
class SidecarSettings:
    """Watch one engine and serve what is seen as Prometheus metrics."""

    engine: str = setting("the engine to watch: NAME=port:8000, NAME=pid:123 or NAME=cmdline:REGEX")
    listen: str = setting("address to serve /metrics, /healthz and /readyz on", "127.0.0.1:9177", "HOST:PORT")
    runtime_dir: str = setting("directory of the engine's pages (default: the same choice as the engine's)", "", "DIR")
    proc_root: str = setting("where the proc file system is", "/proc", "DIR")
    keep_alive: float = setting(
        "after how long an engine without pages closes an idle HTTP connection: one open for longer waits for the rest "
        "of its answer (default: not known)",
        0.0,
        "SECONDS",
    )
    probe: str = setting("ask this every second, for an engine without pages: http://HOST:PORT/PATH", "", "URL")

    def __post_init__(self) -> None:
        parse_engine(self.engine)
        self.address()
        if self.probe:
            parse_probe(self.probe)
        if not 0 <= self.keep_alive <= _LONGEST_KEEP_ALIVE:
            raise ValueError(f"--keep-alive takes 0 to {_LONGEST_KEEP_ALIVE:.0f} seconds, not {self.keep_alive:g}")
        if not Path(self.proc_root).is_dir():
            raise ValueError(f"--proc-root {self.proc_root} is not a directory")

    def address(self) -> tuple[str, int]:
        """Host and port of ``listen``.

        Raises:
            ValueError: it is not HOST:PORT.
        """
        host, _, port = self.listen.rpartition(":")
        if not host or not (port.isascii() and port.isdecimal() and len(port) < 6 and int(port) < 65536):
            raise ValueError(f"--listen takes HOST:PORT, not {self.listen!r}")
        return host.removeprefix("[").removesuffix("]"), int(port)
