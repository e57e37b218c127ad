"""The acceptor: several listeners, limits on connections, and no free descriptors."""

from __future__ import annotations

import errno
import gc
import logging
import os
import resource
import selectors
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from kbroker._core.log.partition_table import PartitionTable
from kbroker._core.server.fetch.sessions import FetchSessions
from kbroker.errors import ConfigError
from kbroker.model import Endpoint
from kbroker.net.endpoints import listen
from kbroker.server.acceptor import Acceptor, AddressLimits, ConnectionLimits, raise_descriptor_limit
from kbroker.server.measurements import measure_acceptor
from kbroker.server.processors import ClosedConnectionLog, Processors
from tests.kit.clients.wire import WireClient
from tests.kit.parts.processors import wait_until

SOMAXCONN = Path("/proc/sys/net/core/somaxconn")
LOOPBACK = Endpoint("PLAINTEXT", "PLAINTEXT", "127.0.0.1", 0)
Start = Callable[..., Acceptor]


@pytest.fixture
def processors() -> Iterator[Processors]:
    """Processors that answer every request with its own body."""

    def echo(request: object, processor: object) -> bool:
        request.respond(bytes(request.body))  # type: ignore[attr-defined]
        return True

    made = Processors(2, PartitionTable(), FetchSessions(), echo, listeners=("PLAINTEXT", "OTHER"))
    made.start()
    yield made
    assert made.stop(10)


@pytest.fixture
def start(processors: Processors) -> Iterator[Start]:
    started: list[Acceptor] = []

    def make(*endpoints: Endpoint, **limits: object) -> Acceptor:
        acceptor = Acceptor(endpoints or (LOOPBACK,), processors.all, ConnectionLimits(**limits))  # type: ignore[arg-type]
        started.append(acceptor)
        acceptor.start()
        return acceptor

    yield make
    for acceptor in started:
        acceptor.stop()


def is_served(port: int, host: str = "127.0.0.1") -> bool:
    with socket.create_connection((host, port), timeout=10) as connection:
        connection.sendall(bytes.fromhex("0000000a 0012 0000 00000007 ffff"))
        try:
            return connection.recv(8) == bytes.fromhex("00000004 00000007")
        except ConnectionResetError:
            return False


def test_every_listener_is_served_with_its_name(start: Start, processors: Processors) -> None:
    acceptor = start(LOOPBACK, Endpoint("OTHER", "PLAINTEXT", "localhost", 0))
    assert [endpoint.listener for endpoint in acceptor.endpoints] == ["PLAINTEXT", "OTHER"]
    assert len({endpoint.port for endpoint in acceptor.endpoints} - {0}) == 2
    for endpoint in acceptor.endpoints:
        assert is_served(endpoint.port, endpoint.host)
    assert acceptor.accepted == {"PLAINTEXT": 1, "OTHER": 1}


def test_ipv6_is_served(start: Start) -> None:
    if not socket.has_ipv6 or not Path("/proc/net/if_inet6").exists():
        pytest.skip("this machine has no IPv6")
    acceptor = start(Endpoint("PLAINTEXT", "PLAINTEXT", "::1", 0), Endpoint("OTHER", "PLAINTEXT", "::", 0))
    assert is_served(acceptor.endpoints[0].port, "::1")
    assert is_served(acceptor.endpoints[1].port, "::1")
    assert is_served(acceptor.endpoints[1].port, "127.0.0.1")


def test_connections_are_spread_over_the_processors(start: Start, processors: Processors) -> None:
    port = start().endpoints[0].port
    clients = [WireClient("127.0.0.1", port) for _ in range(20)]
    wait_until(lambda: processors.connection_count == 20, "all are accepted")
    assert [processor.connection_count for processor in processors.all] == [10, 10]
    for client in clients:
        client.close()
    wait_until(lambda: processors.connection_count == 0, "all are gone")


