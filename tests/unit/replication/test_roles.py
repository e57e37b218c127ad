"""Roles of a member's partitions: LeaderAndIsr, StopReplica, failed directories. Each rule is one of Kafka 3.9's."""

from __future__ import annotations

from uuid import UUID

import pytest

from kbroker.errors import ErrorCode
from kbroker.model import TopicPartition
from kbroker.protocol import messages as M
from kbroker.replication.hosted import Hosted, Role
from tests.kit.models.replica_logs import ModelLog, ModelLogs
from tests.kit.parts.members import FIRST, ME, TOPIC, TOPIC_ID, Member, role

OK = ErrorCode.NONE
SECOND = TopicPartition(TOPIC, 1)
FULL_REQUEST = 2


def hosted(member: Member, topic_partition: TopicPartition = FIRST) -> Hosted:
    found = member.partitions.get(topic_partition)
    assert found is not None
    return found


# --- who is obeyed


def test_a_leader_and_a_follower_take_their_roles_and_everybody_is_told_in_order(
    member: Member, logs: ModelLogs
) -> None:
    assert member.tell_roles(role(1, leader=2, leader_epoch=4), role(0, leader_epoch=3)) == [OK, OK]
    assert (logs.logs[FIRST].role, logs.logs[FIRST].leader_epoch) == ("leader", 3)
    assert (logs.logs[SECOND].role, logs.logs[SECOND].leader_epoch) == ("follower", 4)
    assert logs.logs[FIRST].state.live == {1, 2, 3}
    assert logs.logs[FIRST].state.committed == {1, 2, 3}
    assert member.fetching == {SECOND: (2, 4)}
    assert member.said == [("leads", FIRST, 3), ("follows", SECOND, 4)]
    assert hosted(member) == Hosted(Role.LEADER, TOPIC_ID, ME, 3, 0, (1, 2, 3), (1, 2, 3), (), ())
    assert hosted(member, SECOND).role is Role.FOLLOWER


@pytest.mark.parametrize("version", range(8))
def test_every_version_of_leader_and_isr_gives_roles(member: Member, version: int) -> None:
    states = role(0), role(1, leader=2)
    assert member.tell_roles(*states, version=version) == [OK, OK]
    assert hosted(member).topic_id == (TOPIC_ID if version >= 5 else UUID(int=0))
    assert member.fetching == {SECOND: (2, 0)}
    assert member.tell_roles(*states, version=version, controller_epoch=0) == [ErrorCode.STALE_CONTROLLER_EPOCH] * 2
    assert member.last_error == ErrorCode.STALE_CONTROLLER_EPOCH


def test_replicas_that_are_added_and_removed_are_kept(member: Member) -> None:
    state = role(0)
    state.adding_replicas, state.removing_replicas = [2], [3]
    member.tell_roles(state)
    assert (hosted(member).adding, hosted(member).removing) == ((2,), (3,))


def test_a_leader_without_other_replicas_is_alone(member: Member, logs: ModelLogs) -> None:
    assert member.tell_roles(role(0, replicas=[ME])) == [OK]
    assert logs.logs[FIRST].role == "alone"
    assert hosted(member).role is Role.LEADER
    assert member.tell_roles(role(0, leader_epoch=1, replicas=[ME, 2], isr=[ME])) == [OK]
    assert logs.logs[FIRST].role == "leader"


@pytest.mark.parametrize("request_kind", ["roles", "stop", "metadata"])
def test_an_older_controller_is_not_obeyed(member: Member, logs: ModelLogs, request_kind: str) -> None:
    member.tell_roles(role(0), controller_epoch=5)
    before = dict(logs.logs), dict(member.fetching), member.image, list(member.said)
    if request_kind == "roles":
        codes = member.tell_roles(role(0, leader=2, leader_epoch=9), controller_epoch=4)
        assert codes == [ErrorCode.STALE_CONTROLLER_EPOCH]
    elif request_kind == "stop":
        assert member.tell_stop(0, deletes=True, controller_epoch=4) == []
        assert member.last_error == ErrorCode.STALE_CONTROLLER_EPOCH
    else:
        assert member.tell_brokers(1, controller_epoch=4) == ErrorCode.STALE_CONTROLLER_EPOCH
    assert (dict(logs.logs), member.fetching, member.image, member.said) == before
    assert hosted(member).role is Role.LEADER


