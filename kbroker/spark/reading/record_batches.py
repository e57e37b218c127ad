"""Makes Arrow batches for Spark of a partition's records, without a Python object for each record."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kbroker.spark.reading.timestamps import sparks_timestamps
from kbroker.spark.schema import arrow_schema_of

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql.types import StructType

    from kbroker._core.client.consumer.records import Records
    from kbroker.spark.options.format_options import SparkOptions

BATCH_BYTES = 1 << 20
"""The approximate size of a batch. Spark holds several, and larger ones do not fit into the CPU's caches."""

FIRST_ROWS, MOST_ROWS = 1_000, 50_000

OURS = {"timestampType": "timestamp_type"}


class RecordBatches:
    """Makes batches with the columns of `schema` of one partition's records."""

    def __init__(self, schema: StructType, topic: str, partition: int, options: SparkOptions):
        import pyarrow

        from kbroker.spark.decoding.value_formats import Decoding

        self._arrow = pyarrow
        self._schema = arrow_schema_of(schema)
        self._names = [OURS.get(name, name) for name in schema.names]
        # Columns that are the same in every record are made once (`_constants`), as long as the longest batch.
        self._decoding = Decoding(options, self._schema)
        of_records = [name for name in self._names if name not in ("topic", "partition", *self._decoding.made)]
        self._wanted = [*of_records, *(self._decoding.needed - {*of_records} if self._decoding else ())] or ["offset"]
        self._of_all = {"topic": topic, "partition": partition}
        self._place = topic, partition
        self._rows = FIRST_ROWS
        self._constants: dict[str, pyarrow.Array] = {}

    def convert(self, records: Records) -> Iterator[pyarrow.RecordBatch]:
        """Yield batches of about BATCH_BYTES each, estimated from the size of the rows before."""
        start = 0
        while start < len(records):
            taken = records[start : start + self._rows]
            batch = self._batch(taken)
            start += len(taken)
            self._rows = max(1, min(len(taken) * BATCH_BYTES // max(batch.nbytes, 1), MOST_ROWS))
            yield batch

    def _batch(self, records: Records) -> pyarrow.RecordBatch:
        found = records.arrow(self._wanted)
        decoded, stays = self._decoding.columns(found, *self._place) if self._decoding else ({}, None)
        arrays = []
        for name, field in zip(self._names, self._schema, strict=True):
            if name in decoded:
                arrays.append(decoded[name])
            elif name in self._of_all:
                arrays.append(self._constant(name, field.type, len(found)))
            elif name == "headers":
                arrays.append(self._headers(found.column(name), field.type))
            elif name == "timestamp":
                arrays.append(sparks_timestamps(found.column(name)).cast(field.type))
            elif field.type == found.schema.field(name).type:
                arrays.append(found.column(name))
            else:
                arrays.append(found.column(name).cast(field.type))
        batch = self._arrow.RecordBatch.from_arrays(arrays, schema=self._schema)
        return batch if stays is None else batch.filter(stays)

    def _constant(self, name: str, kind: pyarrow.DataType, count: int) -> pyarrow.Array:
        kept = self._constants.get(name)
        if kept is None or len(kept) < count:
            kept = self._constants[name] = self._arrow.repeat(self._arrow.scalar(self._of_all[name], kind), count)
        return kept.slice(0, count)

    def _headers(self, found: pyarrow.ListArray, kind: pyarrow.ListType) -> pyarrow.Array:
        """Return the column headers: null, not an empty list, for a record without any, as in Spark's own connector."""
        pairs = found.values
        values = self._arrow.StructArray.from_arrays(
            [pairs.field("key"), pairs.field("value")], fields=list(kind.value_type)
        )
        lengths = self._arrow.compute.list_value_length(found)
        none = self._arrow.compute.equal(lengths, 0)
        return self._arrow.ListArray.from_arrays(found.offsets, values, type=kind, mask=none)
