"""What must hold in every history. Each invariant is a function with a sentence; it yields a text for each breach.

What clients were promised is in `Ledger`: the records of a partition in their final order. It grows when a high
watermark moves over records for the first time, and nothing in it ever changes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kbroker.coordination.paths import PartitionRegistration
from kbroker.protocol.records import ControlType
from tests.simulation.stored import Stored


class Violation(AssertionError):
    """A promise is broken."""


@dataclass
class Ledger:
    """One partition of one topic (by its id), as far as it is committed."""

    name: str
    batches: list[Stored] = field(default_factory=list)
    by_base: dict[int, Stored] = field(default_factory=dict)
    end: int = 0
    """Everything below this offset is committed."""
    leaders: dict[int, int] = field(default_factory=dict)
    """Who led in an epoch."""
    where: dict[bytes, int] = field(default_factory=dict)
    """The offset of the first batch with a value."""
    sequences: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    """By producer id: epoch, base sequence and record count of its last batch."""
    decided: dict[int, ControlType] = field(default_factory=dict)
    """Base offset of a transactional batch -> how its transaction has ended."""
    open: dict[int, list[int]] = field(default_factory=dict)
    """Producer id -> base offsets of its batches that no marker has ended yet."""
    is_lossy: bool = False
    """Whether an unclean election was held: nothing is promised for its records any more."""
    start: int = 0
    """Records below this offset may be gone: a leader has started here."""
    asked_start: int = 0
    """Up to this offset somebody has asked for a deletion of records."""

    ends: list[tuple[int, int]] = field(default_factory=list)
    """(leader epoch, end of what was committed in it), ascending."""

    def commit(self, batch: Stored, leader_epoch: int) -> None:
        if self.ends and self.ends[-1][0] >= leader_epoch:
            self.ends[-1] = self.ends[-1][0], batch.last_offset + 1
        else:
            self.ends.append((leader_epoch, batch.last_offset + 1))
        self.batches.append(batch)
        self.by_base[batch.base_offset] = batch
        self.end = batch.last_offset + 1
        for value in batch.values:
            self.where.setdefault(value, batch.base_offset)
        if batch.control is not None:
            for base in self.open.pop(batch.producer_id, ()):
                self.decided[base] = batch.control
        elif batch.is_transactional:
            self.open.setdefault(batch.producer_id, []).append(batch.base_offset)

    def end_before(self, leader_epoch: int) -> int:
        """The end of what was committed in earlier epochs than this."""
        return max((end for epoch, end in self.ends if epoch < leader_epoch), default=0)

    def between(self, start: int, end: int) -> list[Stored]:
        return [batch for batch in self.batches if batch.last_offset >= start and batch.base_offset < end]


class Replica(NamedTuple):
    """What a broker has of a partition at a moment."""

    node_id: int
    leads: bool
    leader_epoch: int
    log_start: int
    log_end: int
    high_watermark: int


# --- replicas


def one_leader_in_each_epoch(ledger: Ledger, replica: Replica) -> Iterator[str]:
    """In one leader epoch of a partition at most one broker leads it."""
    other = ledger.leaders.setdefault(replica.leader_epoch, replica.node_id)
    if other != replica.node_id:
        yield f"brokers {other} and {replica.node_id} lead in epoch {replica.leader_epoch}"


def leader_has_everything(ledger: Ledger, replica: Replica) -> Iterator[str]:
    """Who begins to lead has every record that was committed in earlier epochs."""
    end = ledger.end_before(replica.leader_epoch)
    if replica.log_end < end:
        yield f"broker {replica.node_id} leads with {replica.log_end} as its log's end, {end} was committed before"


def high_watermark_never_back(before: Replica, now: Replica) -> Iterator[str]:
    """A leader's high watermark never goes back, nor beyond its log's end."""
    if before.leads and now.leads and now.high_watermark < before.high_watermark:
        yield f"that of broker {now.node_id} went back from {before.high_watermark} to {now.high_watermark}"
    if now.high_watermark > now.log_end:
        yield f"broker {now.node_id} has {now.high_watermark} as its high watermark, behind its log's end {now.log_end}"


def epoch_only_grows(before: Replica, now: Replica) -> Iterator[str]:
    """A broker's leader epoch of a partition never goes back while it lives and has a role."""
    if 0 <= now.leader_epoch < before.leader_epoch:
        yield f"broker {now.node_id} went from leader epoch {before.leader_epoch} to {now.leader_epoch}"


def equal_below_high_watermark(ledger: Ledger, node_id: int, batch: Stored) -> Iterator[str]:
    """Below their high watermarks all replicas have the same bytes, and they never change."""
    if batch.base_offset >= ledger.end:
        return
    committed = ledger.by_base.get(batch.base_offset)
    if committed != batch:
        yield f"broker {node_id} has {told(batch)}, committed was {told(committed)}"


def starts_where_somebody_asked_for(ledger: Ledger, replica: Replica) -> Iterator[str]:
    """No replica starts above the offset up to which somebody has asked for a deletion of records."""
    if replica.log_start > ledger.asked_start:
        yield f"broker {replica.node_id} starts at {replica.log_start}, asked for was {ledger.asked_start}"


def has_no_gap(replica: Replica, read_to: int, offset: int) -> Iterator[str]:
    """Below its high watermark a replica has a batch for each offset from its log's start on."""
    if offset > max(read_to, replica.log_start):
        yield f"broker {replica.node_id} has nothing from {max(read_to, replica.log_start)} to {offset - 1}"


