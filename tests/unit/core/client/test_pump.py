"""The client's pump on real sockets, against a broker that answers as it is told."""

from __future__ import annotations

import hashlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from kbroker._core.client.pump import Pump, PumpConnection
from kbroker._core.probes.client import ProbeEngine
from tests.kit.brokers.scripted import Peer, ScriptedBroker

NODE = 7
KEY = 60  #: an API of which the pump knows nothing but where its header becomes flexible
FLEXIBLE = 61
LIMIT = 8 << 20
SECONDS = 20.0


def frame(body: bytes = b"", api_key: int = KEY, version: int = 0) -> bytes:
    return struct.pack(">ihhih", len(body) + 10, api_key, version, 0, -1) + body


@pytest.fixture
def pump() -> Iterator[Pump]:
    made = Pump({FLEXIBLE: 1}, LIMIT)
    yield made
    made.close("the test is over")


class Calls:
    """Python's calls on one connection."""

    def __init__(self, pump: Pump, broker: ScriptedBroker):
        self.pump = pump
        self.connection = pump.adopt(broker.connect().detach(), NODE)
        self.answers: list[tuple[bytes | None, str | None]] = []
        self.reasons: list[str] = []
        self.connection.on_close = self.reasons.append

    def call(
        self, body: bytes = b"", api_key: int = KEY, version: int = 0, timeout_ms: int = 20_000, **how: bool
    ) -> None:
        sent = frame(body, api_key, version)
        self.connection.call(api_key, version, sent, timeout_ms, lambda *answer: self.answers.append(answer), **how)

    def until(self, done: Callable[[], bool]) -> None:
        run_until(self.pump, done)


