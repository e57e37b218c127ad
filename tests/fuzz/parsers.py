"""Targets without a broker: everything that parses bytes of a peer, a disk or a person.

Where a check sum or a length would keep a fuzzer out, the first byte of the input says which of them to put right.
"""

from __future__ import annotations

import os
import shutil
import struct
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from kbroker._core.log.offset_index import (
    count_sane_offsets,
    count_sane_timestamps,
    find_offset,
    find_timestamp,
    offset_entries,
    timestamp_entries,
)
from kbroker._core.log.producer_table import ProducerTable
from kbroker._core.log.scan.segment_scan import SegmentScan, find_batch, scan_segment
from kbroker._core.wire.crc import crc32c_of
from kbroker._core.wire.record_batch import (
    batches,
)
from kbroker.config.broker_config import load_config
from kbroker.config.properties import parse_properties
from kbroker.errors import BadInput, ConfigError, DiskDamaged, KbrokerError, StorageFailed
from kbroker.fs import RealFileSystem
from kbroker.groups import records as group_records
from kbroker.groups.replay import PartitionReplay
from kbroker.groups.subscribed_topics import subscribed_topics
from kbroker.protocol import messages as M
from kbroker.protocol.api import SERVED, ApiKey, request_class, response_class
from kbroker.protocol.headers import decode_request, decode_response
from kbroker.protocol.messages import Message
from kbroker.protocol.records import encode_batch, read_batches, read_columns, read_records
from kbroker.rules.group import Group
from kbroker.storage import checkpoints
from kbroker.storage import directory as directories
from kbroker.storage.leader_epochs import LeaderEpochs
from kbroker.storage.log import Log
from kbroker.storage.options import LogOptions
from kbroker.storage.producer_state import decode_snapshot, encode_snapshot
from tests.fuzz.batches import (
    INFLATED_LIMIT,
    batch_seeds,
    compressed_seeds,
    feed_batch,
    feed_compressed,
    feed_message_set,
    mend,
    message_set_seeds,
)
from tests.fuzz.target import Target
from tests.kit.logs.home import LogHome, batch_of

FS = RealFileSystem()

# --- messages -----------------------------------------------------------------------------------------

KEYS = sorted(SERVED)
OTHER_MESSAGES = [
    M.ConsumerProtocolAssignment,
    M.ConsumerProtocolSubscription,
    M.GroupMetadataKey,
    M.GroupMetadataValue,
    M.OffsetCommitKey,
    M.OffsetCommitValue,
    M.RequestHeader,
    M.ResponseHeader,
]


def message_class(first: int) -> type[Message]:
    """By the input's first byte: bit 7 for responses, then the API key; what is no key stands for other messages."""
    key = first & 0x7F
    if key in SERVED:
        return (response_class if first & 0x80 else request_class)(ApiKey(key))
    return OTHER_MESSAGES[key % len(OTHER_MESSAGES)]


def feed_message(data: bytes) -> None:
    """A body of any message in any version: MalformedBytes, or a message that its own encoding gives again."""
    if len(data) < 2:
        return
    cls = message_class(data[0])
    version = cls.MIN_VERSION + data[1] % (cls.MAX_VERSION - cls.MIN_VERSION + 1)
    try:
        message = cls.decode(data[2:], version)
    except BadInput:
        return
    encoded = message.encode(version)
    # Unknown tagged fields are left out and varints are written short: no longer than it came, and the same message.
    assert len(encoded) <= len(data) - 2, (cls.__name__, version)
    # Not compared with ==: a float may be NaN.
    assert cls.decode(encoded, version).encode(version) == encoded, (cls.__name__, version)


def message_seeds() -> Iterator[bytes]:
    for key in KEYS:
        for first, cls in ((key, request_class(key)), (key | 0x80, response_class(key))):
            for version in range(cls.MIN_VERSION, cls.MAX_VERSION + 1):
                yield bytes((first, version - cls.MIN_VERSION)) + cls().encode(version)


def feed_headers(data: bytes) -> None:
    """Whole requests and responses, as clients and proxies read them."""
    if not data:
        return
    key = ApiKey(KEYS[data[0] % len(KEYS)])
    for decode in (lambda: decode_request(data[1:]), lambda: decode_response(key, SERVED[key].max, data[1:])):
        try:
            decode()
        except BadInput:
            pass


# --- files of a log -----------------------------------------------------------------------------------


def mend_batches(data: bytes) -> bytes:
    """A run of batches or sets of messages, each behind a byte as `mend` takes it and a 16-bit size."""
    made, at = bytearray(), 0
    while len(data) - at >= 3:
        fixes, size = data[at], int.from_bytes(data[at + 1 : at + 3])
        made += mend(fixes, data[at + 3 : at + 3 + size])
        at += 3 + size
    return bytes(made + data[at:])


