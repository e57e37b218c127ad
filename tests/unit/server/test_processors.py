"""Processors on real sockets: frames, order, bounds, what closes a connection and what does not."""

from __future__ import annotations

import gc
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from kbroker._core.base.build_info import BUILD
from kbroker._core.server.request import Request
from kbroker.errors import ErrorCode
from kbroker.protocol import messages as M
from kbroker.protocol.api import SERVED, ApiKey
from kbroker.protocol.headers import encode_request
from tests.kit.clients.wire import ConnectionClosed, WireClient
from tests.kit.logs.home import batch_of
from tests.kit.parts.processors import (
    QUARANTINE,
    STOP_S,
    ProcessorRig,
    produce_request,
    resident_bytes,
    wait_until,
)
from tests.kit.wire.parser_cases import mangled

Start = Callable[..., ProcessorRig]
ECHO = 3  # an API that the test's own handler answers
ECHO_VERSION = 1  # its header has no tags
UNKNOWN_API = struct.pack(">ihhih", 10, 96, 0, 1, -1)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    rigs: list[ProcessorRig] = []

    def make(**settings: object) -> ProcessorRig:
        rig = ProcessorRig(tmp_path / f"logs-{len(rigs)}", **settings)  # type: ignore[arg-type]
        rigs.append(rig)
        return rig.__enter__()

    yield make
    for rig in rigs:
        rig.stop()


def echo(request: Request) -> None:
    request.respond(bytes(request.body))


def echo_behind(gate: threading.Event, arrived: Callable[[], object] = lambda: None) -> Callable[[Request], None]:
    """A handler that tells that a request has arrived, and echoes it once the gate is open."""

    def handle(request: Request) -> None:
        arrived()
        gate.wait(20)
        echo(request)

    return handle


def echo_frame(correlation_id: int, body: bytes) -> bytes:
    frame = struct.pack(">hhih", ECHO, ECHO_VERSION, correlation_id, -1) + body
    return struct.pack(">i", len(frame)) + frame


def echoed(client: WireClient) -> tuple[int, bytes]:
    frame = client.read_frame()
    return int.from_bytes(frame[:4], "big"), frame[4:]


# --- frames ---------------------------------------------------------------------------------------------


def test_frames_are_served_however_they_are_cut(start: Start) -> None:
    rig = start(handle=echo, inline=True)
    bodies = [b"", b"a", b"b" * 100, b"c" * 5000]
    stream = b"".join(echo_frame(number, body) for number, body in enumerate(bodies))
    for size in [1, 2, 3, 7, 100, 4999, len(stream)]:
        client = rig.connect()
        for at in range(0, len(stream), size):
            client.socket.sendall(stream[at : at + size])
        assert [echoed(client) for _ in bodies] == list(enumerate(bodies)), f"in pieces of {size}"
        client.close()


