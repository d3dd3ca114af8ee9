"""Starting victims and sidecars as processes, and ending every one of them."""

from __future__ import annotations

import contextlib
import json
import re
import select
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

ROOT = Path(__file__).parents[2]
SECONDS = 10.0
Samples = dict[str, float]


class Processes:
    """Everything a test started."""

    def __init__(self) -> None:
        self._started: list[subprocess.Popen[str]] = []

    def start(self, *command: str, prefix: Sequence[str] = ()) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [*prefix, sys.executable, *command],
            cwd=ROOT,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self._started.append(process)
        return process

    def end(self) -> None:
        for process in self._started:
            process.kill()
            process.communicate()


class Victim:
    """A process to watch; ``victim("expression")`` runs in it."""

    def __init__(self, processes: Processes, prefix: Sequence[str] = ()) -> None:
        self.process = processes.start("-m", "tests.integration.victim", prefix=prefix)

    def __call__(self, expression: str) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(expression + "\n")
        self.process.stdin.flush()
        readable, _, _ = select.select([self.process.stdout], [], [], SECONDS)
        assert readable, f"the victim did not answer {expression!r}"
        return json.loads(self.process.stdout.readline())

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


class Sidecar:
    """A sidecar process and its metrics."""

    def __init__(self, processes: Processes, engine: str, runtime_dir: Path, prefix: Sequence[str] = ()) -> None:
        arguments = ["-m", "sidecar", "--engine", engine, "--listen", "127.0.0.1:0", "--runtime-dir", str(runtime_dir)]
        self.process = processes.start(*arguments, prefix=prefix)
        self.log: list[str] = []
        self.port = self._read_port()

    def _read_port(self) -> int:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(line)
            found = re.search(r"metrics on http://[^ ]*:(\d+)/metrics", line)
            if found:
                return int(found[1])
        raise AssertionError(f"the sidecar did not start: {self.log}")

    def stop(self) -> str:
        """End the sidecar; everything that it logged."""
        assert self.process.stderr is not None
        self.process.terminate()
        self.process.wait(SECONDS)
        return "".join(self.log) + self.process.stderr.read()  # what communicate() would return lacks the read-ahead

    def scrape(self) -> Samples:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=5) as response:
            text = response.read().decode()
        found = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
                found[f"{sample.name.removeprefix('enginescope_')}{{{labels}}}".removesuffix("{}")] = sample.value
        return found

    def wait(self, condition: Callable[[Samples], bool]) -> Samples:
        """The first scrape that fulfils the condition; a missing sample is not an error, only not yet."""
        deadline = time.monotonic() + SECONDS
        samples: Samples = {}
        while time.monotonic() < deadline:
            samples = self.scrape()
            with contextlib.suppress(KeyError):
                if condition(samples):
                    return samples
            time.sleep(0.05)
        raise AssertionError(f"not seen within {SECONDS} s: {samples}")
