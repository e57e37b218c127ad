"""A consumer connector in one group with consumers of Kafka 0.8.2, on a kbroker and on an old Kafka."""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from kbroker.client import EARLIEST, LATEST, Producer, SimpleConsumer
from kbroker.model import TopicPartition
from tests.compat.test_zookeeper_clients import PARTITIONS, WAIT_S, Old, await_that, lines
from tests.kit.clients.connector_member import Given, MemberProcess, PrintingProcess
from tests.kit.clients.connectors import QUICK, Reading
from tests.kit.kafka import maven
from tests.kit.kafka.java_program import compile_java
from tests.kit.kafka.process import KafkaInMemory
from tests.kit.kafka.zookeeper import Kafka010, ZooKeeperProcess


class OldBroker(Old):
    """An old Kafka instead of the kbroker."""

    def __init__(self, classpath: str, broker: Kafka010):
        self.classpath, self.broker, self.folder = classpath, broker, broker.folder
        self.zookeeper = broker.zookeeper
        self.address = broker.zookeeper.address
        self.client = KazooClient(self.address, timeout=60.0)


@pytest.fixture(scope="module")
def consumers() -> str:
    """The class path of Kafka 0.8.2's consumers."""
    try:
        KafkaInMemory.classpath()
        Kafka010.classpath()
        return maven.fetch(["org.apache.kafka:kafka_2.11:0.8.2.2"])
    except maven.MavenFailed as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="module", params=["kbroker", "kafka 0.10.2"])
def old(request: pytest.FixtureRequest, consumers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Old]:
    if request.param == "kbroker":
        with ZooKeeperProcess() as zookeeper:
            made = Old(consumers, zookeeper, tmp_path_factory.mktemp("old"))
            with made.broker:
                yield from started(made)
    else:
        with Kafka010({"num.partitions": PARTITIONS}) as broker:
            yield from started(OldBroker(consumers, broker))


def started(old: Old) -> Iterator[Old]:
    with warnings.catch_warnings(action="ignore"):  # that there is no chroot yet
        old.client.start()
    await_that(lambda: any(old.client.exists(f"/brokers/ids/{number}") for number in (0, 1)))
    try:
        yield old
    finally:
        old.client.stop()
        old.client.close()


def reading(old: Old, topic: str, group: str) -> Reading:
    return Reading(
        {topic: 1}, zookeeper_connect=old.address, group_id=group, auto_commit_interval_ms=200,
        rebalance_backoff_ms=200, rebalance_max_retries=100,
    )  # fmt: skip


def owners(old: Old, group: str, topic: str) -> set[str]:
    """Return the consumers that share the topic, once each partition has an owner."""
    found = old.owners(group, topic)
    return {owner.rpartition("-")[0] for owner in found.values()} if len(found) == PARTITIONS else set()


def test_java_consumers_and_ours_share_a_group(old: Old) -> None:
    expected: set[str] = set()

    def produce(name: str) -> None:
        values = [f"{name} {number}" for number in range(100)]
        old.produce("shared", values)
        expected.update(values)

    def seen() -> list[str]:
        found = [value.decode() for each in ours for value in each.values if value is not None]
        return found + [line for path in printed for line in lines(path)]

    ours: list[Reading] = []
    printed = []
    old.produce("shared", ["first"])
    expected.add("first")
    with old.consumer("java", "mixed", "shared", "--from-beginning") as path:
        printed.append(path)
        await_that(lambda: len(owners(old, "mixed", "shared")) == 1)
        produce("alone")
        with reading(old, "shared", "mixed") as one:
            ours.append(one)
            await_that(lambda: owners(old, "mixed", "shared") == {"mixed_java", one.connector.consumer_id})
            produce("together")
            with reading(old, "shared", "mixed") as two:
                ours.append(two)
                await_that(lambda: len(owners(old, "mixed", "shared")) == 3)
                produce("three")
                await_that(lambda: expected <= set(seen()))
            await_that(lambda: len(owners(old, "mixed", "shared")) == 2)
            produce("two left")
            await_that(lambda: expected <= set(seen()))
    # Java has gone first; ours was there to the end and has left too. What is committed is what was sent.
    committed = [int(old.client.get(f"/consumers/mixed/offsets/shared/{number}")[0]) for number in range(PARTITIONS)]
    assert sum(committed) == len(expected)
    assert len(seen()) == len(expected)


def test_what_a_java_consumer_leaves_ours_takes_over_from_its_offsets(old: Old) -> None:
    first, later = [f"first {number}" for number in range(50)], [f"later {number}" for number in range(50)]
    old.produce("inherited", first)
    with old.consumer("java", "heirs", "inherited", "--from-beginning") as printed:
        await_that(lambda: set(lines(printed)) >= set(first))
        with reading(old, "inherited", "heirs") as heir:
            await_that(lambda: len(owners(old, "heirs", "inherited")) == 2)
    with reading(old, "inherited", "heirs") as heir:
        old.produce("inherited", later)
        await_that(lambda: len(heir.values) >= len(later))
        assert sorted(value.decode() for value in heir.values if value is not None) == sorted(later)


