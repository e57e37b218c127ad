"""Handlers around a producer's queue, as in Kafka 0.7 (CallbackHandler).

Records are encoded when they are put into the queue. So only `before_enqueue` can change or drop them; later methods
are told about batches. Every method is optional. An exception of `before_enqueue` is raised to the caller of `send`;
an exception of any other method is logged and changes nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

log = logging.getLogger("kbroker.client")


@dataclass(slots=True)
class QueuedRecord:
    """The arguments of a call of `send`."""

    topic: str
    value: Any = None
    key: Any = None
    headers: Any = None
    partition: int | None = None
    timestamp: int | None = None


class LeavingBatch(NamedTuple):
    """A batch that goes into a request. `size` is in bytes; `attempt` is 1 for the first one."""

    topic: str
    partition: int
    record_count: int
    size: int
    attempt: int


class ProducerHandler:
    """Sees the records and batches of a producer: make a subclass, override what is wanted, give it in `handlers`."""

    def started(self, producer: Any) -> None:
        """Called once with the Producer, before anything is sent."""

    def closing(self) -> None:
        """Called once, when everything sent is delivered or has failed and nothing more can be sent."""

    def before_enqueue(self, record: QueuedRecord) -> QueuedRecord | None:
        """Return the record to put into the queue, or None to drop it. Called on the thread that sends."""
        return record

    def after_enqueue(self, record: QueuedRecord, added: bool) -> None:
        """Called on the thread that sends. `added` is False when there was no room, or the record was refused."""

    def after_dequeue(self, batches: Sequence[LeavingBatch]) -> None:
        """Called on the producer's thread with the batches that leave the queue in one request."""

    def before_sending(self, batches: Sequence[LeavingBatch]) -> None:
        """Called on the producer's thread after `after_dequeue` of all handlers, just before the request is written."""


def call_before_enqueue(handlers: Sequence[ProducerHandler], record: QueuedRecord) -> QueuedRecord | None:
    """Return the record that the handlers' `before_enqueue` leave; None when one of them has dropped it."""
    left: QueuedRecord | None = record
    for handler in handlers:
        if left is not None:
            left = handler.before_enqueue(left)
    return left


def call_after_enqueue(handlers: Sequence[ProducerHandler], record: QueuedRecord, added: bool) -> None:
    """Call `after_enqueue` of every handler."""
    for handler in handlers:
        guarded(handler.after_enqueue, record, added)


def batch_caller(handlers: Sequence[ProducerHandler]) -> Callable[[list[tuple[str, int, int, int, int]]], None]:
    """Return the function that an engine calls with the batches of each request."""

    def call_handlers(batches: list[tuple[str, int, int, int, int]]) -> None:
        named = [LeavingBatch(*each) for each in batches]
        for handler in handlers:
            guarded(handler.after_dequeue, named)
        for handler in handlers:
            guarded(handler.before_sending, named)

    return call_handlers


def guarded(function: Callable[..., None], *arguments: Any) -> None:
    try:
        function(*arguments)
    except Exception:
        log.exception("a producer's handler failed")


def handlers(given: Any) -> tuple[ProducerHandler, ...]:
    """Parse the option handlers: one ProducerHandler, or a list of several. Raises ValueError for anything else."""
    found = (given,) if isinstance(given, ProducerHandler) else given
    if not isinstance(found, list | tuple) or not all(isinstance(each, ProducerHandler) for each in found):
        raise ValueError("ProducerHandler objects")
    return tuple(found)


def seeing_records(given: Sequence[ProducerHandler]) -> tuple[ProducerHandler, ...]:
    """Return the handlers that override a method called for each record. Other handlers do not slow `send` down."""
    return _overriding(given, "before_enqueue", "after_enqueue")


def seeing_batches(given: Sequence[ProducerHandler]) -> tuple[ProducerHandler, ...]:
    """Return the handlers that override a method which is called for each request."""
    return _overriding(given, "after_dequeue", "before_sending")


def _overriding(given: Sequence[ProducerHandler], *names: str) -> tuple[ProducerHandler, ...]:
    def has_own(handler: ProducerHandler, name: str) -> bool:
        method = getattr(handler, name)
        return getattr(method, "__func__", method) is not getattr(ProducerHandler, name)

    return tuple(each for each in given if any(has_own(each, name) for name in names))
