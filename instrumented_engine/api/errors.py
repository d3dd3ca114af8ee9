"""The error classes of the engine: one table for code and docs, answered in OpenAI's error form."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class ErrorClass:
    """How one kind of failure is answered, counted, logged and, by a client, retried."""

    name: str
    """Its counter on the API's page is ``errors_NAME``."""
    status: int
    type: str
    log_level: int
    retry_advice: str
    retry_after_seconds: int = 0
    closes: bool = False
    """Whether the connection ends with the answer: what follows on it cannot be trusted either."""


PROTOCOL: Final = ErrorClass(
    "protocol", 400, "invalid_request_error", logging.INFO, "never: the request itself must change", closes=True
)
NOT_FOUND: Final = ErrorClass(
    "not_found", 404, "invalid_request_error", logging.INFO, "never: the model, path or method must change"
)
TOO_LARGE: Final = ErrorClass(
    "too_large", 413, "invalid_request_error", logging.INFO, "never: the request must become smaller"
)
OVERLOAD: Final = ErrorClass("overload", 503, "overloaded_error", logging.WARNING, "after the Retry-After seconds", 1)
TIMEOUT: Final = ErrorClass("timeout", 504, "timeout_error", logging.WARNING, "with exponential back-off")
INTERNAL: Final = ErrorClass("internal", 500, "internal_error", logging.ERROR, "once, then report it")

TABLE: Final = (PROTOCOL, NOT_FOUND, TOO_LARGE, OVERLOAD, TIMEOUT, INTERNAL)


SHED_MEANINGS: Final = {
    "no_core": "no core process is ready: it starts, or it died and is being restarted",
    "input_full": "the input socket takes no more messages (`--high-water-mark`)",
    "waiting": "as many requests wait for a place in the batch as may (`--max-waiting-requests`)",
    "output_depth": "the API process is too many output messages behind (`--max-output-depth`)",
    "output_age": "its oldest unreceived output is too old (`--max-output-age`)",
    "rate": "the adaptive limit is reached (`--adaptive-limit`)",
    "draining": "the engine is shutting down; the connection is closed",
    "reloading": "the model is being loaded again",
}
"""``telemetry.layout.SHED_REASONS`` in words."""


def class_of(status: int) -> ErrorClass:
    """The class that a status outside the table is counted as."""
    exact = next((error_class for error_class in TABLE if error_class.status == status), None)
    return exact or (INTERNAL if status >= HTTPStatus.INTERNAL_SERVER_ERROR else NOT_FOUND)


class ApiError(Exception):
    """A request that ends with an error; the message is one sentence for the client."""

    def __init__(
        self, error_class: ErrorClass, message: str, param: str | None = None, status: int | None = None
    ) -> None:
        """``status`` is for the answers of the web framework that are no class of their own, such as 405."""
        super().__init__(message)
        self.error_class = error_class
        self.message = message
        self.param = param
        self.status = status or error_class.status

    def body(self) -> dict[str, Any]:
        """OpenAI's error object."""
        return {
            "error": {
                "message": self.message,
                "type": self.error_class.type,
                "param": self.param,
                "code": self.status,
            }
        }

    def headers(self) -> dict[str, str]:
        """``Retry-After`` where waiting helps, ``Connection: close`` where the connection must end."""
        seconds = self.error_class.retry_after_seconds
        headers = {"Retry-After": str(seconds)} if seconds else {}
        return headers | ({"Connection": "close"} if self.error_class.closes else {})


class OverloadError(ApiError):
    """A request that is shed: refused at once so that those inside do not become slower."""

    def __init__(self, reason: str, message: str) -> None:
        """``reason`` is one of ``telemetry.layout.SHED_REASONS``."""
        super().__init__(OVERLOAD, message)
        self.reason = reason

    def headers(self) -> dict[str, str]:
        """A process that ends takes no further request on any connection."""
        closing = {"Connection": "close"} if self.reason == "draining" else {}
        return super().headers() | closing
