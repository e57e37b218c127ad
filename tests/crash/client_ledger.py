"""What clients were told and have read in a client round, and an obvious check of it.

All records that writers were told are stored are there, once, in order, and at the offsets they were told. Each group
has read all of them. OUT has the records of IN, once and in order. Each transaction is there as a whole, or not at all.
"""

from __future__ import annotations

import itertools
import threading
from collections import Counter, defaultdict
from dataclasses import dataclass, field

from kbroker.client import ClientError

IN, OUT = "in", "out"
PARTITIONS = 3
SHOWN = 20


def value_of(writer: str, number: int) -> bytes:
    """Return the value that a writer sends as record `number` of a partition."""
    return b"%s:%d:" % (writer.encode(), number) + b"x" * (number * 7 % 300)


@dataclass
class Moved:
    """A transaction of a mover."""

    name: str
    count: int
    is_committed: bool = False
    is_aborted: bool = False  #: before the commit was asked for

    def value_of(self, value: bytes | None) -> bytes:
        """Return the value that it makes of one it has read, with its own name in it."""
        return b"%s|%s" % (self.name.encode(), value)


@dataclass
class Ledger:
    """The ledger of one round. Any thread may note."""

    groups: list[str]
    sent: dict[str, list[int]] = field(default_factory=dict)  #: how many in each partition
    acknowledged: dict[tuple[int, int], bytes] = field(default_factory=dict)  #: by partition and offset
    read: dict[str, dict[tuple[int, int], bytes | None]] = field(default_factory=lambda: defaultdict(dict))
    moves: dict[str, Moved] = field(default_factory=dict)
    wrongs: list[str] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)  #: that passed, by what they were
    lock: threading.Lock = field(default_factory=threading.Lock)

    def wrong(self, what: str) -> None:
        with self.lock:
            self.wrongs.append(what)

    def passed(self, error: ClientError) -> None:
        with self.lock:
            self.failures[type(error).__name__] += 1

    def note_read(self, group: str, partition: int, offset: int, value: bytes | None) -> None:
        with self.lock:
            found = self.read[group].setdefault((partition, offset), value)
        if found != value:
            self.wrong(f"{group}: partition {partition}, offset {offset}: {found!r:.40} first, then {value!r:.40}")

    def begin_move(self, name: str, count: int) -> Moved:
        with self.lock:
            moved = self.moves[name] = Moved(name, count)
        return moved

    @property
    def count(self) -> int:
        """The number of records that were sent."""
        return sum(map(sum, self.sent.values()))

    def missing(self, group: str) -> int:
        """The number of records of IN that a group has not read, assuming that all are stored."""
        with self.lock:
            return self.count - len(self.read[group])


Stored = list[list[tuple[int, bytes]]]
"""The committed records of a topic: for each partition, offsets and values."""


def check(ledger: Ledger, stored_in: Stored, stored_out: Stored) -> list[str]:
    """Return what is wrong, including what clients have noted as wrong themselves."""
    wrong = [*ledger.wrongs, *check_stored(ledger, stored_in), *check_groups(ledger, stored_in)]
    wrong += [*check_moved(stored_in, stored_out), *check_transactions(ledger, stored_out)]
    return wrong[:SHOWN] + ([f"and {len(wrong) - SHOWN} more"] if len(wrong) > SHOWN else [])


def check_stored(ledger: Ledger, stored: Stored) -> list[str]:
    wrong = []
    for (partition, offset), value in ledger.acknowledged.items():
        if (offset, value) not in stored[partition][offset : offset + 1]:
            wrong.append(f"in-{partition}: {value!r:.20} was acknowledged at {offset} and is not there")
    for partition, records in enumerate(stored):
        numbers: dict[str, list[int]] = {writer: [] for writer in ledger.sent}
        for offset, value in records:
            writer, number, _ = value.split(b":")
            numbers[writer.decode()].append(int(number))
            if value != value_of(writer.decode(), int(number)):
                wrong.append(f"in-{partition}, offset {offset}: {value!r:.40} was never sent")
        for name, found in numbers.items():
            expected = ledger.sent[name][partition]
            if found != list(range(expected)):
                wrong.append(f"in-{partition}: of {name} there is {described(found, expected)}")
    return wrong


def described(found: list[int], expected: int) -> str:
    """Return a text that says how `found` differs from 0, 1, 2, ... `expected` - 1."""
    lost = sorted(set(range(expected)) - set(found))
    twice = sorted(number for number, count in Counter(found).items() if count > 1)
    late = [after for before, after in itertools.pairwise(found) if after < before]
    parts = [("lost", lost), ("more than once", twice), ("out of order", late)]
    return "; ".join(f"{what}: {len(which)} ({which[:5]}...)" for what, which in parts if which)


def check_groups(ledger: Ledger, stored: Stored) -> list[str]:
    wrong = []
    for group in ledger.groups:
        read = ledger.read[group]
        for partition, records in enumerate(stored):
            found = [(offset, read[partition, offset]) for offset, _ in records if (partition, offset) in read]
            if found != records:
                missing = [offset for offset, _ in records if (partition, offset) not in read]
                wrong.append(f"{group}: of in-{partition} {len(missing)} not read ({missing[:5]}...), or not as stored")
        strangers = read.keys() - {(index, offset) for index, each in enumerate(stored) for offset, _ in each}
        wrong += [f"{group}: read {each}, which is not there" for each in sorted(strangers)[:5]]
    return wrong


def check_moved(stored_in: Stored, stored_out: Stored) -> list[str]:
    wrong = []
    for partition, (before, after) in enumerate(zip(stored_in, stored_out, strict=True)):
        place = {value: index for index, (_, value) in enumerate(before)}
        found = [place[value.partition(b"|")[2]] for _, value in after]
        if found != list(range(len(before))):
            movers = defaultdict(list)
            for offset, value in after:
                movers[place[value.partition(b"|")[2]]].append(f"{value.partition(b'|')[0].decode()} at {offset}")
            twice = [f"{index} by {', '.join(by)}" for index, by in sorted(movers.items()) if len(by) > 1]
            what = described(found, len(before))
            wrong.append(f"out-{partition}: of in-{partition} there is {what}; {'; '.join(twice[:5])}")
    return wrong


def check_transactions(ledger: Ledger, stored_out: Stored) -> list[str]:
    found = Counter(value.partition(b"|")[0].decode() for records in stored_out for _, value in records)
    wrong = []
    for name, moved in ledger.moves.items():
        allowed = {0, moved.count} - ({0} if moved.is_committed else set())
        if found[name] not in (allowed if not moved.is_aborted else {0}):
            was = "committed" if moved.is_committed else "aborted" if moved.is_aborted else "in doubt"
            wrong.append(f"transaction {name}, {was}: {found[name]} of {moved.count} records are there")
    return wrong
