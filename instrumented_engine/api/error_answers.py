"""Errors as answers: in OpenAI's form, counted once, and logged without flooding."""

from __future__ import annotations

import logging
import time
from typing import Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from instrumented_engine.api.errors import INTERNAL, PROTOCOL, ApiError, OverloadError, class_of
from instrumented_engine.api.middleware import SCOPE_KEY
from instrumented_engine.api.timeline import Timeline
from telemetry.scoreboard import Writer

_log = logging.getLogger(__name__)
_SHED_LOG_SECONDS: Final = 1.0


class ShedLog:
    """Logs refused requests at most once a second for each reason: an overload must not be one of the log, too."""

    def __init__(self) -> None:
        self._quiet_until: dict[str, float] = {}
        self._unsaid: dict[str, int] = {}

    def say(self, error: OverloadError) -> None:
        """Log this one, or count it for the next line."""
        now, reason = time.monotonic(), error.reason
        self._unsaid[reason] = self._unsaid.get(reason, 0) + 1
        if now >= self._quiet_until.get(reason, 0.0):
            self._quiet_until[reason] = now + _SHED_LOG_SECONDS
            _log.log(error.error_class.log_level, "shed %d requests: %s", self._unsaid.pop(reason), error.message)


_shed_log: Final = ShedLog()


def error_answer(error: ApiError) -> JSONResponse:
    """The answer, logged."""
    if isinstance(error, OverloadError):
        _shed_log.say(error)
    else:
        _log.log(error.error_class.log_level, "answered %d: %s", error.status, error.message)
    return JSONResponse(error.body(), error.status, error.headers())


def add_error_handlers(app: FastAPI, page: Writer) -> None:
    """Answer every exception of a route with an error of the table, and count it."""

    async def api_error(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, ApiError)
        timeline: Timeline | None = request.scope.get(SCOPE_KEY)
        if timeline is None:
            page[f"errors_{error.error_class.name}"] += 1
        elif isinstance(error, OverloadError):
            timeline.shed_reason = error.reason
        return error_answer(error)

    async def invalid_body(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        return await api_error(request, ApiError(PROTOCOL, *_first_problem(error)))

    async def http_error(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        error_class, sentence = class_of(error.status_code), f"{request.url.path}: {error.detail}"
        answer = await api_error(request, ApiError(error_class, sentence, status=error.status_code))
        answer.headers.update(error.headers or {})  # such as Allow with 405
        return answer

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
