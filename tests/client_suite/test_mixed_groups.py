"""Our, Java's and librdkafka's consumers in one group, by the classic protocol and by that of KIP-848 (uniform)."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import confluent_kafka
import pytest

from tests.client_suite.features import CONSUMER_GROUPS, STATIC_MEMBERS
from tests.client_suite.java_peer import HAS_CONSUMER_PROTOCOL, HAS_COOPERATIVE, HAS_STATIC_MEMBERS, JavaPeer
from tests.client_suite.suite_broker import SECONDS, SuiteBroker, eventually
from tests.client_suite.test_groups import QUICK

PARTITIONS, COUNT = 6, 600
JAVA_ASSIGNORS = {
    "range": "RangeAssignor",
    "roundrobin": "RoundRobinAssignor",
    "cooperative-sticky": "CooperativeStickyAssignor",
}
REMOTE = "uniform"
"""The name of an assignor in the brokers: a group with it uses the consumer protocol."""

Place = tuple[int, int]


class JavaMember:
    def __init__(self, peer: JavaPeer, topic: str, group: str, assignor: str, instance: str | None):
        self.peer = peer
        peer.ask("join", topic=topic, group=group, assignor=JAVA_ASSIGNORS.get(assignor, assignor), instance=instance)

    def owned(self) -> set[int]:
        return set(self.peer.ask("assigned")["partitions"])

    def leave(self) -> list[Place]:
        return [(partition, offset) for partition, offset in self.peer.ask("leave")["records"]]


class Polled:
    """A member that a thread polls."""

    def __init__(self, poll: Callable[[], list[Place]], owned: Callable[[], set[int]], close: Callable[[], None]):
        self._owned: set[int] = set()
        self._read: list[Place] = []
        self._leaving = threading.Event()
        self._failures: list[BaseException] = []

        def run() -> None:
            try:
                while not self._leaving.is_set():
                    self._read += poll()
                    self._owned = owned()
            except BaseException as failure:
                self._failures.append(failure)
            finally:
                close()

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()

    def owned(self) -> set[int]:
        """Return the partitions that the member owned at its last poll."""
        return self._owned

    def leave(self) -> list[Place]:
        self._leaving.set()
        self._thread.join(SECONDS)
        assert not self._thread.is_alive()
        assert self._failures == []
        return self._read


Member = JavaMember | Polled


class Group:
    """A group of three, and a topic that it reads."""

    def __init__(self, broker: SuiteBroker, java: JavaPeer, assignor: str, named: bool):
        self.broker, self.java, self.assignor, self.named = broker, java, assignor, named
        if assignor == REMOTE:
            broker.need(CONSUMER_GROUPS)
            if not java.has(HAS_CONSUMER_PROTOCOL):
                pytest.skip("Java clients have the consumer protocol since Kafka 4.0")
        self.topic, self.group = broker.new_topic(PARTITIONS), broker.unique("mixed")
        self.members: dict[str, Member] = {}
        self.read: Counter[Place] = Counter()
        self.sent = 0

    def join(self, kind: str) -> None:
        self.members[kind] = {"ours": self._ours, "java": self._java, "confluent": self._confluent}[kind]()

    def _ours(self) -> Member:
        options: dict[str, Any] = {"group_instance_id": "ours"} if self.named else {}
        if self.assignor == REMOTE:
            options |= {"group_protocol": "consumer", "group_remote_assignor": REMOTE}
        else:
            options |= {"partition_assignment_strategy": self.assignor, **QUICK}
        consumer = self.broker.consumer(group_id=self.group, auto_commit_interval_ms=100, **options)
        consumer.subscribe([self.topic])
        return Polled(
            lambda: [(each.partition, each.offset) for each in consumer.poll(0.1)],
            lambda: {each.partition_id for each in consumer.assignment()},
            consumer.close,
        )

    def _java(self) -> Member:
        return JavaMember(self.java, self.topic, self.group, self.assignor, "java" if self.named else None)

    def _confluent(self) -> Member:
        options: dict[str, Any] = {"group.instance.id": "confluent"} if self.named else {}
        if self.assignor == REMOTE:
            options |= {"group.protocol": "consumer", "group.remote.assignor": REMOTE}
        else:
            options |= {
                "session.timeout.ms": 6_000, "heartbeat.interval.ms": 300,
                "partition.assignment.strategy": self.assignor,
            }  # fmt: skip
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": self.broker.address, "group.id": self.group, "auto.offset.reset": "earliest",
                "auto.commit.interval.ms": 100, **options,
            }
        )  # fmt: skip
        consumer.subscribe([self.topic])

        def poll() -> list[Place]:
            return [(each.partition(), each.offset()) for each in consumer.consume(100, 0.1) if each.error() is None]

        return Polled(poll, lambda: {each.partition for each in consumer.assignment()}, consumer.close)

    def leave(self, kind: str) -> None:
        self.read.update(self.members.pop(kind).leave())

    def shares(self) -> list[int]:
        owned = [each.owned() for each in self.members.values()]
        return sorted(map(len, owned)) if set().union(*owned) == set(range(PARTITIONS)) else []

    def shared_by(self, *shares: int) -> None:
        """Wait for these shares of the partitions; send COUNT records; wait until all that were sent are committed."""
        eventually(lambda: self.shares() == list(shares))
        with self.broker.producer() as producer:
            for number in range(COUNT):
                producer.send_nowait(self.topic, b"x", partition=number % PARTITIONS)
            producer.flush(SECONDS)
        self.sent += COUNT
        with self.broker.admin() as admin:
            eventually(lambda: sum(each.offset for each in admin.committed(self.group).values()) == self.sent)

    def end(self) -> None:
        for kind in list(self.members):
            self.leave(kind)
        each = self.sent // PARTITIONS
        assert self.read == Counter((partition, offset) for partition in range(PARTITIONS) for offset in range(each))


@contextlib.contextmanager
def group_of(broker: SuiteBroker, java: JavaPeer, assignor: str, named: bool = False) -> Iterator[Group]:
    group = Group(broker, java, assignor, named)
    try:
        yield group
        group.end()
    finally:
        for member in group.members.values():
            member.leave()


@pytest.mark.parametrize("assignor", [*JAVA_ASSIGNORS, REMOTE])
@pytest.mark.parametrize("leader", ["ours", "java", "confluent"])
def test_three_clients_share_a_topic(broker: SuiteBroker, java: JavaPeer, assignor: str, leader: str) -> None:
    """The first member to join assigns the partitions. Members come and go; no record is lost or read twice."""
    if assignor == "cooperative-sticky" and not java.has(HAS_COOPERATIVE):
        pytest.skip("Java clients have it since Kafka 2.4")
    others = [each for each in ("ours", "java", "confluent") if each != leader]
    with group_of(broker, java, assignor) as group:
        group.join(leader)
        group.shared_by(6)
        for other in others:
            group.join(other)
        group.shared_by(2, 2, 2)
        group.leave(leader)
        group.shared_by(3, 3)
        group.leave(others[1])
        group.shared_by(6)


@pytest.mark.parametrize("assignor", ["range", REMOTE])
def test_three_clients_with_names_of_their_own(broker: SuiteBroker, java: JavaPeer, assignor: str) -> None:
    broker.need(STATIC_MEMBERS)
    if not java.has(HAS_STATIC_MEMBERS):
        pytest.skip("Java clients have names since Kafka 2.3")
    with group_of(broker, java, assignor, named=True) as group:
        for each in ("ours", "java", "confluent"):
            group.join(each)
        group.shared_by(2, 2, 2)
        for each in ("ours", "java", "confluent"):
            before = group.members[each].owned()
            group.leave(each)
            group.join(each)
            group.shared_by(2, 2, 2)
            assert group.members[each].owned() == before
