"""Writes, in a task, rows into Parquet files, one for each topic and hour. Memory is bounded, whatever comes."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from zlib import crc32

from kbroker.spark.loader.commits.commit import LakeFile, Part
from kbroker.spark.loader.hours import LAST_MS, hour_folder, is_dated
from kbroker.spark.loader.lake.storage import QUARANTINE, Storage
from kbroker.spark.loader.settings import Settings

if TYPE_CHECKING:
    import pyarrow

MOST_BUFFERED = 16 << 20
MOST_OPEN = 64
MOST_HELD = 32 << 20
"""Bounds: bytes of rows that are buffered, files that are open, and bytes that uploads to a store hold in memory.

With more hours than fit, an hour gets several files.
"""

PAGE_BYTES = 256 << 10  #: what is compressed at a time fits into the CPU's caches

REPEATED = ("partition", "timestampType", "reason")
NOT_READ_BACK = ("key", "value", "headers")
"""Columns without statistics: nobody looks for ranges of them, and comparing them takes time."""


@dataclass
class _Open:
    """A file that is being written."""

    topic: str
    hour: int
    staged: str
    sink: Any
    writer: Any = None
    batches: list[pyarrow.RecordBatch] = field(default_factory=list)
    buffered: int = 0
    rows: int = 0
    first_ms: int = 1 << 62
    last_ms: int = -1
    undated: int = 0
    parts: list[Part] = field(default_factory=list)


class HourFiles:
    """The files that one attempt of a task writes.

    `folder`: where they are staged; it is this attempt's alone. `generations`: how often topics were deleted and made
    again, without those that never were.
    """

    def __init__(
        self,
        storage: Storage,
        folder: str,
        settings: Settings,
        generations: dict[str, int],
        *,
        is_quarantine: bool = False,
    ):
        self._storage = storage
        self._folder = folder
        self._settings = settings
        self._generations = generations
        self._is_quarantine = is_quarantine
        self._open: OrderedDict[tuple[str, int], _Open] = OrderedDict()
        self._buffered = 0
        self._made = 0
        self._closed: list[LakeFile] = []

    def add(self, topic: str, partition: int, hour: int, batch: pyarrow.RecordBatch) -> None:
        """Add rows of one partition, in the order of their offsets."""
        import pyarrow.compute as compute

        file = self._file(topic, hour)
        file.batches.append(batch)
        size = batch.nbytes
        file.buffered += size
        self._buffered += size
        file.rows += len(batch)
        stamps = batch.column("timestamp").cast("int64")
        ends = compute.min_max(stamps)
        first_ms, last_ms = ends["min"].as_py(), ends["max"].as_py()
        file.first_ms, file.last_ms = min(file.first_ms, first_ms), max(file.last_ms, last_ms)
        if first_ms < 0 or last_ms > LAST_MS:
            file.undated += len(batch) - compute.sum(is_dated(stamps)).as_py()
        offsets = batch.column("offset")
        first, last = offsets[0].as_py(), offsets[-1].as_py()
        if file.parts and file.parts[-1].partition == partition:
            before = file.parts[-1]
            file.parts[-1] = before._replace(last=last, rows=before.rows + len(batch))
        else:
            file.parts.append(Part(partition, first, last, len(batch)))
        while self._buffered > MOST_BUFFERED:
            self._write(max(self._open.values(), key=lambda each: each.buffered))
            while self._held() > MOST_HELD:
                self._finish(next(iter(self._open)))

    def close(self) -> list[LakeFile]:
        """Finish all files, and return them. They are durable then."""
        while self._open:
            self._finish(next(iter(self._open)))
        return self._closed

    def abandon(self) -> None:
        """Close all files, after an error."""
        for file in self._open.values():
            with contextlib.suppress(OSError):
                file.sink.close()
        self._open.clear()

    def _held(self) -> int:
        """Return how many bytes open files hold in memory. A buffer that grows is up to twice what is in it."""
        most = self._storage.held_per_file
        return most and sum(min(2 * file.sink.tell(), most) for file in self._open.values())

    def _file(self, topic: str, hour: int) -> _Open:
        key = (topic, hour)
        file = self._open.get(key)
        if file is not None:
            self._open.move_to_end(key)
            return file
        if len(self._open) >= MOST_OPEN:
            self._finish(next(iter(self._open)))
        staged = f"{self._folder}/{self._made:06}{'.quarantine' * self._is_quarantine}"
        self._made += 1
        file = self._open[key] = _Open(topic, hour, staged, self._storage.open_output(staged))
        return file

    def _write(self, file: _Open) -> None:
        """Write what is buffered as a row group."""
        import pyarrow
        import pyarrow.parquet as parquet

        if not file.batches:
            return
        table = pyarrow.Table.from_batches(file.batches)
        self._buffered -= file.buffered
        file.batches, file.buffered = [], 0
        if file.writer is None:
            names = table.schema.names
            value = table.schema.field("value").type
            of_value = [] if pyarrow.types.is_binary(value) else list(leaves("value", value))
            settings = self._settings
            file.writer = parquet.ParquetWriter(
                file.sink,
                table.schema,
                compression=settings.compression,
                compression_level=settings.compression_level,
                use_dictionary=[name for name in names if name in REPEATED] + of_value,
                write_statistics=[name for name in names if name not in NOT_READ_BACK] + of_value,
                column_encoding={"offset": "DELTA_BINARY_PACKED", "timestamp": "DELTA_BINARY_PACKED"},
                data_page_size=PAGE_BYTES,
                store_schema=False,
            )
        begin = file.sink.tell()
        file.writer.write_table(table, row_group_size=max(1, len(table)))
        self._storage.start_writeback(file.sink, begin)

    def _finish(self, key: tuple[str, int]) -> None:
        file = self._open[key]
        self._write(file)
        file.writer.close()
        size = file.sink.tell()
        file.sink.close()
        self._storage.sync(file.staged)
        del self._open[key]
        self._closed.append(
            LakeFile(
                path=self._path(file),
                staged=file.staged,
                topic=file.topic,
                hour=file.hour,
                rows=file.rows,
                size=size,
                first_ms=file.first_ms,
                last_ms=file.last_ms,
                parts=tuple(file.parts),
                generation=self._generations.get(file.topic, 0),
                is_quarantine=self._is_quarantine,
                undated=file.undated,
            )
        )

    def _path(self, file: _Open) -> str:
        """Return the name of a file, which is made of its offsets.

        No other file of the topic has these offsets, and a file that replaces it has another name or the same rows. The
        name covers all partitions of the file, because a reload may pack partitions in another way.
        """
        first, *others = file.parts
        name = f"part-{first.partition}-{first.first}-{first.last}"
        if others:
            name += f"-and-{len(others)}-more-{crc32(repr(others).encode()):08x}"
        if generation := self._generations.get(file.topic, 0):
            name += f"-generation-{generation}"
        folder = hour_folder(file.topic, file.hour)
        # Not .parquet: these rows are not part of the lake.
        return f"{QUARANTINE}/{folder}/{name}.undecodable" if self._is_quarantine else f"{folder}/{name}.parquet"


def leaves(name: str, kind: pyarrow.DataType) -> Iterator[str]:
    """Yield the names of a column's leaves, as Parquet has them."""
    import pyarrow.types as types

    if types.is_struct(kind):
        for field in kind:
            yield from leaves(f"{name}.{field.name}", field.type)
    elif types.is_map(kind):
        yield from leaves(f"{name}.key_value.key", kind.key_type)
        yield from leaves(f"{name}.key_value.value", kind.item_type)
    elif types.is_list(kind):
        yield from leaves(f"{name}.list.element", kind.value_type)
    else:
        yield name
