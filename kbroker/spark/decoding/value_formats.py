"""The options valueFormat, keyFormat and those that belong to them: the types of decoded columns, and their decoding.

A decoded column, key or value, keeps its name and gets another type than binary. With json that is the type in
`valueSchema`; with avro it is the type that Spark's from_avro gives the schema; with string it is a string. `mode` says
what becomes of a record that cannot be decoded.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kbroker.errors import KbrokerError
from kbroker.spark.errors import WrongOption
from kbroker.spark.options.format_options import BINARY

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType, StructType

    from kbroker.spark.decoding.decoders import Decoded, Decoder
    from kbroker.spark.options.format_options import SparkOptions

COLUMNS = ("key", "value")
CORRUPT = "columnNameOfCorruptRecord"


class BadRecord(KbrokerError):
    """A record that cannot be decoded, in mode FAILFAST."""


# --- on the driver: types -----------------------------------------------------------------------------------


def settled(options: SparkOptions) -> dict[str, str]:
    """Return those options that only a registry can answer: Avro schemas that the user has not given.

    Raises WrongOption unless `subscribe` and `assign` name exactly one topic, and what SchemaRegistry.latest raises.
    """
    found = {}
    for column in COLUMNS:
        name = f"{column}Schema"
        if options[f"{column}Format"] == "avro" and not options.is_given(name) and options.is_given("schemaRegistry"):
            from kbroker.spark.decoding.schema_registry import registry

            latest = registry(options["schemaRegistry"]).latest(f"{_only_topic(options, name)}-{column}")
            # A schema with references becomes a list: first the references, and last the schema itself.
            found[name] = latest.text if not latest.references else json.dumps([*latest.references, latest.text])
    return found


def _only_topic(options: SparkOptions, name: str) -> str:
    topics = set(options["subscribe"] or ()) | {each.topic for each in options["assign"] or ()}
    if len(topics) != 1:
        raise WrongOption(f"option {name} is missing: only of a single topic a registry is asked for the latest schema")
    return str(topics.pop())


def decoded_schema(options: SparkOptions, plain: StructType) -> StructType | str:
    """Return `plain` with the types of decoded columns; as DDL if the user gave DDL, which only Spark's JVM reads.

    Raises WrongOption when the options of formats do not fit.
    """
    from pyspark.sql.types import BinaryType, StructField, StructType

    check_formats(options)
    types = {column: _type(options, column) for column in COLUMNS if options[f"{column}Format"] != BINARY}
    if not types:
        return plain
    fields = [(field.name, types.get(field.name, field.dataType)) for field in plain]
    if (corrupt := options[CORRUPT]) and "value" in types and "value" in plain.names:
        if corrupt.lower() in (name.lower() for name, _ in fields):
            raise WrongOption(f"option {CORRUPT}={corrupt!r}: there is such a column already")
        fields.append((corrupt, BinaryType()))
    if any(isinstance(kind, str) for _, kind in fields):
        return ", ".join(f"{_quoted(name)} {_ddl(kind)}" for name, kind in fields)
    return StructType([StructField(name, kind) for name, kind in fields if not isinstance(kind, str)])


def check_formats(options: SparkOptions) -> None:
    """Raise WrongOption when an option that a format needs is missing, or an option is given that no format uses.

    This asks no registry.
    """
    for column in COLUMNS:
        form, name = options[f"{column}Format"], f"{column}Schema"
        if options.is_given(name) and form not in ("json", "avro"):
            raise WrongOption(f"option {name} is given without {column}Format json or avro")
        if form == "json" and not options.is_given(name):
            raise WrongOption(
                f"option {name} is missing: {column}Format=json needs it, as DDL or JSON of Spark's types"
            )
        if form == "avro" and not options.is_given(name) and not options.is_given("schemaRegistry"):
            raise WrongOption(f"option schemaRegistry is missing: {column}Format=avro needs it or {name}")


def _type(options: SparkOptions, column: str) -> DataType | str:
    """Return the type of a decoded column, or the user's DDL. Raises WrongOption when the text is neither."""
    from pyspark.sql.types import StringType

    form, text = options[f"{column}Format"], options[f"{column}Schema"]
    if form == "string":
        return StringType()
    if form == "avro":
        from kbroker.spark.decoding.avro_schemas import spark_type

        try:
            return _of_json(spark_type(_avro_schema(text)))
        except ValueError as error:
            raise WrongOption(f"option {column}Schema: must be {error}") from None
    if not text.lstrip().startswith(("{", '"')):
        ddl = re.sub(r"\bNOT\s+NULL\b", "", text, flags=re.IGNORECASE)  # a field that is not in a JSON text is null
        return ddl if re.match(r"\s*struct\s*<", ddl, re.IGNORECASE) else f"STRUCT<{ddl}>"
    try:
        return _of_json(json.loads(text))
    except Exception:
        raise WrongOption(f"option {column}Schema: must be DDL, or JSON as StructType.json() gives it") from None


