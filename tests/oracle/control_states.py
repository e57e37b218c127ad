"""What is answered in states that a broker alone does not know: replicas move, a leader is away or has just been
elected, a coordinator is elsewhere, too few replicas are in sync, a log directory has failed.

Cases without `@case` change what the others find: `control_answers` has them when these are over.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kbroker.errors import ErrorCode
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages import Message
from tests.kit.clients.wire import WireClient
from tests.oracle.control_clients import away
from tests.oracle.control_story import STAND_IN
from tests.oracle.control_talk import GROUP, TIMEOUT_S, TOPIC, Talk, case, is_told, make_topic, served
from tests.oracle.control_versions import coordinated_by
from tests.oracle.scenario import KEYS, highest
from tests.oracle.scenarios.offsets import commit_request
from tests.oracle.scenarios.records import delete_before
from tests.oracle.scenarios.requests import produce, records

PREFERRED, UNCLEAN = 0, 1
"""The types of elections."""
WITH_ELECTION_TYPES = 1
"""The first version of ElectLeaders that says which election it asks for."""
LATEST, EARLIEST, LATER_THAN_ALL = -1, -2, 1 << 60
WITH_MEMBERS, WITH_GROUPS = 3, 8
"""The first versions of LeaveGroup that names several members, and of OffsetFetch that names several groups."""
FLAWED = 1
"""The version of OffsetFetch in which Kafka answers nothing where it should answer an error for each partition."""
STORED = "stored-there"
BAD = 1
"""The directory of broker 2 that fails."""


def in_every_version(t: Talk, message: Message, node_id: int = 2) -> None:
    """Ask in all versions that both brokers serve."""
    api = KEYS[type(message).__name__]
    for version in range(served(api).start, highest(api) + 1):
        t.ask(message, node_id=node_id, version=version)


# --- replicas that move ---------------------------------------------------------------------------------
@case
def reassignments_that_are_under_way(t: Talk) -> None:
    """The stand-in fetches nothing, so what is moved to it stays under way."""
    topic, other = "moving", "staying"
    make_topic(t.cluster, topic, [[1, 2], [1, 2]])
    make_topic(t.cluster, other, [[1]])
    for replicas in ([1, STAND_IN], [1, STAND_IN], [2, STAND_IN], [2, 1], None, [1, STAND_IN]):
        reassign(t, topic, replicas)
        list_reassignments(t, None)
        show_assignment(t, topic)
    for names in ([topic], [other], [topic, other]):
        list_reassignments(t, names)
    for version in served(ApiKey.CREATE_PARTITIONS):
        for count in (3, 2, 1):
            for validates in (True, False):
                grow(t, topic, count, version, [[1, 2]] if count == 3 else None, validates)
        grow(t, other, 2 + version, version, [[1]])
    reassign(t, topic, None)
    list_reassignments(t, None)
    reassign(t, topic, None)
    show_assignment(t, topic)
    grow(t, topic, 3, 3, [[1, 2]])


def reassign(t: Talk, topic: str, replicas: list[int] | None) -> None:
    """Have a topic's first partition moved to these replicas; None: have it stay where it was."""
    R = M.AlterPartitionReassignmentsRequest
    one = R.ReassignablePartition(partition_index=0, replicas=replicas)
    t.ask(R(timeout_ms=5000, topics=[R.ReassignableTopic(name=topic, partitions=[one])]), node_id=1)


def list_reassignments(t: Talk, names: Sequence[str] | None) -> None:
    R = M.ListPartitionReassignmentsRequest
    one = R.ListPartitionReassignmentsTopics
    topics = [one(name=name, partition_indexes=[0, 1, 9]) for name in names] if names is not None else None
    t.ask(R(timeout_ms=5000, topics=topics), node_id=1)


def grow(
    t: Talk, topic: str, count: int, version: int, replicas: list[list[int]] | None, validates: bool = False
) -> None:
    R = M.CreatePartitionsRequest
    made = [R.CreatePartitionsAssignment(broker_ids=ids) for ids in replicas] if replicas is not None else None
    grown = R.CreatePartitionsTopic(name=topic, count=count, assignments=made)
    t.ask(R(topics=[grown], timeout_ms=5000, validate_only=validates), node_id=1, version=version)


def show_assignment(t: Talk, topic: str) -> None:
    """Keep what stands in ZooKeeper of a topic's replicas."""
    state = t.state(topic)
    t.answers.append([t.assignment(topic), state.leader, state.leader_epoch, sorted(state.isr)])


