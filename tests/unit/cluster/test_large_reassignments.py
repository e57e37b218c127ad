"""Reassignments and deletions of many partitions: what they cost, and what happens between their chunks."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.cluster.controller import Controller
from kbroker.cluster.controller_requests import AlterPartition, AlterReassignments, ListReassignments
from kbroker.cluster.topic_requests import DeleteTopics, GrowTopics
from kbroker.coordination import paths
from kbroker.coordination.store import Delete
from kbroker.errors import ErrorCode
from kbroker.model import TopicPartition
from kbroker.protocol import messages as M
from kbroker.rules.controller import reassignment
from tests.kit.parts.control_cluster import ControlCluster
from tests.kit.parts.costs import Costs

CHUNK = 2


@pytest.fixture
def cluster() -> ControlCluster:
    made = ControlCluster()
    for node_id in (1, 2, 3, 4):
        made.start(node_id)
        made.settle()
    return made


@pytest.fixture
def costs(monkeypatch: pytest.MonkeyPatch) -> Costs:
    return Costs(monkeypatch)


def partitions(topics: int, each_has: int) -> list[TopicPartition]:
    return [TopicPartition(f"t{topic}", number) for topic in range(topics) for number in range(each_has)]


def make(cluster: ControlCluster, topics: int, each_has: int) -> None:
    for topic in range(topics):
        cluster.create(f"t{topic}", *[(2, 3)] * each_has)


def all_join(cluster: ControlCluster, moved: list[TopicPartition], isr: tuple[int, ...]) -> None:
    """Let their leader, broker 2, ask for the same ISR of all partitions at once."""
    Request = M.AlterPartitionRequest
    told = {each: cluster.members[each].told.epoch for each in isr}
    by_topic: dict[str, Request.TopicData] = {}
    for at in moved:
        state = cluster.state(*at)
        assert state.leader == 2
        data = by_topic.setdefault(
            at.topic, Request.TopicData(topic_id=cluster.assignment(at.topic).topic_id.bytes, partitions=[])
        )
        data.partitions.append(
            Request.PartitionData(
                partition_index=at.partition_id,
                leader_epoch=state.leader_epoch,
                new_isr_with_epochs=[Request.BrokerState(broker_id=each, broker_epoch=told[each]) for each in isr],
                partition_epoch=state.partition_epoch,
                leader_recovery_state=0,
            )
        )
    request = Request(broker_id=2, broker_epoch=told[2], topics=list(by_topic.values()))
    assert cluster.ask(AlterPartition(request, 3)).error_code == 0


@pytest.mark.parametrize(("topics", "each_has"), [(1, 1), (5, 1), (5, 20)])
def test_a_reassignment_costs_the_same_for_one_and_for_many_partitions(
    cluster: ControlCluster, costs: Costs, topics: int, each_has: int
) -> None:
    make(cluster, topics, each_has)
    moved = partitions(topics, each_has)
    costs.take()
    outcome = cluster.ask(AlterReassignments(dict.fromkeys(moved, (4, 1))))
    assert {each.error for each in outcome.values()} == {ErrorCode.NONE}
    commands, round_trips = costs.take()
    assert commands == {
        "ReadReassignments": 1, "WriteTopics": 1, "WriteStates": 1, "Send": 1, "Answer": 1,
        "ReadTopics": 1,  # the nodes of the topics have changed
    }  # fmt: skip
    assert round_trips <= 5, "two of them look for the node of tools, which is not there"

    all_join(cluster, moved, (2, 3, 4, 1))
    commands, round_trips = costs.take()
    assert {cluster.assignment(name).replicas[0] for name in {each.topic for each in moved}} == {(4, 1)}
    assert all(set(cluster.state(*each).isr) == {4, 1} for each in moved)
    assert commands == {
        "ReadBrokerEpochs": 1, "Answer": 1,
        "WriteStates": 3,  # the ISR as the leader asks for it, the new leader, the ISR without those that are removed
        "WriteTopics": 1, "ReadReassignments": 1,
        "Send": 5,  # the ISR, the new leader, stop, delete, the replicas that are left
        "ReadTopics": 1,
    }  # fmt: skip
    assert round_trips <= 8
    assert all(not each.told.logs.intersection(moved) for each in (cluster.members[2], cluster.members[3]))


def test_a_cancel_costs_the_same_for_one_and_for_many_partitions(cluster: ControlCluster, costs: Costs) -> None:
    make(cluster, 5, 20)
    moved = partitions(5, 20)
    cluster.ask(AlterReassignments(dict.fromkeys(moved, (4, 1))))
    all_join(cluster, moved, (2, 3, 4))
    costs.take()
    cluster.ask(AlterReassignments(dict.fromkeys(moved)))
    commands, round_trips = costs.take()
    assert {cluster.state(*each).isr for each in moved} == {(2, 3)}
    assert commands["WriteTopics"] == 1, "the nodes have the end already"
    assert commands["WriteStates"] == 2
    assert round_trips <= 8


def remove_nodes_of(cluster: ControlCluster, at: TopicPartition) -> None:
    path = paths.partition_path(*at)
    cluster.tree.change(0, [Delete(f"{path}/state"), Delete(path)])


def test_a_deletion_costs_the_same_for_one_and_for_many_topics(cluster: ControlCluster, costs: Costs) -> None:
    """One partition has no nodes, as if it never had a leader."""
    taken = []
    for count in (1, 20):
        make(cluster, count, 3)
        remove_nodes_of(cluster, TopicPartition("t0", 1))
        costs.take()
        cluster.ask(DeleteTopics([f"t{number}" for number in range(count)]))
        assert not cluster.tree.model.children(paths.TOPICS)
        assert not cluster.tree.model.children(paths.TOPIC_CONFIGS)
        taken.append(costs.take())
    assert taken[0] == taken[1]
    assert taken[0][0]["RemoveTopics"] == 1
    assert taken[0][1] <= 16


def test_what_nobody_knows_below_the_nodes_of_topics_is_removed_with_them(cluster: ControlCluster) -> None:
    make(cluster, 2, 3)
    cluster.kill(1)
    cluster.tree.put(f"{paths.partitions_path('t0')}/77/state", b"garbage")
    cluster.tree.put(f"{paths.topic_path('t1')}/more/inside")
    remove_nodes_of(cluster, TopicPartition("t1", 1))
    cluster.expire(1)
    cluster.settle()
    cluster.start(1)
    cluster.settle()
    cluster.ask(DeleteTopics(["t0", "t1"]))
    assert not cluster.tree.model.children(paths.TOPICS)
    assert not cluster.tree.model.children(paths.DELETE_TOPICS)


# --- between chunks ---------------------------------------------------------------------------------------------------

MOVED = partitions(3, 2)
FIRST, WAITING = MOVED[:CHUNK], MOVED[CHUNK:]


@pytest.fixture
def moving(cluster: ControlCluster, monkeypatch: pytest.MonkeyPatch) -> ControlCluster:
    """A cluster whose controller has begun with the first chunk of what was asked for, and has answered just now."""
    monkeypatch.setattr(reassignment, "CHUNK", CHUNK)
    make(cluster, 3, 2)
    cluster.create("other", (4, 2))
    begin(cluster, dict.fromkeys(MOVED, (4, 1)))
    return cluster


def begin(cluster: ControlCluster, targets: dict[TopicPartition, tuple[int, ...] | None]) -> None:
    """Ask for reassignments and go on until the answer, which accepts all of them."""
    answers: list[Any] = []
    cluster.active.controller.ask(AlterReassignments(targets), answers.append)
    for _ in range(100):
        if answers:
            assert {each: outcome.error for each, outcome in answers[0].items()} == dict.fromkeys(targets, 0)
            return
        cluster.active.controller.step()
    raise AssertionError("it is not answered")


def raised(cluster: ControlCluster) -> list[TopicPartition]:
    return [each for each in MOVED if cluster.state(*each).leader_epoch > 0]


def test_all_is_in_the_nodes_when_it_is_answered_and_the_rest_follows(moving: ControlCluster) -> None:
    for name in ("t0", "t1", "t2"):
        assert moving.assignment(name).adding == {0: (4, 1), 1: (4, 1)}
    assert raised(moving) == FIRST
    answers: list[Any] = []
    moving.active.controller.ask(ListReassignments(None), answers.append)
    moving.active.controller.ask(GrowTopics({"t2": {2: (1,)}}), answers.append)
    moving.settle()
    assert answers[0].keys() == set(MOVED), "also those that wait are listed"
    assert answers[1] == {"t2": ErrorCode.REASSIGNMENT_IN_PROGRESS}
    assert raised(moving) == MOVED
    for node_id in (4, 1):
        assert all(moving.members[node_id].told.roles[each].is_new for each in MOVED)
    for each in MOVED:
        moving.join_isr(*each, 4, 1)
        assert moving.assignment(each.topic).replicas[each.partition_id] == (4, 1)
    assert moving.ask(ListReassignments(None)) == {}


def test_a_broker_that_dies_between_chunks_is_replaced_before_the_rest(moving: ControlCluster) -> None:
    moving.expire(4)
    moving.kill(4)
    while moving.leader("other") != 2:
        moving.active.controller.step()
    assert raised(moving) == MOVED[: 2 * CHUNK], "the second chunk had its turn before the broker died"
    moving.settle()
    assert raised(moving) == MOVED
    moving.start(4)
    moving.settle()
    for each in MOVED:
        moving.join_isr(*each, 4, 1)
    assert {moving.assignment(each.topic).replicas[each.partition_id] for each in MOVED} == {(4, 1)}


def isr_between_chunks(cluster: ControlCluster, at: TopicPartition, isr: tuple[int, ...]) -> Any:
    """Let broker 2, the leader, ask for an ISR, and go on until it is answered. Returns the partition's answer."""
    answers: list[Any] = []
    Request = M.AlterPartitionRequest
    state = cluster.state(*at)
    asked = Request.PartitionData(
        partition_index=at.partition_id,
        leader_epoch=state.leader_epoch,
        new_isr_with_epochs=[Request.BrokerState(broker_id=each, broker_epoch=-1) for each in isr],
        partition_epoch=state.partition_epoch,
        leader_recovery_state=0,
    )
    topic = Request.TopicData(topic_id=cluster.assignment(at.topic).topic_id.bytes, partitions=[asked])
    request = Request(broker_id=2, broker_epoch=cluster.members[2].told.epoch, topics=[topic])
    cluster.active.controller.ask(AlterPartition(request, 3), answers.append)
    while not answers:
        cluster.active.controller.step()
    return answers[0].topics[0].partitions[0]


