"""The model's name and tokenizer on the API's side, and how they follow a reload of the core."""

from __future__ import annotations

import asyncio
import logging

from instrumented_engine.api.admission import Gate
from instrumented_engine.model.source import ModelSource, ModelUnavailable
from instrumented_engine.model.tokenizers import Tokenizer, load_tokenizer
from telemetry.layout import GATE_RELOADING

_log = logging.getLogger(__name__)


class ServedModel:
    """What the routes need of the model."""

    def __init__(self, model: str) -> None:
        """Load the tokenizer.

        Raises:
            ModelUnavailable: there is no such model.
            ValueError: its tokenizer cannot be read.
        """
        self._model = model
        self.name, self.tokenizer = self._load()

    def _load(self) -> tuple[str, Tokenizer]:
        source = ModelSource.resolve(self._model)
        return source.name, load_tokenizer(source)

    def load_again(self) -> None:
        """Take what is there now; raises as the constructor does, and keeps the old then."""
        self.name, self.tokenizer = self._load()


class Reload:
    """Opens the gate when a new core is ready and its tokenizer is loaded."""

    def __init__(self, gate: Gate, model: ServedModel, seconds: float) -> None:
        """``seconds`` is what the launcher takes at most until it replaces the core."""
        self._gate = gate
        self._model = model
        self._seconds = seconds
        self._task: asyncio.Task[None] | None = None
        self._give_up: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """SIGHUP: the launcher is about to replace the core. If it is not, somebody else sent the signal."""
        self._gate.reload()
        self.core_gone()
        self._give_up = asyncio.get_running_loop().call_later(self._seconds, self._nothing_came)

    def core_gone(self) -> None:
        """The core has left, so that a new one will come."""
        if self._give_up is not None:
            self._give_up.cancel()

    def _nothing_came(self) -> None:
        _log.warning("SIGHUP came, but no reload: send it to the launcher")
        self._gate.open()

    def core_ready(self) -> None:
        """A core takes requests; on the event loop."""
        if self._gate.state == GATE_RELOADING:
            self._task = asyncio.create_task(self._finish())

    async def _finish(self) -> None:
        try:
            await asyncio.to_thread(self._model.load_again)
        except (ModelUnavailable, ValueError) as error:
            _log.error("the gate stays closed, for the tokenizer cannot be loaded: %s", error)
            return
        self._gate.open()
        _log.info("the model was loaded again")