@pytest.mark.parametrize("size", [20_000, 40_000, 70_000, 1 << 20, (1 << 20) + (64 << 10), 3_000_000, 20_000_000])
@pytest.mark.parametrize("inline", [True, False])
def test_large_frames_arrive_whole_between_small_ones(start: Start, size: int, inline: bool) -> None:
    rig = start(handle=echo, inline=inline)
    client = rig.connect()
    body = bytes(range(256)) * (size // 256)
    received: list[tuple[int, bytes]] = []
    reader = threading.Thread(target=lambda: received.extend(echoed(client) for _ in range(4)))
    reader.start()
    client.socket.sendall(
        echo_frame(1, b"before") + echo_frame(2, body) + echo_frame(3, b"after") + echo_frame(4, body)
    )
    reader.join()
    assert received == [(1, b"before"), (2, body), (3, b"after"), (4, body)]


def test_a_frame_whose_rest_never_comes_takes_no_memory_on_its_word(start: Start) -> None:
    rig = start(handle=echo)
    before = resident_bytes()
    clients = [rig.connect() for _ in range(200)]
    for client in clients:
        client.socket.sendall(struct.pack(">i", 99 << 20) + b"x" * 2000)
    probe = rig.connect()
    probe.socket.sendall(echo_frame(1, b"alive"))
    assert echoed(probe) == (1, b"alive")
    assert resident_bytes() - before < 16 << 20
    for client in clients:
        client.close()


@pytest.mark.parametrize("size", [-1, -(1 << 31), 1001, (1 << 31) - 1])
def test_a_length_out_of_bounds_closes_its_connection_only(start: Start, size: int) -> None:
    rig = start(handle=echo, max_request_size=1000)
    bystander, client = rig.connect(), rig.connect()
    client.socket.sendall(echo_frame(1, b"good") + struct.pack(">i", size) + b"more")
    assert echoed(client) == (1, b"good")
    with pytest.raises(ConnectionClosed):
        client.read_frame()
    (why,) = rig.why_closed()
    assert why.startswith("a request that is larger than socket.request.max.bytes")
    bystander.socket.sendall(echo_frame(2, b"still here"))
    assert echoed(bystander) == (2, b"still here")


@pytest.mark.parametrize(("key", "version", "size"), [(0, 9, 6), (1, 12, 33)])
def test_more_partitions_than_there_can_be_take_no_memory_for_long(
    start: Start, key: int, version: int, size: int
) -> None:
    """A few bytes of a request take some hundred in memory: like every other array, this one has a limit."""
    rig = start()
    bystander, client = rig.connect(), rig.connect()
    head = b"\0" + struct.pack(">hi", 1, 1000) if key == 0 else struct.pack(">iiiibii", -1, 0, 1, 1000, 0, 0, -1)
    count = (1 << 20) + 1
    partitions = bytearray()
    while count >> 7 * len(partitions):
        partitions.append((count + 1) >> 7 * len(partitions) & 0x7F | 0x80)
    partitions[-1] &= 0x7F
    frame = struct.pack(">hhih", key, version, 1, -1) + b"\0" + head + b"\2\2t" + partitions + bytes(size * count)
    before = resident_bytes()
    client.socket.sendall(struct.pack(">i", len(frame)) + frame)
    with pytest.raises(ConnectionClosed):
        client.read_frame()
    (why,) = rig.why_closed()
    assert "does not parse" in why
    # It has taken twice as much.
    wait_until(lambda: resident_bytes() < before + (100 << 20) + QUARANTINE, "the memory is given back")
    bystander.call(ApiKey.PRODUCE, 9, produce_request("nowhere", b""))


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (b"", "header that does not parse"),
        (b"\0\0\0\x07\0\0\0", "header that does not parse"),
        (struct.pack(">hhih", 0, 9, 1, 5) + b"abc", "header that does not parse"),
        (struct.pack(">hhih", 0, 9, 1, -2), "header that does not parse"),
        (struct.pack(">hhih", 0, 9, 1, -1) + b"\xff\xff\xff\xff\xff", "header that does not parse"),
        (struct.pack(">hhih", 96, 0, 1, -1), "an API that is not served"),
        (struct.pack(">hhih", -1, 0, 1, -1), "an API that is not served"),
        (struct.pack(">hhih", 52, 0, 1, -1), "an API that is not served"),
        (struct.pack(">hhih", 3, 99, 1, -1) + b"\0", "a version that is not served"),
        (struct.pack(">hhih", 3, -1, 1, -1), "a version that is not served"),
    ],
)
def test_what_is_no_request_closes_the_connection_with_one_line(start: Start, frame: bytes, reason: str) -> None:
    rig = start()
    client = rig.connect()
    client.send_raw(struct.pack(">i", len(frame)) + frame)
    with pytest.raises(ConnectionClosed):
        client.read_frame()
    (why,) = rig.why_closed()
    assert reason in why


