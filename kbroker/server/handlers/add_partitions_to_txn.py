"""AddPartitionsToTxn, key 24, versions 0 to 5: a producer is about to write to partitions in its transaction.

Leaves out: nothing.

v0  first
v1  as v0; the throttle is applied after the response
v2  PRODUCER_FENCED in place of INVALID_PRODUCER_EPOCH (KIP-588)
v3  flexible
v4  several transactions: sent by other brokers, which may also only ask whether partitions are in them (KIP-890)
v5  TRANSACTION_ABORTABLE (KIP-890)
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Container
from typing import TYPE_CHECKING

from kbroker.errors import ErrorCode
from kbroker.model import INTERNAL_TOPICS, TopicPartition
from kbroker.protocol import messages as M
from kbroker.rules.transaction import EPOCH_VERSION, FIRST_VERSION
from kbroker.server.handlers.shared.answering import answer
from kbroker.server.handlers.shared.producer_errors import for_version

if TYPE_CHECKING:
    from kbroker._core.server.request import Request
    from kbroker.server.handlers.shared.services import Services

FENCED_FROM = 2
SEVERAL_FROM = 4

_Response = M.AddPartitionsToTxnResponse
_CodeOf = Callable[[TopicPartition], ErrorCode]
_Topics = list[M.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic]
_Transaction = M.AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction


def handle(
    services: Services, request: Request, message: M.AddPartitionsToTxnRequest
) -> M.AddPartitionsToTxnResponse | None:
    """Answer the request once the partitions are in the transaction log: until then nothing may be written to them."""
    if request.api_version >= SEVERAL_FROM:
        return _several(services, request, message)
    partitions = _partitions(message.v3_and_below_topics)
    refused = _refused(services, partitions, INTERNAL_TOPICS)
    if refused:
        return _Response(results_by_topic_v3_and_below=_results(message.v3_and_below_topics, refused))

    def added(error: ErrorCode) -> None:
        error = for_version(error, request.api_version, FENCED_FROM)
        results = _results(message.v3_and_below_topics, lambda _: error)
        answer(request, _Response(results_by_topic_v3_and_below=results), error)

    services.transactions.add_when_ended(
        message.v3_and_below_transactional_id,
        message.v3_and_below_producer_id,
        message.v3_and_below_producer_epoch,
        partitions,
        added,
        FIRST_VERSION,
    )
    return None


def _several(
    services: Services, request: Request, message: M.AddPartitionsToTxnRequest
) -> M.AddPartitionsToTxnResponse | None:
    if not message.transactions:
        return _Response()
    results: list[M.AddPartitionsToTxnResponse.AddPartitionsToTxnResult] = []
    lock = threading.Lock()

    def came(wanted: _Transaction, code_of: _CodeOf) -> None:
        result = _Response.AddPartitionsToTxnResult(
            transactional_id=wanted.transactional_id, topic_results=_results(wanted.topics, code_of)
        )
        with lock:
            results.append(result)
            is_last = len(results) == len(message.transactions)
        if is_last:
            answer(request, _Response(results_by_transaction=results))

    for wanted in message.transactions:
        partitions = _partitions(wanted.topics)
        who = (wanted.transactional_id, wanted.producer_id, wanted.producer_epoch)
        refused = _refused(services, partitions)
        if refused:
            came(wanted, refused)
        elif wanted.verify_only:
            came(wanted, services.transactions.verify(*who, partitions).__getitem__)
        else:

            def added(error: ErrorCode, at: _Transaction = wanted) -> None:
                came(at, lambda _: error)

            services.transactions.add_partitions(*who, partitions, added, EPOCH_VERSION)
    return None


def _partitions(topics: _Topics) -> list[TopicPartition]:
    return [TopicPartition(topic.name, partition_id) for topic in topics for partition_id in topic.partitions]


def _refused(services: Services, partitions: list[TopicPartition], forbidden: Container[str] = ()) -> _CodeOf | None:
    """The error of each partition if one does not exist or belongs to a `forbidden` topic; None if all may be added."""
    image = services.cluster.image

    def code_of(each: TopicPartition) -> ErrorCode:
        if each.topic in forbidden:
            return ErrorCode.TOPIC_AUTHORIZATION_FAILED
        is_known = image.partition(each) is not None
        return ErrorCode.OPERATION_NOT_ATTEMPTED if is_known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    return code_of if any(code_of(each) is not ErrorCode.OPERATION_NOT_ATTEMPTED for each in partitions) else None


def _results(asked: _Topics, code_of: _CodeOf) -> list[M.AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult]:
    """The results; a partition that is asked for twice is answered twice, as in Kafka."""
    return [
        _Response.AddPartitionsToTxnTopicResult(
            name=topic.name,
            results_by_partition=[
                _Response.AddPartitionsToTxnPartitionResult(
                    partition_index=partition_id, partition_error_code=code_of(TopicPartition(topic.name, partition_id))
                )
                for partition_id in topic.partitions
            ],
        )
        for topic in asked
    ]
