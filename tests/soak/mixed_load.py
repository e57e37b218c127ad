"""What the soak does to its broker: one thread for each habit that users of a broker have.

A worker repeats its `step` until it is told to stop. An exception in a step is an error of the soak: nothing that
happens here is a reason for a client to see one.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections import Counter

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from tests.kit.clients.wire import WireClient

LEDGER = "ledger"
LEDGER_PARTITIONS = 6
MOST_ERRORS = 20
QUIET: dict[str, object] = {"log_level": 2}
"""librdkafka prints nothing of its own: what matters comes as an error."""


class Worker(threading.Thread):
    """Calls `step` over and over, with a pause between; keeps the first errors."""

    pause_s = 0.0

    def __init__(self, name: str, address: str):
        super().__init__(name=name, daemon=True)
        self.address = address
        self.stopping = threading.Event()
        self.errors: list[str] = []
        self.steps = 0

    def step(self) -> None:
        raise NotImplementedError

    def finish(self) -> None:
        """Called once, after the last step."""

    def fail(self, what: object) -> None:
        if len(self.errors) < MOST_ERRORS:
            self.errors.append(f"{self.name}: {what}")

    def run(self) -> None:
        while not self.stopping.is_set():
            try:
                self.step()
                self.steps += 1
            except Exception as error:
                self.fail(repr(error))
                self.stopping.wait(1)
            self.stopping.wait(self.pause_s)
        try:
            self.finish()
        except Exception as error:
            self.fail(repr(error))

    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.address, **QUIET})

    def consumer(self, **settings: object) -> Consumer:
        names = {key.replace("_", "."): value for key, value in settings.items()}
        return Consumer({"bootstrap.servers": self.address, "fetch.queue.backoff.ms": 5, **QUIET, **names})


class Writer(Worker):
    """Numbered records into the ledger at a steady rate."""

    turn_s = 0.02

    def __init__(self, name: str, address: str, rate: float, settings: dict[str, object]):
        super().__init__(name, address)
        self.idempotent = bool(settings.get("enable.idempotence"))
        self.producer = Producer({"bootstrap.servers": address, "linger.ms": 5, **QUIET, **settings})
        self.rate = rate
        self.number = self.delivered = 0
        self.started = 0.0
        self.filler = random.Random(name).randbytes(400).hex().encode()

    def step(self) -> None:
        self.started = self.started or time.monotonic()
        due = int((time.monotonic() - self.started) * self.rate)
        for number in range(self.number, due):
            value = b"%s:%d:%s" % (self.name.encode(), number, self.filler[: 50 + number % 700])
            self.producer.produce(LEDGER, value=value, on_delivery=self.on_delivery)
        self.number = max(due, self.number)
        self.producer.poll(0)
        self.stopping.wait(self.turn_s)

    def finish(self) -> None:
        if self.producer.flush(60):
            self.fail("records without an answer after 60 s")

    def on_delivery(self, error: KafkaError | None, _message: Message) -> None:
        if error is None:
            self.delivered += 1
        else:
            self.fail(error)


class Auditor(Worker):
    """Reads the whole ledger as it is written: what is lost and what is doubled."""

    def __init__(self, address: str):
        super().__init__("auditor", address)
        self.reader = self.consumer(group_id="auditor", enable_auto_commit=False, auto_offset_reset="error")
        self.reader.assign([TopicPartition(LEDGER, p, 0) for p in range(LEDGER_PARTITIONS)])
        self.next_offset = [0] * LEDGER_PARTITIONS
        self.last: dict[tuple[bytes, int], int] = {}
        self.counts: Counter[str] = Counter()
        self.out_of_order: Counter[str] = Counter()

    def step(self) -> None:
        for message in self.reader.consume(5000, 0.2):
            if message.error():
                raise KafkaException(message.error())
            partition, offset = message.partition(), message.offset()
            if offset != self.next_offset[partition]:
                self.fail(f"partition {partition}: offset {offset} where {self.next_offset[partition]} should be")
            self.next_offset[partition] = offset + 1
            writer, number, _ = message.value().split(b":", 2)
            name = writer.decode()
            self.counts[name] += 1
            if int(number) <= self.last.get((writer, partition), -1):
                self.out_of_order[name] += 1
            self.last[writer, partition] = int(number)

    def finish(self) -> None:
        self.reader.close()

    def read_to_the_end(self) -> None:
        """After the writers have finished: go on until everything has been read."""
        deadline = time.monotonic() + 60
        ends = log_ends(self.admin())
        while self.next_offset != ends and not self.errors:
            if time.monotonic() > deadline:
                self.fail(f"read to {self.next_offset} of {ends}")
            self.stopping.wait(0.1)

    def balance(self, writers: list[Writer]) -> list[str]:
        """What is wrong with the records of the idempotent writers: they are there once, in order."""
        wrong = []
        for writer in writers:
            found = self.counts[writer.name]
            if writer.idempotent and (found != writer.delivered or self.out_of_order[writer.name]):
                wrong.append(
                    f"{writer.name}: {writer.delivered} acknowledged, {found} in the log, "
                    f"{self.out_of_order[writer.name]} doubled or out of order"
                )
            if found < writer.delivered:
                wrong.append(f"{writer.name}: {writer.delivered - found} acknowledged records are lost")
        return wrong


class Member(Worker):
    """Joins its group, reads and commits for some seconds, leaves, comes back."""

    def __init__(self, name: str, address: str, group: str, assignor: str):
        super().__init__(name, address)
        self.group, self.assignor = group, assignor
        self.chance = random.Random(name)
        self.consumed = 0

    def step(self) -> None:
        reader = self.consumer(
            group_id=self.group,
            partition_assignment_strategy=self.assignor,
            auto_offset_reset="earliest",
            auto_commit_interval_ms=500,
            session_timeout_ms=10000,
            heartbeat_interval_ms=500,
        )
        reader.subscribe([LEDGER])
        until = time.monotonic() + self.chance.uniform(2, 12)
        while time.monotonic() < until and not self.stopping.is_set():
            for message in reader.consume(2000, 0.2):
                if message.error():
                    raise KafkaException(message.error())
                self.consumed += 1
        reader.close()
        self.stopping.wait(self.chance.uniform(0, 1))


class FromTheStart(Worker):
    """Reads what retention has left, from the first offset on, faster than it is written."""

    pause_s = 2.0

    def step(self) -> None:
        reader = self.consumer(group_id="from-the-start", enable_auto_commit=False, auto_offset_reset="earliest")
        reader.assign([TopicPartition(LEDGER, p, OFFSET_BEGINNING) for p in range(LEDGER_PARTITIONS)])
        until = time.monotonic() + 2
        while time.monotonic() < until and not self.stopping.is_set():
            for message in reader.consume(5000, 0.2):
                if message.error():
                    raise KafkaException(message.error())
        reader.close()


class TopicLife(Worker):
    """A topic is made, written, changed, read, cut and deleted."""

    pause_s = 0.3

    def __init__(self, address: str):
        super().__init__("topic-life", address)
        self.client = self.admin()

    def step(self) -> None:
        name = f"passing-{self.steps}"
        self.client.create_topics([NewTopic(name, 3, 1, config={"segment.bytes": "100000"})])[name].result(30)
        producer = Producer({"bootstrap.servers": self.address, "compression.type": "lz4", **QUIET})
        for number in range(2000):
            producer.produce(name, value=b"%d" % number * 30, partition=number % 3)
        if producer.flush(30):
            self.fail(f"{name}: records without an answer")
        resource = ConfigResource(
            ResourceType.TOPIC,
            name,
            incremental_configs=[ConfigEntry("retention.ms", "60000", incremental_operation=AlterConfigOpType.SET)],
        )
        next(iter(self.client.incremental_alter_configs([resource]).values())).result(30)
        self.client.create_partitions([NewPartitions(name, 5)])[name].result(30)
        first = TopicPartition(name, 0, 100)
        if self.client.delete_records([first])[first].result(30).low_watermark != 100:
            self.fail(f"{name}: records are not deleted")
        reader = self.consumer(group_id="passing", enable_auto_commit=False)
        reader.assign([first])
        read = 0
        deadline = time.monotonic() + 30
        while read < 566 and time.monotonic() < deadline:
            read += len(reader.consume(1000, 0.2))
        if read != 567:
            self.fail(f"{name}: {read} of 567 records were read")
        reader.close()
        self.client.delete_topics([name])[name].result(30)


class Administrator(Worker):
    """Looks at everything, as consoles and monitors do."""

    pause_s = 0.5

    def __init__(self, address: str):
        super().__init__("administrator", address)
        self.client = self.admin()

    def step(self) -> None:
        self.client.list_topics(timeout=30)
        for resource in (ConfigResource(ResourceType.TOPIC, LEDGER), ConfigResource(ResourceType.BROKER, "1")):
            next(iter(self.client.describe_configs([resource]).values())).result(30)
        groups = [group.group_id for group in self.client.list_consumer_groups().result(30).valid]
        for described in self.client.describe_consumer_groups(groups).values() if groups else ():
            described.result(30)
        log_ends(self.client)
        self.client.describe_cluster().result(30)


class Passers(Worker):
    """Connections that come and go: some say something, some only half of it, some nothing."""

    pause_s = 0.2

    def step(self) -> None:
        host, port = self.address.rsplit(":", 1)
        with contextlib.ExitStack() as stack:
            clients = [stack.enter_context(WireClient(host, int(port))) for _ in range(12)]
            for number, client in enumerate(clients):
                if number % 3 == 0:
                    client.call(
                        ApiKey.API_VERSIONS,
                        3,
                        M.ApiVersionsRequest(client_software_name="soak", client_software_version="1"),
                    )
                elif number % 3 == 1:
                    client.send_raw(b"\x00\x00\x01\x00\x00\x03")


def log_ends(client: AdminClient) -> list[int]:
    """The end of each partition of the ledger."""
    asked = {TopicPartition(LEDGER, partition): OffsetSpec.latest() for partition in range(LEDGER_PARTITIONS)}
    found = client.list_offsets(asked)
    return [found[place].result(30).offset for place in asked]


def writers(address: str, rate: float) -> list[Writer]:
    """Producers with every codec, idempotent and plain."""
    idempotent: dict[str, object] = {"enable.idempotence": True, "acks": -1}
    kinds: dict[str, dict[str, object]] = {
        "idempotent-plain": {**idempotent, "linger.ms": 1},
        "idempotent-gzip": {**idempotent, "compression.type": "gzip"},
        "idempotent-snappy": {**idempotent, "compression.type": "snappy"},
        "idempotent-lz4": {**idempotent, "compression.type": "lz4"},
        "idempotent-zstd": {**idempotent, "compression.type": "zstd", "linger.ms": 20},
        "plain": {"acks": 1},
        "plain-zstd": {"acks": 1, "compression.type": "zstd"},
        "one-at-a-time": {"acks": 1, "linger.ms": 0, "batch.num.messages": 1},
    }
    return [Writer(name, address, rate, settings) for name, settings in kinds.items()]


def others(address: str) -> list[Worker]:
    """Everybody who neither writes the ledger nor audits it."""
    members = [
        Member(f"{group}-member-{number}", address, group, assignor)
        for group, assignor in (("eager", "range"), ("sticky", "cooperative-sticky"))
        for number in range(3)
    ]
    return [
        *members,
        FromTheStart("from-the-start", address),
        TopicLife(address),
        Administrator(address),
        Passers("passers", address),
    ]
