"""The gate during a reload, with the event loop as the only clock."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from instrumented_engine.api.admission import Gate
from instrumented_engine.api.served_model import Reload, ServedModel
from telemetry.layout import API, GATE_OPEN, GATE_RELOADING
from telemetry.scoreboard import Writer


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    writer = Writer(tmp_path, API)
    yield Gate(writer)
    writer.close()


async def settle() -> None:
    for _ in range(100):
        await asyncio.sleep(0.01)


def test_a_new_core_opens_the_gate_with_the_new_tokenizer(gate: Gate) -> None:
    model = ServedModel("dummy")
    before = model.tokenizer

    async def main() -> None:
        reload = Reload(gate, model, seconds=0.05)
        reload.begin()
        reload.core_gone()
        await asyncio.sleep(0.2)
        assert gate.state == GATE_RELOADING  # however long the new core takes to load
        reload.core_ready()
        await settle()

    asyncio.run(main())
    assert gate.state == GATE_OPEN
    assert model.tokenizer is not before


def test_a_signal_without_a_reload_closes_the_gate_for_a_while_only(gate: Gate) -> None:
    async def main() -> None:
        Reload(gate, ServedModel("dummy"), seconds=0.05).begin()
        assert gate.state == GATE_RELOADING
        await settle()

    asyncio.run(main())
    assert gate.state == GATE_OPEN


def test_without_a_tokenizer_the_gate_stays_closed(gate: Gate, caplog: pytest.LogCaptureFixture) -> None:
    model = ServedModel("dummy")
    model._model = "gone.gguf"

    async def main() -> None:
        reload = Reload(gate, model, seconds=600)
        reload.begin()
        reload.core_gone()
        reload.core_ready()
        await settle()

    asyncio.run(main())
    assert gate.state == GATE_RELOADING
    assert "the gate stays closed" in caplog.text
