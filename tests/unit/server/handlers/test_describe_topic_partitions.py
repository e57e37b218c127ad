"""DescribeTopicPartitions page by page; the answers are those of Apache Kafka 3.9.1."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kbroker.cluster.new_topics import NewTopic
from kbroker.cluster.topics import Topics
from kbroker.errors import ErrorCode
from kbroker.model import TopicPartition
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from tests.kit.parts.cluster import Cluster
from tests.kit.parts.handlers import call, services_on
from tests.unit.server.handlers.conftest import Ask

Q = M.DescribeTopicPartitionsRequest
COUNTS = {"q1": 3, "q2": 5, "q3": 1}


@pytest.fixture(autouse=True)
def topics(cluster: Cluster) -> None:
    cluster.topics.create([NewTopic(name, count) for name, count in COUNTS.items()])


def asking(
    names: list[str], limit: int = 2000, cursor: tuple[str, int] | None = None
) -> M.DescribeTopicPartitionsRequest:
    at = None if cursor is None else Q.Cursor(topic_name=cursor[0], partition_index=cursor[1])
    return Q(topics=[Q.TopicRequest(name=name) for name in names], response_partition_limit=limit, cursor=at)


def shown(response: Any) -> tuple[list[tuple[str, int, list[int]]], tuple[str, int] | None]:
    parts = [(t.name, t.error_code, [p.partition_index for p in t.partitions]) for t in response.topics]
    cursor = response.next_cursor
    return parts, None if cursor is None else (cursor.topic_name, cursor.partition_index)


@pytest.mark.parametrize(
    ("names", "limit", "cursor", "parts", "next_cursor"),
    [
        (["q3", "q1", "q1"], 2000, None, [("q1", 0, [0, 1, 2]), ("q3", 0, [0])], None),
        (["q1", "q2"], 2, None, [("q1", 0, [0, 1])], ("q1", 2)),
        (["q1", "q2"], 3, None, [("q1", 0, [0, 1, 2])], ("q2", 0)),
        (["q1", "q2"], 4, None, [("q1", 0, [0, 1, 2]), ("q2", 0, [0])], ("q2", 1)),
        (["q1"], 0, None, [("q1", 0, [0])], ("q1", 1)),
        (["q1"], -1, None, [("q1", 0, [0])], ("q1", 1)),
        (["q1", "q2", "q3"], 4, ("q1", 2), [("q1", 0, [2]), ("q2", 0, [0, 1, 2])], ("q2", 3)),
        (["q1", "q2"], 4, ("q1", 99), [("q1", 0, []), ("q2", 0, [0, 1, 2, 3])], ("q2", 4)),
        ([], 2, ("q2", 4), [("q2", 0, [4]), ("q3", 0, [0])], None),
        (["q1", "q19", "q2"], 4, ("q19", 0), [("q19", 3, []), ("q2", 0, [0, 1, 2, 3])], ("q2", 4)),
        (["nope", "q1", "q2"], 1, None, [("nope", 3, []), ("q1", 0, [0])], ("q1", 1)),
        (["a/b"], 1, None, [("a/b", 17, [])], None),
    ],
)
def test_a_page_ends_at_the_limit_and_says_where_to_go_on(
    ask: Ask,
    names: list[str],
    limit: int,
    cursor: tuple[str, int] | None,
    parts: list[tuple[str, int, list[int]]],
    next_cursor: tuple[str, int] | None,
) -> None:
    response = ask(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, asking(names, limit, cursor))
    assert shown(response) == (parts, next_cursor)
    assert all(topic.topic_authorized_operations == 3576 for topic in response.topics)


def test_a_topic_that_the_controller_has_not_told_of_yet_is_not_missing(
    ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Topics, "untold", frozenset({"b"}))
    codes = [each.error_code for each in ask(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, asking(["b", "c"])).topics]
    assert codes == [ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


def test_the_broker_has_a_limit_of_its_own(cluster: Cluster) -> None:
    services = services_on(cluster, max_request_partition_size_limit="2")
    response = call(services, ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, asking(["q1"], limit=2000))
    assert shown(response) == ([("q1", 0, [0, 1])], ("q1", 2))


@pytest.mark.parametrize("cursor", [("q2", 1), ("nope", 1), ("zz", 0), ("q1", -1)])
def test_a_cursor_that_does_not_belong_to_the_topics_refuses_the_request(ask: Ask, cursor: tuple[str, int]) -> None:
    response = ask(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, asking(["q1", "q3"], 4, cursor))
    assert shown(response)[0] == [("q1", ErrorCode.INVALID_REQUEST, []), ("q3", ErrorCode.INVALID_REQUEST, [])]


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(limit=st.integers(1, 12), names=st.lists(st.sampled_from([*COUNTS, "none"]), unique=True))
def test_pages_put_together_are_the_whole(ask: Ask, limit: int, names: list[str]) -> None:
    seen: list[tuple[str, int]] = []
    cursor: tuple[str, int] | None = None
    for _ in range(20):
        parts, cursor = shown(ask(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, asking(names, limit, cursor)))
        page = [(name, partition_id) for name, _, partition_ids in parts for partition_id in partition_ids]
        assert len(page) <= limit
        seen += page
        if cursor is None:
            break
    wanted = sorted(set(names) & set(COUNTS)) if names else sorted(COUNTS)
    assert seen == [(name, partition_id) for name in wanted for partition_id in range(COUNTS[name])]


def test_a_partition_without_a_leader_is_described_without_an_error(cluster: Cluster, ask: Ask) -> None:
    cluster.topics.mark_failed([TopicPartition("q1", 1)])
    partitions = ask(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, asking(["q1"])).topics[0].partitions
    assert [(each.error_code, each.leader_id, each.offline_replicas) for each in partitions] == [
        (0, 1, []), (0, -1, [1]), (0, 1, []),
    ]  # fmt: skip
