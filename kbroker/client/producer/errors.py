"""Exceptions of the producer, in addition to `client.errors`."""

from __future__ import annotations

from kbroker.client.errors import NO_SUCH_PARTITION, BrokerError, ClientClosed, ClientError
from kbroker.errors import ErrorCode


class QueueFull(ClientError, BufferError):
    """Raised when the queue had no room for the record within max.block.ms (or queue.enqueue.timeout.ms)."""

    code = ErrorCode.REQUEST_TIMED_OUT
    retriable = True
    hint = "flush, send less at once, or raise buffer.memory"


class RecordTooLarge(ClientError, ValueError):
    """Raised when a record is larger than max.request.size or than buffer.memory."""

    code = ErrorCode.MESSAGE_TOO_LARGE
    hint = "send less at once, or raise max.request.size; the topic's max.message.bytes has to allow it too"


class NoSuchPartition(ClientError, ValueError):
    """Raised when the topic does not have the partition that was asked for, or when the topic's name is empty."""

    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    hint = NO_SUCH_PARTITION


class BrokerTooOld(BrokerError):
    """Raised when the broker does not serve the version of an API that the call needs. No request was sent."""

    code = ErrorCode.UNSUPPORTED_VERSION
    hint = (
        "before Kafka 2.5 consumers cannot be fenced by their generation: give ConsumerGroupMetadata(group_id) alone; "
        "and a transaction that has failed needs another producer"
    )


class TransactionAborted(ClientError):
    """The error of a record that was never sent because its transaction was aborted first.

    Also raised by a call of the transaction that an abort has overtaken.
    """

    code = ErrorCode.TRANSACTION_ABORTABLE


class TransactionMustAbort(ClientError):
    """Raised when the open transaction can only be aborted; `__cause__` says why.

    After the abort the producer can begin another transaction.
    """

    code = ErrorCode.TRANSACTION_ABORTABLE
    hint = "call abort_transaction, then begin again"


class TransactionFailed(ClientError):
    """Raised when a transactional producer cannot be used any more; `__cause__` says why.

    The broker aborts its open transaction when transaction.timeout.ms is over.
    """

    hint = "close this producer, and make another one"


class ProducerFenced(TransactionFailed):
    """Raised when another producer has begun with this transactional.id, or the transaction has taken too long."""

    code = ErrorCode.PRODUCER_FENCED


REFUSALS: dict[str, type[ClientError]] = {
    "closed": ClientClosed,
    "queue_full": QueueFull,
    "too_large": RecordTooLarge,
    "no_partition": NoSuchPartition,
}
"""The exception for each `kind` that RecordSender passes to `refused`."""