# --- leaders that are away, or new ----------------------------------------------------------------------
def elections_while_a_leader_is_away(t: Talk) -> None:
    make_topic(t.cluster, "headed", [[STAND_IN, 1], [1, STAND_IN]])
    make_topic(t.cluster, "headless", [[STAND_IN]])
    lost = t.fresh()
    t.ask(t.alter_partition(lost, [STAND_IN]), node_id=1)  # its only replica in sync goes, and the other one is there
    with away(t):
        for version in served(ApiKey.ELECT_LEADERS):
            elect(t, PREFERRED, version, ("headed", [0, 1, 9]), ("headless", [0]), (lost.topic, [0]))
            elect(t, PREFERRED, version)
            elected = t.answers[-1]["replica_election_results"]
            t.answers[-1]["replica_election_results"] = {
                name: elected[name] for name in ("headed", "headless", lost.topic) if name in elected
            }
            if version >= WITH_ELECTION_TYPES:
                elect(t, UNCLEAN, version, ("headed", [0, 1, 9]), ("headless", [0]))
        elect(t, UNCLEAN, 2, (lost.topic, [0]))
        elect(t, UNCLEAN, 2, (lost.topic, [0]))
        state = t.state(lost.topic)
        t.answers.append([state.leader, state.leader_epoch, state.isr])


def elect(t: Talk, kind: int, version: int, *partitions: tuple[str, list[int]]) -> None:
    """Ask for elections in these partitions; without any: in all."""
    R = M.ElectLeadersRequest
    named = [R.TopicPartitions(topic=name, partitions=ids) for name, ids in partitions]
    t.ask(R(election_type=kind, topic_partitions=named or None, timeout_ms=5000), node_id=1, version=version)


@case
def offsets_of_a_leader_that_does_not_know_them_after_its_election(t: Talk) -> None:
    """KIP-207: the high watermark is still behind the beginning of the leader's epoch."""
    at = t.fresh([2, STAND_IN])
    topic, topic_id = at.topic, at.topic_id
    t.await_that("a leader", lambda: is_told(t, topic))
    t.ask(produce(topic, records(3), acks=1))

    def show() -> None:
        for version in served(ApiKey.LIST_OFFSETS):
            for timestamp in (LATEST, EARLIEST, LATER_THAN_ALL, 0):
                for replica_id in (-1, STAND_IN):
                    R = M.ListOffsetsRequest
                    asked = R.ListOffsetsPartition(partition_index=0, timestamp=timestamp)
                    listed = R(replica_id=replica_id, topics=[R.ListOffsetsTopic(name=topic, partitions=[asked])])
                    t.ask(listed, version=version)
        for version in served(ApiKey.FETCH):
            for offset in (0, 2, 3):
                at = t.fetch(0, -1, version, topic=topic, topic_id=topic_id, fetch_offset=offset)
                t.ask(at, version=version)

    show()
    told = t.leader_and_isr(
        topic=topic, topic_id=topic_id, replicas=[2, STAND_IN], isr=[2, STAND_IN], is_new=False,
        leader_epoch=at.leader_epoch + 1, partition_epoch=at.partition_epoch + 1,
    )  # fmt: skip
    t.ask(told)
    show()
    for epoch in (0, 1, 2):
        t.ask(t.fetch(0, -1, topic=topic, topic_id=topic_id, current_leader_epoch=at.leader_epoch + epoch))
    D = M.DeleteTopicsRequest  # its leader and the controller are not of one mind
    t.ask(D(topics=[D.DeleteTopicState(name=topic)], timeout_ms=30_000), node_id=1)
    t.answers.pop()


# --- coordinators and leaders that are elsewhere --------------------------------------------------------
@case
def requests_at_who_is_not_the_coordinator(t: Talk) -> None:
    group, *_ = coordinated_by(t, 1, GROUP)
    writer, *_ = coordinated_by(t, 1)
    for message in (*of_groups(group), *of_transactions(writer)):
        in_every_version(t, message)
    for version in served(ApiKey.LEAVE_GROUP):
        L = M.LeaveGroupRequest
        leaving = L(group_id=group, member_id="m")
        if version >= WITH_MEMBERS:
            leaving = L(group_id=group, members=[L.MemberIdentity(member_id="m")])
        t.ask(leaving, version=version)
    for version in served(ApiKey.OFFSET_FETCH):
        if version != FLAWED:
            t.ask(fetch_offsets(group, version), version=version)
    t.call_it("group", group)
    t.call_it("writer", writer)


@case
def offset_fetch_1_at_who_is_not_the_coordinator(t: Talk) -> None:
    group, *_ = coordinated_by(t, 1, GROUP)
    t.ask(fetch_offsets(group, FLAWED), version=FLAWED)


def fetch_offsets(group: str, version: int) -> Message:
    R = M.OffsetFetchRequest
    if version >= WITH_GROUPS:
        return R(groups=[R.OffsetFetchRequestGroup(group_id=group, topics=None)])
    return R(group_id=group, topics=[R.OffsetFetchRequestTopic(name=TOPIC, partition_indexes=[0])])


