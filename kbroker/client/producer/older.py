"""Batches for Kafka 0.10 and older: message sets of magic 0 and 1. They are made in Python: slow, but rarely needed."""

from __future__ import annotations

from kbroker._core.wire.conversion import message_sets_of_batch
from kbroker._core.wire.record_batch import HEADER_SIZE, header
from kbroker._core.wire.records import decode_records
from kbroker.client.producer.errors import BrokerTooOld
from kbroker.protocol.compression import deflate, inflate

_INT32_MAX = (1 << 31) - 1


def older_form(batch: bytes, magic: int) -> bytes:
    """Return the records of a batch as one message set.

    Raises BrokerTooOld when a record has headers, which would be lost.
    """
    info = header(batch)
    records = inflate(info.codec, memoryview(batch)[HEADER_SIZE:], _INT32_MAX)
    if any(record.headers for record in decode_records(records, info)):
        raise BrokerTooOld(
            "headers of records need a broker of Kafka 0.11 or later (Produce 3)", hint="send them without headers"
        )
    return b"".join(
        builder.wrap(info.codec, deflate(info.codec, builder.messages(), magic=magic))
        if info.codec
        else builder.messages()
        for builder in message_sets_of_batch(info, records, magic)
    )
