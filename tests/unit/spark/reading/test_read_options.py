"""Options of reading, and what is wrong with them."""

from __future__ import annotations

import re

import pytest

from kbroker.model import TopicPartition
from kbroker.spark.errors import WrongOption
from kbroker.spark.options.format_options import SparkOptions, Use
from kbroker.spark.options.offsets import LATEST, AtTimestamp, AtTimestamps, Everywhere, PerPartition
from kbroker.spark.reading.read_options import read_options

BASE = {"kafka.bootstrap.servers": "localhost:9092", "subscribe": "t"}


def read(use: Use = Use.BATCH_READ, /, **given: str) -> SparkOptions:
    return read_options({name.lower(): value for name, value in (BASE | given).items()}, use)


MISTAKES = [
    ({"subscribePattern": "t.*"}, "only one of the options subscribe, subscribePattern"),
    ({"assign": '{"t":[0]}'}, "only one of the options subscribe, assign"),
    ({"subscribe": " , "}, "option subscribe=' , ': must be names of topics"),
    ({"kafka.bootstrap.servers": " "}, "kafka.bootstrap.servers is missing"),
    ({"kafka.auto.offset.reset": "earliest"}, "kafka.auto.offset.reset cannot be set"),
    ({"kafka.enable.auto.commit": "true"}, "kafka.enable.auto.commit cannot be set"),
    ({"kafka.key.deserializer": "x"}, "kafka.key.deserializer cannot be set"),
    ({"kafka.value.deserializer": "x"}, "kafka.value.deserializer cannot be set"),
    ({"kafka.interceptor.classes": "x"}, "kafka.interceptor.classes cannot be set"),
    ({"startingOffsets": "newest"}, "option startingOffsets='newest': must be earliest, latest, or JSON"),
    ({"startingOffsetsByTimestamp": "17"}, "option startingOffsetsByTimestamp='17': must be JSON"),
    ({"startingTimestamp": "x"}, "option startingTimestamp='x': must be a time in ms"),
    ({"startingOffsetsByTimestampStrategy": "x"}, "option startingOffsetsByTimestampStrategy='x': must be"),
    ({"failOnDataLoss": "perhaps"}, "option failOnDataLoss='perhaps': must be true or false"),
    ({"minPartitions": "0"}, "option minPartitions='0': must be"),
    ({"maxRecordsPerPartition": "-1"}, "option maxRecordsPerPartition='-1': must be"),
    ({"maxOffsetsPerTrigger": "many"}, "option maxOffsetsPerTrigger='many': must be"),
    ({"minOffsetsPerTrigger": "6", "maxOffsetsPerTrigger": "5"}, "option minOffsetsPerTrigger=6 is more than"),
    ({"maxTriggerDelay": "soon"}, "option maxTriggerDelay='soon': must be a time like"),
    ({"includeHeaders": "maybe"}, "option includeHeaders='maybe': must be true or false"),
    ({"columns": "key,colour"}, "option columns='key,colour': must be some of key, value"),
    ({"columns": "key,key"}, "option columns='key,key': must be some of"),
    ({"columns": ""}, "option columns='': must be some of"),
    ({"kafkaConsumer.pollTimeoutMs": "0"}, "option kafkaConsumer.pollTimeoutMs='0': must be"),
    ({"fetchOffset.numRetries": "x"}, "option fetchOffset.numRetries='x': must be"),
    ({"commitOffsets": "true"}, "option commitOffsets=true needs kafka.group.id"),
]


@pytest.mark.parametrize(("given", "message"), MISTAKES, ids=lambda each: each if isinstance(each, str) else "")
@pytest.mark.parametrize("use", [Use.READ, Use.BATCH_READ, Use.STREAM_READ], ids=str)
def test_a_mistake_is_named(given: dict[str, str], message: str, use: Use) -> None:
    with pytest.raises(WrongOption, match=re.escape(message)):
        read(use, **given)


def test_something_must_be_read() -> None:
    with pytest.raises(WrongOption, match="one of the options subscribe, subscribePattern, assign must"):
        read_options({"kafka.bootstrap.servers": "localhost:9092"}, Use.READ)
    with pytest.raises(WrongOption, match=r"must say what is read; subscibe is not known: is it subscribe\?$"):
        read_options({"kafka.bootstrap.servers": "localhost:9092", "subscibe": "t"}, Use.READ)


def test_a_broker_must_be_named() -> None:
    with pytest.raises(WrongOption, match=r"kafka\.bootstrap\.servers is missing"):
        read_options({"subscribe": "t"}, Use.READ)


@pytest.mark.parametrize("pattern", ["", "  ", "a("])
def test_a_pattern_is_a_regular_expression(pattern: str) -> None:
    with pytest.raises(WrongOption, match=r"option subscribePattern=.*: must be a regular expression"):
        read_options({"kafka.bootstrap.servers": "h:1", "subscribepattern": pattern}, Use.READ)


