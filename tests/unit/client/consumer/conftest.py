"""Members of groups of kbroker, in this process."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from kbroker._core.client.consumer.record import ConsumerRecord
from kbroker.client.consumer.consumer import Consumer
from kbroker.client.consumer.holdings import RebalanceListener
from kbroker.model import TopicPartition
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from kbroker.protocol.records import encode_batch
from tests.kit.brokers.whole import WholeBroker

numbers = itertools.count()
SECONDS = 30.0


QUICK: dict[str, object] = {
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 100,
    "group.consumer.min.heartbeat.interval.ms": 20,
    "group.consumer.heartbeat.interval.ms": 20,
    "group.consumer.min.session.timeout.ms": 1000,
    "group.consumer.session.timeout.ms": 6000,
}


class Heard(RebalanceListener):
    """What a listener was told, oldest first."""

    def __init__(self) -> None:
        self.events: list[tuple[str, list[int]]] = []

    def on_assigned(self, partitions: list[TopicPartition]) -> None:
        self.events.append(("assigned", [n for _, n in partitions]))

    def on_revoked(self, partitions: list[TopicPartition]) -> None:
        self.events.append(("revoked", [n for _, n in partitions]))

    def on_lost(self, partitions: list[TopicPartition]) -> None:
        self.events.append(("lost", [n for _, n in partitions]))


class Members:
    """Consumers of one group and its topic, polled by turns in the thread of the test."""

    def __init__(self, broker: WholeBroker, partitions: int):
        self.broker = broker
        self.topic = f"shared-{next(numbers)}"
        self.group_id = f"group-of-{self.topic}"
        self.alive: list[Consumer] = []
        self.records: list[ConsumerRecord] = []
        broker.create_topic(self.topic, partitions)

    def grow(self, count: int) -> None:
        wanted = M.CreatePartitionsRequest.CreatePartitionsTopic(name=self.topic, count=count, assignments=None)
        answer = self.broker.call(
            ApiKey.CREATE_PARTITIONS, 3, M.CreatePartitionsRequest(topics=[wanted], timeout_ms=10_000)
        )
        assert answer.results[0].error_code == 0

    def append(self, partition: int, values: Sequence[bytes], topic: str | None = None) -> None:
        data = M.ProduceRequest.PartitionProduceData(
            index=partition, records=encode_batch([(1000, None, value) for value in values])
        )
        row = M.ProduceRequest.TopicProduceData(name=topic or self.topic, partition_data=[data])
        answer = self.broker.call(ApiKey.PRODUCE, 7, M.ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=[row]))
        assert answer.responses[0].partition_responses[0].error_code == 0

    def consumer(self, **options: Any) -> Consumer:
        """One that is not subscribed."""
        quick: dict[str, Any] = {
            "retry_backoff_ms": 5, "retry_backoff_max_ms": 20, "reconnect_backoff_ms": 5, "fetch_max_wait_ms": 50,
            "auto_offset_reset": "earliest", "group_id": self.group_id,
        }  # fmt: skip
        if options.get("group_protocol") != "consumer":
            quick["heartbeat_interval_ms"] = 20
        consumer = Consumer(bootstrap_servers=f"127.0.0.1:{self.broker.port}", **(quick | options))
        self.alive.append(consumer)
        return consumer

    def join(self, listener: RebalanceListener | None = None, **options: Any) -> Consumer:
        consumer = self.consumer(**options)
        consumer.subscribe(self.topic, listener)
        return consumer

    def close(self, consumer: Consumer) -> None:
        self.alive.remove(consumer)
        consumer.close()

    def poll_until(self, true: Callable[[], object]) -> None:
        """All that are alive, in turn."""
        deadline = time.monotonic() + SECONDS
        while not true():
            assert time.monotonic() < deadline
            for consumer in self.alive:
                self.records += consumer.poll(0.01)

    def shares(self) -> list[list[int]]:
        """The partitions of each, in the order of their coming."""
        return [sorted(n for _, n in consumer.assignment()) for consumer in self.alive]

    def settle(self, count: int) -> list[list[int]]:
        """Polls until partitions 0 to `count` - 1 are each with one, and everybody has some."""
        self.poll_until(lambda: sorted(itertools.chain(*self.shares())) == list(range(count)) and all(self.shares()))
        return self.shares()

    def values(self) -> list[bytes]:
        return [record.value or b"" for record in self.records]


MakeMembers = Callable[[int], Members]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WholeBroker]:
    with WholeBroker(tmp_path_factory.mktemp("broker"), QUICK) as started:
        yield started


@pytest.fixture
def members_of(broker: WholeBroker) -> Iterator[MakeMembers]:
    """Makes a topic of so many partitions, and who is to share it."""
    made: list[Members] = []

    def make(partitions: int) -> Members:
        made.append(Members(broker, partitions))
        return made[-1]

    yield make
    for members in made:
        for consumer in members.alive:
            consumer.close()
