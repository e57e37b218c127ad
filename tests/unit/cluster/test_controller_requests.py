"""What is asked from the controller, what tools ask through the store, and what goes wrong on brokers."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kbroker.cluster.controller_requests import (
    PREFERRED,
    UNCLEAN,
    AllocateProducerIds,
    AlterPartition,
    AlterReassignments,
    ControlledShutdown,
    ElectLeaders,
    ListReassignments,
)
from kbroker.cluster.topic_requests import DeleteTopics, GrowTopics
from kbroker.coordination import paths
from kbroker.coordination.store import Create, SetData
from kbroker.errors import ErrorCode
from kbroker.model import NO_UUID, TopicPartition
from kbroker.protocol import messages as M
from kbroker.rules.controller.brokers import roles_answered
from kbroker.rules.controller.commands import LeaderAndIsrAnswer, StopReplicaAnswer
from kbroker.rules.controller.context import Context
from kbroker.rules.controller.deletion import replicas_answered
from tests.kit.parts.control_cluster import ControlCluster
from tests.kit.parts.memory_store import MemorySession

T0 = TopicPartition("t", 0)


@pytest.fixture
def cluster() -> ControlCluster:
    made = ControlCluster()
    for node_id in (1, 2, 3, 4):
        made.start(node_id)
        made.settle()
    return made


def alter(
    cluster: ControlCluster,
    isr: list[tuple[int, int]],
    *,
    leader: int = 2,
    leader_epoch: int = 0,
    partition_epoch: int = 0,
    broker_epoch: int | None = None,
    topic_id: bytes | None = None,
    version: int = 3,
    recovery: int = 0,
    meanwhile: Callable[[], object] = lambda: None,
) -> M.AlterPartitionResponse:
    """Ask for an ISR of t-0: (broker id, broker epoch) each, epoch -1 for one that the leader does not know."""
    Request = M.AlterPartitionRequest
    one = Request.PartitionData(
        partition_index=0,
        leader_epoch=leader_epoch,
        new_isr=[broker_id for broker_id, _ in isr],
        new_isr_with_epochs=[Request.BrokerState(broker_id=each, broker_epoch=epoch) for each, epoch in isr],
        partition_epoch=partition_epoch,
        leader_recovery_state=recovery,
    )
    own = cluster.members[leader].told.epoch if broker_epoch is None else broker_epoch
    known = cluster.assignment("t").topic_id.bytes if topic_id is None else topic_id
    topic = Request.TopicData(topic_name="t", topic_id=known, partitions=[one])
    request = Request(broker_id=leader, broker_epoch=own, topics=[topic])
    answer = cluster.ask(AlterPartition(request, version), meanwhile=meanwhile)
    assert isinstance(answer, M.AlterPartitionResponse)
    return answer


def code(answer: M.AlterPartitionResponse) -> int:
    return answer.error_code or answer.topics[0].partitions[0].error_code


def test_an_isr_is_changed_at_its_partition_epoch_and_told_to_all(cluster: ControlCluster) -> None:
    cluster.create("t", (2, 3, 4))
    received = {member.node_id: len(member.told.received) for member in cluster.live()}
    answer = alter(cluster, [(2, -1), (3, -1)])
    partition = answer.topics[0].partitions[0]
    assert (code(answer), partition.leader_id, partition.leader_epoch, partition.isr, partition.partition_epoch) == (
        0, 2, 0, [2, 3], 1,
    )  # fmt: skip
    assert cluster.state("t")[:3] == (2, 0, (2, 3)), "the leader epoch stays"
    for member in cluster.live():
        told = member.told.received[received[member.node_id] :]
        assert [type(each) for each in told] == [M.UpdateMetadataRequest]
        assert member.told.metadata[T0].isr == [2, 3]


def test_checks_of_an_isr_come_in_kafkas_order(cluster: ControlCluster) -> None:
    cluster.create("t", (2, 3, 4))
    now = [(2, -1), (3, -1), (4, -1)]
    own = cluster.members[2].told.epoch
    for other in (-1, 1, own - 1, own + 1):
        assert code(alter(cluster, now, broker_epoch=other)) == ErrorCode.STALE_BROKER_EPOCH
    assert code(alter(cluster, now, topic_id=b"x" * 16)) == ErrorCode.UNKNOWN_TOPIC_ID
    assert code(alter(cluster, now, partition_epoch=5)) == ErrorCode.NOT_CONTROLLER
    assert code(alter(cluster, now, leader_epoch=5)) == ErrorCode.NOT_CONTROLLER
    assert code(alter(cluster, now)) == ErrorCode.NONE, "it is so already"
    assert cluster.state("t").partition_epoch == 0
    assert code(alter(cluster, now[:2])) == ErrorCode.NONE
    assert code(alter(cluster, now[:2])) == ErrorCode.NONE, "an answer that was lost is given again (KAFKA-14144)"
    assert cluster.state("t").partition_epoch == 1
    assert code(alter(cluster, now)) == ErrorCode.INVALID_UPDATE_VERSION
    assert code(alter(cluster, now[1:], partition_epoch=1)) == ErrorCode.INVALID_REQUEST, "without the leader"
    assert code(alter(cluster, [*now, (1, -1)], partition_epoch=1)) == ErrorCode.INVALID_REQUEST, "no replica"
    assert code(alter(cluster, [*now, now[1]], partition_epoch=1)) == ErrorCode.INVALID_REQUEST, "one of them twice"
    assert code(alter(cluster, now, partition_epoch=1, leader=3)) == ErrorCode.INVALID_REQUEST, "not of the leader"
    assert code(alter(cluster, now, partition_epoch=1, recovery=1)) == ErrorCode.INVALID_REQUEST
    cluster.lose(4)
    epoch = cluster.state("t")
    fresh = {"leader_epoch": epoch.leader_epoch, "partition_epoch": epoch.partition_epoch}
    assert code(alter(cluster, now, **fresh)) == ErrorCode.INELIGIBLE_REPLICA
    assert code(alter(cluster, now, version=1, **fresh)) == ErrorCode.OPERATION_NOT_ATTEMPTED
    cluster.lose(3)
    assert code(alter(cluster, now[:2], leader_epoch=0)) == ErrorCode.FENCED_LEADER_EPOCH


def test_a_leader_that_recovers_is_alone_in_the_isr_until_it_has_recovered(cluster: ControlCluster) -> None:
    cluster.create("t", (2, 3))
    cluster.lose(3)
    cluster.lose(2)
    cluster.unclean.add("t")
    cluster.start(3)
    cluster.settle()
    before = cluster.state("t")
    assert (before.leader, before.isr, before.recovery) == (3, (3,), 1)
    cluster.start(2)
    cluster.settle()
    alone, both = [(3, -1)], [(3, -1), (2, -1)]

    def ask(isr: list[tuple[int, int]], recovery: int) -> M.AlterPartitionResponse:
        now = cluster.state("t")
        epochs = {"leader_epoch": now.leader_epoch, "partition_epoch": now.partition_epoch}
        return alter(cluster, isr, leader=3, recovery=recovery, **epochs)

    assert code(ask(alone, 1)) == ErrorCode.NONE, "it is so already"
    assert code(ask(both, 1)) == ErrorCode.INVALID_REQUEST
    assert cluster.state("t") == before
    answer = ask(alone, 0)
    assert (code(answer), answer.topics[0].partitions[0].leader_recovery_state) == (0, 0)
    assert cluster.state("t").recovery == 0
    assert code(ask(alone, 1)) == ErrorCode.INVALID_REQUEST, "it has recovered"
    assert code(ask(both, 0)) == ErrorCode.NONE


@pytest.mark.parametrize("recovery", [2, -1, 127])
def test_a_recovery_state_that_nobody_knows_fails_the_whole_request(cluster: ControlCluster, recovery: int) -> None:
    cluster.create("t", (2, 3, 4))
    before = cluster.state("t")
    answer = alter(cluster, [(2, -1), (3, -1)], recovery=recovery)
    assert (answer.error_code, answer.topics) == (ErrorCode.UNKNOWN_SERVER_ERROR, [])
    assert alter(cluster, [(2, -1)], recovery=recovery, broker_epoch=1).error_code == ErrorCode.STALE_BROKER_EPOCH
    assert cluster.state("t") == before


def test_a_replica_on_a_broker_that_is_about_to_stop_is_not_let_in(cluster: ControlCluster) -> None:
    cluster.create("t", (2, 3))
    assert code(alter(cluster, [(2, -1)])) == ErrorCode.NONE
    request = M.ControlledShutdownRequest(broker_id=3, broker_epoch=cluster.members[3].told.epoch)
    assert cluster.ask(ControlledShutdown(request)).error_code == ErrorCode.NONE
    state = cluster.state("t")
    fresh = {"leader_epoch": state.leader_epoch, "partition_epoch": state.partition_epoch}
    for epoch in (-1, cluster.members[3].told.epoch):
        assert code(alter(cluster, [(2, -1), (3, epoch)], **fresh)) == ErrorCode.INELIGIBLE_REPLICA
    assert cluster.state("t").isr == (2,)


def test_an_isr_is_not_written_over_one_that_the_controller_has_not_seen(cluster: ControlCluster) -> None:
    """Brokers before Kafka 2.7 write the ISRs of partitions that they lead themselves."""
    cluster.create("t", (2, 3, 4))

    def write() -> None:
        path = paths.partition_state_path("t", 0)
        written = paths.encode_partition_state(paths.PartitionRegistration(2, 0, (2, 4), 1, 0))
        cluster.members[2].session.multi([SetData(path, written)])

    wanted = [(2, -1), (3, -1)]
    assert code(alter(cluster, wanted, meanwhile=write)) == ErrorCode.INVALID_UPDATE_VERSION
    assert cluster.state("t").isr == (2, 4)
    assert cluster.members[3].told.metadata[T0].isr == [2, 4], "the controller has read the state again"
    assert code(alter(cluster, wanted, partition_epoch=1)) == ErrorCode.NONE


def test_a_replica_of_a_former_life_is_not_let_in(cluster: ControlCluster) -> None:
    """A follower that has come back with an empty disk is not taken for the one that had caught up (KIP-903)."""
    cluster.create("t", (2, 3))
    before = cluster.members[3].told.epoch
    cluster.lose(3)
    cluster.start(3)
    cluster.settle()
    state = cluster.state("t")
    fresh = {"leader_epoch": state.leader_epoch, "partition_epoch": state.partition_epoch}
    assert code(alter(cluster, [(2, -1), (3, before)], **fresh)) == ErrorCode.INELIGIBLE_REPLICA
    assert code(alter(cluster, [(2, -1), (3, cluster.members[3].told.epoch)], **fresh)) == ErrorCode.NONE


@pytest.mark.parametrize("comes_back", [True, False])
def test_a_member_that_has_come_back_unseen_is_in_no_isr_that_is_written(
    cluster: ControlCluster, comes_back: bool
) -> None:
    """The next controller puts out who has registered after the ISR was written; this one may die before it sees it."""
    cluster.create("t", (2, 3, 4))
    assert code(alter(cluster, [(2, -1), (3, -1)])) == ErrorCode.NONE
    before = cluster.members[3].told.epoch

    def bounce() -> None:
        cluster.kill(3)
        cluster.expire(3)
        if comes_back:
            cluster.start(3)

    wanted = [(2, -1), (3, before), (4, -1)]
    assert code(alter(cluster, wanted, partition_epoch=1, meanwhile=bounce)) == ErrorCode.INELIGIBLE_REPLICA
    assert cluster.state("t").isr == (2,)


def test_replicas_are_moved_and_the_old_ones_deleted(cluster: ControlCluster) -> None:
    cluster.create("t", (1, 2), (2, 3))
    outcome = cluster.ask(AlterReassignments({T0: (3, 4), TopicPartition("none", 0): (3,)}))
    assert outcome[T0].error == ErrorCode.NONE
    assert outcome[TopicPartition("none", 0)].error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert cluster.assignment("t").replicas[0] == (3, 4, 1, 2)
    assert (cluster.assignment("t").adding, cluster.assignment("t").removing) == ({0: (3, 4)}, {0: (1, 2)})
    assert cluster.state("t")[:3] == (1, 1, (1, 2)), "a new leader epoch tells the leader its new followers"
    assert cluster.members[3].told.roles[T0].is_new and T0 in cluster.members[4].told.logs
    assert cluster.ask(ListReassignments(None)).keys() == {T0}
    assert cluster.ask(GrowTopics({"t": {2: (1, 2)}})) == {"t": ErrorCode.REASSIGNMENT_IN_PROGRESS}
    assert cluster.active.controller.is_moving("t") and not cluster.active.controller.is_moving("u")
    cluster.join_isr("t", 0, 3)
    assert cluster.ask(ListReassignments((T0,))).keys() == {T0}, "one of the target is missing yet"
    cluster.join_isr("t", 0, 4)
    assert cluster.assignment("t").replicas == {0: (3, 4), 1: (2, 3)}
    assert not cluster.assignment("t").adding and not cluster.assignment("t").removing
    assert cluster.state("t").leader == 3 and set(cluster.state("t").isr) == {3, 4}
    assert cluster.ask(ListReassignments(None)) == {} and not cluster.active.controller.is_moving("t")
    assert T0 not in cluster.members[1].told.logs and T0 not in cluster.members[2].told.logs
    assert cluster.members[1].told.metadata[T0].replicas == [3, 4]


def test_a_controller_whose_session_may_have_ended_does_not_say_what_moves(
    cluster: ControlCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another broker may be the controller by then, of which this one has not heard. All else is asked as before."""
    cluster.create("t", (1, 2))
    with monkeypatch.context() as cut_off:
        cut_off.setattr(MemorySession, "may_have_ended", True)
        assert cluster.ask(ListReassignments(None)) == ErrorCode.NOT_CONTROLLER
        assert cluster.ask(AlterReassignments({T0: (1, 3)}))[T0].error == ErrorCode.NONE
    assert cluster.ask(ListReassignments(None)).keys() == {T0}


