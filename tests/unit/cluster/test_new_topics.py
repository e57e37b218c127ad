"""Which topics may be created and grown, in the words of Apache Kafka 3.9.1 (KRaft), which gave these answers."""

from __future__ import annotations

import pytest

from kbroker.cluster.image import Topic
from kbroker.cluster.new_topics import NewTopic
from kbroker.errors import ErrorCode, ProtocolError
from tests.kit.parts.cluster import Cluster

E = ErrorCode
LONG = "x" * 250
CASES: list[tuple[NewTopic, ErrorCode, str]] = [
    (
        NewTopic("a/b"),
        E.INVALID_TOPIC_EXCEPTION,
        "Topic name is invalid: 'a/b' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'",
    ),
    (
        NewTopic("ä"),
        E.INVALID_TOPIC_EXCEPTION,
        "Topic name is invalid: 'ä' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'",
    ),
    (NewTopic(""), E.INVALID_TOPIC_EXCEPTION, "Topic name is invalid: the empty string is not allowed"),
    (NewTopic("."), E.INVALID_TOPIC_EXCEPTION, "Topic name is invalid: '.' is not allowed"),
    (NewTopic(".."), E.INVALID_TOPIC_EXCEPTION, "Topic name is invalid: '..' is not allowed"),
    (
        NewTopic(LONG),
        E.INVALID_TOPIC_EXCEPTION,
        f"Topic name is invalid: the length of '{LONG}' is longer than the max allowed length 249",
    ),
    (NewTopic("a.b"), E.TOPIC_ALREADY_EXISTS, "Topic 'a.b' already exists."),
    (NewTopic("a_b"), E.INVALID_TOPIC_EXCEPTION, "Topic 'a_b' collides with existing topic: a.b"),
    (
        NewTopic("__cluster_metadata"),
        E.INVALID_REQUEST,
        "Creation of internal topic __cluster_metadata is prohibited.",
    ),
    (
        NewTopic("p", 0),
        E.INVALID_PARTITIONS,
        "Number of partitions was set to an invalid non-positive value.",
    ),
    (
        NewTopic("p", -2),
        E.INVALID_PARTITIONS,
        "Number of partitions was set to an invalid non-positive value.",
    ),
    (
        NewTopic("r", 1, 0),
        E.INVALID_REPLICATION_FACTOR,
        "Replication factor must be larger than 0, or -1 to use the default value.",
    ),
    (
        NewTopic("r", 1, 2),
        E.INVALID_REPLICATION_FACTOR,
        "Unable to replicate the partition 2 time(s): The target replication factor of 2 cannot be reached because "
        "only 1 broker(s) are registered.",
    ),
    (
        NewTopic("as", 2, -1, ((0, (1,)), (1, (1,)))),
        E.INVALID_REQUEST,
        "A manual partition assignment was specified, but numPartitions was not set to -1.",
    ),
    (
        NewTopic("as", -1, 1, ((0, (1,)),)),
        E.INVALID_REQUEST,
        "A manual partition assignment was specified, but replication factor was not set to -1.",
    ),
    (
        NewTopic("as", -1, -1, ((0, (9,)),)),
        E.INVALID_REPLICA_ASSIGNMENT,
        "The manual partition assignment includes broker 9, but no such broker is registered.",
    ),
    (
        NewTopic("as", -1, -1, ((0, (-1,)),)),
        E.INVALID_REPLICA_ASSIGNMENT,
        "The manual partition assignment includes broker -1, but no such broker is registered.",
    ),
    (
        NewTopic("as", -1, -1, ((0, (1,)), (2, (1,)))),
        E.INVALID_REPLICA_ASSIGNMENT,
        "partitions should be a consecutive 0-based integer sequence",
    ),
    (
        NewTopic("as", -1, -1, ((1, (1,)),)),
        E.INVALID_REPLICA_ASSIGNMENT,
        "partitions should be a consecutive 0-based integer sequence",
    ),
    (
        NewTopic("as", -1, -1, ((0, (1,)), (0, (1,)))),
        E.INVALID_REPLICA_ASSIGNMENT,
        "Found multiple manual partition assignments for partition 0",
    ),
    (
        NewTopic("as", -1, -1, ((0, ()),)),
        E.INVALID_REPLICA_ASSIGNMENT,
        "The manual partition assignment includes an empty replica list.",
    ),
    (
        NewTopic("as", -1, -1, ((0, (1, 1)),)),
        E.INVALID_REPLICA_ASSIGNMENT,
        "The manual partition assignment includes the broker 1 more than once.",
    ),
    (NewTopic("bc", configs={"nope": "1"}), E.INVALID_CONFIG, "Unknown topic config name: nope"),
    (
        NewTopic("bc", configs={"retention.ms": None}),
        E.INVALID_CONFIG,
        "Null value not supported for topic configs: retention.ms",
    ),
    (NewTopic("bc", 0, 0, configs={"nope": "1"}), E.INVALID_CONFIG, "Unknown topic config name: nope"),
    (NewTopic("huge", 10_001), E.POLICY_VIOLATION, "Excessively large number of partitions per request."),
    (NewTopic("huge", 2**31 - 1), E.POLICY_VIOLATION, "Excessively large number of partitions per request."),
]


