"""Which segments a log may delete: pure functions over a view of the log, oldest segments first.

A `DeletionPolicy` returns how many of the oldest segments may go; the largest answer of a log's policies counts. A
log's policies follow from its options (`policies_for`); a program that runs a `LogManager` may give it other rules
(`policies_for=`). No setting can name a policy in code: this module has those that Kafka's settings ask for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple, Protocol

from kbroker._core.log.partition_state import PartitionState
from kbroker.storage.options import LogOptions
from kbroker.storage.segment import largest_timestamp


class Candidate(NamedTuple):
    """What retention knows of a segment that it may have to delete."""

    base_offset: int
    end_offset: int
    """Base offset of the next segment; the log's end for the active one."""
    size: int
    largest_timestamp: int
    """The largest timestamp of its records; the file's time of change if they have none. Milliseconds."""


class LogView(NamedTuple):
    """A log at one moment. Segments that hold records above the high watermark are not in it."""

    segments: tuple[Candidate, ...]
    log_start_offset: int
    size: int
    now_ms: int


class DeletionPolicy(Protocol):
    """A reason to delete segments. It uses no clock and no files, and is asked again at every retention check."""

    def __call__(self, view: LogView, /) -> int:
        """Return how many of the oldest segments may go; never more than the view has."""
        ...


PoliciesFor = Callable[[LogOptions], "tuple[DeletionPolicy, ...]"]


def below_log_start(view: LogView) -> int:
    """Count the segments whose records were all deleted (DeleteRecords)."""
    count = 0
    for at in view.segments[:-1]:
        if at.end_offset > view.log_start_offset:
            break
        count += 1
    return count


def older_than(retention_ms: int, view: LogView) -> int:
    """Count the oldest segments whose newest record is older than `retention_ms` (retention.ms)."""
    count = 0
    for at in view.segments:
        if view.now_ms - at.largest_timestamp <= retention_ms:
            break
        count += 1
    return count


def larger_than(retention_bytes: int, view: LogView) -> int:
    """Count the oldest segments without which the log is still at least as large as retention.bytes."""
    count = 0
    too_much = view.size - retention_bytes
    for at in view.segments:
        too_much -= at.size
        if too_much < 0:
            break
        count += 1
    return count


def policies_for(options: LogOptions) -> tuple[DeletionPolicy, ...]:
    """Return the policies that a topic's settings ask for."""
    policies: list[DeletionPolicy] = [below_log_start]
    if options.deleted_by_retention:
        if options.retention_ms >= 0:
            policies.append(partial(older_than, options.retention_ms))
        if options.retention_bytes >= 0:
            policies.append(partial(larger_than, options.retention_bytes))
    return tuple(policies)


def count_of(policies: Iterable[DeletionPolicy], view: LogView) -> int:
    """Return how many of the oldest segments may go by any of the policies."""
    return max((policy(view) for policy in policies), default=0)


def view_of(state: PartitionState, log_file: Callable[[int], str], now_ms: int) -> LogView:
    """Return the log as retention may see it. An empty active segment is left out: there is nothing to delete.

    `log_file` returns the path of the .log of the segment with a base offset.
    """
    segments = state.segments()
    high_watermark = state.high_watermark
    end_offset = state.log_end_offset
    candidates: list[Candidate] = []
    ends = [at.base_offset for at in segments[1:]] + [end_offset]
    for at, next_base in zip(segments, ends, strict=True):
        if next_base > high_watermark or (at is segments[-1] and at.size == 0):
            break
        try:
            largest = largest_timestamp(log_file(at.base_offset), at.max_timestamp)
        except OSError:
            largest = now_ms
        candidates.append(Candidate(at.base_offset, next_base, at.size, largest))
    return LogView(tuple(candidates), state.log_start_offset, sum(at.size for at in segments), now_ms)
