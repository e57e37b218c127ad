"""Elections and reassignments, on a broker that is alone and through a controller."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kbroker.cluster.cluster import Cluster as ClusterFace
from kbroker.cluster.controller_requests import (
    UNCLEAN,
    AlterReassignments,
    ElectionOutcome,
    ElectLeaders,
    ListReassignments,
    PartitionOutcome,
)
from kbroker.cluster.new_topics import NewTopic
from kbroker.errors import ErrorCode
from kbroker.model import TopicPartition
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from kbroker.rules.controller.values import Assignment
from kbroker.server.handlers.shared.services import Services
from tests.kit.parts.cluster import NODE_ID, Cluster
from tests.kit.parts.handlers import call, services_on

ELECT, ALTER, LIST = (
    ApiKey.ELECT_LEADERS,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS,
    ApiKey.LIST_PARTITION_REASSIGNMENTS,
)
A0, A1, NONE0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("none", 0)


@pytest.fixture
def alone(cluster: Cluster) -> Services:
    cluster.topics.create([NewTopic("a", 2)])
    return services_on(cluster)


def elections(*asked: TopicPartition, kind: int = 0) -> M.ElectLeadersRequest:
    topics: dict[str, list[int]] = {}
    for each in asked:
        topics.setdefault(each.topic, []).append(each.partition_id)
    listed = [M.ElectLeadersRequest.TopicPartitions(topic=name, partitions=ids) for name, ids in topics.items()]
    return M.ElectLeadersRequest(election_type=kind, topic_partitions=listed, timeout_ms=1000)


def reassignments(targets: dict[TopicPartition, list[int] | None]) -> M.AlterPartitionReassignmentsRequest:
    Request = M.AlterPartitionReassignmentsRequest
    topics = [
        Request.ReassignableTopic(
            name=each.topic,
            partitions=[Request.ReassignablePartition(partition_index=each.partition_id, replicas=replicas)],
        )
        for each, replicas in targets.items()
    ]
    return Request(topics=topics, timeout_ms=1000)


def elected(response: Any) -> dict[TopicPartition, int]:
    return {
        TopicPartition(topic.topic, each.partition_id): each.error_code
        for topic in response.replica_election_results
        for each in topic.partition_result
    }


def altered(response: Any) -> dict[TopicPartition, int]:
    return {
        TopicPartition(topic.name, each.partition_index): each.error_code
        for topic in response.responses
        for each in topic.partitions
    }


@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_broker_that_is_alone_has_nothing_to_elect(alone: Services, version: int) -> None:
    response = call(alone, ELECT, version, elections(A0, NONE0))
    assert elected(response) == {A0: ErrorCode.ELECTION_NOT_NEEDED, NONE0: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    every = M.ElectLeadersRequest(topic_partitions=None, timeout_ms=1000)
    assert elected(call(alone, ELECT, version, every)) == {}, "those without an election are left out"


def test_a_type_of_election_that_does_not_exist_is_refused(alone: Services) -> None:
    response = call(alone, ELECT, 1, elections(A0, kind=7))
    assert response.error_code == ErrorCode.INVALID_REQUEST


def test_a_broker_that_is_alone_has_nowhere_to_move_replicas(alone: Services) -> None:
    response = call(alone, ALTER, 0, reassignments({A0: [NODE_ID], A1: [NODE_ID + 1], NONE0: [NODE_ID]}))
    assert altered(response) == {
        A0: ErrorCode.NONE,
        A1: ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        NONE0: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    wrong: list[list[int] | None] = [[], [NODE_ID, NODE_ID], [-1]]
    for target in wrong:
        assert altered(call(alone, ALTER, 0, reassignments({A0: target}))) == {A0: ErrorCode.INVALID_REPLICA_ASSIGNMENT}
    assert altered(call(alone, ALTER, 0, reassignments({A0: None}))) == {A0: ErrorCode.NO_REASSIGNMENT_IN_PROGRESS}
    assert call(alone, LIST, 0, M.ListPartitionReassignmentsRequest(topics=None)).topics == []


class AnsweringController:
    """Takes the place of a member's controller: it notes what is asked, and gives the answer of the test."""

    def __init__(self, answer: Any):
        self.asked: list[Any] = []
        self._answer = answer

    def ask(self, request: Any, answered: Callable[[Any], None]) -> None:
        self.asked.append(request)
        answered(self._answer)


