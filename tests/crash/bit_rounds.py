"""One flipped bit in a small file of each partition of a stopped broker, over and over (`make bits`: every bit).

Every second partition has the same records and deletions: such partitions share the bits of their files among them, so
that a start tries many.

The broker that starts on it has the default retention, looks for what to delete ten times a second, and is read by our
client, kafka-python and librdkafka. All records come back, the same as before the flip, or the partition is refused and
the broker's log names the file. Nothing is deleted, hidden or invented; no partition keeps another one, or the broker,
from being served. What a bit in a `.log` does is seen without a broker (test_bit_flips.py).
"""

from __future__ import annotations

import argparse
import random
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import confluent_kafka
import kafka
from confluent_kafka import Producer

from kbroker.client import AdminClient, Consumer
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from kbroker.storage import checkpoints, file_names
from kbroker.testing import Broker
from tests.kit.clients.wire import WireClient
from tests.kit.logs.quick_disk import quick_directory

TOPIC = "bits"
MANY = 48
"""The number of partitions whose files get flips."""
FEW = 2
"""The number of partitions for flips in files of the data directory, which have a line for each partition."""
SECONDS = 20.0
SETTINGS = {"log.retention.check.interval.ms": 100, "log.cleaner.backoff.ms": 100}
CONFIGS = {"segment_bytes": 1500, "index_interval_bytes": 200}
IN_ROOT = (
    checkpoints.RECOVERY_POINTS, checkpoints.HIGH_WATERMARKS, checkpoints.CLEANER_OFFSETS,
    checkpoints.LOG_START_OFFSETS,
)  # fmt: skip
DELETED_BELOW = 9
"""DeleteRecords has deleted the records below this offset in every second partition."""

Rows = dict[int, list[tuple[int, bytes]]]
"""Offsets and values by partition."""


@dataclass(frozen=True)
class Flip:
    """A bit of a file, by its path in the data directory."""

    file: str
    position: int
    bit: int

    def __str__(self) -> str:
        return f"bit {self.bit} of byte {self.position} of {self.file}"

    def do(self, root: Path) -> None:
        path = root / self.file
        data = bytearray(path.read_bytes())
        data[self.position] ^= 1 << self.bit
        path.write_bytes(data)


# --- the directory ----------------------------------------------------------------------------------------


def make_data(data: Path, partitions: int, *, clean: bool) -> None:
    """Several leader epochs, segments, transactions of both ends, deleted records."""
    with Broker(directory=data, settings=SETTINGS, log_level="warning") as broker:
        broker.create_topic(TOPIC, partitions, **CONFIGS)
        produce(broker, partitions, "one", 12)
        broker.restart(kill=True)
        produce(broker, partitions, "two", 12)
        for number in range(4):
            transact(broker, partitions, f"t{number}", commit=number % 2 == 0)
        with AdminClient(bootstrap_servers=broker.bootstrap_servers) as admin:
            admin.delete_records({(TOPIC, partition): DELETED_BELOW for partition in range(0, partitions, 2)})
        produce(broker, partitions, "three", 3)
        if clean:
            broker.stop()
            # The context manager expects a running broker at its end.
            kept = data.parent / "kept"
            shutil.copytree(data, kept)
            broker.start()
        else:
            broker.restart()
            produce(broker, partitions, "four", 3)
            broker.kill()
            kept = data.parent / "kept"
            shutil.copytree(data, kept)
            broker.start()
    shutil.rmtree(data)
    kept.rename(data)


def produce(broker: Broker, partitions: int, name: str, count: int, **options: object) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 0, **options})
    for number in range(count):
        for partition in range(partitions):
            producer.produce(TOPIC, f"{name} {number}".encode() * 3, partition=partition)
        assert producer.flush(SECONDS) == 0


def transact(broker: Broker, partitions: int, name: str, *, commit: bool) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 0, "transactional.id": name})
    producer.init_transactions(SECONDS)
    producer.begin_transaction()
    for number in range(4):
        for partition in range(partitions):
            producer.produce(TOPIC, f"{name} {number}".encode() * 3, partition=partition)
        assert producer.flush(SECONDS) == 0
    if commit:
        producer.commit_transaction(SECONDS)
    else:
        producer.abort_transaction(SECONDS)


# --- three clients ----------------------------------------------------------------------------------------


def read_ours(broker: Broker, partitions: list[int], count: int) -> Rows:
    found: Rows = {partition: [] for partition in partitions}
    options = {"isolation_level": "read_committed", "auto_offset_reset": "earliest"}
    with Consumer(bootstrap_servers=broker.bootstrap_servers, **options) as consumer:  # type: ignore[arg-type]
        consumer.assign([(TOPIC, partition) for partition in partitions])
        for taken in until(count, found):
            for record in consumer.poll(taken):
                found[record.partition].append((record.offset, record.value or b""))
    return found