@pytest.mark.parametrize("first", ["roles", "stop", "metadata"])
def test_each_control_request_fences_older_controllers(member: Member, first: str) -> None:
    if first == "roles":
        member.tell_roles(controller_epoch=7)
    elif first == "stop":
        member.tell_stop(controller_epoch=7)
    else:
        member.tell_brokers(1, 2, 3, controller_epoch=7)
    assert member.tell_roles(role(0), controller_epoch=6) == [ErrorCode.STALE_CONTROLLER_EPOCH]
    assert member.tell_roles(role(0), controller_epoch=7) == [OK]


@pytest.mark.parametrize("first", ["roles", "stop", "metadata"])
@pytest.mark.parametrize("broker_epoch", [-1, 100, 5000])
def test_who_says_a_later_controller_epoch_fences_the_true_controller_until_one_has_come_as_far(
    member: Member, logs: ModelLogs, caplog: pytest.LogCaptureFixture, first: str, broker_epoch: int
) -> None:
    """A broker cannot know who the controller is, and goes on with the roles that it has, as in Kafka."""
    member.tell_roles(role(0, leader_epoch=3), role(1, leader=2), controller_epoch=4)
    if first == "roles":
        assert member.tell_roles(controller_epoch=900, broker_epoch=broker_epoch) == []
    elif first == "stop":
        assert member.tell_stop(controller_epoch=900, broker_epoch=broker_epoch) == []
    else:
        assert member.tell_brokers(1, 2, 3, controller_epoch=900, broker_epoch=broker_epoch) == OK
    for epoch in (4, 5, 899):
        told = role(0, leader=2, leader_epoch=epoch)
        assert member.tell_roles(told, controller_epoch=epoch) == [ErrorCode.STALE_CONTROLLER_EPOCH]
        assert member.tell_stop(0, deletes=True, controller_epoch=epoch) == []
        assert member.last_error == ErrorCode.STALE_CONTROLLER_EPOCH
        assert member.tell_brokers(1, controller_epoch=epoch) == ErrorCode.STALE_CONTROLLER_EPOCH
    assert "LeaderAndIsr" in caplog.text and "is of controller epoch 4, and there has been 900: refused" in caplog.text
    assert (hosted(member).role, logs.logs[FIRST].role, member.fetching) == (Role.LEADER, "leader", {SECOND: (2, 0)})
    assert member.tell_roles(role(0, leader=2, leader_epoch=900), controller_epoch=900) == [OK]
    again = Member(logs)
    again.tell_brokers(1, 2, 3, controller_epoch=5)
    assert again.tell_roles(role(0, leader=2, leader_epoch=901), controller_epoch=5) == [OK], "a restart forgets it"


def test_who_says_a_later_leader_epoch_keeps_the_true_role_out_until_one_has_come_as_far(
    member: Member, logs: ModelLogs
) -> None:
    """Roles in other partitions are taken. A broker cannot know who the controller is, as in Kafka."""
    member.tell_roles(role(0, leader_epoch=3), role(1, leader=2, leader_epoch=3), controller_epoch=4)
    assert member.tell_roles(role(0, leader=2, leader_epoch=900), controller_epoch=4) == [OK]
    assert member.fetching == {FIRST: (2, 900), SECOND: (2, 3)}
    for epoch in (4, 899, 900):
        told = role(0, leader_epoch=epoch), role(1, leader=2, leader_epoch=epoch)
        assert member.tell_roles(*told, controller_epoch=5) == [ErrorCode.STALE_CONTROLLER_EPOCH, OK]
        assert member.tell_stop(0, 1, leader_epoch=3, controller_epoch=5) == [ErrorCode.FENCED_LEADER_EPOCH] * 2
    assert member.tell_roles(role(0, leader_epoch=901), controller_epoch=5) == [OK]
    assert hosted(member).role is Role.LEADER
    again = Member(logs)
    again.tell_brokers(1, 2, 3, controller_epoch=5)
    assert again.tell_roles(role(0, leader=2, leader_epoch=4), controller_epoch=5) == [OK], "a restart forgets it"
    assert again.fetching == {FIRST: (2, 4)}


