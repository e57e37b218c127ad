"""Other people's clients on three brokers, of which one is killed or stopped: nothing is lost, and nothing comes twice.

Each client has an idempotent producer, two members of a group that read what it writes, and, if it has transactions,
one that moves records from a topic to another, all at the same time.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any
from uuid import uuid4

import pytest

from kbroker.client import ClientError, Consumer, Producer, TopicPartition
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from kbroker.testing import Cluster
from tests.compat.clients import Client, named
from tests.compat.records import checksum
from tests.compat.test_consumer_groups import FAST
from tests.compat.test_transactions import Failed, TransactionalClient
from tests.kit.clients.wire import ConnectionClosed, WireClient
from tests.kit.kafka.cluster import KafkaCluster
from tests.kit.kafka.zookeeper import zookeeper_jars

PARTITIONS, SIZE = 6, 100
AT_ONCE = 10
"""The records that one transaction moves."""
PATIENCE_S = 120.0
GROUP, TRANSACTION = 0, 1
"""Whose coordinator FindCoordinator finds."""
FEW_STATE_PARTITIONS = {
    "group.initial.rebalance.delay.ms": 0,
    "offsets.topic.num.partitions": 6,
    "transaction.state.log.num.partitions": 6,
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster | KafkaCluster]:
    kbrokers: dict[str, Any] = {"settings": {**FEW_STATE_PARTITIONS, **FAST}, "zookeeper_jars": zookeeper_jars()}
    is_kafka = os.environ.get("KBROKER_COMPAT_AGAINST") == "kafka"
    with KafkaCluster() if is_kafka else Cluster(3, **kbrokers) as started:
        yield started


class Mover(threading.Thread):
    """Moves all records of a topic with transactions of a client. After an error a new client process goes on."""

    def __init__(self, client: Client, address: str, count: int, protocol: str):
        super().__init__(daemon=True)
        self.client, self.address, self.count, self.protocol = client, address, count, protocol
        self.name = f"mover-{client.name}-{uuid4().hex[:6]}"
        self.source, self.target = f"{self.name}-source", f"{self.name}-target"
        self.ending = threading.Event()
        self.errors: list[str] = []

    def run(self) -> None:
        while self.moved() < self.count and not self.ending.is_set():
            with TransactionalClient(self.client, self.address) as one, self.noting():
                group = {"group": self.name, "protocol": self.protocol, "source": self.source}
                one.ask("init", PATIENCE_S, id=self.name, timeout_ms=20_000, **group)
                with self.noting():
                    for _ in range((self.count - self.moved()) // AT_ONCE):
                        one.ask("begin")
                        one.ask("move", PATIENCE_S, topic=self.target, count=AT_ONCE)
                        one.ask("commit", PATIENCE_S)
                        if self.ending.is_set():
                            return
                one.ask("leave")

    @contextlib.contextmanager
    def noting(self) -> Iterator[None]:
        try:
            yield
        except (Failed, AssertionError, BrokenPipeError) as error:
            self.errors.append(f"{type(error).__name__}: {error}")

    def moved(self) -> int:
        """Return the number of records whose transactions are committed, by the group's offsets."""
        places = [TopicPartition(self.source, each) for each in range(PARTITIONS)]
        with Consumer(bootstrap_servers=self.address, group_id=self.name) as reader:
            deadline = time.monotonic() + PATIENCE_S
            while True:
                try:
                    return sum(each.offset for each in reader.committed(places).values() if each is not None)
                except ClientError:
                    assert time.monotonic() < deadline
                    time.sleep(0.1)


