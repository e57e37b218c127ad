"""A log directory as a clean stop leaves it, with files of every kind: all codecs and formats, transactions, epochs."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kbroker._core.log.producer_table import ProducerTable
from kbroker._core.log.scan.segment_scan import scan_segment
from kbroker._core.wire.message_set import MessageSetBuilder
from kbroker.fs import RealFileSystem
from kbroker.groups import records
from kbroker.model import TopicPartition
from kbroker.protocol import messages as M
from kbroker.protocol.compression import Codec, deflate
from kbroker.protocol.records import ControlType, Record, encode_batch
from kbroker.storage import checkpoints, directory, file_names
from kbroker.storage.index_entries import TIME_INDEX_ENTRY
from kbroker.storage.producer_state import store_snapshot
from tests.kit.logs.home import TOPIC_ID
from tests.kit.wire.batches import encode_control_batch

NOW = 1_700_000_000_000
INDEX_INTERVAL = 150
FILES = RealFileSystem()


def batch(base_offset: int, count: int = 3, codec: int = Codec.NONE, epoch: int = 0, **fields: int) -> bytes:
    made = [
        Record(base_offset + i, NOW + base_offset + i, b"k%d" % i, b"value %d " % i * 5, [("h", b"\xff")])
        for i in range(count)
    ]
    return encode_batch(made, base_offset=base_offset, codec=codec, leader_epoch=epoch, **fields)


def marker(offset: int, producer_id: int, kind: ControlType, epoch: int = 0) -> bytes:
    return encode_control_batch(
        kind,
        NOW + offset,
        producer_id=producer_id,
        producer_epoch=0,
        coordinator_epoch=3,
        base_offset=offset,
        leader_epoch=epoch,
    )


def message(offset: int, magic: int, value: bytes = b"value" * 8) -> bytes:
    return message_set([offset], magic, Codec.NONE, value)


def message_set(offsets: Sequence[int], magic: int, codec: int, value: bytes = b"value" * 8) -> bytes:
    """Return messages of magic 0 or 1, inside of one compressed message if there is a codec."""
    builder = MessageSetBuilder(magic, compressed=codec != Codec.NONE)
    for offset in offsets:
        builder.append(offset, NOW + offset, b"key", value)
    if codec == Codec.NONE:
        return builder.messages()
    return builder.wrap(codec, deflate(codec, builder.messages(), magic=magic))


def aborted(producer_id: int, first_offset: int, last_offset: int, last_stable_offset: int) -> bytes:
    return struct.pack(">hqqqq", 0, producer_id, first_offset, last_offset, last_stable_offset)


def write_partition(
    root: Path,
    partition: TopicPartition,
    segments: Sequence[tuple[int, Sequence[bytes]]],
    epochs: Sequence[tuple[int, int]] = ((0, 0),),
) -> int:
    """Write a partition's directory, with segments of (base offset, batches). Return the log's end offset."""
    home = root / str(partition)
    home.mkdir(parents=True)
    producers = ProducerTable()
    next_offset = 0
    for number, (base_offset, batches) in enumerate(segments):
        if number:
            store_snapshot(FILES, str(home), base_offset, producers)
        path = home / file_names.file_name(base_offset, file_names.LOG)
        path.write_bytes(b"".join(batches))
        with path.open("rb") as file:
            scan = scan_segment(
                file.fileno(),
                path.stat().st_size,
                base_offset,
                index_interval_bytes=INDEX_INTERVAL,
                producers=producers,
            )
        assert scan.reason is None, scan.reason
        time_index = scan.time_index
        if scan.max_timestamp > scan.last_time_entry:
            time_index += TIME_INDEX_ENTRY.pack(scan.max_timestamp, scan.max_timestamp_offset - base_offset)
        path.with_suffix(file_names.INDEX).write_bytes(scan.index)
        path.with_suffix(file_names.TIME_INDEX).write_bytes(time_index)
        next_offset = scan.next_offset
    store_snapshot(FILES, str(home), next_offset, producers)
    checkpoints.store_epochs(FILES, str(home / checkpoints.LEADER_EPOCHS), list(epochs))
    checkpoints.store_topic_id(FILES, str(home / checkpoints.PARTITION_METADATA), TOPIC_ID)
    return next_offset


def of_every_codec(magic: int, base_offset: int = 0) -> list[bytes]:
    """Return batches of three records each, one batch for each codec."""
    if magic == 2:
        return [batch(base_offset + 3 * at, codec=codec) for at, codec in enumerate(Codec)]
    codecs = [codec for codec in Codec if codec != Codec.ZSTD]
    made = []
    for at, codec in enumerate(codecs):
        offsets = range(base_offset + 3 * at, base_offset + 3 * at + 3)
        made += (
            [message_set(offsets, magic, codec)]
            if codec
            else [message_set([offset], magic, codec) for offset in offsets]
        )
    return made


def offsets_records() -> list[tuple[int, bytes | None, bytes | None]]:
    """Return records of `__consumer_offsets` in every version that Kafka has written, and some in unknown ones."""
    key = records.offset_key("g", TopicPartition("views", 3))
    group = records.group_key("g")
    subscription = b"\0\1" + M.ConsumerProtocolSubscription(topics=["a", "b"], user_data=b"\xff").encode(1)
    owned = M.ConsumerProtocolAssignment.TopicPartition(topic="a", partitions=[0, 1])
    assignment = b"\0\0" + M.ConsumerProtocolAssignment(assigned_partitions=[owned]).encode(0)

    def offset_value(version: int, **fields: Any) -> bytes:
        value = M.OffsetCommitValue(offset=17, metadata="meta \u00fc", commit_timestamp=1000, **fields)
        return struct.pack(">h", version) + value.encode(version)

    def group_value(version: int, subscription: bytes = subscription, assignment: bytes = assignment) -> bytes:
        member = M.GroupMetadataValue.MemberMetadata(
            member_id="m1", client_id="c", client_host="/1", session_timeout=10, rebalance_timeout=20,
            group_instance_id="i", subscription=subscription, assignment=assignment,
        )  # fmt: skip
        value = M.GroupMetadataValue(
            protocol_type="consumer", generation=4, protocol="range", leader="m1", members=[member],
            current_state_timestamp=77,
        )  # fmt: skip
        return struct.pack(">h", version) + value.encode(version)

    values = [
        (key, offset_value(0)),
        (key, offset_value(1, expire_timestamp=99)),
        (key, offset_value(2)),
        (key, offset_value(3, leader_epoch=2)),
        (key, None),
        *((group, group_value(version)) for version in range(4)),
        (group, group_value(3, b"junk", b"")),
        (group, None),
        (b"\0\x63x", b"y"),
        (b"\0\1bad", b"y"),
        (key, b"\0\x09"),
        (b"\0\3\0\1g", b"\0\0\0\0\0\5\0"),
    ]
    return [(NOW + at, key, value) for at, (key, value) in enumerate(values)]


def transaction_records() -> list[tuple[int, bytes | None, bytes | None]]:
    """Return records of `__transaction_state` in each version and state."""
    key = b"\0\0" + M.TransactionLogKey(transactional_id="tx").encode(0)
    topic = M.TransactionLogValue.PartitionsSchema(topic="a", partition_ids=[0, 1])

    def value(version: int, status: int, topics: list[M.TransactionLogValue.PartitionsSchema] | None) -> bytes:
        made = M.TransactionLogValue(
            producer_id=9, producer_epoch=1, transaction_timeout_ms=60000, transaction_status=status,
            transaction_partitions=topics, transaction_last_update_timestamp_ms=5, transaction_start_timestamp_ms=4,
        )  # fmt: skip
        return struct.pack(">h", version) + made.encode(version)

    values = [
        value(0, 0, None),
        *(value(at % 2, status, [topic]) for at, status in enumerate((1, 2, 3, 4, 5, 6, 7))),
        None,
    ]
    return [(NOW + at, key, one) for at, one in enumerate(values)]


def write_state_logs(root: Path) -> None:
    for topic, found in (("__consumer_offsets", offsets_records()), ("__transaction_state", transaction_records())):
        write_partition(root, TopicPartition(topic, 0), [(0, [encode_batch(found, leader_epoch=0)])])


def make_log_directory(root: Path) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    ends = {}

    def write(
        topic: str, *segments: tuple[int, Sequence[bytes]], epochs: Sequence[tuple[int, int]] = ((0, 0),)
    ) -> None:
        partition = TopicPartition(topic, 0)
        ends[partition] = write_partition(root, partition, segments, epochs)

    write("codecs", (0, of_every_codec(2)), (15, of_every_codec(2, 15)))
    write("old", (0, of_every_codec(0)), (12, [*of_every_codec(1, 12), batch(24)]), (27, [batch(27)]), epochs=[(0, 24)])
    write(
        "elected",
        (0, [batch(0), batch(3, epoch=2), batch(6, epoch=2)]),
        (9, [batch(9, epoch=2), batch(12, epoch=5), batch(15, epoch=5)]),
        epochs=[(0, 0), (2, 3), (5, 12)],
    )
    one = {"producer_id": 7, "producer_epoch": 0, "is_transactional": True}
    other = {**one, "producer_id": 8}
    write(
        "transactions",
        (0, [
            batch(0, base_sequence=0, **one), batch(3, base_sequence=0, **other), batch(6, base_sequence=3, **one),
            marker(9, 7, ControlType.ABORT), batch(10, base_sequence=6, **one), marker(13, 7, ControlType.COMMIT),
        ]),
        (14, [batch(14, base_sequence=3, **other), marker(17, 8, ControlType.ABORT), batch(18)]),
    )  # fmt: skip
    home = root / "transactions-0"
    (home / file_names.file_name(0, file_names.TRANSACTION_INDEX)).write_bytes(aborted(7, 0, 9, 3))
    (home / file_names.file_name(14, file_names.TRANSACTION_INDEX)).write_bytes(aborted(8, 3, 17, 18))
    write("empty", (0, []))
    for name in (checkpoints.RECOVERY_POINTS, checkpoints.HIGH_WATERMARKS):
        checkpoints.store_offsets(FILES, str(root / name), ends)
    checkpoints.store_offsets(FILES, str(root / checkpoints.LOG_START_OFFSETS), {})
    directory.ensure_meta_properties(FILES, str(root), 1, "kb-K3-kraft-or-not-3wA")
    directory.set_clean_mark(FILES, str(root))
    return root
