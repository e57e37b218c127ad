"""Topics, their partitions and their settings, through AdminClient."""

from __future__ import annotations

import pytest

from kbroker.client import AdminClient
from kbroker.client.admin.results import NewTopic
from kbroker.client.errors import BrokerError, PartialFailure
from kbroker.errors import ErrorCode
from tests.client_suite.features import (
    ALTER_CONFIGS,
    CONFIGS,
    DEFAULT_PARTITIONS,
    INCREMENTAL_CONFIGS,
    MORE_PARTITIONS,
    TOPIC_IDS,
)
from tests.client_suite.suite_broker import SuiteBroker, eventually

MISSING = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_topics_come_and_go(broker: SuiteBroker, admin: AdminClient) -> None:
    name = broker.unique("orders")
    admin.create_topic(name, 3, 1)
    assert name in admin.list_topics()
    described = admin.describe_topics([name])[name]
    assert [each.partition for each in described.partitions] == [0, 1, 2]
    assert all(each.leader in each.in_sync and each.replicas == each.in_sync for each in described.partitions)
    assert any(described.topic_id) == broker.has(TOPIC_IDS)
    assert not described.is_internal
    with pytest.raises(BrokerError, match=f"topic '{name}': TOPIC_ALREADY_EXISTS") as raised:
        admin.create_topic(name, 1, 1)
    assert raised.value.code == ErrorCode.TOPIC_ALREADY_EXISTS
    admin.delete_topics([name])
    assert name not in admin.list_topics()
    with pytest.raises(BrokerError, match=f"topic '{name}': UNKNOWN_TOPIC_OR_PARTITION") as raised:
        admin.delete_topics([name])
    assert raised.value.code == MISSING


def test_asking_for_a_topic_does_not_make_it(broker: SuiteBroker, admin: AdminClient) -> None:
    name = broker.unique("asked")
    with pytest.raises(BrokerError) as raised:
        admin.describe_topics([name])
    assert raised.value.code == MISSING
    with pytest.raises(BrokerError) as raised:
        admin.list_offsets([(name, 0)])
    assert raised.value.code == MISSING
    assert name not in admin.list_topics()


def test_several_topics_at_once_say_which_failed(broker: SuiteBroker, admin: AdminClient) -> None:
    there, new, never = broker.new_topic(), broker.unique("new"), broker.unique("never")
    with pytest.raises(PartialFailure, match=f"1 of 2 failed: topic '{there}'") as raised:
        admin.create_topics([NewTopic(there, 1, 1), NewTopic(new, 2, 1)])
    assert {name: error.code for name, error in raised.value.errors.items()} == {there: ErrorCode.TOPIC_ALREADY_EXISTS}
    assert len(admin.describe_topics([new])[new].partitions) == 2
    with pytest.raises(PartialFailure) as raised:
        admin.describe_topics([there, never])
    assert set(raised.value.errors) == {never}
    assert set(raised.value.results) == {there}
    admin.delete_topics([there, new])


def test_partitions_are_placed_by_hand(broker: SuiteBroker, admin: AdminClient) -> None:
    name = broker.unique("placed")
    (node,) = admin.describe_cluster().brokers
    admin.create_topic(name, assignments=[[node.node_id], [node.node_id]])
    assert [each.replicas for each in admin.describe_topics([name])[name].partitions] == [(node.node_id,)] * 2
    with pytest.raises(BrokerError) as raised:
        admin.create_topic(name + "-twice", assignments=[[node.node_id, node.node_id]])
    assert raised.value.code == ErrorCode.INVALID_REPLICA_ASSIGNMENT


def test_what_cannot_be_made_is_said_before(broker: SuiteBroker, admin: AdminClient) -> None:
    name = broker.unique("tried")
    admin.create_topic(name, 1, 1, validate_only=True)
    assert name not in admin.list_topics()
    # Before there was an API for settings a wrong one had no code.
    wrong_config = ErrorCode.INVALID_CONFIG if broker.has(CONFIGS) else ErrorCode.UNKNOWN_SERVER_ERROR
    for given, code in (
        ({"partitions": 0, "replication_factor": 1}, ErrorCode.INVALID_PARTITIONS),
        ({"partitions": 1, "replication_factor": 7}, ErrorCode.INVALID_REPLICATION_FACTOR),
        ({"partitions": 1, "replication_factor": 1, "configs": {"retention.ms": "soon"}}, wrong_config),
    ):
        with pytest.raises(BrokerError) as raised:
            admin.create_topic(name, **given)  # type: ignore[arg-type]
        assert raised.value.code == code
        assert not raised.value.retriable
    with pytest.raises(BrokerError) as raised:
        admin.create_topic("a b", 1, 1)
    assert raised.value.code == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_a_topic_of_the_brokers_defaults(broker: SuiteBroker, admin: AdminClient) -> None:
    name = broker.unique("default")
    if broker.has(DEFAULT_PARTITIONS):
        admin.create_topic(name)
        assert len(admin.describe_topics([name])[name].partitions) == 1
    else:
        with pytest.raises(BrokerError) as raised:
            admin.create_topic(name)
        assert raised.value.code in (ErrorCode.INVALID_PARTITIONS, ErrorCode.INVALID_REPLICATION_FACTOR)


