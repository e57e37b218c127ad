"""ElectLeaders, AlterPartitionReassignments and ListPartitionReassignments, where there is nothing to elect or move."""

from __future__ import annotations

from typing import Any

from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from tests.oracle.scenario import Talk, scenario

ELECT, ALTER, LIST = (
    ApiKey.ELECT_LEADERS,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS,
    ApiKey.LIST_PARTITION_REASSIGNMENTS,
)
THIS_BROKER, OTHER_BROKER = 0, 77
PREFERRED, UNCLEAN, NONE_SUCH = 0, 1, 7


def elect(t: Talk, kind: int, *asked: tuple[str, list[int]]) -> None:
    topics = [M.ElectLeadersRequest.TopicPartitions(topic=name, partitions=ids) for name, ids in asked]
    t.ask(M.ElectLeadersRequest(election_type=kind, topic_partitions=topics, timeout_ms=5000), keep=without_texts)


def move(t: Talk, *targets: tuple[str, int, list[int] | None]) -> None:
    Request = M.AlterPartitionReassignmentsRequest
    topics: dict[str, M.AlterPartitionReassignmentsRequest.ReassignableTopic] = {}
    for name, partition_id, replicas in targets:
        topic = topics.setdefault(name, Request.ReassignableTopic(name=name, partitions=[]))
        topic.partitions.append(Request.ReassignablePartition(partition_index=partition_id, replicas=replicas))
    t.ask(Request(topics=list(topics.values()), timeout_ms=5000), keep=without_texts)


def without_texts(response: Any) -> None:
    """Leave out error messages, which Kafka has changed between its controllers, and the order of topics."""
    if isinstance(response, M.ElectLeadersResponse):
        response.replica_election_results.sort(key=lambda topic: topic.topic)
        for topic in response.replica_election_results:
            topic.partition_result.sort(key=lambda each: each.partition_id)
            for partition in topic.partition_result:
                partition.error_message = None
    elif isinstance(response, M.AlterPartitionReassignmentsResponse):
        response.responses.sort(key=lambda topic: topic.name)
        for moved in response.responses:
            for each in moved.partitions:
                each.error_message = None


@scenario(ELECT)
def leaders_that_lead_already(t: Talk) -> None:
    topic = t.topic(partitions=2)
    elect(t, PREFERRED, (topic, [0, 1]))
    elect(t, PREFERRED, (topic, [0, 5]), (t.name("nowhere"), [0]))
    elect(t, PREFERRED)


@scenario(ELECT, since=1)
def unclean_elections_that_are_not_needed(t: Talk) -> None:
    topic = t.topic(partitions=2)
    elect(t, UNCLEAN, (topic, [0, 1]), (t.name("nowhere"), [0]))


@scenario(ELECT, since=1)
def an_election_of_no_known_type(t: Talk) -> None:
    elect(t, NONE_SUCH, (t.topic(), [0]))


@scenario(ALTER)
def replicas_that_stay_where_they_are(t: Talk) -> None:
    topic = t.topic(partitions=2)
    move(t, (topic, 0, [THIS_BROKER]))
    move(t, (topic, 0, None), (topic, 1, None))
    t.ask(M.ListPartitionReassignmentsRequest(topics=None, timeout_ms=5000))


@scenario(ALTER)
def replicas_that_cannot_be_there(t: Talk) -> None:
    topic = t.topic(partitions=2)
    move(t, (topic, 0, []), (topic, 1, [THIS_BROKER, THIS_BROKER]))
    move(t, (topic, 0, [OTHER_BROKER]), (topic, 1, [-1]))
    move(t, (topic, 5, [THIS_BROKER]), (t.name("nowhere"), 0, [THIS_BROKER]))


@scenario(LIST)
def nothing_is_being_moved(t: Talk) -> None:
    Request = M.ListPartitionReassignmentsRequest
    topic = t.topic(partitions=2)
    one = Request.ListPartitionReassignmentsTopics
    t.ask(Request(topics=None, timeout_ms=5000))
    t.ask(Request(topics=[one(name=topic, partition_indexes=[0, 1, 5])], timeout_ms=5000))
    t.ask(Request(topics=[one(name=t.name("nowhere"), partition_indexes=[0])], timeout_ms=5000))
