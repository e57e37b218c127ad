"""WriteTxnMarkers, key 27, versions 0 to 2: write the markers that end transactions in partitions of this broker.

The coordinator on another broker sends it, or an operator who ends a hanging transaction (KIP-664).
Leaves out: nothing.

v0  first
v1  flexible
v2  the transaction version of each marker: with 2 its epoch is newer than that of its transaction (KIP-1228)
"""

from __future__ import annotations

import struct
import threading
from functools import partial
from typing import TYPE_CHECKING

from kbroker.errors import ErrorCode
from kbroker.model import TopicPartition, number_of
from kbroker.protocol import messages as M
from kbroker.server.handlers.shared.answering import answer
from kbroker.transactions.markers import Marker

if TYPE_CHECKING:
    from kbroker._core.server.request import Request
    from kbroker.server.handlers.shared.services import Services

_Response = M.WriteTxnMarkersResponse

PRODUCER_ID_SIZE = 8

KNOWN_TO_SENDERS = frozenset(
    (
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.TRANSACTION_COORDINATOR_FENCED,
    )
)
"""The outcomes that Kafka's coordinator expects. Any other ends its work for the transaction, so the sender is told
NOT_LEADER_OR_FOLLOWER, after which it tries again."""

_Codes = dict[bytes, ErrorCode]
"""The error code of each marker in each partition. The key is all fields of the marker and the partition as bytes: see
`number_key` for why, and bytes take little memory."""

_numbers = struct.Struct(">qhi?bi")
"""Producer id and epoch, coordinator epoch, result, transaction version, partition id. In a key the topic's name
follows."""


def handle(services: Services, request: Request, message: M.WriteTxnMarkersRequest) -> M.WriteTxnMarkersResponse | None:
    """Answer the request once all markers are as durable as acks=all promises."""
    codes: _Codes = {}
    for each in message.markers:
        said = (
            each.producer_id, each.producer_epoch, each.coordinator_epoch, each.transaction_result,
            each.transaction_version,
        )  # fmt: skip
        for topic in each.topics:
            name = topic.name.encode()
            for partition_id in topic.partition_indexes:
                codes[_numbers.pack(*said, partition_id) + name] = ErrorCode.NONE
    if not codes:
        return _response(codes)
    lock = threading.Lock()
    outstanding = len(codes)

    def done(key: bytes, error: ErrorCode) -> None:
        nonlocal outstanding
        with lock:
            codes[key] = error if error in KNOWN_TO_SENDERS else ErrorCode.NOT_LEADER_OR_FOLLOWER
            outstanding -= 1
            is_last = outstanding == 0
        if is_last:
            answer(request, _response(codes))

    for key in codes:  # `done` changes values only, never keys, so the loop may go on meanwhile
        *of_marker, partition_id = _numbers.unpack_from(key)
        at = TopicPartition(key[_numbers.size :].decode(), partition_id)
        services.markers.write(at, Marker(*of_marker), partial(done, key))
    return None


def _response(codes: _Codes) -> M.WriteTxnMarkersResponse:
    by_producer: dict[bytes, dict[bytes, list[M.WriteTxnMarkersResponse.WritableTxnMarkerPartitionResult]]] = {}
    for key, code in codes.items():
        topics = by_producer.setdefault(key[:PRODUCER_ID_SIZE], {})
        partition_id = _numbers.unpack_from(key)[-1]
        result = _Response.WritableTxnMarkerPartitionResult(partition_index=partition_id, error_code=code)
        topics.setdefault(key[_numbers.size :], []).append(result)
    return _Response(
        markers=[
            _Response.WritableTxnMarkerResult(
                producer_id=number_of(producer),
                topics=[
                    _Response.WritableTxnMarkerTopicResult(name=name.decode(), partitions=partitions)
                    for name, partitions in topics.items()
                ],
            )
            for producer, topics in by_producer.items()
        ]
    )
