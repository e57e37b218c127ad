"""One log directory: its lock, its identity (meta.properties), its clean mark, the partitions found in it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import random
import re
import time
from collections.abc import Callable
from typing import NamedTuple, TypeVar
from uuid import UUID

from kbroker.errors import KbrokerError, StorageFailed
from kbroker.fs import FileSystem, read_file, replace_file
from kbroker.model import TopicPartition
from kbroker.storage import file_names
from kbroker.storage.checkpoints import decode_uuid, encode_uuid

LOCK = ".lock"
CLEAN_MARK = ".kafka_cleanshutdown"
META_PROPERTIES = "meta.properties"
METADATA_LOG = "__cluster_metadata-0"

_NO_KRAFT = (
    "the directory is of an Apache Kafka in KRaft mode, whose topics are in a metadata log that kbroker does not read; "
    "start with another directory, and copy the topics over with a tool that consumes and produces"
)

_T = TypeVar("_T")
_PARTITION_DIRECTORY = re.compile(r"([a-zA-Z0-9._-]+)-(\d+)")
_DEPARTED = r"(.+)\.[0-9a-f]{32}(-delete|-stray|-future)"


class DirectoryInUse(KbrokerError):
    """Another process has locked the log directory."""


class WrongDirectory(KbrokerError):
    """The log directory belongs to another broker or cluster."""


class MetaProperties(NamedTuple):
    """meta.properties, as Kafka 3.9 writes it without KRaft (version 0)."""

    node_id: int | None
    cluster_id: str | None
    directory_id: UUID | None


class DirectoryLock:
    """The lock on a log directory's `.lock`, by flock and by fcntl. The file holds the owner's pid, for people."""

    def __init__(self, path: str):
        self._path = f"{path}/{LOCK}"
        # Not through the injected file system: a lock belongs to this process, not to the disk.
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Java's FileLock is an fcntl lock: with both kinds, kbroker and Kafka keep each other out.
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(self._fd, 20, 0).decode("ascii", "replace").strip()
            os.close(self._fd)
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise
            by = f" by process {holder}" if holder.isdigit() else ""
            raise DirectoryInUse(f"log directory {path} is in use{by}; stop that broker or choose another") from None
        pid = f"{os.getpid()}\n".encode()
        with contextlib.suppress(OSError):  # a full disk may refuse, but not where an earlier pid is
            os.ftruncate(self._fd, os.pwrite(self._fd, pid, 0))

    def release(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def load_meta_properties(fs: FileSystem, path: str) -> MetaProperties | None:
    """Read meta.properties; None if the file is missing.

    Raises WrongDirectory if the file is unreadable or of another version, or if the directory is that of a Kafka in
    KRaft mode; OSError.
    """
    file = f"{path}/{META_PROPERTIES}"
    names_in_it = fs.list_directory(path)
    if METADATA_LOG in names_in_it:
        raise WrongDirectory(f"{path}/{METADATA_LOG}: {_NO_KRAFT}")
    if META_PROPERTIES not in names_in_it:
        return None
    data = read_file(fs, file)
    fields: dict[str, tuple[str, int]] = {}
    position = 0
    for line in data.splitlines(keepends=True):
        text = line.decode("utf-8", "replace").strip()
        if text and text[0] not in "#!":
            name, equals, value = text.partition("=")
            if not equals or not line.endswith((b"\n", b"\r")):
                raise _unreadable(file, position, f"the line {text!r} is cut short")
            fields[name.strip()] = value.strip(), position
        position += len(line)
    version, at = fields.get("version", ("", position))
    if version != "0":
        if version == "1" or "node.id" in fields:
            raise WrongDirectory(f"{file}: {_NO_KRAFT}")
        if version.isdigit():
            raise _unreadable(file, at, f"version {version} is of a newer format; this release of kbroker reads 0")
        raise _unreadable(file, at, f"version={version} is no version" if version else "there is no version")
    return MetaProperties(
        _parsed(file, fields, "broker.id", int), _parsed(file, fields, "cluster.id", str),
        _parsed(file, fields, "directory.id", decode_uuid),
    )  # fmt: skip


def _parsed(file: str, fields: dict[str, tuple[str, int]], name: str, parse: Callable[[str], _T]) -> _T | None:
    """Parse one field of meta.properties; None if it is missing.

    Kafka before 0.10.1 wrote no cluster.id, Kafka before 3.7 no directory.id. Raises WrongDirectory if the field's
    value cannot be parsed.
    """
    if name not in fields:
        return None
    text, position = fields[name]
    try:
        if not text:
            raise ValueError
        return parse(text)
    except ValueError:
        raise _unreadable(file, position, f"{name}={text} is not one") from None


def _unreadable(file: str, position: int, what: str) -> WrongDirectory:
    return WrongDirectory(
        f"{file}: {what} at byte {position}; put a copy back, or move the file away if you know better"
    )


def ensure_meta_properties(fs: FileSystem, path: str, node_id: int, cluster_id: str) -> MetaProperties:
    """Read the directory's identity; write what is missing of it.

    Raises WrongDirectory if the directory belongs to another broker or cluster.
    """
    found = load_meta_properties(fs, path)
    if found is not None:
        if found.node_id is not None and found.node_id != node_id:
            raise WrongDirectory(
                f"log directory {path} belongs to broker {found.node_id}; this broker's id is {node_id}"
            )
        if found.cluster_id and cluster_id and found.cluster_id != cluster_id:
            raise WrongDirectory(f"log directory {path} belongs to cluster {found.cluster_id}, not to {cluster_id}")
        if found.node_id is not None and (found.cluster_id or "") == cluster_id:
            return found
    # Only KRaft gives directories ids; an id that is already there is kept.
    directory_id = found.directory_id if found else None
    fields = [f"broker.id={node_id}", "version=0"]
    if cluster_id:
        fields.append(f"cluster.id={cluster_id}")
    if directory_id is not None:
        fields.append(f"directory.id={encode_uuid(directory_id)}")
    head = ["#", f"#{time.strftime('%a %b %d %H:%M:%S UTC %Y', time.gmtime())}"]
    text = "\n".join([*head, *fields, ""])
    replace_file(fs, f"{path}/{META_PROPERTIES}", text.encode())
    return MetaProperties(node_id, cluster_id, directory_id)


def take_clean_mark(fs: FileSystem, path: str, entries: set[str]) -> bool:
    """Remove the clean mark, durably, and return whether there was one: the directory was stopped cleanly.

    Call it before anything in the directory is changed. `entries` are the names in the directory.
    """
    if CLEAN_MARK not in entries:
        return False
    fs.unlink(f"{path}/{CLEAN_MARK}")
    fs.sync_directory(path)
    return True


def set_clean_mark(fs: FileSystem, path: str) -> None:
    """Write the clean mark. Call it once everything is flushed and every checkpoint written."""
    replace_file(fs, f"{path}/{CLEAN_MARK}", b'{"version":0,"brokerEpoch":-1}')


def parse_partition_directory(name: str) -> TopicPartition | None:
    """Parse a directory name `topic-partition`; None for any other name, such as one with `-delete` at its end."""
    if name.endswith((file_names.DIRECTORY_DELETE, file_names.DIRECTORY_STRAY, file_names.DIRECTORY_FUTURE)):
        return None
    match = _PARTITION_DIRECTORY.fullmatch(name)
    if match is None or str(int(match[2])) != match[2]:
        return None
    return TopicPartition(match[1], int(match[2]))


def stray_directory_name(topic_partition: TopicPartition, randomness: random.Random) -> str:
    """Return `topic-partition.<32 hex digits>-stray`: the name under which an unknown directory is kept."""
    return _departed_name(topic_partition, randomness, file_names.DIRECTORY_STRAY)


def delete_directory_name(topic_partition: TopicPartition, randomness: random.Random) -> str:
    """Return `topic-partition.<32 hex digits>-delete`, the topic cut so that the name has at most 255 characters."""
    return _departed_name(topic_partition, randomness, file_names.DIRECTORY_DELETE)


def future_directory_name(topic_partition: TopicPartition, randomness: random.Random) -> str:
    """Return `topic-partition.<32 hex digits>-future`: the name of a copy that is being made."""
    return _departed_name(topic_partition, randomness, file_names.DIRECTORY_FUTURE)


def parse_departed_directory(name: str, suffix: str) -> TopicPartition | None:
    """Parse the name of a directory that is none of a log any more, or not yet; None for any other name."""
    match = re.fullmatch(_DEPARTED, name)
    return None if match is None or match[2] != suffix else parse_partition_directory(match[1])


def _departed_name(topic_partition: TopicPartition, randomness: random.Random, suffix: str) -> str:
    tail = f"-{topic_partition.partition_id}.{randomness.getrandbits(128):032x}{suffix}"
    return topic_partition.topic[: 255 - len(tail)] + tail


def is_directory(fs: FileSystem, path: str) -> bool:
    """Return whether a path is a directory. Raises OSError if the disk does not tell."""
    try:
        fs.list_directory(path)
    except NotADirectoryError:
        return False
    return True


def remove_partition_directory(fs: FileSystem, path: str) -> None:
    """Remove a partition's files, then its directory. No-op if it is gone. It holds no subdirectories."""
    try:
        entries = fs.list_directory(path)
    except FileNotFoundError:
        return
    for name in entries:
        fs.unlink(f"{path}/{name}")
    fs.rmdir(path)


def reason_of(error: OSError) -> str:
    """Return an error as text for people: 'permission denied (/var/lib/kbroker/.lock)'."""
    return f"{(error.strerror or str(error)).lower()} ({error.filename})" if error.filename else str(error)


def make_directory(fs: FileSystem, path: str) -> None:
    """Make a log directory and its missing parents, durably. Raises StorageFailed with the reason."""
    missing: list[str] = []
    at = path
    while at and not os.path.isdir(at):  # noqa: PTH112
        missing.append(at)
        at = at.rpartition("/")[0]
    try:
        for made in reversed(missing):
            fs.mkdir(made)
            fs.sync_directory(made.rpartition("/")[0] or "/")
    except OSError as error:
        raise StorageFailed(f"log directory {path} cannot be made: {reason_of(error)}") from error