def test_a_move_is_cancelled(cluster: ControlCluster) -> None:
    cluster.create("t", (1, 2))
    cluster.ask(AlterReassignments({T0: (3, 4)}))
    cluster.join_isr("t", 0, 3)
    assert cluster.ask(AlterReassignments({T0: None}))[T0].error == ErrorCode.NONE
    assert cluster.assignment("t").replicas == {0: (1, 2)}
    assert set(cluster.state("t").isr) == {1, 2}
    assert T0 not in cluster.members[3].told.logs and T0 not in cluster.members[4].told.logs
    assert cluster.ask(AlterReassignments({T0: None}))[T0].error == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS


def test_a_move_goes_on_with_another_controller(cluster: ControlCluster) -> None:
    cluster.create("t", (2, 3))
    cluster.ask(AlterReassignments({T0: (3, 4)}))
    cluster.lose(1)
    assert cluster.ask(ListReassignments(None)).keys() == {T0}
    cluster.join_isr("t", 0, 4)
    assert cluster.assignment("t").replicas == {0: (3, 4)}
    assert cluster.leader("t") == 3


def test_a_move_that_lacks_only_its_end_is_ended_by_the_next_controller(cluster: ControlCluster) -> None:
    """The controller has died after the last new replica had joined: no change of the ISR will remind anybody."""
    cluster.create("t", (2, 3, 4))
    assignment = cluster.assignment("t")
    cluster.kill(1)
    moving = assignment._replace(replicas={0: (3, 4, 2)}, adding={0: (4,)}, removing={0: (2,)})
    cluster.tree.put(paths.topic_path("t"), paths.encode_topic(moving))
    cluster.expire(1)
    cluster.settle()
    assert cluster.assignment("t") == assignment._replace(replicas={0: (3, 4)})
    assert cluster.state("t")[0] == 3
    assert cluster.state("t")[2] == (3, 4)
    assert T0 not in cluster.members[2].told.logs, "the old replica is deleted"