def of_groups(group: str) -> list[Message]:
    """Return what members of a group and administrators ask its coordinator."""
    J, T, D = M.JoinGroupRequest, M.TxnOffsetCommitRequest, M.OffsetDeleteRequest
    partition = T.TxnOffsetCommitRequestPartition(partition_index=0)
    stored = T.TxnOffsetCommitRequestTopic(name=TOPIC, partitions=[partition])
    dropped = D.OffsetDeleteRequestTopic(name=TOPIC, partitions=[D.OffsetDeleteRequestPartition(partition_index=0)])
    return [
        J(
            group_id=group,
            session_timeout_ms=10_000,
            rebalance_timeout_ms=10_000,
            protocol_type="consumer",
            protocols=[J.JoinGroupRequestProtocol(name="range")],
        ),
        M.SyncGroupRequest(group_id=group, member_id="m", protocol_type="consumer", protocol_name="range"),
        M.HeartbeatRequest(group_id=group, member_id="m"),
        commit_request(group, {TOPIC: [(0, 5)]}),
        M.DescribeGroupsRequest(groups=[group]),
        M.DeleteGroupsRequest(groups_names=[group]),
        D(group_id=group, topics=[dropped]),
        T(transactional_id="w", group_id=group, topics=[stored]),
    ]


def of_transactions(writer: str) -> list[Message]:
    """Return what a producer and administrators ask the coordinator of its transactions."""
    return [
        M.InitProducerIdRequest(transactional_id=writer, transaction_timeout_ms=60_000),
        M.AddOffsetsToTxnRequest(transactional_id=writer, producer_id=1, group_id="g"),
        M.EndTxnRequest(transactional_id=writer, producer_id=1),
        M.DescribeTransactionsRequest(transactional_ids=[writer]),
    ]


@case
def requests_at_who_does_not_lead(t: Talk) -> None:
    """Partition 2 is led by broker 2, and broker 1 has a replica."""
    R = M.DescribeProducersRequest
    for node_id in t.cluster.nodes:  # broker 2 has no replica of the others
        t.ask(R(topics=[R.TopicRequest(name=TOPIC, partition_indexes=[0, 1, 2, 9])]), node_id=node_id, version=0)
    in_every_version(t, produce(TOPIC, records(1), partition=2), node_id=1)
    in_every_version(t, delete_before({TOPIC: [(2, 0)]}), node_id=1)
    in_every_version(t, M.UpdateFeaturesRequest(timeout_ms=5000))


# --- replicas that lack what must be replicated ---------------------------------------------------------
def appends_while_too_few_replicas_are_in_sync(t: Talk) -> None:
    topic = "few"
    C = M.CreateTopicsRequest
    made = C.CreatableTopic(
        name=topic,
        num_partitions=-1,
        replication_factor=-1,
        assignments=[C.CreatableReplicaAssignment(partition_index=0, broker_ids=[1, STAND_IN])],
        configs=[C.CreatableTopicConfig(name="min.insync.replicas", value="2")],
    )
    t.ask(C(topics=[made], timeout_ms=5000), node_id=1)
    t.await_that("its leader", lambda: end_code(t, 1, topic) == ErrorCode.NONE)
    soon = produce(topic, records(1))
    soon.timeout_ms = 100
    in_every_version(t, soon, node_id=1)
    in_every_version(t, delete_before({topic: [(0, 0)]}, timeout_ms=100), node_id=1)
    with away(t):
        t.await_that("an ISR without it", lambda: t.state(topic).isr == [1])
        in_every_version(t, produce(topic, records(1)), node_id=1)
        R = M.WriteTxnMarkersRequest
        marker = R.WritableTxnMarker(
            producer_id=7000, topics=[R.WritableTxnMarkerTopic(name=topic, partition_indexes=[0])]
        )
        in_every_version(t, R(markers=[marker]), node_id=1)


def end_code(t: Talk, node_id: int, topic: str, replica_id: int = STAND_IN) -> int:
    """Return the error code with which a broker answers the question for a topic's end."""
    node = t.cluster.nodes[node_id]
    with WireClient(node.host.address, node.port, timeout_s=TIMEOUT_S) as client:
        answer = client.call(ApiKey.LIST_OFFSETS, 9, t.end(topic, replica_id=replica_id))
    return int(answer.topics[0].partitions[0].error_code)