def test_a_request_for_a_former_life_of_the_broker_is_refused_first(member: Member) -> None:
    for epoch, code in ((99, ErrorCode.STALE_BROKER_EPOCH), (-1, OK), (100, OK), (101, OK)):
        assert member.tell_roles(role(0, leader_epoch=epoch + 5), broker_epoch=epoch) == [code]
        member.tell_stop(0, broker_epoch=epoch)
        assert member.last_error == code
    assert member.tell_roles(role(0), broker_epoch=99, controller_epoch=0) == [ErrorCode.STALE_BROKER_EPOCH]
    U = M.UpdateMetadataRequest
    assert member.tell_metadata(U(controller_epoch=1, broker_epoch=99)) == ErrorCode.STALE_BROKER_EPOCH
    assert member.image.brokers.keys() == {1, 2, 3}


def test_a_broker_that_is_not_registered_now_obeys(member: Member) -> None:
    member.broker_epoch = -1
    assert member.tell_roles(role(0), broker_epoch=3) == [OK]


# --- one partition's checks, in their order


def test_an_equal_or_lower_leader_epoch_changes_nothing(member: Member, logs: ModelLogs) -> None:
    member.tell_roles(role(0, leader_epoch=5))
    said = list(member.said)
    for epoch in (4, 5):
        codes = member.tell_roles(role(0, leader=2, leader_epoch=epoch, partition_epoch=9), role(1, leader=2))
        assert codes == [ErrorCode.STALE_CONTROLLER_EPOCH, OK if epoch == 4 else ErrorCode.STALE_CONTROLLER_EPOCH]
    assert logs.logs[FIRST].role == "leader"
    assert member.said == [*said, ("follows", SECOND, 0)]


def test_another_topic_id_is_refused_before_the_epoch_is_looked_at(member: Member, logs: ModelLogs) -> None:
    member.tell_roles(role(0, leader_epoch=5))
    for epoch in (4, 6):
        codes = member.tell_roles(role(0, leader=2, leader_epoch=epoch, replicas=[2]), topic_id=UUID(int=78))
        assert codes == [ErrorCode.INCONSISTENT_TOPIC_ID]
    assert logs.logs[FIRST].role == "leader"


def test_a_log_on_disk_of_another_topic_of_this_name_is_not_taken(member: Member, logs: ModelLogs) -> None:
    logs.open_or_create(TOPIC, UUID(int=78), 0, is_new=True)
    assert member.tell_roles(role(0)) == [ErrorCode.INCONSISTENT_TOPIC_ID]
    assert member.partitions.get(FIRST) is None


def test_a_broker_that_is_no_replica_gets_no_role(member: Member, logs: ModelLogs) -> None:
    assert member.tell_roles(role(0, leader=2, replicas=[2, 3])) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert not logs.logs
    assert member.partitions.get(FIRST) is None


def test_of_a_partition_in_a_failed_directory_nothing_else_is_looked_at(member: Member, logs: ModelLogs) -> None:
    member.tell_roles(role(0), role(1, leader=2))
    for log in logs.logs.values():
        log.is_offline = True
    member.partitions.directory_failed([FIRST, SECOND])
    assert member.fetching == {}
    assert member.said[-2:] == [("gone", FIRST), ("gone", SECOND)]
    assert hosted(member).role is hosted(member, SECOND).role is Role.OFFLINE
    codes = member.tell_roles(
        role(0, leader_epoch=9), role(1, leader=2, replicas=[2, 3], leader_epoch=9), topic_id=UUID(int=78)
    )
    assert codes == [ErrorCode.KAFKA_STORAGE_ERROR] * 2
    assert member.tell_stop(0, 1, deletes=True, leader_epoch=-2) == [ErrorCode.KAFKA_STORAGE_ERROR] * 2


def test_a_new_replica_is_made_although_a_directory_has_failed_and_an_old_one_is_not(
    member: Member, logs: ModelLogs
) -> None:
    logs.has_failed_directory = True
    codes = member.tell_roles(role(0, is_new=True), role(1, leader=2))
    assert codes == [OK, ErrorCode.KAFKA_STORAGE_ERROR]
    assert hosted(member, SECOND).role is Role.OFFLINE
    assert member.said == [("leads", FIRST, 0), ("gone", SECOND)]


