"""A stack for drills alone: started for them, with a runtime directory and a network of its own, and stopped after."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from enginescope.drill import DrillError, Report, until
from enginescope.stack import Stack, StackError

READY_SECONDS: Final = 240.0
_STOP_SECONDS: Final = 30.0
_RATE: Final = "1"
_MAX_WAITING: Final = 256
"""Few enough that a drill can fill it before its clients fill the accept queue."""
_NO_NAMESPACE: Final = "cannot make a network namespace"


@contextmanager
def own_stack(time_scale: float, report: Report) -> Iterator[Stack]:
    """Start it, with the dummy model and every fault at hand; stop it on exit.

    Where no network namespace can be made it shares the machine's, and drills that need one are skipped.

    Raises:
        DrillError: it does not start; the message ends with what it said last.
    """
    with tempfile.TemporaryDirectory(prefix="enginescope-drills-") as folder:
        try:
            process = _start(Path(folder), time_scale, ["--network-namespace"], report)
        except DrillError as error:
            if _NO_NAMESPACE not in str(error):
                raise
            report(f"{error}; going on without, and without the drills that need one")
            process = _start(Path(folder), time_scale, [], report)
        try:
            yield Stack.load(folder)
        finally:
            _stop(process)


def _start(folder: Path, time_scale: float, flags: Sequence[str], report: Report) -> subprocess.Popen[bytes]:
    log = folder / "up.log"
    command = [sys.executable, "-m", "enginescope", "up", "--model", "dummy", "--faults", "--rate", _RATE]
    command += ["--engine-flag", f"--max-waiting-requests={_MAX_WAITING}"]
    environment = os.environ | {"ENGINESCOPE_RUNTIME_DIR": str(folder)}
    report(f"starting a stack for drills, time-scale {time_scale:g} (log: {log})")
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, "--time-scale", str(time_scale), *flags],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        _wait_until_ready(folder, process)
    except BaseException:
        _stop(process)
        raise
    return process


def _wait_until_ready(folder: Path, process: subprocess.Popen[bytes]) -> None:
    for _ in until(READY_SECONDS):
        try:
            Stack.load(folder)
        except StackError:
            if process.poll() is not None:
                break
        else:
            return
    said = (folder / "up.log").read_text(errors="replace").strip().splitlines()
    raise DrillError(f"the stack for drills did not start: {said[-1] if said else 'it said nothing'}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
