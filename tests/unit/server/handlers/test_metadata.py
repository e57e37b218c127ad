"""Metadata in every version: which topics are asked for, which are created, and what is prepared once."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from kbroker.cluster.new_topics import MAX_PARTITIONS_PER_REQUEST, NewTopic
from kbroker.cluster.topics import Topics
from kbroker.errors import ErrorCode
from kbroker.model import TopicPartition
from kbroker.protocol import messages as M
from kbroker.protocol.api import SERVED, ApiKey
from kbroker.server.handlers import metadata
from tests.kit.parts.cluster import Cluster
from tests.kit.parts.handlers import Call, Caller, call, services_on
from tests.unit.server.handlers.conftest import Ask

VERSIONS = range(SERVED[ApiKey.METADATA].min, SERVED[ApiKey.METADATA].max + 1)
NO_OPERATIONS = -(2**31)
ASKED = M.MetadataRequest.MetadataRequestTopic


def asking(*names: str, **fields: Any) -> M.MetadataRequest:
    return M.MetadataRequest(topics=[ASKED(name=name) for name in names], **fields)


def codes(response: Any) -> list[tuple[str | None, int]]:
    return [(topic.name, topic.error_code) for topic in response.topics]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_topic_is_described_in_every_version(cluster: Cluster, ask: Ask, version: int) -> None:
    topic = cluster.topics.create([NewTopic("a", 2)])[0]
    response = ask(ApiKey.METADATA, version, asking("a"))
    assert [(each.node_id, each.host, each.port) for each in response.brokers] == [(1, "127.0.0.1", 9092)]
    assert response.cluster_id == (cluster.topics.cluster_id if version >= 2 else None)
    assert response.controller_id == (1 if version >= 1 else -1)
    (found,) = response.topics
    assert (found.error_code, found.name) == (0, "a")
    assert found.topic_id == (topic.topic_id.bytes if version >= 10 else bytes(16))
    assert found.topic_authorized_operations == NO_OPERATIONS
    for partition_id, partition in enumerate(found.partitions):
        assert (partition.partition_index, partition.leader_id) == (partition_id, 1)
        assert (partition.replica_nodes, partition.isr_nodes, partition.offline_replicas) == ([1], [1], [])
        assert partition.leader_epoch == (0 if version >= 7 else -1)


@pytest.mark.parametrize("version", VERSIONS)
def test_null_asks_for_all_topics_and_an_empty_list_for_none(cluster: Cluster, ask: Ask, version: int) -> None:
    cluster.topics.create([NewTopic("a"), NewTopic("b")])
    everything = [("a", 0), ("b", 0)]
    if version >= 1:
        assert codes(ask(ApiKey.METADATA, version, M.MetadataRequest(topics=None))) == everything
    nothing = M.MetadataRequest(topics=[])
    assert codes(ask(ApiKey.METADATA, version, nothing)) == ([] if version >= 1 else everything)


def test_the_answer_for_all_topics_changes_with_the_topics(cluster: Cluster, ask: Ask) -> None:
    everything = M.MetadataRequest(topics=None)
    assert codes(ask(ApiKey.METADATA, 12, everything)) == []
    cluster.topics.create([NewTopic("a")])
    assert codes(ask(ApiKey.METADATA, 12, everything)) == [("a", 0)]
    assert codes(ask(ApiKey.METADATA, 9, everything)) == [("a", 0)]
    cluster.topics.add_partitions("a", 5)
    assert len(ask(ApiKey.METADATA, 12, everything).topics[0].partitions) == 5
    cluster.topics.delete("a")
    assert codes(ask(ApiKey.METADATA, 12, everything)) == []


def test_each_caller_is_told_the_address_that_he_dialled(ask: Ask) -> None:
    for host, port in (("127.0.0.1", 9092), ("broker.example", 19092), ("127.0.0.1", 9092)):
        for message in (M.MetadataRequest(topics=None), M.MetadataRequest(topics=[])):
            response = ask(ApiKey.METADATA, 12, message, Caller(local_host=host, local_port=port))
            assert [(each.host, each.port) for each in response.brokers] == [(host, port)]


@pytest.mark.parametrize("version", VERSIONS)
def test_missing_topics_are_created_unless_declined(cluster: Cluster, ask: Ask, version: int) -> None:
    if version >= 4:
        declined = asking("a", allow_auto_topic_creation=False)
        assert codes(ask(ApiKey.METADATA, version, declined)) == [("a", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]
        assert cluster.topics.image.topics == {}
    response = ask(ApiKey.METADATA, version, asking("a", "b"))
    assert codes(response) == [("a", 0), ("b", 0)]
    assert [len(topic.partitions) for topic in response.topics] == [2, 2]
    assert cluster.host.names() == ["a-0", "a-1", "b-0", "b-1"]


def test_nothing_is_created_where_the_broker_forbids_it(cluster: Cluster) -> None:
    services = services_on(cluster, auto_create_topics_enable="false")
    for version in (0, 12):
        response = call(services, ApiKey.METADATA, version, asking("a"))
        assert codes(response) == [("a", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]
    assert cluster.topics.image.topics == {}


def test_names_that_cannot_be_topics_are_told_apart_from_unknown_ones(cluster: Cluster, ask: Ask) -> None:
    cluster.topics.create([NewTopic("a.b")])
    response = ask(ApiKey.METADATA, 12, asking("a/b", "", "a_b"))
    assert codes(response) == [
        ("a/b", ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("", ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("a_b", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]


def test_a_topic_asked_for_twice_is_answered_once(cluster: Cluster, ask: Ask) -> None:
    cluster.topics.create([NewTopic("a")])
    assert codes(ask(ApiKey.METADATA, 12, asking("a", "a"))) == [("a", 0)]


def test_what_is_refused_to_a_long_request_takes_a_few_lines_of_the_log(
    cluster: Cluster, ask: Ask, caplog: pytest.LogCaptureFixture
) -> None:
    names = [f"t{number}" for number in range(MAX_PARTITIONS_PER_REQUEST + 1)]
    with caplog.at_level(logging.INFO):
        response = ask(ApiKey.METADATA, 12, asking(*names))
    assert codes(response) == [(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) for name in names]
    assert cluster.topics.image.topics == {}
    *named, others = [record.getMessage() for record in caplog.records]
    assert [name for name, said in zip(names, named, strict=False) if repr(name) in said] == names[: len(named)]
    assert others == f"nor are {len(names) - len(named)} more topics of the same request"
    assert len(named) < 10


def test_internal_topics_are_marked_and_made_as_the_broker_needs_them(ask: Ask) -> None:
    missing = ask(ApiKey.METADATA, 12, asking("__consumer_offsets", allow_auto_topic_creation=False)).topics[0]
    assert (missing.error_code, missing.is_internal) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, True)
    made = ask(ApiKey.METADATA, 12, asking("__consumer_offsets")).topics[0]
    assert (made.error_code, made.is_internal, len(made.partitions)) == (0, True, 5)


def test_topics_are_found_by_id_from_version_12_on(cluster: Cluster, ask: Ask) -> None:
    topic = cluster.topics.create([NewTopic("a")])[0]
    unknown = b"\1" * 16
    message = M.MetadataRequest(topics=[ASKED(name=None, topic_id=each) for each in (topic.topic_id.bytes, unknown)])
    response = ask(ApiKey.METADATA, 12, message)
    assert codes(response) == [("a", 0), (None, ErrorCode.UNKNOWN_TOPIC_ID)]
    assert response.topics[1].topic_id == unknown


@pytest.mark.parametrize(
    ("version", "asked"),
    [
        (10, ASKED(name="a", topic_id=b"\1" * 16)),
        (11, ASKED(name=None, topic_id=b"\1" * 16)),
        (10, ASKED(name=None)),
        (12, ASKED(name=None)),
    ],
)
def test_ids_where_there_are_none_refuse_the_whole_request(ask: Ask, version: int, asked: Any) -> None:
    response = ask(ApiKey.METADATA, version, M.MetadataRequest(topics=[asked]))
    assert [topic.error_code for topic in response.topics] == [ErrorCode.INVALID_REQUEST]
    assert response.brokers == []


@pytest.mark.parametrize("version", [8, 9, 10, 12])
def test_authorized_operations_are_told_to_those_who_ask(cluster: Cluster, ask: Ask, version: int) -> None:
    cluster.topics.create([NewTopic("a")])
    fields = {"include_topic_authorized_operations": True}
    if version <= 10:
        fields["include_cluster_authorized_operations"] = True
    for message in (asking("a", **fields), M.MetadataRequest(topics=None, **fields)):
        response = ask(ApiKey.METADATA, version, message)
        assert response.topics[0].topic_authorized_operations == 3576
        assert response.cluster_authorized_operations == (8096 if version <= 10 else NO_OPERATIONS)
    assert ask(ApiKey.METADATA, version, asking("a")).topics[0].topic_authorized_operations == NO_OPERATIONS


def test_a_partition_on_a_failed_disk_has_no_leader(cluster: Cluster, ask: Ask) -> None:
    cluster.topics.create([NewTopic("a", 2)])
    cluster.topics.mark_failed([TopicPartition("a", 1)])
    healthy, failed = ask(ApiKey.METADATA, 12, asking("a")).topics[0].partitions
    assert (healthy.error_code, healthy.leader_id) == (0, 1)
    assert (failed.error_code, failed.leader_id, failed.offline_replicas) == (ErrorCode.LEADER_NOT_AVAILABLE, -1, [1])


@pytest.mark.parametrize("version", [1, 12])
def test_a_topic_that_the_controller_has_not_told_of_yet_is_not_missing(
    cluster: Cluster, ask: Ask, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that is told that its topic does not exist gives up."""
    cluster.topics.create([NewTopic("a")])
    monkeypatch.setattr(Topics, "untold", frozenset({"b"}))
    asked = asking("a", "b", "c", allow_auto_topic_creation=False) if version > 3 else asking("a", "b")
    expected = [("a", 0), ("b", ErrorCode.LEADER_NOT_AVAILABLE)]
    assert codes(ask(ApiKey.METADATA, version, M.MetadataRequest(topics=None))) == expected
    assert codes(ask(ApiKey.METADATA, version, asked))[:2] == expected
    assert "b" not in cluster.topics.image.topics
    assert not metadata.blocks(services_on(cluster), Call(version, Caller()), asking("b"))  # type: ignore[arg-type]
    if version > 3:
        assert codes(ask(ApiKey.METADATA, version, asked))[2] == ("c", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


def test_only_a_creation_blocks(cluster: Cluster) -> None:
    cluster.topics.create([NewTopic("a")])
    services = services_on(cluster)

    def blocks(message: M.MetadataRequest, version: int = 12) -> bool:
        return metadata.blocks(services, Call(version, Caller()), message)  # type: ignore[arg-type]

    assert not blocks(M.MetadataRequest(topics=None))
    assert not blocks(asking("a"))
    assert not blocks(asking("b", allow_auto_topic_creation=False))
    assert blocks(asking("b"))
    assert blocks(asking("b", allow_auto_topic_creation=False), version=3)
    assert not blocks(M.MetadataRequest(topics=[ASKED(name=None, topic_id=b"\1" * 16)]))