def test_an_isr_is_changed_between_chunks(moving: ControlCluster) -> None:
    """The leader of a partition that waits does not know its new replicas yet."""
    at = WAITING[-1]
    answer = isr_between_chunks(moving, at, (2,))
    assert raised(moving) == MOVED[: 2 * CHUNK], "the second chunk had its turn before the leader asked"
    assert answer.isr == [2]
    moving.settle()
    assert moving.state(*at)[:3] == (2, 1, (2,))


def test_a_replica_that_is_to_be_removed_joins_no_isr_between_chunks(moving: ControlCluster) -> None:
    moving.settle()
    at = WAITING[-1]
    begin(moving, dict.fromkeys(MOVED))
    assert moving.state(*at)[:3] == (2, 1, (2, 3))
    assert isr_between_chunks(moving, at, (2, 3, 4)).error_code == ErrorCode.INELIGIBLE_REPLICA
    assert moving.state(*at)[:3] == (2, 1, (2, 3)), "it waits still"
    moving.settle()
    assert moving.state(*at)[:3] == (2, 2, (2, 3))
    assert not moving.members[4].told.logs.intersection(MOVED)


def test_another_controller_goes_on_between_chunks(moving: ControlCluster) -> None:
    moving.kill(1)
    moving.expire(1)
    moving.settle()
    assert raised(moving) == MOVED
    assert moving.ask(ListReassignments(None)).keys() == set(MOVED)
    assert all(each in moving.members[4].told.roles for each in MOVED)


