"""Handlers around a producer's queue, as the producers of Kafka 0.7 had them (CallbackHandler).

Records are encoded when they are put into the queue: `before_enqueue` is where they can be changed or dropped, what
comes later is told of batches. Every method is optional; one that raises is logged and changes nothing, but for
`before_enqueue`, whose exception is the caller's.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from kbroker.client.producer.producer import Producer

log = logging.getLogger("kbroker.client")


@dataclass(slots=True)
class QueuedRecord:
    """What a call of `send` was given."""

    topic: str
    value: Any = None
    key: Any = None
    headers: Any = None
    partition: int | None = None
    timestamp: int | None = None


class LeavingBatch(NamedTuple):
    """A batch that goes into a request; `attempt` 1 is the first."""

    topic: str
    partition: int
    record_count: int
    size: int
    attempt: int


class ProducerHandler:
    """A base class; override what is wanted."""

    def started(self, producer: Producer) -> None:
        """Once, before anything is sent."""

    def closing(self) -> None:
        """Once, when what was sent is delivered, or has failed, and nothing is sent any more."""

    def before_enqueue(self, record: QueuedRecord) -> QueuedRecord | None:
        """On the caller's thread. The record to put into the queue, or None to drop it."""
        return record

    def after_enqueue(self, record: QueuedRecord, added: bool) -> None:
        """On the caller's thread. `added` False: there was no room, or it was refused."""

    def after_dequeue(self, batches: Sequence[LeavingBatch]) -> None:
        """On the producer's thread: these leave the queue with one request."""

    def before_sending(self, batches: Sequence[LeavingBatch]) -> None:
        """On the producer's thread, behind `after_dequeue` of every handler and right before the request is written."""


def entering(handlers: Sequence[ProducerHandler], record: QueuedRecord) -> QueuedRecord | None:
    """What they make of a record that is to be put into the queue; None: one has dropped it."""
    left: QueuedRecord | None = record
    for handler in handlers:
        if left is not None:
            left = handler.before_enqueue(left)
    return left


def entered(handlers: Sequence[ProducerHandler], record: QueuedRecord, added: bool) -> None:
    """It has been put there, or could not be."""
    for handler in handlers:
        guarded(handler.after_enqueue, record, added)


def leaving(handlers: Sequence[ProducerHandler]) -> Callable[[list[tuple[str, int, int, int, int]]], None]:
    """What an engine calls with the batches of a request."""

    def told(batches: list[tuple[str, int, int, int, int]]) -> None:
        named = [LeavingBatch(*each) for each in batches]
        for handler in handlers:
            guarded(handler.after_dequeue, named)
        for handler in handlers:
            guarded(handler.before_sending, named)

    return told


def guarded(function: Callable[..., None], *arguments: Any) -> None:
    try:
        function(*arguments)
    except Exception:
        log.exception("a producer's handler failed")


def handlers(given: Any) -> tuple[ProducerHandler, ...]:
    """One ProducerHandler, or several."""
    found = (given,) if isinstance(given, ProducerHandler) else given
    if not isinstance(found, list | tuple) or not all(isinstance(each, ProducerHandler) for each in found):
        raise ValueError("ProducerHandler objects")
    return tuple(found)


def seeing_records(given: Sequence[ProducerHandler]) -> tuple[ProducerHandler, ...]:
    """Those that want to see each record: the others cost nothing where records are sent."""
    return _overriding(given, "before_enqueue", "after_enqueue")


def seeing_batches(given: Sequence[ProducerHandler]) -> tuple[ProducerHandler, ...]:
    return _overriding(given, "after_dequeue", "before_sending")


def _overriding(given: Sequence[ProducerHandler], *names: str) -> tuple[ProducerHandler, ...]:
    def has_own(handler: ProducerHandler, name: str) -> bool:
        method = getattr(handler, name)
        return getattr(method, "__func__", method) is not getattr(ProducerHandler, name)

    return tuple(each for each in given if any(has_own(each, name) for name in names))
