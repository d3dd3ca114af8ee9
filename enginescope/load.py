"""A little traffic: completions of every kind at a rate, each under a trace id of its own."""

from __future__ import annotations

import http.client
import itertools
import json
import queue
import random
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

QUESTIONS: Final = (
    "What is the capital of France?",
    "Name three colours of the rainbow.",
    "Write one sentence about the sea.",
    "What is two plus three?",
    "Say hello in Spanish.",
)
_TIMEOUT_SECONDS: Final = 120
_PACE: Final = (0.5, 1.5)
"""The shortest and the longest time to the next request, in mean times."""


@dataclass(frozen=True, slots=True)
class Result:
    """One request as its client saw it."""

    trace_id: str
    status: int
    """HTTP status; 0 when the connection failed."""
    ok: bool
    seconds: float
    text: str
    error: str = ""


def ask(url: str, question: str, max_tokens: int, *, chat: bool, stream: bool) -> Result:
    """One completion, with a fresh ``traceparent``."""
    trace_id = f"{random.getrandbits(128):032x}"
    body: dict[str, Any] = {"max_tokens": max_tokens, "temperature": 0, "stream": stream}
    body |= {"messages": [{"role": "user", "content": question}]} if chat else {"prompt": question}
    started = time.perf_counter()
    status, text, error = 0, "", ""
    try:
        status, text = _post(url, "/v1/chat/completions" if chat else "/v1/completions", body, trace_id)
    except (OSError, http.client.HTTPException, ValueError, KeyError) as problem:
        error = f"{type(problem).__name__}: {problem}"
    return Result(trace_id, status, status == 200 and not error, time.perf_counter() - started, text, error)


def _post(url: str, path: str, body: dict[str, Any], trace_id: str) -> tuple[int, str]:
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.hostname or "127.0.0.1", address.port, timeout=_TIMEOUT_SECONDS)
    headers = {
        "Content-Type": "application/json",
        "traceparent": f"00-{trace_id}-{random.getrandbits(64):016x}-01",
    }
    try:
        connection.request("POST", path, json.dumps(body), headers)
        response = connection.getresponse()
        raw = response.read()
    finally:
        connection.close()
    if response.status != 200:
        return response.status, raw.decode(errors="replace")
    return response.status, _streamed(raw) if body["stream"] else _piece(json.loads(raw))


def _streamed(raw: bytes) -> str:
    """The text of a stream; it must end as OpenAI's do."""
    events = [line.removeprefix("data: ") for line in raw.decode().splitlines() if line.startswith("data: ")]
    if not events or events[-1] != "[DONE]":
        raise ValueError("the stream broke off")
    return "".join(_piece(json.loads(event)) for event in events[:-1])


def _piece(response: dict[str, Any]) -> str:
    choice = response["choices"][0] if response["choices"] else {}
    message = choice.get("message") or choice.get("delta") or {}
    return choice.get("text") or message.get("content") or ""


class Generator:
    """Sends requests at a rate, whatever their answers take, until its time is over or ``stop``.

    At most ``workers`` are open at once: when the engine is slower than that, the rate drops.
    """

    def __init__(self, url: str, rate: float, seconds: float, max_tokens: int, workers: int = 8) -> None:
        """``seconds`` 0 means until ``stop``."""
        self._url = url
        self._rate = rate
        self._seconds = seconds
        self._max_tokens = max_tokens
        self._stopping = threading.Event()
        self._jobs: queue.Queue[int | None] = queue.Queue(maxsize=workers)
        self._results: queue.Queue[Result | None] = queue.Queue()
        self._workers = [threading.Thread(target=self._work, daemon=True) for _ in range(workers)]

    def stop(self) -> None:
        """Send nothing more; ``results`` ends when the open requests have."""
        self._stopping.set()

    def results(self) -> Iterator[Result]:
        """Start, and give each request's result as it comes."""
        for thread in (*self._workers, threading.Thread(target=self._feed, daemon=True)):
            thread.start()
        while (result := self._results.get()) is not None:
            yield result

    def _feed(self) -> None:
        end = time.monotonic() + (self._seconds or float("inf"))
        for number in itertools.count():
            self._jobs.put(number)
            # Not in step with whoever looks once a second, who would else see the same moment of every request.
            if self._stopping.wait(random.uniform(*_PACE) / self._rate) or time.monotonic() >= end:
                break
        for _ in self._workers:
            self._jobs.put(None)
        for thread in self._workers:
            thread.join()
        self._results.put(None)

    def _work(self) -> None:
        while (number := self._jobs.get()) is not None:
            question = QUESTIONS[number % len(QUESTIONS)]
            self._results.put(ask(self._url, question, self._max_tokens, chat=number % 2 == 0, stream=number % 3 != 0))
