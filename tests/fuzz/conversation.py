"""Targets with a broker: frames on real connections to a whole broker in this process, so that its coverage counts.

    input = (how:u8 size:u16 frame)*

`how` says what is done with the frame before it is sent.
"""

from __future__ import annotations

import atexit
import logging
import shutil
import socket
import struct
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from random import Random
from typing import Any

from kbroker.config.broker_config import load_config
from kbroker.errors import BadInput, ErrorCode
from kbroker.protocol import messages as M
from kbroker.protocol.api import SERVED, ApiKey, request_class
from kbroker.protocol.headers import decode_request, decode_request_header, decode_response, encode_request
from kbroker.protocol.messages import RequestHeader, Struct
from kbroker.protocol.records import encode_batch, read_records
from kbroker.server.broker import Broker
from tests.fuzz.batches import FIX_CRC, FIX_LENGTH, put_right
from tests.fuzz.costs import Traffic, check_costs
from tests.fuzz.stretching import LENGTHS, choice, filled, places_of, stretched
from tests.fuzz.target import LONG, Target
from tests.kit.clients.wire import WireClient

OTHER_CONNECTION, LIE, MEND, PIECES, STRETCH = 1, 2, 4, 8, 16
"""Bits of `how`: on a second connection; without a length field of its own; put right by `mend`; in two pieces; with
one of its fields made long (`stretching.py`)."""

PATIENCE_S = 5.0
QUIET_S = 0.02
"""So long nothing comes: what is not answered waits for something, or never will be."""
LONGEST_POLL_MS = 8
MANY_PARTITIONS = 100
"""More are only more work: a few requests for 10,000 each, which is allowed, keep a sanitized broker busy for long."""
TOPIC_LIMIT = 60
MANY_PLACES = 24
HEALTHY = "healthy"
SETTINGS = {
    "listeners": "PLAINTEXT://127.0.0.1:0",
    "num.network.threads": 1,
    "num.io.threads": 2,
    "log.segment.bytes": 65536,
    "log.segment.delete.delay.ms": 0,
    "log.cleaner.delete.retention.ms": 0,
    "message.max.bytes": 65536,
    "socket.request.max.bytes": 2 << 20,
    "kbroker.inflated.batch.max.bytes": 262144,
    "queued.max.requests": 8,
    "offsets.topic.num.partitions": 2,
    "group.min.session.timeout.ms": 1,
}


