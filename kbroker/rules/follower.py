"""What a follower does about its log when its leader answers anything but records: pure values in, a step out.

Truncation goes by leader epochs (KIP-101, KIP-279, KIP-595): the leader names the last epoch that both may have, and
where it ends there. A log is cut to its high watermark only if it knows no epoch at all.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypeAlias

from kbroker.errors import ErrorCode

OF_UNTOLD_LEADERS = (
    ErrorCode.UNKNOWN_LEADER_EPOCH, ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
)  # fmt: skip
"""What a leader answers that the controller has told of its role later than the follower."""


class Trouble(Protocol):
    """Why a partition is not fetched any more; `_core.replica.followed.ReplicaTrouble` is one."""

    @property
    def kind(self) -> str:
        """The leader's "error", a "diverging" epoch, or "append": the own log has refused the records."""
        ...

    @property
    def error(self) -> int: ...
    @property
    def offset(self) -> int:
        """The offset that was asked for."""
        ...

    @property
    def diverging_epoch(self) -> int: ...
    @property
    def diverging_end(self) -> int: ...


class LogView(NamedTuple):
    """The follower's log."""

    log_start_offset: int
    log_end_offset: int
    high_watermark: int
    epochs: Sequence[tuple[int, int]]
    """Its leader epochs and where each begins, ascending."""


class TruncateTo(NamedTuple):
    """Cut the log, and all leader epochs that begin there or above; then fetch on."""

    offset: int


class BeginAt(NamedTuple):
    """Empty the log and let it begin at this offset; then fetch on."""

    offset: int


class AskLatest(NamedTuple):
    """Ask the leader for its log end, and go on with `after_latest`."""


class AskEarliest(NamedTuple):
    """Ask the leader for its log start, and go on with `after_earliest`."""


class Retry(NamedTuple):
    """Fetch on after a pause."""

    why: str
    """What went wrong, for the log; empty if it is nothing that anybody has to know."""
    is_passing: bool = False
    """Whether every election may bring it about for a moment: people have to know it only if it lasts."""


class Wait(NamedTuple):
    """Fetch no more until the controller names the leader again."""


Step: TypeAlias = TruncateTo | BeginAt | AskLatest | AskEarliest | Retry | Wait


def first_step(log: LogView) -> TruncateTo | None:
    """Return what is to be done before the first fetch from a new leader; None: fetch from the log's end on."""
    if not log.epochs and log.log_end_offset > log.high_watermark:
        return TruncateTo(log.high_watermark)
    return None


def next_step(trouble: Trouble, log: LogView) -> Step:
    """Return what is to be done about trouble."""
    if trouble.kind == "diverging":
        return truncation(trouble.diverging_epoch, trouble.diverging_end, log)
    if trouble.kind == "append":
        return after_append(trouble.error)
    if trouble.error == ErrorCode.OFFSET_OUT_OF_RANGE:
        return AskLatest()
    if trouble.error == ErrorCode.FENCED_LEADER_EPOCH:
        return Wait()
    return Retry(f"its leader answers {error_name(trouble.error)}", trouble.error in OF_UNTOLD_LEADERS)


def after_append(error: int) -> Step:
    """Return what is to be done when the own log has refused what the leader has sent."""
    if error == ErrorCode.FENCED_LEADER_EPOCH:
        return Wait()  # the partition has another role by now
    if error in (ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD):
        return Retry(f"its leader has sent a batch that cannot be appended: {error_name(error)}")
    return Retry(f"the log does not take what its leader sends: {error_name(error)}")


def truncation(diverging_epoch: int, diverging_end: int, log: LogView) -> Step:
    """Return where to cut a log that differs from its leader's.

    The leader's log has `diverging_epoch` as its largest epoch up to the one that was asked about, and it ends at
    `diverging_end` there; (-1, -1) if the leader knows no such epoch.
    """
    if diverging_end < 0:
        return Retry("its leader does not say where the logs differ")
    known = bisect_right([epoch for epoch, _ in log.epochs], diverging_epoch)
    end_offset = log.epochs[known][1] if known < len(log.epochs) else log.log_end_offset
    if known == 0 or log.epochs[known - 1][0] == diverging_epoch:
        # With 0 all epochs of this log are above the one that the leader has named, so the leader has none of them.
        end_offset = min(end_offset, diverging_end)
    # Else the leader has named an epoch that this log does not have: the log is cut to the end of its next lower one,
    # and that one is asked about next.
    end_offset = max(min(end_offset, log.log_end_offset), log.log_start_offset)
    if end_offset >= log.log_end_offset and not any(start >= end_offset for _, start in log.epochs):
        return Retry("its leader sees a difference where there is none")
    return TruncateTo(end_offset)


def after_latest(latest: int, log: LogView) -> Step:
    """Return what is to be done when the leader's log ends at `latest` and it does not have what was asked for."""
    if 0 <= latest < log.log_end_offset:
        return TruncateTo(latest) if latest >= log.log_start_offset else BeginAt(latest)
    return AskEarliest()


def after_earliest(earliest: int, log: LogView) -> Step:
    """Return what is to be done when the leader's log starts at `earliest` and ends not before this log."""
    if earliest > log.log_end_offset:
        return BeginAt(earliest)
    return Retry("its leader refuses an offset that it has")


def error_name(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return f"error {code}"