def no_duplicates_and_in_order(ledger: Ledger, batch: Stored) -> Iterator[str]:
    """An idempotent producer's batches are committed once each and in the order in which they were sent."""
    if batch.base_offset != ledger.end and ledger.batches:
        yield f"after offset {ledger.end} comes {told(batch)}"
    if batch.producer_id < 0 or batch.control is not None:
        return
    last = ledger.sequences.get(batch.producer_id)
    count = len(batch.values)
    expected = 0
    if last is not None and last[0] == batch.producer_epoch:
        expected = last[1] + last[2]
    elif last is not None and last[0] > batch.producer_epoch:
        yield f"{told(batch)} comes after epoch {last[0]} of its producer"
    if batch.base_sequence != expected:
        yield f"{told(batch)} has sequence {batch.base_sequence}, expected {expected}"
    ledger.sequences[batch.producer_id] = (batch.producer_epoch, batch.base_sequence, count)


# --- clients


def acknowledged_is_committed(ledger: Ledger, offset: int, values: Sequence[bytes]) -> Iterator[str]:
    """What was acknowledged with acks=all is committed, at the offset that was told."""
    batch = ledger.by_base.get(offset)
    if batch is None or tuple(values) != batch.values:
        yield f"{values[0]!r} was acknowledged at {offset}, committed there is {told(batch)}"


def consumed_is_committed(ledger: Ledger, node_id: int, batch: Stored) -> Iterator[str]:
    """A consumer sees committed records only, which never go away."""
    if ledger.by_base.get(batch.base_offset) != batch:
        known = ledger.by_base.get(batch.base_offset)
        yield f"broker {node_id} gave a consumer {told(batch)}, committed is {told(known)}"


def committed_reads_are_exact(
    ledger: Ledger, node_id: int, start: int, end: int, seen: Sequence[Stored]
) -> Iterator[str]:
    """A consumer of committed records sees all records of committed transactions, and none of others."""
    wanted = []
    for batch in ledger.between(start, end):
        if batch.control is not None:
            continue
        if batch.is_transactional:
            outcome = ledger.decided.get(batch.base_offset)
            if outcome is None:
                yield f"broker {node_id} let a consumer pass {told(batch)}, whose transaction is open"
            if outcome is not ControlType.COMMIT:
                continue
        wanted.append(batch.base_offset)
    found = [batch.base_offset for batch in seen]
    if found != wanted:
        yield f"broker {node_id} gave {found} of {start} to {end}, committed are {wanted}"


# --- the tree


def epochs_of_state_only_grow(before: PartitionRegistration, now: PartitionRegistration) -> Iterator[str]:
    """Leader epoch and controller epoch of a partition's state never go back; a new leader has a new epoch."""
    if now.leader_epoch < before.leader_epoch or now.controller_epoch < before.controller_epoch:
        yield f"the state went back from {before} to {now}"
    if now.leader not in (before.leader, -1) and now.leader_epoch == before.leader_epoch:
        yield f"another leader in the same epoch: {before}, then {now}"


def controller_has_an_epoch_of_its_own(before: int, now: int) -> Iterator[str]:
    """Whoever is elected as the controller raises the controller epoch by that, so that it fences the one before."""
    if now <= before:
        yield f"a controller was elected in epoch {now}, as one before it"


def state_is_of_the_controller(now: PartitionRegistration, controller_epoch: int) -> Iterator[str]:
    """Only the controller of the newest epoch writes states."""
    if now.controller_epoch != controller_epoch:
        yield f"{now} is written in controller epoch {now.controller_epoch}; the newest is {controller_epoch}"


def controllers_write_in_their_own_epochs(is_of_the_controller: bool) -> Iterator[str]:
    """No two brokers write states in one controller epoch: only the one whose session was elected in it."""
    if not is_of_the_controller:
        yield "it is written by a broker that was not elected in this controller epoch"


def unclean_only_where_allowed(
    before: PartitionRegistration, now: PartitionRegistration, allowing: Collection[str]
) -> Iterator[str]:
    """A leader comes from the ISR, unless configs have allowed unclean elections."""
    if not allowing:
        yield f"an unclean election that nobody has allowed: {before}, then {now}"


def state_is_sound(
    before: PartitionRegistration | None, now: PartitionRegistration, replicas: Sequence[int]
) -> Iterator[str]:
    """The ISR has the leader, a replica at least, and nobody else joins it.

    It may have a replica for a moment that is being removed.
    """
    if not now.isr or len(set(now.isr)) != len(now.isr):
        yield f"no ISR: {now}"
    if now.leader >= 0 and now.leader not in now.isr:
        yield f"the leader is not in the ISR: {now}"
    joined = set(now.isr) - set(before.isr if before is not None else ())
    if replicas and (not joined <= set(replicas) or not set(now.isr) & set(replicas)):
        yield f"the ISR is not of the replicas {replicas}: {now}"


def new_member_has_everything(ledger: Ledger, replica: Replica) -> Iterator[str]:
    """A replica that is let into the ISR has every committed record."""
    if replica.log_end < ledger.end:
        yield f"broker {replica.node_id} is let into the ISR with {replica.log_end}, {ledger.end} was committed"


def producer_ids_are_new(blocks: Mapping[int, int], first: int, count: int) -> Iterator[str]:
    """No two producers get the same id."""
    for other, length in blocks.items():
        if first < other + length and other < first + count:
            yield f"ids {first} to {first + count - 1} were given out twice"


def told(batch: Stored | None) -> str:
    """A batch for people."""
    if batch is None:
        return "nothing"
    what = batch.control.name if batch.control is not None else ", ".join(value.decode() for value in batch.values)
    sent = f" of producer {batch.producer_id}/{batch.producer_epoch}" if batch.producer_id >= 0 else ""
    return f"{batch.base_offset}..{batch.last_offset} ({what}{sent}, epoch {batch.leader_epoch}, {batch.digest:08x})"