def test_a_topic_grows_and_does_not_shrink(broker: SuiteBroker, admin: AdminClient) -> None:
    name = broker.new_topic(2)
    with broker.serving(MORE_PARTITIONS):
        admin.create_partitions(name, 3, validate_only=True)
        assert len(admin.describe_topics([name])[name].partitions) == 2
        admin.create_partitions(name, 3)
        (node,) = admin.describe_cluster().brokers
        admin.create_partitions(name, 4, assignments=[[node.node_id]])
        eventually(lambda: len(admin.describe_topics([name])[name].partitions) == 4)
        with pytest.raises(BrokerError) as raised:
            admin.create_partitions(name, 1)
        assert raised.value.code == ErrorCode.INVALID_PARTITIONS


def test_settings_of_a_topic_are_changed_and_taken_back(broker: SuiteBroker, admin: AdminClient) -> None:
    name = broker.new_topic(1, {"max.message.bytes": "5000"})
    with broker.serving(CONFIGS):
        before = admin.describe_topic_config(name)
        assert before["max.message.bytes"].value == "5000"
        assert not before["max.message.bytes"].is_default
        assert before["segment.ms"].is_default
        admin.alter_topic_config(name, {"retention.ms": "77"}, validate_only=True)
        admin.alter_topic_config(name, {"max.compaction.lag.ms": "88"})
        eventually(lambda: admin.describe_topic_config(name)["max.compaction.lag.ms"].value == "88")
        after = admin.describe_topic_config(name)
        assert after["max.compaction.lag.ms"].source == "DYNAMIC_TOPIC_CONFIG"
        assert after["max.message.bytes"].value == "5000"
        assert after["retention.ms"] == before["retention.ms"]
        admin.alter_topic_config(name, {"max.compaction.lag.ms": None})
        eventually(lambda: admin.describe_topic_config(name) == before)
        with pytest.raises(BrokerError) as raised:
            admin.alter_topic_config(name, {"retention.ms": "soon"})
        assert raised.value.code in (ErrorCode.INVALID_CONFIG, ErrorCode.INVALID_REQUEST)
        with pytest.raises(BrokerError) as raised:
            admin.describe_topic_config(name + "-not")
        assert raised.value.code == MISSING
    assert broker.has(ALTER_CONFIGS) == broker.has(CONFIGS)


def test_lists_among_settings_are_changed_in_place(broker: SuiteBroker, admin: AdminClient) -> None:
    name = broker.new_topic(1, {"cleanup.policy": "delete"})
    with broker.serving(INCREMENTAL_CONFIGS):
        admin.alter_topic_config(name, append={"cleanup.policy": "compact"})
        eventually(lambda: admin.describe_topic_config(name)["cleanup.policy"].value == "delete,compact")
        admin.alter_topic_config(name, subtract={"cleanup.policy": "delete"})
        eventually(lambda: admin.describe_topic_config(name)["cleanup.policy"].value == "compact")


def test_settings_of_a_broker(broker: SuiteBroker, admin: AdminClient) -> None:
    (node,) = admin.describe_cluster().brokers

    def cleaners() -> tuple[str | None, str]:
        entry = admin.describe_broker_config(node.node_id)["log.cleaner.threads"]
        return entry.value, entry.source

    with broker.serving(CONFIGS):
        entry = admin.describe_broker_config(node.node_id)["num.partitions"]
        assert (entry.value, entry.source) == ("1", "STATIC_BROKER_CONFIG")
        before = cleaners()
        admin.alter_broker_config(node.node_id, {"log.cleaner.threads": "2"})
        eventually(lambda: cleaners() == ("2", "DYNAMIC_BROKER_CONFIG"))
        admin.alter_broker_config(node.node_id, {"log.cleaner.threads": None})
        eventually(lambda: cleaners() == before)
