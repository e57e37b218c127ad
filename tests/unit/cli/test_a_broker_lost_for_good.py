"""docs/CLUSTER.md's way when a broker is lost and nobody takes its place: `reassign plan --without`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kbroker.client import AdminClient, Consumer, Producer
from kbroker.testing import Cluster
from tests.kit.clients.commands import Run, commands_here, from_json
from tests.kit.parts.processors import wait_until

WAIT_S = 60.0
LOST = 3


@pytest.fixture
def cluster(jars: Path) -> Iterator[Cluster]:
    with Cluster(4, settings={"offsets.topic.num.partitions": 3}, zookeeper_jars=jars) as started:
        yield started


def holdings(cluster: Cluster, broker_id: int) -> int:
    """Return how many replicas a broker says that it has."""
    with AdminClient(bootstrap_servers=cluster.bootstrap_servers) as admin:
        (directories,) = admin.describe_log_dirs([broker_id]).values()
    return sum(len(each.replicas) for each in directories)


def known(here: Run) -> list[int]:
    return [each["id"] for each in from_json(here("cluster", "status", "--json", code=None))["brokers"]]


def test_a_dead_broker_is_planned_away_and_holds_nothing_when_it_is_back(cluster: Cluster) -> None:
    """With topics of two and three replicas, and groups. No record is lost, and the status is ready without it."""
    cluster.create_topic("views", partitions=8)
    cluster.create_topic("clicks", partitions=4, replication_factor=2, min_insync_replicas=1)
    with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        for topic in ("views", "clicks"):
            producer.send_many(topic, [b"%d" % each for each in range(100)])
        producer.flush(WAIT_S)
    with AdminClient(bootstrap_servers=cluster.bootstrap_servers) as admin:
        admin.alter_offsets("readers", {("views", 0): 0})
    cluster.await_in_sync()
    assert holdings(cluster, LOST) > 8
    left = [broker for each, broker in cluster.brokers.items() if each != LOST]
    here = commands_here(",".join(broker.bootstrap_servers for broker in left))

    cluster.kill(LOST)
    wait_until(lambda: LOST not in known(here), "the loss of the broker", WAIT_S)
    here("cluster", "status", code=1)
    here("reassign", "plan", "--without", str(LOST), "--execute")
    wait_until(lambda: not here("reassign", "status", code=None).returncode, "the end of all moves", WAIT_S)
    status = from_json(here("cluster", "status", "--json"))
    assert [each["id"] for each in status["brokers"]] == [1, 2, 4]
    assert (status["under_replicated_partitions"], status["offline_partitions"], status["lagging"]) == (0, 0, [])
    assert here("reassign", "plan").stdout == b"nothing has to move\n", "no broker is missed"

    cluster.start(LOST)
    wait_until(lambda: holdings(cluster, LOST) == 0, "the removal of its old replicas", WAIT_S)
    here("cluster", "status")
    assert known(here) == [1, 2, 3, 4]
    with Consumer(bootstrap_servers=cluster.bootstrap_servers, auto_offset_reset="earliest") as consumer:
        consumer.assign_topics("views", "clicks")
        found: list[tuple[str, int]] = []
        while len(found) < 200:
            found += ((each.topic, int(each.value or b"")) for each in consumer.poll(WAIT_S))
    assert sorted(found) == sorted((topic, each) for topic in ("views", "clicks") for each in range(100))
