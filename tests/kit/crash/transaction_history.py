"""A checker of transactions: what the clients of one run asked for and were told, and the anomalies in it.

After the manner of Jepsen's tests of Kafka: every value is sent once, so each read of it names the transaction it
belongs to. `anomalies(history)` is pure and has one function per kind in `KINDS`. Times are of one monotonic clock that
all clients of the run share (CLOCK_MONOTONIC, nanoseconds).

What Kafka does not promise is not an anomaly: concurrent transactions may interleave their writes (cycles of writes
alone, G0), and some partitions of a transaction may be readable before others.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from itertools import pairwise

Place = tuple[str, int]
"""Topic and partition."""


class Outcome(Enum):
    COMMITTED = "committed"
    ABORTED = "aborted"
    """The client was told so, or it never asked for a commit."""
    UNKNOWN = "unknown"


@dataclass(eq=False)
class Sent:
    """A value that was sent, and what its producer was told about it."""

    place: Place
    value: str
    asked: int
    told: int | None = None
    offset: int | None = None


@dataclass(eq=False)
class Transaction:
    """A producer's transaction. Each value of a producer without transactions counts as a transaction."""

    name: str
    client: str
    """The name of a producer in one life: it has one transaction after the other."""
    sent: list[Sent] = field(default_factory=list)
    outcome: Outcome = Outcome.UNKNOWN
    commit_asked: int | None = None
    told: int | None = None
    group: str | None = None
    consumed: list[tuple[Place, int, str]] = field(default_factory=list)
    """The records that the transaction was made of: place, offset, value."""
    offsets: dict[Place, int] = field(default_factory=dict)
    """The offsets of the group that were sent with the transaction."""


@dataclass(eq=False)
class Poll:
    """What one poll has returned, in order."""

    client: str
    stretch: int
    """Polls with the same number go on where the one before ended. An assignment or a seek begins a new stretch."""
    began: int
    ended: int
    records: list[tuple[Place, int, str]]
    is_committed: bool = True
    """Whether the consumer is read_committed."""


@dataclass(eq=False)
class OffsetRead:
    """The offset that a group was told to have committed, after waiting for undecided ones; -1 for none."""

    group: str
    place: Place
    offset: int
    began: int
    ended: int


@dataclass
class History:
    transactions: list[Transaction] = field(default_factory=list)
    polls: list[Poll] = field(default_factory=list)
    offset_reads: list[OffsetRead] = field(default_factory=list)
    read_to_end: set[Place] = field(default_factory=set)
    """Places that read_committed polls have read up to the end after the run."""
    undecided: dict[Place, tuple[int, int]] = field(default_factory=dict)
    """Last stable offset and high watermark of places where they still differ after all transactions have timed out."""
    unheard: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    """group -> times of beginning and end, within which a Kafka that took itself for its coordinator may have been
    replaced without hearing of it."""


@dataclass(frozen=True)
class Anomaly:
    kind: str
    what: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.what}"


class Facts:
    """A history with the questions that several checks ask."""

    def __init__(self, history: History):
        self.history = history
        self.owner: dict[str, tuple[Transaction, Sent]] = {
            sent.value: (transaction, sent) for transaction in history.transactions for sent in transaction.sent
        }

    @cached_property
    def committed_polls(self) -> list[Poll]:
        return [poll for poll in self.history.polls if poll.is_committed]

    @cached_property
    def seen(self) -> dict[str, list[tuple[Poll, Place, int]]]:
        """value -> its reads by read_committed consumers."""
        found: dict[str, list[tuple[Poll, Place, int]]] = defaultdict(list)
        for poll in self.committed_polls:
            for place, offset, value in poll.records:
                found[value].append((poll, place, offset))
        return found

    @cached_property
    def passed(self) -> dict[Place, float]:
        """place -> the offset that read_committed consumers have reached."""
        found: dict[Place, float] = dict.fromkeys(self.history.read_to_end, float("inf"))
        for poll in self.committed_polls:
            for place, offset, _ in poll.records:
                found[place] = max(found.get(place, -1), offset)
        return found

    @cached_property
    def placed(self) -> dict[Place, list[tuple[int, str]]]:
        """place -> (offset, value) of all values that were read or acknowledged, ascending."""
        found: dict[Place, set[tuple[int, str]]] = defaultdict(set)
        for poll in self.history.polls:
            for place, offset, value in poll.records:
                found[place].add((offset, value))
        for _, sent in self.owner.values():
            if sent.offset is not None:
                found[sent.place].add((sent.offset, sent.value))
        return {place: sorted(rows) for place, rows in found.items()}

    def was_passed(self, sent: Sent) -> bool:
        """Whether a read_committed consumer has read beyond the place of this value."""
        if sent.place in self.history.read_to_end:
            return True
        return sent.offset is not None and sent.offset < self.passed.get(sent.place, -1)

    @cached_property
    def outcomes(self) -> dict[Transaction, Outcome]:
        return {transaction: self._outcome(transaction) for transaction in self.history.transactions}

    def _outcome(self, transaction: Transaction) -> Outcome:
        """The end that a transaction must have had: committed if a value was seen, aborted if all are missing."""
        if transaction.outcome is not Outcome.UNKNOWN or not transaction.sent:
            return transaction.outcome
        if any(sent.value in self.seen for sent in transaction.sent):
            return Outcome.COMMITTED
        if all(self.was_passed(sent) for sent in transaction.sent):
            return Outcome.ABORTED
        return Outcome.UNKNOWN

    def may_have_committed(self, group: str, place: Place) -> Iterator[Transaction]:
        """The transactions whose committed offset for a place was kept, or may have been."""
        for transaction in self.history.transactions:
            is_of_group = transaction.group == group and place in transaction.offsets
            if is_of_group and self.outcomes[transaction] is not Outcome.ABORTED:
                yield transaction