def test_the_simple_consumer_reads_what_an_old_producer_sent(old: Old) -> None:
    values = [f"simple {number}" for number in range(100)]
    old.produce("simple", values)
    with SimpleConsumer(bootstrap_servers=old.broker.address) as consumer:
        found = []
        for number in range(PARTITIONS):
            assert consumer.get_offsets_before("simple", number, EARLIEST) == [0]
            (end,) = consumer.get_offsets_before("simple", number, LATEST)
            records = consumer.fetch("simple", number, 0)
            assert [record.offset for record in records] == list(range(end))
            found += [record.value.decode() for record in records if record.value is not None]
            if end > 1:
                assert [record.offset for record in consumer.fetch("simple", number, end - 1)] == [end - 1]
        assert sorted(found) == sorted(values)
        consumer.commit_offsets("simple group", {("simple", 0): 3})
        assert consumer.fetch_offsets("simple group", [("simple", 0)]) == {TopicPartition("simple", 0): 3}


SESSION_MS = 4_000
AT_ONCE = 12
KAFKA_0_8 = "org.apache.kafka:kafka_2.11:0.8.2.2"


class JavaMember(PrintingProcess):
    """A consumer of Kafka 0.8.2 that is not the console consumer.

    That one ends at once if it is to read from the beginning and its group has offsets; otherwise it skips the records
    that are already in a partition without an offset.
    """

    def __init__(self, old: Old, folder: Path, topic: str, group: str, name: str):
        settings = {
            "zookeeper.connect": old.address, "group.id": group, "consumer.id": name,
            "zookeeper.session.timeout.ms": SESSION_MS, "auto.offset.reset": "smallest",
            "auto.commit.interval.ms": 200, "rebalance.backoff.ms": 200, "rebalance.max.retries": 100,
        }  # fmt: skip
        properties = folder / f"{name}.properties"
        properties.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        program = compile_java(Path(__file__).parent / "java-0.8", "Member", "0.8.2.2", KAFKA_0_8, options=("-Xmx64m",))
        super().__init__(folder, f"{group}_{name}", [*program, str(properties), topic])


class Flow:
    """Sends numbers without end while the context lasts. The broker has those below `sent`."""

    def __init__(self, address: str, topic: str):
        self.sent = 0
        self._topic = topic
        self._producer = Producer(bootstrap_servers=address, partitioner="round_robin")
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._send, daemon=True)

    def _send(self) -> None:
        while not self._is_over.wait(0.02):
            for number in range(self.sent, self.sent + AT_ONCE):
                self._producer.send_nowait(self._topic, b"%d" % number)
            self._producer.flush()
            self.sent += AT_ONCE

    def __enter__(self) -> Flow:
        self._thread.start()
        return self

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()

    def __exit__(self, *error: object) -> None:
        self.stop()
        self._producer.close()


def await_one_reader_each(old: Old, topic: str, group: str, flow: Flow, *members: PrintingProcess) -> None:
    """Wait until these members share the topic and each has read for a while from the partitions that it owns.

    Each new record is read once, by the owner of its partition, and together the members read all.
    """

    def owner_nodes() -> dict[int, tuple[str, int]]:
        """Return the owner of each partition, and the id of the ZooKeeper transaction that made it the owner."""
        found = {}
        for number in range(PARTITIONS):
            with contextlib.suppress(NoNodeError):
                data, stat = old.client.get(f"/consumers/{group}/owners/{topic}/{number}")
                found[number] = data.decode().rpartition("-")[0], stat.czxid
        return found

    def read() -> list[tuple[str, Given]]:
        """Return the records sent since every member had its share, each with the member that read it."""
        return [(each.consumer_id, record) for each in members for record in each.records if int(record.value) >= first]

    def is_read() -> bool:
        return {int(record.value) for _, record in read()} >= set(range(first, last))

    while True:
        await_that(lambda: owners(old, group, topic) == {each.consumer_id for each in members})
        before = owner_nodes()
        first = flow.sent + AT_ONCE  # some of those between may have been read before
        last = first + 20 * AT_ONCE
        await_that(is_read)
        seen = read()
        if owner_nodes() == before:  # else they have shared it anew meanwhile
            break
    readers = {(record.partition_id, who) for who, record in seen}
    assert readers == {(number, who) for number, (who, _) in before.items()}
    twice = [value for value, count in Counter(record.value for _, record in seen).items() if count > 1]
    assert twice == []


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_java_consumers_and_ours_that_die_and_come_back_lose_nothing(old: Old, tmp_path: Path) -> None:
    topic, group = "mortals", "mortal"
    old.produce(topic, ["0"])
    settings: dict[str, Any] = {
        "zookeeper_connect": old.address, "group_id": group, "consumer_id": "b-ours",
        "zookeeper_session_timeout_ms": SESSION_MS, "auto_commit_interval_ms": 200,
    }  # fmt: skip
    with (
        Flow(old.broker.address, topic) as flow,
        JavaMember(old, tmp_path, topic, group, "a-java") as a,
        MemberProcess(tmp_path, topic, QUICK | settings) as b,
        JavaMember(old, tmp_path, topic, group, "c-java") as c,
    ):

        def await_readers(*members: PrintingProcess) -> None:
            await_one_reader_each(old, topic, group, flow, *members)

        await_readers(a, b, c)
        a.kill()
        await_readers(b, c)
        a.start()
        await_readers(a, b, c)
        b.kill()
        await_readers(a, c)
        b.start()
        await_readers(a, b, c)
        for each in (a, c):
            each.kill()
        await_readers(b)
        c.start()  # the member that came last has the first share now
        await_readers(b, c)
        b.kill()
        b.start()  # before its session has expired
        await_readers(b, c)
        flow.stop()
        everything = {b"%d" % number for number in range(flow.sent)}
        await_that(lambda: a.values | b.values | c.values >= everything)