class Load:
    """What one client does meanwhile. Its groups have the protocol `protocol`: "classic", or "consumer" (KIP-848)."""

    def __init__(
        self, client: Client, cluster: Cluster | KafkaCluster, count: int, pause_ms: int, moved: int,
        protocol: str = "classic",
    ):  # fmt: skip
        self.client, self.cluster, self.count, self.moved = client, cluster, count, moved
        self.topic = f"failover-{client.name}-{uuid4().hex[:6]}"
        has_transactions = "transactions" not in client.lacks
        self.mover = Mover(client, cluster.bootstrap_servers, moved, protocol) if has_transactions else None
        self.topics = [self.topic, *([self.mover.source, self.mover.target] if self.mover else [])]
        for topic in self.topics:
            cluster.create_topic(topic, PARTITIONS)
        if self.mover is not None:
            self.fill(self.mover.source)
        told = {"bootstrap": cluster.bootstrap_servers, "topic": self.topic, "count": count}
        self.produced = {
            "first": 0, "size": SIZE, "codec": "none", "headers": False, "nulls": False, "acks": -1,
            "pause_ms": pause_ms, "idempotent": True, **told,
        }  # fmt: skip
        self.grouped = {
            "group": self.topic, "timeout_s": int(PATIENCE_S), "assignor": None, "static": False, "protocol": protocol,
            **told,
        }  # fmt: skip
        self.processes: list[subprocess.Popen[str]] = []

    def fill(self, topic: str) -> None:
        with Producer(bootstrap_servers=self.cluster.bootstrap_servers) as producer:
            for number in range(self.moved):
                producer.send(topic, b"%d" % number, partition=number % PARTITIONS)
            producer.flush()

    def start(self) -> None:
        self.processes = [self.client.start((each, told)) for each, told in
                          (("produce", self.produced), ("group", self.grouped))]  # fmt: skip
        if self.mover is not None:
            self.mover.start()

    def committed(self, group: str, topic: str) -> dict[int, int]:
        """Return the offsets that a group has committed, by partition."""
        with Consumer(bootstrap_servers=self.cluster.bootstrap_servers, group_id=group) as reader:
            found = reader.committed([TopicPartition(topic, each) for each in range(PARTITIONS)])
        return {place.partition_id: each.offset for place, each in found.items() if each is not None}

    def await_begun(self) -> None:
        """Wait until something is produced, read and moved."""
        groups = [self.topic, *([self.mover.name] if self.mover else [])]
        deadline = time.monotonic() + PATIENCE_S
        for group, topic in zip(groups, self.topics, strict=False):
            while not self.committed(group, topic):
                assert time.monotonic() < deadline, f"{group} commits nothing"
                for process in self.processes:
                    if process.poll() not in (None, 0):
                        self.client.finish(process)
                time.sleep(0.1)

    def finish(self) -> None:
        producing, reading = self.processes
        (done,) = self.client.finish(producing, timeout_s=PATIENCE_S)
        assert done == {"acked": self.count, "checksum": checksum(0, self.count, SIZE, False, False)}
        (group,) = self.client.finish(reading, timeout_s=PATIENCE_S)
        assert group["distinct"] == self.count
        assert group.get("again", 0) == 0, group
        assert group["committed"] in (self.count, None)
        found = read_all(self.cluster, self.topic)
        assert_once_and_in_order(found, self.count)
        if self.mover is not None:
            self.mover.join(PATIENCE_S)
            assert not self.mover.is_alive(), self.mover.errors
            moved = read_all(self.cluster, self.mover.target)
            expected = {at: [*range(at, self.moved, PARTITIONS)] for at in range(PARTITIONS)}
            assert moved == expected, self.mover.errors

    def end(self) -> None:
        """Leave nothing running."""
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.communicate()
        if self.mover is not None and self.mover.ident is not None:
            self.mover.ending.set()
            self.mover.join(PATIENCE_S)


def read_all(cluster: Cluster | KafkaCluster, topic: str) -> dict[int, list[int]]:
    """Return the numbers that the committed values begin with, by partition, in order."""
    found: dict[int, list[int]] = defaultdict(list)
    with Consumer(
        bootstrap_servers=cluster.bootstrap_servers, auto_offset_reset="earliest", isolation_level="read_committed"
    ) as consumer:
        places = [TopicPartition(topic, each) for each in range(PARTITIONS)]
        consumer.assign(places)
        ends = consumer.end_offsets(places)
        deadline = time.monotonic() + PATIENCE_S
        while any((consumer.position(*each) or 0) < end for each, end in ends.items()):
            assert time.monotonic() < deadline
            for record in consumer.poll(1.0):
                found[record.partition].append(int((record.value or b"").partition(b":")[0].rstrip(b"!")))
    return found


def assert_once_and_in_order(found: dict[int, list[int]], count: int) -> None:
    for partition, numbers in found.items():
        assert numbers == sorted(numbers), f"partition {partition} is out of order"
    numbers = sorted(number for each in found.values() for number in each)
    assert numbers == list(range(count))


