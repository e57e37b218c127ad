"""The journal in which a client of the transaction rounds notes its steps, so that a kill loses none, and its reader.

One line of JSON per step, appended with one write each: before anything is asked, and after it was told. `step` is the
name of a method of `Reader`, `at` the time, the rest are that method's arguments; a commit that no `end` follows is in
doubt. `Journal` writes for clients in Python, tests/crash/java/TransactionClients.java for itself.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.kit.crash.transaction_history import History, OffsetRead, Outcome, Place, Poll, Sent, Transaction


class Journal:
    """The journal of one process; threads may share it."""

    def __init__(self, path: Path):
        self.descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(self, step: str, **fields: Any) -> None:
        line = json.dumps({"step": step, "at": time.monotonic_ns(), **fields}, separators=(",", ":")) + "\n"
        os.write(self.descriptor, line.encode())


def read_journals(paths: Iterable[Path]) -> History:
    """Return the history that the journals of one run's clients tell."""
    reader = Reader()
    for path in sorted(paths):
        for line in path.read_text().splitlines(keepends=True):
            if line.endswith("\n"):  # a kill may leave half a line
                step = json.loads(line)
                getattr(reader, step.pop("step"))(**step)
    reader.history.polls.sort(key=lambda poll: poll.ended)
    return reader.history


class Reader:
    """Adds steps to a history, one after the other. It has a method for each kind of step."""

    def __init__(self) -> None:
        self.history = History()
        self.transactions: dict[str, Transaction] = {}
        self.all_sent: dict[str, Sent] = {}

    def begin(self, at: int, transaction: str, client: str) -> None:
        # Nothing of a transaction may be read before its client has asked for the commit.
        begun = Transaction(transaction, client, outcome=Outcome.ABORTED)
        self.transactions[transaction] = begun
        self.history.transactions.append(begun)

    def send(self, at: int, transaction: str, place: list[Any], value: str) -> None:
        sent = self.all_sent[value] = Sent((place[0], place[1]), value, at)
        self.transactions[transaction].sent.append(sent)

    def sent(self, at: int, value: str, offset: int) -> None:
        self.all_sent[value].told, self.all_sent[value].offset = at, offset

    def use(self, at: int, transaction: str, group: str, records: list[list[Any]], offsets: list[list[Any]]) -> None:
        one = self.transactions[transaction]
        one.group, one.consumed = group, rows(records)
        one.offsets = {(topic, partition): offset for topic, partition, offset in offsets}

    def commit(self, at: int, transaction: str) -> None:
        one = self.transactions[transaction]
        one.commit_asked, one.outcome = at, Outcome.UNKNOWN

    def end(self, at: int, transaction: str, outcome: str) -> None:
        one = self.transactions[transaction]
        one.told, one.outcome = at, Outcome(outcome)

    def poll(
        self, at: int, client: str, stretch: int, began: int, records: list[list[Any]], is_committed: bool
    ) -> None:
        self.history.polls.append(Poll(client, stretch, began, at, rows(records), is_committed))

    def offset(self, at: int, group: str, place: list[Any], offset: int, began: int) -> None:
        self.history.offset_reads.append(OffsetRead(group, (place[0], place[1]), offset, began, at))

    def note(self, **what: Any) -> None:
        """Take a note, which is only for people who look into what went wrong."""


def rows(records: list[list[Any]]) -> list[tuple[Place, int, str]]:
    return [((topic, partition), offset, value) for topic, partition, offset, value in records]