@pytest.mark.parametrize("leader", [ME, 2])
def test_a_role_that_the_disk_refused_may_be_told_again_in_the_same_epoch(
    member: Member, logs: ModelLogs, leader: int
) -> None:
    """KAFKA-9769: the epoch counts from the moment that the log has its role."""
    logs.full = True
    assert member.tell_roles(role(0, leader=leader, leader_epoch=5)) == [ErrorCode.KAFKA_STORAGE_ERROR]
    assert (hosted(member).role, hosted(member).leader_epoch, member.said) == (Role.OFFLINE, -1, [("gone", FIRST)])
    logs.full = False
    assert member.tell_roles(role(0, leader=leader, leader_epoch=5)) == [OK]
    assert hosted(member).leader_epoch == 5
    assert member.fetching == ({} if leader == ME else {FIRST: (2, 5)})


@pytest.mark.parametrize("leader", [ME, 2])
def test_roles_are_asked_for_again_when_the_disk_that_refused_one_has_room(
    member: Member, logs: ModelLogs, leader: int
) -> None:
    """The controller takes the replica for one in a failed directory, until it answers something else."""
    logs.full = True
    member.tell_roles(role(0, leader=leader, leader_epoch=5))
    assert pass_time(member, 2_000).asked == 0
    logs.full = False
    assert pass_time(member, 4_000).asked == 1
    assert hosted(member).role is Role.OFFLINE  # another leader may have been elected meanwhile
    assert pass_time(member, 8_000).asked == 2  # the controller may have changed
    assert member.tell_roles(role(0, leader=2, leader_epoch=6)) == [OK]
    assert member.fetching == {FIRST: (2, 6)}
    assert pass_time(member, 60_000).asked == 2


def test_it_is_looked_for_room_soon_after_a_refusal_and_then_less_and_less(member: Member, logs: ModelLogs) -> None:
    logs.full = True
    member.partitions.tick()
    dues = member.dues
    member.tell_roles(role(0, leader=2, leader_epoch=5))
    assert member.dues == dues + 1
    waits = []
    for _ in range(7):
        waits.append(member.partitions.tick())
        member.clock.now_ms += waits[-1]
    assert [each for each in waits if each] == [2_000, 4_000, 8_000, 1_000, 15_000, 15_000, 15_000]


def incomplete(logs: ModelLogs) -> ModelLog:
    log = logs.logs[FIRST] = ModelLog(FIRST, TOPIC_ID, is_complete=False)
    return log


@pytest.mark.parametrize("leader", [ME, 2])
def test_a_replica_that_lacks_records_declines_every_role_in_the_isr_and_then_follows(
    member: Member, logs: ModelLogs, leader: int
) -> None:
    log = incomplete(logs)
    assert member.tell_roles(role(0, leader=leader, leader_epoch=5)) == [ErrorCode.KAFKA_STORAGE_ERROR]
    assert (hosted(member).role, log.role, log.mended) == (Role.OFFLINE, "stopped", 0)
    assert member.said == [("gone", FIRST)]
    assert pass_time(member, 2_000).asked == 1
    assert member.tell_roles(role(0, leader=2, leader_epoch=6, isr=(2, 3))) == [OK]
    assert (log.role, log.mended, member.fetching) == ("follower", 1, {FIRST: (2, 6)})
    assert pass_time(member, 60_000).asked == 1


def test_a_replica_that_lacks_records_leads_when_it_is_asked_again_alone_in_the_isr(
    member: Member, logs: ModelLogs
) -> None:
    log = incomplete(logs)
    assert member.tell_roles(role(0, leader_epoch=5, isr=(ME,))) == [ErrorCode.KAFKA_STORAGE_ERROR]
    assert member.tell_roles(role(0, leader_epoch=7, isr=(ME,))) == [ErrorCode.KAFKA_STORAGE_ERROR]
    assert pass_time(member, 2_000).asked == 1
    assert member.tell_roles(role(0, leader=-1, leader_epoch=8, isr=(ME,))) == [OK]
    assert member.tell_roles(role(0, leader_epoch=9, isr=(ME,))) == [OK]
    assert (log.role, log.mended) == ("leader", 0)


