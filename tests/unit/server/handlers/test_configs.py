"""Configs described and changed over the wire; values, sources and messages are those of Apache Kafka 3.9.1."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from kbroker.cluster.new_topics import NewTopic
from kbroker.errors import ErrorCode
from kbroker.protocol import messages as M
from kbroker.protocol.api import SERVED, ApiKey
from tests.kit.parts.cluster import Cluster
from tests.kit.parts.handlers import call, services_on
from tests.unit.server.handlers.conftest import Ask

TOPIC, BROKER, BROKER_LOGGER, GROUP = 2, 4, 8, 32
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
D, A, I = M.DescribeConfigsRequest, M.AlterConfigsRequest, M.IncrementalAlterConfigsRequest  # noqa: E741
E = ErrorCode
OF_TOPIC, OF_BROKER, OF_ALL_BROKERS, STATIC, DEFAULT, OF_GROUP = 1, 2, 3, 4, 5, 8

Change = tuple[str, int, str | None]


@pytest.fixture(autouse=True)
def topics(cluster: Cluster) -> None:
    cluster.topics.create([NewTopic("a", configs={"retention.ms": "7"}), NewTopic("b")])


def asking(resource_type: int, name: str, *keys: str, **fields: Any) -> M.DescribeConfigsRequest:
    resource = D.DescribeConfigsResource(
        resource_type=resource_type, resource_name=name, configuration_keys=keys or None
    )
    return D(resources=[resource], **fields)


def describe(ask: Ask, resource_type: int, name: str, *keys: str) -> dict[str, tuple[str | None, int]]:
    (result,) = ask(ApiKey.DESCRIBE_CONFIGS, 4, asking(resource_type, name, *keys)).results
    assert result.error_code == 0
    return {config.name: (config.value, config.config_source) for config in result.configs}


def test_the_same_that_is_asked_twice_is_answered_once(ask: Ask) -> None:
    """Otherwise a small request could have an answer of any size."""
    one, other = ["retention.ms", "segment.ms"], ["segment.ms", "retention.ms"]
    asked = [("a", one), ("b", None), ("a", other), ("b", []), ("a", ["segment.ms"])]
    resources = [
        D.DescribeConfigsResource(resource_type=TOPIC, resource_name=name, configuration_keys=keys)
        for name, keys in asked
    ]
    first, whole, other_keys = ask(ApiKey.DESCRIBE_CONFIGS, 4, D(resources=resources)).results
    assert (first.resource_name, {config.name for config in first.configs}) == ("a", set(one))
    assert (whole.resource_name, len(whole.configs) > 20) == ("b", True)
    assert (other_keys.resource_name, [config.name for config in other_keys.configs]) == ("a", ["segment.ms"])


def changing(*resources: tuple[int, str, list[Change]], **fields: Any) -> M.IncrementalAlterConfigsRequest:
    return I(
        resources=[
            I.AlterConfigsResource(
                resource_type=resource_type,
                resource_name=name,
                configs=[I.AlterableConfig(name=key, config_operation=op, value=value) for key, op, value in changes],
            )
            for resource_type, name, changes in resources
        ],
        **fields,
    )


def change(ask: Ask, resource_type: int, name: str, *changes: Change, **fields: Any) -> tuple[int, str | None]:
    message = changing((resource_type, name, list(changes)), **fields)
    (result,) = ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, message).responses
    assert (result.resource_type, result.resource_name) == (resource_type, name)
    return result.error_code, result.error_message


def replacing(name: str, configs: dict[str, str | None], resource_type: int = TOPIC, **fields: Any) -> Any:
    return A(
        resources=[
            A.AlterConfigsResource(
                resource_type=resource_type,
                resource_name=name,
                configs=[A.AlterableConfig(name=key, value=value) for key, value in configs.items()],
            )
        ],
        **fields,
    )


OK = (0, None)


# --- describing -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(SERVED[ApiKey.DESCRIBE_CONFIGS].max + 1))
def test_a_topic_is_described_in_every_version(ask: Ask, version: int) -> None:
    fields = {}
    if version >= 1:
        fields["include_synonyms"] = True
    if version >= 3:
        fields["include_documentation"] = True
    (result,) = ask(ApiKey.DESCRIBE_CONFIGS, version, asking(TOPIC, "a", **fields)).results
    assert (result.error_code, result.error_message, len(result.configs)) == (0, "", 36)
    retention = next(config for config in result.configs if config.name == "retention.ms")
    segment = next(config for config in result.configs if config.name == "segment.bytes")
    assert (retention.value, segment.value) == ("7", "1073741824")
    if version == 0:
        assert (retention.is_default, segment.is_default) == (False, True)
        return
    assert (retention.config_source, segment.config_source) == (OF_TOPIC, DEFAULT)
    assert [(each.name, each.value, each.source) for each in retention.synonyms] == [("retention.ms", "7", OF_TOPIC)]
    assert [(s.name, s.value, s.source) for s in segment.synonyms] == [("log.segment.bytes", "1073741824", DEFAULT)]
    if version >= 3:
        assert (retention.config_type, segment.config_type) == (5, 3)
        assert retention.documentation


def test_synonyms_and_documentation_come_only_when_asked_for(ask: Ask) -> None:
    (result,) = ask(ApiKey.DESCRIBE_CONFIGS, 4, asking(TOPIC, "a", "retention.ms", "nope")).results
    (config,) = result.configs
    assert (config.name, config.synonyms, config.documentation) == ("retention.ms", [], None)


def test_dynamic_broker_configs_show_through_to_topics(cluster: Cluster) -> None:
    services = services_on(cluster, log_retention_hours="100")

    def ask(*arguments: Any) -> Any:
        return call(services, *arguments)

    assert describe(ask, TOPIC, "b", "retention.ms") == {"retention.ms": ("360000000", DEFAULT)}
    assert change(ask, BROKER, "", ("log.retention.ms", SET, "123456")) == OK
    assert describe(ask, TOPIC, "b", "retention.ms") == {"retention.ms": ("123456", OF_ALL_BROKERS)}
    assert change(ask, BROKER, "1", ("log.retention.ms", SET, "99")) == OK
    assert describe(ask, TOPIC, "b", "retention.ms") == {"retention.ms": ("99", OF_BROKER)}
    assert describe(ask, TOPIC, "a", "retention.ms") == {"retention.ms": ("7", OF_TOPIC)}
    assert describe(ask, BROKER, "") == {"log.retention.ms": ("123456", OF_ALL_BROKERS)}
    message = asking(BROKER, "1", "log.retention.ms", include_synonyms=True)
    (config,) = ask(ApiKey.DESCRIBE_CONFIGS, 4, message).results[0].configs
    assert [(each.name, each.value, each.source) for each in config.synonyms] == [
        ("log.retention.ms", "99", OF_BROKER),
        ("log.retention.ms", "123456", OF_ALL_BROKERS),
        ("log.retention.hours", "100", STATIC),
        ("log.retention.hours", "168", DEFAULT),
    ]


def test_a_broker_shows_what_it_was_started_with(cluster: Cluster) -> None:
    services = services_on(cluster, log_retention_hours="100")

    def ask(*arguments: Any) -> Any:
        return call(services, *arguments)

    found = describe(ask, BROKER, "1")
    assert found["log.retention.hours"] == ("100", STATIC)
    assert found["log.retention.ms"] == (None, DEFAULT)
    assert found["broker.id"] == ("1", STATIC)
    (result,) = ask(ApiKey.DESCRIBE_CONFIGS, 4, asking(BROKER, "1", "broker.id", "log.retention.ms")).results
    assert {config.name: config.read_only for config in result.configs} == {
        "broker.id": True,
        "log.retention.ms": False,
    }


@pytest.mark.parametrize(
    ("resource_type", "name", "code", "message"),
    [
        (TOPIC, "nope", E.UNKNOWN_TOPIC_OR_PARTITION, ""),
        (TOPIC, "", E.INVALID_TOPIC_EXCEPTION, "Topic name is invalid: the empty string is not allowed"),
        (BROKER, "5", E.INVALID_REQUEST, "Unexpected broker id, expected 1 or empty string, but received 5"),
        (BROKER, "x", E.INVALID_REQUEST, "Broker id must be an integer, but it is: x"),
        (BROKER_LOGGER, "5", E.INVALID_REQUEST, "Unexpected broker id, expected 1 but received 5"),
        (BROKER_LOGGER, "", E.INVALID_REQUEST, "Broker id must not be empty"),
        (BROKER_LOGGER, "x", E.INVALID_REQUEST, "Broker id must be an integer, but it is: x"),
        (
            99,
            "x",
            E.INVALID_REQUEST,
            "This most likely occurs because of a request being malformed by the client library or the message was "
            "sent to an incompatible broker. See the broker logs for more details.",
        ),
    ],
)
def test_what_cannot_be_described_is_refused_in_kafkas_words(
    ask: Ask, resource_type: int, name: str, code: ErrorCode, message: str
) -> None:
    (result,) = ask(ApiKey.DESCRIBE_CONFIGS, 4, asking(resource_type, name)).results
    assert (result.error_code, result.error_message, result.configs) == (code, message, [])


def test_nothing_is_set_for_all_brokers_until_somebody_does(ask: Ask) -> None:
    assert describe(ask, BROKER, "") == {}
    assert describe(ask, BROKER, "1", "min.insync.replicas") == {"min.insync.replicas": ("1", DEFAULT)}
    setting = changing((BROKER, "", [("min.insync.replicas", SET, "2")]))
    assert ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, setting).responses[0].error_code == 0
    assert describe(ask, BROKER, "") == {"min.insync.replicas": ("2", OF_ALL_BROKERS)}


def test_loggers_of_this_process_are_described(ask: Ask) -> None:
    logging.getLogger("kbroker.some.part").setLevel(logging.ERROR)
    found = describe(ask, BROKER_LOGGER, "1")
    assert found["kbroker.some.part"] == ("ERROR", 6)
    assert "root" in found
    assert all(name == "root" or name.startswith("kbroker") for name in found)


# --- replacing --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(SERVED[ApiKey.ALTER_CONFIGS].max + 1))
def test_replacing_configs_resets_those_not_named(cluster: Cluster, ask: Ask, version: int) -> None:
    (result,) = ask(ApiKey.ALTER_CONFIGS, version, replacing("a", {"segment.ms": "5"})).responses
    assert (result.resource_type, result.resource_name, result.error_code, result.error_message) == (
        TOPIC,
        "a",
        0,
        None,
    )
    assert cluster.topics.image.topics["a"].configs == {"segment.ms": "5"}
    assert cluster.host.topic_configs["a"] == {"segment.ms": "5"}


@pytest.mark.parametrize(
    ("message", "code", "text"),
    [
        (replacing("a", {"nope": "1"}), E.INVALID_CONFIG, "Unknown topic config name: nope"),
        (replacing("a", {"segment.ms": None}), E.INVALID_REQUEST, "Null value not supported for : segment.ms"),
        (
            replacing("nope", {"segment.ms": "1"}),
            E.UNKNOWN_TOPIC_OR_PARTITION,
            "The topic 'nope' does not exist.",
        ),
        (replacing("", {}), E.INVALID_REQUEST, "Default topic resources are not allowed."),
        (replacing("1", {}, BROKER_LOGGER), E.INVALID_REQUEST, "Unknown resource type 8"),
        (replacing("1", {}, 99), E.INVALID_REQUEST, "Unknown resource type 99"),
    ],
)
def test_what_cannot_be_replaced_is_refused_in_kafkas_words(
    cluster: Cluster, ask: Ask, message: Any, code: ErrorCode, text: str
) -> None:
    (result,) = ask(ApiKey.ALTER_CONFIGS, 2, message).responses
    assert (result.error_code, result.error_message) == (code, text)
    assert cluster.topics.image.topics["a"].configs == {"retention.ms": "7"}


def test_replacing_only_validated_changes_nothing(cluster: Cluster, ask: Ask) -> None:
    (result,) = ask(ApiKey.ALTER_CONFIGS, 2, replacing("a", {"segment.ms": "5"}, validate_only=True)).responses
    assert result.error_code == 0
    assert cluster.topics.image.topics["a"].configs == {"retention.ms": "7"}


# --- changing single configs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(SERVED[ApiKey.INCREMENTAL_ALTER_CONFIGS].max + 1))
def test_single_configs_are_set_and_deleted_in_every_version(cluster: Cluster, ask: Ask, version: int) -> None:
    for changes, configs in (
        ([("segment.ms", SET, " 6 ")], {"retention.ms": "7", "segment.ms": " 6 "}),
        ([("retention.ms", DELETE, None), ("flush.ms", DELETE, ""), ("nope", DELETE, None)], {"segment.ms": " 6 "}),
    ):
        (result,) = ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, version, changing((TOPIC, "a", changes))).responses
        assert (result.error_code, result.error_message) == OK
        assert cluster.topics.image.topics["a"].configs == configs
    assert describe(ask, TOPIC, "a", "segment.ms") == {"segment.ms": ("6", OF_TOPIC)}


@pytest.mark.parametrize(
    ("before", "operation", "value", "after"),
    [
        (None, APPEND, "compact", "delete,compact"),
        ("delete,compact", APPEND, "compact", "delete,compact"),
        ("delete,compact", SUBTRACT, "delete", "compact"),
        ("compact", SUBTRACT, "delete", "compact"),
        ("compact", SUBTRACT, "compact", ""),
        (None, SUBTRACT, "delete", ""),
        ("", APPEND, "delete, compact", "delete,compact"),
    ],
)
def test_lists_grow_and_shrink_from_what_they_hold_or_inherit(
    cluster: Cluster, ask: Ask, before: str | None, operation: int, value: str, after: str
) -> None:
    if before is not None:
        assert change(ask, TOPIC, "b", ("cleanup.policy", SET, before)) == OK
    assert change(ask, TOPIC, "b", ("cleanup.policy", operation, value)) == OK
    assert cluster.topics.image.topics["b"].configs == {"cleanup.policy": after}


@pytest.mark.parametrize(
    ("name", "changes", "code", "text"),
    [
        (
            "a",
            [("cleanup.policy", APPEND, "foo")],
            E.INVALID_CONFIG,
            "Invalid value foo for configuration cleanup.policy: String must be one of: compact, delete",
        ),
        (
            "a",
            [("retention.ms", APPEND, "5")],
            E.INVALID_CONFIG,
            "Can't APPEND to key retention.ms because its type is not LIST.",
        ),
        (
            "a",
            [("retention.ms", SUBTRACT, "5")],
            E.INVALID_CONFIG,
            "Can't SUBTRACT to key retention.ms because its type is not LIST.",
        ),
        ("a", [("nope", APPEND, "5")], E.INVALID_CONFIG, "Can't APPEND to key nope because its type is not LIST."),
        ("a", [("segment.ms", SET, None)], E.INVALID_REQUEST, "Null value not supported for : segment.ms"),
        ("a", [("cleanup.policy", APPEND, None)], E.INVALID_REQUEST, "Null value not supported for : cleanup.policy"),
        (
            "a",
            [("segment.ms", SET, "1"), ("segment.ms", DELETE, None)],
            E.INVALID_REQUEST,
            "Error due to duplicate config keys",
        ),
        ("a", [("segment.ms", SET, "9"), ("nope", SET, "1")], E.INVALID_CONFIG, "Unknown topic config name: nope"),
        (
            "a",
            [("segment.ms", SET, "x")],
            E.INVALID_CONFIG,
            "Invalid value x for configuration segment.ms: Not a number of type LONG",
        ),
        (
            "a",
            [("min.compaction.lag.ms", SET, "100"), ("max.compaction.lag.ms", SET, "10")],
            E.INVALID_CONFIG,
            "conflict topic config setting min.compaction.lag.ms (100) > max.compaction.lag.ms (10)",
        ),
        ("nope", [("segment.ms", SET, "1")], E.UNKNOWN_TOPIC_OR_PARTITION, "The topic 'nope' does not exist."),
        ("nope", [], E.UNKNOWN_TOPIC_OR_PARTITION, "The topic 'nope' does not exist."),
        ("", [("segment.ms", SET, "1")], E.INVALID_REQUEST, "Default topic resources are not allowed."),
        (
            "a/b",
            [("segment.ms", SET, "1")],
            E.INVALID_TOPIC_EXCEPTION,
            "Topic name is invalid: 'a/b' contains one or more characters other than ASCII alphanumerics, '.', '_' "
            "and '-'",
        ),
        ("a", [("segment.ms", 9, "1")], E.INVALID_REQUEST, "9 is no operation on config segment.ms"),
    ],
)
def test_what_cannot_be_changed_is_refused_in_kafkas_words(
    cluster: Cluster, ask: Ask, name: str, changes: list[Change], code: ErrorCode, text: str
) -> None:
    assert change(ask, TOPIC, name, *changes) == (code, text)
    assert cluster.topics.image.topics["a"].configs == {"retention.ms": "7"}


def test_a_change_is_checked_together_with_what_is_there(ask: Ask) -> None:
    assert change(ask, TOPIC, "a", ("min.compaction.lag.ms", SET, "100")) == OK
    assert change(ask, TOPIC, "a", ("max.compaction.lag.ms", SET, "10"))[0] == E.INVALID_CONFIG


def test_a_resource_named_twice_is_refused_and_the_others_changed(cluster: Cluster, ask: Ask) -> None:
    resources: list[tuple[int, str, list[Change]]] = [
        (TOPIC, "a", [("segment.ms", SET, "1")]),
        (TOPIC, "a", [("flush.ms", SET, "1")]),
        (TOPIC, "b", [("segment.ms", SET, "1")]),
    ]
    results = ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, changing(*resources)).responses
    twice = (E.INVALID_REQUEST, "Each resource must appear at most once.")
    assert [(each.error_code, each.error_message) for each in results] == [twice, twice, OK]
    assert cluster.topics.image.topics["a"].configs == {"retention.ms": "7"}
    assert cluster.topics.image.topics["b"].configs == {"segment.ms": "1"}


def test_changes_only_validated_change_nothing(cluster: Cluster, ask: Ask) -> None:
    assert change(ask, TOPIC, "a", ("segment.ms", SET, "1"), validate_only=True) == OK
    assert change(ask, BROKER, "1", ("log.retention.ms", SET, "1"), validate_only=True) == OK
    assert cluster.topics.image.topics["a"].configs == {"retention.ms": "7"}
    assert cluster.topics.dynamic_broker_configs() == {}


# --- brokers and loggers ----------------------------------------------------------------------------------------------


def test_broker_configs_reach_the_host_and_survive_a_restart(cluster: Cluster, ask: Ask) -> None:
    assert change(ask, BROKER, "1", ("log.retention.ms", SET, "5")) == OK
    assert change(ask, BROKER, "", ("log.retention.bytes", SET, "6")) == OK
    assert cluster.host.broker_configs == {"log.retention.ms": "5", "log.retention.bytes": "6"}
    assert cluster.reopen().dynamic_broker_configs() == {"log.retention.ms": "5", "log.retention.bytes": "6"}


def test_a_brokers_list_grows_from_the_layer_below(cluster: Cluster, ask: Ask) -> None:
    assert change(ask, BROKER, "1", ("log.cleanup.policy", APPEND, "compact")) == OK
    assert cluster.topics.dynamic_broker_configs() == {"log.cleanup.policy": "delete,compact"}


def test_names_that_no_setting_has_are_kept_as_kafka_does(cluster: Cluster, ask: Ask) -> None:
    assert change(ask, BROKER, "1", ("some.plugin.setting", SET, "5")) == OK
    assert cluster.topics.dynamic_broker_configs() == {"some.plugin.setting": "5"}
    (result,) = ask(ApiKey.DESCRIBE_CONFIGS, 4, asking(BROKER, "1", "some.plugin.setting")).results
    assert [(config.value, config.is_sensitive) for config in result.configs] == [(None, True)]
    assert change(ask, BROKER, "1", ("some.plugin.setting", DELETE, None)) == OK
    assert cluster.topics.dynamic_broker_configs() == {}


@pytest.mark.parametrize(
    ("name", "changes", "code", "text"),
    [
        (
            "1",
            [("num.partitions", SET, "2"), ("broker.id", SET, "3")],
            E.INVALID_REQUEST,
            "Cannot update these configs dynamically: Set(num.partitions, broker.id)",
        ),
        (
            "1",
            [("log.retention.ms", SET, "x")],
            E.INVALID_REQUEST,
            "Invalid value x for configuration log.retention.ms: Not a number of type LONG",
        ),
        (
            "",
            [("message.max.bytes", SET, "-5")],
            E.INVALID_REQUEST,
            "Invalid value -5 for configuration message.max.bytes: Value must be at least 0",
        ),
        (
            "5",
            [("log.retention.ms", SET, "1")],
            E.INVALID_REQUEST,
            "Unexpected broker id, expected 1, but received 5",
        ),
        ("x", [("log.retention.ms", SET, "1")], E.INVALID_REQUEST, "Node id must be an integer, but it is: x"),
        (
            "1",
            [("log.retention.ms", APPEND, "1")],
            E.INVALID_CONFIG,
            "Config value append is not allowed for config key: log.retention.ms",
        ),
    ],
)
def test_broker_configs_that_cannot_be_changed_are_refused_in_kafkas_words(
    cluster: Cluster, ask: Ask, name: str, changes: list[Change], code: ErrorCode, text: str
) -> None:
    assert change(ask, BROKER, name, *changes) == (code, text)
    assert cluster.topics.dynamic_broker_configs() == {}


def test_levels_of_loggers_are_set_and_left_to_the_logger_above(ask: Ask) -> None:
    logger = logging.getLogger("kbroker.another.part")
    assert change(ask, BROKER_LOGGER, "1", (logger.name, SET, "TRACE")) == OK
    assert logger.level == 5
    assert change(ask, BROKER_LOGGER, "1", (logger.name, SET, "FATAL"), validate_only=True) == OK
    assert logger.level == 5
    assert change(ask, BROKER_LOGGER, "1", (logger.name, DELETE, None)) == OK
    assert logger.level == logging.NOTSET


@pytest.mark.parametrize(
    ("name", "changes", "code", "text"),
    [
        (
            "1",
            [("root", SET, "LOUD")],
            E.INVALID_CONFIG,
            "Cannot set the log level of root to LOUD as it is not a supported log level. Valid log levels are DEBUG, "
            "ERROR, FATAL, INFO, TRACE, WARN",
        ),
        ("1", [("nope", SET, "INFO")], E.INVALID_CONFIG, "Logger nope does not exist!"),
        (
            "1",
            [("root", APPEND, "INFO")],
            E.INVALID_REQUEST,
            "APPEND operation is not allowed for the BROKER_LOGGER resource",
        ),
        ("1", [("root", DELETE, None)], E.INVALID_REQUEST, "Removing the log level of the root logger is not allowed"),
        ("", [("root", SET, "INFO")], E.INVALID_REQUEST, "Node id must be an integer, but it is: "),
        ("5", [("root", SET, "INFO")], E.INVALID_REQUEST, "Unexpected node id. Expected 1, but received 5"),
    ],
)
def test_loggers_that_cannot_be_changed_are_refused(
    ask: Ask, name: str, changes: list[Change], code: ErrorCode, text: str
) -> None:
    level = logging.getLogger().level
    assert change(ask, BROKER_LOGGER, name, *changes) == (code, text)
    assert logging.getLogger().level == level


# --- groups ------------------------------------------------------------------------------------------------
SESSION, INTERVAL = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
ASSIGNMENT = "consumer.assignment.interval.ms"
OF_ALL = "group.consumer."


def test_a_group_is_described_whether_there_is_one_or_not(ask: Ask) -> None:
    assert describe(ask, GROUP, "g") == {
        SESSION: ("45000", DEFAULT), INTERVAL: ("5000", DEFAULT), ASSIGNMENT: ("0", DEFAULT)
    }  # fmt: skip
    assert change(ask, GROUP, "g", (SESSION, SET, " 50000 ")) == (0, None)
    assert describe(ask, GROUP, "g", SESSION) == {SESSION: ("50000", OF_GROUP)}
    assert describe(ask, GROUP, "h", SESSION) == {SESSION: ("45000", DEFAULT)}
    (result,) = ask(ApiKey.DESCRIBE_CONFIGS, 4, asking(GROUP, "g", SESSION, include_synonyms=True)).results
    (config,) = result.configs
    assert [(one.name, one.value, one.source) for one in config.synonyms] == [
        (SESSION, "50000", OF_GROUP), (f"group.{SESSION}", "45000", DEFAULT)
    ]  # fmt: skip
    assert change(ask, GROUP, "g", (SESSION, DELETE, None)) == (0, None)
    assert describe(ask, GROUP, "g", SESSION) == {SESSION: ("45000", DEFAULT)}


def test_configs_of_a_group_reach_the_host_and_survive_a_restart(cluster: Cluster, ask: Ask) -> None:
    assert change(ask, GROUP, "g", (SESSION, SET, "50000"), validate_only=True) == (0, None)
    assert cluster.topics.image.group_configs == {}
    assert change(ask, GROUP, "g", (SESSION, SET, "50000"), (INTERVAL, SET, "6000")) == (0, None)
    assert cluster.host.changed_groups == ["g"]
    ask(ApiKey.ALTER_CONFIGS, 2, replacing("g", {INTERVAL: "7000"}, GROUP))
    assert cluster.reopen().image.group_configs == {"g": {INTERVAL: "7000"}}


@pytest.mark.parametrize(
    ("wish", "text"),
    [
        (("no.such", SET, "1"), "Unknown group config name: no.such"),
        ((SESSION, SET, "soon"), f"Invalid value soon for configuration {SESSION}: Not a number of type INT"),
        ((SESSION, SET, ""), f"Invalid value  for configuration {SESSION}: Not a number of type INT"),
        ((SESSION, SET, "0"), f"Invalid value 0 for configuration {SESSION}: Value must be at least 1"),
        ((SESSION, SET, "44999"), f"{SESSION} must be greater than or equal to {OF_ALL}min.session.timeout.ms"),
        ((SESSION, SET, "60001"), f"{SESSION} must be less than or equal to {OF_ALL}max.session.timeout.ms"),
        ((INTERVAL, SET, "4999"), f"{INTERVAL} must be greater than or equal to {OF_ALL}min.heartbeat.interval.ms"),
        ((INTERVAL, SET, "15001"), f"{INTERVAL} must be less than or equal to {OF_ALL}max.heartbeat.interval.ms"),
        ((ASSIGNMENT, SET, "15001"), f"{ASSIGNMENT} must be less than or equal to {OF_ALL}max.assignment.interval.ms"),
        ((ASSIGNMENT, SET, "-1"), f"Invalid value -1 for configuration {ASSIGNMENT}: Value must be at least 0"),
        ((SESSION, APPEND, "1"), f"Can't APPEND to key {SESSION} because its type is not LIST."),
    ],
)
def test_configs_of_a_group_that_cannot_be_are_refused_in_kafkas_words(
    cluster: Cluster, ask: Ask, wish: Change, text: str
) -> None:
    assert change(ask, GROUP, "g", wish) == (E.INVALID_CONFIG, text)
    assert change(ask, GROUP, "g", ("no.such", DELETE, None)) == (0, None)
    nameless = (E.INVALID_REQUEST, "Default group resources are not allowed.")
    assert change(ask, GROUP, "", wish) == nameless
    assert cluster.topics.image.group_configs == {}


def test_a_group_without_a_name_is_not_described(ask: Ask) -> None:
    (result,) = ask(ApiKey.DESCRIBE_CONFIGS, 4, asking(GROUP, "")).results
    assert (result.error_code, result.error_message) == (E.INVALID_REQUEST, "Group name must not be empty")