@pytest.mark.parametrize("inline", [True, False])
def test_what_was_asked_before_the_nonsense_is_answered_and_nothing_behind_it(start: Start, inline: bool) -> None:
    rig = start(handle=echo, inline=inline)
    client = rig.connect()
    client.send_raw(echo_frame(1, b"good") + echo_frame(2, b"good") + UNKNOWN_API + echo_frame(3, b"late"))
    assert [echoed(client), echoed(client)] == [(1, b"good"), (2, b"good")]
    with pytest.raises(ConnectionClosed):
        client.read_frame()
    (why,) = rig.why_closed()
    assert "an API that is not served" in why


def test_acknowledgements_that_wait_for_a_flush_come_before_the_nonsense_behind_them(start: Start) -> None:
    rig = start()
    rig.create("orders", flush_messages=1)
    client = rig.connect()
    request = produce_request("orders", batch_of([b"a"]))
    sent = [encode_request(ApiKey.PRODUCE, 9, number, "c", request) for number in range(20)]
    client.send_raw(b"".join(sent) + UNKNOWN_API)
    for number in range(20):
        answer = client.receive(ApiKey.PRODUCE, 9, number).responses[0].partition_responses[0]
        assert (answer.error_code, answer.base_offset) == (0, number)
    assert client.is_closed()


@pytest.mark.parametrize("version", [5, 99, -1])
def test_an_api_versions_request_of_a_version_to_come_is_told_which_there_are(start: Start, version: int) -> None:
    rig = start()
    client = rig.connect()
    frame = struct.pack(">hhih", ApiKey.API_VERSIONS, version, 77, -1) + b"\0\x05abcd\x020.1"
    client.send_raw(struct.pack(">i", len(frame)) + frame)
    served = SERVED[ApiKey.API_VERSIONS]
    expected = struct.pack(">ihihhh", 77, ErrorCode.UNSUPPORTED_VERSION, 1, 18, served.min, served.max)
    assert client.read_frame() == expected
    client.close()


def test_mangled_produce_requests_are_refused_one_by_one(start: Start) -> None:
    rig = start()
    rig.create("orders")
    frame = encode_request(ApiKey.PRODUCE, 9, 1, "client", produce_request("orders", batch_of([b"one", b"two"])))[4:]
    good = closed = 0
    for _, data in mangled(frame):
        client = rig.connect()
        client.send_raw(struct.pack(">i", len(data)) + data)
        client.socket.shutdown(socket.SHUT_WR)  # acks=0 gets no response
        try:
            client.read_frame()
            good += 1
        except ConnectionClosed:
            closed += 1
        client.close()
    assert good > 50
    assert closed > 50
    assert all(record.value in (b"one", b"two") for record in rig.records("orders"))


# --- order ----------------------------------------------------------------------------------------------


def test_a_request_in_pythons_hands_holds_back_the_ones_behind_it(start: Start) -> None:
    held: list[Request] = []
    arrived = threading.Semaphore(0)

    def hold(request: Request) -> None:
        held.append(request)
        arrived.release()

    rig = start(handle=hold)
    rig.create("orders")
    client = rig.connect()
    produce = encode_request(ApiKey.PRODUCE, 7, 2, None, produce_request("orders", batch_of([b"x"])))
    client.socket.sendall(echo_frame(1, b"") + produce + echo_frame(3, b""))
    assert arrived.acquire(timeout=10)
    other = rig.connect()
    other.call(ApiKey.PRODUCE, 7, produce_request("orders", batch_of([b"other"])))
    assert [record.value for record in rig.records("orders")] == [b"other"]
    held.pop().respond(b"first")
    assert echoed(client) == (1, b"first")
    client.receive(ApiKey.PRODUCE, 7, 2)
    assert arrived.acquire(timeout=10)
    held.pop().respond(b"third")
    assert echoed(client) == (3, b"third")
    assert [record.value for record in rig.records("orders")] == [b"other", b"x"]


