"""The settings that groups know."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class GroupOptions:
    """Limits and times of groups and their offsets, by the names of Kafka's settings with the unit last."""

    initial_rebalance_delay_ms: int = 0
    min_session_timeout_ms: int = 6_000
    max_session_timeout_ms: int = 1_800_000
    max_size: int = 2**31 - 1
    offset_metadata_max_length: int = 4096
    """In characters, as Kafka counts `offset.metadata.max.bytes`."""
    offsets_retention_ms: int = 7 * 24 * 3_600_000
    offsets_retention_check_interval_ms: int = 600_000
    offsets_load_buffer_bytes: int = 5 << 20
    offsets_topic_codec: int = 0

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> GroupOptions:
        """From the broker's settings."""
        return cls(
            initial_rebalance_delay_ms=settings["group.initial.rebalance.delay.ms"],
            min_session_timeout_ms=settings["group.min.session.timeout.ms"],
            max_session_timeout_ms=settings["group.max.session.timeout.ms"],
            max_size=settings["group.max.size"],
            offset_metadata_max_length=settings["offset.metadata.max.bytes"],
            offsets_retention_ms=settings["offsets.retention.minutes"] * 60_000,
            offsets_retention_check_interval_ms=settings["offsets.retention.check.interval.ms"],
            offsets_load_buffer_bytes=settings["offsets.load.buffer.size"],
            offsets_topic_codec=settings["offsets.topic.compression.codec"],
        )