# --- a log directory that has failed --------------------------------------------------------------------
def requests_about_a_failed_directory(t: Talk) -> None:
    """The directory is gone, as the next log that is to be made in it finds out. It does not come back."""
    directory = t.cluster.nodes[2].directories[BAD]
    for topic in (STORED, "found-out"):
        place(t, topic, directory)
    make_topic(t.cluster, STORED, [[2]])
    t.await_that("its leader", lambda: is_told(t, STORED))
    t.ask(produce(STORED, records(3)))
    directory.rename(directory.with_name("gone"))
    t.ask(t.leader_and_isr(topic="found-out", topic_id=bytes(range(80, 96))))
    t.await_that("a directory that has failed", lambda: has_failed(t, directory))
    t.await_that("a partition without a leader", lambda: t.state(STORED).leader == -1)
    t.await_that("a partition that is offline", lambda: end_code(t, 2, STORED, -1) == ErrorCode.KAFKA_STORAGE_ERROR)
    t.await_that("metadata without its leader", lambda: is_without_leader(t, STORED))
    ask_about_directory(t, STORED)
    stored_id = t.state(STORED).topic_id
    for version in served(ApiKey.LEADER_AND_ISR):
        for epoch in (0, 1, 9):
            told = t.leader_and_isr(topic=STORED, topic_id=stored_id, version=version, leader_epoch=epoch)
            t.ask(told, version=version)
        for is_new in (False, True):
            topic, topic_id = f"found-{version}-{is_new}", bytes([version, is_new, *range(90, 104)])
            told = t.leader_and_isr(topic=topic, topic_id=topic_id, version=version, is_new=is_new)
            t.ask(told, version=version)
    for version in served(ApiKey.STOP_REPLICA):
        for epoch, deletes in ((0, False), (9, False), (9, True)):
            t.ask(t.stop_replica(epoch, deletes, STORED, version), version=version)


def records_in_a_failed_directory(t: Talk) -> None:
    """The partition of the case before."""
    topic_id = t.state(STORED).topic_id
    in_every_version(t, produce(STORED, records(1)))
    for version in served(ApiKey.FETCH):
        t.ask(t.fetch(0, -1, version, topic=STORED, topic_id=topic_id), version=version)
    W = M.WriteTxnMarkersRequest
    marked = W.WritableTxnMarkerTopic(name=STORED, partition_indexes=[0])
    in_every_version(t, W(markers=[W.WritableTxnMarker(producer_id=7000, topics=[marked])]))


def place(t: Talk, topic: str, directory: Path) -> None:
    """Have a topic's first partition, which is not there yet, made in this directory of broker 2."""
    R = M.AlterReplicaLogDirsRequest
    named = R.AlterReplicaLogDirTopic(name=topic, partitions=[0])
    t.ask(R(dirs=[R.AlterReplicaLogDir(path=str(directory), topics=[named])]), version=2)


def has_failed(t: Talk, directory: Path) -> bool:
    node = t.cluster.nodes[2]
    with WireClient(node.host.address, node.port, timeout_s=TIMEOUT_S) as client:
        answer = client.call(ApiKey.DESCRIBE_LOG_DIRS, 4, M.DescribeLogDirsRequest(topics=[]))
    codes = {each.log_dir: each.error_code for each in answer.results}
    return bool(codes[str(directory)] == ErrorCode.KAFKA_STORAGE_ERROR)


def is_without_leader(t: Talk, topic: str) -> bool:
    node = t.cluster.nodes[2]
    with WireClient(node.host.address, node.port, timeout_s=TIMEOUT_S) as client:
        (partition,) = client.call(ApiKey.METADATA, 12, t.metadata(topic)).topics[0].partitions
    return bool(partition.leader_id == -1)


def ask_about_directory(t: Talk, topic: str) -> None:
    """Ask broker 2 about a partition in a failed directory, and about the directory."""
    in_every_version(t, t.end(topic))
    in_every_version(t, t.epoch_end(0, -1, 3, topic=topic))
    in_every_version(t, delete_before({topic: [(0, 1)]}))
    R = M.DescribeProducersRequest
    t.ask(R(topics=[R.TopicRequest(name=topic, partition_indexes=[0])]), version=0)
    A = M.AlterReplicaLogDirsRequest
    for path in t.cluster.nodes[2].directories:
        named = A.AlterReplicaLogDirTopic(name=topic, partitions=[0])
        in_every_version(t, A(dirs=[A.AlterReplicaLogDir(path=str(path), topics=[named])]))
    D = M.DescribeLogDirsRequest
    for version in served(ApiKey.DESCRIBE_LOG_DIRS):
        t.ask(D(topics=[D.DescribableLogDirTopic(topic=topic, partitions=[0])]), version=version)
        results = {each["log_dir"]: each for each in t.answers[-1]["results"].values()}
        t.answers[-1]["results"] = [
            {name: value for name, value in results[str(path)].items() if name in ("error_code", "topics")}
            for path in t.cluster.nodes[2].directories
            if str(path) in results
        ]
