"""Decodes values into typed columns. Records with values that cannot be decoded go into quarantine, with the reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.spark.decoding.value_formats import check_formats, decoded_schema, decoder_of, settled
from kbroker.spark.errors import WrongOption
from kbroker.spark.loader.settings import Settings
from kbroker.spark.options.format_options import SparkOptions, Use

if TYPE_CHECKING:
    import pyarrow

    from kbroker.spark.decoding.decoders import Decoder

FORMATS = ("valueFormat", "valueSchema", "schemaRegistry", "avroFraming")


def check_values(settings: Settings) -> None:
    """Raise WrongOption when `settings.formats` is wrong. What only Spark or a registry can tell is not checked."""
    if not settings.formats:
        return
    if unknown := settings.formats.keys() - FORMATS:
        raise WrongOption(f"formats: {min(unknown)} is none of {', '.join(FORMATS)}")
    if "valueFormat" not in settings.formats:
        raise WrongOption("formats: valueFormat is missing: string, json or avro")
    check_formats(SparkOptions(_given(settings), Use.BATCH_READ))


def value_type(settings: Settings, topics: list[str]) -> tuple[Settings, pyarrow.DataType | None]:
    """Return, on the driver, the settings with all that a registry has answered, and the type of the column value.

    The type is None if values stay bytes. A schema in DDL needs a Spark session. Raises WrongOption when the schema is
    none, or nothing is decoded to it.
    """
    if not settings.formats:
        return settings, None
    from dataclasses import replace

    from pyspark.errors import ParseException
    from pyspark.sql.types import BinaryType, StructField, StructType

    from kbroker.spark.schema import arrow_schema_of

    given = {**_given(settings), "subscribe": ",".join(topics)}
    given |= settled(SparkOptions(given, Use.BATCH_READ))
    schema = decoded_schema(SparkOptions(given, Use.BATCH_READ), StructType([StructField("value", BinaryType())]))
    if isinstance(schema, str):
        try:
            found = StructType.fromDDL(schema)
        except ParseException as error:
            said = str(error).strip().partition(" SQLSTATE")[0]
            raise WrongOption(f"option valueSchema: must be DDL like 'id LONG, name STRING': {said}") from None
        assert isinstance(found, StructType)
        schema = found
    kind = arrow_schema_of(schema).field("value").type
    decoder_of(SparkOptions(given, Use.BATCH_READ), "value", kind)
    return replace(settings, formats=given), kind


def _given(settings: Settings) -> dict[str, str]:
    """Return the formats together with the brokers, which SparkOptions requires. No broker is asked."""
    return {**settings.formats, "kafka.bootstrap.servers": str(settings.client["bootstrap.servers"])}


def value_decoder(settings: Settings, kind: pyarrow.DataType | None) -> Decoder | None:
    """Return, in a task, the decoder of values; None if they stay bytes."""
    return None if kind is None else decoder_of(SparkOptions(settings.formats, Use.BATCH_READ), "value", kind)


def decoded(
    decoder: Decoder | None, batch: pyarrow.RecordBatch
) -> tuple[pyarrow.RecordBatch, pyarrow.RecordBatch | None]:
    """Return the rows that could be decoded, and the others; None in place of the others if all were decoded.

    The others have their bytes, and a column `reason`.
    """
    if decoder is None:
        return batch, None
    import pyarrow as arrow
    import pyarrow.compute as compute

    place = batch.schema.get_field_index("value")
    found = decoder.decode(batch.column(place))
    made = batch.set_column(place, arrow.field("value", found.values.type), found.values)
    if not len(found.bad_rows):
        return made, None
    bad = batch.take(found.bad_rows).append_column("reason", found.reasons_of_bad)
    return made.filter(compute.invert(found.bad)), bad
