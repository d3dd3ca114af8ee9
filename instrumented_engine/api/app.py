"""The HTTP application: routes in OpenAI's form around one CoreClient."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from instrumented_engine.api.client import CoreClient
from instrumented_engine.api.errors import INTERNAL, NOT_FOUND, OVERLOAD, PROTOCOL, ApiError, ErrorClass
from instrumented_engine.api.generation import Generation, respond
from instrumented_engine.api.protocol import ChatCompletionRequest, CompletionRequest
from instrumented_engine.api.timeline import Recorder, Timeline
from instrumented_engine.model.tokenizers import Tokenizer
from telemetry.scoreboard import HistogramWriter, Writer
from telemetry.stages import ROUTES
from telemetry.version import VERSION

_log = logging.getLogger(__name__)
_TICK_SECONDS: Final = 0.1
_SCOPE_KEY: Final = "enginescope.timeline"
_CHAT_BY_ROUTE: Final = {route: chat for chat, route in ROUTES.items()}


def build_app(client: CoreClient, tokenizer: Tokenizer, model_name: str, page: Writer) -> ASGIApp:
    """The application with its routes, error form and timeline around every completion."""
    app = FastAPI(title="enginescope reference engine", version=VERSION, lifespan=_lifespan(client, page))
    created = int(time.time())

    @app.get("/health")
    async def health() -> JSONResponse:
        """200 while a core takes requests."""
        if client.max_model_len is None:
            error = ApiError(OVERLOAD, "the engine has no running core")
            return JSONResponse(
                error.body(), OVERLOAD.status, error.headers()
            )  # not logged: this is asked all the time
        return JSONResponse({"status": "ok"})

    @app.get("/version")
    async def version() -> dict[str, str]:
        return {"version": VERSION}

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        card = {"id": model_name, "object": "model", "created": created, "owned_by": "enginescope"}
        return {"object": "list", "data": [card | {"max_model_len": client.max_model_len}]}

    @app.post("/v1/completions", response_model=None)
    async def completions(request: Request, body: CompletionRequest) -> Any:
        _check_model(body.model, model_name)
        prompt = tokenizer.encode(body.prompt) if isinstance(body.prompt, str) else body.prompt
        generation = Generation(client, tokenizer, model_name, request.scope[_SCOPE_KEY], body, prompt)
        return await respond(request, generation)

    @app.post("/v1/chat/completions", response_model=None)
    async def chat_completions(request: Request, body: ChatCompletionRequest) -> Any:
        _check_model(body.model, model_name)
        prompt = tokenizer.encode(tokenizer.chat_prompt([(m.role, m.text) for m in body.messages]))
        generation = Generation(client, tokenizer, model_name, request.scope[_SCOPE_KEY], body, prompt)
        return await respond(request, generation)

    _add_error_handlers(app)
    return TimelineMiddleware(app, Recorder(page))


def _check_model(asked: str, served: str) -> None:
    if asked and asked != served:
        raise ApiError(NOT_FOUND, f"the model {asked!r} does not exist; this engine serves {served!r}", "model")


def _lifespan(client: CoreClient, page: Writer) -> Any:
    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        client.start()
        tick = asyncio.create_task(_tick(client, page))
        yield
        tick.cancel()
        with suppress(asyncio.CancelledError):
            await tick
        client.close()

    return lifespan


async def _tick(client: CoreClient, page: Writer) -> None:
    """Every 100 ms: prove that the event loop runs, measure how late it is, and look after the core."""
    lag: HistogramWriter = page.histogram("event_loop_lag")
    while True:
        started = time.monotonic_ns()
        await asyncio.sleep(_TICK_SECONDS)
        lag.observe(time.monotonic_ns() - started - int(_TICK_SECONDS * 1e9))
        page["loop_tick_ns"] = time.time_ns()
        client.check_core()


def _add_error_handlers(app: FastAPI) -> None:
    async def api_error(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, ApiError)
        _log.log(error.error_class.log_level, "answered %d: %s", error.error_class.status, error.message)
        return JSONResponse(error.body(), error.error_class.status, error.headers())

    async def invalid_body(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        return await api_error(request, ApiError(PROTOCOL, *_first_problem(error)))

    async def http_error(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        error_class = ErrorClass(error.status_code, "invalid_request_error", logging.INFO, "never")
        return await api_error(request, ApiError(error_class, f"{request.url.path}: {error.detail}"))

    async def unexpected(request: Request, error: Exception) -> JSONResponse:
        _log.error("a request failed", exc_info=error)
        return await api_error(
            request, ApiError(INTERNAL, "the engine failed on this request; its log has the traceback")
        )

    app.add_exception_handler(ApiError, api_error)
    app.add_exception_handler(RequestValidationError, invalid_body)
    app.add_exception_handler(HTTPException, http_error)
    app.add_exception_handler(Exception, unexpected)


def _first_problem(error: RequestValidationError) -> tuple[str, str | None]:
    """One sentence and the offending parameter; the client's own values are not repeated."""
    problem = error.errors()[0]
    if problem["type"] == "json_invalid":
        return "the request body is not valid JSON", None
    param = ".".join(str(part) for part in problem["loc"] if part != "body") or None
    message = problem["msg"].removeprefix("Value error, ")
    return (f"{param}: {message}" if param else message), param


class TimelineMiddleware:
    """Gives every completion request a Timeline and records it when its response is over."""

    def __init__(self, app: ASGIApp, recorder: Recorder) -> None:
        self._app = app
        self._recorder = recorder

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass through; watch completions."""
        chat = _CHAT_BY_ROUTE.get(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        if chat is None:
            await self._app(scope, receive, send)
            return
        timeline = Timeline(_header(scope, b"traceparent"), chat=chat)
        scope[_SCOPE_KEY] = timeline

        async def watch(message: Message) -> None:
            if message["type"] == "http.response.start":
                timeline.status = message["status"]
            await send(message)

        self._recorder.started()
        try:
            await self._app(scope, receive, watch)
        finally:
            self._recorder.ended(timeline)


def _header(scope: Scope, name: bytes) -> str | None:
    return next((value.decode("latin-1") for key, value in scope["headers"] if key == name), None)