BATCH_MISTAKES = [
    ({"startingOffsets": "latest"}, "option startingOffsets: a batch cannot begin at latest"),
    ({"startingOffsets": '{"t":{"0":3,"1":-1}}'}, "option startingOffsets: a batch cannot begin at latest"),
    ({"endingOffsets": "earliest"}, "option endingOffsets: a batch cannot end at earliest"),
    ({"endingOffsets": '{"t":{"0":-2}}'}, "option endingOffsets: a batch cannot end at earliest"),
    (
        {"startingOffsets": '{"t":{"0":1}}', "endingOffsets": '{"t":{"0":1,"1":2}}'},
        "options startingOffsets and endingOffsets must name the same partitions: t-1 is in one only",
    ),
    (
        {"startingOffsets": '{"t":{"0":2}}', "endingOffsets": '{"t":{"0":1}}'},
        "option startingOffsets of t-0 is 2, behind endingOffsets, 1",
    ),
    (
        {"startingOffsetsByTimestamp": '{"t":{"0":2}}', "endingOffsetsByTimestamp": '{"t":{"1":2}}'},
        "options startingOffsetsByTimestamp and endingOffsetsByTimestamp must name the same partitions: t-0, t-1",
    ),
    (
        {"startingOffsetsByTimestamp": '{"t":{"0":2}}', "endingOffsetsByTimestamp": '{"t":{"0":1}}'},
        "option startingOffsetsByTimestamp of t-0 is 2, behind endingOffsetsByTimestamp, 1",
    ),
]


@pytest.mark.parametrize(("given", "message"), BATCH_MISTAKES, ids=[str(given) for given, _ in BATCH_MISTAKES])
def test_a_mistake_of_batches_is_named(given: dict[str, str], message: str) -> None:
    with pytest.raises(WrongOption, match=re.escape(message)):
        read(Use.BATCH_READ, **given)


@pytest.mark.parametrize(("given", "message"), BATCH_MISTAKES[2:], ids=[str(given) for given, _ in BATCH_MISTAKES[2:]])
def test_what_no_stream_can_have_is_refused_before_it_is_known_that_it_is_a_batch(
    given: dict[str, str], message: str
) -> None:
    with pytest.raises(WrongOption, match=re.escape(message)):
        read(Use.READ, **given)


def test_a_stream_may_begin_at_latest() -> None:
    assert read(Use.STREAM_READ, startingOffsets="latest").starting == Everywhere(LATEST)
    assert read(Use.READ, startingOffsets="latest").starting == Everywhere(LATEST)


@pytest.mark.parametrize("name", ["endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"])
def test_a_stream_has_no_end(name: str) -> None:
    value = {"endingOffsets": "latest", "endingTimestamp": "5", "endingOffsetsByTimestamp": '{"t":{"0":5}}'}[name]
    with pytest.raises(WrongOption, match=f"option {name} is for batches: a stream has no end"):
        read(Use.STREAM_READ, **{name: value})


def test_limits_of_streams_do_nothing_in_batches(caplog: pytest.LogCaptureFixture) -> None:
    read(Use.BATCH_READ, minOffsetsPerTrigger="1", maxOffsetsPerTrigger="5", maxTriggerDelay="5m")
    assert [record.args[0] for record in caplog.records if record.args] == [
        "minOffsetsPerTrigger",
        "maxOffsetsPerTrigger",
        "maxTriggerDelay",
    ]


def test_a_time_goes_before_times_and_these_before_offsets() -> None:
    given = {
        "startingTimestamp": "5",
        "startingOffsetsByTimestamp": '{"t":{"0":6}}',
        "startingOffsets": '{"t":{"0":7}}',
        "endingTimestamp": "15",
        "endingOffsetsByTimestamp": '{"t":{"0":16}}',
        "endingOffsets": '{"t":{"0":17}}',
    }
    place = TopicPartition("t", 0)
    found = read(**given)
    assert (found.starting, found.ending) == (AtTimestamp(5), AtTimestamp(15))
    del given["startingTimestamp"], given["endingTimestamp"]
    found = read(**given)
    assert (found.starting, found.ending) == (AtTimestamps({place: 6}), AtTimestamps({place: 16}))
    del given["startingOffsetsByTimestamp"], given["endingOffsetsByTimestamp"]
    found = read(**given)
    assert (found.starting, found.ending) == (PerPartition({place: 7}), PerPartition({place: 17}))
    found = read()
    assert (found.starting, found.ending) == (None, Everywhere(LATEST))


def test_a_batch_that_begins_at_a_time_may_say_latest_too() -> None:
    assert read(startingTimestamp="5", startingOffsets="latest").starting == AtTimestamp(5)


def test_columns_are_chosen() -> None:
    plain = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
    assert read().columns == plain
    assert read(includeHeaders="true").columns == (*plain, "headers")
    assert read(columns="value, key").columns == ("value", "key")
    assert read(columns="headers,key").columns == ("headers", "key")
    assert read(columns="key", includeHeaders="true").columns == ("key", "headers")
    assert read(columns="headers,key", includeHeaders="true").columns == ("headers", "key")


def test_names_have_any_case_and_spaces_do_not_count() -> None:
    found = read_options({"kafka.bootstrap.servers": "h:1", "SUBSCRIBE": " a , b,", "MINpartitions": "3"}, Use.READ)
    assert found["subscribe"] == ("a", "b")
    assert found["minPartitions"] == 3


@pytest.mark.parametrize(
    ("text", "ms"),
    [("15m", 900_000), ("500ms", 500), (" 2 H ", 7_200_000), ("30s", 30_000), ("7", 7), ("1d", 86_400_000)],
)
def test_delays_have_units(text: str, ms: int) -> None:
    assert read(Use.STREAM_READ, maxTriggerDelay=text)["maxTriggerDelay"] == ms
