"""What a producer raises, beside `client.errors`."""

from __future__ import annotations

from kbroker.client.errors import NO_SUCH_PARTITION, BrokerError, ClientClosed, ClientError
from kbroker.errors import ErrorCode


class QueueFull(ClientError, BufferError):
    """There was no room for the record within max.block.ms."""

    code = ErrorCode.REQUEST_TIMED_OUT
    retriable = True
    hint = "flush, send less at once, or raise buffer.memory"


class RecordTooLarge(ClientError, ValueError):
    """The record is larger than max.request.size, or than buffer.memory."""

    code = ErrorCode.MESSAGE_TOO_LARGE
    hint = "send less at once, or raise max.request.size; the topic's max.message.bytes has to allow it too"


class NoSuchPartition(ClientError, ValueError):
    """The topic has fewer partitions."""

    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    hint = NO_SUCH_PARTITION


class BrokerTooOld(BrokerError):
    """The broker does not have the version of an API that this needs. Nothing was asked of it."""

    code = ErrorCode.UNSUPPORTED_VERSION
    hint = (
        "before Kafka 2.5 consumers cannot be fenced by their generation: give ConsumerGroupMetadata(group_id) alone; "
        "and a transaction that has failed needs another producer"
    )


class TransactionAborted(ClientError):
    """The record was not sent, because its transaction was aborted before."""

    code = ErrorCode.TRANSACTION_ABORTABLE


class TransactionMustAbort(ClientError):
    """The transaction cannot be committed any more; its cause says why. The producer goes on after an abort."""

    code = ErrorCode.TRANSACTION_ABORTABLE
    hint = "call abort_transaction, then begin again"


class TransactionFailed(ClientError):
    """Nothing can be done with this producer any more; the cause says why. What it had open is aborted in time."""

    hint = "close this producer, and make another one"


class ProducerFenced(TransactionFailed):
    """Another producer with this transactional.id has begun, or the transaction has taken too long."""

    code = ErrorCode.PRODUCER_FENCED


REFUSALS: dict[str, type[ClientError]] = {
    "closed": ClientClosed,
    "queue_full": QueueFull,
    "too_large": RecordTooLarge,
    "no_partition": NoSuchPartition,
}
"""What RecordSender calls them."""
