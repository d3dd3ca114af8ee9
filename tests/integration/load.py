"""Many HTTP requests at once from one process, without an HTTP library: each ends in exactly one outcome."""

from __future__ import annotations

import asyncio
import json
import resource
from collections import Counter
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Answer:
    """What came back on one connection. ``outcome`` is ok, error (the client was told) or lost (it was not)."""

    outcome: str
    status: int = 0
    text: str = ""
    id: str = ""
    prompt_tokens: int = 0


def raise_fd_limit() -> None:
    """As many open files as the hard limit allows."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def request(body: dict[str, Any]) -> bytes:
    """A completion request that closes its connection."""
    payload = json.dumps(body).encode()
    return (
        b"POST /v1/completions HTTP/1.1\r\nHost: test\r\nConnection: close\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%s" % (len(payload), payload)
    )


async def exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, body: dict[str, Any]) -> Answer:
    """Send one request on an open connection and read what comes back to the end."""
    try:
        writer.write(request(body))
        raw = await asyncio.wait_for(reader.read(-1), 90)
    except (OSError, TimeoutError):
        return Answer("lost")
    finally:
        writer.close()
    return parse(raw, streamed=bool(body.get("stream")))


def parse(raw: bytes, *, streamed: bool) -> Answer:
    """The outcome of a whole response."""
    head, _, content = raw.partition(b"\r\n\r\n")
    if not head:
        return Answer("lost")
    status = int(head.split(None, 2)[1])
    if status != 200:
        return Answer("error" if b'"error"' in content else "lost", status)
    return _parse_stream(content) if streamed else _parse_whole(content)


def _parse_whole(content: bytes) -> Answer:
    try:
        body = json.loads(content)
    except ValueError:
        return Answer("lost", 200)
    return Answer("ok", 200, body["choices"][0]["text"], body["id"], body["usage"]["prompt_tokens"])


def _parse_stream(content: bytes) -> Answer:
    if b"data: [DONE]" in content:
        return Answer("ok", 200)
    return Answer("error" if b'data: {"error"' in content else "lost", 200)


async def storm(port: int, bodies: list[dict[str, Any]]) -> list[Answer]:
    """Connect all, then send all: as many connections at once as there are bodies."""
    connections = [await asyncio.open_connection("127.0.0.1", port, limit=1 << 20) for _ in bodies]
    exchanges = (exchange(*pair, body) for pair, body in zip(connections, bodies, strict=True))
    return list(await asyncio.gather(*exchanges))


def outcomes(answers: list[Answer]) -> Counter[str]:
    """How many ended how."""
    return Counter(answer.outcome for answer in answers)
