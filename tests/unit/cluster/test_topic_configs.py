"""The settings of a topic, against answers of Apache Kafka 3.9.1."""

import pytest

from kbroker.cluster.topic_configs import (
    TOPIC_CONFIGS,
    broker_default,
    broker_synonyms,
    effective_configs,
    validate_topic_configs,
)
from kbroker.errors import ConfigError

BAD = [
    ("retention.ms", "-2", "Invalid value -2 for configuration retention.ms: Value must be at least -1"),
    ("segment.bytes", "3", "Invalid value 3 for configuration segment.bytes: Value must be at least 14"),
    (
        "cleanup.policy",
        "compact, foo",
        "Invalid value foo for configuration cleanup.policy: String must be one of: compact, delete",
    ),
    (
        "compression.type",
        "zip",
        "Invalid value zip for configuration compression.type: "
        "String must be one of: uncompressed, zstd, lz4, snappy, gzip, producer",
    ),
    ("nope", "1", "Unknown topic config name: nope"),
    (
        "leader.replication.throttled.replicas",
        "1",
        "Invalid value [1] for configuration leader.replication.throttled.replicas: "
        "leader.replication.throttled.replicas must be the literal '*' or a list of replicas in the following format: "
        "[partitionId]:[brokerId],[partitionId]:[brokerId],...",
    ),
    (
        "message.format.version",
        "9.9",
        "Invalid value 9.9 for configuration message.format.version: Version 9.9 is not a valid version",
    ),
    (
        "remote.storage.enable",
        "true",
        "Tiered Storage functionality is disabled in the broker. Topic cannot be configured with remote log storage.",
    ),
]


@pytest.mark.parametrize(("name", "text", "message"), BAD)
def test_wrong_settings_are_refused_in_kafkas_words(name: str, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        validate_topic_configs({name: text})
    assert str(raised.value) == message


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("cleanup.policy", ""),
        ("cleanup.policy", "compact,delete"),
        ("retention.bytes", "-99"),
        ("leader.replication.throttled.replicas", "*"),
        ("leader.replication.throttled.replicas", "0:1,1:2"),
        ("leader.replication.throttled.replicas", "0:1,"),
        ("message.format.version", "0.10.0"),
        ("message.format.version", "3.0-IV1"),
        ("min.cleanable.dirty.ratio", "NaN"),
    ],
)
def test_right_settings_are_taken(name: str, text: str) -> None:
    assert list(validate_topic_configs({name: text})) == [name]


def test_nulls_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"Null value not supported for topic configs: cleanup.policy,retention.ms"):
        validate_topic_configs({"retention.ms": None, "cleanup.policy": None})


def test_compaction_lags_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ConfigError) as raised:
        validate_topic_configs({"min.compaction.lag.ms": "100", "max.compaction.lag.ms": "50"})
    assert str(raised.value) == "conflict topic config setting min.compaction.lag.ms (100) > max.compaction.lag.ms (50)"


def test_every_default_is_within_its_own_limits() -> None:
    for config in TOPIC_CONFIGS.values():
        config.limits.check(config.name, config.default)


def test_the_strongest_broker_synonym_that_is_set_gives_the_default() -> None:
    retention = TOPIC_CONFIGS["retention.ms"]
    assert broker_default(retention, {}.get) == 604_800_000
    assert broker_default(retention, {"log.retention.hours": "100"}.get) == 360_000_000
    settings = {"log.retention.hours": "100", "log.retention.minutes": "2"}
    assert broker_default(retention, settings.get) == 120_000
    settings["log.retention.ms"] = "7"
    assert broker_default(retention, settings.get) == 7


def test_a_topics_own_value_wins_over_the_brokers() -> None:
    values = effective_configs({"retention.ms": "5"}, {"log.retention.ms": "7", "log.segment.bytes": "100"}.get)
    assert (values["retention.ms"], values["segment.bytes"]) == (5, 100)
    assert set(values) == set(TOPIC_CONFIGS)


def test_the_older_name_of_the_timestamp_limits_gives_way_to_them() -> None:
    own = {"message.timestamp.difference.max.ms": "5", "message.timestamp.after.max.ms": "7"}
    values = effective_configs(own, {}.get)
    assert (values["message.timestamp.before.max.ms"], values["message.timestamp.after.max.ms"]) == (5, 7)


def test_broker_settings_in_other_units_are_synonyms_of_each_other() -> None:
    assert broker_synonyms("log.roll.hours") == ("log.roll.ms", "log.roll.hours")
    assert broker_synonyms("log.retention.ms") == ("log.retention.ms", "log.retention.minutes", "log.retention.hours")
    assert broker_synonyms("num.io.threads") == ("num.io.threads",)
