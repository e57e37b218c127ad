"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kbroker.config.definitions import SETTINGS
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from tests.oracle.scenario import Talk, scenario
from tests.oracle.scenarios.requests import resource

DESCRIBE, ALTER, INCREMENTAL = ApiKey.DESCRIBE_CONFIGS, ApiKey.ALTER_CONFIGS, ApiKey.INCREMENTAL_ALTER_CONFIGS
UNKNOWN, TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 0, 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
NODE = "0"
OF_THE_INSTALLATION = {
    "listeners",
    "listener.security.protocol.map",
    "controller.listener.names",
    "log.dir",
    "log.dirs",
}


def describe(
    *resources: M.DescribeConfigsRequest.DescribeConfigsResource, synonyms: bool = False, documentation: bool = False
) -> M.DescribeConfigsRequest:
    return M.DescribeConfigsRequest(
        resources=list(resources), include_synonyms=synonyms, include_documentation=documentation
    )


def only_comparable(answer: M.DescribeConfigsResponse) -> None:
    """Keep only settings that kbroker has too, and whose value is not particular to one installation."""
    for result in answer.results:
        names = SETTINGS.keys() - OF_THE_INSTALLATION
        result.configs = [
            config for config in result.configs if config.name in names and not config.name.startswith("kbroker.")
        ]


def settled(t: Talk, kind: int, name: str, key: str, value: str | None) -> None:
    """Wait until the broker acts on a changed config: KRaft answers a moment earlier."""

    def is_so() -> bool:
        found = t.do(describe(resource(kind, name, [key]))).results[0].configs
        return any(config.value == value for config in found) or (value is None and not found)

    t.until(is_so, f"{value} in {key} of {name}")


@scenario(DESCRIBE)
def a_topic(t: Talk) -> None:
    topic = t.topic(retention_ms=5000, cleanup_policy="compact")
    t.ask(describe(resource(TOPIC, topic)))
    t.ask(describe(resource(TOPIC, topic), synonyms=True, documentation=True))


@scenario(DESCRIBE)
def some_configs(t: Talk) -> None:
    topic = t.topic(retention_ms=5000)
    t.ask(describe(resource(TOPIC, topic, ["retention.ms", "segment.bytes", "no.such"]), synonyms=True))
    t.ask(describe(resource(TOPIC, topic, [])))
    t.ask(describe(resource(TOPIC, topic, ["retention.ms", "retention.ms"])))


@scenario(DESCRIBE)
def several_resources(t: Talk) -> None:
    one, two = t.topic("one"), t.topic("two")
    key = ["retention.ms"]
    t.ask(
        describe(
            resource(TOPIC, one, key),
            resource(TOPIC, two, key),
            resource(BROKER, NODE, key),
            resource(TOPIC, t.name("no"), key),
        )
    )
    t.ask(describe(resource(TOPIC, one, key), resource(TOPIC, one, ["segment.bytes"])))
    t.ask(describe())


@scenario(DESCRIBE)
def resources_that_are_not_there(t: Talk) -> None:
    for name in (t.name("nowhere"), "", "a b", "x" * 250):
        t.ask(describe(resource(TOPIC, name)))
    for name in ("7", "x", "-1"):
        t.ask(describe(resource(BROKER, name)))


@scenario(DESCRIBE)
def kinds_of_resources_that_are_not_there(t: Talk) -> None:
    for kind in (UNKNOWN, 1, 3, 64, 127, -1):
        t.ask(describe(resource(kind, t.name("x"))))


@scenario(DESCRIBE)
def loggers(t: Talk) -> None:
    for name in ("7", "x", ""):
        t.ask(describe(resource(BROKER_LOGGER, name)))


@scenario(DESCRIBE)
def the_broker(t: Talk) -> None:
    t.ask(describe(resource(BROKER, NODE)), keep=only_comparable)
    t.ask(describe(resource(BROKER, NODE), synonyms=True, documentation=True), keep=only_comparable)
    t.ask(describe(resource(BROKER, "")), keep=only_comparable)


@scenario(DESCRIBE)
def some_settings_of_the_broker(t: Talk) -> None:
    names = [
        "message.max.bytes",
        "log.retention.ms",
        "log.retention.minutes",
        "num.partitions",
        "log.segment.bytes",
        "broker.id",
    ]
    t.ask(describe(resource(BROKER, NODE, names), synonyms=True))


def alter(*resources: tuple[int, str, dict[str, str | None]], check: bool = False) -> M.AlterConfigsRequest:
    one = M.AlterConfigsRequest.AlterableConfig
    return M.AlterConfigsRequest(
        resources=[
            M.AlterConfigsRequest.AlterConfigsResource(
                resource_type=kind,
                resource_name=name,
                configs=[one(name=key, value=value) for key, value in configs.items()],
            )
            for kind, name, configs in resources
        ],
        validate_only=check,
    )


