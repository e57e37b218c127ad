"""The target `answers`: clients of every kind, and a broker that answers rightly or lies, as the input says.

    input = client:u8 age:u8 lie*

`client` says what is done, `age` which versions the broker serves; then each answer takes what it wants of the bytes: a
right one takes one. Whatever a broker says, calls end, with a value or an error of the client's; its thread goes on
until it is closed, and logs nothing that nobody thought of.
"""

from __future__ import annotations

import gc
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from kbroker.client import AdminClient, Consumer, ConsumerGroupMetadata, Producer, SimpleConsumer
from kbroker.errors import BadInput, KbrokerError
from kbroker.model import TopicPartition
from kbroker.protocol.api import SERVED, ApiKey
from kbroker.protocol.headers import encode_response, framed
from kbroker.protocol.messages import Message
from tests.fuzz.conversation import BROKER, Findings
from tests.fuzz.honest_broker import HonestBroker, places_in
from tests.fuzz.program import WILD, Program
from tests.fuzz.target import Target
from tests.kit.brokers.scripted import Asked, Peer, ScriptedBroker, asked_by
from tests.kit.models.message import INTEGERS

PATIENCE_S = 20.0
"""All that a client does here is bounded to a fraction of this."""
BOUNDS = {
    "request_timeout_ms": 300,
    "default_api_timeout_ms": 400,
    "socket_connection_setup_timeout_ms": 300,
    "retry_backoff_ms": 1,
    "retry_backoff_max_ms": 20,
    "reconnect_backoff_ms": 1,
    "reconnect_backoff_max_ms": 20,
    "receive_message_max_bytes": 1 << 20,
}
SECONDS = 0.5
MOST_LIES = 400
PARTITIONS = [TopicPartition("t", 0), TopicPartition("t", 1)]

RIGHT, FIELD, BYTE, BODY, CUT, FRAME = 128, 208, 232, 240, 246, 252
"""Up to which byte an answer is right, has a field changed, a byte changed, another body, is cut, or is another frame;
above, the connection is closed instead."""
TEXTS = ["", "t", "m", "\0", "ä" * 70, "x" * 300, "range"]
HOSTS = ["", "\0", "::1", "ä" * 70, "x" * 300, "127.0.0.1", "fe80::1%lo"]


class ClientFindings(Findings):
    """On whatever thread: asyncio tells of a task that failed where it is collected."""

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(self.format(record))


FINDINGS = ClientFindings()
logging.getLogger("kbroker.client").addHandler(FINDINGS)


class LyingBroker:
    """A context manager."""

    def __init__(self, program: Program):
        self.program = program
        self.lies = 0
        self.lock = threading.Lock()
        self.broker = ScriptedBroker(self._serve)
        self.honest = HonestBroker(self.broker.port, program.byte())

    def __enter__(self) -> int:
        self.broker.__enter__()
        return self.broker.port

    def __exit__(self, *how: Any) -> None:
        self.broker.__exit__(*how)

    def _serve(self, peer: Peer) -> None:
        while True:
            frame = peer.frame()
            is_token = len(frame) < 8 or int.from_bytes(frame[:2]) not in SERVED  # no header, as before Kafka 1.0
            with self.lock:
                wire = self._token(frame) if is_token else self._answer(asked_by(frame))
            if wire is None:
                return
            if not is_token and int.from_bytes(frame[:2]) == ApiKey.FETCH:
                time.sleep(0.002)  # as a long poll would
            peer.send(wire)

    def _token(self, frame: bytes) -> bytes:
        program = self.program
        how = program.byte()
        return framed(self.honest.sasl(frame)) if how < RIGHT else program.bytes(how - RIGHT)

    def _answer(self, asked: Asked) -> bytes | None:
        """None: the connection is closed instead."""
        message = self.honest.answer(asked)
        program = self.program
        how = 0 if program.is_over or self.lies >= MOST_LIES else program.byte()
        api_key = ApiKey(asked.api_key)
        if how < RIGHT:
            return encode_response(api_key, asked.version, asked.correlation_id, message)
        self.lies += 1
        if how < FIELD:
            for _ in range(1 + how % 3):
                change_field(message, asked.version, program)
        try:
            wire = bytearray(encode_response(api_key, asked.version, asked.correlation_id, message))
        except KbrokerError:  # no answer of this version says so
            return None
        body_at = min(len(wire), 8)
        if FIELD <= how < BYTE:
            wire[body_at + program.short() % max(1, len(wire) - body_at) - 1] ^= program.byte()
        elif BYTE <= how < BODY:
            wire[body_at:] = program.bytes(program.byte())
        elif BODY <= how < CUT:
            del wire[body_at + program.short() % max(1, len(wire) - body_at) :]
        elif CUT <= how < FRAME:
            return bytes(wire[:4]) + program.bytes(4) + bytes(wire[8:]) if how & 1 else program.bytes(8) + bytes(wire)
        elif how >= FRAME:
            return None
        wire[:4] = (len(wire) - 4).to_bytes(4)
        return bytes(wire)


