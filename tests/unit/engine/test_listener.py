import socket
from collections.abc import Iterator

import pytest

from instrumented_engine.api.listener import ListenState, StartError, backlog_complaint, bind, read_listen_state, verify
from instrumented_engine.config import EngineSettings
from tests.conftest import free_port


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with bind(EngineSettings(port=free_port(), backlog=7)) as bound:
        yield bound


def test_the_backlog_is_read_back(listener: socket.socket) -> None:
    state = read_listen_state(listener)
    assert (state.listening, state.backlog) == (True, 7)
    listener.listen(2**31 - 1)
    assert read_listen_state(listener).backlog == state.somaxconn


def test_a_bound_socket_that_does_not_listen_is_refused() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        assert not read_listen_state(bound).listening
        with pytest.raises(StartError, match="is bound and does not listen"):
            verify(bound, 7)


def test_accepted_sockets_have_the_write_timeout(listener: socket.socket) -> None:
    with socket.create_connection(listener.getsockname()), listener.accept()[0] as accepted:
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 60_000


def test_the_complaint_has_both_numbers() -> None:
    assert backlog_complaint(2048, ListenState(True, 2048, 4096)) == ""
    sentence = backlog_complaint(2048, ListenState(True, 128, 128))
    assert "--backlog 2048" in sentence
    assert "holds 128 connections" in sentence
    assert "unreadable" in backlog_complaint(2048, ListenState(True, 128, None))
