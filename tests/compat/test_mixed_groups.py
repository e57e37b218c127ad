"""kbroker.client in one group with other people's consumers, by both protocols; each comes first, or leads, once."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import pytest

from kbroker.client import Consumer, Producer, RebalanceListener
from kbroker.model import TopicPartition
from tests.compat.clients import CLIENTS
from tests.compat.conftest import new_broker
from tests.compat.test_clients import create_topic
from tests.compat.test_consumer_groups import FAST
from tests.kit.brokers.process import BrokerProcess

PARTITIONS, COUNT, SECONDS = 6, 600, 60.0
BY_NAME = {client.name: client for client in CLIENTS}


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with new_broker(FAST) as started:
        yield started


class Member(ABC):
    """A consumer of somebody else's library, which reads and commits."""

    @abstractmethod
    def leave(self) -> set[tuple[int, int]]:
        """Leave the group; return (partition, offset) of the records that it has read."""


class JavaMember(Member):
    def __init__(self, name: str, arguments: dict[str, Any]):
        self.process = subprocess.Popen(
            [*BY_NAME[name].prepare(), "member", json.dumps(arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def leave(self) -> set[tuple[int, int]]:
        output, _ = self.process.communicate("", timeout=SECONDS)
        read = json.loads(output.strip().splitlines()[-1])["read"]
        return {(int(partition), int(offset)) for partition, offset in (each.split(":") for each in read)}


class ConfluentMember(Member):
    def __init__(self, arguments: dict[str, Any]):
        import confluent_kafka

        settings = {
            "partition.assignment.strategy": arguments["assignor"], "session.timeout.ms": 6000,
            "heartbeat.interval.ms": 500,
        }  # fmt: skip
        if arguments["protocol"] == "consumer":
            settings = {"group.protocol": "consumer", "group.remote.assignor": arguments["assignor"]}
        if arguments["static"]:
            settings["group.instance.id"] = "confluent"
        self.consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": arguments["bootstrap"], "group.id": arguments["group"],
                "auto.offset.reset": "earliest", "auto.commit.interval.ms": 100, **settings,
            }
        )  # fmt: skip
        self.consumer.subscribe([arguments["topic"]])
        self.read: set[tuple[int, int]] = set()
        self.leaving = threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self) -> None:
        while not self.leaving.is_set():
            for message in self.consumer.consume(100, 0.1):
                if message.error() is None:
                    self.read.add((message.partition(), message.offset()))
        self.consumer.close()

    def leave(self) -> set[tuple[int, int]]:
        self.leaving.set()
        self.thread.join(SECONDS)
        assert not self.thread.is_alive()
        return self.read


def member_of(name: str, arguments: dict[str, Any]) -> Member:
    return ConfluentMember(arguments) if name == "confluent" else JavaMember(name, arguments)


class Kept(RebalanceListener):
    """Counts the partitions that were revoked."""

    def __init__(self) -> None:
        self.revoked = 0

    def on_revoked(self, partitions: list[TopicPartition]) -> None:
        self.revoked += len(partitions)


