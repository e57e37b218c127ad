"""What is left in the logs of a cluster, as far as it must be the same on Apache Kafka and on kbroker."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from kbroker.protocol import messages as M
from kbroker.protocol.json_form import to_json
from kbroker.protocol.records import Batch, read_batches
from tests.oracle.history_clients import GROUP_OFFSETS, TRANSACTION_STATE

Meaning = Callable[[bytes | None, bytes | None], object]
"""What a record's key and value mean, to be compared."""
_VERSION = struct.Struct(">h")
_MARKER = struct.Struct(">hi")
"""The value of a marker: its version, and the epoch of the coordinator."""
_OFFSET, _GROUP = "OffsetCommit", "GroupMetadata"
_OF_GROUPS = {1: _OFFSET, 2: _GROUP}
"""The types of records of groups, by the version of their keys."""
_TIMES = {
    "commitTimestamp",
    "currentStateTimestamp",
    "transactionLastUpdateTimestampMs",
    "transactionStartTimestampMs",
}


class Stored(NamedTuple):
    """A batch that brokers have written: in whose name, and what its records mean, without what depends on the time.

    What is left to chance is left out too: ids of members, and the leader epochs of internal topics, which depend on
    the brokers that they begin on. A batch without a producer has no sequence: Kafka puts 0 there.
    """

    base_offset: int
    leader_epoch: int
    attributes: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    records: tuple[object, ...]


def records_left(stored: Iterable[bytes]) -> list[bytes | Stored]:
    """Return the batches of a topic's log, byte for byte, and its markers."""
    left: list[bytes | Stored] = []
    for data in stored:
        (batch,) = read_batches(data)
        left.append(_stored(batch, batch.info.leader_epoch, _of_markers) if batch.info.is_control else data)
    return left


def states_left(topic: str, stored: Iterable[bytes]) -> list[Stored]:
    """Return what the log of an internal topic has."""
    meaning = {GROUP_OFFSETS: _of_groups, TRANSACTION_STATE: _of_transactions}[topic]
    batches = (batch for data in stored for batch in read_batches(data))
    return [_stored(batch, -1, _of_markers if batch.info.is_control else meaning) for batch in batches]


def coordinator_epochs(stored: Iterable[bytes]) -> list[int]:
    """Return the epochs of the coordinators that the markers in a log have."""
    controls = (batch for data in stored for batch in read_batches(data) if batch.info.is_control)
    return [_MARKER.unpack(each.value or b"")[1] for batch in controls for each in batch.records()]


def _stored(batch: Batch, leader_epoch: int, meaning: Meaning) -> Stored:
    info = batch.info
    return Stored(
        info.base_offset,
        leader_epoch,
        info.attributes,
        info.producer_id,
        info.producer_epoch,
        info.base_sequence if info.producer_id >= 0 else -1,
        tuple(meaning(each.key, each.value) for each in batch.records()),
    )


def _of_markers(key: bytes | None, value: bytes | None) -> object:
    """Return the key of a marker and the version of its value; `coordinator_epochs` has the rest."""
    return key, _MARKER.unpack(value or b"")[0]


def _of_groups(key: bytes | None, value: bytes | None) -> object:
    """Return type, key, version and value of a record of `__consumer_offsets`. A member's id is its client's."""
    assert key is not None
    (kind,) = _VERSION.unpack_from(key)
    name = _OF_GROUPS[kind]
    found = None if value is None else _without_times(*_decoded(f"{name}Value", value))
    if name == _GROUP and found is not None:
        ids = {member["memberId"]: member["clientId"] for member in found["members"]}
        found |= {"leader": ids.get(found["leader"], found["leader"])}
        found["members"] = [member | {"memberId": ids[member["memberId"]]} for member in found["members"]]
    return kind, to_json(*_decoded(f"{name}Key", key)), None if value is None else _VERSION.unpack_from(value)[0], found


def _of_transactions(key: bytes | None, value: bytes | None) -> object:
    """Return key and value of a record of `__transaction_state`, with what version 0 has. kbroker writes version 1."""
    assert key is not None and value is not None
    message, _ = _decoded("TransactionLogValue", value)
    found = _without_times(message, M.TransactionLogValue.MIN_VERSION)
    topics = found["transactionPartitions"] or []
    found["transactionPartitions"] = sorted((each["topic"], sorted(each["partitionIds"])) for each in topics)
    return to_json(*_decoded("TransactionLogKey", key)), found


def _decoded(name: str, data: bytes) -> tuple[M.Message, int]:
    (version,) = _VERSION.unpack_from(data)
    kind: type[M.Message] = getattr(M, name)
    return kind.decode(memoryview(data)[_VERSION.size :], version), version


def _without_times(message: M.Message, version: int) -> dict[str, Any]:
    return {name: value for name, value in to_json(message, version).items() if name not in _TIMES}