def test_a_crowd_that_comes_while_nothing_is_accepted_waits_and_is_taken_in_few_turns(processors: Processors) -> None:
    crowd = min(4096, int(SOMAXCONN.read_text()))
    raise_descriptor_limit()
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < 2 * crowd + 1000:
        pytest.skip("this process may not have that many open files")
    acceptor = Acceptor([LOOPBACK], processors.all, ConnectionLimits())
    address = ("127.0.0.1", acceptor.endpoints[0].port)
    with ExitStack() as opened:
        opened.callback(acceptor.stop)
        waiting = opened.enter_context(selectors.DefaultSelector())
        for _ in range(crowd):
            client = opened.enter_context(socket.socket())
            client.setblocking(False)
            assert client.connect_ex(address) in (0, errno.EINPROGRESS)
            waiting.register(client, selectors.EVENT_WRITE)
        # Were the queue too short, the rest of them would wait for as long as nobody accepts.
        while waiting.get_map():
            connected = waiting.select(10)
            assert connected, f"{len(waiting.get_map())} of {crowd} are not connected"
            for key, _ in connected:
                waiting.unregister(key.fileobj)
        turns = count_turns(acceptor)
        acceptor.start()
        wait_until(lambda: processors.connection_count == crowd, "all are accepted")
        assert acceptor.accepted == {"PLAINTEXT": crowd}
        assert len(turns) <= crowd // 1024 + 2


def count_turns(acceptor: Acceptor) -> list[None]:
    """Return a list that grows each time the acceptor looks at its listeners."""
    turns: list[None] = []
    select = acceptor._selector.select

    def counted() -> list[tuple[selectors.SelectorKey, int]]:
        turns.append(None)
        return select()

    acceptor._selector.select = counted  # type: ignore[method-assign,assignment]
    return turns


def test_a_used_port_is_named(start: Start) -> None:
    port = start().endpoints[0].port
    with pytest.raises(ConfigError, match=f"listeners: PLAINTEXT://127.0.0.1:{port}: the port is in use"):
        start(Endpoint("PLAINTEXT", "PLAINTEXT", "127.0.0.1", port))


def test_the_port_is_free_again_after_a_stop(processors: Processors) -> None:
    acceptor = Acceptor([LOOPBACK], processors.all, ConnectionLimits())
    acceptor.start()
    endpoint = acceptor.endpoints[0]
    assert is_served(endpoint.port)
    acceptor.stop()
    listen(endpoint, 5).close()


def test_a_limit_on_all_connections_turns_the_next_one_away_until_one_closes(
    start: Start, processors: Processors, caplog: pytest.LogCaptureFixture
) -> None:
    acceptor = start(max_connections=lambda: 3)
    port = acceptor.endpoints[0].port
    clients = [WireClient("127.0.0.1", port) for _ in range(3)]
    wait_until(lambda: processors.connection_count == 3, "three are accepted")
    assert not is_served(port)
    assert [(sample.name, sample.labels, sample.value) for sample in measure_acceptor(acceptor)] == [
        ("kbroker_connections_accepted_total", ("PLAINTEXT",), 4),
        ("kbroker_connections_refused_total", ("PLAINTEXT",), 1),
    ]
    assert "max.connections" in caplog.text
    clients[0].close()
    wait_until(lambda: processors.connection_count == 2, "one is gone")
    assert is_served(port)
    for client in clients[1:]:
        client.close()


def test_a_limit_on_one_address_leaves_the_others_alone(start: Start, processors: Processors) -> None:
    limits = AddressLimits(lambda: 2)
    limits.override({"localhost": 1, "127.0.0.9": 0})
    port = start(max_connections_per_ip=limits.limit_for).endpoints[0].port

    def connect(host: str) -> WireClient:
        return WireClient("127.0.0.1", port, source=(host, 0))

    one = connect("127.0.0.1")
    wait_until(lambda: processors.connection_count == 1, "it is accepted")
    assert connect("127.0.0.1").is_closed()
    assert connect("127.0.0.9").is_closed()
    others = [connect("127.0.0.2") for _ in range(2)]
    wait_until(lambda: processors.connection_count == 3, "another address's are accepted")
    assert connect("127.0.0.2").is_closed()
    for round_ in range(5):
        one.close()
        wait_until(lambda: processors.connection_count == 2, f"it is gone, round {round_}")
        one = connect("127.0.0.1")
        wait_until(lambda: processors.connection_count == 3, f"there is room again, round {round_}")
    for client in [one, *others]:
        client.close()


