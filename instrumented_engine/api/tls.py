"""TLS with certificates that can be replaced while the server runs."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

_log = logging.getLogger(__name__)


class TlsError(ValueError):
    """A certificate or key that cannot be used; the message is one sentence."""


class ReloadingContext:
    """A server context that loads its files again when they change: new handshakes get the new certificate."""

    def __init__(self, cert: str, key: str) -> None:
        """Load both files.

        Raises:
            TlsError: they cannot be read, or do not belong together.
        """
        self._cert, self._key = Path(cert), Path(key)
        self._seen = self._fingerprint()
        self.context = _new_context()
        self._load(self.context)

    def reload_if_changed(self) -> bool:
        """Look at the files; whether a new certificate is in force. What cannot be used is logged, and changes nothing.

        A replacement is two files, so that a look between the two writes finds a pair that does not match: it is
        looked at again when the second file changes.
        """
        found = self._fingerprint()
        if found == self._seen:
            return False
        self._seen = found
        try:
            self._load(_new_context())  # a failed load can leave a context with half of a pair
            self._load(self.context)
        except TlsError as error:
            _log.error("the old certificate stays in use: %s", error)
            return False
        _log.info("new connections get the certificate that is in %s now", self._cert)
        return True

    def _load(self, context: ssl.SSLContext) -> None:
        try:
            context.load_cert_chain(self._cert, self._key)
        except OSError as error:  # ssl.SSLError is one
            raise TlsError(f"--tls-cert {self._cert} and --tls-key {self._key} cannot be used: {error}") from error

    def _fingerprint(self) -> tuple[tuple[int, int, int], ...]:
        return tuple(_stat(path) for path in (self._cert, self._key))


def _stat(path: Path) -> tuple[int, int, int]:
    try:
        status = path.stat()
    except OSError:
        return (0, 0, 0)
    return (status.st_ino, status.st_mtime_ns, status.st_size)


def _new_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # A ticket lets whoever steals the ticket key read recorded sessions, and lives on past a replaced certificate.
    context.options |= ssl.OP_NO_TICKET
    context.num_tickets = 0
    context.set_alpn_protocols(["http/1.1"])
    return context
