"""Entries of files as lines of text, with the words and the order of kafka-dump-log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kbroker.inspection.entries import Entry
from kbroker.inspection.state_records import Decoder
from kbroker.protocol.json_form import camel_case

INDENT = "|"
Fields = dict[str, Any]


def _shown(value: Any) -> str:
    """Return a value as Java prints it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _optional(value: int | None) -> str:
    return "OptionalLong.empty" if value is None else f"OptionalLong[{value}]"


def _words(fields: Fields, names: dict[str, str]) -> str:
    return " ".join(f"{word}: {_shown(fields[name])}" for name, word in names.items())


_BATCH = {
    "base_offset": "baseOffset",
    "last_offset": "lastOffset",
    "count": "count",
    "base_sequence": "baseSequence",
    "last_sequence": "lastSequence",
    "producer_id": "producerId",
    "producer_epoch": "producerEpoch",
    "partition_leader_epoch": "partitionLeaderEpoch",
    "is_transactional": "isTransactional",
    "is_control": "isControl",
}
_COMMON = {
    "size": "size",
    "magic": "magic",
    "codec": "compresscodec",
    "crc": "crc",
    "is_valid": "isvalid",
}
_ABORTED = {
    "version": "version",
    "producer_id": "producerId",
    "first_offset": "firstOffset",
    "last_offset": "lastOffset",
    "last_stable_offset": "lastStableOffset",
}


def _place(entry: Entry) -> str:
    fields = entry.fields
    return f"position: {entry.position} {fields['timestamp_type']}: {fields['max_timestamp']} {_words(fields, _COMMON)}"


def _batch(entry: Entry) -> str:
    horizon = _optional(entry.fields["delete_horizon_ms"])
    return f"{_words(entry.fields, _BATCH)} deleteHorizonMs: {horizon} {_place(entry)}"


def _message(entry: Entry) -> str:
    return f"offset: {entry.fields['offset']} {_place(entry)}"


def _producer(entry: Entry) -> str:
    fields = entry.fields
    begun = fields["current_transaction_first_offset"]
    words = (
        f"producerId: {fields['producer_id']} producerEpoch: {fields['producer_epoch']} "
        f"coordinatorEpoch: {fields['coordinator_epoch']} "
        f"currentTxnFirstOffset: {_optional(begun if begun >= 0 else None)} lastTimestamp: {fields['timestamp']} "
    )
    if fields["last_offset"] < 0:
        return words
    first_sequence = (fields["last_sequence"] - fields["offset_delta"]) & 0x7FFFFFFF
    return (
        f"{words}firstSequence: {first_sequence} lastSequence: {fields['last_sequence']} "
        f"lastOffset: {fields['last_offset']} offsetDelta: {fields['offset_delta']} timestamp: {fields['timestamp']}"
    )


def _plain(entry: Entry) -> str:
    return " ".join(f"{camel_case(name)}: {_shown(value)}" for name, value in entry.fields.items())


LINES: dict[str, Callable[[Entry], str]] = {
    "log": lambda entry: f"Log starting offset: {entry.fields['starting_offset']}",
    "batch": _batch,
    "message": _message,
    "index": _plain,
    "time_index": _plain,
    "aborted_transaction": lambda entry: _words(entry.fields, _ABORTED),
    "producer": _producer,
    "checkpoint": _plain,
    "clean_shutdown": _plain,
    "property": lambda entry: " ".join(f"{name}={value}" for name, value in entry.fields.items()),
}


def decode_text(offset: int, key: bytes | None, value: bytes | None) -> tuple[str | None, str | None]:
    """Return key and value as UTF-8 text."""
    return (
        key.decode(errors="replace") if key is not None else None,
        value.decode(errors="replace") if value is not None else None,
    )


def record_line(entry: Entry, decoder: Decoder | Callable[..., Any], *, with_metadata: bool) -> str:
    """Return the line of one record, with its content if the entry has it."""
    fields = entry.fields
    line, prefix = "", f"{INDENT} "
    if with_metadata:
        line = (
            f"{prefix}offset: {fields['offset']} {fields['timestamp_type']}: {fields['timestamp']} "
            f"keySize: {fields['key_size']} valueSize: {fields['value_size']}"
        )
        prefix = " "
        if "sequence" in fields:
            line += f" sequence: {fields['sequence']} headerKeys: [{','.join(fields['header_keys'])}]"
        else:
            # Kafka prints the closing brace, too.
            line += f" isValid: {_shown(fields['is_valid'])} crc: {fields['crc']}}}"
        if "end_txn_marker" in fields:
            line += f" endTxnMarker: {fields['end_txn_marker']} coordinatorEpoch: {fields['coordinator_epoch']}"
        elif "control_type" in fields:
            line += f" controlType: {fields['control_type']}({fields['control_type_id']})"
    if "key" in fields:
        key, value = decoder(fields["offset"], fields["key"], fields["value"])
        if key is not None:
            line += f"{prefix}key: {key}"
        if value is not None:
            line += f" payload: {value}"
    return line
