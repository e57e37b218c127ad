"""WriteTxnMarkers, key 27, versions 0 to 1: transactions end in partitions that this broker leads.

From the coordinator of another broker, or from an operator who ends a transaction that hangs (KIP-664).

Leaves out: nothing.

v0  first
v1  flexible
"""

from __future__ import annotations

import struct
import threading
from functools import partial
from typing import TYPE_CHECKING

from kbroker.errors import ErrorCode
from kbroker.model import TopicPartition, number_key, number_of, partition_key
from kbroker.protocol import messages as M
from kbroker.server.answering import answer
from kbroker.transactions.markers import Marker

if TYPE_CHECKING:
    from kbroker._core.request import Request
    from kbroker.server.services import Services

_Response = M.WriteTxnMarkersResponse
_Codes = dict[bytes, dict[tuple[str, bytes], ErrorCode]]
"""By the key of the producer, then of the partition."""

_numbers = struct.Struct(">iqhi?")
"""Partition, producer and its epoch, epoch of the coordinator, result."""


def handle(services: Services, request: Request, message: M.WriteTxnMarkersRequest) -> M.WriteTxnMarkersResponse | None:
    """Answers when all markers are as durable as the flush policy of their partitions asks for."""
    wanted: dict[bytes, tuple[TopicPartition, Marker]] = {}  # by all of it, as bytes: see `number_key`
    codes: _Codes = {}
    for each in message.markers:
        marker = Marker(each.producer_id, each.producer_epoch, each.coordinator_epoch, each.transaction_result)
        codes[number_key(marker.producer_id)] = {}
        for topic in each.topics:
            name = topic.name.encode()
            for partition_id in topic.partition_indexes:
                key = name + _numbers.pack(partition_id, *marker[:4])
                wanted[key] = TopicPartition(topic.name, partition_id), marker
    if not wanted:
        return _response(codes)
    lock = threading.Lock()
    outstanding = len(wanted)

    def done(at: TopicPartition, producer_id: int, error: ErrorCode) -> None:
        nonlocal outstanding
        with lock:
            codes[number_key(producer_id)][partition_key(*at)] = error
            outstanding -= 1
            is_last = outstanding == 0
        if is_last:
            answer(request, _response(codes))

    for at, marker in wanted.values():
        services.markers.write(at, marker, partial(done, at, marker.producer_id))
    return None


def _response(codes: _Codes) -> M.WriteTxnMarkersResponse:
    return _Response(
        markers=[
            _Response.WritableTxnMarkerResult(producer_id=number_of(producer), topics=_topics(of_producer))
            for producer, of_producer in codes.items()
            if of_producer
        ]
    )


def _topics(
    codes: dict[tuple[str, bytes], ErrorCode],
) -> list[M.WriteTxnMarkersResponse.WritableTxnMarkerTopicResult]:
    topics: dict[str, list[M.WriteTxnMarkersResponse.WritableTxnMarkerPartitionResult]] = {}
    for (name, partition), code in codes.items():
        result = _Response.WritableTxnMarkerPartitionResult(partition_index=number_of(partition), error_code=code)
        topics.setdefault(name, []).append(result)
    return [_Response.WritableTxnMarkerTopicResult(name=name, partitions=listed) for name, listed in topics.items()]
