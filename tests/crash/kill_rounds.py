"""kill -9 under load, over and over on the same data directory (`make crash`; a few rounds in `make test`).

Real producers, plain and idempotent, and a real group go on while the broker is killed and started again, now and then
stopped. At the end every record that was acknowledged is where its acknowledgement said, whether it had been flushed or
not, unless retention took it or a newer record of its key did; offsets have no hole but in the compacted topic; the
idempotent producers' records are there exactly once and in order; the group goes on from where it had committed; no
producer id was given out twice.
"""

from __future__ import annotations

import argparse
import random
import re
import threading
import time
from array import array
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from tests.kit.brokers.process import BrokerProcess
from tests.kit.clients.wire import WireClient

PARTITIONS = 3
TOPICS: dict[str, dict[str, str]] = {
    "crash": {},
    "passing": {"retention.bytes": "1000000", "segment.bytes": "100000"},
    "table": {"cleanup.policy": "compact", "segment.bytes": "100000", "min.cleanable.dirty.ratio": "0.01"},
}
BROKER_SETTINGS: dict[str, object] = {"log.cleaner.backoff.ms": 200, "log.retention.check.interval.ms": 500}
KEYS = 100
"""The number of keys in the compacted topic."""
PRODUCER_ID_BLOCK = 1000
"""Producer ids that a broker takes from its store at once: asking for as many makes it take another block."""
IDEMPOTENT: dict[str, object] = {"acks": -1, "enable.idempotence": True}
MOST_IN_FLIGHT = 5000
STOPPED_SHARE = 0.1


def is_compacted(topic: str) -> bool:
    return "cleanup.policy" in TOPICS[topic]


def value_of(name: str, number: int) -> bytes:
    """Return the value that a writer sends as record `number`."""
    return b"%s:%d:" % (name.encode(), number) + b"x" * (number % 500)


@dataclass
class Acknowledged:
    """The acknowledged records of one writer in one partition, in the order of the answers."""

    offsets: array[int] = field(default_factory=lambda: array("q"))
    numbers: array[int] = field(default_factory=lambda: array("q"))


@dataclass
class Writer:
    """A producer in its own thread, and what it was told."""

    name: str
    topic: str
    settings: dict[str, object]
    bears_unknown: bool = False
    """Whether the topic may be called unknown for a moment: its records are refused then, and those that wait fail."""
    acknowledged: dict[int, Acknowledged] = field(default_factory=dict)
    failures: Counter[str] = field(default_factory=Counter)
    """How many records failed, by what was said of them."""

    def run(self, address: str, stop: threading.Event) -> None:
        producer = Producer(
            {
                "bootstrap.servers": address,
                "message.timeout.ms": 120000,
                "reconnect.backoff.max.ms": 200,
                "socket.timeout.ms": 10000,
                "error_cb": self.told,
                **self.settings,
            }
        )
        is_keyed = is_compacted(self.topic)
        number = 0
        while not stop.is_set():
            for _ in range(50):
                try:
                    producer.produce(
                        self.topic,
                        key=b"%d" % (number % KEYS) if is_keyed else None,
                        value=value_of(self.name, number),
                        on_delivery=self.delivered,
                    )
                except KafkaException as error:
                    if not self._is_borne(error.args[0]):
                        raise
                    producer.poll(0.1)
                number += 1
            producer.poll(0.01)
            while len(producer) > MOST_IN_FLIGHT and not stop.is_set():
                producer.poll(0.05)
        producer.flush(60)

    def told(self, error: KafkaError) -> None:
        if error.fatal():
            self.failures[str(error)] += 1

    def delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            if not self._is_borne(error):
                self.failures[str(error)] += 1
            return
        of_partition = self.acknowledged.setdefault(message.partition(), Acknowledged())
        of_partition.offsets.append(message.offset())
        of_partition.numbers.append(int(message.value().split(b":")[1]))

    def _is_borne(self, error: KafkaError) -> bool:
        # librdkafka forgets the partitions of such a topic, and says _DESTROY of what waits for them.
        return self.bears_unknown and error.code() in (KafkaError._UNKNOWN_TOPIC, KafkaError._DESTROY)

    def newest_acknowledged(self, partition: int) -> dict[int, tuple[int, int]]:
        """Return the newest acknowledged record of each key: number and offset."""
        told = self.acknowledged.get(partition, Acknowledged())
        newest: dict[int, tuple[int, int]] = {}
        for offset, number in zip(told.offsets, told.numbers, strict=True):
            newest[number % KEYS] = max(newest.get(number % KEYS, (-1, -1)), (number, offset))
        return newest

    @property
    def count(self) -> int:
        return sum(len(each.offsets) for each in self.acknowledged.values())


