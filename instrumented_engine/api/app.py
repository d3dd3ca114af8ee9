"""The HTTP application: routes in OpenAI's form around one CoreClient."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from starlette.types import ASGIApp

from instrumented_engine.api import answers
from instrumented_engine.api.admission import NO_CORE, Admission, Gate
from instrumented_engine.api.client import CoreClient
from instrumented_engine.api.error_answers import add_error_handlers, error_answer
from instrumented_engine.api.errors import NOT_FOUND, OVERLOAD, ApiError, OverloadError
from instrumented_engine.api.generation import Generation, chat_tokens, respond
from instrumented_engine.api.middleware import SCOPE_KEY, TimelineMiddleware
from instrumented_engine.api.protocol import ChatCompletionRequest, CompletionRequest
from instrumented_engine.api.served_model import Reload, ServedModel
from instrumented_engine.api.tick import Chore, Tick
from instrumented_engine.api.timeline import Recorder
from instrumented_engine.config import EngineSettings
from telemetry.scoreboard import Writer
from telemetry.version import VERSION

_RELOAD_GRACE_SECONDS: Final = 5.0


def build_app(
    settings: EngineSettings,
    client: CoreClient,
    model: ServedModel,
    page: Writer,
    gate: Gate,
    chores: Sequence[Chore] = (),
) -> ASGIApp:
    """The application with its routes, error form, admission and timeline around every completion.

    ``chores`` are done about once a second on the event loop.
    """
    recorder = Recorder(page)
    admission = Admission(settings, client, gate, time.monotonic)
    tick = Tick(client, page, recorder, (partial(admission.publish_rate, page.slots), *chores))
    reload = Reload(gate, model, settings.drain_timeout + _RELOAD_GRACE_SECONDS)
    app = FastAPI(title="enginescope reference engine", version=VERSION, lifespan=_lifespan(client, reload, tick))
    created = int(time.time())

    @app.get("/live", responses=answers.whole(answers.Status))
    async def live() -> dict[str, str]:
        """200 while the process can answer at all: a restart would not help otherwise."""
        return {"status": "ok"}

    @app.get("/health", response_model=None, responses=answers.whole(answers.Status) | answers.errors(OVERLOAD))
    async def health() -> JSONResponse:
        """200 while a request sent now would be served; else 503, and why. Of several cores one is enough for that."""
        refused = gate.refusal or (OverloadError("no_core", NO_CORE) if client.max_model_len is None else None)
        if refused or not client.serving:
            error = ApiError(OVERLOAD, refused.message if refused else "; ".join(client.problems))
            return JSONResponse(error.body(), OVERLOAD.status, error.headers())  # not logged: this is asked always
        complaints = client.complaints
        return JSONResponse({"status": "degraded", "cores": complaints} if complaints else {"status": "ok"})

    @app.get("/version", responses=answers.whole(answers.Version))
    async def version() -> dict[str, str]:
        return {"version": VERSION}

    @app.get("/v1/models", responses=answers.whole(answers.ModelList))
    async def models() -> dict[str, Any]:
        card = {"id": model.name, "object": "model", "created": created, "owned_by": "enginescope"}
        return {"object": "list", "data": [card | {"max_model_len": client.max_model_len}]}

    @app.post("/v1/completions", response_model=None, responses=answers.generation(answers.Completion))
    async def completions(request: Request, body: CompletionRequest) -> Any:
        _check_model(body.model, model.name)
        prompt = model.tokenizer.encode(body.prompt) if isinstance(body.prompt, str) else body.prompt
        generation = Generation(client, model.tokenizer, model.name, request.scope[SCOPE_KEY], body, prompt)
        return await respond(request, generation)

    @app.post("/v1/chat/completions", response_model=None, responses=answers.generation(answers.ChatCompletion))
    async def chat_completions(request: Request, body: ChatCompletionRequest) -> Any:
        _check_model(body.model, model.name)
        prompt = chat_tokens(model.tokenizer, body)
        generation = Generation(client, model.tokenizer, model.name, request.scope[SCOPE_KEY], body, prompt)
        return await respond(request, generation)

    add_error_handlers(app, page)
    return TimelineMiddleware(app, recorder, admission, error_answer)


def _check_model(asked: str, served: str) -> None:
    if asked and asked != served:
        raise ApiError(NOT_FOUND, f"the model {asked!r} does not exist; this engine serves {served!r}", "model")


def _lifespan(client: CoreClient, reload: Reload, tick: Tick) -> Any:
    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload.begin)
        client.on_ready, client.on_gone = reload.core_ready, reload.core_gone
        client.start()
        async with tick.running():
            yield
        client.close()

    return lifespan