class LateMetadata:
    """A cluster's face whose metadata does not get the leaders of some partitions in time."""

    def __init__(self, face: ClusterFace, late: frozenset[TopicPartition]):
        self._face = face
        self._late = late
        self.awaited: dict[TopicPartition, int] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._face, name)

    def await_leaders(self, leaders: Any, timeout_ms: int, shown: Callable[[frozenset[TopicPartition]], None]) -> None:
        assert timeout_ms == 1000
        self.awaited = dict(leaders)
        shown(self._late & frozenset(leaders))


def test_elections_are_answered_when_the_metadata_has_the_leaders(alone: Services) -> None:
    controller: Any = AnsweringController(
        {A0: ElectionOutcome(ErrorCode.NONE, None, 2), A1: ElectionOutcome(ErrorCode.NONE, None, 3),
         NONE0: ElectionOutcome(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "none")}
    )  # fmt: skip
    face: Any = LateMetadata(alone.cluster, frozenset({A1}))
    alone.controller, alone.cluster = controller, face
    response = call(alone, ELECT, 2, elections(A0, A1, NONE0, kind=UNCLEAN))
    assert controller.asked == [ElectLeaders(UNCLEAN, (A0, A1, NONE0))]
    assert face.awaited == {A0: 2, A1: 3}
    assert elected(response) == {
        A0: ErrorCode.NONE,
        A1: ErrorCode.REQUEST_TIMED_OUT,
        NONE0: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }


def test_reassignments_go_to_the_controller(alone: Services) -> None:
    controller: Any = AnsweringController({A0: PartitionOutcome(ErrorCode.NONE), A1: PartitionOutcome(ErrorCode.NONE)})
    alone.controller = controller
    assert altered(call(alone, ALTER, 0, reassignments({A0: [2, 3], A1: None}))) == {A0: 0, A1: 0}
    assert controller.asked == [AlterReassignments({A0: (2, 3), A1: None})]


@pytest.mark.parametrize(
    ("code", "text"),
    [(ErrorCode.NOT_CONTROLLER, "is not the controller"), (ErrorCode.UNKNOWN_SERVER_ERROR, "controller has failed")],
)
def test_a_refusal_of_reassignments_says_what_its_code_means(alone: Services, code: ErrorCode, text: str) -> None:
    alone.controller = refusing = AnsweringController(code)  # type: ignore[assignment]
    wanted = reassignments({A0: [2]})
    for key, message in ((ALTER, wanted), (LIST, M.ListPartitionReassignmentsRequest(topics=None))):
        response = call(alone, key, 0, message)
        assert response.error_code == code
        assert text in response.error_message
    assert refusing.asked == [AlterReassignments({A0: (2,)}), ListReassignments(None)]


@pytest.mark.parametrize("timeout_ms", [-1, 0, 2**31 - 1])
def test_reassignments_begin_and_are_listed_whatever_time_they_are_given(alone: Services, timeout_ms: int) -> None:
    alone.controller = AnsweringController({A0: PartitionOutcome(ErrorCode.NONE)})  # type: ignore[assignment]
    wanted = reassignments({A0: [2, 3]})
    wanted.timeout_ms = timeout_ms
    assert altered(call(alone, ALTER, 0, wanted)) == {A0: ErrorCode.NONE}
    alone.controller = AnsweringController({A0: Assignment((2, 1), (2,), (1,))})  # type: ignore[assignment]
    listed = call(alone, LIST, 0, M.ListPartitionReassignmentsRequest(topics=None, timeout_ms=timeout_ms))
    assert [topic.name for topic in listed.topics] == ["a"]


def test_what_is_being_moved_is_listed(alone: Services) -> None:
    alone.controller = controller = AnsweringController({A0: Assignment((2, 1), (2,), (1,))})  # type: ignore[assignment]
    topics = [M.ListPartitionReassignmentsRequest.ListPartitionReassignmentsTopics(name="a", partition_indexes=[0, 1])]
    response = call(alone, LIST, 0, M.ListPartitionReassignmentsRequest(topics=topics))
    assert controller.asked == [ListReassignments((A0, A1))]
    [topic] = response.topics
    [partition] = topic.partitions
    assert (topic.name, partition.partition_index) == ("a", 0)
    assert (partition.replicas, partition.adding_replicas, partition.removing_replicas) == ([2, 1], [2], [1])
