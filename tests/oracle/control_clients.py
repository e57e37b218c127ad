"""What clients ask the brokers of a cluster where a broker that is alone has little to tell: about racks, about
replicas and their directories, about who is away.

Cases without `@case` change what the others find: `control_answers` has them when these are over.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from kbroker.errors import ErrorCode
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from tests.kit.clients.wire import WireClient
from tests.oracle.answers import Names
from tests.oracle.control_story import STAND_IN
from tests.oracle.control_talk import FETCH_WITH_RACKS, TIMEOUT_S, TOPIC, Talk, case, make_topic, served
from tests.oracle.scenarios.requests import produce, records

WITH_ENDPOINT_TYPE, CONTROLLERS = 1, 2
"""The first version of DescribeCluster that says what is asked for, and what asks for controllers."""
HERE, ONE_SIDED, NONE_SUCH = 0, 1, 9
"""Partitions: one of both brokers, one of which only one of them has a replica, and one that is not there."""


# --- racks (KIP-392) ------------------------------------------------------------------------------------
@case
def consumers_are_sent_to_a_replica_in_their_rack(t: Talk) -> None:
    topic, alone = "racked", "stale"
    make_topic(t.cluster, topic, [[1, 2]])
    make_topic(t.cluster, alone, [[1, STAND_IN]])
    t.ask(produce(topic, records(3)), node_id=1)
    t.ask(produce(alone, records(3), acks=1), node_id=1)
    t.await_that("a follower that knows what consumers may read", lambda: has_records(t, topic))
    for version in range(FETCH_WITH_RACKS, served(ApiKey.FETCH).stop):

        def fetch(rack: str, node_id: int = 1, topic: str = topic, offset: int = 0, version: int = version) -> None:
            asked = t.fetch(
                0, replica_id=-1, version=version, topic=topic, topic_id=t.state(topic).topic_id,
                rack_id=rack, fetch_offset=offset,
            )  # fmt: skip
            t.ask(asked, node_id=node_id, version=version)

        for rack in ("r1", "r2", "r3", "r9", ""):
            fetch(rack)
        fetch("r2", offset=3)
        fetch("r2", node_id=2)
        fetch("r1", node_id=2)
        fetch(f"r{STAND_IN}", topic=alone)  # it has fetched nothing


def has_records(t: Talk, topic: str) -> bool:
    """Return whether broker 2, which follows, gives records to consumers."""
    node = t.cluster.nodes[2]
    with WireClient(node.host.address, node.port, timeout_s=TIMEOUT_S) as client:
        answer = client.call(ApiKey.FETCH, 12, t.fetch(0, replica_id=-1, topic=topic, rack_id="r2"))
    return bool(answer.responses[0].partitions[0].records)


# --- who is there ---------------------------------------------------------------------------------------
@case
def brokers_and_their_racks(t: Talk) -> None:
    R = M.DescribeClusterRequest
    for version in served(ApiKey.DESCRIBE_CLUSTER):
        for node_id in t.cluster.nodes:
            t.ask(R(include_cluster_authorized_operations=True), node_id=node_id, version=version)
        if version >= WITH_ENDPOINT_TYPE:
            t.ask(R(endpoint_type=CONTROLLERS), version=version)


@contextlib.contextmanager
def away(t: Talk) -> Iterator[None]:
    """A block in which the stand-in is away, as both brokers know."""
    t.stand_in.unregister()
    t.await_that(
        "brokers that know who is away", lambda: not any(relies_on_stand_in(t, each) for each in t.cluster.nodes)
    )
    yield
    t.stand_in.register()
    t.await_that("brokers that know who is back", lambda: all(knows_stand_in(t, each) for each in t.cluster.nodes))
    t.stand_in.take()


def relies_on_stand_in(t: Talk, node_id: int) -> bool:
    """Return whether a broker tells clients of the stand-in, or has it in an ISR, which changes after the leaders. The
    last in an ISR stays there."""
    told = told_by(t, node_id)
    isrs = [each.isr_nodes for topic in told.topics for each in topic.partitions]
    return knows_stand_in(t, node_id) or any(STAND_IN in isr and len(isr) > 1 for isr in isrs)


def knows_stand_in(t: Talk, node_id: int) -> bool:
    """Return whether a broker tells clients of the stand-in, as one of the brokers or as a leader."""
    told = told_by(t, node_id)
    leaders = {each.leader_id for topic in told.topics for each in topic.partitions}
    return STAND_IN in leaders | {broker.node_id for broker in told.brokers}


def told_by(t: Talk, node_id: int) -> M.MetadataResponse:
    node = t.cluster.nodes[node_id]
    with WireClient(node.host.address, node.port, timeout_s=TIMEOUT_S) as client:
        told: M.MetadataResponse = client.call(ApiKey.METADATA, 12, M.MetadataRequest(topics=None))
    return told


def what_clients_are_told_of_a_replica_that_is_away(t: Talk) -> None:
    R = M.MetadataRequest
    with away(t):
        pass  # its new life ends the shutdown that it had asked for
    make_topic(t.cluster, "away", [[STAND_IN, 1, 2], [1, STAND_IN, 2]])
    make_topic(t.cluster, "gone", [[STAND_IN]])
    asked = R(topics=[R.MetadataRequestTopic(name=name) for name in ("away", "gone")])
    with away(t):
        for node_id in t.cluster.nodes:
            for version in served(ApiKey.METADATA):
                t.ask(asked, node_id=node_id, version=version)
            for version in served(ApiKey.DESCRIBE_CLUSTER):
                t.ask(M.DescribeClusterRequest(), node_id=node_id, version=version)


def changes_of_a_topic_that_is_being_deleted(t: Talk) -> None:
    """A deletion waits for each replica that is away."""
    topic = "going"
    make_topic(t.cluster, topic, [[1, STAND_IN]])
    with away(t):
        D = M.DeleteTopicsRequest
        t.ask(D(topics=[D.DeleteTopicState(name=topic)], timeout_ms=0), node_id=1)
        t.await_that("a deletion", lambda: f"/admin/delete_topics/{topic}" in t.cluster.tree())
        t.await_that("brokers that know of it", lambda: is_missing(t, topic))
        R = M.AlterPartitionReassignmentsRequest
        for replicas in ([1, 2], [2], None):
            one = R.ReassignablePartition(partition_index=0, replicas=replicas)
            t.ask(R(timeout_ms=5000, topics=[R.ReassignableTopic(name=topic, partitions=[one])]), node_id=1)
        L = M.ListPartitionReassignmentsRequest
        t.ask(L(timeout_ms=5000, topics=None), node_id=1)
        P, E = M.CreatePartitionsRequest, M.ElectLeadersRequest
        for version in served(ApiKey.CREATE_PARTITIONS):
            grown = P.CreatePartitionsTopic(name=topic, count=2, assignments=None)
            t.ask(P(topics=[grown], timeout_ms=5000), node_id=1, version=version)
        for version in served(ApiKey.ELECT_LEADERS):
            named = [E.TopicPartitions(topic=topic, partitions=[0, 1])]
            t.ask(E(topic_partitions=named, timeout_ms=5000), node_id=1, version=version)
        C = M.CreateTopicsRequest
        made = C.CreatableTopic(name=topic, num_partitions=1, replication_factor=1)
        t.ask(C(topics=[made], timeout_ms=5000), node_id=1)
        t.ask(D(topics=[D.DeleteTopicState(name=topic)], timeout_ms=0), node_id=1)
        t.answers[-1]["responses"][topic].pop("error_message")  # Kafka has a text for it in KRaft mode only
        t.answers.append(f"/brokers/topics/{topic}" in t.cluster.tree())
    t.await_that("the end of the deletion", lambda: f"/brokers/topics/{topic}" not in t.cluster.tree())


def is_missing(t: Talk, topic: str) -> bool:
    node = t.cluster.nodes[1]
    with WireClient(node.host.address, node.port, timeout_s=TIMEOUT_S) as client:
        answer = client.call(ApiKey.METADATA, 12, t.metadata(topic))
    return bool(answer.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


# --- directories (KIP-113) ------------------------------------------------------------------------------
@case
def replicas_and_their_directories(t: Talk) -> None:
    topic = "stored"
    make_topic(t.cluster, topic, [[1, 2], [1, STAND_IN]])
    t.ask(produce(topic, records(3)), node_id=1)
    for version in served(ApiKey.ALTER_REPLICA_LOG_DIRS):
        move(t, version, version % 2, (topic, [HERE, ONE_SIDED]))
        t.await_that("the move", lambda to=version % 2: all(is_in(t, each, topic, to) for each in t.cluster.nodes))
        for described in served(ApiKey.DESCRIBE_LOG_DIRS):
            for node_id in t.cluster.nodes:
                describe_directories(t, described, node_id, topic)


@case
def directories_of_replicas_that_come_later(t: Talk) -> None:
    """What is not here yet is made in the directory that was named for it."""
    for version in served(ApiKey.ALTER_REPLICA_LOG_DIRS):
        topic = f"later-{version}"
        move(t, version, version % 2, (topic, [HERE, ONE_SIDED]))
        make_topic(t.cluster, topic, [[1, 2], [2, STAND_IN]])
        t.ask(produce(topic, records(3)), node_id=1)
        describe_directories(t, 4, 1, topic)
        describe_directories(t, 4, 2, topic)


@case
def moves_of_replicas_that_cannot_be(t: Talk) -> None:
    R = M.AlterReplicaLogDirsRequest
    topic = "stored"
    for version in served(ApiKey.ALTER_REPLICA_LOG_DIRS):
        move(t, version, 0, (topic, [ONE_SIDED, NONE_SUCH]), ("nowhere", [HERE]))
        for path in ("/nowhere", "relative", ""):
            named = [R.AlterReplicaLogDirTopic(name=topic, partitions=[HERE])]
            t.ask(R(dirs=[R.AlterReplicaLogDir(path=path, topics=named)]), version=version)


def move(t: Talk, version: int, directory: int, *partitions: tuple[str, list[int]]) -> None:
    """Ask both brokers to have partitions in one of their directories."""
    R = M.AlterReplicaLogDirsRequest
    for node_id, node in t.cluster.nodes.items():
        topics = [R.AlterReplicaLogDirTopic(name=name, partitions=ids) for name, ids in partitions]
        path = str(node.directories[directory])
        t.ask(R(dirs=[R.AlterReplicaLogDir(path=path, topics=topics)]), node_id=node_id, version=version)


def described(topic: str) -> M.DescribeLogDirsRequest:
    R = M.DescribeLogDirsRequest
    return R(topics=[R.DescribableLogDirTopic(topic=topic, partitions=[HERE, ONE_SIDED, NONE_SUCH])])


def is_in(t: Talk, node_id: int, topic: str, directory: int) -> bool:
    """Return whether all of a topic that a broker has is in this directory, and moves no more."""
    node = t.cluster.nodes[node_id]
    with WireClient(node.host.address, node.port, timeout_s=TIMEOUT_S) as client:
        answer = client.call(ApiKey.DESCRIBE_LOG_DIRS, 4, described(topic))
    there = {
        (each.log_dir, partition.is_future_key)
        for each in answer.results
        for one in each.topics
        for partition in one.partitions
    }
    return there == {(str(node.directories[directory]), False)}


def describe_directories(t: Talk, version: int, node_id: int, topic: str) -> None:
    """Ask for a topic's directories, which get numbers here, and for file systems, whose sizes are left out."""
    t.ask(described(topic), node_id=node_id, version=version)
    numbers = {str(path): f"directory {number}" for number, path in enumerate(t.cluster.nodes[node_id].directories)}
    results = {numbers[each["log_dir"]]: each for each in t.answers[-1]["results"].values()}
    for name, each in results.items():
        each["log_dir"] = name
        each.update({size: each[size] > 0 for size in ("total_bytes", "usable_bytes") if size in each})
    t.answers[-1]["results"] = results


# --- what Kafka serves in KRaft mode only (KIP-966) -----------------------------------------------------
@case
def partitions_are_described(t: Talk) -> None:
    t.ask(M.ApiVersionsRequest(client_software_name="a", client_software_version="1"), only="api_keys")
    t.answers[-1] = str(int(ApiKey.DESCRIBE_TOPIC_PARTITIONS)) in t.answers[-1]
    R = M.DescribeTopicPartitionsRequest
    t.names = Names(0)  # those of the other cases are the same whoever answers here
    t.ask(R(topics=[R.TopicRequest(name=TOPIC)], response_partition_limit=10), node_id=1)
