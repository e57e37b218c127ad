"""A share of the cluster rounds, and that they can fail."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.crash import migration
from tests.crash.cluster_rounds import at_rest, run
from tests.kit.cluster.cluster import Cluster
from tests.kit.crash.transaction_history import Outcome

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
