"""The marker of a running stack: what ``up`` started, so that drills touch nothing else.

``up`` writes ``stack.json`` into the runtime directory when everything is ready and removes it at the end. While a
file ``NAME.hold`` lies there, ``up`` leaves that process dead; ``load.hold`` pauses its traffic.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

MARKER: Final = "stack.json"
TRAFFIC: Final = "load"
"""The stack's own traffic, which a hold file pauses."""
FAULTS: Final = "faults"
"""What ``up --faults`` offers, and the directory for it: the engine's own hooks for faults on purpose."""


class StackError(Exception):
    """There is no usable stack; the message is one sentence."""


class Stack(msgspec.Struct, frozen=True):
    """What ``up`` started."""

    pid: int
    """Process of ``enginescope up``."""
    engine: str
    """Value of the ``engine`` label."""
    ports: dict[str, int]
    pids: dict[str, int]
    """Process-group leader of each supervised process."""
    runtime_dir: str
    time_scale: float = 1.0
    """Factor on the windows and waits of the alert rules in use."""
    peer_namespace: str = ""
    """Path of the network namespace at the other end of the stack's own; empty when it shares the host's."""
    offers: tuple[str, ...] = ()
    """What this stack has beyond the usual, such as ``vllm`` or ``faults``."""

    @property
    def faults_dir(self) -> Path:
        """Where a file triggers the fault of its name in the engine, when the stack offers ``faults``."""
        return Path(self.runtime_dir) / FAULTS

    @classmethod
    def load(cls, runtime_dir: Path | str) -> Stack:
        """Read the marker.

        Raises:
            StackError: no stack was started by ``enginescope up`` there, or it is gone.
        """
        marker = Path(runtime_dir) / MARKER
        try:
            stack = msgspec.json.decode(marker.read_bytes(), type=cls)
        except FileNotFoundError:
            raise StackError(f"no running stack in {runtime_dir}: start one with `enginescope up`") from None
        except (OSError, msgspec.MsgspecError) as error:
            raise StackError(f"cannot read {marker}: {error}") from error
        if not Path(f"/proc/{stack.pid}").exists():
            raise StackError(f"the stack that {marker} names is gone (pid {stack.pid}): start `enginescope up` again")
        return stack

    def save(self) -> None:
        """Write the marker; it appears complete or not at all."""
        marker = Path(self.runtime_dir) / MARKER
        temporary = marker.with_suffix(f".{os.getpid()}.tmp")
        temporary.write_bytes(msgspec.json.encode(self))
        temporary.rename(marker)

    def hold(self, name: str) -> None:
        """Ask ``up`` not to restart a process that dies."""
        hold_file(Path(self.runtime_dir), name).touch()

    def release(self, name: str) -> None:
        """Let ``up`` restart it again."""
        hold_file(Path(self.runtime_dir), name).unlink(missing_ok=True)

    @contextmanager
    def held(self, name: str) -> Iterator[None]:
        """Hold a process for the length of a block."""
        self.hold(name)
        try:
            yield
        finally:
            self.release(name)


def hold_file(runtime_dir: Path, name: str) -> Path:
    """The file whose presence keeps a dead process dead."""
    return runtime_dir / f"{name}.hold"
