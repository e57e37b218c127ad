"""A connector on three brokers of which one, a leader of its partitions, is killed."""

from __future__ import annotations

import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from kbroker.client import AdminClient, Delivery, Producer
from kbroker.coordination.zookeeper import ZooKeeperStore
from kbroker.model import TopicPartition
from kbroker.testing import Cluster
from tests.kit.clients.connectors import QUICK, Reading
from tests.kit.parts.processors import wait_until

TOPIC, GROUP = "t", "g"
PARTITIONS = 6
WAIT_S = 60.0
AT_ONCE = 60
STORAGES: dict[str, dict[str, Any]] = {
    "zookeeper": {},
    "kafka": {"offsets_storage": "kafka", "dual_commit_enabled": False},
}

pytestmark = pytest.mark.timeout(240)


def committed(cluster: Cluster, storage: str) -> dict[int, int]:
    """Return the group's offset in each partition, from where its members keep offsets."""
    if storage == "kafka":
        with AdminClient(bootstrap_servers=cluster.bootstrap_servers) as admin:
            return {at.partition_id: each.offset for at, each in admin.committed(GROUP).items()}
    tree = ZooKeeperStore(cluster.zookeeper.connect, WAIT_S)
    try:
        path = f"/consumers/{GROUP}/offsets/{TOPIC}"
        return {int(name): int(tree.get(f"{path}/{name}")[0]) for name in tree.children(path)}
    finally:
        tree.close()


@pytest.mark.parametrize("storage", STORAGES)
def test_a_connector_reads_on_from_the_leaders_after_those_that_were_killed(jars: Path, storage: str) -> None:
    deliveries: list[Delivery] = []

    with (
        Cluster(3, zookeeper_jars=jars) as cluster,
        Producer(bootstrap_servers=cluster.bootstrap_servers, acks="all") as producer,
    ):
        cluster.create_topic(TOPIC, PARTITIONS, 3)
        leaders = [cluster.leader(TOPIC, number) for number in range(PARTITIONS)]
        assert set(leaders) == set(cluster.brokers)

        def send() -> None:
            for _ in range(AT_ONCE):
                number = len(deliveries)
                deliveries.append(producer.send(TOPIC, b"%d" % number, partition=number % PARTITIONS))

        def read_all(member: Reading) -> None:
            """Have everything acknowledged and read: the records of each partition once and in order."""
            producer.flush(WAIT_S)
            assert [each.exception(0) for each in deliveries if each.exception(0) is not None] == []
            wait_until(lambda: len(member.values) >= len(deliveries), "the member has not read everything", WAIT_S)
            found = defaultdict(list)
            for at, offset, value in list(member.records):
                found[at].append((offset, int(value or b"")))
            assert found == {
                TopicPartition(TOPIC, number): list(enumerate(range(number, len(deliveries), PARTITIONS)))
                for number in range(PARTITIONS)
            }

        options = QUICK | STORAGES[storage]
        with Reading({TOPIC: 2}, zookeeper_connect=cluster.zookeeper.connect, group_id=GROUP, **options) as member:
            send()
            read_all(member)
            send()  # under way when the leader dies
            victim = leaders[0]
            cluster.kill(victim)
            deadline = time.monotonic() + WAIT_S
            while cluster.leader(TOPIC) in (victim, -1):
                assert time.monotonic() < deadline, "there is no new leader"
                send()
            read_all(member)
            cluster.start(victim)
            send()
            read_all(member)
        assert committed(cluster, storage) == dict.fromkeys(range(PARTITIONS), len(deliveries) // PARTITIONS)
