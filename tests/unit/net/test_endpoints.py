"""What is listened on, and what clients are told."""

from __future__ import annotations

import re
import socket

import pytest

from kbroker.errors import ConfigError
from kbroker.model import Endpoint
from kbroker.net.endpoints import AdvertisedEndpoints, bound_endpoint, is_loopback, listen


def endpoint(host: str, port: int = 0, listener: str = "PLAINTEXT") -> Endpoint:
    return Endpoint(listener, "PLAINTEXT", host, port)


@pytest.mark.parametrize(
    ("host", "reached_by"),
    [("127.0.0.1", "127.0.0.1"), ("", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("localhost", "localhost")],
)
def test_a_listener_is_reached_where_its_host_says(host: str, reached_by: str) -> None:
    with listen(endpoint(host), 5) as listening:
        bound = bound_endpoint(endpoint(host), listening)
        assert (bound.host, bound.listener) == (host, "PLAINTEXT")
        assert bound.port > 0
        socket.create_connection((reached_by, bound.port), timeout=5).close()


def test_a_port_of_one_address_is_free_on_another() -> None:
    with listen(endpoint("127.0.0.1"), 5) as one:
        port = one.getsockname()[1]
        with listen(endpoint("127.0.0.2", port), 5) as other:
            assert other.getsockname() == ("127.0.0.2", port)


@pytest.mark.parametrize(
    ("host", "reason"),
    [("203.0.113.7", "no interface of this machine has that address"), ("no.such.name.invalid", "cannot be resolved")],
)
def test_what_cannot_be_bound_is_said_in_one_line(host: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=rf"listeners: PLAINTEXT://{re.escape(host)}:0: .*{reason}"):
        listen(endpoint(host), 5)


def test_a_receive_buffer_is_inherited_by_connections() -> None:
    with (
        listen(endpoint("127.0.0.1"), 5, 40_000) as listening,
        socket.create_connection(listening.getsockname(), timeout=5),
    ):
        listening.settimeout(5)
        accepted, _ = listening.accept()
        with accepted:
            assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) >= 40_000


def test_a_client_is_told_the_address_it_dialled_unless_one_is_advertised() -> None:
    bound = [endpoint("0.0.0.0", 9092), endpoint("127.0.0.1", 9093, "LOCAL"), endpoint("::", 9094, "SIX")]
    advertised = AdvertisedEndpoints(
        bound, [endpoint("broker.example", 19092, "LOCAL"), endpoint("six.example", 0, "SIX")]
    )
    assert advertised.endpoint_for("PLAINTEXT", "192.0.2.5", 9092) == endpoint("192.0.2.5", 9092)
    assert advertised.endpoint_for("PLAINTEXT", "10.1.1.1", 9092) == endpoint("10.1.1.1", 9092)
    assert advertised.endpoint_for("LOCAL", "127.0.0.1", 9093) == endpoint("broker.example", 19092, "LOCAL")
    assert advertised.endpoint_for("SIX", "::1", 9094) == endpoint("six.example", 9094, "SIX")


@pytest.mark.parametrize(
    ("host", "expected"),
    [(host, True) for host in ("127.0.0.1", "127.8.9.1", "::1", "localhost", "Localhost")]
    + [(host, False) for host in ("0.0.0.0", "", "::", "192.168.0.1", "broker")],
)
def test_loopback_is_known_by_its_address(host: str, expected: bool) -> None:
    assert is_loopback(host) == expected