@pytest.mark.parametrize("leader", [ME, 2])
def test_a_replica_whose_log_turns_out_to_be_damaged_is_given_up_and_made_good(
    member: Member, logs: ModelLogs, leader: int
) -> None:
    member.tell_roles(role(0, leader=leader, leader_epoch=5))
    member.partitions.damaged(FIRST, 7)
    assert (hosted(member).role, logs.logs[FIRST].role) == (Role.OFFLINE, "stopped")
    assert (member.fetching, member.asked, member.said[-1]) == ({}, 1, ("gone", FIRST))
    assert member.tell_roles(role(0, leader=leader, leader_epoch=5)) == [ErrorCode.KAFKA_STORAGE_ERROR]
    assert member.tell_roles(role(0, leader=3, leader_epoch=6, isr=(2, 3))) == [OK]
    assert (logs.logs[FIRST].mended, member.fetching) == (1, {FIRST: (3, 6)})
    assert member.partitions.counts.damaged == 1


def test_a_damaged_leader_that_is_alone_in_the_isr_leads_on(member: Member, logs: ModelLogs) -> None:
    member.tell_roles(role(0, leader_epoch=5, isr=(ME,)))
    member.partitions.damaged(FIRST, 7)
    assert (hosted(member).role, logs.logs[FIRST].role, member.asked) == (Role.LEADER, "leader", 0)


def test_a_leader_looks_for_damage_once_where_a_follower_does_not_come_on(member: Member, logs: ModelLogs) -> None:
    member.tell_roles(role(0, leader_epoch=5))
    log = logs.logs[FIRST]
    log.state.log_end_offset = 10
    log.state.seen[2].log_end_offset = 10
    log.state.seen[3].log_end_offset = 4
    pass_time(member, 15_000)
    assert log.looked_at == []
    pass_time(pass_time(member, 15_000), 15_000)
    assert log.looked_at == [4]
    log.damage = 4
    log.state.seen[2].log_end_offset = 6
    pass_time(pass_time(member, 15_000), 15_000)
    assert log.looked_at == [4, 6]
    assert (hosted(member).role, member.asked) == (Role.OFFLINE, 1)


def pass_time(member: Member, ms: int) -> Member:
    member.clock.now_ms += ms
    member.partitions.tick()
    return member


def test_a_leader_whose_log_refuses_a_new_epoch_leads_no_more(member: Member, logs: ModelLogs) -> None:
    member.tell_roles(role(0, leader_epoch=5), role(1, leader_epoch=5))
    logs.logs[FIRST].fails = True
    codes = member.tell_roles(role(0, leader_epoch=6), role(1, leader_epoch=6))
    assert codes == [ErrorCode.KAFKA_STORAGE_ERROR, OK]
    assert (hosted(member).role, hosted(member).leader_epoch) == (Role.OFFLINE, 5)
    member.partitions.tick()
    assert member.asks == []


def test_a_role_of_an_older_partition_epoch_is_answered_and_not_taken(member: Member, logs: ModelLogs) -> None:
    member.tell_roles(role(0, leader=2, leader_epoch=5, partition_epoch=8))
    assert member.tell_roles(role(0, leader_epoch=6, partition_epoch=7)) == [OK]
    assert logs.logs[FIRST].role == "follower"
    assert member.fetching == {FIRST: (2, 5)}


def test_a_full_request_of_a_zookeeper_controller_stops_nothing_that_it_does_not_name(member: Member) -> None:
    """Kafka 3.9 looks at the type of a request only if a KRaft controller sends it, in a migration."""
    member.tell_roles(role(0), role(1, leader=2))
    assert member.tell_roles(role(2, leader=3), kind=FULL_REQUEST) == [OK]
    assert len(member.partitions.all()) == 3
    assert SECOND in member.fetching