@pytest.mark.parametrize(("new", "code", "message"), CASES)
def test_what_may_not_be_created_is_refused_in_kafkas_words(
    cluster: Cluster, new: NewTopic, code: ErrorCode, message: str
) -> None:
    cluster.topics.create([NewTopic("a.b")])
    for validate_only in (True, False):
        result = cluster.topics.create([new], validate_only=validate_only)[0]
        assert isinstance(result, ProtocolError)
        assert (result.code, result.message) == (code, message)
    assert list(cluster.topics.image.topics) == ["a.b"]


@pytest.mark.parametrize("name", ["y" * 249, "-", "a-b_c.D9", "...", "0"])
def test_legal_names_are_taken(cluster: Cluster, name: str) -> None:
    assert isinstance(cluster.topics.create([NewTopic(name)], validate_only=True)[0], Topic)


def test_names_that_collide_only_with_each_other_are_both_taken_as_in_kafka(cluster: Cluster) -> None:
    assert all(isinstance(each, Topic) for each in cluster.topics.create([NewTopic("c.d"), NewTopic("c_d")]))


def test_a_manual_assignment_is_followed(cluster: Cluster) -> None:
    topic = cluster.topics.create([NewTopic("as", -1, -1, ((1, (1,)), (0, (1,))))])[0]
    assert isinstance(topic, Topic)
    assert [partition.replicas for partition in topic.partitions] == [(1,), (1,)]


@pytest.mark.parametrize(
    ("count", "assignments", "code", "message"),
    [
        (3, None, E.INVALID_PARTITIONS, "Topic already has 3 partition(s)."),
        (2, None, E.INVALID_PARTITIONS, "The topic a currently has 3 partition(s); 2 would not be an increase."),
        (-1, None, E.INVALID_PARTITIONS, "The topic a currently has 3 partition(s); -1 would not be an increase."),
        (
            6,
            [(1,)],
            E.INVALID_REPLICA_ASSIGNMENT,
            "Attempted to add 3 additional partition(s), but only 1 assignment(s) were specified.",
        ),
        (
            4,
            [],
            E.INVALID_REPLICA_ASSIGNMENT,
            "Attempted to add 1 additional partition(s), but only 0 assignment(s) were specified.",
        ),
        (
            4,
            [(5,)],
            E.INVALID_REPLICA_ASSIGNMENT,
            "The manual partition assignment includes broker 5, but no such broker is registered.",
        ),
        (
            4,
            [()],
            E.INVALID_REPLICA_ASSIGNMENT,
            "The manual partition assignment includes an empty replica list.",
        ),
        (20_000, None, E.POLICY_VIOLATION, "Excessively large number of partitions per request."),
    ],
)
def test_partitions_that_may_not_be_added_are_refused_in_kafkas_words(
    cluster: Cluster, count: int, assignments: list[tuple[int, ...]] | None, code: ErrorCode, message: str
) -> None:
    cluster.topics.create([NewTopic("a", 3)])
    with pytest.raises(ProtocolError) as raised:
        cluster.topics.add_partitions("a", count, assignments)
    assert (raised.value.code, raised.value.message) == (code, message)
    assert len(cluster.topics.image.topics["a"].partitions) == 3


def test_partitions_of_an_unknown_topic_are_refused(cluster: Cluster) -> None:
    with pytest.raises(ProtocolError) as raised:
        cluster.topics.add_partitions("a", 3)
    assert (raised.value.code, raised.value.message) == (E.UNKNOWN_TOPIC_OR_PARTITION, None)