@dataclass
class Follower:
    """A group with one member that reads a topic and commits what it has read."""

    committed: dict[int, int] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)

    def run(self, address: str, stop: threading.Event) -> None:
        reader = Consumer(
            {
                "bootstrap.servers": address,
                "group.id": "followers",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "reconnect.backoff.max.ms": 200,
                "session.timeout.ms": 6000,
                "fetch.message.max.bytes": 100000,
            }
        )
        reader.subscribe(["crash"])
        while not stop.is_set():
            messages = [each for each in reader.consume(500, 0.2) if not each.error()]
            if not messages:
                continue
            try:
                answers = reader.commit(message=None, asynchronous=False)
            except KafkaException:
                continue  # the broker is away, or the group begins anew: what it had committed holds
            for answer in answers or ():
                if answer.error is None and answer.offset >= 0:
                    self.committed[answer.partition] = answer.offset
            stop.wait(0.05)
        reader.close()

    def check(self, address: str) -> None:
        reader = Consumer({"bootstrap.servers": address, "group.id": "followers"})
        places = [TopicPartition("crash", partition) for partition in range(PARTITIONS)]
        for found in reader.committed(places, timeout=30):
            told = self.committed.get(found.partition, -1)
            _, high = reader.get_watermark_offsets(TopicPartition("crash", found.partition), timeout=30)
            assert told <= max(found.offset, -1) <= high, (
                f"partition {found.partition}: committed {told}, found {found.offset} of {high}"
            )
        reader.close()


def beginnings(topic: str) -> list[TopicPartition]:
    """Return the places at which all partitions of a topic begin."""
    return [TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in range(PARTITIONS)]


def read_back(address: str, topic: str, partition: int) -> Iterator[Message]:
    """Yield every record of a partition. AssertionError if offsets go back, or have a hole where none may be."""
    reader = Consumer(
        {"bootstrap.servers": address, "group.id": "check", "enable.auto.commit": False, "fetch.queue.backoff.ms": 5}
    )
    low, high = reader.get_watermark_offsets(TopicPartition(topic, partition), timeout=30)
    reader.assign([TopicPartition(topic, partition, low)])
    has_holes = is_compacted(topic)
    expected = low
    heard = time.monotonic()
    while expected < high:
        messages = reader.consume(min(10000, high - expected), 0.2)
        heard = time.monotonic() if messages else heard
        assert time.monotonic() - heard < 30, f"{topic}-{partition}: nothing at {expected}, where it ends at {high}"
        for message in messages:
            if message.error():
                raise KafkaException(message.error())
            offset = message.offset()
            assert offset == expected or (has_holes and offset > expected), (
                f"{topic}-{partition}: offset {offset} where {expected} should be"
            )
            expected = offset + 1
            yield message
    reader.close()


def check(writers: list[Writer], address: str, topic: str, partition: int) -> None:
    """Check that acknowledged records are there, and those of an idempotent producer once and in order."""
    by_name = {writer.name: writer for writer in writers if writer.topic == topic}
    expected: dict[int, tuple[str, int]] = {}
    if is_compacted(topic):
        for writer in by_name.values():
            for number, offset in writer.newest_acknowledged(partition).values():
                expected[offset] = writer.name, number
    else:
        for writer in by_name.values():
            told = writer.acknowledged.get(partition, Acknowledged())
            for offset, number in zip(told.offsets, told.numbers, strict=True):
                other = expected.setdefault(offset, (writer.name, number))
                assert other == (writer.name, number), (
                    f"{topic}-{partition}, offset {offset}: acknowledged to {other}, and to {(writer.name, number)}"
                )
    newest: dict[tuple[str, int], int] = {}
    last: dict[str, int] = {}
    first_offset = None
    for message in read_back(address, topic, partition):
        offset, value = message.offset(), message.value()
        first_offset = offset if first_offset is None else first_offset
        name, number = value.split(b":")[0].decode(), int(value.split(b":")[1])
        where = f"{topic}-{partition}, offset {offset}"
        assert value == value_of(name, number), f"{where}: {value!r:.60} was never sent"
        told_of = expected.pop(offset, (name, number))
        assert told_of == (name, number), f"{where}: {told_of} was acknowledged, found {(name, number)}"
        newest[name, number % KEYS] = number
        if by_name[name].settings.get("enable.idempotence"):
            assert number > last.get(name, -1), f"{where}: {name} sent {number} once, before {last[name]}"
            last[name] = number
    for at, (name, number) in expected.items():
        is_deleted = "retention.bytes" in TOPICS[topic] and (first_offset is None or at < first_offset)
        is_superseded = is_compacted(topic) and newest.get((name, number % KEYS), -1) > number
        assert is_deleted or is_superseded, f"{topic}-{partition}: {(name, number)}, acknowledged at {at}, is lost"


