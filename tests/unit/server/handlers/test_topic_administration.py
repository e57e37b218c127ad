"""Topics created, deleted and grown over the wire; messages are those of Apache Kafka 3.9.1."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.cluster.new_topics import NewTopic
from kbroker.errors import ErrorCode
from kbroker.protocol import messages as M
from kbroker.protocol.api import SERVED, ApiKey
from tests.kit.parts.cluster import Cluster
from tests.kit.parts.handlers import call, services_on
from tests.unit.server.handlers.conftest import Ask

C = M.CreateTopicsRequest
UNHOSTED = "This server does not host this topic-partition."


def versions(api_key: ApiKey) -> range:
    return range(SERVED[api_key].min, SERVED[api_key].max + 1)


def wanted(name: str, count: int = 1, factor: int = 1, **configs: str) -> Any:
    return C.CreatableTopic(
        name=name,
        num_partitions=count,
        replication_factor=factor,
        configs=[C.CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in configs.items()],
    )


def creation(*topics: Any, timeout_ms: int = 1000, **fields: Any) -> M.CreateTopicsRequest:
    return C(topics=list(topics), timeout_ms=timeout_ms, **fields)


@pytest.mark.parametrize("version", versions(ApiKey.CREATE_TOPICS))
def test_topics_are_created_in_every_version(cluster: Cluster, ask: Ask, version: int) -> None:
    (result,) = ask(ApiKey.CREATE_TOPICS, version, creation(wanted("a", 3, retention_ms="7"))).topics
    topic = cluster.topics.image.topics["a"]
    assert (result.name, result.error_code) == ("a", 0)
    assert (len(topic.partitions), topic.configs) == (3, {"retention.ms": "7"})
    assert cluster.host.names() == ["a-0", "a-1", "a-2"]
    if version >= 1:
        assert result.error_message is None
    if version >= 5:
        assert (result.num_partitions, result.replication_factor, result.topic_config_error_code) == (3, 1, 0)
        configs = {config.name: (config.value, config.config_source) for config in result.configs}
        assert len(configs) == 36
        assert configs["retention.ms"] == ("7", 1)
        assert configs["segment.bytes"] == ("1073741824", 5)
    assert result.topic_id == (topic.topic_id.bytes if version >= 7 else bytes(16))


def test_a_broker_setting_in_another_unit_is_a_source_of_created_configs(cluster: Cluster) -> None:
    services = services_on(cluster, log_retention_hours="100")
    (result,) = call(services, ApiKey.CREATE_TOPICS, 7, creation(wanted("a"))).topics
    configs = {config.name: (config.value, config.config_source) for config in result.configs}
    assert configs["retention.ms"] == ("360000000", 4)


def test_the_text_of_an_error_about_the_longest_name_fits_into_an_answer(cluster: Cluster, ask: Ask) -> None:
    name = "\N{SNOWMAN}" * (32_767 // 3)
    version = SERVED[ApiKey.CREATE_TOPICS].max
    (result,) = ask(ApiKey.CREATE_TOPICS, version, creation(wanted(name))).topics
    answer = M.CreateTopicsResponse(topics=[result])
    assert M.CreateTopicsResponse.decode(answer.encode(version), version).topics[0].name == name
    assert result.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert result.error_message.startswith("Topic name is invalid: the length of '\N{SNOWMAN}")
    assert result.error_message.endswith("\N{SNOWMAN}...")


@pytest.mark.parametrize("version", versions(ApiKey.CREATE_TOPICS))
def test_refused_topics_carry_no_null_configs(ask: Ask, version: int) -> None:
    (result,) = ask(ApiKey.CREATE_TOPICS, version, creation(wanted("a/b"))).topics
    assert result.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    if version >= 1:
        assert result.error_message.startswith("Topic name is invalid: 'a/b'")
    if version >= 5:
        assert (result.configs, result.num_partitions, result.replication_factor) == ([], -1, -1)


def test_a_topic_named_twice_in_one_request_is_refused_once_and_the_others_made(cluster: Cluster, ask: Ask) -> None:
    response = ask(ApiKey.CREATE_TOPICS, 7, creation(wanted("d"), wanted("d"), wanted("e")))
    assert [(each.name, each.error_code, each.error_message) for each in response.topics] == [
        ("e", 0, None),
        ("d", ErrorCode.INVALID_REQUEST, "Duplicate topic name."),
    ]
    assert list(cluster.topics.image.topics) == ["e"]


@pytest.mark.parametrize("timeout_ms", [0, -1])
def test_without_time_nothing_is_done(cluster: Cluster, ask: Ask, timeout_ms: int) -> None:
    cluster.topics.create([NewTopic("old", 1)])
    timed_out = ErrorCode.REQUEST_TIMED_OUT
    created = ask(ApiKey.CREATE_TOPICS, 7, creation(wanted("a"), timeout_ms=timeout_ms)).topics
    assert [(each.error_code, each.error_message) for each in created] == [(timed_out, None)]
    deletion = M.DeleteTopicsRequest(topic_names=["old"], timeout_ms=timeout_ms)
    assert [each.error_code for each in ask(ApiKey.DELETE_TOPICS, 5, deletion).responses] == [timed_out]
    grown = ask(ApiKey.CREATE_PARTITIONS, 3, growth("old", 5, timeout_ms=timeout_ms)).results
    assert [each.error_code for each in grown] == [timed_out]
    assert [(topic.name, len(topic.partitions)) for topic in cluster.topics.image.topics.values()] == [("old", 1)]


def test_validation_only_answers_as_if_and_creates_nothing(cluster: Cluster, ask: Ask) -> None:
    (result,) = ask(ApiKey.CREATE_TOPICS, 7, creation(wanted("a", 3), validate_only=True)).topics
    assert (result.error_code, result.num_partitions, len(result.configs)) == (0, 3, 36)
    assert cluster.topics.image.topics == {}


def test_a_full_disk_is_told_and_leaves_nothing(cluster: Cluster, ask: Ask) -> None:
    cluster.host.failing = {"a-0"}
    (result,) = ask(ApiKey.CREATE_TOPICS, 7, creation(wanted("a"))).topics
    assert (result.error_code, result.error_message) == (
        ErrorCode.KAFKA_STORAGE_ERROR,
        "a-0: no space left on device",
    )
    assert cluster.topics.image.topics == {}


# --- deletion ---------------------------------------------------------------------------------------------------------

STATE = M.DeleteTopicsRequest.DeleteTopicState


def deletion(*states: Any) -> M.DeleteTopicsRequest:
    return M.DeleteTopicsRequest(topics=list(states), timeout_ms=1000)


@pytest.mark.parametrize("version", versions(ApiKey.DELETE_TOPICS))
def test_topics_are_deleted_by_name_in_every_version(cluster: Cluster, ask: Ask, version: int) -> None:
    topic = cluster.topics.create([NewTopic("a", 2)])[0]
    names = ["a", "nope"]
    message = (
        deletion(*(STATE(name=name) for name in names))
        if version >= 6
        else M.DeleteTopicsRequest(topic_names=names, timeout_ms=1000)
    )
    results = {each.name: each for each in ask(ApiKey.DELETE_TOPICS, version, message).responses}
    assert {name: each.error_code for name, each in results.items()} == {
        "a": 0,
        "nope": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert results["a"].topic_id == (topic.topic_id.bytes if version >= 6 else bytes(16))
    assert results["nope"].error_message == (UNHOSTED if version >= 5 else None)
    assert cluster.topics.image.topics == {}
    assert cluster.host.names() == []


def test_topics_are_deleted_by_id(cluster: Cluster, ask: Ask) -> None:
    topic = cluster.topics.create([NewTopic("a")])[0]
    unknown = b"\7" * 16
    message = deletion(STATE(name=None, topic_id=topic.topic_id.bytes), STATE(name=None, topic_id=unknown))
    results = ask(ApiKey.DELETE_TOPICS, 6, message).responses
    assert [(each.name, each.topic_id, each.error_code, each.error_message) for each in results] == [
        ("a", topic.topic_id.bytes, 0, None),
        (None, unknown, ErrorCode.UNKNOWN_TOPIC_ID, "This server does not host this topic ID."),
    ]
    assert cluster.topics.image.topics == {}


def test_contradictory_deletions_are_refused_and_delete_nothing(cluster: Cluster, ask: Ask) -> None:
    topic = cluster.topics.create([NewTopic("a")])[0]
    by_id = STATE(name=None, topic_id=topic.topic_id.bytes)
    both = STATE(name="a", topic_id=topic.topic_id.bytes)
    cases: list[tuple[list[Any], str]] = [
        ([both], "You may not specify both topic name and topic id."),
        ([STATE(name=None)], "Neither topic name nor id were specified."),
        ([by_id, by_id], "Duplicate topic id."),
        ([STATE(name="a"), STATE(name="a")], "Duplicate topic name."),
        ([STATE(name="a"), by_id], "The provided topic name maps to an ID that was already supplied."),
        ([by_id, STATE(name="a")], "The provided topic name maps to an ID that was already supplied."),
    ]
    for states, message in cases:
        results = ask(ApiKey.DELETE_TOPICS, 6, deletion(*states)).responses
        assert [(each.error_code, each.error_message) for each in results] == [(ErrorCode.INVALID_REQUEST, message)]
        assert list(cluster.topics.image.topics) == ["a"]


@pytest.mark.parametrize(
    ("version", "code"),
    [(1, ErrorCode.INVALID_REQUEST), (3, ErrorCode.TOPIC_DELETION_DISABLED), (6, ErrorCode.TOPIC_DELETION_DISABLED)],
)
def test_deletion_can_be_switched_off(cluster: Cluster, version: int, code: ErrorCode) -> None:
    cluster.topics.create([NewTopic("a")])
    services = services_on(cluster, delete_topic_enable="false")
    message = deletion(STATE(name="a")) if version >= 6 else M.DeleteTopicsRequest(topic_names=["a"], timeout_ms=1000)
    assert [each.error_code for each in call(services, ApiKey.DELETE_TOPICS, version, message).responses] == [code]
    assert list(cluster.topics.image.topics) == ["a"]


# --- growth -----------------------------------------------------------------------------------------------------------

G = M.CreatePartitionsRequest


def growth(name: str, count: int, assignments: list[list[int]] | None = None, **fields: Any) -> Any:
    chosen = None
    if assignments is not None:
        chosen = [G.CreatePartitionsAssignment(broker_ids=brokers) for brokers in assignments]
    return G(
        topics=[G.CreatePartitionsTopic(name=name, count=count, assignments=chosen)],
        timeout_ms=fields.pop("timeout_ms", 1000),
        **fields,
    )


@pytest.mark.parametrize("version", versions(ApiKey.CREATE_PARTITIONS))
def test_topics_grow_in_every_version(cluster: Cluster, ask: Ask, version: int) -> None:
    cluster.topics.create([NewTopic("a", 1)])
    for message in (growth("a", 2), growth("a", 3, [[1]])):
        (result,) = ask(ApiKey.CREATE_PARTITIONS, version, message).results
        assert (result.name, result.error_code, result.error_message) == ("a", 0, None)
    assert cluster.host.names() == ["a-0", "a-1", "a-2"]


def test_a_topic_grown_twice_in_one_request_is_refused_once(cluster: Cluster, ask: Ask) -> None:
    cluster.topics.create([NewTopic("a", 1), NewTopic("b", 1)])
    names = ["a", "a", "b"]
    message = G(
        topics=[G.CreatePartitionsTopic(name=name, count=2, assignments=None) for name in names], timeout_ms=1000
    )
    results = ask(ApiKey.CREATE_PARTITIONS, 3, message).results
    assert [(each.name, each.error_code, each.error_message) for each in results] == [
        ("a", ErrorCode.INVALID_REQUEST, "Duplicate topic name."),
        ("b", 0, None),
    ]
    assert len(cluster.topics.image.topics["a"].partitions) == 1


def test_growing_an_unknown_topic_is_refused_without_words(ask: Ask) -> None:
    (result,) = ask(ApiKey.CREATE_PARTITIONS, 3, growth("nope", 3)).results
    assert (result.error_code, result.error_message) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None)
