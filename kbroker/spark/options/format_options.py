"""The options of `format("kbroker")`: those of Spark's own Kafka connector, with its names and defaults, and our own.

Spark passes options as strings, with names in lower case. Options named `kafka.*` are the client's (kafka_options.py).
"""

from __future__ import annotations

import enum
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kbroker.client.config.kinds import Kind, flag, one_of, text, texts, whole
from kbroker.rules.nearest import nearest
from kbroker.spark.errors import WrongOption
from kbroker.spark.options import offsets
from kbroker.spark.options.kafka_options import GivenOptions, check_allowed
from kbroker.spark.options.registry_addresses import registry_addresses

log = logging.getLogger("kbroker.spark")

CLIENT = "kafka."
"""The prefix of options that are the client's."""

COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")


class Use(enum.Flag):
    """The kinds of reads and writes to which an option applies."""

    BATCH_READ = enum.auto()
    STREAM_READ = enum.auto()
    BATCH_WRITE = enum.auto()
    STREAM_WRITE = enum.auto()
    READ = BATCH_READ | STREAM_READ
    WRITE = BATCH_WRITE | STREAM_WRITE


@dataclass(frozen=True)
class Option:
    """One option of the format.

    `kind` makes a value of the option's string, or raises ValueError with a message that says what is allowed.
    """

    name: str
    kind: Kind
    default: Any
    use: Use
    doc: str


def topics(given: str) -> tuple[str, ...]:
    found = texts(given)
    if not found:
        raise ValueError("names of topics, with commas")
    return found


def pattern(given: str) -> re.Pattern[str]:
    try:
        found = re.compile(given.strip())
    except re.error as error:
        raise ValueError(f"a regular expression ({error})") from None
    if not found.pattern:
        raise ValueError("a regular expression that is not empty")
    return found


def columns(given: str) -> tuple[str, ...]:
    found = texts(given)
    if not found or not set(found) <= set(COLUMNS) or len(set(found)) < len(found):
        raise ValueError(f"some of {', '.join(COLUMNS)}, with commas")
    return found


