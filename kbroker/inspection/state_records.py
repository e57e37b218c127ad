"""Records of `__consumer_offsets` and `__transaction_state` as text, in the form of kafka-dump-log."""

from __future__ import annotations

import json
import struct
from base64 import b64decode
from collections.abc import Callable
from typing import Any

from kbroker.errors import MalformedBytes
from kbroker.protocol import messages as M
from kbroker.protocol.json_form import to_json
from kbroker.rules.transaction import TransactionState

Decoder = Callable[[int, bytes | None, bytes | None], tuple[str, str | None]]
"""(offset, key, value) of a record -> the text for its key, and the text for its value; None: no text."""

DELETED = "<DELETE>"
# The type of a record, by the version of its key. On disk. Do not renumber.
_OFFSETS_KEYS = {
    0: "OffsetCommit",
    1: "OffsetCommit",
    2: "GroupMetadata",
    3: "ConsumerGroupMetadata",
    4: "ConsumerGroupPartitionMetadata",
    5: "ConsumerGroupMemberMetadata",
    6: "ConsumerGroupTargetAssignmentMetadata",
    7: "ConsumerGroupTargetAssignmentMember",
    8: "ConsumerGroupCurrentMemberAssignment",
    16: "ConsumerGroupRegularExpression",
}
TRANSACTION_STATES = tuple(TransactionState)
"""The states, by their id on disk."""
_VERSION = struct.Struct(">h")


def _decode(name: str, data: bytes) -> tuple[M.Message, int]:
    """Decode a message that has its version in front. Raises MalformedBytes."""
    if len(data) < _VERSION.size:
        raise MalformedBytes(f"{name} without a version")
    version: int = _VERSION.unpack_from(data)[0]
    message: type[M.Message] = getattr(M, name)
    if not message.MIN_VERSION <= version <= message.MAX_VERSION:
        raise MalformedBytes(f"{name} of version {version}")
    return message.decode_prefix(memoryview(data)[_VERSION.size :], version)[0], version


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def decode_offsets(offset: int, key: bytes | None, value: bytes | None) -> tuple[str, str | None]:
    """Return the texts for a record of `__consumer_offsets`. An undecodable record is a text that says so."""
    try:
        if key is None or len(key) < _VERSION.size:
            raise MalformedBytes("no key with a version")
        kind: int = _VERSION.unpack_from(key)[0]
        if kind not in _OFFSETS_KEYS:
            return f"Unknown record type {kind} at offset {offset}, skipping.", None
        name = _OFFSETS_KEYS[kind]
        decoded_key = _text({"type": str(kind), "data": to_json(*_decode(f"{name}Key", key))})
        if value is None:
            return decoded_key, DELETED
        message, version = _decode(f"{name}Value", value)
        data = to_json(message, version)
        if name == "GroupMetadata" and data["protocolType"] == "consumer":
            for member in data["members"]:
                _open(member, "subscription", "ConsumerProtocolSubscription")
                _open(member, "assignment", "ConsumerProtocolAssignment")
        return decoded_key, _text({"version": str(version), "data": data})
    except MalformedBytes as error:
        return f"Error at offset {offset}, skipping. {error}", None


def _open(member: dict[str, Any], field: str, name: str) -> None:
    """Replace a member's field by the consumer protocol message in it. Other bytes are left as they are."""
    try:
        member[field] = to_json(*_decode(name, b64decode(member[field])))
    except MalformedBytes:
        return


def decode_transactions(offset: int, key: bytes | None, value: bytes | None) -> tuple[str, str | None]:
    """Return the texts for a record of `__transaction_state`. An undecodable record is a text that says so."""
    try:
        if key is None:
            raise MalformedBytes("no key")
        named, _ = _decode("TransactionLogKey", key)
        assert isinstance(named, M.TransactionLogKey)
        decoded_key = f"transaction_metadata::transactionalId={named.transactional_id}"
        if value is None:
            return decoded_key, DELETED
        found, _ = _decode("TransactionLogValue", value)
        assert isinstance(found, M.TransactionLogValue)
        status = found.transaction_status
        if not 0 <= status < len(TRANSACTION_STATES):
            raise MalformedBytes(f"a transaction in state {status}")
        partitions = [
            f"{topic.topic}-{partition_id}"
            for topic in found.transaction_partitions or ()
            for partition_id in topic.partition_ids
        ]
        return decoded_key, (
            f"producerId:{found.producer_id},producerEpoch:{found.producer_epoch},state={TRANSACTION_STATES[status]},"
            f"partitions=[{','.join(partitions)}],txnLastUpdateTimestamp={found.transaction_last_update_timestamp_ms},"
            f"txnTimeoutMs={found.transaction_timeout_ms}"
        )
    except MalformedBytes as error:
        return f"Error at offset {offset}, skipping. {error}", None
