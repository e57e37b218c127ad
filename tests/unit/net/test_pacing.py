import contextlib
import socket
from collections.abc import Iterator

import pytest

from kbroker.model import Endpoint
from kbroker.net.endpoints import listen
from kbroker.net.pacing import NAME_SIZE, pace, stop_pacing


def algorithm(sock: socket.socket) -> bytes:
    return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, NAME_SIZE).rstrip(b"\0")


def choose(sock: socket.socket, name: bytes) -> None:
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name)
    except OSError:
        pytest.skip(f"{name.decode()} is not to be had here")


@contextlib.contextmanager
def accepted(listener: socket.socket, source: str) -> Iterator[socket.socket]:
    with socket.create_connection(listener.getsockname(), 10, (source, 0)):
        listener.setblocking(True)
        connection, _ = listener.accept()
        with connection:
            yield connection


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with listen(Endpoint("PLAINTEXT", "PLAINTEXT", "127.0.0.1", 0), 10) as sock:
        yield sock


def test_between_programs_of_one_machine_nothing_is_paced(listener: socket.socket) -> None:
    choose(listener, b"bbr")
    chosen = stop_pacing(listener)
    assert chosen == b"bbr"
    with accepted(listener, "127.0.0.1") as connection:
        pace(connection, chosen)
        assert algorithm(connection) == b"reno"


def test_to_another_address_the_systems_choice_holds(listener: socket.socket) -> None:
    choose(listener, b"bbr")
    chosen = stop_pacing(listener)
    with accepted(listener, "127.0.0.2") as connection:
        pace(connection, chosen)
        assert algorithm(connection) == b"bbr"


def test_a_choice_that_does_not_pace_is_kept(listener: socket.socket) -> None:
    choose(listener, b"reno")
    assert stop_pacing(listener) == b""
    with accepted(listener, "127.0.0.1") as connection:
        pace(connection, b"")
        assert algorithm(connection) == b"reno"
