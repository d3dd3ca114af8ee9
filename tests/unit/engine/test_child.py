"""How the launcher starts a dead process again."""

from __future__ import annotations

import re

import pytest

from instrumented_engine import child
from instrumented_engine.child import Child
from tests.conftest import eventually


@pytest.mark.parametrize(
    ("steady_seconds", "delays"),
    [
        pytest.param(3600.0, ["0.5", "1"], id="it keeps dying"),
        pytest.param(0.0, ["0.5", "0.5"], id="it ran long enough"),
    ],
)
def test_delay_before_the_next_start(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, steady_seconds: float, delays: list[str]
) -> None:
    monkeypatch.setattr(child, "_STEADY_SECONDS", steady_seconds)
    dying = Child("platform", lambda restarts: [])
    try:
        eventually("the second death", lambda: _deaths(dying, caplog) == 2)
        assert _delays(caplog) == delays
    finally:
        dying.process.kill()
        dying.process.wait()


def _deaths(dying: Child, caplog: pytest.LogCaptureFixture) -> int:
    dying.restart_when_due()
    return len(_delays(caplog))


def _delays(caplog: pytest.LogCaptureFixture) -> list[str]:
    return re.findall(r"starting it again in (\S+) s", caplog.text)
