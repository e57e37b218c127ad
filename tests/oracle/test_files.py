"""The files that kbroker leaves after a clean stop are those of Apache Kafka 3.9.1 in ZooKeeper mode, byte for byte.

The same batches go to both brokers; then names and bytes of all files are equal, except for ids and dates
(`known_by_name`) and for the differences in `LISTED`.
"""

from __future__ import annotations

import random
import re
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import confluent_kafka
import pytest

from kbroker.client import Producer
from kbroker.inspection.directory_check import Verifier
from kbroker.protocol import messages as M
from kbroker.protocol.records import Record, encode_batch, read_batches
from kbroker.storage.producer_state import decode_snapshot
from tests.kit.brokers.process import BrokerProcess
from tests.kit.kafka import maven
from tests.kit.kafka.dump_tool import printed_without_complaint
from tests.kit.kafka.zookeeper import KafkaOnZooKeeper
from tests.oracle.history import TIMEOUT_S, History
from tests.oracle.listed import Listed, assert_same_but_for
from tests.oracle.other_deviations import OTHERS
from tests.oracle.scenarios.old_messages import flat, wrapped
from tests.oracle.scenarios.requests import fetch, fetch_partition, offsets_of, produce, records

SETTINGS: dict[str, object] = {
    "broker.id": 0,
    "log.segment.bytes": 20_000,
    "log.index.interval.bytes": 300,
    "log.retention.ms": -1,
    "log.retention.check.interval.ms": 200,
    "log.segment.delete.delay.ms": 100,
}
KAFKA_SETTINGS: dict[str, object] = {
    **SETTINGS,
    "log.initial.task.delay.ms": 100,
}

NOW = int(time.time()) * 1000
"""A timestamp of records: the same for both brokers, and so new that producers do not expire at a restart."""

Files = Mapping[str, bytes]


ENDS = ("stopped", "restarted", "killed")
"""The ways in which the brokers end: stopped; stopped, started, used and stopped; killed, started and stopped."""


def only_in_order(kafka: bytes | None, ours: bytes | None) -> bool:
    """Return whether both files have the same lines, in another order."""
    return kafka is not None and ours is not None and sorted(kafka.split(b"\n")) == sorted(ours.split(b"\n"))


def more_lines(kafka: bytes | None, ours: bytes | None) -> bool:
    """Return whether our file has all of Kafka's lines, and others."""
    if kafka is None or ours is None:
        return False
    return set(kafka.splitlines()[2:]) < set(ours.splitlines()[2:])


def more_entries(kafka: bytes | None, ours: bytes | None) -> bool:
    """Return whether our index, of either kind, has all of Kafka's entries, and others."""
    if kafka is None or ours is None:
        return False

    def entries(data: bytes, size: int) -> set[bytes]:
        return {data[at : at + size] for at in range(0, len(data), size)}

    return any(entries(kafka, size) < entries(ours, size) for size in (8, 12))


def newer_epoch(kafka: bytes | None, ours: bytes | None) -> bool:
    """Return whether our leader epochs have one more entry at the end, or that one only, as Kafka's has no records."""
    if kafka is None or ours is None:
        return False
    return ours.splitlines()[2:-1] in ([], kafka.splitlines()[2:])


def larger(kafka: bytes | None, ours: bytes | None) -> bool:
    return kafka is not None and ours is not None and len(kafka) < len(ours)


def older_batches_behind(kafka: bytes | None, ours: bytes | None) -> bool:
    """Return whether our snapshot is Kafka's with more bytes at the end, and so another CRC."""
    if kafka is None or ours is None or len(kafka) >= len(ours):
        return False
    decode_snapshot(ours)
    return (kafka[:2], kafka[6:]) == (ours[:2], ours[6 : len(kafka)])


def only_here(kafka: bytes | None, ours: bytes | None) -> bool:
    return kafka is None and ours is not None


