"""What an exactly-once stream keeps on the brokers: transactional ids, and offsets that groups commit for its topic.

    kbroker-sink-QUERY                  transactional id of the driver: a newer driver of the query fences an older one
    kbroker-sink-QUERY-TASK-ATTEMPT     transactional id of an attempt of a task
    kbroker-sink-QUERY-task-TASK        group: batch id + 1, committed in the same transaction as the rows
    kbroker-sink-QUERY-decisions-BLOCK  group: batch id + 1, and which attempts' transactions are the batch

All groups commit for partition 0: brokers take offsets only of partitions that exist, and there may be fewer of these
than tasks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kbroker.client.prepared_transaction import PreparedTransaction
from kbroker.spark.errors import SinkFailed

BLOCK = 128
"""Tasks of one decisions group. What is kept of so many fits into `offset.metadata.max.bytes`, by default 4096."""
FORM = 1


class Winner(NamedTuple):
    """The prepared transaction of an attempt whose rows count."""

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
    """Return the metadata for each decisions group: FORM, how many tasks the batch has, and the block's winners."""
    return [
        " ".join([str(FORM), str(len(winners)), *map(_text, winners[first : first + BLOCK])])
        for first in range(0, max(len(winners), 1), BLOCK)
    ]


def read_block(text: str) -> tuple[int, list[Winner | None]]:
    """Return how many tasks the batch has, and the block's winners.

    Raises SinkFailed when the text is not of this version.
    """
    try:
        form, count, *entries = text.split()
        if int(form) != FORM:
            raise ValueError
        return int(count), [None if each == "-" else Winner(*map(int, each.split("."))) for each in entries]
    except (ValueError, TypeError):
        raise SinkFailed(f"what the query has kept with the brokers is not understood: {text!r}") from None


def digest(winners: Winners) -> str:
    """Return a digest of a decision, by which decisions are told apart."""
    return hashlib.sha256("\n".join(block_texts(winners)).encode()).hexdigest()


def _text(winner: Winner | None) -> str:
    return "-" if winner is None else ".".join(map(str, winner))


# --- what the driver does with what tasks bring -----------------------------------------------------------


class Brought(NamedTuple):
    """What one task reports to the driver.

    `winner`: the transaction with its rows; None if it has written none.

    `skipped`: it wrote nothing because what was decided before is committed.

    `instead_of`: the digest of a decision that is lost, which these rows replace.
    """

    winner: Winner | None
    skipped: bool = False
    instead_of: str | None = None


@dataclass(frozen=True)
class Settled:
    """The decision on a batch (`winners`), whether it has yet to be written, and transactions to abort, by task."""

    winners: tuple[Winner | None, ...]
    is_news: bool
    losers: Mapping[int, Winner]


def settle(decided: Winners | None, brought: Iterable[Brought]) -> Settled:
    """Decide which transactions are the batch, from an earlier decision, if any, and what the tasks brought.

    An earlier decision stays, unless tasks have found that all of it is lost and nobody has replaced it yet. It is
    never replaced in part: rows may be in other tasks when a batch runs again. Raises SinkFailed when tasks have seen
    a decision and the driver sees none.
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