def at(place: Place, offset: int | None = None) -> str:
    return f"{place[0]}-{place[1]}" + ("" if offset is None else f" at {offset}")


def lost_writes(facts: Facts) -> Iterator[str]:
    """A committed value is missing for a consumer that has read beyond its place."""
    for transaction, sent in facts.owner.values():
        if transaction.outcome is Outcome.COMMITTED and sent.value not in facts.seen and facts.was_passed(sent):
            yield f"{sent.value} of {transaction.name}, committed, is not in {at(sent.place, sent.offset)}"


def torn_transactions(facts: Facts) -> Iterator[str]:
    """A transaction whose end nobody was told is seen in parts: a dirty read across partitions."""
    for transaction in facts.history.transactions:
        if transaction.outcome is not Outcome.UNKNOWN or facts.outcomes[transaction] is not Outcome.COMMITTED:
            continue
        missing = [sent for sent in transaction.sent if sent.value not in facts.seen and facts.was_passed(sent)]
        if missing:
            there = [sent.value for sent in transaction.sent if sent.value in facts.seen]
            places = ", ".join(f"{sent.value} in {at(sent.place, sent.offset)}" for sent in missing)
            yield f"of {transaction.name} {there} are seen, but not {places}"


def aborted_reads(facts: Facts) -> Iterator[str]:
    """G1a: a value of an aborted transaction was read."""
    for value, reads in facts.seen.items():
        if value in facts.owner and facts.owner[value][0].outcome is Outcome.ABORTED:
            poll, place, offset = reads[0]
            yield f"{poll.client} read {value} of {facts.owner[value][0].name}, aborted, in {at(place, offset)}"


def intermediate_reads(facts: Facts) -> Iterator[str]:
    """G1b: a value was read before its producer asked for the commit."""
    for value, reads in facts.seen.items():
        if value not in facts.owner:
            continue
        transaction = facts.owner[value][0]
        for poll, place, offset in reads:
            if transaction.commit_asked is not None and poll.ended < transaction.commit_asked:
                early_ms = (transaction.commit_asked - poll.ended) / 1e6
                yield f"{poll.client} read {value} in {at(place, offset)} {early_ms:.3f} ms before its commit"
                break


def foreign_values(facts: Facts) -> Iterator[str]:
    """A value that nobody sent, or sent elsewhere."""
    for poll in facts.history.polls:
        for place, offset, value in poll.records:
            if value not in facts.owner or facts.owner[value][1].place != place:
                yield f"{poll.client} read {value} in {at(place, offset)}, where nobody sent it"


def duplicates(facts: Facts) -> Iterator[str]:
    """One value has several offsets."""
    offsets: dict[str, set[tuple[Place, int]]] = defaultdict(set)
    for place, rows in facts.placed.items():
        for offset, value in rows:
            offsets[value].add((place, offset))
    for value, found in offsets.items():
        if len(found) > 1:
            yield f"{value} is in {', '.join(at(*one) for one in sorted(found))}"


def inconsistent_offsets(facts: Facts) -> Iterator[str]:
    """One offset has several values."""
    for place, rows in facts.placed.items():
        for (offset, value), (following, other) in pairwise(rows):
            if offset == following:
                yield f"{at(place, offset)} is {value} and {other}"


