from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.kernel.world import PORT, Watch
from tests.integration.network import Host, Watcher
from tests.integration.sidecar_harness import Processes


@pytest.fixture
def processes() -> Iterator[Processes]:
    started = Processes()
    yield started
    started.end()


@pytest.fixture
def watch(tmp_path: Path) -> Iterator[Watch]:
    watchers: list[Watcher] = []

    def begin(host: Host, port: int = PORT, **endpoints: str) -> Watcher:
        watchers.append(Watcher(host, tmp_path, port, **endpoints))
        return watchers[-1]

    yield begin
    for watcher in watchers:
        watcher.sampler.close()
