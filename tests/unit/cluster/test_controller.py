"""The controller over a tree in memory, with brokers that note what they are told."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from kbroker.cluster.controller_requests import (
    AllocateProducerIds,
    AlterPartition,
    AlterReassignments,
    ControlledShutdown,
    refusal,
)
from kbroker.cluster.topic_requests import CreateTopics, DeleteTopics, GrowTopics, PlannedTopic
from kbroker.coordination import paths
from kbroker.coordination.store import Delete
from kbroker.errors import ErrorCode
from kbroker.model import NO_UUID, TopicPartition
from kbroker.protocol import messages as M
from tests.kit.parts.control_cluster import ControlCluster


@pytest.fixture
def cluster() -> ControlCluster:
    made = ControlCluster()
    for node_id in (1, 2, 3):
        made.start(node_id)
        made.settle()
    return made


def test_the_first_broker_becomes_the_controller_and_tells_everybody_of_all_brokers(cluster: ControlCluster) -> None:
    assert cluster.active.node_id == 1
    for member in cluster.live():
        assert member.node_id == 1 or member.peers.kept == {1}, "it keeps a connection to the controller"
        assert member.told.alive == {1, 2, 3}
        assert member.told.controller_epoch == 1
    assert cluster.node(paths.CONTROLLER_EPOCH) == b"1"


def test_a_new_topic_gets_leaders_and_everybody_learns_them(cluster: ControlCluster) -> None:
    cluster.create("t", (2, 3), (3, 1), configs={"retention.ms": "1"})
    assert [cluster.state("t", each)[:3] for each in (0, 1)] == [(2, 0, (2, 3)), (3, 0, (3, 1))]
    assert cluster.members[2].told.roles[TopicPartition("t", 0)].leader == 2
    assert cluster.members[2].told.roles[TopicPartition("t", 0)].is_new
    assert TopicPartition("t", 1) not in cluster.members[2].told.roles
    for member in cluster.live():
        assert {each: state.leader for each, state in member.told.metadata.items()} == {
            TopicPartition("t", 0): 2,
            TopicPartition("t", 1): 3,
        }
    assert cluster.node(paths.topic_config_path("t")) == paths.encode_config({"retention.ms": "1"})


def test_topics_made_by_somebody_else_get_leaders_too(cluster: ControlCluster) -> None:
    assignment = paths.TopicAssignment(NO_UUID, {0: (3, 1)}, {}, {})
    cluster.tree.put(paths.topic_path("t"), paths.encode_topic(assignment))
    cluster.settle()
    assert cluster.leader("t") == 3
    assert cluster.assignment("t").topic_id != NO_UUID


def test_a_broker_that_dies_is_replaced_by_one_of_the_isr(cluster: ControlCluster) -> None:
    cluster.create("t", (2, 3, 1), (3, 1, 2))
    cluster.lose(2)
    assert cluster.state("t", 0)[:3] == (3, 1, (3, 1))
    assert cluster.state("t", 1)[:3] == (3, 1, (3, 1)), "the dead follower is taken out, in a new leader epoch"
    for member in cluster.live():
        assert member.told.alive == {1, 3}
        assert member.told.metadata[TopicPartition("t", 0)].leader == 3
        assert member.told.metadata[TopicPartition("t", 0)].offline_replicas == [2]
        assert member.told.roles[TopicPartition("t", 0)].leader_epoch == 1


def test_the_last_member_of_an_isr_stays_in_it_and_leads_again_when_it_is_back(cluster: ControlCluster) -> None:
    cluster.create("t", (2, 3))
    cluster.lose(3)
    cluster.lose(2)
    assert cluster.state("t")[:3] == (-1, 2, (2,))
    cluster.start(3)
    cluster.settle()
    assert cluster.leader("t") == -1, "one that is not in the ISR may lack records"
    cluster.start(2)
    cluster.settle()
    assert cluster.state("t")[:3] == (2, 3, (2,))
    assert cluster.members[2].told.roles[TopicPartition("t", 0)].leader == 2


def test_one_line_says_which_partitions_have_no_leader(
    cluster: ControlCluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    cluster.create("t", (2,), (3, 2), (2,))
    cluster.lose(2)
    found = [record.message for record in caplog.records if "no leader" in record.message]
    assert found == ["controller: t-0, t-2: no leader: no replica in sync is online"]


def test_an_unclean_election_is_held_only_where_it_is_allowed(cluster: ControlCluster) -> None:
    cluster.create("unclean", (2, 3), configs={"unclean.leader.election.enable": "true"})
    cluster.create("clean", (2, 3))
    before = cluster.active.controller.elections
    cluster.lose(3)
    cluster.lose(2)
    cluster.start(3)
    cluster.settle()
    assert cluster.state("unclean")[:5] == (3, 3, (3,), 1, 1), "the leader is recovering"
    assert cluster.leader("clean") == -1
    elections = cluster.active.controller.elections
    assert (before.unclean, elections.unclean) == (0, 1)
    assert elections.held == before.held + 3, "two brokers went, and one came back"


def test_another_broker_takes_over_when_the_controller_dies(cluster: ControlCluster) -> None:
    cluster.create("t", (1, 2, 3), (2, 3, 1))
    cluster.lose(1)
    assert cluster.active.node_id == 2
    assert cluster.node(paths.CONTROLLER_EPOCH) == b"2"
    assert cluster.leader("t") == 2
    assert cluster.state("t").controller_epoch == 2
    assert cluster.state("t", 0)[:3] == (2, 2, (2, 3))
    assert cluster.state("t", 1)[:3] == (2, 1, (2, 3)), "a follower that is dead leaves the ISR too (KAFKA-3143)"
    for member in cluster.live():
        assert member.told.controller_epoch == 2
        for partition_id in (0, 1):
            role = member.told.roles[TopicPartition("t", partition_id)]
            assert (role.leader, role.isr) == (2, [2, 3])


def test_a_new_controller_takes_out_of_isrs_who_has_died_before_it_was_elected(cluster: ControlCluster) -> None:
    """Without that, all replicas of a partition may be dead, and one that died early be elected later (KAFKA-3143)."""
    cluster.create("t", (2, 3, 1), (2, 1), (3, 1), (3,))
    cluster.kill(1)
    cluster.kill(3)
    cluster.expire(3)
    cluster.expire(1)
    cluster.settle()
    assert cluster.active.node_id == 2
    assert cluster.state("t", 0)[:3] == (2, 1, (2,))
    assert cluster.state("t", 1)[:3] == (2, 1, (2,))
    assert cluster.leader("t", 2) == -1
    assert cluster.state("t", 3)[:3] == (-1, 1, (3,)), "the last member stays: it has everything"


def come_back(cluster: ControlCluster, *node_ids: int, declining: bool = False) -> None:
    """Let brokers end and register again while there is no controller; the controller, broker 1, ends too.

    `declining`: they refuse every role of t-0 from then on.
    """
    cluster.kill(1)
    for node_id in node_ids:
        cluster.kill(node_id)
        cluster.expire(node_id)
        told = cluster.start(node_id).told
        if declining:
            told.failed = {TopicPartition("t", 0)}
    cluster.expire(1)
    cluster.settle()


def test_a_leader_that_came_back_while_there_was_no_controller_does_not_lead_on(cluster: ControlCluster) -> None:
    """The disk of such a leader may be a new one, or may have lost what was not flushed."""
    cluster.create("t", (2, 3), (3, 2), (2, 1))
    come_back(cluster, 2)
    assert cluster.state("t", 0)[:3] == (3, 2, (3,)), "the lead goes to one that has been there all the time"
    assert cluster.state("t", 1)[:3] == (3, 1, (3,)), "a follower that came back has to catch up first"
    assert cluster.leader("t", 2) == 2, "nobody else of the ISR is there"
    role = cluster.members[2].told.roles[TopicPartition("t", 0)]
    assert (role.leader, role.leader_epoch, role.isr) == (3, 2, [3])


def test_a_new_controller_puts_out_of_isrs_who_is_no_replica(cluster: ControlCluster) -> None:
    """An old controller has taken a replica out of the assignment, and died before it took it out of the ISR."""
    cluster.create("t", (2, 3, 1))
    assignment = cluster.assignment("t")
    cluster.tree.put(paths.topic_path("t"), paths.encode_topic(assignment._replace(replicas={0: (2, 3)})))
    cluster.lose(1)
    assert cluster.state("t")[:3] == (2, 1, (2, 3))


def test_brokers_that_have_all_come_back_keep_their_isr(cluster: ControlCluster) -> None:
    cluster.create("t", (2, 3))
    come_back(cluster, 2, 3)
    assert cluster.state("t")[:3] == (2, 1, (2, 3))


def test_brokers_that_came_back_lead_without_waiting_for_a_member_of_the_isr_that_is_away(
    cluster: ControlCluster,
) -> None:
    """Nobody who is there knows more than they do, and who is away may never come back."""
    cluster.start(4)
    cluster.settle()
    cluster.create("t", (2, 3, 4), (4, 2, 3))
    cluster.kill(4)
    cluster.expire(4)
    come_back(cluster, 2, 3)
    assert cluster.state("t", 0)[:3] == (2, 2, (2, 3)), "in one new epoch since it came back, in the next without 4"
    assert cluster.state("t", 1)[:3:2] == (2, (2, 3)), "another one leads in place of 4"
    for node_id in (2, 3):
        role = cluster.members[node_id].told.roles[TopicPartition("t", 0)]
        assert (role.leader, role.isr) == (2, [2, 3])


def test_brokers_that_came_back_wait_for_a_member_of_the_isr_that_is_away_if_all_of_them_decline_to_lead(
    cluster: ControlCluster,
) -> None:
    cluster.start(4)
    cluster.settle()
    cluster.create("t", (2, 3, 4))
    cluster.kill(4)
    cluster.expire(4)
    come_back(cluster, 2, 3, declining=True)
    assert cluster.leader("t") == -1
    cluster.start(4)
    cluster.settle()
    assert cluster.leader("t") == 4


def test_a_leader_that_came_back_while_there_was_no_controller_leads_on_in_a_new_epoch_only(
    cluster: ControlCluster,
) -> None:
    """In the epoch before it may have written records that its followers have, and that it has lost."""
    cluster.create("t", (2, 3), (3, 2), (2, 1), (2,))
    cluster.set_isr("t", 0, (2,))
    come_back(cluster, 2)
    assert cluster.state("t", 0)[:3] == (2, 1, (2,)), "broker 3 is there all the time, and not in the ISR"
    assert cluster.state("t", 2)[:3] == (2, 2, (2,)), "and one more, since broker 1 has left the ISR"
    assert cluster.state("t", 3)[:3] == (2, 1, (2,))
    told = [
        (TopicPartition(topic.topic_name, each.partition_index), each.leader_epoch)
        for request in cluster.members[2].told.received
        if isinstance(request, M.LeaderAndIsrRequest)
        for topic in request.topic_states
        for each in topic.partition_states
        if each.leader == 2
    ]
    assert told
    assert all(epoch > 0 for _, epoch in told), "it has led in epoch 0, in its former life"


def test_a_leader_that_came_back_leads_on_in_the_last_epoch_that_there_can_be(
    cluster: ControlCluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.create("t", (2, 3))
    caplog.set_level("INFO")
    last = paths.PartitionRegistration(2, 2**31 - 2, (2, 3), 1)
    cluster.tree.put(paths.partition_state_path("t", 0), paths.encode_partition_state(last))
    come_back(cluster, 2, 3)
    assert cluster.state("t")[:3] == (2, 2**31 - 2, (2, 3))
    assert "no higher leader epoch can follow" in caplog.text
    assert "failed at" not in caplog.text and "Traceback" not in caplog.text


def test_a_leader_that_was_there_all_the_time_keeps_its_epoch_under_a_new_controller(cluster: ControlCluster) -> None:
    cluster.create("t", (3, 2), (3,))
    come_back(cluster, 2)
    assert cluster.state("t", 0)[:3] == (3, 1, (3,)), "its follower has come back, and is put out of the ISR"
    assert cluster.state("t", 1)[:3] == (3, 0, (3,))


def test_a_new_controller_leaves_isrs_alone_whose_members_came_back_before_they_were_written(
    cluster: ControlCluster,
) -> None:
    cluster.lose(2)
    cluster.start(2)
    cluster.settle()
    cluster.create("t", (2, 3))
    cluster.lose(1)
    assert cluster.state("t")[:3] == (2, 0, (2, 3))


def depose_unseen(cluster: ControlCluster) -> dict[str, bytes]:
    """Let broker 2 be elected while the controller handles no event. Returns the nodes that there are then."""
    cluster.tree.change(0, [Delete(paths.CONTROLLER)])
    for _ in range(50):
        cluster.members[2].controller.step()
    assert cluster.members[2].controller.is_active
    return nodes(cluster)


def nodes(cluster: ControlCluster) -> dict[str, bytes]:
    return {path: node.data for path, node in cluster.tree.model.nodes.items()}


def shutdown_of(cluster: ControlCluster, broker_id: int) -> ControlledShutdown:
    epoch = cluster.members[broker_id].told.epoch
    return ControlledShutdown(M.ControlledShutdownRequest(broker_id=broker_id, broker_epoch=epoch))


def smaller_isr(cluster: ControlCluster) -> AlterPartition:
    R = M.AlterPartitionRequest
    part = R.PartitionData(partition_index=0, new_isr_with_epochs=[R.BrokerState(broker_id=2, broker_epoch=-1)])
    topic = R.TopicData(topic_id=cluster.assignment("t").topic_id.bytes, partitions=[part])
    return AlterPartition(R(broker_id=2, broker_epoch=cluster.members[2].told.epoch, topics=[topic]), 3)


def new_topic(_: ControlCluster) -> CreateTopics:
    return CreateTopics({"new": PlannedTopic(paths.TopicAssignment(UUID(int=9), {0: (1,)}, {}, {}), {})})


@pytest.mark.parametrize(
    "asked",
    [
        smaller_isr,
        new_topic,
        lambda cluster: shutdown_of(cluster, 2),
        lambda _: GrowTopics({"t": {1: (1, 2)}}),
        lambda _: DeleteTopics(frozenset({"t"})),
        lambda _: AlterReassignments({TopicPartition("t", 0): (3, 1)}),
        lambda cluster: AllocateProducerIds(
            M.AllocateProducerIdsRequest(broker_id=3, broker_epoch=cluster.members[3].told.epoch)
        ),
    ],
)
def test_a_controller_that_was_deposed_in_the_middle_of_a_change_writes_nothing_more(
    cluster: ControlCluster, asked: Callable[[ControlCluster], Any]
) -> None:
    """The version of /controller_epoch, which is checked with each write, is all that keeps it from that."""
    cluster.create("t", (2, 3))
    old = cluster.active
    answers: list[object] = []
    request = asked(cluster)
    old.controller.ask(request, answers.append)
    assert old.controller.step(), "it has taken the request, and has not written yet"
    before = depose_unseen(cluster)
    while old.controller.step():
        pass
    assert not old.controller.is_active
    assert answers == [refusal(request, ErrorCode.NOT_CONTROLLER)]
    assert nodes(cluster) == before


def test_a_controller_that_was_deposed_is_none_as_soon_as_it_sees_that(cluster: ControlCluster) -> None:
    cluster.create("t", (2, 3))
    old = cluster.active
    before = depose_unseen(cluster)
    while old.controller.step():
        pass
    assert not old.controller.is_active
    assert old.controller.context is None
    assert old.peers.kept == {2}, "it keeps a connection to the controller"
    assert nodes(cluster) == before
    cluster.members[3].is_running = False
    cluster.members[3].session.expire()
    cluster.settle()
    assert cluster.state("t")[:3] == (2, 1, (2,))


def test_a_session_that_ends_ends_the_term_and_a_new_one_takes_part_again(cluster: ControlCluster) -> None:
    member = cluster.active
    member.session.expire()
    member.controller.resign()
    assert not member.controller.is_active
    cluster.settle()
    assert cluster.active.node_id == 2
    member.session = cluster.tree.connect()
    cluster.register(member)
    member.controller.session_is(member.session, member.told.epoch)
    cluster.settle()
    assert cluster.active.node_id == 2
    cluster.lose(2)
    cluster.lose(3)
    assert cluster.active.node_id == 1


def test_a_broker_that_comes_again_before_its_death_was_seen_is_told_everything(cluster: ControlCluster) -> None:
    cluster.create("t", (2, 3))
    cluster.kill(2)
    cluster.expire(2)
    cluster.start(2)
    cluster.settle()
    assert cluster.state("t")[:3] == (3, 1, (3,))
    told = cluster.members[2].told
    assert told.roles[TopicPartition("t", 0)].leader == 3
    assert told.alive == {1, 2, 3}


def test_a_topic_is_deleted_on_all_brokers_and_then_in_the_tree(cluster: ControlCluster) -> None:
    cluster.create("t", (2, 3), (3, 1), configs={"retention.ms": "1"})
    cluster.create("kept", (2, 3))
    assert cluster.ask(DeleteTopics(["t", "none"])) == {
        "t": ErrorCode.NONE,
        "none": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert [path for path in cluster.tree.model.nodes if path.endswith("/t") or "/t/" in path] == []
    for member in cluster.live():
        assert {each.topic for each in member.told.metadata} == {"kept"}
        assert {each.topic for each in member.told.logs} <= {"kept"}


def test_a_deletion_waits_for_a_dead_broker(cluster: ControlCluster) -> None:
    cluster.create("t", (2, 3))
    cluster.lose(3)
    cluster.ask(DeleteTopics(["t"]))
    assert cluster.node(paths.topic_path("t")) is not None
    planned = PlannedTopic(paths.TopicAssignment(NO_UUID, {0: (2,)}, {}, {}), {})
    assert cluster.ask(CreateTopics({"t": planned})) == {"t": ErrorCode.TOPIC_ALREADY_EXISTS}
    cluster.start(3)
    cluster.settle()
    assert cluster.node(paths.topic_path("t")) is None
    assert cluster.node(paths.delete_topic_path("t")) is None
    assert cluster.members[3].told.logs == set()


def test_a_deletion_goes_on_with_another_controller(cluster: ControlCluster) -> None:
    cluster.create("t", (2, 3))
    cluster.lose(3)
    cluster.ask(DeleteTopics(["t"]))
    cluster.lose(1)
    cluster.start(3)
    cluster.settle()
    assert cluster.node(paths.topic_path("t")) is None


def test_a_deletion_that_no_controller_has_begun_is_carried_out_by_the_next_one(cluster: ControlCluster) -> None:
    cluster.create("t", (2, 3))
    cluster.kill(1)
    cluster.tree.put(paths.delete_topic_path("t"))
    cluster.expire(1)
    cluster.settle()
    assert cluster.node(paths.topic_path("t")) is None
    assert cluster.node(paths.delete_topic_path("t")) is None
    assert cluster.members[2].told.logs == cluster.members[3].told.logs == set()


def test_a_topic_grows(cluster: ControlCluster) -> None:
    cluster.create("t", (2, 3))
    assert cluster.ask(GrowTopics({"t": {1: (3, 1), 2: (1, 2)}, "none": {0: (1,)}})) == {
        "t": ErrorCode.NONE,
        "none": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert [cluster.leader("t", each) for each in range(3)] == [2, 3, 1]
    assert cluster.ask(GrowTopics({"t": {4: (1,)}})) == {"t": ErrorCode.INVALID_PARTITIONS}


def test_a_controlled_shutdown_gives_everything_away(cluster: ControlCluster) -> None:
    cluster.create("t", (2, 3, 1), (3, 2, 1), (2,))
    request = M.ControlledShutdownRequest(broker_id=2, broker_epoch=cluster.members[2].told.epoch)
    answer = cluster.ask(ControlledShutdown(request))
    assert (answer.error_code, answer.remaining_partitions) == (0, [])
    assert cluster.state("t", 0)[:3] == (3, 1, (3, 1))
    assert cluster.state("t", 1)[:3] == (3, 1, (3, 1))
    assert cluster.leader("t", 2) == 2, "a partition without another replica stays"
    stale = M.ControlledShutdownRequest(broker_id=2, broker_epoch=1)
    assert cluster.ask(ControlledShutdown(stale)).error_code == ErrorCode.STALE_BROKER_EPOCH
    other = M.ControlledShutdownRequest(broker_id=9, broker_epoch=1)
    assert cluster.ask(ControlledShutdown(other)).error_code == ErrorCode.BROKER_NOT_AVAILABLE
    assert cluster.ask(ControlledShutdown(request), 3).error_code == ErrorCode.STALE_CONTROLLER_EPOCH
    cluster.stop(2)
    cluster.settle()
    assert cluster.state("t", 0)[:3] == (3, 1, (3, 1)), "its end changes nothing more"
    assert cluster.leader("t", 2) == -1


@pytest.mark.parametrize("known_as", [-1, 0, 1])
def test_a_controlled_shutdown_without_an_epoch_or_of_a_registration_that_is_not_seen_yet_is_carried_out(
    cluster: ControlCluster, known_as: int
) -> None:
    """Versions 0 and 1 have no broker epoch; a broker may ask before the controller has heard that it is back."""
    cluster.create("t", (2, 3))
    epoch = -1 if known_as < 0 else cluster.members[2].told.epoch + known_as
    answer = cluster.ask(ControlledShutdown(M.ControlledShutdownRequest(broker_id=2, broker_epoch=epoch)))
    assert (answer.error_code, answer.remaining_partitions) == (0, [])
    assert cluster.state("t")[:3] == (3, 1, (3,))


def test_a_broker_that_registers_at_the_moment_of_another_event_is_noticed(cluster: ControlCluster) -> None:
    assignment = paths.TopicAssignment(NO_UUID, {0: (4, 1)}, {}, {})
    cluster.tree.put(paths.topic_path("t"), paths.encode_topic(assignment))
    cluster.start(4)
    cluster.settle()
    assert cluster.members[4].told.alive == {1, 2, 3, 4}