def _of_json(found: Any) -> DataType:
    """Return the type that Spark's JSON `found` describes, with all parts nullable."""
    from pyspark.sql.types import StructField, StructType

    whole = StructType.fromJson(
        {"type": "struct", "fields": [{"name": "it", "type": found, "nullable": True, "metadata": {}}]}
    )
    (field,) = StructType([StructField("it", whole.fields[0].dataType)]).toNullable().fields
    return field.dataType


def _avro_schema(text: str) -> Any:
    """Return the Avro schema in `text`, which may be a list made by `settled`. Raises ValueError for other texts."""
    from kbroker.spark.decoding.avro_schemas import parsed

    try:
        parts = json.loads(text)
    except ValueError:
        parts = None
    if isinstance(parts, list) and parts and all(isinstance(each, str) and "{" in each for each in parts):
        return parsed(parts[-1], parts[:-1])
    return parsed(text)


def check_types(options: SparkOptions, schema: StructType) -> None:
    """Raise WrongOption when no decoder makes the type of a column. Spark may have made the type from DDL."""
    from kbroker.spark.schema import arrow_schema_of

    Decoding(options, arrow_schema_of(schema))


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _ddl(kind: DataType | str) -> str:
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(kind, str):
        return kind
    if isinstance(kind, StructType):
        return f"STRUCT<{', '.join(f'{_quoted(each.name)}: {_ddl(each.dataType)}' for each in kind)}>"
    if isinstance(kind, ArrayType):
        return f"ARRAY<{_ddl(kind.elementType)}>"
    if isinstance(kind, MapType):
        return f"MAP<{_ddl(kind.keyType)}, {_ddl(kind.valueType)}>"
    return kind.simpleString()


# --- in tasks: batches --------------------------------------------------------------------------------------


class Decoding:
    """Decodes the columns of one reader's batches. Not safe for several threads."""

    def __init__(self, options: SparkOptions, schema: pa.Schema):
        """Raises WrongOption when nothing is decoded to the type of a column."""
        self._mode = options["mode"]
        self._decoders = {
            column: decoder_of(options, column, schema.field(column).type)
            for column in COLUMNS
            if options[f"{column}Format"] != BINARY and column in schema.names
        }
        self._corrupt = options[CORRUPT] if "value" in self._decoders else None

    def __bool__(self) -> bool:
        return bool(self._decoders)

    @property
    def made(self) -> frozenset[str]:
        """The names of the columns that `columns` returns."""
        return frozenset(self._decoders) | ({self._corrupt} if self._corrupt else set())

    @property
    def needed(self) -> frozenset[str]:
        """The names of the columns that `columns` needs: offset, and those with bytes to decode."""
        return frozenset(self._decoders) | {"offset"} | ({"value"} if self._corrupt else set())

    def columns(
        self, batch: pa.RecordBatch, topic: str, partition: int
    ) -> tuple[Mapping[str, pa.Array], pa.BooleanArray | None]:
        """Return the decoded columns of a batch, and which rows stay, or None if all do.

        Raises BadRecord, which names the first bad record, when there is one and `mode` is FAILFAST.
        """
        import pyarrow.compute as pc

        made: dict[str, pa.Array] = {}
        stays = None
        for column, decoder in self._decoders.items():
            found = decoder.decode(batch.column(column))
            made[column] = found.values
            if len(found.bad_rows):
                if self._mode == "FAILFAST":
                    _fail(found, column, batch, topic, partition)
                stays = pc.invert(found.bad) if stays is None else pc.and_(stays, pc.invert(found.bad))
            if self._corrupt and column == "value":
                import pyarrow as pa

                made[self._corrupt] = pc.if_else(found.bad, batch.column("value"), pa.scalar(None, pa.binary()))
        return made, stays if self._mode == "DROPMALFORMED" else None


def _fail(found: Decoded, column: str, batch: pa.RecordBatch, topic: str, partition: int) -> None:
    offset = batch.column("offset")[found.bad_rows[0].as_py()].as_py()
    raise BadRecord(
        f"{topic}-{partition}, offset {offset}: the {column} cannot be decoded: {found.reasons_of_bad[0].as_py()}; "
        "set mode=PERMISSIVE for null in its place, or mode=DROPMALFORMED to leave it out"
    )


def decoder_of(options: SparkOptions, column: str, kind: pa.DataType) -> Decoder:
    """Return the decoder of a column of the Arrow type `kind`. Raises WrongOption when no decoder makes this type."""
    from kbroker.spark.decoding.decoders import AvroDecoder, JsonDecoder, StringDecoder

    form = options[f"{column}Format"]
    if form == "string":
        return StringDecoder()
    try:
        if form == "json":
            return JsonDecoder(kind)
        schema = _avro_schema(options[f"{column}Schema"])
        if options["avroFraming"] == "none":
            return AvroDecoder(kind, schema, None)
        if options.is_given("schemaRegistry"):
            from kbroker.spark.decoding.schema_registry import registry

            return AvroDecoder(kind, schema, registry(options["schemaRegistry"]).schema)
        return AvroDecoder(kind, schema, lambda _: schema)
    except ValueError as error:
        raise WrongOption(f"option {column}Schema: {error}") from None