def reordered_writes(facts: Facts) -> Iterator[str]:
    """What one producer sent in one order was read in another."""
    sequence: dict[tuple[str, Place], list[str]] = defaultdict(list)
    for transaction, sent in sorted(facts.owner.values(), key=lambda one: one[1].asked):
        if sent.value in facts.seen:
            sequence[transaction.client, sent.place].append(sent.value)
    for (client, place), values in sequence.items():
        for value, following in pairwise(values):
            if facts.seen[value][0][2] > facts.seen[following][0][2]:
                yield f"{client} sent {value} before {following}, which comes first in {at(place)}"


def nonmonotonic_sends(facts: Facts) -> Iterator[str]:
    """A producer was told offsets that go back."""
    told: dict[tuple[str, Place], Sent] = {}
    for transaction, sent in sorted(facts.owner.values(), key=lambda one: one[1].asked):
        if sent.offset is None:
            continue
        before = told.get((transaction.client, sent.place))
        if before is not None and before.offset is not None and sent.offset <= before.offset:
            yield f"{sent.value} got {at(sent.place, sent.offset)} after {before.value} got {before.offset}"
        told[transaction.client, sent.place] = sent


def nonmonotonic_polls(facts: Facts) -> Iterator[str]:
    """A consumer's polls go back in a partition without a seek."""
    for place, before, read in _steps(facts):
        if read[0] <= before[0]:
            yield f"{read[2].client} read {at(place, read[0])} ({read[1]}) after {before[0]} ({before[1]})"


def skipped_records(facts: Facts) -> Iterator[str]:
    """A consumer passes over a record that it should have read."""
    offsets = {place: [offset for offset, _ in rows] for place, rows in facts.placed.items()}
    for place, before, read in _steps(facts):
        rows = facts.placed[place]
        for _, value in rows[bisect_right(offsets[place], before[0]) : bisect_left(offsets[place], read[0])]:
            if (
                value in facts.seen
                and value in facts.owner
                and facts.outcomes[facts.owner[value][0]] is Outcome.COMMITTED
            ):
                yield f"{read[2].client} went from {at(place, before[0])} to {read[0]}, over {value}"


def _steps(facts: Facts) -> Iterator[tuple[Place, tuple[int, str, Poll], tuple[int, str, Poll]]]:
    """Yield successive reads of one consumer in one place, as pairs: offset, value and poll of each."""
    last: dict[tuple[str, int, Place], tuple[int, str, Poll]] = {}
    for poll in facts.history.polls:
        for place, offset, value in poll.records:
            before = last.get((poll.client, poll.stretch, place))
            if before is not None:
                yield place, before, (offset, value, poll)
            last[poll.client, poll.stretch, place] = (offset, value, poll)


def write_cycles(facts: Facts) -> Iterator[str]:
    """G0, as far as time decides it: a value lies before one that was acknowledged before it was sent."""
    for place, rows in facts.placed.items():
        latest: Sent | None = None
        for _, value in rows:
            if value not in facts.owner:
                continue
            sent = facts.owner[value][1]
            if latest is not None and sent.told is not None and latest.asked > sent.told:
                yield f"{latest.value} was sent after {sent.value} was acknowledged and lies before it in {at(place)}"
            if latest is None or sent.asked > latest.asked:
                latest = sent


def circular_reads(facts: Facts) -> Iterator[str]:
    """G1c: transactions that were made of each other's values."""
    made_of: dict[str, set[str]] = {
        transaction.name: {facts.owner[value][0].name for _, _, value in transaction.consumed if value in facts.owner}
        for transaction in facts.history.transactions
        if facts.outcomes[transaction] is not Outcome.ABORTED
    }
    # Drop nodes that are on no cycle, until only cycles are left.
    while True:
        needed = set().union(*(sources & made_of.keys() for sources in made_of.values()))
        left = {name: sources & made_of.keys() for name, sources in made_of.items() if name in needed}
        left = {name: sources for name, sources in left.items() if sources & left.keys()}
        if len(left) == len(made_of):
            break
        made_of = left
    if made_of:
        yield f"made of each other's values: {', '.join(sorted(made_of))}"


def doubled_inputs(facts: Facts) -> Iterator[str]:
    """One record was the input of two committed transactions of a group."""
    first: dict[tuple[str, Place, int], Transaction] = {}
    for transaction in facts.history.transactions:
        if transaction.group is None or facts.outcomes[transaction] is not Outcome.COMMITTED:
            continue
        for place, offset, value in transaction.consumed:
            other = first.setdefault((transaction.group, place, offset), transaction)
            if other is not transaction:
                yield f"{value} in {at(place, offset)} went into {other.name} and into {transaction.name}"


