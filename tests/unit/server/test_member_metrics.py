"""Metrics of members of a cluster, by Kafka's meaning: each is driven away from 0 and back."""

from __future__ import annotations

import urllib.request
from collections.abc import Sequence

from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from kbroker.protocol.records import encode_batch
from tests.kit.brokers.whole import WholeBroker
from tests.kit.cluster.members import Members, await_that

HTTP = {"kbroker__http__address": "127.0.0.1:0", "replica__lag__time__max__ms": 1_000}
OF_TOPIC, OF_BROKER = 2, 4
RECORD = b"x" * 100_000


def metrics(broker: WholeBroker) -> dict[str, float]:
    """Return the samples, by name and labels as in the text."""
    with urllib.request.urlopen(f"http://127.0.0.1:{broker.broker._http.address[1]}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    values = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name: float(value) for name, value in values}


def told(broker: WholeBroker, *names: str) -> list[float]:
    found = metrics(broker)
    return [found[f"kbroker_{name}"] for name in names]


def create(members: Members, name: str, *replicas: Sequence[int]) -> None:
    C = M.CreateTopicsRequest
    placed = [C.CreatableReplicaAssignment(partition_index=n, broker_ids=list(ids)) for n, ids in enumerate(replicas)]
    topic = C.CreatableTopic(name=name, num_partitions=-1, replication_factor=-1, assignments=placed)
    answer = members.controller.call(ApiKey.CREATE_TOPICS, 5, C(topics=[topic], timeout_ms=20_000))
    assert answer.topics[0].error_code == 0
    for partition in range(len(replicas)):
        await_that(lambda partition=partition: members.leader_of(name, partition) is not None)


def append_unacknowledged(broker: WholeBroker, topic: str) -> None:
    """Append a record to partition 0, without waiting for followers."""
    data = M.ProduceRequest.PartitionProduceData(index=0, records=encode_batch([(1000, None, b"x")]))
    to = M.ProduceRequest.TopicProduceData(name=topic, partition_data=[data])
    broker.call(ApiKey.PRODUCE, 7, M.ProduceRequest(acks=1, timeout_ms=10_000, topic_data=[to]))


def configure(broker: WholeBroker, kind: int, name: str, setting: str, value: str | None) -> None:
    R = M.IncrementalAlterConfigsRequest
    config = R.AlterableConfig(name=setting, config_operation=0 if value is not None else 1, value=value)
    resource = R.AlterConfigsResource(resource_type=kind, resource_name=name, configs=[config])
    answer = broker.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, R(resources=[resource]))
    assert answer.responses[0].error_code == 0


def start_in_turn(members: Members, *ids: int) -> list[WholeBroker]:
    """Start members; the first one is the controller."""
    started: list[WholeBroker] = []
    for node_id in ids:
        started.append(members.start(node_id, **HTTP))
        members.settle(*ids[: len(started)])
        await_that(lambda: members.cluster(ids[0]).is_controller)
    return started


def test_a_follower_that_does_not_fetch_is_missed_and_let_in_again(members: Members) -> None:
    one, two = start_in_turn(members, 1, 2)
    create(members, "t", [1, 2])
    names = ("under_replicated_partitions", "under_min_isr_partitions", "at_min_isr_partitions")
    names += ("isr_shrinks_total", "isr_expands_total")
    assert told(one, *names) == [0, 0, 0, 0, 0]
    two.broker._home._fetchers.close()
    append_unacknowledged(one, "t")
    await_that(lambda: told(one, *names) == [1, 0, 1, 1, 0])
    configure(one, OF_TOPIC, "t", "min.insync.replicas", "2")
    await_that(lambda: told(one, *names) == [1, 1, 0, 1, 0])
    members.stop(2)
    members.start(2, **HTTP)
    await_that(lambda: told(one, *names) == [0, 0, 1, 1, 1])
    configure(one, OF_TOPIC, "t", "min.insync.replicas", "1")
    await_that(lambda: told(one, *names) == [0, 0, 0, 1, 1])


def test_partitions_without_a_leader_are_counted_by_the_controller_alone(members: Members) -> None:
    one, two = start_in_turn(members, 1, 2)
    create(members, "alone", [2])
    create(members, "t", [2, 1])
    of_cluster = ("global_topics", "global_partitions")
    assert [told(each, *of_cluster) for each in (one, two)] == [[2, 2], [0, 0]]
    names = ("active_controller", "offline_partitions", "preferred_replica_imbalance")
    assert told(one, *names) == [1, 0, 0]
    assert told(two, *names) == [0, 0, 0]
    elections = ("leader_elections_total", "leader_election_seconds_total", "leader_changes_total")
    held, took, changed = told(one, *elections)
    members.stop(2)
    await_that(lambda: told(one, *names) == [1, 1, 2])
    await_that(lambda: told(one, elections[0])[0] > held)
    assert told(one, *elections)[1] > took and told(one, *elections)[2] == changed + 1
    two = members.start(2, **HTTP)
    await_that(lambda: told(one, *names)[:2] == [1, 0])
    for name in ("alone", "t"):
        await_that(lambda name=name: members.leader_of(name, 0) is not None)
    R = M.ElectLeadersRequest
    preferred = R(topic_partitions=[R.TopicPartitions(topic="t", partitions=[0])], timeout_ms=10_000)
    one.call(ApiKey.ELECT_LEADERS, 2, preferred)
    await_that(lambda: told(one, *names) == [1, 0, 0])
    members.stop(1)
    await_that(lambda: told(two, *names) == [1, 0, 0])


def test_an_unclean_election_is_counted(members: Members) -> None:
    start_in_turn(members, 1, 2)
    create(members, "t", [1, 2])
    members.stop(1)
    members.settle(2)
    members.stop(2)
    one = members.start(1, **HTTP)
    names = ("offline_partitions", "unclean_leader_elections_total")
    await_that(lambda: told(one, *names) == [1, 0])
    configure(one, OF_TOPIC, "t", "unclean.leader.election.enable", "true")
    await_that(lambda: told(one, *names) == [0, 1])


def test_the_lag_of_a_replica_that_copies_is_told_until_it_has_all(members: Members) -> None:
    one, two = start_in_turn(members, 1, 2)
    create(members, "t", [1])
    for _ in range(30):
        one.append("t", 0, [RECORD])
    configure(one, OF_TOPIC, "t", "follower.replication.throttled.replicas", "*")
    configure(two, OF_BROKER, "2", "follower.replication.throttled.rate", "1")
    R = M.AlterPartitionReassignmentsRequest
    moved = R.ReassignableTopic(name="t", partitions=[R.ReassignablePartition(partition_index=0, replicas=[1, 2])])
    answer = one.call(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, R(topics=[moved]))
    assert answer.responses[0].partitions[0].error_code == 0
    lag = 'kbroker_replica_lag{partition="0",topic="t"}'
    await_that(lambda: lag in metrics(two))
    found = metrics(two)
    assert 0 < found[lag] <= 30 and found["kbroker_replica_lag_max"] == found[lag]
    assert told(one, "replica_lag_max", "under_replicated_partitions") == [0, 0], "the leader; it is not missed yet"
    configure(two, OF_BROKER, "2", "follower.replication.throttled.rate", None)
    await_that(lambda: members.leader_of("t", 0) is one)
    await_that(lambda: told(two, "replica_lag_max") == [0])
    assert lag not in metrics(two)
    copied = [told(each, "replica_bytes_in_total")[0] for each in (one, two)]
    assert copied[0] == 0 and 30 * len(RECORD) < copied[1] < 31 * len(RECORD)
    assert two.log_of("t", 0).log_end_offset == 30
