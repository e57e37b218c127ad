"""Kafka's small text files: offset checkpoints of a log directory, leader epochs and metadata of a partition.

A checkpoint has the version (0), the number of entries, then one entry a line. Every file is replaced as a whole by
rename, so a reader never finds half of a file. On disk. Do not change.
"""

from __future__ import annotations

import base64
import logging
from collections.abc import Iterable, Mapping
from uuid import UUID

from kbroker.errors import DiskDamaged
from kbroker.fs import FileSystem, read_file, replace_file
from kbroker.model import NO_UUID, TopicPartition
from kbroker.storage.failures import DISK_FULL_ERRORS

logger = logging.getLogger("kbroker.storage")

RECOVERY_POINTS = "recovery-point-offset-checkpoint"
LOG_START_OFFSETS = "log-start-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
CLEANER_OFFSETS = "cleaner-offset-checkpoint"
LEADER_EPOCHS = "leader-epoch-checkpoint"
PARTITION_METADATA = "partition.metadata"

EMPTY = "empty"
"""`DiskDamaged.what` of a leader epoch checkpoint that is an empty file."""


def _load_lines(fs: FileSystem, path: str, fields: int) -> list[list[str]]:
    try:
        text = read_file(fs, path).decode()
    except FileNotFoundError:
        return []
    except UnicodeDecodeError as error:
        raise DiskDamaged(path, error.start, "not text") from error
    lines = text.splitlines(keepends=True)
    if not lines:
        return []
    if lines[0].strip() != "0" or len(lines) < 2 or not lines[1].strip().isdigit():
        raise DiskDamaged(path, 0, "not a checkpoint of version 0")
    position = len(lines[0]) + len(lines[1])
    entries = []
    for line in lines[2:]:
        entry = line.split()
        if entry and len(entry) != fields:
            raise DiskDamaged(path, position, f"a checkpoint's entry of {len(entry)} fields instead of {fields}")
        if entry and not (_is_number(entry[-2], 31) and _is_number(entry[-1], 63)):
            raise DiskDamaged(path, position, f"a checkpoint's entry {line.strip()!r} without its two numbers")
        if entry:
            entries.append(entry)
        position += len(line)
    if len(entries) != int(lines[1]) or not text.endswith("\n"):
        raise DiskDamaged(path, position, f"a checkpoint of {int(lines[1])} entries ends with {len(entries)}")
    return entries


def _is_number(text: str, bits: int) -> bool:
    return len(text) < 20 and text.isdecimal() and int(text) < 1 << bits


def _text_of(lines: Iterable[str], count: int) -> bytes:
    return "\n".join(("0", str(count), *lines, "")).encode()


def load_offsets(fs: FileSystem, path: str) -> dict[TopicPartition, int]:
    """Read an offset checkpoint; empty if the file is missing. Raises DiskDamaged if it is not one."""
    lines = _load_lines(fs, path, 3)
    return {TopicPartition(topic, int(partition_id)): int(offset) for topic, partition_id, offset in lines}


def store_offsets(fs: FileSystem, path: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Replace an offset checkpoint, durably."""
    lines = (f"{at.topic} {at.partition_id} {offset}" for at, offset in sorted(offsets.items()))
    replace_file(fs, path, _text_of(lines, len(offsets)))


def load_epochs(fs: FileSystem, path: str) -> list[tuple[int, int]]:
    """Read a leader epoch checkpoint as `(leader epoch, start offset)`, ascending; empty if the file is missing.

    Raises DiskDamaged if the file is not a checkpoint, or is empty. Kafka makes an empty file for a log that has
    nothing to lose yet; a power cut leaves one for other logs too.
    """
    try:
        if not read_file(fs, path):
            raise DiskDamaged(path, 0, EMPTY)
    except FileNotFoundError:
        return []
    return sorted((int(epoch), int(offset)) for epoch, offset in _load_lines(fs, path, 2))


def store_epochs(fs: FileSystem, path: str, epochs: list[tuple[int, int]], *, durable: bool = True) -> None:
    """Replace the leader epochs of a partition."""
    lines = (f"{epoch} {offset}" for epoch, offset in epochs)
    replace_file(fs, path, _text_of(lines, len(epochs)), durable=durable)


def encode_uuid(uuid: UUID) -> str:
    """Return Kafka's text form of a UUID: 22 characters of URL-safe base64."""
    return base64.urlsafe_b64encode(uuid.bytes).decode().rstrip("=")


def decode_uuid(text: str) -> UUID:
    """Parse Kafka's text form of a UUID. Raises ValueError if the text is not one."""
    return UUID(bytes=base64.urlsafe_b64decode(text + "=="))


def load_topic_id(fs: FileSystem, path: str) -> UUID | None:
    """Read the topic id in a partition.metadata; None if the file is missing or damaged, as by a power cut."""
    try:
        fields = dict(line.split(": ", 1) for line in read_file(fs, path).decode().splitlines() if line)
        return decode_uuid(fields["topic_id"]) if fields["version"] == "0" else None
    except (FileNotFoundError, ValueError, KeyError):
        return None


def store_topic_id(fs: FileSystem, path: str, topic_id: UUID) -> None:
    """Write partition.metadata, without a sync.

    If a power cut loses the file, nothing is lost: whoever opens the log knows the topic id and writes the file again.
    """
    replace_file(fs, path, f"version: 0\ntopic_id: {encode_uuid(topic_id)}".encode(), durable=False)


def settle_topic_id(fs: FileSystem, directory: str, topic_id: UUID) -> None:
    """Check that a log's directory belongs to this topic; write its partition.metadata again if that is lost.

    NO_UUID as the topic id checks nothing. A full disk is no error: the log can be read without the file. Raises
    DiskDamaged if the file names another topic, OSError for the disk's other errors.
    """
    path = f"{directory}/{PARTITION_METADATA}"
    found = load_topic_id(fs, path) if topic_id != NO_UUID else topic_id
    if found is None:
        try:
            store_topic_id(fs, path, topic_id)
        except OSError as error:
            if error.errno not in DISK_FULL_ERRORS:  # the log can be read all the same
                raise
        else:
            logger.warning("%s was missing or damaged, and is written anew", path)
    elif found != topic_id:
        ids = f"topic_id {encode_uuid(found)}, the topic of this name has {encode_uuid(topic_id)}"
        advice = "move its directory away, or remove this file if the log is that topic's: the id is written anew"
        raise DiskDamaged(path, len("version: 0\n"), f"{ids}: a log of another topic, which is not served,", advice)
