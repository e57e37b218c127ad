"""A partition as Apache Kafka leaves it, for a broker to go on with: magic 0 and 1, batches, decided transactions."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, field, replace
from pathlib import Path

from kbroker.fs import RealFileSystem
from kbroker.model import TopicPartition
from kbroker.protocol.compression import Codec, deflate
from kbroker.protocol.records import ControlType, encode_batch
from kbroker.storage import checkpoints, directory, file_names
from tests.kit.crash.history import History, Promise, Row, Sent, marker_row
from tests.kit.logs.directory import NOW, aborted, marker, write_partition
from tests.kit.models import message_set as message_set_model
from tests.kit.models.message_set import Message

CLUSTER_ID = "crashing"
CONTENTS = (
    ("magic 0",),
    ("magic 1",),
    ("magic 0", "magic 1", "transactions"),
    ("magic 1", "transactions"),
    ("transactions",),
    ("transactions",),
)
_BEFORE_EVERYTHING = -1
_FILES = RealFileSystem()


def write_old_log(root: Path, partition: TopicPartition, chance: random.Random) -> History:
    """Write the log, with everything synced. Return what the broker that takes over has to keep of it."""
    writer = _Writer(chance)
    for content in chance.choice(CONTENTS):
        for _ in range(chance.choice((1, 2, 3))):
            writer.write_segment(content)
    writer.close()
    end_offset = writer.end_offset
    first_epoch = next((at.base_offset for at in writer.sent if at.leader_epoch == 0), end_offset)
    write_partition(root, partition, writer.segments, [(0, first_epoch)] if first_epoch < end_offset else [])
    home = root / str(partition)
    for number, (base_offset, _) in enumerate(reversed(writer.segments), start=1):
        if base_offset in writer.aborted:
            path = home / file_names.file_name(base_offset, file_names.TRANSACTION_INDEX)
            path.write_bytes(b"".join(writer.aborted[base_offset]))
        # What a segment's age decides: tombstones of magic 0 and 1.
        written_s = 1_600_000_000 - number * 3600
        os.utime(home / file_names.file_name(base_offset, file_names.LOG), (written_s, written_s))
    _write_checkpoints(root, partition, end_offset, is_clean=chance.random() < 0.5)
    promised = [(_BEFORE_EVERYTHING, end_offset)]
    return History(writer.sent, Promise(list(promised)), Promise(list(promised)))


def _write_checkpoints(root: Path, partition: TopicPartition, end_offset: int, *, is_clean: bool) -> None:
    """Write the checkpoints of a clean stop, or those of a killed broker, whose log has to be recovered."""
    ends = {partition: end_offset if is_clean else 0}
    for name in (checkpoints.RECOVERY_POINTS, checkpoints.HIGH_WATERMARKS):
        checkpoints.store_offsets(_FILES, str(root / name), ends)
    directory.ensure_meta_properties(_FILES, str(root), 0, CLUSTER_ID)
    if is_clean:
        directory.set_clean_mark(_FILES, str(root))


@dataclass(slots=True)
class _Writer:
    chance: random.Random
    segments: list[tuple[int, list[bytes]]] = field(default_factory=list)
    sent: list[Sent] = field(default_factory=list)
    aborted: dict[int, list[bytes]] = field(default_factory=dict)
    """Entries of .txnindex, by the base offset of their segment."""
    end_offset: int = 0
    _opened: dict[int, int] = field(default_factory=dict)
    _sequences: dict[int, int] = field(default_factory=dict)

    def write_segment(self, content: str) -> None:
        self.segments.append((self.end_offset, []))
        for _ in range(self.chance.choice((3, 8))):
            if content == "transactions":
                self._write_of_transaction()
            else:
                self._write_messages(int(content[-1]))
        if content == "transactions" and self.chance.random() < 0.5:
            return  # some are open over the end of a segment
        self._decide_all()

    def close(self) -> None:
        """End all open transactions."""
        if self._opened:
            self.segments.append((self.end_offset, []))
            self._decide_all()

    def _rows(self, count: int) -> tuple[Row, ...]:
        return tuple(
            (
                b"key %d" % self.chance.randrange(7),
                None if self.chance.random() < 0.15 else b"%x" % self.chance.getrandbits(64) + b"x" * 40,
            )
            for _ in range(count)
        )

    def _write_messages(self, magic: int) -> None:
        rows = self._rows(self.chance.choice((1, 1, 3)))
        messages = []
        for key, value in rows:
            messages.append(Message(self.end_offset, NOW + self.end_offset if magic else -1, key, value, magic))
            self._note(
                Sent(_BEFORE_EVERYTHING, self.end_offset, ((key, value),), messages[-1].timestamp, -1, magic=magic)
            )
        codec = self.chance.choice((Codec.NONE, Codec.GZIP, Codec.LZ4))
        if codec == Codec.NONE:
            self.segments[-1][1].extend(map(message_set_model.encode, messages))
            return
        begin = messages[0].offset if magic else 0
        inner = message_set_model.encode_set([replace(each, offset=each.offset - begin) for each in messages])
        last = messages[-1]
        outer = Message(last.offset, last.timestamp, None, deflate(codec, inner, magic=magic), magic, codec)
        self.segments[-1][1].append(message_set_model.encode(outer))

    def _write_of_transaction(self) -> None:
        producer_id = self.chance.choice((-1, 300, 301, 302))
        if producer_id in self._opened and self.chance.random() < 0.4:
            self._decide(producer_id)
            return
        rows = self._rows(self.chance.choice((1, 1, 3)))
        sequence = self._sequences.get(producer_id, 0)
        is_transactional = producer_id >= 0
        producer = (producer_id, 0, sequence) if is_transactional else (-1, -1, -1)
        timestamp = NOW + self.end_offset
        batch = encode_batch(
            [(timestamp, key, value) for key, value in rows], base_offset=self.end_offset, leader_epoch=0,
            codec=self.chance.choice((Codec.NONE, Codec.ZSTD)), is_transactional=is_transactional,
            producer_id=producer[0], producer_epoch=producer[1], base_sequence=producer[2],
        )  # fmt: skip
        self.segments[-1][1].append(batch)
        if is_transactional:
            self._opened.setdefault(producer_id, self.end_offset)
            self._sequences[producer_id] = sequence + len(rows)
        self._note(
            Sent(_BEFORE_EVERYTHING, self.end_offset, rows, timestamp, 0, producer, is_transactional=is_transactional)
        )

    def _decide_all(self) -> None:
        for producer_id in list(self._opened):
            self._decide(producer_id)

    def _decide(self, producer_id: int) -> None:
        kind = self.chance.choice((ControlType.ABORT, ControlType.COMMIT))
        offset, first_offset = self.end_offset, self._opened.pop(producer_id)
        self.segments[-1][1].append(marker(offset, producer_id, kind))
        if kind == ControlType.ABORT:
            stable = min(self._opened.values(), default=offset + 1)
            entry = aborted(producer_id, first_offset, offset, stable)
            self.aborted.setdefault(self.segments[-1][0], []).append(entry)
        row = marker_row(commit=kind == ControlType.COMMIT, coordinator_epoch=3)
        self._note(Sent(_BEFORE_EVERYTHING, offset, (row,), NOW + offset, 0, (producer_id, 0, -1), is_control=True))

    def _note(self, sent: Sent) -> None:
        self.sent.append(sent)
        self.end_offset = sent.end_offset