@pytest.mark.parametrize("target", [(), (3, 3), (-1,), (9,)])
def test_a_target_that_cannot_be_is_refused(cluster: ControlCluster, target: tuple[int, ...]) -> None:
    cluster.create("t", (1, 2))
    assert cluster.ask(AlterReassignments({T0: target}))[T0].error == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert cluster.assignment("t").replicas == {0: (1, 2)}


def test_a_deletion_ends_the_moves_of_its_topic(cluster: ControlCluster) -> None:
    """The moves could never end: a topic that is being deleted gets no leaders. Kafka waits for them."""
    cluster.create("t", (2, 3))
    cluster.tree.put(paths.REASSIGN_PARTITIONS, paths.encode_reassignment({T0: (4, 1)}))
    cluster.settle()
    cluster.lose(2)
    assert cluster.ask(DeleteTopics(["t"])) == {"t": ErrorCode.NONE}
    assert cluster.ask(ListReassignments(None)) == {}
    assert cluster.node(paths.REASSIGN_PARTITIONS) is None, "a tool may ask for others"
    assert cluster.ask(AlterReassignments({T0: (3,)}))[T0].error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert cluster.node(paths.topic_path("t")) is not None
    cluster.start(2)
    cluster.settle()
    assert cluster.node(paths.topic_path("t")) is None
    assert all(T0 not in member.told.logs for member in cluster.live()), "nobody was told to make the log again"


