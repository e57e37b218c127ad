"""What the client's compiled code reads of a broker: responses on a connection, and answers to Produce."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import suppress

from kbroker._core.client.producer.frame import ProduceFrame
from kbroker._core.client.pump import Pump
from kbroker.errors import BadInput
from kbroker.protocol import messages as M
from tests.fuzz.program import Program
from tests.fuzz.target import Target

# --- responses on a connection ------------------------------------------------------------------------

LIMIT = 4096
PLAIN_KEY, FLEXIBLE_KEY = 60, 61
LONG_RUN = 1 << 12
TURNS = 2000


def feed_client_frames(data: bytes) -> None:
    """Calls, and what comes: every call gets the body that stands in its place or one reason, the same for all."""
    program = Program(data)
    calls = [program.byte() for _ in range(program.byte() % 6)]
    ours, theirs = socket.socketpair()
    pump = Pump({FLEXIBLE_KEY: 1}, LIMIT)
    closed: list[str] = []
    answers: list[tuple[int, bytes | None, str | None]] = []
    with theirs:
        ours.setblocking(False)
        connection = pump.adopt(ours.detach(), 1)
        connection.on_close = closed.append
        for at, how in enumerate(calls):
            key = FLEXIBLE_KEY if how & 1 else PLAIN_KEY
            request = struct.pack(">ihhih", 10, key, 1, 0, -1)

            def answered(body: bytes | None, reason: str | None, at: int = at) -> None:
                answers.append((at, body, reason))

            connection.call(key, 1, request, 20_000, answered, silent=bool(how & 2))
        pump.run(0)
        wire = wire_of(program, calls)
        step = 1 + program.byte() * 16
        for at in range(0, len(wire), step):
            with suppress(BrokenPipeError):  # it has been closed for what came before
                theirs.sendall(wire[at : at + step])
            pump.run(0)
        with suppress(OSError):
            theirs.shutdown(socket.SHUT_RDWR)
        for _ in range(TURNS):
            if closed:
                break
            pump.run(0.01)
        else:
            raise AssertionError("the connection is not closed")
    pump.close("the test is over")
    assert len(closed) == 1
    asking = [at for at, how in enumerate(calls) if not how & 2]
    expected = bodies_in(wire, [(at + 1, bool(calls[at] & 1)) for at in asking])
    told = sorted(answers, key=lambda answer: answer[0])
    assert [at for at, _, _ in told] == list(range(len(calls))), answers
    for place, at in enumerate(asking):
        _, body, reason = told[at]
        if place < len(expected):
            assert (body, reason) == (expected[place], None), (place, told[at])
        else:
            assert body is None and reason, (place, told[at])


def wire_of(program: Program, calls: list[int]) -> bytes:
    """Frames with the right correlation ids, unless the input says otherwise; then whatever is left of it."""
    made = bytearray()
    for at, how in enumerate(calls):
        if how & 2:
            continue
        kind, body = program.byte(), program.bytes(program.byte())
        if kind & 0x80:
            body *= 1 + program.byte()
        correlation_id = at + 1 if not kind & 0x40 else program.number(at + 1, 32)
        tags = b"\0" if how & 1 and not kind & 0x20 else b""
        frame = struct.pack(">i", correlation_id) + tags + body
        size = len(frame) if not kind & 0x10 else program.number(len(frame), 32)
        made += struct.pack(">i", size) + frame
    return bytes(made) + program.bytes(max(0, len(program.data) - program.at))


def bodies_in(wire: bytes, calls: list[tuple[int, bool]]) -> list[bytes]:
    """What a slow and obvious reader finds, up to the first thing that is not right."""
    found: list[bytes] = []
    at = 0
    for correlation_id, is_flexible in calls:
        size = int.from_bytes(wire[at : at + 4], signed=True)
        frame = wire[at + 4 : at + 4 + size]
        if len(wire) - at < 4 or not 4 <= size <= LIMIT or len(frame) < size:
            break
        if int.from_bytes(frame[:4], signed=True) != correlation_id:
            break
        body = behind_tags(frame[4:]) if is_flexible else frame[4:]
        if body is None:
            break
        found.append(body)
        at += 4 + size
    return found


def behind_tags(data: bytes) -> bytes | None:
    """None: there are no tagged fields."""
    at = 0

    def uvarint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if not byte & 0x80:
                break
            shift += 7
            if shift > 28:
                raise IndexError
        if value >> 32:
            raise IndexError
        return value

    try:
        for _ in range(uvarint()):
            uvarint()
            size = uvarint()
            if size > len(data) - at:
                return None
            at += size
    except IndexError:
        return None
    return data[at:]


def client_frame_seeds() -> Iterator[bytes]:
    yield b"\x01\x00" + b"\x00\x04body" + b"\0"
    yield b"\x03\x00\x01\x02" + b"\x00\x01a" + b"\x80\x02bb\xff" + b"\x10"
    yield b"\x02\x01\x01" + b"\x20\x05\x01\x07\x01xb" + b"\x00\x00" + b"\xff"
    yield b"\x02\x00\x00" + b"\x40\x01a\xf0\x01" + b"\x10\x01a\xf0\x05" + b"\0"


# --- answers to Produce -------------------------------------------------------------------------------

ASKED = [("t", 0, b"x"), ("t", 1, b"x"), ("other", 0, b"x")]
VERSIONS = 13
ENDPOINTS_VERSION = 10
"""From which on there is a tagged field with the addresses of brokers (KIP-951)."""


def feed_produce_response(data: bytes) -> None:
    """Byte 0: the version. It is refused, or says of each partition what the message class reads."""
    version = data[0] % VERSIONS if data else 0
    try:
        found = ProduceFrame(ASKED).decode(version, data[1:])
    except BadInput:
        found = None
    try:
        message: M.ProduceResponse | None = M.ProduceResponse.decode(data[1:], version)
    except BadInput:
        message = None
    if message is None:
        # Where the brokers are is not looked at: it is skipped by its size.
        assert found is None or version >= ENDPOINTS_VERSION, found
        return
    said = {
        (topic.name, each.index): (
            each.error_code,
            each.base_offset,
            each.log_append_time_ms,
            each.log_start_offset,
            each.error_message,
            each.current_leader.leader_id,
            each.current_leader.leader_epoch,
        )
        for topic in message.responses
        for each in topic.partition_responses
    }
    count = sum(len(topic.partition_responses) for topic in message.responses)
    if count == len(ASKED) and said.keys() == {(topic, partition) for topic, partition, _ in ASKED}:
        assert found == [said[topic, partition] for topic, partition, _ in ASKED], (found, said)
    else:
        assert found is None, found


def produce_response_seeds() -> Iterator[bytes]:
    R = M.ProduceResponse
    for version in range(VERSIONS):
        rows = []
        for index in range(2):
            row = R.PartitionProduceResponse(index=index, error_code=6, base_offset=7)
            if version >= 8:
                row.error_message = "why"
                row.record_errors = [R.BatchIndexAndErrorMessage(batch_index=1, batch_index_error_message="this")]
            if version >= 10:
                row.current_leader = R.LeaderIdAndEpoch(leader_id=2, leader_epoch=3)
            rows.append(row)
        other = R.TopicProduceResponse(name="other", partition_responses=rows[:1])
        message = R(responses=[R.TopicProduceResponse(name="t", partition_responses=rows), other])
        yield bytes([version]) + message.encode(version)


TARGETS = [
    Target("client-frames", feed_client_frames, client_frame_seeds, 512, share=2),
    Target("produce-response", feed_produce_response, produce_response_seeds, 512),
]
