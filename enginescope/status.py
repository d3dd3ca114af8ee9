"""What ``enginescope up`` says of a running stack: one line while it runs, counts and a summary at the end."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote

import msgspec

from enginescope.pages import Page
from enginescope.probe import ProbeError, get, post, query, samples, total
from enginescope.services import Ports
from telemetry.stages import STAGES

_SHOWN_OF_ERROR: Final = 200


@dataclass
class Traffic:
    """What the built-in traffic has done."""

    sent: int = 0
    trace_ids: list[str] = field(default_factory=list)
    """Of the requests that went well."""
    last_error: str = ""

    def take(self, line: str) -> None:
        """One line of the load generator: a Result as JSON."""
        try:
            result = json.loads(line)
        except ValueError:
            self.last_error = line
            return
        self.sent += 1
        if result["ok"]:
            self.trace_ids.append(result["trace_id"])
        else:
            self.last_error = result["error"] or f"HTTP {result['status']}: {result['text'][:_SHOWN_OF_ERROR]}"


def status_line(ports: Ports, pages: int) -> str:
    """The engine as the sidecar sees it, in a line; ``pages``: alerts that fired so far."""
    try:
        found = samples(ports.sidecar)
    except ProbeError as error:
        return f"sidecar: {error}"
    port = str(ports.engine)

    def value(name: str, **labels: str) -> str:
        number = total(found, f"enginescope_{name}", **labels)
        return "?" if number is None else f"{number:.0f}"

    depth, limit = value("listener_accept_queue_depth", port=port), value("listener_accept_queue_limit", port=port)
    return (
        f"engine {'up' if value('engine_up') == '1' else 'DOWN'} | "
        f"requests ok {value('requests_total', outcome='ok')} in flight {value('requests_inflight')} | "
        f"running {value('requests_running')} waiting {value('requests_waiting')} | "
        f"accept queue {depth}/{limit} drops {value('listener_drops_total', port=port)} | "
        f"connections {value('connections', port=port, state='established')} | pages {pages}"
    )


def new_pages(ports: Ports, since: int) -> list[Page]:
    """Pages that came after the one with this id; none while the receiver does not answer."""
    try:
        raw = get(ports.page_receiver, f"/pages?since={since}", timeout=1.0)
    except ProbeError:
        return []
    return msgspec.json.decode(raw, type=list[Page])


def count_spans(ports: Ports, trace_ids: Iterable[str]) -> dict[str, int]:
    """Span name -> how many the stack's OTLP endpoint has of these traces.

    Raises:
        ProbeError: it does not answer.
    """
    counts = post(ports.otlp, "/api/counts", {"trace_ids": list(trace_ids)})
    return {stage.span_name: counts.get(stage.span_name, 0) for stage in STAGES}


def count_series(ports: Ports, engine: str) -> int:
    """Series of this engine in Prometheus.

    Raises:
        ProbeError: it does not answer.
    """
    wanted = quote(f'count({{__name__=~"enginescope_.+",engine="{engine}"}})')
    return int(query(ports.prometheus, wanted) or 0)