LISTED = (
    Listed("recovery-point-offset-checkpoint", only_in_order, "Files: order of lines"),
    Listed("replication-offset-checkpoint", only_in_order, "Files: order of lines"),
    Listed("log-start-offset-checkpoint", more_lines, "Files: log-start-offset-checkpoint"),
    Listed(
        "emptied-0/00000000000000000040.snapshot", only_here, "Files: snapshots of producers", ("stopped", "killed")
    ),
    Listed("emptied-0/00000000000000000040.snapshot", larger, "Files: snapshots of producers", ("restarted",)),
    Listed(
        "bounded-0/00000000000000000176.snapshot", only_here, "Files: snapshots of producers", ("restarted", "killed")
    ),
    Listed(
        "trimmed-0/00000000000000000176.snapshot", only_here, "Files: snapshots of producers", ("restarted", "killed")
    ),
    Listed("*.snapshot", older_batches_behind, "Files: older batches in snapshots of producers"),
    Listed("random-*index", more_entries, "Files: entries of indexes", ("restarted",)),
    Listed("*/leader-epoch-checkpoint", newer_epoch, "Files: leader epochs after a crash", ("killed",)),
    Listed(".lock", only_here, "Files: .lock and coordination.sqlite"),
    Listed("coordination.sqlite", only_here, "Files: .lock and coordination.sqlite"),
    Listed("coordination.sqlite-reserve", only_here, "Files: .lock and coordination.sqlite"),
)


