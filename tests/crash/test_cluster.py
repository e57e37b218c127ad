"""A share of the cluster rounds, and that they can fail; full disks."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kbroker.errors import ErrorCode
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from tests.crash import migration
from tests.crash.cluster_rounds import at_rest, run
from tests.kit.clients.wire import WireClient
from tests.kit.cluster import tree
from tests.kit.cluster.cluster import Cluster
from tests.kit.crash.transaction_history import Outcome
from tests.kit.logs.home import batch_of

KBROKERS = ("kbroker", "kbroker", "kbroker")
KAFKAS = ("kafka", "kafka", "kafka")
MIXED = ("kbroker", "kbroker", "kafka")
MOSTLY_KAFKA = ("kafka", "kafka", "kbroker")


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("brokers", "seed"),
    [
        (KBROKERS, 1),
        (MIXED, 2),
        pytest.param(KBROKERS, 3, marks=pytest.mark.slow),
        pytest.param(MOSTLY_KAFKA, 4, marks=pytest.mark.slow),
        pytest.param(KAFKAS, 5, marks=pytest.mark.slow),
    ],
)
def test_nothing_acknowledged_is_lost_whatever_happens_to_brokers_and_networks(
    brokers: tuple[str, ...], seed: int
) -> None:
    result = run(seed, brokers=brokers, seconds=6)
    assert not result.is_bad, result
    assert result.outcomes[Outcome.COMMITTED] > 30 and result.records > 1000, result


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize(("plant", "fault"), [("acks=1", "isolate_leader"), ("unclean", "kill_in_order")])
@pytest.mark.parametrize("brokers", [KAFKAS, KBROKERS], ids="-".join)
def test_records_that_only_a_lost_leader_had_are_missed(brokers: tuple[str, ...], plant: str, fault: str) -> None:
    result = run(1, brokers=brokers, seconds=4, faults=[fault], plant=plant)
    assert any("crash-" in line and "plain" in line for line in result.wrong), result


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_kafkas_become_kbrokers_and_kafkas_again_under_load_and_nothing_is_lost() -> None:
    result = migration.run()
    assert not result.is_bad, result
    assert result.outcomes[Outcome.COMMITTED] > 30 and result.records > 1000, result


@pytest.mark.timeout(300)
def test_replicas_that_a_full_disk_refuses_are_in_sync_again_when_there_is_room() -> None:
    """Without a restart of the broker: it asks the controller for its roles when the disk takes them."""
    with Cluster(KBROKERS, {"min.insync.replicas": 2}, disk="100m") as cluster, cluster.entered():
        cluster.fill_disk(2)
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        admin.create_topics([NewTopic("late", 3, 3)])["late"].result(30)
        producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "acks": "all"})
        failed: list[object] = []
        for number in range(300):
            producer.produce(
                "late", b"%d" % number, partition=number % 3,
                on_delivery=lambda error, _: failed.append(error) if error else None,
            )  # fmt: skip
        assert producer.flush(30) == 0
        assert not failed
        assert {cluster.leader("late", partition) for partition in range(3)} <= {1, 3}
        cluster.free_disk(2)
        cluster.await_settled()
        assert not at_rest(cluster)


@contextlib.contextmanager
def disks() -> Iterator[Cluster]:
    """Three kbrokers with disks of their own, and a topic "t" whose partition N broker N + 1 leads, all in sync."""
    with Cluster(KBROKERS, {"min.insync.replicas": 2}, disk="100m") as cluster, cluster.entered():
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        replicas = [[1, 2, 3], [2, 3, 1], [3, 1, 2]]
        admin.create_topics([NewTopic("t", 3, replica_assignment=replicas)])["t"].result(30)
        cluster.await_settled()
        yield cluster


def produce(cluster: Cluster, node_id: int) -> int:
    """Produce 20 KB with acks=all to the partition that a broker leads; return the error code."""
    node = cluster.nodes[node_id]
    data = M.ProduceRequest.PartitionProduceData(
        index=node_id - 1, records=batch_of([b"x" * 20_000], int(time.time() * 1000))
    )
    topic = M.ProduceRequest.TopicProduceData(name="t", partition_data=[data])
    with WireClient(node.host.address, node.port, timeout_s=60) as client:
        answer = client.call(ApiKey.PRODUCE, 9, M.ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[topic]))
    return int(answer.responses[0].partition_responses[0].error_code)


def isrs(cluster: Cluster) -> dict[int, set[int]]:
    """Return who is in sync, by partition of the topic."""
    found = {one.index: one for one in tree.partitions(cluster.tree()) if one.topic == "t"}
    return {at: set(one.state["isr"]) for at, one in found.items() if one.state is not None}


@pytest.mark.timeout(200)
def test_a_leader_with_a_full_disk_refuses_records_and_what_others_lead_goes_on() -> None:
    with disks() as cluster:
        assert [produce(cluster, each) for each in (1, 2, 3)] == [0, 0, 0]
        cluster.fill_disk(1)
        assert produce(cluster, 1) == ErrorCode.KAFKA_STORAGE_ERROR
        assert [produce(cluster, each) for each in (2, 3)] == [0, 0], "once the full follower has left the ISR"
        assert produce(cluster, 1) == ErrorCode.KAFKA_STORAGE_ERROR
        assert cluster.leader("t") == 1, "what it has is read there"
        cluster.free_disk(1)
        cluster.await_settled()
        assert [produce(cluster, each) for each in (1, 2, 3)] == [0, 0, 0]
        assert not at_rest(cluster)


@pytest.mark.timeout(200)
def test_a_follower_with_a_full_disk_leaves_the_isr_and_comes_back_when_there_is_room() -> None:
    with disks() as cluster:
        cluster.fill_disk(3)
        assert [produce(cluster, each) for each in (1, 2)] == [0, 0]
        assert isrs(cluster) == {0: {1, 2}, 1: {1, 2}, 2: {1, 2, 3}}
        assert all(node.is_running for node in cluster.nodes.values())
        cluster.free_disk(3)
        cluster.await_settled()
        assert isrs(cluster) == {0: {1, 2, 3}, 1: {1, 2, 3}, 2: {1, 2, 3}}
        assert not at_rest(cluster)
