"""The objects that the logs of one broker share."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Protocol
from weakref import WeakSet

from kbroker._core.log.directory import LogDirectory
from kbroker._core.log.partition_state import PartitionState
from kbroker._core.log.segment_list import SegmentHandle
from kbroker.clock import Clock
from kbroker.fs import FileSystem
from kbroker.storage.open_segments import SegmentOwner
from kbroker.storage.options import LogOptions


class TimedLog(Protocol):
    """A log that is flushed when a record has waited for `options.flush_ms`."""

    state: PartitionState

    @property
    def options(self) -> LogOptions: ...


class LogContext:
    """What the logs of one broker share: what they are given, and what they ask of the log manager."""

    def __init__(
        self,
        fs: FileSystem,
        clock: Clock,
        randomness: random.Random,
        on_segment_opened: Callable[[SegmentOwner, int], None],
        store_start_offsets: Callable[[LogDirectory], None],
        remove_later: Callable[[int, list[SegmentHandle], list[str]], None],
        producer_id_expiration_ms: int = 86_400_000,
        store_recovery_points: Callable[[LogDirectory], None] = lambda directory: None,
        *,
        is_member: bool = False,
    ):
        self.fs = fs
        self.clock = clock
        self.random = randomness
        self.on_segment_opened = on_segment_opened
        """Called when a closed segment has got descriptors. Others may be closed for it."""
        self.store_start_offsets = store_start_offsets
        """Makes the start offsets of the logs in a directory durable."""
        self.remove_later = remove_later
        """Unlinks files after a delay in ms, when nobody reads the segments of the handles any more."""
        self.producer_id_expiration_ms = producer_id_expiration_ms
        """An idempotent producer that has been silent for so long is forgotten. May be changed at any time."""
        self.store_recovery_points = store_recovery_points
        """Makes the recovery points of the logs in a directory durable."""
        self.flushed_by_time: WeakSet[TimedLog] = WeakSet()
        """The logs that have a flush.ms. Of thousands of logs, mostly none has."""
        self.is_member = is_member
        """Whether the broker is a member of a cluster: a log serves nothing before the controller gives it a role."""