def test_neither_the_epoch_nor_the_recovery_of_a_single_partition_is_looked_at(member: Member, logs: ModelLogs) -> None:
    """What is obeyed is told by the epoch of the request; whoever leads serves, recovering or not."""
    led, followed = role(0, leader_epoch=4), role(1, leader=2, leader_epoch=4)
    for each, epoch in ((led, -1), (followed, 2**31 - 1)):
        each.controller_epoch, each.leader_recovery_state = epoch, 1
    assert member.tell_roles(led, followed, controller_epoch=5) == [OK, OK]
    assert logs.logs[FIRST].role == "leader" and member.fetching == {SECOND: (2, 4)}
    U = M.UpdateMetadataRequest
    state = U.UpdateMetadataPartitionState(
        partition_index=0, controller_epoch=2**31 - 1, leader=ME, leader_epoch=4, isr=[ME], zk_version=9, replicas=[ME]
    )
    topic = U.UpdateMetadataTopicState(topic_name=TOPIC, topic_id=TOPIC_ID.bytes, partition_states=[state])
    assert member.tell_brokers(1, 2, controller_epoch=5, topic_states=[topic]) == OK
    assert member.partitions.controller_epoch == 5
    known = member.image.partition(FIRST)
    assert known is not None and known.state_version == 9


def test_the_leaders_that_a_request_for_roles_names_are_not_those_that_are_alive(member: Member) -> None:
    """Which brokers are alive, and where they are, is told by UpdateMetadata."""
    roles = role(0, leader=2), role(1, leader=7, replicas=(1, 7))
    assert member.tell_roles(*roles, live_leaders=[7]) == [OK, OK]
    assert member.fetching == {FIRST: (2, 0)}


def test_of_a_partition_that_is_named_twice_the_last_role_counts(member: Member, logs: ModelLogs) -> None:
    member.tell_roles(role(0, leader_epoch=1), role(0, leader=2, leader_epoch=2))
    assert logs.logs[FIRST].role == "follower"
    assert member.said == [("follows", FIRST, 2)]


# --- followers and their leaders


def test_a_follower_fetches_anew_in_every_leader_epoch(member: Member) -> None:
    member.tell_roles(role(0, leader=2))
    member.tell_roles(role(0, leader=2, leader_epoch=1))
    assert member.fetching == {FIRST: (2, 1)}
    member.tell_roles(role(0, leader_epoch=2))
    assert member.fetching == {}
    member.tell_roles(role(0, leader=3, leader_epoch=3))
    assert member.fetching == {FIRST: (3, 3)}
    assert [each[0] for each in member.said] == ["follows", "follows", "leads", "follows"]


def test_a_leader_that_the_metadata_does_not_know_is_fetched_from_once_it_does(member: Member, logs: ModelLogs) -> None:
    assert member.tell_roles(role(0, leader=4, replicas=[1, 4])) == [OK]
    assert logs.logs[FIRST].role == "follower"
    assert member.fetching == {}
    assert member.tell_roles(role(0, leader=4, replicas=[1, 4])) == [OK]  # as in Kafka, the same epoch is taken again
    member.tell_brokers(1, 2, 3, 4)
    assert member.fetching == {FIRST: (4, 0)}
    assert member.tell_roles(role(0, leader=4, replicas=[1, 4])) == [ErrorCode.STALE_CONTROLLER_EPOCH]


def test_a_replica_that_may_be_told_its_role_again_takes_none_of_an_older_epoch(
    member: Member, logs: ModelLogs
) -> None:
    assert member.tell_roles(role(0, leader=4, leader_epoch=5, replicas=[1, 4])) == [OK], "its leader is not known"
    assert member.tell_roles(role(0, leader_epoch=4, partition_epoch=9)) == [ErrorCode.STALE_CONTROLLER_EPOCH]
    assert (logs.logs[FIRST].role, hosted(member).leader_epoch) == ("follower", 5)


def test_a_leader_steps_down_for_one_that_the_metadata_does_not_know(member: Member, logs: ModelLogs) -> None:
    member.tell_roles(role(0))
    member.tell_roles(role(0, leader=-1, leader_epoch=1))
    assert logs.logs[FIRST].role == "follower"
    assert member.said[-1] == ("follows", FIRST, 1)


def test_a_stopped_replica_does_not_begin_to_fetch_when_its_leader_comes(member: Member) -> None:
    member.tell_roles(role(0, leader=4, replicas=[1, 4]))
    member.tell_stop(0, leader_epoch=0)
    member.tell_brokers(1, 4)
    assert member.fetching == {}