def duration_ms(given: str) -> int:
    """Return the milliseconds of a time as Spark writes it: 30s, 15m, 1h, 500ms; a plain number is milliseconds."""
    found = re.fullmatch(r"\s*(\d+)\s*(ms|s|m|min|h|d)?\s*", given.lower())
    if found is None:
        raise ValueError("a time like 30s, 15m or 500ms")
    units = {None: 1, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
    return int(found[1]) * units[found[2]]


BINARY = "binary"  #: keys or values stay bytes
FORMAT = one_of(BINARY, "string", "json", "avro")


def addresses(given: str) -> str:
    """Return `given`, the addresses of schema registries. Raises ValueError when it is not a list of URLs."""
    registry_addresses(given)
    return given


OPTIONS = {
    option.name.lower(): option
    for option in (
        Option("subscribe", topics, None, Use.READ, "topics, with commas"),
        Option("subscribePattern", pattern, None, Use.READ, "a regular expression that is found in topics' names"),
        Option("assign", offsets.partitions, None, Use.READ, 'partitions: {"topic": [0, 1]}'),
        Option("startingTimestamp", offsets.timestamp, None, Use.READ, "begin at that time, in ms"),
        Option("startingOffsetsByTimestamp", offsets.timestamps, None, Use.READ, "the same, of each partition"),
        Option(
            "startingOffsets",
            offsets.offsets_or_word,
            None,
            Use.READ,
            "where to begin: earliest (the default of batches), latest (of a new stream), or of each partition: "
            '{"topic": {"0": 23, "1": -2}}, where -2 is earliest and -1 latest',
        ),
        Option("endingTimestamp", offsets.timestamp, None, Use.BATCH_READ, "end before that time, in ms"),
        Option("endingOffsetsByTimestamp", offsets.timestamps, None, Use.BATCH_READ, "the same, of each partition"),
        Option(
            "endingOffsets",
            offsets.offsets_or_word,
            offsets.Everywhere(offsets.LATEST),
            Use.BATCH_READ,
            "where to end: latest, or the first offset of each partition that is not read",
        ),
        Option(
            "startingOffsetsByTimestampStrategy",
            one_of("error", "latest"),
            "error",
            Use.READ,
            "what to do where no record is at the starting time or later",
        ),
        Option(
            "failOnDataLoss",
            flag,
            True,
            Use.READ,
            "whether offsets or topics that are gone are an error; false: a warning, and what is there is read",
        ),
        Option(
            "kafkaConsumer.pollTimeoutMs", whole(1, 1 << 31), 120_000, Use.READ, "how long a task waits for records"
        ),
        Option("fetchOffset.numRetries", whole(0, 1 << 31), 3, Use.READ, "how often offsets are asked for"),
        Option("fetchOffset.retryIntervalMs", whole(0, 1 << 31), 1000, Use.READ, "and after how long again"),
        Option(
            "maxOffsetsPerTrigger", whole(1), None, Use.STREAM_READ, "about the most records of a micro-batch, in all"
        ),
        Option("minOffsetsPerTrigger", whole(1), None, Use.STREAM_READ, "a micro-batch waits until there are so many"),
        Option("maxTriggerDelay", duration_ms, 900_000, Use.STREAM_READ, "and no longer than this"),
        Option("minPartitions", whole(1, 1 << 31), None, Use.READ, "about how many tasks at least"),
        Option("maxRecordsPerPartition", whole(1), None, Use.READ, "the most records of one task"),
        Option("includeHeaders", flag, False, Use.READ, "whether there is a column headers"),
        Option("columns", columns, None, Use.READ, "which columns there are, with commas; all but headers else"),
        Option("commitOffsets", flag, False, Use.STREAM_READ, "whether kafka.group.id shows how far a stream has come"),
        Option(
            "groupIdPrefix",
            text,
            None,
            Use.READ,
            "taken and not used: reading needs no group here, and brokers see none of Spark's own connector either",
        ),
        Option("keyFormat", FORMAT, BINARY, Use.READ, "what keys are decoded from: json, avro or string"),
        Option("valueFormat", FORMAT, BINARY, Use.READ, "and values"),
        Option("keySchema", text, None, Use.READ, "of keys: the same as valueSchema of values"),
        Option(
            "valueSchema",
            text,
            None,
            Use.READ,
            "what a decoded value has: of JSON as DDL or JSON of Spark's types, of Avro an Avro schema",
        ),
        Option(
            "schemaRegistry",
            addresses,
            None,
            Use.READ,
            "http://HOST:PORT,... of a schema registry with Confluent's API, for Avro",
        ),
        Option(
            "avroFraming",
            one_of("confluent", "none"),
            "confluent",
            Use.READ,
            "what stands before an Avro value: a zero byte and its schema's id, or nothing",
        ),
        Option(
            "mode",
            one_of("PERMISSIVE", "DROPMALFORMED", "FAILFAST"),
            "PERMISSIVE",
            Use.READ,
            "what becomes of a record that cannot be decoded: fields that are null, nothing, or an error",
        ),
        Option(
            "columnNameOfCorruptRecord",
            text,
            None,
            Use.READ,
            "a column more: the bytes of values that could not be decoded, null for the others",
        ),
        Option("topic", text, None, Use.WRITE, "the topic of all rows, whatever their column topic says"),
        Option(
            "exactlyOnce",
            flag,
            False,
            Use.STREAM_WRITE,
            "whether rows of a stream are there once for readers of committed records, whatever was tried again",
        ),
    )
}


class SparkOptions:
    """The options of one read or write: values by name, and the client's options as strings in `client`."""

    def __init__(self, given: Mapping[str, str], use: Use):
        """Raises WrongOption when a value is wrong, a stream is given an option for batches, an option of the client is
        Spark's to set, or no broker is named."""
        self.use = use
        self._values: dict[str, Any] = {}
        self.client = GivenOptions()
        self.slips: list[str] = []  # for error messages: unknown names, each with the option that it resembles
        for name, value in given.items():
            if name.startswith(CLIENT):
                self.client[name.removeprefix(CLIENT)] = value
            elif (option := OPTIONS.get(name.lower())) is not None:
                self._values[option.name] = self._parsed(option, value)
            elif like := nearest(name, OPTIONS):
                log.warning("option %s is not known and not used; the nearest is %s", name, OPTIONS[like].name)
                self.slips.append(f"; {name} is not known: is it {OPTIONS[like].name}?")
        check_allowed(self.client, writing=bool(use & Use.WRITE))

    def _parsed(self, option: Option, value: str) -> Any:
        if not option.use & self.use and option.use & Use.READ and self.use & Use.READ:
            self._misplaced(option)
        try:
            return option.kind(value)
        except ValueError as error:
            shown = repr(value) if option.kind is not addresses else "[hidden]"  # it may have a password in it
            raise WrongOption(f"option {option.name}={shown}: must be {error}") from None

    def _misplaced(self, option: Option) -> None:
        if option.use == Use.BATCH_READ:
            raise WrongOption(f"option {option.name} is for batches: a stream has no end")
        log.warning("option %s is for streams and does nothing in a batch", option.name)

    def __getitem__(self, name: str) -> Any:
        return self._values.get(name, OPTIONS[name.lower()].default)

    def is_given(self, name: str) -> bool:
        return name in self._values

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns that rows have."""
        chosen: tuple[str, ...] = self["columns"] or COLUMNS[:-1]
        return (*chosen, "headers") if self["includeHeaders"] and "headers" not in chosen else chosen

    @property
    def starting(self) -> offsets.Place | None:
        """The place to begin at; None if no option says it."""
        return self._first("startingTimestamp", "startingOffsetsByTimestamp", "startingOffsets")

    @property
    def ending(self) -> offsets.Place:
        """The place at which a batch ends."""
        found = self._first("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets")
        assert found is not None
        return found

    def _first(self, *names: str) -> offsets.Place | None:
        for name in names:
            found: offsets.Place | None = self[name]
            if found is not None:
                return found
        return None
