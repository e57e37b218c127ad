"""The settings of the group coordinator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from kbroker.rules.consumer_group_state import ConsumerLimits


class GroupOptions(NamedTuple):
    """Limits and times of groups and their offsets, by the names of Kafka's settings with the unit last."""

    initial_rebalance_delay_ms: int = 0
    min_session_timeout_ms: int = 6_000
    max_session_timeout_ms: int = 1_800_000
    max_size: int = 2**31 - 1
    most_groups: int = 100_000
    member_metadata_max_bytes: int = 1 << 20
    """The most metadata of one member, all protocols together: more would not fit into a record."""
    offset_metadata_max_bytes: int = 4096
    """Bytes in UTF-8; Kafka counts characters."""
    offsets_retention_ms: int = 7 * 24 * 3_600_000
    offsets_retention_check_interval_ms: int = 600_000
    offsets_load_buffer_bytes: int = 5 << 20
    offsets_topic_codec: int = 0
    consumer: ConsumerLimits = ConsumerLimits()
    """Limits of groups of the consumer protocol."""
    own_limits: Callable[[str], Mapping[str, Any]] = lambda _: {}
    """Returns the values that are set for one consumer group: group id -> fields of `consumer`."""
    consumer_enabled: bool = True
    migration_policy: str = "bidirectional"
    """Which way a group with members may change its protocol: disabled, upgrade, downgrade or bidirectional."""

    def limits_of(self, group_id: str) -> ConsumerLimits:
        """The limits that hold for one consumer group."""
        own = self.own_limits(group_id)
        return self.consumer._replace(**own) if own else self.consumer

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any], own_limits: Callable[[str], Mapping[str, Any]]) -> GroupOptions:
        """Take the options from the broker's settings."""
        return cls(
            own_limits=own_limits,
            initial_rebalance_delay_ms=settings["group.initial.rebalance.delay.ms"],
            min_session_timeout_ms=settings["group.min.session.timeout.ms"],
            max_session_timeout_ms=settings["group.max.session.timeout.ms"],
            max_size=settings["group.max.size"],
            most_groups=settings["kbroker.groups.max"],
            member_metadata_max_bytes=settings["message.max.bytes"],
            offset_metadata_max_bytes=settings["offset.metadata.max.bytes"],
            offsets_retention_ms=settings["offsets.retention.minutes"] * 60_000,
            offsets_retention_check_interval_ms=settings["offsets.retention.check.interval.ms"],
            offsets_load_buffer_bytes=settings["offsets.load.buffer.size"],
            offsets_topic_codec=settings["offsets.topic.compression.codec"],
            consumer_enabled="consumer" in settings["group.coordinator.rebalance.protocols"],
            migration_policy=settings["group.consumer.migration.policy"].lower(),
            consumer=ConsumerLimits(
                session_timeout_ms=settings["group.consumer.session.timeout.ms"],
                heartbeat_interval_ms=settings["group.consumer.heartbeat.interval.ms"],
                max_size=settings["group.consumer.max.size"],
                assignors=tuple(settings["group.consumer.assignors"]),
                assignment_interval_ms=settings["group.consumer.assignment.interval.ms"],
                regex_refresh_interval_ms=settings["group.consumer.regex.refresh.interval.ms"],
            ),
        )
