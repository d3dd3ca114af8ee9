"""Around every completion: its timeline, and whether it is let in at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from instrumented_engine.api.admission import Admission
from instrumented_engine.api.errors import ApiError
from instrumented_engine.api.timeline import Recorder, Timeline
from telemetry.stages import ROUTES, Stamp

SCOPE_KEY: Final = "enginescope.timeline"
_CHAT_BY_ROUTE: Final = {route: chat for chat, route in ROUTES.items()}
Answer = Callable[[ApiError], ASGIApp]


class TimelineMiddleware:
    """Gives every completion request a Timeline and records it when its response is over."""

    def __init__(self, app: ASGIApp, recorder: Recorder, admission: Admission, answer: Answer) -> None:
        """``answer`` turns the error of a refused request into its response."""
        self._app = app
        self._recorder = recorder
        self._admission = admission
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass through; watch completions."""
        chat = _CHAT_BY_ROUTE.get(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        if chat is None:
            await self._app(scope, receive, send)
            return
        timeline = Timeline(_header(scope, b"traceparent"), chat=chat)
        scope[SCOPE_KEY] = timeline

        async def watch(message: Message) -> None:
            if message["type"] == "http.response.start":
                timeline.status = message["status"]
            await send(message)
            answered = message["type"] == "http.response.body" and not message.get("more_body", False)
            timeline.answered = timeline.answered or answered

        async def listen() -> Message:
            message = await receive()
            if message["type"] == "http.disconnect" and not timeline.answered:
                timeline.disconnected = True
            return message

        self._recorder.started(timeline)
        try:
            await self._app_for(timeline)(scope, listen, watch)
        finally:
            self._recorder.ended(timeline)
            self._tell_limiter(timeline.stamps)

    def _app_for(self, timeline: Timeline) -> ASGIApp:
        refused = self._admission.refusal()
        if refused is None:
            return self._app
        timeline.shed_reason = refused.reason
        return self._answer(refused)

    def _tell_limiter(self, stamps: list[int]) -> None:
        limiter = self._admission.limiter
        if limiter is not None and stamps[Stamp.SCHEDULED]:
            limiter.observe((stamps[Stamp.SCHEDULED] - stamps[Stamp.INPUT_HANDED]) * 1e-9)


def _header(scope: Scope, name: bytes) -> str | None:
    return next((value.decode("latin-1") for key, value in scope["headers"] if key == name), None)
