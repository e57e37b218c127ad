"""A consumer connector in one group with consumers of Kafka 0.8.2, of a kbroker and of an old Kafka."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
from kazoo.client import KazooClient

from kbroker.client import EARLIEST, LATEST, SimpleConsumer
from kbroker.model import TopicPartition
from tests.compat.test_zookeeper_clients import PARTITIONS, Old, await_that, lines
from tests.kit import maven
from tests.kit.broker import KafkaInMemory
from tests.kit.connectors import Reading
from tests.kit.zookeeper import Kafka010, ZooKeeperProcess


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
    """Who shares the topic, once each partition has an owner."""
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