def test_durable_and_other_produce_requests_are_answered_in_their_order(start: Start) -> None:
    rig = start()
    rig.create("durable", flush_messages=1)
    rig.create("quick")
    client = rig.connect()
    sent = []
    for number in range(300):
        topic, acks = [("durable", 1), ("quick", 1), ("durable", -1), ("quick", 0), ("durable", 0)][number % 5]
        correlation_id = client.send(ApiKey.PRODUCE, 7, produce_request(topic, batch_of([b"%d" % number]), acks=acks))
        if acks:
            sent.append(correlation_id)
    for correlation_id in sent:
        answer = client.receive(ApiKey.PRODUCE, 7, correlation_id).responses[0].partition_responses[0]
        assert answer.error_code == 0
    assert [int(record.value) for record in rig.records("durable")] == [n for n in range(300) if n % 5 in (0, 2, 4)]
    assert [int(record.value) for record in rig.records("quick")] == [n for n in range(300) if n % 5 in (1, 3)]


# --- handlers -------------------------------------------------------------------------------------------


def test_a_handler_may_answer_with_nothing(start: Start) -> None:
    def alternate(request: Request) -> None:
        if request.correlation_id % 2:
            request.respond_nothing()
        else:
            echo(request)

    rig = start(handle=alternate)
    client = rig.connect()
    client.socket.sendall(b"".join(echo_frame(number, b"%d" % number) for number in range(5)))
    assert [echoed(client) for _ in range(3)] == [(0, b"0"), (2, b"2"), (4, b"4")]


def test_closing_by_a_handler_comes_behind_what_was_answered_before(start: Start) -> None:
    def close_third(request: Request) -> None:
        if request.correlation_id == 3:
            request.close("three is enough")
        else:
            echo(request)

    rig = start(handle=close_third)
    client = rig.connect()
    client.socket.sendall(b"".join(echo_frame(number, b"") for number in range(1, 6)))
    assert [echoed(client) for _ in range(2)] == [(1, b""), (2, b"")]
    with pytest.raises(ConnectionClosed):
        client.read_frame()
    (why,) = rig.why_closed()
    assert why.startswith("three is enough")


def test_a_request_that_is_dropped_unanswered_closes_its_connection(start: Start) -> None:
    rig = start(handle=lambda request: None)
    client = rig.connect()
    client.socket.sendall(echo_frame(1, b""))
    with pytest.raises(ConnectionClosed):
        client.read_frame()
    (why,) = rig.why_closed()
    assert why.startswith("a request that could not be answered")