class Mixed:
    """A group of one of our consumers and one of somebody else's."""

    def __init__(self, broker: BrokerProcess, assignor: str, *, static: bool = False, protocol: str = "classic"):
        self.topic = create_topic(broker, PARTITIONS)
        self.group = f"mixed-{self.topic}"
        self.bootstrap = broker.address
        self.assignor = assignor
        self.static = static
        self.protocol = protocol
        self.read: set[tuple[int, int]] = set()
        self.sent = 0
        self.kept = Kept()
        self.ours = self.consumer()

    def consumer(self) -> Consumer:
        return Consumer(
            bootstrap_servers=self.bootstrap,
            group_id=self.group,
            group_instance_id="ours" if self.static else None,
            auto_offset_reset="earliest",
            auto_commit_interval_ms=100,
            **self.options(),
        )

    def options(self) -> dict[str, Any]:
        if self.protocol == "consumer":
            return {"group_protocol": "consumer", "group_remote_assignor": self.assignor}
        return {
            "session_timeout_ms": 6000,
            "heartbeat_interval_ms": 500,
            "partition_assignment_strategy": self.assignor,
        }

    def join(self) -> None:
        self.ours.subscribe(self.topic, self.kept)

    def other(self, name: str) -> Member:
        arguments = {
            "bootstrap": self.bootstrap, "topic": self.topic, "group": self.group, "assignor": self.assignor,
            "static": self.static, "protocol": self.protocol,
        }  # fmt: skip
        return member_of(name, arguments)

    def poll_until_has(self, count: int) -> None:
        deadline = time.monotonic() + SECONDS
        while len(self.ours.assignment()) != count:
            assert time.monotonic() < deadline
            self.take()

    def take(self) -> None:
        self.read |= {(record.partition, record.offset) for record in self.ours.poll(0.1)}

    def send(self) -> None:
        """Send COUNT more records, and wait until the members have read and committed all."""
        with Producer(bootstrap_servers=self.bootstrap) as producer:
            for number in range(COUNT):
                producer.send_nowait(self.topic, b"%d" % number, partition=number % PARTITIONS)
        self.sent += COUNT
        deadline = time.monotonic() + SECONDS
        partitions = [TopicPartition(self.topic, n) for n in range(PARTITIONS)]
        while True:
            found = self.ours.committed(partitions).values()
            if sum(each.offset for each in found if each is not None) == self.sent:
                return
            assert time.monotonic() < deadline
            if self.ours.subscription() is not None:
                self.take()
            else:
                time.sleep(0.05)

    def check(self) -> None:
        each = self.sent // PARTITIONS
        assert self.read == {(partition, offset) for partition in range(PARTITIONS) for offset in range(each)}


CASES = [
    ("java-3.9", "cooperative-sticky"),
    ("confluent", "range"),
    ("confluent", "uniform"),
    pytest.param("java-4.3", "uniform", marks=pytest.mark.slow),
    pytest.param("confluent", "cooperative-sticky", marks=pytest.mark.slow),
    pytest.param("confluent", "roundrobin", marks=pytest.mark.slow),
    *(pytest.param("java-3.9", each, marks=pytest.mark.slow) for each in ("range", "roundrobin", "sticky")),
    pytest.param("java-4.3", "sticky", marks=pytest.mark.slow),
    pytest.param("java-4.3", "cooperative-sticky", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("name", "assignor"), CASES)
@pytest.mark.parametrize("leader", ["ours", pytest.param("theirs", marks=pytest.mark.slow)])
def test_two_clients_share_a_topic(broker: BrokerProcess, name: str, assignor: str, leader: str) -> None:
    mixed = Mixed(broker, assignor, protocol="consumer" if assignor == "uniform" else "classic")
    if leader == "ours":
        mixed.join()
        mixed.send()
        other = mixed.other(name)
    else:
        other = mixed.other(name)
        mixed.send()
        mixed.join()
    mixed.poll_until_has(PARTITIONS // 2)
    mixed.send()
    if assignor in ("sticky", "cooperative-sticky", "uniform") and leader == "ours":
        # Half was given up by the one, and once; who is eager gives up all.
        assert mixed.kept.revoked == (PARTITIONS if assignor == "sticky" else PARTITIONS // 2)
    if leader == "ours":
        mixed.ours.unsubscribe()
        mixed.send()
        mixed.read |= other.leave()
    else:
        mixed.read |= other.leave()
        mixed.poll_until_has(PARTITIONS)
        mixed.send()
    mixed.ours.close()
    mixed.check()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("protocol", "assignor"),
    [("classic", "range"), ("classic", "cooperative-sticky"), ("consumer", "uniform"), ("consumer", "range")],
)
@pytest.mark.parametrize("static", [False, True])
def test_three_clients_share_a_topic(broker: BrokerProcess, protocol: str, assignor: str, static: bool) -> None:
    mixed = Mixed(broker, assignor, static=static, protocol=protocol)
    mixed.join()
    mixed.send()
    others = [mixed.other(name) for name in ("java-4.3" if protocol == "consumer" else "java-3.9", "confluent")]
    mixed.poll_until_has(2)
    mixed.send()
    if static:
        # Away and back in time: nobody else is given anything.
        before = mixed.ours.assignment()
        mixed.ours.close()
        mixed.ours = mixed.consumer()
        mixed.join()
        mixed.poll_until_has(2)
        assert sorted(mixed.ours.assignment()) == sorted(before)
        mixed.send()
    for other in others:
        mixed.read |= other.leave()
        mixed.send()
    mixed.poll_until_has(PARTITIONS)
    mixed.ours.close()
    mixed.check()