def write_everything(port: int) -> None:
    """Fill partitions of many kinds; every byte of their batches is determined here."""
    with History(port) as h:
        h.create("never-used", 2)
        h.create("orders", 2)
        for at in range(150):
            # Every codec, sizes of all kinds, and times that go back now and then.
            at_ms = NOW + at * 10 - (500 if at % 11 == 0 else 0)
            h.produce("orders", at % 3 % 2, records(at % 7 + 1, 20 + at * 3 % 200, at=at_ms, codec=at % 5))
        h.create("times-go-back")
        for at in range(100):
            # The largest time is anywhere in its batch, perhaps twice.
            times = [NOW + at * 5 + n * 7 % 11 // 2 * 2 for n in range(at % 9 + 1)]
            made = [(time_ms, b"k", b"v" * (at * 3 % 100)) for time_ms in times]
            h.produce("times-go-back", 0, encode_batch(made, codec=at % 5))
        h.create("large", 1, configs={"index.interval.bytes": "4096", "segment.bytes": "1000000"})
        for at in range(20):
            h.produce("large", 0, records(3, 30_000 if at % 4 else 100, at=NOW + at))
        h.create("rolled-by-time", 1, configs={"segment.ms": "1000"})
        for at in range(30):
            h.produce("rolled-by-time", 0, records(2, at=NOW + at * 300))
        h.create("rolled-by-index", 1, configs={"segment.index.bytes": "100", "index.interval.bytes": "0"})
        for at in range(30):
            h.produce("rolled-by-index", 0, records(2, at=NOW + at))
        h.create("idempotent")
        for at in range(120):
            one = at % 3
            fields = {"producer_id": 100 + one, "producer_epoch": one, "base_sequence": at // 3 * 3}
            h.produce("idempotent", 0, records(3, 200, at=NOW + at, **fields))
        h.create("trimmed")
        for at in range(100):
            h.produce("trimmed", 0, records(4, 200, at=NOW + at))
        delete_records(h, "trimmed", 250)
        h.create("emptied")
        for at in range(10):
            h.produce("emptied", 0, records(4, 200, at=NOW + at, producer_id=7, producer_epoch=0, base_sequence=4 * at))
        delete_records(h, "emptied", -1)
        h.create("bounded", 1, configs={"retention.bytes": "50000"})
        for at in range(100):
            h.produce("bounded", 0, records(4, 200, at=NOW + at))
        h.create("gone", 2)
        h.produce("gone", 0, records())
        h.delete("gone")
        write_messages(h)
        h.create("later-more", 1)
        h.grow("later-more", 2)
        h.produce("later-more", 1, records())


def write_messages(h: History) -> None:
    """Write messages of magic 0 and 1, flat and compressed; the topic has no codec, so no byte depends on a library."""
    h.create("messages", 1, configs={"message.timestamp.type": "CreateTime"})
    h.create("inflated", 1, configs={"compression.type": "uncompressed"})
    for at in range(60):
        magic = at % 2
        sent = flat(at % 5 + 1, magic, size=at * 7 % 300 + 8)
        for topic, made in (("messages", sent), ("inflated", wrapped(sent, at % 3 + 1, magic, at % 5))):
            h.do(
                produce(topic, made),
                lambda answer: [answer.responses[0].partition_responses[0].error_code],
                version=at % 3,
            )


def write_at_random(port: int, part: int) -> None:
    """Write random batches to topics with various options; the next part goes on with them."""
    with History(port) as h:
        for seed in range(8):
            topic = f"random-{seed}"
            randomness = random.Random(seed)
            choose = randomness.choice
            configs = {
                "segment.bytes": choose(["5000", "20000", "100000"]),
                "segment.ms": choose(["500", "5000", "1000000"]),
                "segment.index.bytes": choose(["60", "200", "100000"]),
                "index.interval.bytes": choose(["0", "1", "100", "300", "4096"]),
                "preallocate": choose(["true", "false"]),
            }
            if part == 0:
                h.create(topic, 1, configs=configs)
            for batch in random_batches(random.Random(f"{seed} {part}"), first_producer=100 * part):
                h.produce(topic, 0, batch)


def random_batches(randomness: random.Random, first_producer: int) -> Iterator[bytes]:
    choose = randomness.choice
    at_ms = NOW + first_producer * 100
    known: dict[int, tuple[int, int]] = {}
    for _ in range(50):
        at_ms += choose([0, 1, 50, -200, 700])
        count = randomness.randint(1, 8)
        fields = {"at": at_ms, "codec": choose([0, 0, 0, 1, 2, 3, 4])}
        if randomness.random() < 0.5:
            producer_id = first_producer + randomness.randint(1, 3)
            epoch, sequence = known.get(producer_id, (0, 0))
            if randomness.random() < 0.1:
                epoch, sequence = epoch + 1, 0
            known[producer_id] = epoch, sequence + count
            fields |= {"producer_id": producer_id, "producer_epoch": epoch, "base_sequence": sequence}
        elif randomness.random() < 0.1:
            count, fields["at"] = 1, -1
        yield records(count, choose([5, 100, 500]), **fields)


def delete_records(h: History, topic: str, offset: int) -> None:
    one = M.DeleteRecordsRequest.DeleteRecordsPartition(partition_index=0, offset=offset)
    entry = M.DeleteRecordsRequest.DeleteRecordsTopic(name=topic, partitions=[one])
    h.do(
        M.DeleteRecordsRequest(topics=[entry], timeout_ms=30000),
        lambda answer: [answer.topics[0].partitions[0].error_code],
    )


def await_deletions(data: Path) -> None:
    """Wait until retention and deletions are carried out."""
    deadline = time.monotonic() + TIMEOUT_S
    first = [data / f"{name}-0" / "00000000000000000000.log" for name in ("bounded", "trimmed")]
    while any(path.exists() for path in first) or [*data.glob("*-delete"), *data.glob("*/*.deleted")]:
        assert time.monotonic() < deadline, sorted(map(str, data.rglob("*")))
        time.sleep(0.05)


def files_in(data: Path) -> dict[str, bytes]:
    return {str(path.relative_to(data)): path.read_bytes() for path in sorted(data.rglob("*")) if path.is_file()}


def known_by_name(files: Files) -> dict[str, bytes]:
    """Return the files with names in the place of random ids and dates. A value without the form of one stays."""
    patterns = {
        rb"^topic_id: [\w-]{22}$": b"topic_id: <id>",
        rb"^cluster\.id=[\w-]{22}$": b"cluster.id=<id>",
        rb"^#\w{3} \w{3} \d\d \d\d:\d\d:\d\d UTC \d{4}$": b"#<date>",
    }
    found = {}
    for path, data in files.items():
        if Path(path).name in ("partition.metadata", "meta.properties"):
            for pattern, name in patterns.items():
                data = re.sub(pattern, name, data, flags=re.MULTILINE)
        found[path] = data
    return found


@dataclass
class Both:
    """The two brokers, stopped after the same history."""

    end: str
    kafka: KafkaOnZooKeeper
    kbroker: BrokerProcess


@pytest.fixture(scope="module", params=[ENDS[0], *(pytest.param(end, marks=pytest.mark.slow) for end in ENDS[1:])])
def both(request: pytest.FixtureRequest) -> Iterator[Both]:
    try:
        KafkaOnZooKeeper.classpath()
    except maven.MavenFailed as missing:
        pytest.skip(str(missing))
    # Short where its end is waited for; else a busy machine shall not end it.
    session = {"zookeeper.session.timeout.ms": 6000 if request.param == "killed" else 60_000}
    with KafkaOnZooKeeper({**KAFKA_SETTINGS, **session}) as kafka, BrokerProcess(SETTINGS) as kbroker:
        for broker in (kafka, kbroker):
            write_everything(broker.port)
            write_at_random(broker.port, 0)
            await_deletions(broker.data)
        if request.param == "restarted":
            for broker in (kafka, kbroker):
                broker.restart()
                await_leaders_of(broker)
                write_at_random(broker.port, 1)
        elif request.param == "killed":
            for broker in (kafka, kbroker):
                broker.kill()
            kafka.await_end_of_session()
            for broker in (kafka, kbroker):
                broker.start()
                await_leaders_of(broker)
        for broker in (kafka, kbroker):
            broker.stop()
        yield Both(request.param, kafka, kbroker)


def await_leaders_of(broker: BrokerProcess) -> None:
    """Wait until all partitions are served, and therefore recovered."""
    with History(broker.port) as h:
        served(h, [path.name for path in broker.data.iterdir() if path.is_dir()])


def test_files_are_those_that_kafka_leaves(both: Both) -> None:
    kafka, ours = (known_by_name(files_in(broker.data)) for broker in (both.kafka, both.kbroker))
    assert_same_but_for([one for one in LISTED if not one.ends or both.end in one.ends], kafka, ours)


CODECS = ("none", "lz4", "gzip")
TIMES = [NOW + at * 3 - at * 7919 % 101 for at in range(1500)]
"""Timestamps of records: the newest record of a batch is seldom its last one."""


def send_with_librdkafka(address: str, topic: str, codec: str) -> None:
    settings = {"bootstrap.servers": address, "linger.ms": 1000, "batch.num.messages": 40, "compression.type": codec}
    producer = confluent_kafka.Producer(settings)
    for at, time_ms in enumerate(TIMES):
        producer.produce(topic, b"%d" % at, timestamp=time_ms)
    assert producer.flush(TIMEOUT_S) == 0


def send_with_our_client(address: str, topic: str, codec: str) -> None:
    with Producer(bootstrap_servers=address, linger_ms=1000, batch_size=600, compression_type=codec) as producer:
        for at, time_ms in enumerate(TIMES):
            producer.send(topic, b"%d" % at, timestamp=time_ms)


def test_kafkas_dump_tool_has_nothing_against_batches_of_many_times() -> None:
    try:
        KafkaOnZooKeeper.classpath()
    except maven.MavenFailed as missing:
        pytest.skip(str(missing))
    with BrokerProcess({**SETTINGS, "log.index.interval.bytes": 200}) as broker:
        with History(broker.port) as h:
            for kind in ("CreateTime", "LogAppendTime"):
                for codec in CODECS:
                    for send in (send_with_librdkafka, send_with_our_client):
                        topic = f"{send.__name__}-{codec}-{kind}"
                        h.create(topic, 1, configs={"message.timestamp.type": kind})
                        send(broker.address, topic, codec)
        broker.stop()
        batches = [batch for path in broker.data.glob("*/*.log") for batch in read_batches(path.read_bytes())]
        assert sum(len({record.timestamp for record in batch.records()}) > 1 for batch in batches) > 100
        indexes = [*broker.data.glob("*/*.index"), *broker.data.glob("*/*.timeindex")]
        assert sum(path.stat().st_size for path in indexes if path.suffix == ".timeindex") > 12 * 200
        files = [*indexes, *broker.data.glob("*/*.log")]
        assert printed_without_complaint(files, "--deep-iteration").count("| offset: ") == 12 * len(TIMES)
        printed_without_complaint(files, "--verify-index-only")
        printed = printed_without_complaint(indexes, "--index-sanity-check")
        assert printed.count("passed sanity check") == len(indexes)


def test_verify_log_finds_nothing_wrong(both: Both) -> None:
    for broker in (both.kafka, both.kbroker):
        assert list(Verifier().check(broker.data)) == []


# --- one broker over the files of the other -----------------------------------------------------------------------


Contents = dict[str, list[Record]]
"""The records of each partition, by `topic-number`."""


def in_files(data: Path) -> Contents:
    """Return the records in the files that a consumer may read."""
    lines = (data / "log-start-offset-checkpoint").read_text().splitlines()[2:]
    starts = {f"{topic}-{partition_id}": int(offset) for topic, partition_id, offset in map(str.split, lines)}
    return {
        path.name: [
            record
            for segment in sorted(path.glob("*.log"))
            for batch in read_batches(segment.read_bytes())
            for record in batch.records()
            if record.offset >= starts.get(path.name, 0)
        ]
        for path in data.iterdir()
        if path.is_dir()
    }


def served(h: History, names: Iterable[str]) -> Contents:
    """Return what a consumer reads from these partitions, from the first offset on."""
    split = ((name, *name.rsplit("-", 1)) for name in names)
    return {name: read_from_start(h, topic, int(partition_id)) for name, topic, partition_id in split}


def read_from_start(h: History, topic: str, partition_id: int) -> list[Record]:
    h.await_leaders(topic)
    asked = M.ListOffsetsRequest(replica_id=-1, topics=[offsets_of(topic, [(partition_id, -2)])])
    answer = h.do(asked, lambda answer: [answer.topics[0].partitions[0].error_code], version=5)
    start = offset = answer.topics[0].partitions[0].offset
    found: list[Record] = []
    while True:
        one = M.FetchRequest.FetchTopic(topic=topic, partitions=[fetch_partition(partition_id, offset)])
        answer = h.do(fetch([one]), lambda answer: [answer.responses[0].partitions[0].error_code], version=12)
        batches = list(read_batches(answer.responses[0].partitions[0].records or b""))
        if not batches:
            return found
        found += [record for batch in batches for record in batch.records() if record.offset >= start]
        offset = found[-1].offset + 1


def go_on(h: History) -> None:
    """Let the producers go on: the broker remembers them, so batches that they send again are not appended again."""
    for base_sequence in (120, 117, 120):
        fields = {"producer_id": 101, "producer_epoch": 1, "base_sequence": base_sequence}
        h.produce("idempotent", 0, records(3, 200, at=NOW + 1000 + base_sequence, **fields))
    for topic in ("orders", "emptied", "bounded", "never-used"):
        h.produce(topic, 0, records(5, at=NOW + 5000))


@pytest.mark.slow
def test_a_directory_goes_from_kafka_to_us_and_back(both: Both, tmp_path: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(both.kafka.data, data)
    indexes = {path: path.stat().st_mtime_ns for path in data.rglob("*.index")}
    expected = in_files(data)
    assert sum(map(bool, expected.values())) >= 16
    with BrokerProcess({**SETTINGS, "log.retention.check.interval.ms": 3_600_000}, folder=tmp_path) as kbroker:
        with History(kbroker.port) as h:
            assert served(h, expected) == expected
            assert {path: path.stat().st_mtime_ns for path in indexes} == indexes, "a clean directory needs no new ones"
            go_on(h)
            extended = served(h, expected)
        kbroker.stop()
    assert extended == in_files(data)
    added = {name: len(extended[name]) - len(expected[name]) for name in expected}
    assert {name: count for name, count in added.items() if count} == {
        "idempotent-0": 3, "orders-0": 5, "emptied-0": 5, "bounded-0": 5, "never-used-0": 5
    }  # fmt: skip
    both.kafka.overrides["log.dirs"] = data
    both.kafka.start()
    with History(both.kafka.port) as h:
        assert served(h, expected) == extended
    both.kafka.stop()


def test_what_differs_on_purpose_is_in_the_documents() -> None:
    assert {one.subject for one in LISTED} <= {other.subject for other in OTHERS}
