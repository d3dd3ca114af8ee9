"""Servers that know nothing of enginescope: ``python -m tests.integration.plain_server KIND PORT KEEP_ALIVE``."""

from __future__ import annotations

import asyncio
import sys
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import uvicorn

_never = asyncio.Event()


class Handler(BaseHTTPRequestHandler):
    """One request at a time; ``/hang`` never ends."""

    def do_GET(self) -> None:
        if self.path == "/hang":
            time.sleep(3600)
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")


def spin() -> None:
    while True:
        pass


async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """An event loop: ``/poll`` answers after a while, ``/events`` streams, ``/lost`` waits for ever beside
    others, ``/cut`` does so in the middle of its answer."""
    if scope["type"] != "http":
        return
    path = scope["path"]
    if path == "/sleep":
        time.sleep(3600)
    elif path == "/spin":
        spin()
    elif path == "/lost":
        await _never.wait()
    elif path == "/poll":
        await asyncio.sleep(9)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for number in range(11 if path == "/events" else 0):
        await send({"type": "http.response.body", "body": b"data: %d\n\n" % number, "more_body": True})
        await asyncio.sleep(1)
    if path == "/cut":
        await send({"type": "http.response.body", "body": b"data: 0\n\n", "more_body": True})
        await _never.wait()
    await send({"type": "http.response.body", "body": b"ok"})


def main(kind: str, port: int, keep_alive: int) -> None:
    if kind == "http.server":
        HTTPServer(("127.0.0.1", port), Handler).serve_forever()
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning", timeout_keep_alive=keep_alive, lifespan="off")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
