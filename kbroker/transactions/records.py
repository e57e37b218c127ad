"""Records of `__transaction_state`, byte for byte those of Apache Kafka 4.3. On disk. Do not change.

    key    int16 version, then
             0        TransactionLogKey   transactional id      value: int16 version 0-1, TransactionLogValue
           others     of a later release: ignored
    a null value deletes: the transactional id has expired

kbroker writes TransactionLogValue 1, which is flexible, as 4.3 does with transactions of version 2. It also reads
version 0, which 3.9 writes.
"""

from __future__ import annotations

import struct

from kbroker.errors import MalformedBytes
from kbroker.model import TopicPartition
from kbroker.protocol import messages as M
from kbroker.rules.transaction import Transaction, TransactionState, Transit

KEY_VERSION = 0
_VALUE_VERSION = 1

STATE_IDS = {
    TransactionState.EMPTY: 0,
    TransactionState.ONGOING: 1,
    TransactionState.PREPARE_COMMIT: 2,
    TransactionState.PREPARE_ABORT: 3,
    TransactionState.COMPLETE_COMMIT: 4,
    TransactionState.COMPLETE_ABORT: 5,
}
"""On disk. Do not renumber. 6 (Dead) and 7 (PrepareEpochFence) are never written."""
_STATES = {number: state for state, number in STATE_IDS.items()}

_version = struct.Struct(">h")
_KEY_PREFIX = _version.pack(KEY_VERSION)
_VALUE_PREFIX = _version.pack(_VALUE_VERSION)


# --- writing ---------------------------------------------------------------------------------------------
def transaction_key(transactional_id: str) -> bytes:
    """The key of a transactional id. A string from a request always fits."""
    return _KEY_PREFIX + M.TransactionLogKey(transactional_id=transactional_id).encode(KEY_VERSION)


def transaction_value(transit: Transit) -> bytes:
    """The value of a transactional id after the change `transit`."""
    partitions: list[M.TransactionLogValue.PartitionsSchema] | None = None
    if transit.state is not TransactionState.EMPTY:
        by_topic: dict[str, list[int]] = {}
        for topic, partition_id in transit.partitions:
            by_topic.setdefault(topic, []).append(partition_id)
        schema = M.TransactionLogValue.PartitionsSchema
        partitions = [schema(topic=topic, partition_ids=ids) for topic, ids in by_topic.items()]
    value = M.TransactionLogValue(
        producer_id=transit.producer_id,
        producer_epoch=transit.producer_epoch,
        transaction_timeout_ms=transit.timeout_ms,
        transaction_status=STATE_IDS[transit.state],
        transaction_partitions=partitions,
        transaction_last_update_timestamp_ms=transit.update_ms,
        transaction_start_timestamp_ms=transit.start_ms,
        previous_producer_id=transit.previous_producer_id,
        next_producer_id=transit.next_producer_id,
        client_transaction_version=transit.client_version,
    )
    return _VALUE_PREFIX + value.encode(_VALUE_VERSION)


# --- reading ---------------------------------------------------------------------------------------------
def decode_key(key: bytes) -> str | None:
    """The transactional id in a key; None for other kinds of record. Raises MalformedBytes if it cannot be read."""
    if _version_of(key) != KEY_VERSION:
        return None
    return M.TransactionLogKey.decode(memoryview(key)[2:], KEY_VERSION).transactional_id


def decode_value(transactional_id: str, value: bytes) -> Transaction:
    """The state of a transactional id in a value. Raises MalformedBytes if it cannot be read."""
    version = _version_of(value)
    if not M.TransactionLogValue.MIN_VERSION <= version <= M.TransactionLogValue.MAX_VERSION:
        raise MalformedBytes(f"a record of __transaction_state with a value of version {version}")
    read = M.TransactionLogValue.decode(memoryview(value)[2:], version)
    state = _STATES.get(read.transaction_status)
    if state is None:
        raise MalformedBytes(f"a transaction with the status {read.transaction_status}")
    partitions = frozenset(
        TopicPartition(each.topic, partition_id)
        for each in read.transaction_partitions or ()
        for partition_id in each.partition_ids
    )
    return Transaction(
        transactional_id,
        read.producer_id,
        read.transaction_timeout_ms,
        read.transaction_last_update_timestamp_ms,
        producer_epoch=read.producer_epoch,
        state=state,
        partitions=partitions,
        start_ms=read.transaction_start_timestamp_ms,
        last_producer_id=read.previous_producer_id,
        next_producer_id=read.next_producer_id,
        client_version=read.client_transaction_version,
    )


def _version_of(data: bytes) -> int:
    if len(data) < 2:
        raise MalformedBytes("a record of __transaction_state without a version")
    version: int = _version.unpack_from(data)[0]
    return version