def change_field(message: Message, version: int, program: Program) -> None:
    """One of those that the version has gets another value."""
    places = list(places_in(message, type(message), None, version))
    owner, field = places[program.short() % len(places)]
    before = getattr(owner, field.name)
    choices: list[Any] = [before]
    if field.is_array:
        listed = list(before or ())
        choices = [[], listed * 2, listed[:1], listed * 40]
    elif field.element in INTEGERS:
        low, high = INTEGERS[field.element]
        near = program.byte()
        choices = [max(low, min(high, program.pick(WILD) if near >= 200 else near - 2))]
    elif field.element == "bool":
        choices = [not before]
    elif field.element == "string":
        choices = HOSTS if field.name == "host" else TEXTS
    elif field.element in ("bytes", "records"):
        choices = [b"", program.bytes(program.byte())]
    elif field.element == "uuid":
        choices = [program.bytes(16)]
    setattr(owner, field.name, program.pick([*choices, None] if field.nullable(version) else choices))


# --- what clients do ----------------------------------------------------------------------------------


def each(*calls: Callable[[], object]) -> None:
    """One call after the other, whatever becomes of them."""
    for call in calls:
        with suppress(KbrokerError):
            call()


def produce(options: dict[str, Any], idempotent: bool) -> None:
    producer = Producer(
        enable_idempotence=idempotent, delivery_timeout_ms=400, max_block_ms=300, linger_ms=0, **BOUNDS, **options
    )
    try:
        deliveries: list[Any] = []
        each(
            *[lambda n=n: deliveries.append(producer.send("t", b"v", partition=n % 2)) for n in range(4)],
            lambda: producer.flush(SECONDS),
        )
        for delivery in deliveries:
            each(lambda delivery=delivery: delivery.result(SECONDS))
    finally:
        producer.close(SECONDS)


def transact(options: dict[str, Any]) -> None:
    producer = Producer(transactional_id="i", delivery_timeout_ms=400, max_block_ms=300, **BOUNDS, **options)
    try:
        each(lambda: producer.init_transactions(SECONDS))
        for _ in range(2):
            each(
                producer.begin_transaction,
                lambda: producer.send("t", b"v", partition=0),
                lambda: producer.send_offsets_to_transaction({PARTITIONS[0]: 1}, ConsumerGroupMetadata("g"), SECONDS),
                lambda: producer.commit_transaction(SECONDS),
                lambda: producer.abort_transaction(SECONDS),
            )
    finally:
        producer.close(SECONDS)


def read(consumer: Consumer) -> None:
    """A few polls, and all that they bring."""
    for _ in range(4):
        with suppress(KbrokerError):
            for record in consumer.poll(0.05):
                assert record.offset >= 0
                with suppress(BadInput):
                    assert record.headers is not None


def consume(options: dict[str, Any]) -> None:
    with Consumer(auto_offset_reset="earliest", fetch_max_wait_ms=5, **BOUNDS, **options) as consumer:
        each(lambda: consumer.assign(PARTITIONS))
        read(consumer)
        each(
            lambda: consumer.seek_to_beginning(*PARTITIONS),
            lambda: consumer.end_offsets(PARTITIONS),
            lambda: consumer.offsets_for_times(dict.fromkeys(PARTITIONS, 5)),
        )
        read(consumer)


def join(options: dict[str, Any]) -> None:
    consumer = Consumer(
        group_id="g",
        auto_offset_reset="earliest",
        fetch_max_wait_ms=5,
        heartbeat_interval_ms=5,
        auto_commit_interval_ms=5,
        max_poll_interval_ms=300,
        isolation_level="read_committed",
        **BOUNDS,
        **options,
    )
    try:
        each(lambda: consumer.subscribe(["t"]))
        read(consumer)
        each(lambda: consumer.commit(timeout=SECONDS), lambda: consumer.committed(PARTITIONS))
        read(consumer)
    finally:
        with suppress(KbrokerError):
            consumer.close(SECONDS)