def test_a_changed_limit_is_for_new_connections(start: Start, processors: Processors) -> None:
    limits = AddressLimits(lambda: 2)
    port = start(max_connections_per_ip=limits.limit_for).endpoints[0].port
    first, second = WireClient("127.0.0.1", port), WireClient("127.0.0.1", port)
    wait_until(lambda: processors.connection_count == 2, "they are accepted")
    limits.override({"127.0.0.1": 1})
    with WireClient("127.0.0.1", port) as refused:
        assert refused.is_closed()
    assert processors.connection_count == 2, "those that are there stay"
    limits.override({"localhost": 3})
    with WireClient("127.0.0.1", port):
        wait_until(lambda: processors.connection_count == 3, "there is room for one more")
    limits.override({})
    assert limits.limit_for("127.0.0.1") == 2
    for client in (first, second):
        client.close()


@pytest.mark.parametrize("host", ["nowhere.invalid", "x" * 70, "a..b"])
def test_a_name_that_stands_for_nothing_is_said_and_limits_nobody(host: str, caplog: pytest.LogCaptureFixture) -> None:
    limits = AddressLimits(lambda: 2)
    limits.override({host: 0, "10.0.0.1": 1})
    assert caplog.messages == [f"max.connections.per.ip.overrides: {host} cannot be resolved"]
    assert (limits.limit_for("10.0.0.1"), limits.limit_for("10.0.0.2")) == (1, 2)
    limits.override({host: 0, "10.0.0.1": 1})
    assert len(caplog.messages) == 1, "what does not change is not looked up again"


def test_running_out_of_descriptors_neither_spins_nor_stops_the_acceptor(
    start: Start, processors: Processors, caplog: pytest.LogCaptureFixture
) -> None:
    acceptor = start(backlog=200)
    port = acceptor.endpoints[0].port
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    waiting = [socket.socket() for _ in range(20)]
    gc.collect()  # or a descriptor of another test's garbage comes free in the middle
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))  # noqa: PTH208
    taken = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 3, hard))
    try:
        try:
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        except OSError:
            pass
        for client in waiting:
            client.settimeout(10)
            client.connect(("127.0.0.1", port))
        # Each is closed by the acceptor, not left in the queue.
        for client in waiting:
            try:
                assert client.recv(1) == b""
            except ConnectionResetError:
                pass
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in taken:
            os.close(fd)
        for client in waiting:
            client.close()
    assert acceptor.refused["PLAINTEXT"] >= 20
    assert len([record for record in caplog.records if "can be accepted" in record.message]) == 1
    assert is_served(port)


def test_the_descriptor_limit_is_raised_as_far_as_it_goes(caplog: pytest.LogCaptureFixture) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(1024, hard), hard))
        raise_descriptor_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
        assert ("not enough for 10,000" in caplog.text) == (hard != resource.RLIM_INFINITY and hard < 11_000)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_closed_connections_are_logged_at_a_bounded_rate(caplog: pytest.LogCaptureFixture) -> None:
    class Peer:
        peer = "10.0.0.1:5000"
        listener = "PLAINTEXT"

    log = ClosedConnectionLog()
    with caplog.at_level(logging.WARNING):
        for number in range(1000):
            log.on_close(Peer(), f"reason {number}")  # type: ignore[arg-type]
    assert "connection of 10.0.0.1:5000 on PLAINTEXT closed: reason 0" in caplog.text
    assert len(caplog.records) < 40


def test_connections_that_come_while_it_stops_are_not_left_open(processors: Processors) -> None:
    acceptor = Acceptor([LOOPBACK], processors.all, ConnectionLimits(backlog=200))
    acceptor.start()
    port = acceptor.endpoints[0].port
    outcomes: list[bool] = []

    def connect() -> None:
        try:
            while True:
                outcomes.append(is_served(port))
        except OSError:
            pass

    threads = [threading.Thread(target=connect) for _ in range(4)]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(outcomes) > 100, "clients come and go")
    acceptor.stop()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