class Failovers:
    """What happens to brokers. Each method does one thing; afterwards all brokers run again, and all is in sync."""

    def __init__(self, cluster: Cluster | KafkaCluster, loads: Sequence[Load]):
        self.cluster, self.loads = cluster, loads

    def coordinator(self, key: str, kind: int) -> int:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            for address in self.cluster.bootstrap_servers.split(","):
                with contextlib.suppress(OSError, ConnectionClosed):
                    host, _, port = address.rpartition(":")
                    with WireClient(host, int(port)) as client:
                        asked = M.FindCoordinatorRequest(key=key, key_type=kind)
                        answer: Any = client.call(ApiKey.FIND_COORDINATOR, 3, asked)
                    if not answer.error_code:
                        return int(answer.node_id)
            assert time.monotonic() < deadline, f"{key} has no coordinator"
            time.sleep(0.1)

    def kill(self, node_id: int) -> None:
        self.cluster.kill(node_id)
        time.sleep(1.5)
        self.cluster.start(node_id)

    def leader_and_group_coordinator_killed(self) -> None:
        """The group's coordinator leads two partitions of each topic too."""
        self.kill(self.coordinator(self.loads[0].topic, GROUP))

    def transaction_coordinator_killed(self) -> None:
        mover = self.loads[0].mover
        self.kill(self.coordinator(mover.name, TRANSACTION) if mover else self.cluster.leader(self.loads[0].topic))

    def leader_stopped(self) -> None:
        leader = self.cluster.leader(self.loads[0].topic)
        self.cluster.stop(leader)
        time.sleep(0.5)
        self.cluster.start(leader)

    def controller_killed(self) -> None:
        self.kill(self.cluster.controller())


ALL = (
    Failovers.leader_and_group_coordinator_killed, Failovers.transaction_coordinator_killed,
    Failovers.leader_stopped, Failovers.controller_killed,
)  # fmt: skip
OFTEN = (["confluent", "java-4.3"], (Failovers.leader_and_group_coordinator_killed,))
SELDOM = [([name], ALL) for name in ("java-3.9", "java-4.3", "confluent", "franz-go", "kafkajs", "aiokafka")]


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("names", "failovers"),
    [
        pytest.param(*OFTEN, id="often"),
        *(pytest.param(*each, id=each[0][0], marks=pytest.mark.slow) for each in SELDOM),
    ],
)
def test_clients_go_on_when_their_leaders_and_coordinators_change(
    cluster: Cluster | KafkaCluster, names: list[str], failovers: Sequence[Any]
) -> None:
    count, pause_ms, moved = (100_000, 250, 3_000) if failovers is ALL else (20_000, 300, 300)
    loads = [Load(named(name), cluster, count, pause_ms, moved) for name in names]
    with running(loads):
        happening = Failovers(cluster, loads)
        for failover in failovers:
            failover(happening)
        for load in loads:
            load.finish()


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_groups_of_the_newer_protocol_go_on_when_the_broker_of_their_coordinator_is_killed(
    cluster: Cluster | KafkaCluster,
) -> None:
    """KIP-848: what was committed is there at the next coordinator, and no member reads again what it has committed."""
    loads = [Load(named(name), cluster, 12_000, 300, 300, "consumer") for name in ("confluent", "java-4.3")]
    with running(loads):
        happening = Failovers(cluster, loads)
        for load in loads:
            lost = happening.coordinator(load.topic, GROUP)
            before = load.committed(load.topic, load.topic)
            cluster.kill(lost)
            deadline = time.monotonic() + PATIENCE_S
            while happening.coordinator(load.topic, GROUP) == lost:
                assert time.monotonic() < deadline
                time.sleep(0.1)
            after = load.committed(load.topic, load.topic)
            assert all(after[partition] >= offset for partition, offset in before.items()), (before, after)
            cluster.start(lost)
        for load in loads:
            load.finish()
            assert group_type(cluster, load.topic) == "consumer"


@contextlib.contextmanager
def running(loads: Sequence[Load]) -> Iterator[None]:
    """A context manager: the loads run, each has begun."""
    try:
        for load in loads:
            load.start()
        for load in loads:
            load.await_begun()
        yield
    finally:
        for load in loads:
            load.end()


def group_type(cluster: Cluster | KafkaCluster, group: str) -> str:
    """Return the protocol that a group has now."""
    for address in cluster.bootstrap_servers.split(","):
        host, _, port = address.rpartition(":")
        with WireClient(host, int(port)) as client:
            for each in client.call(ApiKey.LIST_GROUPS, 5, M.ListGroupsRequest()).groups:
                if each.group_id == group:
                    return str(each.group_type)
    return ""
