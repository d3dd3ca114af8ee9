import shutil
import socket
import ssl
import threading
from pathlib import Path

import pytest

from instrumented_engine.api.tls import ReloadingContext, TlsError
from instrumented_engine.config import EngineSettings

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures" / "tls"


def install(folder: Path, cert: str, key: str) -> tuple[str, str]:
    for name, suffix in ((cert, "pem"), (key, "key")):
        shutil.copy(FIXTURES / f"{name}.{suffix}", folder / f"new.{suffix}")
        (folder / f"new.{suffix}").rename(folder / f"live.{suffix}")
    return str(folder / "live.pem"), str(folder / "live.key")


def served(context: ssl.SSLContext, highest: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> tuple[str, bool]:
    """The certificate that a new client gets, by its fixture's name, and whether a session ticket came with it."""
    near, far = socket.socketpair()
    client = ssl.create_default_context()
    client.check_hostname, client.verify_mode, client.maximum_version = False, ssl.CERT_NONE, highest

    def serve() -> None:
        with context.wrap_socket(far, server_side=True) as wrapped:
            wrapped.sendall(b"x")

    thread = threading.Thread(target=serve)
    thread.start()
    with client.wrap_socket(near) as wrapped:
        wrapped.recv(1)  # tickets of TLS 1.3 come before the first byte
        thread.join(10)
        found = wrapped.getpeercert(binary_form=True)
        ticket = wrapped.session is not None and wrapped.session.has_ticket
    names = {
        ssl.PEM_cert_to_DER_cert((FIXTURES / f"{name}.pem").read_text()): name for name in ("first", "second")
    }  # fmt: skip
    return names[found or b""], ticket


def test_a_replaced_certificate_is_served_and_a_broken_one_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tls = ReloadingContext(*install(tmp_path, "first", "first"))
    assert served(tls.context)[0] == "first"
    assert not tls.reload_if_changed()
    install(tmp_path, "second", "first")
    assert not tls.reload_if_changed()
    assert "the old certificate stays in use" in caplog.text
    assert served(tls.context)[0] == "first"
    install(tmp_path, "second", "second")
    assert tls.reload_if_changed()
    assert served(tls.context)[0] == "second"
    (tmp_path / "live.key").unlink()
    assert not tls.reload_if_changed()
    assert served(tls.context)[0] == "second"


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_no_session_tickets(tmp_path: Path, version: ssl.TLSVersion) -> None:
    tls = ReloadingContext(*install(tmp_path, "first", "first"))
    assert served(tls.context, version) == ("first", False)
    # The same probe sees a ticket where there is one.
    plain = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    plain.load_cert_chain(FIXTURES / "first.pem", FIXTURES / "first.key")
    assert served(plain, version) == ("first", True)


def test_files_that_cannot_be_used_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(TlsError, match=r"--tls-cert .* and --tls-key .* cannot be used"):
        ReloadingContext(str(tmp_path / "none.pem"), str(tmp_path / "none.key"))
    with pytest.raises(ValueError, match="go together"):
        EngineSettings(tls_cert="x.pem")