def administer(options: dict[str, Any]) -> None:
    with AdminClient(**BOUNDS, **options) as admin:
        each(
            admin.list_topics,
            lambda: admin.describe_topics(["t"]),
            lambda: admin.create_topic("t", partitions=2),
            lambda: admin.delete_topics(["t"]),
            lambda: admin.create_partitions("t", 3),
            lambda: admin.describe_topic_config("t"),
            admin.describe_cluster,
            admin.describe_features,
            admin.describe_log_dirs,
            lambda: admin.alter_topic_config("t", {"a": "b"}),
            lambda: admin.list_offsets(PARTITIONS),
            lambda: admin.delete_records({PARTITIONS[0]: 1}),
            lambda: admin.describe_producers(PARTITIONS),
            admin.elect_leaders,
            lambda: admin.alter_partition_reassignments({PARTITIONS[0]: [0]}),
            admin.list_partition_reassignments,
            lambda: admin.fetch_replica(PARTITIONS[0], 0, 0),
            lambda: admin.list_log_end_offsets([(*each, 0) for each in PARTITIONS]),
        )


def administer_groups(options: dict[str, Any]) -> None:
    with AdminClient(**BOUNDS, **options) as admin:
        each(
            admin.list_groups,
            lambda: admin.describe_groups(["g"]),
            lambda: admin.committed("g"),
            lambda: admin.alter_offsets("g", {PARTITIONS[0]: 1}),
            lambda: admin.delete_offsets("g", PARTITIONS),
            lambda: admin.remove_members("g"),
            lambda: admin.delete_groups(["g"]),
            admin.list_transactions,
            lambda: admin.describe_transactions(["i"]),
            lambda: admin.fence_producers(["i"]),
        )


def authenticate(options: dict[str, Any], mechanism: str) -> None:
    user = {"sasl_mechanism": mechanism, "sasl_username": "u", "sasl_password": "p"}
    with AdminClient(security_protocol="SASL_PLAINTEXT", **user, **BOUNDS, **options) as admin:
        each(admin.check_connection, admin.list_topics)


def ask(options: dict[str, Any]) -> None:
    with SimpleConsumer(**BOUNDS, **options) as consumer:
        each(
            lambda: [record.value for record in consumer.fetch("t", 0, 0)],
            lambda: consumer.get_offsets_before("t", 0, -1),
            lambda: consumer.fetch_offsets("g", PARTITIONS),
            lambda: consumer.commit_offsets("g", {PARTITIONS[0]: 1}),
            lambda: consumer.multifetch([("t", 0, 0), ("t", 1, 1), ("t", 0, 2)]),
        )


DONE: list[Callable[[dict[str, Any]], None]] = [
    lambda options: produce(options, idempotent=True),
    lambda options: produce(options, idempotent=False),
    transact,
    consume,
    join,
    administer,
    administer_groups,
    lambda options: authenticate(options, "PLAIN"),
    lambda options: authenticate(options, "SCRAM-SHA-256"),
    ask,
]


def feed_answers(data: bytes) -> None:
    for heard in (FINDINGS, BROKER.findings):
        heard.found.clear()  # what others in this process had to say before
    program = Program(data)
    done = program.pick(DONE)
    before = set(threading.enumerate())
    started = time.monotonic()
    with LyingBroker(program) as port:
        done({"bootstrap_servers": f"127.0.0.1:{port}"})
        assert time.monotonic() - started < PATIENCE_S
    gc.collect(1)
    for thread in set(threading.enumerate()) - before:
        if thread.name.startswith("kbroker-client-"):  # its owner has waited for SECONDS only
            thread.join(PATIENCE_S)
            assert not thread.is_alive(), thread
    found, FINDINGS.found = FINDINGS.found, []
    assert not found, "\n".join(found)
    BROKER.check_log()


def answer_seeds() -> Iterator[bytes]:
    for client in range(len(DONE)):
        for age in (0, 7):
            yield bytes([client, age])


TARGETS = [Target("answers", feed_answers, answer_seeds, 256, share=6)]