def packed(*batches_of: bytes, fixes: int = 0) -> bytes:
    return b"".join(bytes([fixes]) + len(batch).to_bytes(2) + batch for batch in batches_of)


def feed_segment(data: bytes) -> None:
    """A segment file: what the scan leaves is whole, and scans the same again."""
    if len(data) < 3:
        return
    base_offset, index_interval = data[0], 1 << (data[1] & 15)
    content = mend_batches(data[2:])
    fd = os.memfd_create("segment")
    try:
        os.write(fd, content)
        first = scan(fd, len(content), base_offset, index_interval)
        assert 0 <= first.valid_size <= len(content)
        assert first.next_offset >= base_offset
        again = scan(fd, first.valid_size, base_offset, index_interval)
        assert again.reason is None
        assert facts(again) == facts(first)
        for entries in (offset_entries(first.index), timestamp_entries(first.time_index)):
            assert entries == sorted(entries)
        for seek in ({"timestamp": first.max_timestamp}, {"offset": first.next_offset - 1}, {"offset": 0}, {}):
            try:
                find_batch(fd, len(content), **seek)
            except StorageFailed:
                pass
    finally:
        os.close(fd)


def scan(fd: int, size: int, base_offset: int, index_interval: int) -> SegmentScan:
    return scan_segment(
        fd,
        size,
        base_offset,
        index_interval_bytes=index_interval,
        producers=ProducerTable(),
        progress=lambda count: None,
    )


def facts(found: SegmentScan) -> tuple[object, ...]:
    return (
        found.valid_size, found.next_offset, found.first_timestamp, found.max_timestamp, found.max_timestamp_offset,
        found.batches, found.index, found.time_index, found.epochs, found.last_time_entry, found.bytes_since_index,
    )  # fmt: skip


def segment_seeds() -> Iterator[bytes]:
    first = encode_batch([(5, b"k", b"v")] * 2, base_offset=0, leader_epoch=1)
    second = encode_batch([(9, None, b"w" * 60)] * 3, base_offset=2, leader_epoch=2, codec=2)
    third = encode_batch(
        [(7, b"k", b"v")], base_offset=9, leader_epoch=2, producer_id=1, producer_epoch=0, base_sequence=0
    )
    yield b"\0\x05" + packed(first, second, third)
    yield b"\0\x00" + packed(first, second[:-9])
    yield b"\0\x0f" + packed(first, first)