def test_what_waits_is_cancelled(moving: ControlCluster) -> None:
    cancelled = dict.fromkeys([*FIRST, *WAITING[:3]])
    outcome = moving.ask(AlterReassignments(cancelled))
    assert {each.error for each in outcome.values()} == {ErrorCode.NONE}
    assert moving.ask(ListReassignments(None)).keys() == {WAITING[3]}
    for name in ("t0", "t1"):
        assert moving.assignment(name).replicas == {0: (2, 3), 1: (2, 3)}
        assert not moving.assignment(name).adding and not moving.assignment(name).removing
    for member in moving.live():
        here = {each for each in MOVED if each in member.told.logs}
        assert here == ({WAITING[3]} if member.node_id in (1, 4) else set(MOVED))
        assert member.told.metadata[WAITING[0]].replicas == [2, 3]
    again = moving.ask(AlterReassignments({WAITING[0]: None}))
    assert again[WAITING[0]].error == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS


def test_what_waits_gets_another_target(moving: ControlCluster) -> None:
    begin(moving, dict.fromkeys(MOVED, (3, 1)))
    moving.settle()
    assert moving.assignment("t2").replicas == {0: (3, 1, 2), 1: (3, 1, 2)}
    for each in MOVED:
        moving.join_isr(*each, 1)
    for each in MOVED:
        assert moving.assignment(each.topic).replicas[each.partition_id] == (3, 1)
        assert set(moving.state(*each).isr) == {3, 1}
    for node_id in (2, 4):
        assert not moving.members[node_id].told.logs.intersection(MOVED)