WRONG: list[dict[str, str | None]] = [
    {"retention.ms": "soon"},
    {"retention.ms": ""},
    {"retention.ms": "-2"},
    {"segment.bytes": "1"},
    {"segment.bytes": "99999999999"},
    {"cleanup.policy": "burn"},
    {"compression.type": "rar"},
    {"min.insync.replicas": "0"},
    {"message.timestamp.type": "Tomorrow"},
    {"min.cleanable.dirty.ratio": "1.5"},
    {"no.such.config": "1"},
    {"retention.ms": None},
    {"": "1"},
    {"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "5"},
]


@scenario(ALTER)
def all_configs_of_a_topic(t: Talk) -> None:
    """AlterConfigs sets every config that the request does not name back to its default."""
    topic = t.topic(retention_ms=5000, segment_bytes=100000)
    t.ask(alter((TOPIC, topic, {"max.message.bytes": "2000"})))
    settled(t, TOPIC, topic, "max.message.bytes", "2000")
    t.ask(describe(resource(TOPIC, topic, ["max.message.bytes", "retention.ms", "segment.bytes"])))
    t.ask(alter((TOPIC, topic, {})))
    settled(t, TOPIC, topic, "max.message.bytes", "1048588")


@scenario(ALTER)
def wrong_configs(t: Talk) -> None:
    topic = t.topic(retention_ms=5000)
    for wrong in WRONG:
        t.ask(alter((TOPIC, topic, wrong)))
    t.ask(describe(resource(TOPIC, topic, ["retention.ms"])))


@scenario(ALTER)
def only_checked_configs(t: Talk) -> None:
    topic = t.topic()
    t.ask(alter((TOPIC, topic, {"retention.ms": "5"}), check=True))
    t.ask(alter((TOPIC, topic, {"retention.ms": "x"}), check=True))
    t.ask(describe(resource(TOPIC, topic, ["retention.ms"])))


@scenario(ALTER)
def configs_of_what_is_not_there(t: Talk) -> None:
    for kind, name in (
        (TOPIC, t.name("no")),
        (TOPIC, ""),
        (TOPIC, "a b"),
        (BROKER, "7"),
        (BROKER, "x"),
        (UNKNOWN, "x"),
        (64, "x"),
        (3, "x"),
    ):
        t.ask(alter((kind, name, {"retention.ms": "5"})))
    t.ask(alter((BROKER_LOGGER, NODE, {"root": "INFO"})))


@scenario(ALTER)
def configs_of_several(t: Talk) -> None:
    topic, other = t.topic(), t.topic("other")
    t.ask(
        alter((TOPIC, topic, {"retention.ms": "5"}), (TOPIC, t.name("no"), {}), (TOPIC, other, {"retention.ms": "x"}))
    )
    t.ask(alter())
    t.still_waits(t.send(alter((TOPIC, topic, {"retention.ms": "5"}), (TOPIC, topic, {"retention.ms": "6"}))))


Op = tuple[str, int, str | None]


def change(*resources: tuple[int, str, list[Op]], check: bool = False) -> M.IncrementalAlterConfigsRequest:
    one = M.IncrementalAlterConfigsRequest.AlterableConfig
    return M.IncrementalAlterConfigsRequest(
        resources=[
            M.IncrementalAlterConfigsRequest.AlterConfigsResource(
                resource_type=kind,
                resource_name=name,
                configs=[one(name=key, config_operation=op, value=value) for key, op, value in ops],
            )
            for kind, name, ops in resources
        ],
        validate_only=check,
    )


@scenario(INCREMENTAL)
def a_config_is_set_and_deleted(t: Talk) -> None:
    topic = t.topic(segment_bytes=100000)
    t.ask(change((TOPIC, topic, [("retention.ms", SET, "5000")])))
    settled(t, TOPIC, topic, "retention.ms", "5000")
    t.ask(describe(resource(TOPIC, topic, ["retention.ms", "segment.bytes"]), synonyms=True))
    t.ask(change((TOPIC, topic, [("retention.ms", DELETE, None), ("segment.bytes", SET, "200000")])))
    settled(t, TOPIC, topic, "segment.bytes", "200000")
    t.ask(describe(resource(TOPIC, topic, ["retention.ms", "segment.bytes"]), synonyms=True))
    t.ask(change((TOPIC, topic, [("retention.ms", DELETE, "7"), ("flush.ms", DELETE, None)])))


@scenario(INCREMENTAL)
def lists_grow_and_shrink(t: Talk) -> None:
    topic = t.topic()
    steps: list[tuple[int, str, str]] = [
        (APPEND, "compact", "delete,compact"),
        (APPEND, "compact", "delete,compact"),
        (SUBTRACT, "delete", "compact"),
        (SUBTRACT, "delete", "compact"),
        (APPEND, "delete,compact", "compact,delete"),
    ]
    for op, value, after in steps:
        t.ask(change((TOPIC, topic, [("cleanup.policy", op, value)])))
        settled(t, TOPIC, topic, "cleanup.policy", after)
    t.ask(change((TOPIC, topic, [("cleanup.policy", APPEND, "burn")])))
    t.ask(change((TOPIC, topic, [("cleanup.policy", SUBTRACT, "burn")])))
    t.ask(change((TOPIC, topic, [("cleanup.policy", SUBTRACT, "compact,delete")])))
    t.ask(change((TOPIC, topic, [("retention.ms", APPEND, "5")])))
    t.ask(change((TOPIC, topic, [("retention.ms", SUBTRACT, "5")])))
    t.ask(change((TOPIC, topic, [("cleanup.policy", APPEND, None)])))


@scenario(INCREMENTAL)
def wrong_changes(t: Talk) -> None:
    topic = t.topic(retention_ms=5000)
    for wrong in WRONG:
        t.ask(change((TOPIC, topic, [(key, SET, value) for key, value in wrong.items()])))
    for op in (4, 127, -1):
        t.ask(change((TOPIC, topic, [("retention.ms", op, "5")])))
    t.ask(change((TOPIC, topic, [("no.such.config", DELETE, None)])))
    t.ask(change((TOPIC, topic, [("retention.ms", SET, "5"), ("retention.ms", SET, "6")])))
    t.ask(change((TOPIC, topic, [])))
    t.ask(describe(resource(TOPIC, topic, ["retention.ms"])))


@scenario(INCREMENTAL)
def only_checked_changes(t: Talk) -> None:
    topic = t.topic()
    t.ask(change((TOPIC, topic, [("retention.ms", SET, "5")]), check=True))
    t.ask(change((TOPIC, topic, [("retention.ms", SET, "x")]), check=True))
    t.ask(describe(resource(TOPIC, topic, ["retention.ms"])))


@scenario(INCREMENTAL)
def changes_of_what_is_not_there(t: Talk) -> None:
    op: list[Op] = [("retention.ms", SET, "5")]
    for kind, name in (
        (TOPIC, t.name("no")),
        (TOPIC, ""),
        (TOPIC, "a b"),
        (BROKER, "7"),
        (BROKER, "x"),
        (UNKNOWN, "x"),
        (64, "x"),
        (3, "x"),
    ):
        t.ask(change((kind, name, op)))


@scenario(INCREMENTAL)
def changes_of_several(t: Talk) -> None:
    topic, other = t.topic(), t.topic("other")
    five: list[Op] = [("retention.ms", SET, "5")]
    t.ask(change((TOPIC, topic, five), (TOPIC, t.name("no"), five), (TOPIC, other, [("retention.ms", SET, "x")])))
    t.ask(change((TOPIC, topic, five), (TOPIC, topic, [("retention.ms", SET, "6")])))
    t.ask(change())


@scenario(INCREMENTAL)
def wrong_changes_of_the_broker(t: Talk) -> None:
    for name in (NODE, ""):
        for key, value in (
            ("log.retention.ms", "soon"),
            ("num.partitions", "3"),
            ("listeners", "PLAINTEXT://:1"),
            ("no.such.setting", "1"),
            ("broker.id", "5"),
            ("log.dirs", "/tmp"),
        ):
            t.ask(change((BROKER, name, [(key, SET, value)]), check=True))


@scenario(INCREMENTAL)
def wrong_changes_of_loggers(t: Talk) -> None:
    for name, key, op, value in (
        (NODE, "no.such.logger", SET, "INFO"),
        (NODE, "root", DELETE, None),
        (NODE, "root", APPEND, "INFO"),
        ("7", "root", SET, "INFO"),
        ("", "root", SET, "INFO"),
        (NODE, "root", SET, "LOUD"),
    ):
        t.ask(change((BROKER_LOGGER, name, [(key, op, value)]), check=True))


@contextmanager
def setting(t: Talk, name: str, key: str, value: str, before: str) -> Iterator[None]:
    """Set a dynamic setting of the broker and take it back, whatever happens in between."""
    t.ask(change((BROKER, name, [(key, SET, value)])))
    try:
        settled(t, BROKER, NODE, key, value)
        yield
    finally:
        t.ask(change((BROKER, name, [(key, DELETE, None)])))
        settled(t, BROKER, NODE, key, before)


@scenario(INCREMENTAL, alone=True)
def settings_of_the_broker_at_run_time(t: Talk) -> None:
    """A topic follows the broker's setting; a broker's own setting wins over that of all brokers."""
    topic = t.topic()
    asked = describe(
        resource(TOPIC, topic, ["max.message.bytes"]),
        resource(BROKER, NODE, ["message.max.bytes"]),
        resource(BROKER, ""),
        synonyms=True,
    )
    with setting(t, "", "message.max.bytes", "3000000", "1048588"):
        t.ask(asked, keep=only_comparable)
        with setting(t, NODE, "message.max.bytes", "2000000", "3000000"):
            t.ask(asked, keep=only_comparable)
    t.ask(asked, keep=only_comparable)