class Findings(logging.Handler):
    """What the broker logs when something happened that nobody thought of, and what ends a thread."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """What this thread logs is the business of the parsers' targets: a broker's work is done by its own threads."""
        if record.thread != threading.main_thread().ident:
            self.found.append(self.format(record))

    def thread_ended(self, arguments: threading.ExceptHookArgs) -> None:
        lines = traceback.format_exception(arguments.exc_type, arguments.exc_value, arguments.exc_traceback)
        self.found.append("".join(lines))


class FuzzedBroker:
    """A broker in this process, thrown away when hostile requests have made too much of it."""

    def __init__(self) -> None:
        self.findings = Findings()
        logging.getLogger("kbroker").addHandler(self.findings)
        logging.getLogger("kbroker").propagate = False
        threading.excepthook = self.findings.thread_ended
        sys.unraisablehook = lambda found: self.findings.found.append(f"{found.err_msg}: {found.exc_value!r}")
        self.broker: Broker | None = None
        self.inputs = 0
        self.runs = 0
        """Programs that were run: what one makes has a number in its name."""
        atexit.register(self.stop)

    def start(self) -> None:
        self.findings.found.clear()  # what others in this process had to say before
        place = "/dev/shm" if Path("/dev/shm").is_dir() else None
        self.folder = Path(tempfile.mkdtemp(prefix="kbroker-fuzz-", dir=place))
        overrides = [f"{name}={value}" for name, value in SETTINGS.items()]
        self.broker = Broker(load_config(None, overrides, self.folder, environment={}))
        self.broker.start()
        self.port = self.broker.endpoints[0].port
        self.healthy = WireClient("127.0.0.1", self.port)
        self.healthy_offset = 0
        self.ask_healthy()

    def stop(self) -> None:
        if self.broker is None:
            return
        self.healthy.close()
        self.broker.stop()
        self.broker = None
        shutil.rmtree(self.folder, ignore_errors=True)

    def ready(self) -> None:
        """A broker that answers, a fresh one when there is none or its topics are too many."""
        self.inputs += 1
        if self.broker is not None and self.inputs % 50 == 0:
            self.ask_healthy()
            if len(self.metadata().topics) > TOPIC_LIMIT or self.inputs % 2000 == 0:
                self.stop()
                self.check_log()
        if self.broker is None:
            self.start()

    def metadata(self) -> Any:
        return self.healthy.call(ApiKey.METADATA, 12, M.MetadataRequest(topics=None))

    def ask_healthy(self) -> None:
        """Another client goes on as if nothing were: its topic is there (again), its record comes back."""
        asked = M.MetadataRequest.MetadataRequestTopic(name=HEALTHY)
        deadline = time.monotonic() + PATIENCE_S
        while True:
            self.healthy.call(ApiKey.METADATA, 9, M.MetadataRequest(topics=[asked]))
            topic = M.ProduceRequest.TopicProduceData(
                name=HEALTHY,
                partition_data=[
                    M.ProduceRequest.PartitionProduceData(index=0, records=encode_batch([(0, b"k", b"v")]))
                ],
            )
            request = M.ProduceRequest(acks=1, timeout_ms=5000, topic_data=[topic])
            answer = self.healthy.call(ApiKey.PRODUCE, 8, request).responses[0].partition_responses[0]
            if answer.error_code == 0:
                break
            # Somebody may have deleted it just now, or set limits that no record keeps to.
            assert time.monotonic() < deadline or answer.error_code in REASONS_OF_OTHERS, ErrorCode(answer.error_code)
            if answer.error_code in REASONS_OF_OTHERS:
                return
        part = M.FetchRequest.FetchPartition(
            partition=0, fetch_offset=answer.base_offset, partition_max_bytes=1000, current_leader_epoch=-1
        )
        fetch = M.FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=1000,
            topics=[M.FetchRequest.FetchTopic(topic=HEALTHY, partitions=[part])],
        )
        data = self.healthy.call(ApiKey.FETCH, 11, fetch).responses[0].partitions[0]
        if data.error_code == 0:
            assert [record.value for record in read_records(data.records)] == [b"v"]

    def check_log(self) -> None:
        found, self.findings.found = self.findings.found, []
        assert not found, "\n".join(found)


REASONS_OF_OTHERS = {
    ErrorCode.MESSAGE_TOO_LARGE,  # max.message.bytes of its topic was changed
    ErrorCode.INVALID_TIMESTAMP,
    ErrorCode.INVALID_RECORD,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
}
BROKER = FuzzedBroker()

# --- frames -------------------------------------------------------------------------------------------


def frames_of(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while len(data) - at >= 3:
        size = int.from_bytes(data[at + 1 : at + 3])
        yield data[at], data[at + 3 : at + 3 + size]
        at += 3 + size


def packed(frames: Iterable[bytes], how: int = MEND) -> bytes:
    return b"".join(bytes([how]) + len(frame).to_bytes(2) + frame for frame in frames)


def make_long(data: bytes, random: Random) -> bytes:
    """One of the frames with one of its fields stretched."""
    frames = list(frames_of(data))
    long_enough = [at for at, (_, frame) in enumerate(frames) if len(frame) >= 8]
    if long_enough:
        at = random.choice(long_enough)
        how, frame = frames[at]
        asked = choice(random.randrange(MANY_PLACES), random.choice(LENGTHS))
        frames[at] = (how | STRETCH) & ~LIE, frame[:4] + asked.to_bytes(4) + frame[8:]
    return b"".join(packed([frame], how) for how, frame in frames)


def mend(frame: bytes) -> bytes:
    """A frame that can be read, with what a fuzzer cannot guess put right, without waits and work that lead nowhere."""
    try:
        header, message = decode_request(frame)
    except BadInput:
        return frame
    if isinstance(message, M.FetchRequest):
        message.max_wait_ms = min(message.max_wait_ms, LONGEST_POLL_MS)
    elif isinstance(message, M.ProduceRequest):
        for topic in message.topic_data:
            for part in topic.partition_data:
                part.records = mend_records(part.records)
    elif isinstance(message, M.CreateTopicsRequest):
        for new in message.topics:
            new.num_partitions = min(new.num_partitions, MANY_PARTITIONS)
    elif isinstance(message, M.CreatePartitionsRequest):
        for grown in message.topics:
            grown.count = min(grown.count, MANY_PARTITIONS)
    elif isinstance(message, M.JoinGroupRequest):
        message.rebalance_timeout_ms = min(message.rebalance_timeout_ms, LONGEST_POLL_MS)
    try:
        key = ApiKey(header.request_api_key)
        whole = encode_request(key, header.request_api_version, header.correlation_id, header.client_id, message)
    except BadInput:
        return frame
    return whole[4:]


def mend_records(records: bytes | memoryview | None) -> bytes | None:
    if not records:
        return None if records is None else b""
    return put_right(FIX_CRC if records[0] & 1 else FIX_CRC | FIX_LENGTH, bytes(records))


class Peer:
    """One hostile connection, and what it may expect."""

    def __init__(self, port: int, traffic: Traffic):
        self.traffic = traffic
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.expected: list[tuple[int, int, int]] | None = []
        """Key, version, correlation id of each frame sent; None once the stream is nonsense."""
        self.received = bytearray()
        self.is_closed = False

    def send(self, data: bytes, in_pieces: bool) -> None:
        self.traffic.sent += len(data)
        try:
            if in_pieces and len(data) > 1:
                self.socket.sendall(data[: len(data) // 2])
                data = data[len(data) // 2 :]
            self.socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            self.is_closed = True

    def send_frame(self, how: int, frame: bytes) -> None:
        if how & LIE:
            self.expected = None
            self.send(frame, bool(how & PIECES))
            return
        if how & MEND:
            frame = mend(frame)
        if how & STRETCH:
            frame = stretched(frame)
        if self.expected is not None and is_answered(frame):
            self.expected.append(struct.unpack(">hhi", frame[:8]))
        self.send(len(frame).to_bytes(4) + frame, bool(how & PIECES))

    def receive(self) -> None:
        """Everything that comes within a short time, or until all is answered or the connection closed."""
        self.socket.settimeout(QUIET_S)
        deadline = time.monotonic() + PATIENCE_S
        while not self.is_closed and not self.is_satisfied() and time.monotonic() < deadline:
            try:
                part = self.socket.recv(1 << 16)
            except TimeoutError:
                break
            except ConnectionResetError:
                part = b""
            self.is_closed = not part
            self.received += part
            self.traffic.received += len(part)

    def is_satisfied(self) -> bool:
        return self.expected is not None and len(list(self.answers())) >= len(self.expected)

    def answers(self) -> Iterator[bytes]:
        at = 0
        while len(self.received) - at >= 4:
            size = int.from_bytes(self.received[at : at + 4])
            if len(self.received) - at - 4 < size:
                return
            yield bytes(self.received[at + 4 : at + 4 + size])
            at += 4 + size

    def check(self) -> None:
        """Every answer belongs to its request, can be read, and has only codes that exist."""
        if self.expected is None:
            return
        for (key, version, correlation_id), answer in zip(self.expected, self.answers(), strict=False):
            assert int.from_bytes(answer[:4], signed=True) == correlation_id, (
                key,
                version,
                correlation_id,
                answer.hex(),
            )
            if key not in SERVED:
                raise AssertionError(f"API {key} was answered")
            if not SERVED[ApiKey(key)].min <= version <= SERVED[ApiKey(key)].max:
                assert key == ApiKey.API_VERSIONS, f"API {key} version {version} was answered"
                refused = M.ApiVersionsResponse.decode(answer[4:], 0)
                assert refused.error_code == ErrorCode.UNSUPPORTED_VERSION
                continue
            _, message = decode_response(ApiKey(key), version, answer)
            check_codes(message, ApiKey(key))


def is_answered(frame: bytes) -> bool:
    """Whether the frame has a header and, if it is a produce request, wants an answer."""
    if len(frame) < 8:
        return False
    if int.from_bytes(frame[:2]) != ApiKey.PRODUCE:
        return True
    try:
        header, position = decode_request_header(frame)
        # What follows the message does not matter.
        message, _ = M.ProduceRequest.decode_prefix(memoryview(frame)[position:], header.request_api_version)
    except BadInput:
        return True
    return message.acks != 0


def check_codes(value: object, key: ApiKey) -> None:
    if isinstance(value, list):
        for each in value:
            check_codes(each, key)
    elif isinstance(value, Struct):
        for name in type(value).__slots__:  # type: ignore[attr-defined]
            inner = getattr(value, name)
            if name == "error_code":
                ErrorCode(inner)
            elif isinstance(inner, (list, Struct)):
                check_codes(inner, key)


def feed_frames(data: bytes) -> None:
    """Frames on two connections, whole, lying or in pieces: answers that belong to them, that cost no more than they
    weigh, and nobody is disturbed."""
    BROKER.ready()
    check_costs(lambda: exchange(data))
    BROKER.check_log()


def exchange(data: bytes) -> Traffic:
    traffic = Traffic()
    peers: dict[int, Peer] = {}
    try:
        for number, (how, frame) in enumerate(frames_of(data)):
            if number == 40:
                break
            which = how & OTHER_CONNECTION
            if which not in peers:
                peers[which] = Peer(BROKER.port, traffic)
            peers[which].send_frame(how, frame)
        for peer in peers.values():
            peer.receive()
            peer.check()
    finally:
        for peer in peers.values():
            peer.socket.close()
    return traffic


def frame_seeds() -> Iterator[bytes]:
    """Every served request with its defaults, in its first and last version."""
    for key, versions in SERVED.items():
        for version in sorted({versions.min, versions.max}):
            yield packed([encode_request(key, version, 7, "fuzz", request_class(key)())[4:]])


def long_seeds() -> Iterator[bytes]:
    """Every served request in every version, with each of its fields as long as it may be, and longer."""
    for key, versions in SERVED.items():
        for version in range(versions.min, versions.max + 1):
            message = filled(request_class(key), version)
            for which in range(len(list(places_of(RequestHeader(), message, version)))):
                ids = [choice(which, size) for size in (32_767, 32_768, 65_535, 1 << 20)]
                yield packed([encode_request(key, version, one, "fuzz", message)[4:] for one in ids], MEND | STRETCH)


def seeds() -> Iterator[bytes]:
    yield from frame_seeds()
    yield from long_seeds()


TARGETS = [Target("frames", feed_frames, seeds, LONG, share=6, change=make_long)]
