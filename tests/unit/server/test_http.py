import contextlib
import resource
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from kbroker.errors import ConfigError
from kbroker.server.http import MOST_CONNECTIONS, Answer, HttpServer, problems_route
from tests.kit.parts.processors import wait_until


def fails(_accept: str) -> Answer:
    raise ValueError("broken")


PROBLEMS: list[str] = []


@pytest.fixture
def server() -> Iterator[HttpServer]:
    PROBLEMS.clear()
    routes = {
        "/metrics": lambda accept: Answer(200, f"accept={accept}".encode(), "text/x"),
        "/health": problems_route(lambda: PROBLEMS),
        "/fails": fails,
    }
    running = HttpServer("127.0.0.1", 0, routes)
    running.start()
    yield running
    running.stop()


def raw(server: HttpServer, data: bytes) -> bytes:
    with socket.create_connection(server.address, timeout=10) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: connection.recv(65536), b""))


def is_served(server: HttpServer, path: str, size: int, pause_s: float = 0) -> bool:
    """Return whether `path` is answered with a body of `size` bytes to a client that waits `pause_s` before it reads.

    False, too, if this process stands still for longer than the server's deadline.
    """
    try:
        with socket.create_connection(server.address, timeout=10) as connection:
            connection.sendall(f"GET {path} HTTP/1.1\r\n\r\n".encode())
            answer = connection.recv(1)
            threading.Event().wait(pause_s)
            answer += b"".join(iter(lambda: connection.recv(65536), b""))
    except OSError:
        return False
    return len(answer.partition(b"\r\n\r\n")[2]) == size


def test_a_route_gets_the_accept_header_and_gives_body_and_type(server: HttpServer) -> None:
    request = urllib.request.Request("http://{}:{}/metrics?x=1".format(*server.address), headers={"Accept": "a/b"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert (answer.status, answer.headers["Content-Type"], answer.read()) == (200, "text/x", b"accept=a/b")


def test_health_is_503_with_the_problems_while_there_are_some(server: HttpServer) -> None:
    assert raw(server, b"GET /health HTTP/1.1\r\n\r\n").endswith(b"\r\n\r\nok\n")
    PROBLEMS.append("/data is offline")
    answer = raw(server, b"GET /health HTTP/1.1\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 503 ") and answer.endswith(b"/data is offline\n")


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET /nothing HTTP/1.1\r\n\r\n", 404),
        (b"POST /metrics HTTP/1.1\r\n\r\n", 405),
        (b"GET /fails HTTP/1.1\r\n\r\n", 500),
        (b"GET /metrics", 400),
        (b"\x00\x01\x02\n\n", 405),
        (b"\n\n", 405),
        (b"GET\n\n", 404),
        (b"x" * 100_000, 400),
        (b"", 400),
    ],
)
def test_bad_requests_are_answered_and_the_next_one_is_served(
    server: HttpServer, request_bytes: bytes, status: int
) -> None:
    try:
        answer = raw(server, request_bytes)
    except OSError:
        answer = b""  # what was not read is reset
    assert answer == b"" or answer.startswith(f"HTTP/1.1 {status} ".encode())
    assert raw(server, b"GET /metrics HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 200 ")


def test_head_has_the_length_and_no_body(server: HttpServer) -> None:
    answer = raw(server, b"HEAD /health HTTP/1.1\r\n\r\n")
    assert b"Content-Length: 3\r\n" in answer and answer.endswith(b"\r\n\r\n")


def test_silent_connections_do_not_keep_others_out() -> None:
    """The connections' deadline is a minute, and nobody waits for it."""
    server = HttpServer("127.0.0.1", 0, {"/health": problems_route(list)}, deadline_s=60)
    server.start()
    with contextlib.ExitStack() as open_ones:
        silent = [
            open_ones.enter_context(socket.create_connection(server.address, timeout=10))
            for _ in range(3 * MOST_CONNECTIONS)
        ]
        for each in silent[1::2]:
            each.sendall(b"GET /hea")
        assert is_served(server, "/health", 3)
        assert silent[0].recv(1) == b""
        silent[-1].sendall(b"lth HTTP/1.1\r\n\r\n")
        assert silent[-1].recv(100).startswith(b"HTTP/1.1 200 ")
    server.stop()


def test_a_silent_connection_is_closed_when_its_time_is_over() -> None:
    server = HttpServer("127.0.0.1", 0, {"/health": problems_route(list)}, deadline_s=0.05)
    server.start()
    with socket.create_connection(server.address, timeout=10) as silent:
        assert silent.recv(1) == b""
    server.stop()


def test_an_answer_that_takes_long_to_make_is_sent_whole() -> None:
    """The deadline is for the peer: a client that reads gets more than the sockets' buffers hold, however late."""

    def late(_accept: str) -> Answer:
        threading.Event().wait(0.25)
        return Answer(200, bytes(32 << 20))

    server = HttpServer("127.0.0.1", 0, {"/metrics": late}, deadline_s=0.2)
    server.start()
    wait_until(lambda: is_served(server, "/metrics", 32 << 20, pause_s=0.02), "the answer", timeout_s=20)
    server.stop()


def test_it_goes_on_after_a_time_without_a_free_descriptor(server: HttpServer) -> None:
    """An accept that had begun has its descriptor already: the first connection is served then, the next one waits."""

    def read(client: socket.socket) -> None:
        while part := client.recv(65536):
            received[client] += part

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket() as first, socket.socket() as second:
        received = {first: b"", second: b""}
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        try:
            for client in received:
                client.settimeout(0.2)
                client.connect(server.address)
                client.sendall(b"GET /health HTTP/1.1\r\n\r\n")
            with contextlib.suppress(TimeoutError):
                read(first)
            with pytest.raises(TimeoutError):
                read(second)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for client in received:
            client.settimeout(10)
            read(client)
            assert received[client].endswith(b"ok\n")


def test_a_taken_port_is_an_error_at_start(server: HttpServer) -> None:
    with pytest.raises(
        ConfigError, match=r"kbroker\.http\.address: cannot listen on 127.0.0.1:\d+: address already in use"
    ):
        HttpServer(*server.address, {}).start()


def test_a_stopped_server_lets_its_port_go() -> None:
    first = HttpServer("127.0.0.1", 0, {})
    first.start()
    address = first.address
    first.stop()
    second = HttpServer(*address, {})
    second.start()
    second.stop()