def test_after_the_stop_nothing_is_fetched(member: Member) -> None:
    member.tell_roles(role(0, leader=2), role(1, leader=4, replicas=[1, 4]))
    member.partitions.stop()
    assert member.fetching == {}
    assert member.tell_roles(role(0, leader=2, leader_epoch=1)) == [OK]
    member.tell_brokers(1, 2, 3, 4)
    assert member.fetching == {}


# --- StopReplica


@pytest.mark.parametrize("version", range(5))
def test_every_version_of_stop_replica_stops_and_deletes(member: Member, logs: ModelLogs, version: int) -> None:
    member.tell_roles(role(0, leader=2), role(1))
    assert member.tell_stop(0, version=version) == [OK]
    assert member.fetching == {}
    assert hosted(member).role is Role.FOLLOWER
    assert member.tell_stop(0, 1, 7, deletes=True, version=version) == [OK] * 3
    assert not logs.logs
    assert member.partitions.all() == {}
    assert member.said[-3:] == [("gone", FIRST), ("gone", SECOND), ("gone", TopicPartition(TOPIC, 7))]


@pytest.mark.parametrize(("epoch", "code"), [(-2, OK), (-1, OK), (4, ErrorCode.FENCED_LEADER_EPOCH), (5, OK), (6, OK)])
def test_a_late_stop_is_refused(member: Member, logs: ModelLogs, epoch: int, code: ErrorCode) -> None:
    """KIP-570."""
    member.tell_roles(role(0, leader=2, leader_epoch=5))
    assert member.tell_stop(0, leader_epoch=epoch, deletes=True) == [code]
    assert (FIRST in logs.logs) == bool(code)
    assert (FIRST in member.fetching) == bool(code)


def test_an_unknown_partition_is_stopped_and_what_is_on_disk_is_deleted(member: Member, logs: ModelLogs) -> None:
    logs.open_or_create(TOPIC, TOPIC_ID, 0, is_new=True)
    assert member.tell_stop(0, 1, leader_epoch=3) == [OK, OK]
    assert FIRST in logs.logs
    assert member.tell_stop(0, 1, leader_epoch=-2, deletes=True) == [OK, OK]
    assert not logs.logs


def test_a_log_that_cannot_be_deleted_is_told(member: Member, logs: ModelLogs) -> None:
    member.tell_roles(role(0))
    logs.full = True
    assert member.tell_stop(0, leader_epoch=-2, deletes=True) == [ErrorCode.KAFKA_STORAGE_ERROR]
    assert member.partitions.get(FIRST) is None


def test_a_deleted_partition_may_be_made_again_in_a_lower_epoch(member: Member) -> None:
    member.tell_roles(role(0, leader_epoch=8, partition_epoch=20))
    member.tell_stop(0, leader_epoch=-2, deletes=True)
    assert member.tell_roles(role(0, leader=2, is_new=True), topic_id=UUID(int=78)) == [OK]
    assert member.fetching == {FIRST: (2, 0)}


def test_a_stop_without_deletion_ends_a_leaders_part_only_by_the_next_role(member: Member, logs: ModelLogs) -> None:
    member.tell_roles(role(0))
    assert member.tell_stop(0, leader_epoch=0) == [OK]
    assert logs.logs[FIRST].role == "leader"  # as in Kafka: only LeaderAndIsr gives and takes roles


@pytest.mark.parametrize(
    ("topic", "partition_id"), [("..", 0), ("a/../b", 0), ("", 0), ("x" * 250, 0), ("\u00e4", 0), ("\0", 0), ("t", -1)]
)
def test_a_role_in_a_partition_that_cannot_be_makes_no_log_and_the_others_are_taken(
    member: Member, logs: ModelLogs, topic: str, partition_id: int
) -> None:
    Q = M.LeaderAndIsrRequest
    bad = Q.LeaderAndIsrTopicState(topic_name=topic, topic_id=UUID(int=5).bytes, partition_states=[role(partition_id)])
    good = Q.LeaderAndIsrTopicState(topic_name=TOPIC, topic_id=TOPIC_ID.bytes, partition_states=[role(0)])
    request = Q(controller_id=2, controller_epoch=1, broker_epoch=-1, topic_states=[bad, good])
    answer = member.partitions.leader_and_isr(Q.decode(request.encode(7), 7), 7)
    codes = {each.topic_id: each.partition_errors[0].error_code for each in answer.topics}
    assert codes == {UUID(int=5).bytes: ErrorCode.INVALID_TOPIC_EXCEPTION, TOPIC_ID.bytes: OK}
    assert logs.logs.keys() == {FIRST}


