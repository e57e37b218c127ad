"""A leader's ISR as values: who is let in, who is put out, and what the controller's answers make of it (KIP-497).

The leader proposes one change at a time; the controller alone commits it. Until the answer comes, a replica that is
being let in counts already, and one that is being put out counts still: whichever outcome the proposal has, the high
watermark never runs ahead of a replica that may be elected.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from enum import Enum, auto
from typing import NamedTuple, Protocol

from kbroker.errors import ErrorCode

NOBODY = -1


class Follower(Protocol):
    """What a leader knows of a follower; offsets and times are those of its latest fetches."""

    @property
    def node_id(self) -> int: ...
    @property
    def log_end_offset(self) -> int: ...
    @property
    def last_caught_up_ms(self) -> int:
        """The latest time at which it had everything that the leader had then."""
        ...


def maximal_isr(committed: Iterable[int], proposed: Iterable[int] | None) -> frozenset[int]:
    """Return every replica that may be in the ISR by the controller, while a change of it is not settled."""
    return frozenset(committed).union(proposed or ())


class InSync(NamedTuple):
    """The ISR of a partition, for its leader in one leader epoch. A change makes a new value."""

    leader_epoch: int
    partition_epoch: int
    """The version of the partition's state that `committed` is from; each commit of the controller raises it."""
    committed: tuple[int, ...]
    """The ISR by the controller, this leader included."""
    proposed: tuple[int, ...] | None = None
    """The ISR that the controller was asked for; None while no proposal is open."""
    refused: int = NOBODY
    """The replica that the controller would not let in last: others come before it next time."""

    @property
    def maximal(self) -> frozenset[int]:
        """Every replica that may be in the ISR by the controller: those committed, and one that is being let in."""
        return maximal_isr(self.committed, self.proposed)

    @property
    def is_pending(self) -> bool:
        return self.proposed is not None

    @property
    def proposal(self) -> Proposal | None:
        if self.proposed is None:
            return None
        return Proposal(self.leader_epoch, self.partition_epoch, self.proposed)


class Proposal(NamedTuple):
    """A change of an ISR that the controller is asked for, at the partition epoch that it builds on."""

    leader_epoch: int
    partition_epoch: int
    isr: tuple[int, ...]


class Committed(NamedTuple):
    """The controller's answer to a proposal that it has committed, or that changes nothing."""

    leader_epoch: int
    partition_epoch: int
    isr: tuple[int, ...]


class Next(Enum):
    """What a leader does after the answer to its proposal."""

    GO_ON = auto()
    """The ISR is known again; the next change may be proposed."""
    ASK_AGAIN = auto()
    """The same proposal has to be sent again."""
    WAIT = auto()
    """The proposal stays open until LeaderAndIsr or UpdateMetadata tells a newer state."""
    IGNORE = auto()
    """The answer is to a proposal that is not open any more."""


_NOT_APPLIED = frozenset({ErrorCode.INELIGIBLE_REPLICA, ErrorCode.OPERATION_NOT_ATTEMPTED})
"""By these the controller says that the partition epoch is right and that the change was not made and never will be."""

_STATE_UNKNOWN = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NEW_LEADER_ELECTED,
    }
)
"""After these the leader does not know the committed ISR: a proposal whose answer was lost may have been committed."""


def led(leader_epoch: int, partition_epoch: int, isr: Iterable[int]) -> InSync:
    """Return the ISR of a leader as LeaderAndIsr tells it. Whatever was proposed before is forgotten."""
    return InSync(leader_epoch, partition_epoch, tuple(isr))


def next_to_join(
    in_sync: InSync,
    followers: Iterable[Follower],
    high_watermark: int,
    epoch_start_offset: int,
    live: Collection[int],
) -> int:
    """Return the replica that is to be let in next; NOBODY if there is none or a proposal is open.

    It is alive, and has every committed record: its log reaches the high watermark and also the start of the leader's
    epoch, because the high watermark may have been ahead of this leader's (KAFKA-7128). `followers` have just fetched:
    one that is silent would be put out again, or may have lost its disk since.
    """
    if in_sync.is_pending:
        return NOBODY
    needed = max(high_watermark, epoch_start_offset)
    ready = sorted(
        each.node_id
        for each in followers
        if each.node_id not in in_sync.committed and each.node_id in live and each.log_end_offset >= needed
    )
    if not ready:
        return NOBODY
    return next((node_id for node_id in ready if node_id > in_sync.refused), ready[0])


def out_of_sync(
    in_sync: InSync, followers: Iterable[Follower], log_end_offset: int, now_ms: int, max_lag_ms: int
) -> frozenset[int]:
    """Return the replicas that are to be put out; none while a proposal is open.

    Such a follower's log does not end where the leader's ends, and it has not caught up for more than `max_lag_ms`
    (replica.lag.time.max.ms).
    """
    if in_sync.is_pending:
        return frozenset()
    return frozenset(
        each.node_id
        for each in followers
        if each.node_id in in_sync.committed
        and each.log_end_offset != log_end_offset
        and now_ms - each.last_caught_up_ms > max_lag_ms
    )


def expand(in_sync: InSync, node_id: int) -> InSync:
    """Return the ISR with an open proposal to let `node_id` in."""
    assert not in_sync.is_pending and node_id not in in_sync.committed, (in_sync, node_id)
    return in_sync._replace(proposed=(*in_sync.committed, node_id))


def shrink(in_sync: InSync, node_ids: Collection[int]) -> InSync:
    """Return the ISR with an open proposal to put `node_ids` out."""
    assert not in_sync.is_pending and set(node_ids) < set(in_sync.committed), (in_sync, node_ids)
    return in_sync._replace(proposed=tuple(each for each in in_sync.committed if each not in node_ids))


def answered(in_sync: InSync, asked: Proposal, answer: Committed | ErrorCode) -> tuple[InSync, Next]:
    """Return the ISR after the answer to `asked`, and what comes next.

    An answer that names the partition epoch of the proposal is a success too: the change had been made already, and
    only its answer was lost (KAFKA-14144). One from an older state is not believed; an error that the controller of
    another epoch may have given never brings back the committed ISR (KAFKA-14154).
    """
    if in_sync.proposal != asked:
        return in_sync, Next.IGNORE
    if isinstance(answer, Committed):
        if answer.leader_epoch != in_sync.leader_epoch or answer.partition_epoch < in_sync.partition_epoch:
            return in_sync, Next.WAIT
        return led(answer.leader_epoch, answer.partition_epoch, answer.isr), Next.GO_ON
    if answer in _NOT_APPLIED:
        joining = frozenset(asked.isr).difference(in_sync.committed)
        return in_sync._replace(proposed=None, refused=min(joining, default=NOBODY)), Next.GO_ON
    return in_sync, Next.WAIT if answer in _STATE_UNKNOWN else Next.ASK_AGAIN


def learned(in_sync: InSync, told: Committed) -> InSync:
    """Return the ISR after the controller has told everybody the partition's state (UpdateMetadata).

    A state of the same leader epoch and a higher partition epoch is one that was committed for this leader. If the
    answer to its proposal was lost, the proposal is settled by this.
    """
    if told.leader_epoch != in_sync.leader_epoch or told.partition_epoch <= in_sync.partition_epoch:
        return in_sync
    return led(told.leader_epoch, told.partition_epoch, told.isr)
