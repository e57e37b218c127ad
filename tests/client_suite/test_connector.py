"""ConsumerConnector, where there is a ZooKeeper: each partition has one owner, and everything is seen once."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from kbroker.client import ConsumerConnector, ConsumerTimeout
from kbroker.coordination.store import NoNode
from kbroker.coordination.zookeeper import ZooKeeperStore
from kbroker.model import TopicPartition
from tests.client_suite.suite_broker import SECONDS, SETTINGS, SuiteBroker, eventually
from tests.kit.brokers.process import BrokerProcess
from tests.kit.clients.connectors import QUICK, Reading
from tests.kit.kafka.zookeeper import KafkaOnZooKeeper, ZooKeeperProcess

PARTITIONS = 4
HAS_NONE = {"kafka-4.3": "there is no ZooKeeper since Kafka 4.0"}


class Registered:
    """A broker, and the ZooKeeper that it is registered in."""

    def __init__(self, broker: SuiteBroker, address: str):
        self.broker, self.address = broker, address
        self.tree = ZooKeeperStore(address, SECONDS)

    def new_topic(self) -> str:
        name = self.broker.new_topic(PARTITIONS)
        eventually(lambda: self.tree.exists(f"/brokers/topics/{name}"))
        return name

    def send(self, topic: str, first: int, count: int) -> list[bytes]:
        values = [b"%d" % number for number in range(first, first + count)]
        with self.broker.producer() as producer:
            for number, value in enumerate(values):
                producer.send_nowait(topic, value, partition=number % PARTITIONS)
            producer.flush(SECONDS)
        return values

    def options(self, group: str, **more: Any) -> dict[str, Any]:
        return {"zookeeper_connect": self.address, "group_id": group, **QUICK, **more}

    def numbered(self, path: str) -> dict[int, str]:
        """Return the data of the nodes below a path whose names are partition numbers."""
        try:
            return {int(name): self.tree.get(f"{path}/{name}")[0].decode() for name in self.tree.children(path)}
        except NoNode:  # not yet, or it has gone meanwhile
            return {}

    def is_shared_by(self, group: str, topic: str, *members: Reading) -> bool:
        """Return whether ZooKeeper and the members agree on an owner for each partition, and every member owns some."""
        owners = self.numbered(f"/consumers/{group}/owners/{topic}")
        said = {
            each.partition_id: f"{member.connector.consumer_id}-0"
            for member in members
            for each in member.connector.assignment()
        }
        return owners == said and len(owners) == PARTITIONS and len(set(owners.values())) == len(members)

    def offsets(self, group: str, topic: str) -> dict[int, str]:
        return self.numbered(f"/consumers/{group}/offsets/{topic}")


@pytest.fixture(scope="module")
def registered(broker: SuiteBroker) -> Iterator[Registered]:
    if broker.name in HAS_NONE:
        pytest.skip(HAS_NONE[broker.name])
    if isinstance(broker.process, KafkaOnZooKeeper):
        yield from closed(Registered(broker, broker.process.zookeeper.address))
        return
    with (
        ZooKeeperProcess() as zookeeper,
        BrokerProcess({**SETTINGS, "zookeeper.connect": zookeeper.address}) as process,
    ):
        yield from closed(Registered(SuiteBroker(broker.name, process), zookeeper.address))


def closed(made: Registered) -> Iterator[Registered]:
    yield made
    made.tree.close()


def test_members_share_come_and_go_and_see_everything_once(registered: Registered) -> None:
    topic, group = registered.new_topic(), registered.broker.unique("old")
    sent = registered.send(topic, 0, 100)
    members: list[Reading] = []

    def seen() -> list[bytes]:
        return sorted((value or b"" for each in members for value in each.values), key=int)

    def member() -> Reading:
        members.append(Reading({topic: 1}, **registered.options(group, auto_commit_interval_ms=100)))
        return members[-1]

    with member() as first:
        eventually(lambda: registered.is_shared_by(group, topic, first))
        eventually(lambda: seen() == sent)
        with member() as second:
            eventually(lambda: registered.is_shared_by(group, topic, first, second))
            sent += registered.send(topic, 100, 100)
            eventually(lambda: len(seen()) >= 200)
            with member() as third:
                eventually(lambda: registered.is_shared_by(group, topic, first, second, third))
                sent += registered.send(topic, 200, 100)
                eventually(lambda: len(seen()) >= 300)
        eventually(lambda: registered.is_shared_by(group, topic, first))
        sent += registered.send(topic, 300, 100)
        eventually(lambda: len(seen()) >= 400)
    assert seen() == sent
    assert registered.offsets(group, topic) == dict.fromkeys(range(PARTITIONS), "100")
    assert registered.numbered(f"/consumers/{group}/owners/{topic}") == {}


def test_who_begins_later_goes_on_behind_what_was_committed(registered: Registered) -> None:
    topic, group = registered.new_topic(), registered.broker.unique("old")
    sent = registered.send(topic, 0, 20)
    options = registered.options(group, auto_commit_enable=False)
    with ConsumerConnector(**options) as connector:
        (stream,) = connector.create_message_streams({topic: 1})[topic]
        assert {each.value for each in itertools.islice(stream, 20)} == set(sent)
        connector.commit_offsets()
    later = registered.send(topic, 20, 8)
    for _ in range(2):  # what was not committed comes again
        with ConsumerConnector(**options) as connector:
            (stream,) = connector.create_message_streams({topic: 1})[topic]
            assert {each.value for each in itertools.islice(stream, 8)} == set(later)


def test_topics_by_filter_and_a_stream_that_does_not_wait_for_ever(registered: Registered) -> None:
    topic, group = registered.new_topic(), registered.broker.unique("old")
    registered.new_topic()
    sent = registered.send(topic, 0, 12)
    with ConsumerConnector(**registered.options(group, consumer_timeout_ms=2_000)) as connector:
        (stream,) = connector.create_message_streams_by_filter(white_list=f"{topic}|nothing")
        found = [(each.topic, each.value) for each in itertools.islice(stream, 12)]
        assert sorted(found, key=lambda each: int(each[1])) == [(topic, value) for value in sent]
        with pytest.raises(ConsumerTimeout):
            next(stream)


def test_offsets_may_be_with_the_brokers(registered: Registered) -> None:
    topic, group = registered.new_topic(), registered.broker.unique("old")
    sent = registered.send(topic, 0, 12)
    options = registered.options(group, offsets_storage="kafka", dual_commit_enabled=False)
    with ConsumerConnector(**options) as connector:
        (stream,) = connector.create_message_streams({topic: 1})[topic]
        assert {each.value for each in itertools.islice(stream, 12)} == set(sent)
        connector.commit_offsets()
    with registered.broker.admin() as admin:
        committed = {at: each.offset for at, each in admin.committed(group).items()}
    assert committed == {TopicPartition(topic, number): 3 for number in range(PARTITIONS)}
    assert registered.offsets(group, topic) == {}
