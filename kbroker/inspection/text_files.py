"""The text files of a log directory: checkpoints, meta.properties, partition.metadata, the mark of a clean stop.

Each reader takes a file's bytes and yields its entries and its problems.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable

from kbroker.inspection.entries import WHOLE_FILE, Entry, Found, Problem
from kbroker.storage import checkpoints, directory

OFFSET_CHECKPOINTS = (
    checkpoints.RECOVERY_POINTS,
    checkpoints.LOG_START_OFFSETS,
    checkpoints.HIGH_WATERMARKS,
    checkpoints.CLEANER_OFFSETS,
)

_NUMBER = rb"0|-?[1-9][0-9]{0,18}"
_OFFSET_LINE = re.compile(rb"([a-zA-Z0-9._-]{1,249}) (0|[1-9][0-9]{0,9}) (" + _NUMBER + rb")")
_EPOCH_LINE = re.compile(rb"(0|[1-9][0-9]{0,9}) (" + _NUMBER + rb")")
_COUNT = re.compile(rb"0|[1-9][0-9]{0,8}")
_ID = re.compile("0|[1-9][0-9]{0,9}")
_META_PROPERTIES = {
    "version": _ID,
    "broker.id": _ID,
    "node.id": _ID,
    "cluster.id": re.compile(r"[\w.-]+", re.ASCII),
    "directory.id": re.compile(r"[\w-]{22}", re.ASCII),
}
_SHOWN_SIZE = 80


def _shown(line: bytes) -> str:
    return repr(line[:_SHOWN_SIZE].decode("ascii", "backslashreplace"))


def _lines(data: bytes) -> list[tuple[int, bytes]]:
    """Return (position, line) for each line. What follows the last line feed is the last line, even if empty."""
    found, position = [], 0
    for line in data.split(b"\n"):
        found.append((position, line))
        position += len(line) + 1
    return found


# --- checkpoints ------------------------------------------------------------------------------------


def _checkpoint(data: bytes, line_form: re.Pattern[bytes], names: tuple[str, ...]) -> Found:
    """Read a checkpoint: version, count, then one entry a line. Kafka makes an empty file before its first write."""
    if not data:
        return
    lines = _lines(data)
    version, count = lines[0], lines[1] if len(lines) > 1 else (len(data), b"")
    if version[1] != b"0":
        yield Problem(0, f"version {_shown(version[1])}, which is not known")
        return
    if not _COUNT.fullmatch(count[1]):
        yield Problem(count[0], f"{_shown(count[1])} is no number of entries")
        return
    entries = lines[2:]
    if entries and entries[-1][1] == b"":
        entries.pop()
    else:
        yield Problem(len(data), "the last line is cut off")
    for position, line in entries:
        match = line_form.fullmatch(line)
        if match is None:
            yield Problem(position, f"{_shown(line)} is not {' '.join(names)}")
            continue
        values = [match[1].decode() if names[0] == "topic" else int(match[1]), *map(int, match.groups()[1:])]
        yield Entry("checkpoint", position, dict(zip(names, values, strict=True)))
        if int(match.groups()[-1]) < 0:
            yield Problem(position, f"offset {values[-1]} is negative")
    if int(count[1]) != len(entries):
        yield Problem(count[0], f"{int(count[1])} entries are announced, {len(entries)} are there")


def read_offset_checkpoint(data: bytes) -> Found:
    known: set[tuple[str, int]] = set()
    for item in _checkpoint(data, _OFFSET_LINE, ("topic", "partition", "offset")):
        yield item
        if isinstance(item, Entry):
            partition = item.fields["topic"], item.fields["partition"]
            if partition in known:
                yield Problem(item.position, f"{partition[0]}-{partition[1]} for the second time")
            known.add(partition)


def read_epoch_checkpoint(data: bytes) -> Found:
    before: tuple[int, int] | None = None
    for item in _checkpoint(data, _EPOCH_LINE, ("epoch", "start_offset")):
        yield item
        if isinstance(item, Entry):
            entry = item.fields["epoch"], item.fields["start_offset"]
            if before is not None and (entry[0] <= before[0] or entry[1] <= before[1]):
                what = f"epoch {entry[0]} at {entry[1]} does not come after {before[0]} at {before[1]}"
                yield Problem(item.position, what)
            before = entry


# --- properties -------------------------------------------------------------------------------------


def is_uuid(text: str) -> bool:
    """Return whether a text is Kafka's form of a UUID: 22 characters of URL-safe base64, without stray bits."""
    try:
        data = base64.b64decode(text + "==", altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return False
    return len(data) == 16 and base64.urlsafe_b64encode(data).decode().rstrip("=") == text


def read_partition_metadata(data: bytes) -> Found:
    lines = _lines(data.removesuffix(b"\n"))
    if lines[0][1] != b"version: 0":
        yield Problem(0, f"{_shown(lines[0][1])} where 'version: 0' is due")
        return
    yield Entry("property", 0, {"version": 0})
    if len(lines) < 2 or not lines[1][1].startswith(b"topic_id: "):
        yield Problem(min(len(data), 11), "there is no topic_id")
        return
    topic_id = lines[1][1][10:].decode("ascii", "backslashreplace")
    yield Entry("property", lines[1][0], {"topic_id": topic_id})
    if not is_uuid(topic_id) or topic_id == "A" * 22:
        yield Problem(lines[1][0], f"{_shown(lines[1][1])} does not hold an id")
    if len(lines) > 2:
        yield Problem(lines[2][0], f"{_shown(lines[2][1])} behind the topic_id")


def read_meta_properties(data: bytes) -> Found:
    found: dict[str, str] = {}
    for position, line in _lines(data):
        text = line.decode("utf-8", "backslashreplace").strip()
        if not text or text.startswith(("#", "!")):
            continue
        name, equals, value = (part.strip() for part in text.partition("="))
        if not equals or name not in _META_PROPERTIES or name in found:
            yield Problem(position, f"{_shown(line)} is no setting of this file")
            continue
        found[name] = value
        yield Entry("property", position, {name: value})
        if name == "version" and value not in ("0", "1"):
            yield Problem(position, f"version {value!r}, which is not known")
        elif not _META_PROPERTIES[name].fullmatch(value) or (name == "directory.id" and not is_uuid(value)):
            yield Problem(position, f"{value!r} is no {name}")
    if not data.endswith(b"\n"):
        yield Problem(len(data), "the last line is cut off")
    needed = ("version", "node.id" if found.get("version") == "1" else "broker.id", "cluster.id")
    missing = [name for name in needed if name not in found]
    if missing:
        yield Problem(WHOLE_FILE, f"there is no {' and no '.join(missing)}")


def read_clean_mark(data: bytes) -> Found:
    """Read the mark of a clean stop: JSON since Kafka 3.7 (KIP-966), empty before."""
    if not data:
        yield Entry("clean_shutdown", 0, {})
        return
    try:
        value = json.loads(data)
    except ValueError:
        value = None
    if not isinstance(value, dict) or value.keys() != {"version", "brokerEpoch"}:
        yield Problem(0, f"{_shown(data)} is not the mark of a clean stop")
        return
    yield Entry("clean_shutdown", 0, {"version": value["version"], "broker_epoch": value["brokerEpoch"]})
    if type(value["version"]) is not int or value["version"] != 0:
        yield Problem(0, f"version {value['version']!r}, which is not known")
    if type(value["brokerEpoch"]) is not int:
        yield Problem(0, f"broker epoch {value['brokerEpoch']!r}")


TEXT_FILES: dict[str, Callable[[bytes], Found]] = {
    **dict.fromkeys(OFFSET_CHECKPOINTS, read_offset_checkpoint),
    checkpoints.LEADER_EPOCHS: read_epoch_checkpoint,
    checkpoints.PARTITION_METADATA: read_partition_metadata,
    directory.META_PROPERTIES: read_meta_properties,
    directory.CLEAN_MARK: read_clean_mark,
}
