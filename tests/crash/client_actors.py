"""The actors of a client round: clients of `kbroker.client` on threads, each of which notes what happens to it.

Writers send numbered records in all ways that a producer has. Members of groups read them. Movers read, write and
commit in one transaction. They note it in a `Ledger`; client_ledger.py checks for what no broker may answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from kbroker.client import (
    AsyncProducer,
    ClientError,
    CommitFailed,
    Consumer,
    ConsumerRecord,
    Deliveries,
    Delivery,
    Producer,
    ProducerFenced,
    RebalanceListener,
    TransactionFailed,
)
from kbroker.model import TopicPartition
from tests.crash.client_ledger import IN, OUT, PARTITIONS, Ledger, value_of

BURST = 25
MOST = 4000
PAUSE_S = 0.03
FLUSH_S = 90.0
POLL_S = 0.2
POLLED = 200
REGRETTED = 0.05
TRANSACTION_MS = 5000
SESSION_MS = 3000
POLL_INTERVAL_MS = 4000

QUICK: dict[str, Any] = {
    "retry_backoff_ms": 20,
    "retry_backoff_max_ms": 200,
    "reconnect_backoff_ms": 20,
    "reconnect_backoff_max_ms": 200,
    "request_timeout_ms": 3000,
    "socket_connection_setup_timeout_ms": 3000,
}
READING: dict[str, Any] = {
    "auto_offset_reset": "earliest",
    "max_poll_interval_ms": POLL_INTERVAL_MS,
    "fetch_max_wait_ms": 100,
    "default_api_timeout_ms": 20_000,
}
CLASSIC: dict[str, Any] = {
    "group_protocol": "classic",
    "session_timeout_ms": SESSION_MS,
    "heartbeat_interval_ms": 300,
}
CONSUMER: dict[str, Any] = {"group_protocol": "consumer"}


class Actor(threading.Thread):
    """Does `work` until `stopping` is set. An exception that comes out of it is noted as wrong."""

    def __init__(self, name: str, address: str, ledger: Ledger):
        super().__init__(name=name, daemon=True)
        self.address = address
        self.ledger = ledger
        self.stopping = threading.Event()

    def run(self) -> None:
        try:
            self.work()
        except BaseException as error:
            self.ledger.wrong(f"{self.name}: {error!r}")

    def work(self) -> None:
        raise NotImplementedError


class Writer(Actor):
    """Sends records to all partitions in turn, in bursts, in one way: send, send_nowait, send_many or asyncio."""

    def __init__(self, name: str, address: str, ledger: Ledger, way: str, options: dict[str, Any]):
        super().__init__(name, address, ledger)
        self.way = way
        self.options = QUICK | {"bootstrap_servers": address, "client_id": name} | options
        self.pausing, self.paused = threading.Event(), threading.Event()
        self.numbers = [0] * PARTITIONS  # sent so far
        self.deliveries: list[tuple[int, int, Delivery]] = []
        self.many: list[Deliveries] = []

    def work(self) -> None:
        if self.way == "asyncio":
            asyncio.run(self.work_with_asyncio())
            return
        with Producer(self.options) as producer:  # type: ignore[arg-type]
            while not self.stopping.wait(PAUSE_S):
                if self.pausing.is_set():
                    producer.flush(FLUSH_S)
                    self.paused.set()
                    continue
                for partition in range(PARTITIONS):
                    self.send(producer, partition, self.burst(partition))
            producer.flush(FLUSH_S)
            self.note()

    @contextlib.contextmanager
    def having_nothing_under_way(self) -> Iterator[None]:
        self.pausing.set()
        try:
            assert self.paused.wait(FLUSH_S), f"{self.name} cannot flush"
            yield
        finally:
            self.pausing.clear()
            self.paused.clear()

    def burst(self, partition: int) -> range:
        """Return the next records; none once there are MOST: a slowly starting broker could not keep up with more."""
        first = self.numbers[partition]
        self.numbers[partition] = min(first + BURST, MOST)
        return range(first, self.numbers[partition])

    def send(self, producer: Producer, partition: int, burst: range) -> None:
        values = [value_of(self.name, number) for number in burst]
        if self.way == "send_many":
            self.many.append(producer.send_many(IN, values, partitions=partition))
            return
        for number, value in zip(burst, values, strict=True):
            if self.way == "send":
                self.deliveries.append((partition, number, producer.send(IN, value, partition=partition)))
            else:
                producer.send_nowait(IN, value, partition=partition)

    async def work_with_asyncio(self) -> None:
        async with AsyncProducer(self.options) as producer:  # type: ignore[arg-type]
            while not self.stopping.is_set():
                if self.pausing.is_set():
                    await producer.flush(FLUSH_S)
                    self.paused.set()
                    await asyncio.sleep(PAUSE_S)
                    continue
                for partition in range(PARTITIONS):
                    for number in self.burst(partition):
                        delivery = await producer.send(IN, value_of(self.name, number), partition=partition)
                        self.deliveries.append((partition, number, delivery))
                await asyncio.sleep(PAUSE_S)
            await producer.flush(FLUSH_S)
        self.note()

    def note(self) -> None:
        """Note what was delivered, at the end.

        A delivery that failed or has no offset is wrong, as every fault has passed.
        """
        self.ledger.sent[self.name] = list(self.numbers)
        for partition, number, delivery in self.deliveries:
            error = delivery.exception(0)
            if error is not None or delivery.offset is None:
                self.ledger.wrong(f"{self.name}: record {number} of partition {partition}: {error!r}")
            else:
                self.ledger.acknowledged[partition, delivery.offset] = value_of(self.name, number)
        for deliveries in self.many:
            if error := deliveries.exception(0):
                self.ledger.wrong(f"{self.name}: {error!r}")


class Member(Actor, RebalanceListener):
    """Reads IN in a group, and commits what it has noted."""

    def __init__(
        self, name: str, address: str, ledger: Ledger, group: str, options: dict[str, Any], *, forgetful: bool = False
    ):
        """With `forgetful`, the member makes the mistake to commit records before it has noted them."""
        super().__init__(name, address, ledger)
        self.group = group
        self.forgetful = forgetful
        self.killed = False
        own = {"bootstrap_servers": address, "client_id": name, "group_id": group}
        self.consumer = Consumer(QUICK | READING | own | options)  # type: ignore[arg-type]
        self.expected: dict[TopicPartition, int] = {}  # the next offset

    def on_assigned(self, partitions: list[TopicPartition]) -> None:
        for partition in partitions:
            self.expected.pop(partition, None)

    def work(self) -> None:
        self.consumer.subscribe(IN, self)
        while not self.stopping.is_set():
            try:
                records = self.consumer.poll(POLL_S, POLLED)
                if self.forgetful and records:
                    self.commit()
                    if self.stopping.wait(0.2):
                        return
                for record in records:
                    self.note(record)
                if records and not self.consumer.options["enable.auto.commit"]:
                    self.commit()
            except ClientError as error:
                if self.killed:
                    return
                if not error.retriable:
                    raise
                self.ledger.passed(error)
        self.consumer.close()

    def note(self, record: ConsumerRecord) -> None:
        partition = TopicPartition(record.topic, record.partition)
        expected = self.expected.get(partition, record.offset)
        if record.offset != expected:
            self.ledger.wrong(f"{self.name} in {self.group}: offset {record.offset} where {expected} comes next")
        self.expected[partition] = record.offset + 1
        self.ledger.note_read(self.group, record.partition, record.offset, record.value)

    def commit(self) -> None:
        try:
            self.consumer.commit(timeout=5)
        except CommitFailed as error:
            self.ledger.passed(error)

    def kill(self) -> None:
        """Stop without leaving the group, as a killed process."""
        self.killed = True
        self.stopping.set()
        self.consumer._thread.stop()


class Regretted(Exception):
    """A mover decides to abort its transaction."""


class Mover(Actor):
    """Moves records of IN to the same partition of OUT, each exactly once: with its offset in one transaction.

    Some transactions it aborts. `hold_s` makes it stand still in the middle of one. `careless`: it commits its offsets
    by itself.
    """

    def __init__(
        self, name: str, address: str, ledger: Ledger, seed: int, protocol: dict[str, Any], *, careless: bool = False
    ):
        super().__init__(name, address, ledger)
        self.protocol = protocol
        self.between = threading.Lock()  # held while a transaction is open
        self.chance = random.Random(seed)
        self.careless = careless
        self.hold_s = 0.0
        self.transactions = 0
        self.lives = 0

    def work(self) -> None:
        while not self.stopping.is_set():
            self.lives += 1
            try:
                self.live()
            except (ProducerFenced, TransactionFailed) as error:
                self.ledger.passed(error)
            except ClientError as error:
                if not error.retriable:
                    raise
                self.ledger.passed(error)

    def live(self) -> None:
        """Work with one producer and one consumer, until the producer cannot go on."""
        own = {"bootstrap_servers": self.address, "client_id": self.name}
        of_group = {"group_id": "movers", "isolation_level": "read_committed", "enable_auto_commit": False}
        of_sender = {"transactional_id": self.name, "transaction_timeout_ms": TRANSACTION_MS, "max_block_ms": 20_000}
        with (
            Producer(QUICK | own | of_sender) as producer,  # type: ignore[arg-type]
            Consumer(QUICK | READING | self.protocol | own | of_group) as consumer,  # type: ignore[arg-type]
        ):
            with self.between:
                producer.init_transactions()
            consumer.subscribe(IN)
            while not self.stopping.is_set():
                records = consumer.poll(POLL_S, POLLED)
                if not records:
                    continue
                try:
                    with self.between:
                        self.move(producer, consumer, records)
                except (ProducerFenced, TransactionFailed):
                    raise
                except Regretted:
                    self.go_back(consumer)
                except ClientError as error:
                    self.ledger.passed(error)
                    self.go_back(consumer)

    def move(self, producer: Producer, consumer: Consumer, records: Any) -> None:
        self.transactions += 1
        name = f"{self.name}.{self.transactions}"
        moved = self.ledger.begin_move(name, len(records))
        with producer.transaction():
            for record in records:
                producer.send(OUT, moved.value_of(record.value), partition=record.partition)
            if self.hold_s:
                time.sleep(self.hold_s)
                self.hold_s = 0.0
            if self.careless:
                consumer.commit(timeout=5)
            else:
                producer.send_offsets_to_transaction(records.next_offsets(), consumer.group_metadata())
            if self.chance.random() < REGRETTED:
                moved.is_aborted = True
                raise Regretted
        moved.is_committed = True

    def go_back(self, consumer: Consumer) -> None:
        """Seek to the offsets that the mover's transactions have committed."""
        assigned = consumer.assignment()
        committed = consumer.committed(assigned)
        for partition in assigned:
            found = committed[partition]
            try:
                consumer.seek(*partition, found.offset if found is not None else 0)
            except ClientError:  # it is no longer assigned
                continue


def end(actors: Iterable[Actor], within_s: float, wrong: Callable[[str], None]) -> None:
    """Stop the actors, and note as wrong those that do not end in time."""
    waiting = list(actors)
    for actor in waiting:
        actor.stopping.set()
    deadline = time.monotonic() + within_s
    for actor in waiting:
        actor.join(max(deadline - time.monotonic(), 0))
        if actor.is_alive():
            wrong(f"{actor.name} did not end within {within_s:g} s")
