"""The error classes of the engine: one table for code and docs, answered in OpenAI's error form."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class ErrorClass:
    """How one kind of failure is answered, logged and, by a client, retried."""

    status: int
    type: str
    log_level: int
    retry_advice: str
    retry_after_seconds: int = 0


PROTOCOL: Final = ErrorClass(400, "invalid_request_error", logging.INFO, "never: the request itself must change")
NOT_FOUND: Final = ErrorClass(404, "invalid_request_error", logging.INFO, "never: the model or path must change")
TOO_LARGE: Final = ErrorClass(413, "invalid_request_error", logging.INFO, "never: the request must become smaller")
OVERLOAD: Final = ErrorClass(503, "overloaded_error", logging.WARNING, "after the Retry-After seconds", 1)
TIMEOUT: Final = ErrorClass(504, "timeout_error", logging.WARNING, "with exponential back-off")
INTERNAL: Final = ErrorClass(500, "internal_error", logging.ERROR, "once, then report it")


class ApiError(Exception):
    """A request that ends with an error; the message is one sentence for the client."""

    def __init__(self, error_class: ErrorClass, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.error_class = error_class
        self.message = message
        self.param = param

    def body(self) -> dict[str, Any]:
        """OpenAI's error object."""
        return {
            "error": {
                "message": self.message,
                "type": self.error_class.type,
                "param": self.param,
                "code": self.error_class.status,
            }
        }

    def headers(self) -> dict[str, str]:
        """``Retry-After`` where waiting helps."""
        seconds = self.error_class.retry_after_seconds
        return {"Retry-After": str(seconds)} if seconds else {}
