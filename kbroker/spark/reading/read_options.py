"""Checks that options of reading fit together. What Spark's own Kafka connector refuses is refused here too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from kbroker.spark.decoding.value_formats import check_types, decoded_schema, settled
from kbroker.spark.errors import WrongOption
from kbroker.spark.options.format_options import SparkOptions, Use
from kbroker.spark.options.offsets import EARLIEST, LATEST, AtTimestamps, Everywhere, PerPartition, Place, named
from kbroker.spark.schema import schema_of

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

SUBSCRIPTIONS = ("subscribe", "subscribePattern", "assign")
ENDINGS = ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets")


def read_options(given: Mapping[str, str], use: Use, schema: StructType | None = None) -> SparkOptions:
    """Return the options of a read. Raises WrongOption, whose message names the options that do not fit.

    `use`: `Use.READ` if it is not known yet whether this is a batch or a stream. What depends on that is not checked.
    `schema`: the schema that Spark uses. Spark does not ask the source for it when the user gives one.
    """
    options = SparkOptions(given, use)
    _check_subscription(options)
    _check_limits(options)
    if Use.BATCH_READ in use:
        _check_places(options)
    if schema is not None:
        _check_schema(options, schema)
    return options


def _check_subscription(options: SparkOptions) -> None:
    found = [name for name in SUBSCRIPTIONS if options.is_given(name)]
    if not found:
        raise WrongOption(
            f"one of the options {', '.join(SUBSCRIPTIONS)} must say what is read{''.join(options.slips)}"
        )
    if len(found) > 1:
        raise WrongOption(f"only one of the options {', '.join(found)} may say what is read")


def _check_limits(options: SparkOptions) -> None:
    least, most = options["minOffsetsPerTrigger"], options["maxOffsetsPerTrigger"]
    if least is not None and most is not None and least > most:
        raise WrongOption(f"option minOffsetsPerTrigger={least} is more than maxOffsetsPerTrigger={most}")
    if options["commitOffsets"] and not options.client.get("group.id"):
        raise WrongOption("option commitOffsets=true needs kafka.group.id: the group whose progress it is")


def _check_places(options: SparkOptions) -> None:
    start, end = options.starting, options.ending
    if _has(end, EARLIEST):
        raise WrongOption("option endingOffsets: a batch cannot end at earliest (-2)")
    is_batch = options.use == Use.BATCH_READ or any(map(options.is_given, ENDINGS))
    if is_batch and start is not None and _has(start, LATEST):
        raise WrongOption("option startingOffsets: a batch cannot begin at latest (-1)")
    match start, end:
        case PerPartition(starts), PerPartition(ends):
            what = "Offsets"
        case AtTimestamps(starts), AtTimestamps(ends):
            what = "OffsetsByTimestamp"
        case _:
            return
    if different := starts.keys() ^ ends.keys():
        raise WrongOption(
            f"options starting{what} and ending{what} must name the same partitions: {named(different)} is in one only"
        )
    for place, at in starts.items():
        if 0 <= ends[place] < at:
            raise WrongOption(f"option starting{what} of {place} is {at}, behind ending{what}, {ends[place]}")


def _check_schema(options: SparkOptions, given: StructType) -> None:
    """Raise WrongOption unless `given` is the schema of the source. If that is DDL, only its types are checked."""
    wanted = None if settled(options) else decoded_schema(options, schema_of(options.columns))
    if not isinstance(wanted, str) and given != wanted:
        raise WrongOption("a schema cannot be given: the format has its own; option columns chooses among them")
    check_types(options, given)


def _has(place: Place, at: int) -> bool:
    match place:
        case Everywhere(found):
            return found == at
        case PerPartition(offsets):
            return at in offsets.values()
    return False
