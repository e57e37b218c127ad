"""Load on a replicated topic: plain and idempotent producers, librdkafka's and our own, a group, and a watcher.

At the end every record that was acknowledged with acks=all is where its acknowledgement said, but for those that
retention took from one topic, the idempotent producers' records once and in order, the group's offsets where it was
told, and what the watcher has ever seen is still there. No producer id was given out twice.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kbroker.client import ClientError, Delivery, Producer
from tests.crash import kill_rounds
from tests.crash.client_actors import QUICK
from tests.crash.kill_rounds import (
    IDEMPOTENT,
    PARTITIONS,
    TOPICS,
    Acknowledged,
    Follower,
    Writer,
    read_back,
    value_of,
)
from tests.kit.clients.wire import ConnectionClosed

TOPIC, PASSING = "crash", "passing"
CONFIGS = {TOPIC: TOPICS[TOPIC], PASSING: {"retention.bytes": "200000", "segment.bytes": "50000"}}
"""Retention takes from the second topic what is some seconds old: its log start moves all the time."""
MOST_IN_FLIGHT_BESIDE_KAFKA = 1
"""The requests of an idempotent producer. Kafka answers the first of several NOT_ENOUGH_REPLICAS and the next
OUT_OF_ORDER_SEQUENCE_NUMBER when the ISR grows between them. Then librdkafka 2.16 takes a new producer epoch, and sends
what was not acknowledged a second time, be it in the log or not."""
FINISH_S, PATIENCE_S = 90.0, 30.0
BURST = 50
PAUSE_S, LONG_PAUSE_S = 0.01, 0.05


@dataclass
class OwnWriter(Writer):
    """A Writer with the producer of `kbroker.client`."""

    pause_s: float = PAUSE_S

    def run(self, address: str, stop: threading.Event) -> None:
        options = QUICK | {"bootstrap_servers": address, "delivery_timeout_ms": 120_000, **self.settings}
        with Producer(options) as producer:
            number = 0
            while not stop.wait(self.pause_s):
                for _ in range(BURST):
                    self.send(producer, number)
                    number += 1
                # Not more than these wait for their answers.
                producer.flush(60)
            producer.flush(60)

    def send(self, producer: Producer, number: int) -> None:
        def delivered(error: ClientError | None, delivery: Delivery) -> None:
            if error is not None or delivery.offset is None:
                self.failures[str(error)] += 1
                return
            told = self.acknowledged.setdefault(delivery.partition, Acknowledged())
            told.offsets.append(delivery.offset)
            told.numbers.append(number)

        producer.send(self.topic, value_of(self.name, number), partition=number % PARTITIONS, on_delivery=delivered)


@dataclass
class PatientFollower(Follower):
    """A Follower that hears of its commits later: librdkafka's synchronous commit may never return when its coordinator
    has gone, on Apache Kafka too, and its close neither: what they send waits for ever in the queue of a coordinator
    without an address, which librdkafka does not look for again. It makes one commit at a time, for librdkafka sends
    those that wait for a coordinator in any order."""

    is_committing: bool = False

    def run(self, address: str, stop: threading.Event) -> None:
        reader = Consumer(
            {"bootstrap.servers": address, "group.id": "followers", "auto.offset.reset": "earliest"}
            | {"enable.auto.commit": False, "reconnect.backoff.max.ms": 200, "session.timeout.ms": 6000}
            | {"on_commit": self.told}
        )
        reader.subscribe([TOPIC])
        while not stop.is_set():
            if any(not each.error() for each in reader.consume(500, 0.2)) and not self.is_committing:
                with contextlib.suppress(KafkaException):  # the group begins anew: what it had committed holds
                    reader.commit(asynchronous=True)
                    self.is_committing = True
                stop.wait(0.05)
        close_apart(reader)

    def told(self, error: KafkaError | None, places: list[TopicPartition]) -> None:
        self.is_committing = False
        for place in places if error is None else ():
            if place.error is None and place.offset >= 0:
                self.committed[place.partition] = place.offset


@dataclass
class Watcher:
    """A reader without a group that reads all partitions from their beginning, and notes what it sees where."""

    seen: dict[tuple[int, int], bytes] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    def run(self, address: str, stop: threading.Event) -> None:
        reader = Consumer(
            {"bootstrap.servers": address, "group.id": "watcher", "enable.auto.commit": False, "fetch.wait.max.ms": 50}
            | {"auto.offset.reset": "error", "reconnect.backoff.max.ms": 200, "fetch.queue.backoff.ms": 5}
        )
        # Offset 0 and not the beginning: a leader that was not told yet does not know where that is.
        reader.assign([TopicPartition(TOPIC, partition, 0) for partition in range(PARTITIONS)])
        while not stop.is_set():
            for message in reader.consume(1000, 0.2):
                error = message.error()
                if error is None:
                    self.note(message.partition() or 0, message.offset() or 0, name_of(message.value() or b""))
                elif error.fatal() or error.name() == "_AUTO_OFFSET_RESET":
                    self.wrong.append(f"watcher: {error}")  # it had read beyond what the new leader has
        close_apart(reader)

    def note(self, partition: int, offset: int, name: bytes) -> None:
        before = self.seen.setdefault((partition, offset), name)
        if before != name:
            self.wrong.append(f"watcher: {TOPIC}-{partition} at {offset} was {before!r}, and then {name!r}")

    def check(self, address: str) -> Iterator[str]:
        """Yield which records are no longer what they were when they were seen."""
        yield from self.wrong
        for partition in range(PARTITIONS):
            stored = {
                message.offset(): name_of(message.value() or b"") for message in read_back(address, TOPIC, partition)
            }
            for (of, offset), name in self.seen.items():
                if of == partition and stored.get(offset) != name:
                    yield f"watcher: {TOPIC}-{partition} at {offset} was {name!r}, and is now {stored.get(offset)!r}"


def close_apart(reader: Consumer) -> None:
    """Close a consumer and do not wait for it: librdkafka may wait for ever."""
    threading.Thread(target=reader.close, daemon=True, name="close").start()


def name_of(value: bytes) -> bytes:
    """Return the writer and the number in a value."""
    return b":".join(value.split(b":")[:2])


@contextlib.contextmanager
def noted(wrong: list[str], what: str = "") -> Iterator[None]:
    """Note what a check of the block finds wrong, and go on behind the block."""
    try:
        yield
    except AssertionError as error:
        wrong.append(f"{what}{error}")


class ReplicatedLoad:
    """The load of one round. `acks` of the plain producer is all, except to show that less is found.

    `beside_kafka`: one of the brokers is an Apache Kafka. One that has just started tells that no topic exists.
    """

    def __init__(self, address: str, acks: str = "all", *, beside_kafka: bool = False):
        in_flight = {"max.in.flight": MOST_IN_FLIGHT_BESIDE_KAFKA} if beside_kafka else {}
        own = {"enable.idempotence": True, "linger.ms": 2} | in_flight
        self.address = address
        self.writers = [
            Writer("plain", TOPIC, {"acks": acks, "linger.ms": 1, "retries": 100_000}, beside_kafka),
            Writer("idempotent", TOPIC, IDEMPOTENT | {"linger.ms": 2} | in_flight, beside_kafka),
            OwnWriter("own", TOPIC, own),
            OwnWriter("passing", PASSING, own, pause_s=LONG_PAUSE_S),
        ]
        self.producer_ids: list[int] = []
        self.follower, self.watcher = PatientFollower(), Watcher()
        self.stopping = threading.Event()
        self.threads: list[threading.Thread] = []

    def create_topics(self, replication_factor: int, min_in_sync: int) -> None:
        admin = AdminClient({"bootstrap.servers": self.address})
        topics = [
            NewTopic(name, PARTITIONS, replication_factor, config=own | {"min.insync.replicas": str(min_in_sync)})
            for name, own in CONFIGS.items()
        ]
        for made in admin.create_topics(topics).values():
            made.result(30)

    def start(self) -> None:
        actors = (*self.writers, self.follower, self.watcher)
        self.threads = [
            threading.Thread(
                target=each.run,
                args=(self.address, self.stopping),
                daemon=True,
                name=getattr(each, "name", type(each).__name__),
            )
            for each in actors
        ]
        for thread in self.threads:
            thread.start()

    def ask_producer_ids(self, count: int = 1) -> list[str]:
        """Ask each broker for producer ids, and return what those that give none say."""
        refused = []
        for address in self.address.split(","):
            host, _, port = address.rpartition(":")
            try:
                self.producer_ids += kill_rounds.new_producer_ids(int(port), count, host)
            except (OSError, ConnectionClosed, AssertionError) as error:
                refused.append(f"{address}: {error!r}")
        return refused

    def finish(self) -> list[str]:
        """Let all end, and return what did not."""
        self.stopping.set()
        deadline = time.monotonic() + FINISH_S
        for thread in self.threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        frames = sys._current_frames()
        return [
            f"{thread.name} hangs:\n{''.join(traceback.format_stack(frames[thread.ident]))[-1500:]}"
            for thread in self.threads
            if thread.is_alive() and thread.ident in frames
        ]

    def check(self) -> list[str]:
        """Return what is wrong in the topics, and with producer ids."""
        wrong = [
            f"{writer.name}: {count} records failed: {said}"
            for writer in self.writers
            for said, count in writer.failures.items()
        ]
        wrong += [f"{writer.name}: nothing was acknowledged" for writer in self.writers if not writer.count]
        for topic, partition in itertools.product(CONFIGS, range(PARTITIONS)):
            with noted(wrong):
                kill_rounds.check(self.writers, self.address, topic, partition)
        deadline = time.monotonic() + PATIENCE_S
        while (refused := self.ask_producer_ids()) and time.monotonic() < deadline:
            time.sleep(0.2)
        wrong += refused
        with noted(wrong):
            kill_rounds.check_producer_ids(self.producer_ids)
        with noted(wrong, "group: "):
            self.follower.check(self.address)
        wrong += list(self.watcher.check(self.address))[:20]
        return wrong

    @property
    def count(self) -> int:
        """The number of acknowledged records."""
        return sum(writer.count for writer in self.writers)