def read_librdkafka(broker: Broker, partitions: list[int], count: int) -> Rows:
    found: Rows = {partition: [] for partition in partitions}
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": broker.bootstrap_servers, "group.id": "bits", "enable.auto.commit": False}
    )
    start = confluent_kafka.OFFSET_BEGINNING
    consumer.assign([confluent_kafka.TopicPartition(TOPIC, partition, start) for partition in partitions])
    for taken in until(count, found):
        for message in consumer.consume(100, taken):
            assert message.error() is None, message.error()
            found[message.partition()].append((message.offset(), message.value()))
    consumer.close()
    return found


def read_kafka_python(broker: Broker, partitions: list[int], count: int) -> Rows:
    found: Rows = {partition: [] for partition in partitions}
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=broker.bootstrap_servers, isolation_level="read_committed", enable_auto_commit=False
    )
    consumer.assign([kafka.TopicPartition(TOPIC, partition) for partition in partitions])
    consumer.seek_to_beginning()
    for taken in until(count, found):
        for records in consumer.poll(int(taken * 1000)).values():
            for record in records:
                found[record.partition].append((record.offset, record.value))
    consumer.close()
    return found


def until(count: int, found: Rows) -> Iterator[float]:
    """How long to poll, until there are so many records, and once more: nothing may come behind them."""
    until_s = time.monotonic() + SECONDS
    while sum(map(len, found.values())) < count and time.monotonic() < until_s:
        yield 0.5
    yield 0.05


CLIENTS: dict[str, Callable[[Broker, list[int], int], Rows]] = {
    "ours": read_ours, "librdkafka": read_librdkafka, "kafka-python": read_kafka_python,
}  # fmt: skip


def offsets_by_time(broker: Broker, partitions: list[int], times: list[int]) -> list[dict[int, int | None]]:
    with Consumer(bootstrap_servers=broker.bootstrap_servers) as consumer:
        asked = [consumer.offsets_for_times({(TOPIC, at): time_ms for at in partitions}) for time_ms in times]  # type: ignore[misc]
    return [{at.partition_id: offset for at, offset in each.items()} for each in asked]


def refused_by(broker: Broker, partitions: int) -> list[int]:
    """Partitions that are not served."""
    wanted = [M.ListOffsetsRequest.ListOffsetsPartition(partition_index=at, timestamp=-1) for at in range(partitions)]
    request = M.ListOffsetsRequest(topics=[M.ListOffsetsRequest.ListOffsetsTopic(name=TOPIC, partitions=wanted)])
    host, _, port = broker.bootstrap_servers.rpartition(":")
    with WireClient(host, int(port)) as client:
        answer = client.call(ApiKey.LIST_OFFSETS, 5, request)
    return [each.partition_index for each in answer.topics[0].partitions if each.error_code]


def may_start_earlier(partition: int, flips: list[Flip]) -> bool:
    """Whether a file was touched that says where the log starts."""
    files = (checkpoints.LOG_START_OFFSETS, f"{TOPIC}-{partition}/{checkpoints.LEADER_EPOCHS}")
    return partition % 2 == 0 and any(flip.file in files for flip in flips)


# --- rounds -----------------------------------------------------------------------------------------------