def feed_index(data: bytes) -> None:
    """Index files as they are found: entries past the sane ones are never looked at."""
    if len(data) < 8:
        return
    wanted, content = int.from_bytes(data[:8], signed=True), data[8:]
    sane = count_sane_offsets(content, 1 << 30, 1 << 30)
    assert 0 <= sane * 8 <= len(content)
    find_offset(content[: len(content) // 8 * 8], wanted & 0x7FFFFFFF)
    sane = count_sane_timestamps(content, 1 << 30)
    assert 0 <= sane * 12 <= len(content)
    find_timestamp(content[: len(content) // 12 * 12], wanted)


def with_directory(use: Callable[[Path], None]) -> None:
    place = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    folder = Path(tempfile.mkdtemp(prefix="kbroker-fuzz-", dir=place))
    try:
        use(folder)
    finally:
        shutil.rmtree(folder)


SUFFIXES = [
    "log", "index", "timeindex", "snapshot", "log.deleted", "log.cleaned", "log.swap", "txnindex", "partition.metadata",
    "leader-epoch-checkpoint", "leader-epoch-checkpoint.tmp", "stray",
]  # fmt: skip


def files_of(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Files as (kind, base offset, 16-bit size, bytes) one behind the other."""
    at = 0
    while len(data) - at >= 4:
        suffix, base_offset, size = (
            SUFFIXES[data[at] % len(SUFFIXES)],
            data[at + 1],
            int.from_bytes(data[at + 2 : at + 4]),
        )
        content = data[at + 4 : at + 4 + size]
        at += 4 + size
        if suffix.startswith("log"):
            content = mend_batches(content)
        elif suffix == "snapshot" and len(content) > 6 and content[0] & 1 == 0:
            content = content[:2] + crc32c_of(content[6:]).to_bytes(4) + content[6:]
        named = suffix if "-" in suffix or suffix in ("partition.metadata", "stray") else f"{base_offset:020d}.{suffix}"
        yield named, content


def feed_log_directory(data: bytes) -> None:
    """A partition's directory after a crash: it opens, reads from start to end, appends, and opens again the same."""
    if len(data) < 2:
        return

    def use(folder: Path) -> None:
        home = LogHome(folder, options=LogOptions(segment_bytes=1000, index_interval_bytes=50))
        home.log_path.mkdir()
        for name, content in files_of(data[2:]):
            (home.log_path / name).write_bytes(content)
        home.recovery_point = data[0]
        home.start_offset = data[1] & 0x1F
        try:
            log = home.reopen(clean=bool(data[1] & 0x80))
        except (StorageFailed, DiskDamaged):  # also a directory of another topic
            return
        assert 0 <= log.log_start_offset <= log.high_watermark <= log.log_end_offset
        read_to_the_end(log)
        try:
            log.offset_for_timestamp(0)
        except KbrokerError:
            pass
        end = log.log_end_offset
        if end < 2**62:
            result = log.append(batch_of([b"new"]))
            assert result.base_offset == end
            read_to_the_end(log)
        log.close()
        home.recovery_point, home.start_offset = 0, log.log_start_offset
        again = home.reopen(clean=False)
        assert again.log_start_offset == log.log_start_offset
        if not data[0] and not data[1] & 0x80:  # else something vouched for what is not there
            assert again.log_end_offset == log.log_end_offset
        again.close()

    with_directory(use)


def read_to_the_end(log: Log) -> None:
    offset = log.log_start_offset
    while offset < log.high_watermark:
        try:
            found = batches(log.read(offset, 1 << 20))
        except KbrokerError:  # a segment that was not read again may hold anything
            return
        if not found or found[-1].last_offset < offset:
            return
        offset = found[-1].last_offset + 1


def log_directory_seeds() -> Iterator[bytes]:
    def file(kind: str, base_offset: int, content: bytes) -> bytes:
        return bytes((SUFFIXES.index(kind), base_offset)) + len(content).to_bytes(2) + content

    first = encode_batch([(5, b"k", b"v")] * 2, base_offset=0, leader_epoch=1)
    second = encode_batch([(9, None, b"w" * 60)] * 3, base_offset=2, leader_epoch=2, codec=2)
    third = encode_batch(
        [(7, b"k", b"v")], base_offset=5, leader_epoch=2, producer_id=1, producer_epoch=0, base_sequence=0
    )
    yield b"\0\0" + file("log", 0, packed(first, second))
    table = ProducerTable()
    table.remember(1, 0, 0, 1, 5, 7)
    whole = [
        file("log", 0, packed(first, second)),
        file("index", 0, struct.pack(">ii", 2, len(first))),
        file("timeindex", 0, struct.pack(">qi", 9, 2)),
        file("log", 5, packed(third)),
        file("index", 5, b""),
        file("timeindex", 5, b""),
        file("snapshot", 5, encode_snapshot(table)),
        file("leader-epoch-checkpoint", 0, b"0\n2\n1 0\n2 2\n"),
        file("partition.metadata", 0, b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA\n"),
    ]
    yield b"\x05\0" + b"".join(whole)
    yield b"\x06\x80" + b"".join(whole)
    yield b"\x06\x83" + b"".join(whole)


def feed_small_files(data: bytes) -> None:
    """Checkpoints, leader epochs, topic ids, meta.properties, producer snapshots: our errors or values."""

    def use(folder: Path) -> None:
        at = folder / "file"
        at.write_bytes(data)
        path = str(at)
        for load in (checkpoints.load_offsets, checkpoints.load_epochs):
            try:
                load(FS, path)
            except DiskDamaged:
                pass
        checkpoints.load_topic_id(FS, path)
        (folder / directories.META_PROPERTIES).write_bytes(data)
        try:
            directories.load_meta_properties(FS, str(folder))
        except directories.WrongDirectory:
            pass
        (folder / checkpoints.LEADER_EPOCHS).write_bytes(data)
        epochs = LeaderEpochs(FS, str(folder))
        if epochs.load():
            epochs.truncate_from_end(10)
            epochs.truncate_from_start(3)
            epochs.end_offset_for(2, 9)

    with_directory(use)
    directories.parse_partition_directory(data.decode("latin-1"))
    mended = data[:2] + crc32c_of(data[6:]).to_bytes(4) + data[6:]
    for snapshot in (data, mended):
        try:
            table = decode_snapshot(snapshot)
        except ValueError:
            continue
        decode_snapshot(encode_snapshot(table))
        table.check(1, 0, 0, 1)


def small_file_seeds() -> Iterator[bytes]:
    yield b"0\n2\norders 0 17\nother-topic 12 9223372036854775807\n"
    yield b"0\n2\n1 0\n2 2\n"
    yield b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA\n"
    yield b"#\n#Sat Jan 01\nbroker.id=1\ncluster.id=abc\ndirectory.id=AAAAAAAAAAAAAAAAAAAAAA\nversion=0\n"
    table = ProducerTable()
    table.remember(1, 0, 0, 1, 5, 7)
    table.remember(2, 3, 2147483647, 5, 9, 8)
    yield encode_snapshot(table)


# --- what people write --------------------------------------------------------------------------------


def feed_properties(data: bytes) -> None:
    """server.properties: ConfigError, or a configuration."""
    try:
        parse_properties(data.decode("latin-1"), "fuzz")
    except ConfigError:
        pass

    def use(folder: Path) -> None:
        path = folder / "server.properties"
        path.write_bytes(data)
        try:
            load_config(path, environment={})
        except ConfigError:
            pass

    with_directory(use)


def properties_seeds() -> Iterator[bytes]:
    yield b"broker.id=0\nlisteners=PLAINTEXT://:9092,PLAINTEXT_HOST://localhost:29092\nnum.partitions = 3\n"
    yield b"listener.security.protocol.map=A:PLAINTEXT,B:SSL\nlisteners=A://[::1]:1\\\n,B://0.0.0.0:2\nlog.dirs=/a,/b\n"
    yield "log.retention.hours: 168\nlog.segment.bytes 1073741824\nzookeeper.connect=\\u0061\n#ü\n".encode()


# --- groups -------------------------------------------------------------------------------------------


def feed_group_records(data: bytes) -> None:
    """A record of __consumer_offsets, alone and as what a partition is loaded from."""
    if not data:
        return
    size = data[0]
    key, value = data[1 : 1 + size], data[1 + size :]
    for decode in (
        lambda: group_records.decode_key(key),
        lambda: group_records.decode_offset_value(value, 0),
        lambda: group_records.decode_group_value(value),
    ):
        try:
            decode()
        except BadInput:
            pass
    replay = PartitionReplay("fuzz")
    for batch in read_batches(encode_batch([(0, key, value), (0, key, None), (0, None, value), (0, key, value)])):
        replay.apply_batch(batch)
    for group_id, read, _ in replay.groups():
        if read is not None:
            named = read.protocol_type, read.protocol_name
            group = Group.restore(group_id, *named, read.generation, read.leader, read.members)
            group.start(0)
            subscribed_topics(group)


def group_record_seeds() -> Iterator[bytes]:
    key = struct.pack(">h", 1) + M.OffsetCommitKey(group="g", topic="t", partition=3).encode(1)
    for version in range(M.OffsetCommitValue.MIN_VERSION, M.OffsetCommitValue.MAX_VERSION + 1):
        value = M.OffsetCommitValue(offset=7, metadata="m", commit_timestamp=9)
        yield bytes([len(key)]) + key + struct.pack(">h", version) + value.encode(version)
    key = struct.pack(">h", 2) + M.GroupMetadataKey(group="g").encode(2)
    for version in range(M.GroupMetadataValue.MIN_VERSION, M.GroupMetadataValue.MAX_VERSION + 1):
        member = M.GroupMetadataValue.MemberMetadata(
            member_id="m", client_id="c", client_host="h", session_timeout=1, subscription=b"\0\0", assignment=b"\0\1"
        )
        value = M.GroupMetadataValue(
            protocol_type="consumer", generation=2, protocol="range", leader="m", members=[member]
        )
        yield bytes([len(key)]) + key + struct.pack(">h", version) + value.encode(version)


def feed_records(data: bytes) -> None:
    """What a fetch brought, as commands and internal readers read it: BadInput or records."""
    mended = mend_batches(data)
    for read in (
        lambda: list(read_records(mended, limit=INFLATED_LIMIT)),
        lambda: read_columns(mended, from_offset=1, to_offset=9, limit=INFLATED_LIMIT),
    ):
        try:
            read()
        except BadInput:
            pass


def records_seeds() -> Iterator[bytes]:
    for seed in segment_seeds():
        yield seed[2:]


TARGETS = [
    Target("message", feed_message, message_seeds, 1024, share=3),
    Target("headers", feed_headers, max_size=256),
    Target("batch", feed_batch, batch_seeds, 1024, share=3),
    Target("compressed", feed_compressed, compressed_seeds, 1024),
    Target("message-set", feed_message_set, message_set_seeds, 1024, share=2),
    Target("records", feed_records, records_seeds, 2048),
    Target("segment", feed_segment, segment_seeds, 2048, share=2),
    Target("index", feed_index, max_size=256),
    Target("log-directory", feed_log_directory, log_directory_seeds, 4096, share=3),
    Target("small-files", feed_small_files, small_file_seeds, 512),
    Target("properties", feed_properties, properties_seeds, 1024),
    Target("group-records", feed_group_records, group_record_seeds, 512),
]