def new_producer_ids(port: int, count: int, host: str = "127.0.0.1") -> list[int]:
    """Return the producer ids that InitProducerId gives to `count` producers."""
    with WireClient(host, port) as client:
        answers = [
            client.call(ApiKey.INIT_PRODUCER_ID, 4, M.InitProducerIdRequest(transactional_id=None))
            for _ in range(count)
        ]
    assert all(answer.error_code == 0 for answer in answers), f"InitProducerId: error {answers[-1].error_code}"
    return [answer.producer_id for answer in answers]


def check_producer_ids(given: list[int]) -> None:
    again = sorted(producer_id for producer_id, count in Counter(given).items() if count > 1)
    assert not again, f"{len(again)} producer ids were given out twice: {again[:10]}"


def run(rounds: int, seed: int, overrides: dict[str, object] | None = None) -> int:
    """Run rounds, and return the number of acknowledged records."""
    chance = random.Random(seed)
    with BrokerProcess(BROKER_SETTINGS | (overrides or {})) as broker:
        admin = AdminClient({"bootstrap.servers": broker.address})
        for made in admin.create_topics(
            [NewTopic(name, PARTITIONS, 1, config=own) for name, own in TOPICS.items()]
        ).values():
            made.result(30)
        writers = [
            Writer("plain", "crash", {"acks": 1, "linger.ms": 1}),
            Writer("idempotent", "crash", IDEMPOTENT | {"linger.ms": 2}),
            Writer("zstd", "crash", IDEMPOTENT | {"compression.type": "zstd", "linger.ms": 20}),
            Writer("passing", "passing", IDEMPOTENT | {"compression.type": "lz4", "linger.ms": 5}),
            Writer("table", "table", IDEMPOTENT | {"linger.ms": 5}),
        ]
        follower = Follower()
        stop = threading.Event()
        threads = [
            threading.Thread(target=each.run, args=(broker.address, stop), daemon=True) for each in (*writers, follower)
        ]
        for thread in threads:
            thread.start()
        producer_ids = new_producer_ids(broker.port, 3)
        for _ in range(rounds):
            time.sleep(chance.uniform(0.1, 1.0))
            producer_ids += new_producer_ids(broker.port, chance.choice((1, 2, PRODUCER_ID_BLOCK)))
            if chance.random() < STOPPED_SHARE:
                broker.stop()
            else:
                broker.kill()
            broker.start()
            producer_ids += new_producer_ids(broker.port, 2)
        check_producer_ids(producer_ids)
        deadline = time.monotonic() + 30
        while not re.search(r"table-\d: cleaned offsets", broker.output):
            assert time.monotonic() < deadline, "nothing was compacted"
            time.sleep(0.1)
        time.sleep(1)  # retention and the group come round once more
        stop.set()
        for thread in threads:
            thread.join(90)
            assert not thread.is_alive(), "a client hangs"
        assert all(writer.count for writer in writers), "a producer never got through"
        assert follower.committed, "the group has committed nothing"
        follower.check(broker.address)
        for topic in TOPICS:
            for partition in range(PARTITIONS):
                check(writers, broker.address, topic, partition)
        return sum(writer.count for writer in writers)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    arguments = parser.parse_args()
    print(f"{arguments.rounds} rounds, seed {arguments.seed}", flush=True)
    began = time.monotonic()
    count = run(arguments.rounds, arguments.seed)
    print(f"{count} acknowledged records in {time.monotonic() - began:.0f} s, all there")