# --- a broker that was away when it should have been told


def tell_state(member: Member, leader: int, leader_epoch: int, replicas: list[int], topic_id: UUID = TOPIC_ID) -> None:
    U = M.UpdateMetadataRequest
    state = U.UpdateMetadataPartitionState(
        partition_index=0, leader=leader, leader_epoch=leader_epoch, replicas=replicas, isr=replicas
    )
    topic = U.UpdateMetadataTopicState(topic_name=TOPIC, topic_id=topic_id.bytes, partition_states=[state])
    member.tell_brokers(1, 2, 3, topic_states=[topic])


@pytest.mark.parametrize("leader", [ME, 2])
def test_a_replica_that_the_metadata_does_not_name_any_more_is_left(
    member: Member, logs: ModelLogs, leader: int
) -> None:
    """The replica was moved away meanwhile: nobody tells it to stop any more."""
    member.tell_roles(role(0, leader=leader, leader_epoch=5), role(1, leader=2))
    for stale in ((2, 5, [2, 3]), (2, 6, [1, 2, 3]), (2, 6, []), (-2, -2, [1, 2, 3])):
        tell_state(member, *stale)
        assert member.partitions.get(FIRST) is not None, "it has not come so far yet"
    tell_state(member, 2, 6, [2, 3])
    assert member.partitions.get(FIRST) is None
    assert logs.logs[FIRST].role == "stopped"
    assert member.fetching == {SECOND: (2, 0)}
    assert member.said[-1] == ("gone", FIRST)
    assert FIRST in logs.logs, "its records stay"
    assert member.tell_roles(role(0, leader=2, leader_epoch=7)) == [OK], "the replica may come back"
    assert member.fetching == {FIRST: (2, 7), SECOND: (2, 0)}


@pytest.mark.parametrize("leader", [ME, 2])
def test_replicas_of_a_topic_that_was_deleted_unseen_are_left(member: Member, logs: ModelLogs, leader: int) -> None:
    """This broker was away when its replica was moved, and the topic was deleted before it came back."""
    member.tell_roles(role(0, leader=leader, leader_epoch=5), role(1, leader=2))
    member.partitions.topics_deleted({"another": TOPIC_ID, TOPIC: UUID(int=78)})
    assert member.partitions.get(FIRST) is not None, "another topic of that name"
    member.partitions.topics_deleted({TOPIC: TOPIC_ID})
    assert member.partitions.all() == {} and member.fetching == {}
    assert logs.logs[FIRST].role == "stopped"
    assert set(member.said[-2:]) == {("gone", FIRST), ("gone", SECOND)}
    again = UUID(int=79)
    assert member.tell_roles(role(0, leader=2), topic_id=again) == [OK], "it is made again, and placed here"
    assert logs.logs[FIRST].topic_id == again


@pytest.mark.parametrize("is_told_of_the_deletion", [True, False])
def test_a_topic_that_was_made_again_while_this_broker_was_away_gets_its_log(
    member: Member, logs: ModelLogs, is_told_of_the_deletion: bool
) -> None:
    member.tell_roles(role(0, leader_epoch=5))
    again = UUID(int=78)
    if is_told_of_the_deletion:
        tell_state(member, -2, -2, [], UUID(int=0))
        assert member.partitions.get(FIRST) is None
    else:
        tell_state(member, 2, 0, [1, 2], again)
    assert logs.logs[FIRST].topic_id == TOPIC_ID
    assert member.tell_roles(role(0, leader=2), topic_id=again) == [OK]
    assert logs.logs[FIRST].topic_id == again
    assert member.tell_roles(role(0, leader=2, leader_epoch=1)) == [ErrorCode.INCONSISTENT_TOPIC_ID]
