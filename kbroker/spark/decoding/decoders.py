"""Decodes columns of bytes into typed columns, from JSON, Avro or text. Readers of topics and loads use it.

    decoder = JsonDecoder(pa.struct([("member", pa.int64()), ("page", pa.string())]))
    found = decoder.decode(values)      # a pyarrow.BinaryArray
    found.values, found.bad, found.reasons

A null value, which deletes its key in a compacted topic, stays null and is not bad. A bad value becomes what it is in
Spark's PERMISSIVE mode: a struct whose fields are null, except those of a JSON text that could be read. If the type is
not a struct, a bad value becomes null.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from kbroker._core.rows.avro import AvroRows
from kbroker._core.rows.json import JsonRows
from kbroker._core.rows.typed_columns import REASONS, BinaryRows
from kbroker._core.wire.columns import FlatBuffer
from kbroker.spark.decoding.avro_schemas import Incompatible, NotAvro, Schema, plan_of
from kbroker.spark.decoding.column_types import array_of, paths_of, spec_of

log = logging.getLogger("kbroker.spark")

NOT_UTF8 = REASONS.index("it is not UTF-8")


@dataclass(frozen=True)
class Decoded:
    """Decoded values, as many as there were, and which of them are bad.

    `bad_rows` are row numbers (int64), ascending. For each of them, `_reasons` has a place in REASONS and `_paths` one
    in `paths`.
    """

    values: pa.Array
    bad_rows: pa.Array
    _reasons: pa.Array
    _paths: pa.Array
    paths: list[str]

    @cached_property
    def bad(self) -> pa.BooleanArray:
        """For each value, whether it is bad."""
        return pc.is_in(_row_numbers(len(self.values)), value_set=self.bad_rows)

    @cached_property
    def reasons(self) -> pa.StringArray:
        """For each value, why it is bad; null for good ones."""
        of_row = pc.index_in(_row_numbers(len(self.values)), value_set=self.bad_rows)
        return pc.take(self.reasons_of_bad, of_row)

    @cached_property
    def reasons_of_bad(self) -> pa.StringArray:
        """For each of `bad_rows`, why it is bad."""
        codes = pc.add(pc.multiply(self._reasons.cast(pa.int64()), len(self.paths)), self._paths.cast(pa.int64()))
        distinct = codes.dictionary_encode()
        texts = [self._text(*divmod(code.as_py(), len(self.paths))) for code in distinct.dictionary]
        return pa.DictionaryArray.from_arrays(distinct.indices, pa.array(texts, pa.string())).cast(pa.string())

    def _text(self, reason: int, path: int) -> str:
        where = f"field {self.paths[path]}: " if self.paths[path] else ""
        return where + REASONS[reason]


class Decoder(Protocol):
    """The interface of decoders, which decode one column each. Not safe for several threads."""

    def decode(self, values: pa.BinaryArray) -> Decoded: ...


class StringDecoder:
    """Decodes text in UTF-8. A value that is not UTF-8 is bad and becomes null."""

    def decode(self, values: pa.BinaryArray) -> Decoded:
        bad = _numbers(_rows(values).not_utf8())
        if len(bad):
            good = pc.invert(pc.is_in(_row_numbers(len(values)), value_set=bad))
            values = pc.if_else(good, values, pa.scalar(None, pa.binary()))
        zeros = pa.repeat(pa.scalar(0, pa.int32()), len(bad))
        return Decoded(values.view(pa.string()), bad, pc.add(zeros, NOT_UTF8), zeros, [""])


class JsonDecoder:
    """Decodes JSON texts, one in each value, to an Arrow type.

    Raises ValueError when JSON cannot be decoded to this type.
    """

    def __init__(self, kind: pa.DataType):
        spec = spec_of(kind)
        self._kind = kind
        self._paths = paths_of(spec)
        self._rows = JsonRows(spec)

    def decode(self, values: pa.BinaryArray) -> Decoded:
        self._rows.decode(_rows(values))
        return _decoded(self._kind, self._rows.finish(), self._paths)


class AvroDecoder:
    """Decodes Avro's binary encoding. Values are read with `schema`, whose Arrow type is `kind`.

    `written_with` returns the schema of an id, or None for an unregistered id, or raises NotAvro for a schema of
    another kind. If it is None, values have no id before them and were written with `schema` itself.
    """

    def __init__(self, kind: pa.DataType, schema: Schema, written_with: Callable[[int], Schema | None] | None):
        self._spec = spec_of(kind)
        self._kind = kind
        self._schema = schema
        self._written_with = written_with
        self._paths = paths_of(self._spec)
        self._rows = AvroRows(self._spec, written_with is not None)
        if written_with is None:
            self._rows.add(0, plan_of(schema, schema, self._spec))

    def decode(self, values: pa.BinaryArray) -> Decoded:
        rows = _rows(values)
        while (schema_id := self._rows.decode(rows)) is not None:
            self._add(schema_id)
        return _decoded(self._kind, self._rows.finish(), self._paths)

    def _add(self, schema_id: int) -> None:
        assert self._written_with is not None
        plan = None
        try:
            writer = self._written_with(schema_id)
            if writer is None:
                self._rows.add_unknown(schema_id)
                return
            plan = plan_of(writer, self._schema, self._spec)
        except (Incompatible, NotAvro) as error:
            log.warning("schema %d cannot be read as the one that is wanted: %s", schema_id, error)
        self._rows.add(schema_id, plan)


def _rows(values: pa.BinaryArray) -> BinaryRows:
    validity, offsets, data = values.buffers()
    return BinaryRows(validity, offsets or b"\0\0\0\0", data, values.offset, len(values))


def _decoded(kind: pa.DataType, finished: tuple[Any, tuple[Any, ...]], paths: list[str]) -> Decoded:
    taken, (rows, reasons, nodes) = finished
    return Decoded(array_of(kind, taken), _numbers(rows), _numbers(reasons), _numbers(nodes), paths)


def _numbers(found: FlatBuffer) -> pa.Array:
    """Return an Arrow array over `found`, whose items are int64 or int32."""
    kind = pa.int64() if memoryview(found).itemsize == 8 else pa.int32()
    return pa.Array.from_buffers(kind, len(found), [None, pa.py_buffer(found)])


def _row_numbers(count: int) -> pa.Array:
    ones = pa.repeat(pa.scalar(1, pa.int64()), count)
    return pc.subtract(pc.cumulative_sum(ones), 1)