def run_until(pump: Pump, done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not done():
        assert time.monotonic() < deadline
        pump.run(0.2)


def echo(peer: Peer) -> None:
    while True:
        asked = peer.request()
        peer.answer(asked.correlation_id, asked.frame[10:])


def test_calls_are_answered_in_their_order(pump: Pump) -> None:
    with ScriptedBroker(echo) as broker:
        calls = Calls(pump, broker)
        bodies = [b"x" * size for size in (0, 1, 100, 20_000, 300_000, 3)]
        for body in bodies:
            calls.call(body)
        assert calls.connection.in_flight == len(bodies)
        calls.until(lambda: len(calls.answers) == len(bodies))
        assert calls.answers == [(body, None) for body in bodies]
        assert calls.connection.in_flight == 0


def test_responses_are_put_together_wherever_they_are_cut(pump: Pump) -> None:
    bodies = [bytes(range(256)) * 40, b"", b"abc" * 30_000]
    wire = b"".join(struct.pack(">ii", len(body) + 4, at + 1) + body for at, body in enumerate(bodies))
    for step in (1, 3, 7, 16_383, 16_385, len(wire)):
        small = min(step, 7) == step

        def script(peer: Peer, step: int = step, small: bool = small) -> None:
            for _ in bodies:
                peer.request()
            peer.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            at = 0
            while at < len(wire):
                part = step if not small or at % 10_000 < 100 else 5_000
                peer.send(wire[at : at + part])
                at += part
            peer.wait_for_end()

        with ScriptedBroker(script) as broker:
            calls = Calls(pump, broker)
            for _ in bodies:
                calls.call()
            calls.until(lambda calls=calls: len(calls.answers) == len(bodies))
            assert calls.answers == [(body, None) for body in bodies]
            calls.connection.close("done")
            calls.until(lambda calls=calls: calls.reasons == ["done"])


def test_the_tagged_fields_of_a_header_are_skipped(pump: Pump) -> None:
    def script(peer: Peer) -> None:
        peer.answer(peer.request().correlation_id, b"\x02\x05\x03abc\x81\x00\x00body")
        peer.answer(peer.request().correlation_id, b"\x02body")
        peer.answer(peer.request().correlation_id, b"\xff\xff\xff\xff\x0f")
        peer.wait_for_end()

    with ScriptedBroker(script) as broker:
        calls = Calls(pump, broker)
        calls.call(api_key=FLEXIBLE, version=1)
        calls.call(api_key=FLEXIBLE, version=0)
        calls.call(api_key=FLEXIBLE, version=2)
        calls.until(lambda: len(calls.answers) == 3)
        assert calls.answers[:2] == [(b"body", None), (b"\x02body", None)]
        assert calls.answers[2] == (None, "it sent a response whose header is malformed")


LIES: dict[str, tuple[bytes, str]] = {
    "another correlation id": (struct.pack(">ii", 4, 99), "correlation id 99 where 1 was due"),
    "a negative length": (struct.pack(">ii", -1, 1), "announced a response of -1 bytes"),
    "no room for the correlation id": (struct.pack(">ii", 3, 1), "announced a response of 3 bytes"),
    "a length above the limit": (struct.pack(">ii", LIMIT + 1, 1), f"receive.message.max.bytes={LIMIT}"),
    "another protocol": (b"HTTP/1.1 400 Bad Request\r\n\r\n", "is it a Kafka listener"),
    "a response too many": (struct.pack(">iiii", 4, 1, 4, 2), "nobody asked for"),
    "half a length": (b"\0\0", "closed the connection"),
    "half a response": (struct.pack(">ii", 1000, 1) + b"x" * 500, "closed the connection"),
    "nothing": (b"", "closed the connection"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_closes_the_connection_with_a_reason(pump: Pump, lie: str) -> None:
    data, reason = LIES[lie]

    def script(peer: Peer) -> None:
        peer.request()
        peer.send(data)
        if "closed" not in reason:
            peer.wait_for_end()

    with ScriptedBroker(script) as broker:
        calls = Calls(pump, broker)
        calls.call()
        calls.until(lambda: bool(calls.reasons))
        assert reason in calls.reasons[0]
        assert len(calls.answers) == 1
        if lie != "a response too many":
            assert calls.answers == [(None, calls.reasons[0])]
        assert calls.connection.is_closed
        assert pump.connection_count == 0
        with pytest.raises(ConnectionError, match=reason[:20]):
            calls.call()


def test_a_reset_is_said_to_be_one(pump: Pump) -> None:
    def script(peer: Peer) -> None:
        peer.request()
        peer.reset()

    with ScriptedBroker(script) as broker:
        calls = Calls(pump, broker)
        calls.call()
        calls.until(lambda: bool(calls.reasons))
        assert calls.reasons == ["the broker reset the connection"]


def test_silence_ends_at_the_first_deadline(pump: Pump) -> None:
    with ScriptedBroker(Peer.wait_for_end) as broker:
        calls = Calls(pump, broker)
        started = time.monotonic()
        calls.call(timeout_ms=60_000)
        calls.call(timeout_ms=50)
        calls.call(timeout_ms=-1)
        while not calls.reasons:
            pump.run(None)
        assert calls.reasons == ["no answer in time"]
        assert calls.answers == [(None, "no answer in time")] * 3
        assert 0.049 <= time.monotonic() - started < SECONDS  # deadlines are whole milliseconds of the clock


def test_a_deadline_that_was_kept_closes_nothing(pump: Pump) -> None:
    with ScriptedBroker(echo) as broker:
        calls = Calls(pump, broker)
        calls.call(timeout_ms=30)
        calls.until(lambda: len(calls.answers) == 1)
        pump.run(0.06)
        calls.call()
        calls.until(lambda: len(calls.answers) == 2)
        assert calls.answers == [(b"", None)] * 2


def test_what_the_kernel_does_not_take_at_once_is_sent_later(pump: Pump) -> None:
    body = hashlib.sha256(b"").digest() * 400_000
    goes_on = threading.Event()
    digests = []

    def script(peer: Peer) -> None:
        goes_on.wait(SECONDS)
        for _ in range(3):
            asked = peer.request()
            digests.append(hashlib.sha256(asked.frame[10:]).digest())
            peer.answer(asked.correlation_id, b"")

    with ScriptedBroker(script) as broker:
        calls = Calls(pump, broker)
        engine = ProbeEngine()
        pump.add(engine)
        calls.connection.open(NODE, {KEY: 0})
        for number, pieces in enumerate((1, 199, 3)):
            engine.send(NODE, KEY, 0, frame(body), 30_000, number=number, pieces=pieces)
        pump.run(0.05)
        assert calls.connection.bytes_out < len(body) * 3
        goes_on.set()
        told = []
        engine.on_told = lambda: told.extend(engine.take())
        run_until(pump, lambda: len(told) == 3)
        assert told == [(number, b"", None) for number in range(3)]
        assert digests == [hashlib.sha256(body).digest()] * 3


def test_silent_requests_are_answered_when_they_are_sent(pump: Pump) -> None:
    with ScriptedBroker(echo) as broker:
        calls = Calls(pump, broker)
        calls.call(b"", silent=True)
        calls.until(lambda: len(calls.answers) == 1)
        assert calls.answers == [(b"", None)]
        assert calls.connection.in_flight == 0


def test_an_engine_that_is_woken_behind_its_turn_has_another_before_the_pump_sleeps(pump: Pump) -> None:
    """What has no response is answered where it is sent: behind the turns, and nothing else would wake the pump."""
    with ScriptedBroker(Peer.wait_for_end) as broker:
        own = Wanting(pump)
        calls = Calls(pump, broker)
        calls.connection.open(NODE, {})
        pump.run(0)
        pump.run(0)
        own.engine.send(NODE, KEY, 0, frame(), 60_000, silent=True)
        started = time.monotonic()
        pump.run(SECONDS)
        assert own.answers == [(0, None, None)]
        assert time.monotonic() - started < SECONDS / 2


def test_a_held_connection_sends_only_what_goes_ahead(pump: Pump) -> None:
    with ScriptedBroker(echo) as broker:
        calls = Calls(pump, broker)
        calls.connection.hold()
        calls.call(b"first")
        calls.call(b"second")
        calls.call(b"ahead", ahead=True)
        calls.until(lambda: len(calls.answers) == 1)
        assert calls.answers == [(b"ahead", None)]
        assert calls.connection.in_flight == 2
        calls.connection.release()
        calls.until(lambda: len(calls.answers) == 3)
        assert [body for body, _ in calls.answers] == [b"ahead", b"first", b"second"]


def test_what_was_held_back_fails_with_its_connection(pump: Pump) -> None:
    with ScriptedBroker(echo) as broker:
        calls = Calls(pump, broker)
        calls.connection.hold()
        calls.call(b"first", timeout_ms=20)
        calls.until(lambda: len(calls.answers) == 1)
        assert calls.answers == [(None, "no answer in time")]


class Wanting:
    """An engine on a pump, with what Python is told."""

    def __init__(self, pump: Pump):
        self.engine = ProbeEngine()
        self.wanted: list[int] = []
        self.answers: list[tuple[int, bytes | None, str | None]] = []
        pump.on_wanted = self.wanted.append
        self.engine.on_told = lambda: self.answers.extend(self.engine.take())
        pump.add(self.engine)


def test_an_engine_asks_for_a_node_once_until_python_gives_up(pump: Pump) -> None:
    with ScriptedBroker(echo) as broker:
        own = Wanting(pump)
        own.engine.send(NODE, KEY, 0, frame(b"a"), 20_000)
        own.engine.send(3, KEY, 0, frame(b"b"), 20_000, number=1)
        run_until(pump, lambda: sorted(own.wanted) == [3, NODE])
        own.engine.wake()
        pump.run(0)
        pump.run(0)
        assert len(own.wanted) == 2
        pump.give_up(3)
        run_until(pump, lambda: own.wanted[2:] == [3])
        calls = Calls(pump, broker)
        assert own.engine.opened == 0
        calls.connection.open(NODE, {KEY: 0})
        assert own.engine.opened == 1
        run_until(pump, lambda: own.answers == [(0, b"a", None)])
        assert own.wanted[3:] == []
        calls.connection.close("gone")
        run_until(pump, lambda: own.engine.closed == 1)
        own.engine.send(NODE, KEY, 0, frame(b"a"), 20_000)
        run_until(pump, lambda: own.wanted[3:] == [NODE])


def test_the_newest_open_connection_of_a_node_is_used(pump: Pump) -> None:
    with ScriptedBroker(echo) as broker:
        own = Wanting(pump)
        first, second = Calls(pump, broker), Calls(pump, broker)
        first.connection.open(NODE, {})
        second.connection.open(NODE, {})
        own.engine.send(NODE, KEY, 0, frame(b"a"), 20_000)
        run_until(pump, lambda: own.answers == [(0, b"a", None)])
        assert (first.connection.bytes_out, second.connection.bytes_out) == (0, 15)
        own.answers.clear()
        first.connection.close("replaced")
        run_until(pump, lambda: own.engine.closed == 1)
        own.engine.send(NODE, KEY, 0, frame(b"a"), 20_000)
        run_until(pump, lambda: own.answers == [(0, b"a", None)])
        assert second.connection.bytes_out == 30
        assert own.wanted == []


def test_an_engine_has_what_it_sent_back_when_the_connection_breaks(pump: Pump) -> None:
    def script(peer: Peer) -> None:
        asked = peer.request()
        peer.answer(asked.correlation_id, b"z" * 200_000)
        peer.request()
        peer.request()

    with ScriptedBroker(script) as broker:
        own = Wanting(pump)
        calls = Calls(pump, broker)
        calls.connection.open(NODE, {})
        for number in range(3):
            own.engine.send(NODE, KEY, 0, frame(b"a"), 20_000, number=number)
        run_until(pump, lambda: len(own.answers) == 3)
        reason = "the broker closed the connection"
        assert own.answers == [(0, b"z" * 200_000, None), (1, None, reason), (2, None, reason)]
        assert own.engine.closed == 1


def test_other_threads_wake_a_sleeping_pump(pump: Pump) -> None:
    """Each of several threads sends thousands of requests; none is left lying while the pump sleeps."""
    threads, each = 3, 2_000
    with ScriptedBroker(echo) as broker:
        own = Wanting(pump)
        calls = Calls(pump, broker)
        calls.connection.open(NODE, {})
        everything = frame(b"abc")

        def send(first: int) -> None:
            for number in range(first, first + each):
                own.engine.send(NODE, KEY, 0, everything, 60_000, number=number)

        senders = [threading.Thread(target=send, args=[i * each]) for i in range(threads)]
        for sender in senders:
            sender.start()
        while len(own.answers) < threads * each:
            pump.run(None)  # would wait for ever if a wake-up were lost
        for sender in senders:
            sender.join()
        for i in range(threads):
            numbers = [number for number, _, _ in own.answers if number // each == i]
            assert numbers == sorted(numbers)


def test_an_engine_has_a_turn_when_it_is_due(pump: Pump) -> None:
    own = Wanting(pump)
    pump.run(0)
    before = own.engine.turns
    due_ms = time.monotonic_ns() // 1_000_000 + 40
    own.engine.ask_turn(due_ms)
    run_until(pump, lambda: own.engine.turns > before)
    assert time.monotonic_ns() // 1_000_000 >= due_ms
    assert own.engine.turns == before + 1


def test_several_engines_are_served(pump: Pump) -> None:
    with ScriptedBroker(echo) as broker:
        engines = [Wanting(pump) for _ in range(3)]
        calls = Calls(pump, broker)
        calls.connection.open(NODE, {})
        for number, own in enumerate(engines):
            own.engine.send(NODE, KEY, 0, frame(b"e"), 20_000, number=number)
        run_until(pump, lambda: all(own.answers for own in engines))
        assert [own.answers for own in engines] == [[(number, b"e", None)] for number in range(3)]


def test_foreign_descriptors_are_told_when_they_are_ready(pump: Pump) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        pump.watch(ours.fileno(), 1)
        assert pump.run(0) == []
        theirs.send(b"x")
        assert pump.run(None) == [(ours.fileno(), 1)]
        assert pump.run(None) == [(ours.fileno(), 1)]
        pump.watch(ours.fileno(), 3)
        assert pump.run(None) == [(ours.fileno(), 3)]
        pump.watch(ours.fileno(), 2)
        assert pump.run(None) == [(ours.fileno(), 2)]
        pump.unwatch(ours.fileno())
        assert pump.run(0.01) == []
        pump.unwatch(ours.fileno())


def test_closing_the_pump_answers_everything(pump: Pump) -> None:
    with ScriptedBroker(Peer.wait_for_end) as broker:
        own = Wanting(pump)
        calls = Calls(pump, broker)
        calls.connection.open(NODE, {})
        own.engine.send(NODE, KEY, 0, frame(b"e"), 20_000)
        pump.run(0)
        calls.call()
        pump.close("it is time")
        assert calls.answers == [(None, "it is time")]
        assert own.engine.take() == [(0, None, "it is time")]
        with pytest.raises(OSError):
            pump.adopt(broker.connect().detach())
        with pytest.raises(ConnectionError):
            calls.call()


@pytest.mark.parametrize("reason", ["", "ä" * 200])
def test_a_closed_connection_says_why_whatever_the_reason(pump: Pump, reason: str) -> None:
    with ScriptedBroker(Peer.wait_for_end) as broker:
        calls = Calls(pump, broker)
        calls.connection.close(reason)
        for _ in range(2):  # closed, and torn down
            with pytest.raises(ConnectionError) as raised:
                calls.call()
            assert str(raised.value)[:79] == reason[:79]
            calls.until(lambda: bool(calls.reasons))


def test_a_connection_is_not_made_by_hand() -> None:
    with pytest.raises(TypeError):
        PumpConnection()