def missed_inputs(facts: Facts) -> Iterator[str]:
    """A group's offset has passed a record that was the input of none of its committed transactions."""
    ends: dict[tuple[str, Place], int] = {}
    used: set[tuple[str, Place, int]] = set()
    for transaction in facts.history.transactions:
        if transaction.group is None or facts.outcomes[transaction] is Outcome.ABORTED:
            continue
        used |= {(transaction.group, place, offset) for place, offset, _ in transaction.consumed}
        if facts.outcomes[transaction] is Outcome.COMMITTED:
            for place, offset in transaction.offsets.items():
                ends[transaction.group, place] = max(ends.get((transaction.group, place), 0), offset)
    readable = {
        (place, offset): value
        for value, reads in facts.seen.items()
        for _, place, offset in reads
        if value in facts.owner and facts.outcomes[facts.owner[value][0]] is Outcome.COMMITTED
    }
    for (place, offset), value in readable.items():
        for (group, of), end in ends.items():
            if of == place and offset < end and (group, place, offset) not in used:
                yield f"{value} in {at(place, offset)} went into no transaction of {group}, which committed {end}"


def aborted_offsets(facts: Facts) -> Iterator[str]:
    """A group was told an offset that none of its transactions may have committed."""
    for read in facts.history.offset_reads:
        kept = facts.may_have_committed(read.group, read.place)
        if read.offset >= 0 and read.offset not in {transaction.offsets[read.place] for transaction in kept}:
            yield f"{read.group} was told {at(read.place, read.offset)}, which nobody committed"


def intermediate_offsets(facts: Facts) -> Iterator[str]:
    """A group was told an offset before the commit of its transaction was asked for."""
    for read in facts.history.offset_reads:
        of_place = facts.may_have_committed(read.group, read.place)
        kept = [one for one in of_place if one.offsets[read.place] == read.offset]
        if kept and all(one.commit_asked is not None and read.ended < one.commit_asked for one in kept):
            yield f"{read.group} was told {at(read.place, read.offset)} before the commit of {kept[0].name}"


def lost_offsets(facts: Facts) -> Iterator[str]:
    """A group was told an older offset than one whose commit was already acknowledged.

    A coordinator of Apache Kafka's that has not heard that it was replaced tells what it had till then."""
    for read in facts.history.offset_reads:
        unheard = facts.history.unheard.get(read.group, ())
        if any(began <= read.ended and read.began <= ended for began, ended in unheard):
            continue
        for transaction in facts.may_have_committed(read.group, read.place):
            is_told = transaction.outcome is Outcome.COMMITTED and transaction.told is not None
            if is_told and (transaction.told or 0) < read.began and transaction.offsets[read.place] > read.offset:
                told = transaction.offsets[read.place]
                yield f"{read.group} was told {at(read.place, read.offset)} after {transaction.name} committed {told}"


def hanging_transactions(facts: Facts) -> Iterator[str]:
    """A partition stays undecided after all transactions must have timed out."""
    for place, (stable, end) in facts.history.undecided.items():
        yield f"{at(place)}: last stable offset {stable}, high watermark {end}"


KINDS: dict[str, Callable[[Facts], Iterator[str]]] = {
    "lost write": lost_writes,
    "torn transaction": torn_transactions,
    "aborted read (G1a)": aborted_reads,
    "intermediate read (G1b)": intermediate_reads,
    "foreign value": foreign_values,
    "duplicate": duplicates,
    "inconsistent offset": inconsistent_offsets,
    "reordering": reordered_writes,
    "non-monotonic send": nonmonotonic_sends,
    "non-monotonic poll": nonmonotonic_polls,
    "skipped record": skipped_records,
    "write cycle (G0)": write_cycles,
    "circular reads (G1c)": circular_reads,
    "doubled input": doubled_inputs,
    "missed input": missed_inputs,
    "aborted offset": aborted_offsets,
    "intermediate offset": intermediate_offsets,
    "lost offset": lost_offsets,
    "hanging transaction": hanging_transactions,
}


def anomalies(history: History) -> list[Anomaly]:
    """Return all anomalies of a history, by kind."""
    facts = Facts(history)
    return [Anomaly(kind, what) for kind, found in KINDS.items() for what in found(facts)]