def test_topics_of_which_partitions_wait_are_deleted(moving: ControlCluster) -> None:
    moving.ask(DeleteTopics(["t1", "t2"]))
    assert moving.tree.model.children(paths.TOPICS) == ["other", "t0"]
    assert all(not member.told.logs.intersection(WAITING) for member in moving.live())
    assert moving.ask(ListReassignments(None)).keys() == set(FIRST)


def test_a_cancel_that_waits_is_taken_back_when_the_isr_moves_out_meanwhile(
    moving: ControlCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the new replica has all records then: without it the partition would need an unclean election."""
    moving.settle()
    last = MOVED[-1]
    moving.join_isr(*last, 4)
    begin(moving, dict.fromkeys(MOVED))
    assert not moving.assignment(last.topic).adding
    carry_out = Controller._carry_out

    def look(controller: Controller, term: Any, command: Any) -> Any:
        done = carry_out(controller, term, command)
        replicas = moving.assignment(last.topic).replicas[last.partition_id]
        assert not set(moving.state(*last).isr).isdisjoint(replicas), "the next controller could elect nobody"
        return done

    monkeypatch.setattr(Controller, "_carry_out", look)
    for node_id in (3, 2):
        moving.kill(node_id)
        moving.expire(node_id)
    moving.settle()
    assert moving.assignment(last.topic).replicas[last.partition_id] == (4, 1, 2, 3)
    assert moving.state(*last)[:3:2] == (4, (4,))
    assert last in moving.members[4].told.logs
    assert moving.ask(ListReassignments(None)).keys() == {last}


def test_a_replica_whose_removal_waits_is_not_elected_uncleanly(moving: ControlCluster) -> None:
    moving.settle()
    last = MOVED[-1]
    moving.unclean.add(last.topic)
    begin(moving, dict.fromkeys(MOVED))
    assert not moving.assignment(last.topic).adding
    for node_id in (3, 2):
        moving.kill(node_id)
        moving.expire(node_id)
    moving.settle()
    assert moving.assignment(last.topic).replicas[last.partition_id] == (2, 3)
    assert moving.state(*last).leader == -1
    moving.start(3)
    moving.settle()
    assert moving.state(*last)[:3:2] == (3, (3,))


def test_a_topic_that_somebody_has_removed_is_not_moved(cluster: ControlCluster) -> None:
    make(cluster, 2, 1)

    def remove() -> None:
        below = paths.partition_path("t1", 0)
        for path in (f"{below}/state", below, paths.partitions_path("t1"), paths.topic_path("t1")):
            cluster.tree.change(0, [Delete(path)])

    outcome = cluster.ask(AlterReassignments(dict.fromkeys(partitions(2, 1), (4, 1))), meanwhile=remove)
    assert [each.error for each in outcome.values()] == [ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
