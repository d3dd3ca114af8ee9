"""Pages: what Alertmanager's webhook says, split by alert, kept within bounds and told in words."""

from __future__ import annotations

import hashlib
import threading
import time
from collections import OrderedDict, deque
from datetime import UTC, datetime
from typing import Any, Final, Literal

import msgspec

KEPT: Final = 1000
WEBHOOK_VERSION: Final = "4"

Status = Literal["firing", "resolved"]


class WebhookError(ValueError):
    """A message that is not Alertmanager's webhook; the message is one sentence."""


class Page(msgspec.Struct, frozen=True):
    """One alert as it reached us."""

    id: int
    received_ns: int
    receiver: str
    status: Status
    alert: str
    severity: str
    labels: dict[str, str]
    annotations: dict[str, str]
    starts_at: str
    fingerprint: str


class Notice(msgspec.Struct, frozen=True, rename="camel"):
    """One alert in a webhook message. Its own status counts, since a firing group may hold resolved alerts."""

    status: Status
    labels: dict[str, str]
    annotations: dict[str, str] | None = None
    starts_at: str = ""
    fingerprint: str = ""


class Message(msgspec.Struct, frozen=True):
    """Alertmanager's webhook message, as far as it matters here; other fields are ignored."""

    alerts: list[Notice]
    receiver: str = ""


class _Version(msgspec.Struct):
    version: Any = None


def parse_webhook(body: bytes) -> Message:
    """Read a webhook message.

    Raises:
        WebhookError: not JSON, of another version, or without what makes an alert.
    """
    try:
        version = msgspec.json.decode(body, type=_Version).version
        if version != WEBHOOK_VERSION:
            raise WebhookError(f"expected Alertmanager's webhook version {WEBHOOK_VERSION}, got version {version!r}")
        return msgspec.json.decode(body, type=Message)
    except msgspec.MsgspecError as error:
        raise WebhookError(f"not a webhook message of Alertmanager: {error}") from error


class PageStore:
    """The last ``KEPT`` pages; safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pages: deque[Page] = deque(maxlen=KEPT)
        self._newest: OrderedDict[tuple[str, str], tuple[Status, str]] = OrderedDict()
        self._last_id = 0
        self._repeated = 0

    def add(self, receiver: str, notice: Notice) -> Page | None:
        """Keep a page; None when the newest page of that alert already says the same."""
        fingerprint = notice.fingerprint or _fingerprint(notice.labels)
        key, state = (receiver, fingerprint), (notice.status, notice.starts_at)
        with self._lock:
            if self._newest.get(key) == state:
                self._repeated += 1
                return None
            self._newest[key] = state
            self._newest.move_to_end(key)
            if len(self._newest) > KEPT:
                self._newest.popitem(last=False)
            self._last_id += 1
            page = Page(
                id=self._last_id,
                received_ns=time.time_ns(),
                receiver=receiver,
                status=notice.status,
                alert=notice.labels.get("alertname", "unnamed"),
                severity=notice.labels.get("severity", ""),
                labels=notice.labels,
                annotations=notice.annotations or {},
                starts_at=notice.starts_at,
                fingerprint=fingerprint,
            )
            self._pages.append(page)
            return page

    def since(self, page_id: int) -> list[Page]:
        """The pages after that id, oldest first."""
        with self._lock:
            return [page for page in self._pages if page.id > page_id]

    def counts(self) -> dict[str, int]:
        """How many pages came, were repeats, and are no longer kept."""
        with self._lock:
            return {
                "pages": self._last_id,
                "repeated": self._repeated,
                "dropped": self._last_id - len(self._pages),
                "last_id": self._last_id,
            }


def _fingerprint(labels: dict[str, str]) -> str:
    return hashlib.sha256(repr(sorted(labels.items())).encode()).hexdigest()[:16]


def format_page(page: Page) -> str:
    """The page as one paragraph: what, where, how bad, since when, what next, runbook."""
    where = ", ".join(f"{name} {value}" for name, value in page.labels.items() if name not in ("alertname", "severity"))
    summary = page.annotations.get("summary") or f"{where or 'no labels'}."
    started = _moment(page.starts_at)
    parts = [f"{page.status.upper()} {page.severity} {page.alert}: {summary}"]
    if page.status == "resolved":
        parts.append(f"It lasted {_length(page.received_ns / 1e9 - started.timestamp())}." if started else "")
    else:
        parts.append(f"Since {started.astimezone():%Y-%m-%d %H:%M:%S %Z}." if started else "")
        parts.append(page.annotations.get("description", ""))
        parts.append(f"Runbook: {page.annotations['runbook_url']}" if page.annotations.get("runbook_url") else "")
    # Labels come from elsewhere: nothing in them may steer the terminal.
    text = " ".join(" ".join(parts).split())
    return "".join(character for character in text if character.isprintable())


def _moment(timestamp: str) -> datetime | None:
    try:
        moment = datetime.fromisoformat(timestamp)
    except ValueError:
        return None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return moment if moment.year > 1 else None


def _length(seconds: float) -> str:
    whole = max(round(seconds), 0)
    if whole < 120:
        return f"{whole} s"
    return f"{whole // 60} min {whole % 60} s" if whole < 7200 else f"{whole // 3600} h {whole // 60 % 60} min"
