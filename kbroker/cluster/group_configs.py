"""Every config that a group can have, as in Apache Kafka 4.3 (KIP-848); they are for consumer groups.

A group's own value wins over the broker setting that gives the default. The effective value is always within the
broker's bounds, also if these were changed after the group's value was set.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import NamedTuple

from kbroker.cluster.topic_configs import BrokerValue
from kbroker.errors import ConfigError
from kbroker.rules.config_values import Kind, Limits, parse_value

log = logging.getLogger(__name__)

SESSION_TIMEOUT = "consumer.session.timeout.ms"
HEARTBEAT_INTERVAL = "consumer.heartbeat.interval.ms"
ASSIGNMENT_INTERVAL = "consumer.assignment.interval.ms"


class GroupConfig(NamedTuple):
    """One config of a group, a number of milliseconds, with the names of the broker settings for it."""

    name: str
    default: int
    limits: Limits
    doc: str
    kind: Kind = Kind.INT

    @property
    def synonym(self) -> str:
        """The broker setting that gives groups their default."""
        return f"group.{self.name}"

    @property
    def smallest(self) -> str:
        return f"group.{self.name.replace('.', '.min.', 1)}"

    @property
    def largest(self) -> str:
        return f"group.{self.name.replace('.', '.max.', 1)}"

    def parse(self, text: str) -> int:
        """The value that `text` stands for. Raises ConfigError, in Kafka's words, if it is not a valid value."""
        value = parse_value(self.name, self.kind, text)
        self.limits.check(self.name, value)
        assert isinstance(value, int)
        return value


_ROWS = (
    GroupConfig(
        SESSION_TIMEOUT, 45_000, Limits(1), "How long a member of the group may not be heard of before it is put out."
    ),
    GroupConfig(HEARTBEAT_INTERVAL, 5_000, Limits(1), "How often members of the group are told to be heard of."),
    GroupConfig(ASSIGNMENT_INTERVAL, 0, Limits(0), "The least time between two assignments of the group."),
)
GROUP_CONFIGS: dict[str, GroupConfig] = {row.name: row for row in _ROWS}


def validate_group_configs(configs: Mapping[str, str], broker_value: BrokerValue) -> None:
    """Check a group's own configs. Raises ConfigError, with Kafka's message, for the first that is wrong."""
    for name in configs:
        if name not in GROUP_CONFIGS:
            raise ConfigError(f"Unknown group config name: {name}")
    values = {
        name: config.parse(configs[name]) if name in configs else group_default(config, broker_value)
        for name, config in GROUP_CONFIGS.items()
    }
    for name in (HEARTBEAT_INTERVAL, SESSION_TIMEOUT, ASSIGNMENT_INTERVAL):
        config = GROUP_CONFIGS[name]
        low, high = _bounds(config, broker_value)
        if name == ASSIGNMENT_INTERVAL and name not in configs:
            continue
        if values[name] < low:
            raise ConfigError(f"{name} must be greater than or equal to {config.smallest}")
        if values[name] > high:
            raise ConfigError(f"{name} must be less than or equal to {config.largest}")
    if values[SESSION_TIMEOUT] <= values[HEARTBEAT_INTERVAL]:
        raise ConfigError(f"{SESSION_TIMEOUT} must be greater than {HEARTBEAT_INTERVAL}")


def effective_group_configs(group_id: str, own: Mapping[str, str], broker_value: BrokerValue) -> dict[str, int]:
    """The effective values of a group's own configs; one outside the broker's bounds is clamped, with a warning."""
    values = {}
    for name, config in GROUP_CONFIGS.items():
        if name not in own:
            continue
        given = config.parse(own[name])
        low, high = _bounds(config, broker_value)
        values[name] = min(max(given, low), high)
        if values[name] != given:
            log.warning("group %r has %s=%d, but the broker allows %d to %d", group_id, name, given, low, high)
    return values


def group_default(config: GroupConfig, broker_value: BrokerValue) -> int:
    """The value of `config` for a group without its own."""
    return config.parse(_given(broker_value, config.synonym))


def _bounds(config: GroupConfig, broker_value: BrokerValue) -> tuple[int, int]:
    return int(_given(broker_value, config.smallest)), int(_given(broker_value, config.largest))


def _given(broker_value: BrokerValue, name: str) -> str:
    """The value of a broker setting that has a default."""
    text = broker_value(name)
    assert text is not None, name
    return text