def test_a_topic_that_is_being_deleted_does_not_grow(cluster: ControlCluster) -> None:
    cluster.create("t", (2, 3))
    cluster.lose(3)  # so the deletion waits
    assert not cluster.active.controller.is_deleting("t")
    assert cluster.ask(DeleteTopics(["t"])) == {"t": ErrorCode.NONE}
    assert cluster.active.controller.is_deleting("t")
    assert cluster.ask(GrowTopics({"t": {1: (2,)}})) == {"t": ErrorCode.INVALID_TOPIC_EXCEPTION}
    assert cluster.ask(GrowTopics({"u": {1: (2,)}})) == {"u": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    cluster.start(3)
    cluster.settle()
    assert not cluster.active.controller.is_deleting("t")
    assert cluster.ask(GrowTopics({"t": {1: (2,)}})) == {"t": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


def test_a_new_controller_ends_the_moves_of_topics_that_are_deleted(cluster: ControlCluster) -> None:
    cluster.create("t", (2, 3))
    cluster.ask(AlterReassignments({T0: (4, 3)}))
    cluster.lose(4)
    cluster.lose(2)
    cluster.kill(1)
    cluster.tree.put(paths.delete_topic_path("t"))
    cluster.expire(1)
    cluster.settle()
    assert cluster.ask(ListReassignments(None)) == {}
    for node_id in (2, 4):
        cluster.start(node_id)
        cluster.settle()
    assert cluster.node(paths.topic_path("t")) is None


def test_elections_that_somebody_asks_for(cluster: ControlCluster) -> None:
    cluster.create("t", (2, 3), (4, 3))
    cluster.lose(2)
    cluster.lose(4)
    cluster.start(2)
    cluster.settle()
    cluster.join_isr("t", 0, 2)
    t1, none = TopicPartition("t", 1), TopicPartition("none", 0)
    outcome = cluster.ask(ElectLeaders(PREFERRED, (T0, t1, none)))
    assert {each: one.error for each, one in outcome.items()} == {
        T0: ErrorCode.NONE,
        t1: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
        none: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert outcome[T0].leader == cluster.leader("t") == 2
    assert cluster.ask(ElectLeaders(PREFERRED, (T0,)))[T0].error == ErrorCode.ELECTION_NOT_NEEDED
    assert cluster.ask(ElectLeaders(UNCLEAN, (T0,)))[T0].error == ErrorCode.ELECTION_NOT_NEEDED
    assert cluster.ask(ElectLeaders(UNCLEAN, (T0,)), 2)[T0].error == ErrorCode.NOT_CONTROLLER


def test_an_unclean_election_that_somebody_asks_for_needs_no_config(cluster: ControlCluster) -> None:
    cluster.create("t", (2, 3))
    cluster.lose(3)
    cluster.lose(2)
    assert cluster.ask(ElectLeaders(UNCLEAN, (T0,)))[T0].error == ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
    cluster.start(3)
    cluster.settle()
    assert cluster.ask(ElectLeaders(UNCLEAN, (T0,)))[T0].error == ErrorCode.NONE
    assert cluster.state("t")[2:5] == ((3,), 1, 1)


def test_blocks_of_producer_ids_are_given_once(cluster: ControlCluster) -> None:
    def allocate(broker_id: int, epoch: int) -> M.AllocateProducerIdsResponse:
        request = M.AllocateProducerIdsRequest(broker_id=broker_id, broker_epoch=epoch)
        answer = cluster.ask(AllocateProducerIds(request))
        assert isinstance(answer, M.AllocateProducerIdsResponse)
        return answer

    epoch = cluster.members[3].told.epoch
    got = [allocate(3, epoch) for _ in range(3)]
    assert [(each.producer_id_start, each.producer_id_len) for each in got] == [(0, 1000), (1000, 1000), (2000, 1000)]
    block = paths.decode_producer_id_block("", cluster.node(paths.PRODUCER_ID_BLOCK) or b"")
    assert block == paths.ProducerIdBlock(3, 2000, 2999)
    for other in (-1, epoch - 1, epoch + 1):
        assert allocate(3, other).error_code == ErrorCode.STALE_BROKER_EPOCH
    assert paths.decode_producer_id_block("", cluster.node(paths.PRODUCER_ID_BLOCK) or b"") == block
    assert allocate(9, 1).error_code == ErrorCode.BROKER_ID_NOT_REGISTERED


def ids(cluster: ControlCluster) -> M.AllocateProducerIdsResponse:
    """Let broker 3 ask for producer ids."""
    request = M.AllocateProducerIdsRequest(broker_id=3, broker_epoch=cluster.members[3].told.epoch)
    answer = cluster.ask(AllocateProducerIds(request))
    assert isinstance(answer, M.AllocateProducerIdsResponse)
    return answer


def test_after_the_last_producer_id_there_is_none(cluster: ControlCluster) -> None:
    last = 2**63 - 1
    block = paths.ProducerIdBlock(1, last - 1999, last - 1000)
    cluster.tree.put(paths.PRODUCER_ID_BLOCK, paths.encode_producer_id_block(block))
    answer = ids(cluster)
    assert (answer.producer_id_start + answer.producer_id_len - 1, answer.producer_id_len) == (last, 1000)
    before = cluster.node(paths.PRODUCER_ID_BLOCK)
    for _ in range(2):
        answer = ids(cluster)
        assert (answer.error_code, answer.producer_id_len) == (ErrorCode.UNKNOWN_SERVER_ERROR, 0)
    assert cluster.node(paths.PRODUCER_ID_BLOCK) == before


def test_no_producer_ids_come_of_a_node_that_cannot_be_read(cluster: ControlCluster) -> None:
    """Whoever began at 0 again would give ids twice."""
    cluster.tree.put(paths.PRODUCER_ID_BLOCK, b"{")
    assert ids(cluster).error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert cluster.node(paths.PRODUCER_ID_BLOCK) == b"{"


def test_a_block_that_somebody_has_taken_meanwhile_is_not_given_again(cluster: ControlCluster) -> None:
    """Brokers before Kafka 3.0 take blocks themselves."""
    assert ids(cluster).producer_id_start == 0
    session, calls = cluster.active.session, iter([None, "now"])

    def take() -> None:
        if next(calls, None):
            block = paths.ProducerIdBlock(4, 1000, 1999)
            cluster.tree.put(paths.PRODUCER_ID_BLOCK, paths.encode_producer_id_block(block))

    session.fault = take
    assert ids(cluster).producer_id_start == 2000


def test_replicas_in_a_failed_directory_lose_the_lead_and_their_place_in_the_isr(cluster: ControlCluster) -> None:
    cluster.create("t", (2, 3), (3, 2), (2, 4))
    told = cluster.members[2].told
    told.failed = {T0, TopicPartition("t", 1)}
    for partition in told.failed:
        del told.roles[partition]
    path = paths.LOG_DIR_EVENT_PREFIX
    cluster.members[2].session.multi([Create(path, paths.encode_log_dir_event(2), sequential=True)])
    cluster.settle()
    assert cluster.state("t", 0)[:3] == (3, 1, (3,))
    assert cluster.state("t", 1)[:3] == (3, 1, (3,))
    assert cluster.state("t", 2)[:3] == (2, 0, (2, 4)), "its other directory is well"
    assert cluster.members[1].told.metadata[T0].offline_replicas == [2]
    assert cluster.tree.model.children(paths.LOG_DIR_EVENT_NOTIFICATIONS) == []
    cluster.lose(2)
    cluster.start(2)
    cluster.settle()
    assert cluster.members[1].told.metadata[T0].offline_replicas == []


def test_replicas_of_one_partition_whose_directories_are_well_again_all_know_who_leads_then(
    cluster: ControlCluster,
) -> None:
    """The first one to say so is elected; the second one has been told of no leader by then."""
    cluster.create("t", (2, 3))

    def look_at(*node_ids: int) -> None:
        for node_id in node_ids:
            event = Create(paths.LOG_DIR_EVENT_PREFIX, paths.encode_log_dir_event(node_id), sequential=True)
            cluster.members[node_id].session.multi([event])
        cluster.settle()

    for node_id in (3, 2):
        told = cluster.members[node_id].told
        told.failed = {T0}
        del told.roles[T0]
        look_at(node_id)
    assert cluster.state("t")[:3] == (-1, 2, (2,))
    for node_id in (2, 3):
        cluster.members[node_id].told.failed = set()
    look_at(2, 3)
    assert cluster.leader("t") == 2
    assert cluster.members[3].told.roles[T0].leader == 2


def ask_for_roles(cluster: ControlCluster, node_id: int) -> None:
    path = paths.LOG_DIR_EVENT_PREFIX
    cluster.members[node_id].session.multi([Create(path, paths.encode_log_dir_event(node_id), sequential=True)])
    cluster.settle()


def lose(cluster: ControlCluster, *node_ids: int) -> None:
    """Let brokers die at once; then their sessions end."""
    for node_id in node_ids:
        cluster.kill(node_id)
    for node_id in node_ids:
        cluster.expire(node_id)


def decline(cluster: ControlCluster, node_id: int) -> None:
    """Let a broker refuse every role of T0 from now on."""
    told = cluster.members[node_id].told
    told.failed = {T0}
    told.roles.pop(T0, None)


def test_a_replica_that_cannot_be_used_is_not_stopped(cluster: ControlCluster) -> None:
    """The broker may have taken its role when that was told again, before the controller came to its first answer."""
    cluster.create("t", (2, 3))
    decline(cluster, 2)
    received = cluster.members[2].told.received
    received.clear()
    ask_for_roles(cluster, 2)
    assert cluster.state("t", 0)[:3] == (3, 1, (3,))
    assert any(isinstance(each, M.LeaderAndIsrRequest) for each in received)
    assert not any(isinstance(each, M.StopReplicaRequest) for each in received)


def test_a_replica_that_can_be_used_again_leads_a_partition_without_a_leader(cluster: ControlCluster) -> None:
    """A full disk has room again. In Kafka such a partition waits until some broker comes or goes."""
    cluster.create("t", (2,))
    decline(cluster, 2)
    ask_for_roles(cluster, 2)
    assert cluster.state("t", 0)[:3] == (-1, 1, (2,))
    cluster.members[2].told.failed = set()
    ask_for_roles(cluster, 2)
    assert cluster.state("t", 0)[:3] == (2, 2, (2,))
    assert cluster.members[2].told.roles[T0].leader == 2


def test_an_election_that_its_only_candidate_declines_gives_the_isr_back_to_those_who_were_away(
    cluster: ControlCluster,
) -> None:
    cluster.create("t", (2, 3, 4))
    lose(cluster, 2, 3, 4)
    cluster.settle()
    before = cluster.state("t", 0)
    last = before[2][0]
    assert before[0] == -1 and len(before[2]) == 1
    cluster.start(last)
    decline(cluster, last)
    cluster.settle()
    leader, _, isr = cluster.state("t", 0)[:3]
    assert leader == -1
    assert last not in isr
    other = isr[0]
    cluster.start(other)
    cluster.settle()
    assert cluster.leader("t") == other


def test_a_new_controller_gives_the_isr_back_if_the_only_member_that_is_there_declines_to_lead(
    cluster: ControlCluster,
) -> None:
    cluster.create("t", (2, 3, 4))
    lose(cluster, 1, 2, 3, 4)
    cluster.start(2)
    decline(cluster, 2)
    cluster.settle()
    assert cluster.state("t", 0)[:3:2] == (-1, (3, 4))
    cluster.start(4)
    cluster.settle()
    assert cluster.leader("t") == 4


def test_an_isr_is_given_back_although_its_last_member_was_away_when_it_was_elected(cluster: ControlCluster) -> None:
    """Broker 2 is registered still, so 3, which came back, is put out of the ISR; 2 never hears of that."""
    cluster.create("t", (2, 3, 4))
    for node_id in (1, 2, 3, 4):
        cluster.kill(node_id)
    for node_id in (1, 3, 4):
        cluster.expire(node_id)
    cluster.start(3)
    cluster.settle()
    assert cluster.state("t", 0)[:3:2] == (2, (2,))
    cluster.expire(2)
    cluster.settle()
    assert cluster.state("t", 0)[:3:2] == (-1, (2,))
    cluster.start(2)
    decline(cluster, 2)
    cluster.settle()
    assert cluster.state("t", 0)[:3:2] == (3, (3,))


def test_an_isr_is_not_given_back_when_the_leader_has_served(cluster: ControlCluster) -> None:
    cluster.create("t", (2, 3, 4))
    lose(cluster, 2, 3, 4)
    cluster.settle()
    last = cluster.state("t", 0)[2][0]
    cluster.start(last)
    cluster.settle()
    assert cluster.leader("t") == last
    decline(cluster, last)
    ask_for_roles(cluster, last)
    assert cluster.state("t", 0)[:3:2] == (-1, (last,))


def test_tools_ask_for_moves_and_elections_through_the_store(cluster: ControlCluster) -> None:
    cluster.create("t", (2, 3))
    targets = {T0: (3, 4), TopicPartition("none", 0): (1,)}
    cluster.tree.put(paths.REASSIGN_PARTITIONS, paths.encode_reassignment(targets))
    cluster.settle()
    left = cluster.node(paths.REASSIGN_PARTITIONS)
    assert left is not None and paths.decode_reassignment("", left) == {T0: (3, 4)}
    cluster.join_isr("t", 0, 4)
    assert cluster.node(paths.REASSIGN_PARTITIONS) is None
    assert cluster.assignment("t").replicas == {0: (3, 4)}
    cluster.set_isr("t", 0, (3, 4))
    cluster.tree.put(paths.REASSIGN_PARTITIONS, paths.encode_reassignment({T0: (4, 3)}))
    cluster.settle()
    assert cluster.assignment("t").replicas == {0: (4, 3)}, "it is looked for again"
    assert cluster.leader("t") == 3
    cluster.tree.put(paths.PREFERRED_REPLICA_ELECTION, paths.encode_partitions([T0]))
    cluster.settle()
    assert cluster.leader("t") == 4
    assert cluster.node(paths.PREFERRED_REPLICA_ELECTION) is None


def test_a_reassignment_is_not_cancelled_that_has_moved_the_isr(cluster: ControlCluster) -> None:
    """The partition would have no leader any more, and its records only where it has no replica (as in KRaft)."""
    cluster.create("t", (2, 3))
    cluster.ask(AlterReassignments({T0: (4, 1)}))
    cluster.join_isr("t", 0, 4)
    cluster.lose(3)
    cluster.lose(2)
    assert cluster.state("t").isr == (4,)
    for target in (None, (2, 3)):
        outcome = cluster.ask(AlterReassignments({T0: target}))
        assert outcome[T0].error == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert cluster.assignment("t").replicas == {0: (4, 1, 2, 3)}
    assert cluster.leader("t") == 4


def test_a_deletion_goes_on_when_a_failed_log_directory_is_good_again(cluster: ControlCluster) -> None:
    cluster.create("t", (2, 3))
    told = cluster.members[2].told

    def tell() -> None:
        path = paths.LOG_DIR_EVENT_PREFIX
        cluster.members[2].session.multi([Create(path, paths.encode_log_dir_event(2), sequential=True)])
        cluster.settle()

    told.failed = {T0}
    del told.roles[T0]
    tell()
    cluster.ask(DeleteTopics(["t"]))
    assert cluster.node(paths.topic_path("t")) is not None
    told.failed = set()
    tell()
    assert cluster.node(paths.topic_path("t")) is None


def test_isrs_that_an_old_leader_writes_itself_are_told_to_all(cluster: ControlCluster) -> None:
    cluster.create("t", (2, 3))
    path = paths.partition_state_path("t", 0)
    cluster.tree.put(path, paths.encode_partition_state(paths.PartitionRegistration(2, 0, (2,), 1)))
    cluster.tree.change(0, [Create(paths.ISR_CHANGE_PREFIX, paths.encode_partitions([T0]), sequential=True)])
    cluster.settle()
    assert cluster.members[4].told.metadata[T0].isr == [2]
    assert cluster.tree.model.children(paths.ISR_CHANGE_NOTIFICATIONS) == []


def test_a_broker_whose_port_refuses_is_replaced_before_its_session_ends(cluster: ControlCluster) -> None:
    cluster.create("t", (2, 3))
    cluster.kill(2, seen=True)
    cluster.settle()
    assert cluster.node(paths.broker_path(2)) is not None
    assert cluster.state("t")[:3] == (3, 1, (3,))
    assert cluster.members[1].told.alive == {1, 3, 4}
    cluster.expire(2)
    cluster.settle()
    assert cluster.state("t")[:3] == (3, 1, (3,))


def test_a_broker_that_a_liar_has_reported_is_believed_again_when_it_is_reached(cluster: ControlCluster) -> None:
    cluster.create("t", (2, 3))
    for callback in cluster.active.peers.refused_callbacks:
        callback(2)
    for _ in range(400):
        cluster.active.controller.step()
    assert cluster.leader("t") == 3, "epochs fence the old leader, if it lives after all"
    cluster.settle()
    assert cluster.members[1].told.alive == {1, 2, 3, 4}
    assert cluster.members[2].told.roles[T0].leader == 3
    assert cluster.ask(ElectLeaders(PREFERRED, (T0,)))[T0].error == ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    cluster.join_isr("t", 0, 2)
    assert cluster.ask(ElectLeaders(PREFERRED, (T0,)))[T0].leader == 2


def test_a_controller_whose_port_refuses_is_deposed_at_once(cluster: ControlCluster) -> None:
    cluster.create("t", (1, 2))
    assert all(member.peers.kept == {1} for member in cluster.live() if member.node_id != 1)
    cluster.kill(1, seen=True)
    cluster.settle()
    assert cluster.tree.model.nodes[paths.broker_path(1)].owner, "its session lasts"
    assert cluster.active.node_id in (2, 3, 4)
    assert cluster.node(paths.CONTROLLER_EPOCH) == b"2"
    assert cluster.state("t")[:3] == (2, 2, (2,)), "who has seen that takes the broker for dead in the same breath"
    assert {2, 3, 4} == cluster.members[2].told.alive


def test_one_broker_that_is_silent_holds_up_nobody(cluster: ControlCluster) -> None:
    cluster.silent.add(4)
    cluster.create("t", (2, 4))
    cluster.lose(3)
    for number in range(20):
        cluster.create(f"u{number}", (2, 4))
    assert T0 in cluster.members[2].told.roles
    assert T0 not in cluster.members[4].told.roles
    cluster.silent.clear()
    before = len(cluster.members[4].told.received)
    cluster.settle()
    assert len(cluster.members[4].told.received) - before <= 4, "what waits is put together"
    assert len(cluster.members[4].told.roles) == 21
    assert all(state.is_new for state in cluster.members[4].told.roles.values())
    assert cluster.members[4].told.alive == {1, 2, 4}


def test_a_broker_without_the_listener_of_brokers_is_not_used(cluster: ControlCluster) -> None:
    cluster.create("t", (2, 3))
    cluster.start(5, listener="OTHER")
    cluster.settle()
    assert cluster.members[1].told.alive == {1, 2, 3, 4}
    cluster.lose(2)
    assert cluster.leader("t") == 3, "others go on"


def test_garbage_in_the_tree_is_passed_over(cluster: ControlCluster) -> None:
    cluster.create("t", (2, 3))
    cluster.tree.put(paths.topic_path("rubbish"), b"\xff{")
    cluster.tree.put(f"{paths.BROKER_IDS}/77", b"[]")
    cluster.tree.put(f"{paths.BROKER_IDS}/no-number", b"")
    cluster.tree.put(paths.partition_state_path("half", 0), b"{}")
    half = paths.TopicAssignment(NO_UUID, {0: (3, 2)}, {}, {})
    cluster.tree.put(paths.topic_path("half"), paths.encode_topic(half))
    cluster.tree.put(paths.REASSIGN_PARTITIONS, b"nonsense")
    cluster.tree.put(f"{paths.LOG_DIR_EVENT_PREFIX}0000000009", b"?")
    cluster.settle()
    cluster.lose(2)
    assert cluster.leader("t") == 3
    cluster.lose(1)
    assert cluster.active.node_id == 3
    assert cluster.leader("t") == 3


def told_of(cluster: ControlCluster) -> Context:
    context = cluster.active.controller.context
    assert context is not None
    return context


@pytest.mark.parametrize("life", [-1, 1])
def test_an_answer_of_another_life_of_a_broker_changes_nothing(cluster: ControlCluster, life: int) -> None:
    """What it says of directories, and of replicas that it has deleted, is of that life's logs."""
    cluster.create("t", (2, 3))
    context = told_of(cluster)
    epoch = context.brokers[2].epoch + life
    for code in (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NONE):
        assert not list(roles_answered(context, LeaderAndIsrAnswer(2, epoch, ErrorCode.NONE, {T0: code}, {T0: 0})))
    assert not context.failed
    cluster.kill(2)
    cluster.ask(DeleteTopics(frozenset({"t"})))
    assert "t" in context.deleting, "broker 2 has not answered yet"
    before = dict(context.replica_status[T0])
    assert not list(replicas_answered(context, StopReplicaAnswer(2, epoch, ErrorCode.NONE, {T0: ErrorCode.NONE})))
    assert context.replica_status[T0] == before


def test_a_replica_that_declined_an_earlier_role_is_judged_by_its_answer_to_the_later_one(
    cluster: ControlCluster,
) -> None:
    cluster.create("t", (2, 3))
    cluster.lose(2)
    context = told_of(cluster)
    assert cluster.state("t").leader_epoch == 1
    late = LeaderAndIsrAnswer(3, context.brokers[3].epoch, ErrorCode.NONE, {T0: ErrorCode.KAFKA_STORAGE_ERROR}, {T0: 0})
    assert not list(roles_answered(context, late))
    assert not context.failed
    assert next(roles_answered(context, late._replace(leader_epochs={T0: 1}))), "a leader is elected"
    assert context.failed == {3: {T0}}