class Campaign:
    """A directory, and what a broker serves of it that nobody has touched."""

    def __init__(self, home: Path, partitions: int, *, clean: bool):
        self.good = home / "good"
        self.work = home / "work"
        self.partitions = partitions
        make_data(self.good, partitions, clean=clean)
        everything = list(range(partitions))
        with self._served([]) as broker:
            assert refused_by(broker, partitions) == [], broker.log
            # Four of each transaction that was committed; the last three that are plain only after an unclean stop.
            self.count = partitions * ((27 if clean else 30) + 8) - partitions // 2 * DELETED_BELOW
            self.expected = read_ours(broker, everything, self.count)
            assert sum(map(len, self.expected.values())) == self.count
            assert self.expected == read_librdkafka(broker, everything, self.count)
            assert self.expected == read_kafka_python(broker, everything, self.count)
            self.times = [0, int(time.time() * 1000) - 10**7]
            self.by_time = offsets_by_time(broker, everything, self.times)

    @contextmanager
    def _served(self, flips: list[Flip]) -> Iterator[Broker]:
        shutil.copytree(self.good, self.work)
        try:
            for flip in flips:
                flip.do(self.work)
            with Broker(directory=self.work, settings=SETTINGS, log_level="warning") as broker:
                yield broker
        finally:
            shutil.rmtree(self.work)

    def flips_of_partitions(self, chance: random.Random) -> list[list[Flip]]:
        """Every bit of the small files of partitions, in any order, a list for each partition."""
        shared: dict[str, list[Flip]] = {}
        for kind in range(2):
            having: dict[tuple[str, int], list[str]] = {}
            for partition in range(kind, self.partitions, 2):
                folder = f"{TOPIC}-{partition}"
                shared[folder] = []
                for path in (self.good / folder).iterdir():
                    if path.suffix != file_names.LOG:
                        for at in range(path.stat().st_size):
                            having.setdefault((path.name, at), []).append(folder)
            bits = [(*place, bit) for place in sorted(having) for bit in range(8)]
            chance.shuffle(bits)
            for name, at, bit in bits:
                folder = min(having[name, at], key=lambda each: len(shared[each]))
                shared[folder].append(Flip(f"{folder}/{name}", at, bit))
        return list(shared.values())

    def flips_of_root(self, chance: random.Random) -> list[list[Flip]]:
        """Every bit of the checkpoints in the data directory, in any order, a list for each file."""
        found = []
        for name in IN_ROOT:
            path = self.good / name
            size = path.stat().st_size if path.exists() else 0
            flips = [Flip(name, at, bit) for at in range(size) for bit in range(8)]
            chance.shuffle(flips)
            found.append(flips)
        return found

    def round(self, flips: list[Flip]) -> None:
        """A start with these; AssertionError with the flip that did harm."""
        told = ", ".join(map(str, flips))
        with self._served(flips) as broker:
            refused = refused_by(broker, self.partitions)
            for partition in refused:
                where = f"{TOPIC}-{partition}/{checkpoints.PARTITION_METADATA}"
                assert any(flip.file == where for flip in flips), (partition, told, broker.log)
                assert f"{where}: topic_id" in broker.log, (told, broker.log)
            served = [partition for partition in range(self.partitions) if partition not in refused]
            expected = {partition: self.expected[partition] for partition in served}
            count = sum(map(len, expected.values()))
            for name, read in CLIENTS.items():
                found = read(broker, served, count)
                for partition in served:
                    # Where two files contradict each other, what was deleted may be back: the log starts at the less.
                    rows = [row for row in found[partition] if row[0] >= expected[partition][0][0]]
                    assert rows == expected[partition], (name, partition, told, broker.log)
                    assert rows == found[partition] or may_start_earlier(partition, flips), (partition, told)
            for time_ms, known in zip(self.times, self.by_time, strict=True):
                for partition, offset in offsets_by_time(broker, served, [time_ms])[0].items():
                    assert offset is not None, (partition, told)
                    assert offset == known[partition] or may_start_earlier(partition, flips), (partition, told)
            assert not list(self.work.glob(f"{TOPIC}-*/*{file_names.DELETED}")), (told, broker.log)


def flip_all(campaign: Campaign, waiting: list[list[Flip]], rounds: int | None) -> int:
    """How many bits were flipped, one of each list at a start; all of them without `rounds`."""
    flipped = started = 0
    while any(waiting) and started != rounds:
        now = [flips.pop() for flips in waiting if flips]
        campaign.round(now)
        flipped += len(now)
        started += 1
        if started % 100 == 0:
            print(f"{flipped} bits flipped, {sum(map(len, waiting))} to go", flush=True)
    return flipped


def run(*, clean: bool, rounds: int | None, seed: int, many: int = MANY) -> int:
    """How many bits were flipped: of partitions' files among `many` partitions, then of the data directory's."""
    chance = random.Random(seed)
    with quick_directory() as home:
        campaign = Campaign(home, many, clean=clean)
        flipped = flip_all(campaign, campaign.flips_of_partitions(chance), rounds)
    with quick_directory() as home:
        campaign = Campaign(home, FEW, clean=clean)
        return flipped + flip_all(campaign, campaign.flips_of_root(chance), rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, help="starts for each kind of file; without, as many as it takes")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    stops = {"clean": True, "unclean": False}
    with ProcessPoolExecutor(len(stops)) as both:
        runs = {
            stop: both.submit(run, clean=clean, rounds=arguments.rounds, seed=arguments.seed)
            for stop, clean in stops.items()
        }
        for stop, done in runs.items():
            print(f"{done.result()} bits flipped after a stop that was {stop}: nothing was lost", flush=True)


if __name__ == "__main__":
    main()