def test_a_request_is_answered_once(start: Start) -> None:
    seen: list[str] = []

    def twice(request: Request) -> None:
        echo(request)
        try:
            request.respond(b"again")
        except RuntimeError as error:
            seen.append(str(error))
        request.correlation_id  # noqa: B018 (still readable)

    rig = start(handle=twice, inline=True)
    client = rig.connect()
    client.socket.sendall(echo_frame(1, b"x") + echo_frame(2, b"y"))
    assert [echoed(client) for _ in range(2)] == [(1, b"x"), (2, b"y")]
    assert len(seen) == 2
    assert "has been answered already" in seen[0]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_exception_on_the_processor_closes_that_connection_only(
    start: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(request: Request) -> None:
        raise ValueError("a mistake")

    rig = start(handle=fail, inline=True)
    rig.create("orders")
    client, other = rig.connect(), rig.connect()
    client.socket.sendall(echo_frame(1, b""))
    with pytest.raises(ConnectionClosed):
        client.read_frame()
    assert "a mistake" in capsys.readouterr().err
    other.call(ApiKey.PRODUCE, 7, produce_request("orders", batch_of([b"x"])))


def test_handlers_see_who_asks(start: Start) -> None:
    seen: list[tuple[object, ...]] = []

    def look(request: Request) -> None:
        connection = request.connection
        seen.append(
            (request.api_key, request.api_version, request.client_id, connection.listener, connection.peer_host)
        )
        seen.append((connection.peer_port, connection.local_port, connection.principal))
        connection.session["count"] = connection.session.get("count", 0) + 1
        seen.append((connection.session["count"],))
        echo(request)

    rig = start(handle=look)
    client = rig.connect()
    body = M.MetadataRequest(topics=[]).encode(9)
    for _ in range(2):
        client.send_raw(encode_request(ApiKey.METADATA, 9, 5, "näme", M.MetadataRequest(topics=[])))
        frame = client.read_frame()
        assert frame == struct.pack(">ib", 5, 0) + body
    assert seen[0] == (3, 9, "näme", "PLAINTEXT", "127.0.0.1")
    assert seen[1] == (client.socket.getsockname()[1], client.socket.getpeername()[1], "User:ANONYMOUS")
    assert [seen[2], seen[5]] == [(1,), (2,)]


def test_a_body_outlives_its_request_and_its_connection(start: Start) -> None:
    kept: list[memoryview] = []

    def keep(request: Request) -> None:
        kept.append(request.body)
        echo(request)

    rig = start(handle=keep)
    client = rig.connect()
    bodies = [b"small", b"large" * 400_000]
    for body in bodies:
        client.socket.sendall(echo_frame(1, body))
        echoed(client)
    client.close()
    wait_until(lambda: rig.connection_count == 0, "the connection is gone")
    gc.collect()
    assert [bytes(each) for each in kept] == bodies


def test_a_full_request_channel_holds_requests_back_and_loses_none(start: Start) -> None:
    gate = threading.Event()
    served: list[int] = []

    def wait(request: Request) -> None:
        gate.wait(10)
        served.append(request.correlation_id)
        echo(request)

    rig = start(handle=wait, handlers=1, queue_size=2, processors=2)
    clients = [rig.connect() for _ in range(12)]
    for number, client in enumerate(clients):
        client.socket.sendall(echo_frame(number, b"a") + echo_frame(number + 100, b"b"))
    wait_until(lambda: len(rig.channel) == 2, "the channel is full")
    gate.set()
    for number, client in enumerate(clients):
        assert [echoed(client), echoed(client)] == [(number, b"a"), (number + 100, b"b")]
    assert sorted(served) == [*range(12), *range(100, 112)]


# --- connections ----------------------------------------------------------------------------------------


def test_a_client_that_never_reads_is_not_read_from_for_ever(start: Start) -> None:
    """The client's responses stay below a limit, others are served, and what it sent is answered once it reads."""
    rig = start(handle=lambda request: request.respond(b"z" * 100_000), inline=True)
    client, other = rig.connect(), rig.connect()
    client.socket.setblocking(False)
    before = resident_bytes()
    sent = 0
    blocked = 0
    frame = echo_frame(1, b"y" * 1000)
    while blocked < 50:
        try:
            sent += client.socket.send(frame[sent % len(frame) :])
            blocked = 0
        except BlockingIOError:
            blocked += 1
            other.socket.sendall(echo_frame(9, b""))
            assert echoed(other)[0] == 9
    assert resident_bytes() - before < (24 << 20 if BUILD == "release" else 100 << 20)
    client.socket.settimeout(10)
    for _ in range(sent // len(frame)):
        assert echoed(client) == (1, b"z" * 100_000)


def test_a_client_that_never_stops_sending_leaves_room_for_others(start: Start) -> None:
    rig = start(handle=echo, inline=True)
    flooding, other = rig.connect(), rig.connect()
    flood = b"".join(echo_frame(number, b"x" * 20) for number in range(5000))
    is_done = threading.Event()

    def send() -> None:
        while not is_done.is_set():
            flooding.socket.sendall(flood)
        flooding.socket.shutdown(socket.SHUT_WR)

    def receive() -> None:
        while flooding.socket.recv(1 << 20):
            pass

    threads = [threading.Thread(target=send), threading.Thread(target=receive)]
    for thread in threads:
        thread.start()
    for number in range(50):
        other.socket.sendall(echo_frame(number, b"ping"))
        assert echoed(other) == (number, b"ping")
    is_done.set()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()


def test_many_connections_come_and_go(start: Start) -> None:
    rig = start(processors=2, handle=echo, inline=True)
    rig.create("orders")
    for batch in range(10):
        clients = [rig.connect() for _ in range(100)]
        assert rig.connection_count == 100
        for number, client in enumerate(clients):
            client.socket.sendall(echo_frame(number, b"hello"))
        for number, client in enumerate(clients):
            assert echoed(client) == (number, b"hello")
            if number % 3 == 0:
                # Reset instead of a proper end, with a request that nobody waits for.
                client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                client.send(ApiKey.PRODUCE, 7, produce_request("orders", batch_of([b"%d" % batch])))
            client.close()
        wait_until(lambda: rig.connection_count == 0, "all connections are gone")
    assert rig.why_closed() == []


def test_requests_that_were_read_in_one_turn_are_given_to_python_together(start: Start) -> None:
    gate, arrived = threading.Event(), threading.Event()
    read: list[int] = []

    def handle(request: Request) -> None:
        if not arrived.is_set():
            arrived.set()
            gate.wait(20)
        read.append(rig.processors[0].counters()[ECHO].requests)
        if bytes(request.body) == b"7":
            raise ValueError("a mistake")
        echo(request)

    rig = start(handle=handle, inline=True)
    first, *others = [rig.connect() for _ in range(41)]
    wait_until(lambda: rig.connection_count == 41, "all are connected")
    first.socket.sendall(echo_frame(0, b"first"))
    assert arrived.wait(10)
    for number, client in enumerate(others):
        client.socket.sendall(echo_frame(number, b"%d" % number) + echo_frame(100 + number, b"again"))
    gate.set()
    assert echoed(first) == (0, b"first")
    for number, client in enumerate(others):
        if number == 7:
            with pytest.raises(ConnectionClosed):
                client.read_frame()
        else:
            assert [echoed(client), echoed(client)] == [(number, b"%d" % number), (100 + number, b"again")]
    assert read[:41] == [1] + [41] * 40, "one after the other they would be 1, 2, 3 and so on"


def test_requests_of_a_closed_connection_are_answered_into_the_void(start: Start) -> None:
    arrived, gate = threading.Semaphore(0), threading.Event()
    rig = start(handle=echo_behind(gate, arrived.release), handlers=4)
    clients = [rig.connect() for _ in range(4)]
    for client in clients:
        client.socket.sendall(echo_frame(1, b"x"))
    for _ in clients:
        assert arrived.acquire(timeout=10)
    for client in clients:
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
    wait_until(lambda: rig.connection_count == 0, "the connections are gone")
    gate.set()
    survivor = rig.connect()
    survivor.socket.sendall(echo_frame(2, b"y"))
    assert echoed(survivor) == (2, b"y")


def test_a_client_that_sends_no_more_still_gets_its_answers(start: Start) -> None:
    gate = threading.Event()
    rig = start(handle=echo_behind(gate))
    client = rig.connect()
    client.socket.sendall(echo_frame(1, b"a") + echo_frame(2, b"b"))
    client.socket.shutdown(socket.SHUT_WR)
    gate.set()
    assert [echoed(client), echoed(client)] == [(1, b"a"), (2, b"b")]
    with pytest.raises(ConnectionClosed):
        client.read_frame()
    wait_until(lambda: rig.connection_count == 0, "the connection is gone")


def test_idle_connections_are_closed_and_busy_ones_are_not(start: Start) -> None:
    gate, arrived = threading.Event(), threading.Event()
    rig = start(handle=echo_behind(gate, arrived.set), idle_ms=500)
    busy = rig.connect()
    busy.socket.sendall(echo_frame(1, b"x"))
    assert arrived.wait(10)
    idle = rig.connect()
    with pytest.raises(ConnectionClosed):
        idle.read_frame()
    wait_until(lambda: rig.connection_count == 1, "the idle one is counted off")
    gate.set()
    assert echoed(busy) == (1, b"x")
    assert rig.why_closed() == []


def test_an_answer_that_came_while_the_processor_stood_still_is_sent(start: Start) -> None:
    gate, arrived, answered = threading.Event(), threading.Event(), threading.Event()

    def handle(request: Request) -> None:
        echo_behind(gate, arrived.set)(request)
        answered.set()

    def stand_still() -> None:
        gate.set()
        assert answered.wait(10)
        threading.Event().wait(1.0)

    rig = start(handle=handle, idle_ms=500)
    rig.while_closing = stand_still
    busy = rig.connect()
    busy.socket.sendall(echo_frame(1, b"x"))
    assert arrived.wait(10)
    rig.connect().socket.sendall(b"\xff\xff\xff\xff")
    assert echoed(busy) == (1, b"x")


def why_closed_after(rig: ProcessorRig, data: bytes, answers: int) -> tuple[str, list[tuple[int, bytes]]]:
    """Return why a connection that sent `data` was closed, and the first answers that it got.

    If this process stands still for idle_ms before the data arrives, the connection is closed as idle: then try again.
    """
    for _ in range(100):
        client, got = rig.connect(small_buffers=True), []
        with client, suppress(ConnectionClosed):
            client.send_raw(data)
            got = [echoed(client) for _ in range(answers)]
            wait_until(lambda: bool(rig.closed), "it is closed", 1.0, fails=False)
        if rig.closed:
            return rig.closed[0][1], got
    raise AssertionError("closed without a reason each time")


def test_half_a_request_and_silence_closes_the_connection_with_one_line(start: Start) -> None:
    rig = start(handle=echo, idle_ms=50)
    why, answers = why_closed_after(rig, echo_frame(1, b"whole") + echo_frame(2, b"half")[:9], 1)
    assert why.startswith("the rest of its request did not come within connections.max.idle.ms")
    assert answers == [(1, b"whole")]


def test_answers_that_are_never_read_close_the_connection_with_one_line(start: Start) -> None:
    rig = start(handle=lambda request: request.respond(bytes(8 << 20)), idle_ms=50)
    other = rig.connect()
    why, _ = why_closed_after(rig, echo_frame(1, b""), 0)
    assert why.startswith("it did not read its answers within connections.max.idle.ms")
    with pytest.raises(ConnectionClosed):
        other.read_frame()
    assert len(rig.closed) == 1, "a line for who was only idle"


def test_a_processor_counts_what_it_serves(start: Start) -> None:
    rig = start(handle=echo, inline=True)
    rig.create("orders")
    client = rig.connect()
    client.socket.sendall(echo_frame(1, b"body"))
    echoed(client)
    client.call(ApiKey.PRODUCE, 7, produce_request("nowhere", batch_of([b"x"])))
    counters = rig.processors[0].counters()
    assert set(counters) == {ECHO, ApiKey.PRODUCE}
    assert (counters[ECHO].requests, counters[ECHO].bytes_in, counters[ECHO].bytes_out) == (1, 18, 12)
    assert sum(counters[ECHO].latencies) == 1
    assert counters[ApiKey.PRODUCE].errors == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: 1}
    assert 0 < rig.processors[0].idle_share <= 1
    rig.processors[0].count_error(ECHO, 41)
    assert rig.processors[0].counters()[ECHO].errors == {41: 1}


def test_an_idle_processor_does_not_turn(start: Start) -> None:
    rig = start(handle=echo, inline=True)
    clients = [rig.connect() for _ in range(50)]
    clients[0].socket.sendall(echo_frame(1, b""))
    echoed(clients[0])

    def turns_meanwhile() -> int:
        before = rig.processors[0].turns
        threading.Event().wait(0.3)
        return rig.processors[0].turns - before

    # A process that is held and let go turns once more.
    assert any(turns_meanwhile() <= 1 for _ in range(10))


# --- stopping -------------------------------------------------------------------------------------------


def test_stopping_answers_what_was_read_and_closes_everything(start: Start) -> None:
    arrived, gate = threading.Semaphore(0), threading.Event()
    rig = start(handle=echo_behind(gate, arrived.release))
    rig.create("orders")
    waiting, idle, polling = rig.connect(), rig.connect(), rig.connect()
    waiting.socket.sendall(echo_frame(1, b"last"))
    polling.send(ApiKey.FETCH, 11, rig.fetch_request("orders", 0, max_wait_ms=60_000))
    assert arrived.acquire(timeout=10)
    stopper = threading.Thread(target=rig.stop)
    stopper.start()
    with pytest.raises(ConnectionClosed):
        idle.read_frame()
    with pytest.raises(ConnectionClosed):
        polling.read_frame()
    gate.set()
    assert echoed(waiting) == (1, b"last")
    with pytest.raises(ConnectionClosed):
        waiting.read_frame()
    stopper.join(10)
    assert not stopper.is_alive()


def test_stopping_does_not_wait_for_a_long_poll_whose_log_was_being_opened(start: Start) -> None:
    busy, gate = threading.Event(), threading.Event()
    rig = start(handle=echo_behind(gate, busy.set), handlers=1)
    rig.create("orders")
    waiting, idle, polling = rig.connect(), rig.connect(), rig.connect()
    waiting.socket.sendall(echo_frame(1, b"last"))
    assert busy.wait(10)
    polling.send(ApiKey.FETCH, 11, rig.fetch_request("orders", 0, max_wait_ms=60_000))
    wait_until(lambda: len(rig.channel) == 1, "the fetch waits for the handler that opens its log")
    stopper = threading.Thread(target=rig.stop)
    stopper.start()
    with pytest.raises(ConnectionClosed):
        idle.read_frame()
    gate.set()
    assert echoed(waiting) == (1, b"last")
    polling.socket.settimeout(STOP_S / 2)
    with pytest.raises(ConnectionClosed):
        polling.read_frame()
    stopper.join(10)
    assert not stopper.is_alive()


def test_stopping_ends_in_time_whatever_handlers_do(start: Start) -> None:
    gate, arrived = threading.Event(), threading.Event()
    rig = start(handle=echo_behind(gate, arrived.set))
    client = rig.connect()
    client.socket.sendall(echo_frame(1, b""))
    assert arrived.wait(10)
    rig.processors[0].stop(0.05)
    rig.threads[1].join(10)
    assert not rig.threads[1].is_alive()
    with pytest.raises(ConnectionClosed):
        client.read_frame()
    gate.set()


def test_stopping_under_load_acknowledges_nothing_that_is_not_there(start: Start) -> None:
    rig = start(processors=2)
    rig.create("plain")
    rig.create("durable", flush_messages=1)
    acknowledged: dict[str, int] = {"plain": 0, "durable": 0}
    going = threading.Barrier(9)

    def load(topic: str) -> None:
        client = rig.connect()
        count = 0
        try:
            while True:
                for _ in range(20):
                    client.send(ApiKey.PRODUCE, 7, produce_request(topic, batch_of([b"x"])))
                for _ in range(20):
                    client.read_frame()
                    count += 1
                if count == 200:
                    going.wait(20)
        except (ConnectionClosed, OSError):
            with lock:
                acknowledged[topic] += count

    lock = threading.Lock()
    threads = [threading.Thread(target=load, args=(topic,)) for topic in ["plain", "durable"] * 4]
    for thread in threads:
        thread.start()
    going.wait(20)
    logs = rig.logs.logs()
    for processor in rig.processors:
        processor.stop(10)
    for thread in [*rig.threads[1:], *threads]:
        thread.join(20)
        assert not thread.is_alive()
    for log in logs:
        assert log.log_end_offset >= acknowledged[log.state.topic] >= 800
