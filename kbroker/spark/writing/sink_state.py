"""What an exactly-once stream keeps with the brokers, in offsets that groups have committed for its topic.

    kbroker-sink-QUERY                  transactional id of the driver: a newer driver of the query fences an older one
    kbroker-sink-QUERY-TASK-ATTEMPT     of what an attempt writes
    kbroker-sink-QUERY-task-TASK        group: batch id + 1, committed in the same transaction as the rows
    kbroker-sink-QUERY-decisions-BLOCK  group: batch id + 1, and which attempts' transactions are the batch

All for partition 0: brokers take offsets only of partitions that are there, and there may be fewer than tasks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kbroker.client.prepared_transaction import PreparedTransaction
from kbroker.spark.errors import SinkFailed

BLOCK = 128
"""Tasks of one group: what is kept of them fits into `offset.metadata.max.bytes`, 4096 where nobody has set it."""
FORM = 1


class Winner(NamedTuple):
    """A transaction that is prepared, of an attempt whose rows count."""

    attempt: int
    producer_id: int
    epoch: int
    version: int


Winners = Sequence[Winner | None]  # None: the task had no rows


def prefix(query_id: str) -> str:
    return f"kbroker-sink-{query_id}-"


def driver_id(query_id: str) -> str:
    return f"kbroker-sink-{query_id}"


def attempt_id(query_id: str, task: int, attempt: int) -> str:
    return f"{prefix(query_id)}{task}-{attempt}"


def task_group(query_id: str, task: int) -> str:
    return f"{prefix(query_id)}task-{task}"


def decision_group(query_id: str, block: int) -> str:
    return f"{prefix(query_id)}decisions-{block}"


def prepared(query_id: str, task: int, winner: Winner) -> PreparedTransaction:
    return PreparedTransaction(
        attempt_id(query_id, task, winner.attempt), winner.producer_id, winner.epoch, winner.version
    )


# --- as metadata of offsets -------------------------------------------------------------------------------


def block_texts(winners: Winners) -> list[str]:
    """One for each group: FORM, how many tasks the batch has, and each winner of the block."""
    return [
        " ".join([str(FORM), str(len(winners)), *map(_text, winners[first : first + BLOCK])])
        for first in range(0, max(len(winners), 1), BLOCK)
    ]


def read_block(text: str) -> tuple[int, list[Winner | None]]:
    """How many tasks the batch has, and the block's winners. SinkFailed: it is not of this version."""
    try:
        form, count, *entries = text.split()
        if int(form) != FORM:
            raise ValueError
        return int(count), [None if each == "-" else Winner(*map(int, each.split("."))) for each in entries]
    except (ValueError, TypeError):
        raise SinkFailed(f"what the query has kept with the brokers is not understood: {text!r}") from None


def digest(winners: Winners) -> str:
    """What tells one decision from another."""
    return hashlib.sha256("\n".join(block_texts(winners)).encode()).hexdigest()


def _text(winner: Winner | None) -> str:
    return "-" if winner is None else ".".join(map(str, winner))


# --- what the driver does with what tasks bring -----------------------------------------------------------


class Brought(NamedTuple):
    """Of one task. `skipped`: what was decided is committed. `instead_of`: digest of a decision that is lost."""

    winner: Winner | None
    skipped: bool = False
    instead_of: str | None = None


@dataclass(frozen=True)
class Settled:
    """`winners`: the decision; `is_news`: to be written. `losers`: transactions to be aborted, by task."""

    winners: tuple[Winner | None, ...]
    is_news: bool
    losers: Mapping[int, Winner]


def settle(decided: Winners | None, brought: Iterable[Brought]) -> Settled:
    """What is decided stays so, unless tasks have found that all of it is lost, and nobody has replaced it yet.

    Nothing is replaced by halves: rows may be in other tasks when a batch runs again.
    """
    found = list(brought)
    winners = tuple(each.winner for each in found)
    if decided is None:
        if any(each.skipped or each.instead_of for each in found):
            raise SinkFailed("tasks found that the batch was decided, and the driver finds that it was not")
        return Settled(winners, True, {})
    if all(each.instead_of == digest(decided) for each in found if each != Brought(None)):
        return Settled(winners, True, {})
    losers = {
        task: winner
        for task, winner in enumerate(winners)
        if winner is not None and (task >= len(decided) or decided[task] != winner)
    }
    return Settled(tuple(decided), False, losers)
