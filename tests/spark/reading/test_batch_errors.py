"""Mistakes: what Spark's own connector refuses is refused here, as early as that can be known."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import CaseInsensitiveDict

from kbroker.spark.errors import WrongOption
from kbroker.spark.source import KbrokerSource
from kbroker.testing import Broker
from tests.kit.spark.reading import last_line
from tests.kit.spark.topics import T0_MS, fill, options, places
from tests.spark.both_formats import FORMATS, OURS, THEIRS, load, place_of_error

TOPIC = "mistaken"


@pytest.fixture(scope="module", autouse=True)
def filled(broker: Broker) -> None:
    """100 records in two partitions."""
    fill(broker.bootstrap_servers, TOPIC, 2, 100)


def subscribed(**given: Any) -> dict[str, Any]:
    return {"subscribe": TOPIC, "fetchOffset.retryIntervalMs": 10, "kafkaConsumer.pollTimeoutMs": 1000} | given


AT_LOAD: list[tuple[dict[str, Any], str]] = [
    ({}, "one of the options subscribe, subscribePattern, assign must say what is read"),
    (subscribed(assign={TOPIC: [0]}), "only one of the options subscribe, assign may say"),
    ({"subscribe": " , "}, "option subscribe=' , ': must be names of topics"),
    ({"subscribePattern": " "}, "option subscribePattern=' ': must be a regular expression"),
    ({"subscribePattern": "a("}, "option subscribePattern='a(': must be a regular expression"),
    ({"assign": TOPIC}, "option assign='mistaken': must be JSON like"),
    ({"assign": {TOPIC: ["x"]}}, "'x' is no partition of 'mistaken'"),
    (subscribed(endingOffsets="earliest"), "option endingOffsets: a batch cannot end at earliest"),
    (subscribed(endingOffsets=places(TOPIC, 5, -2)), "option endingOffsets: a batch cannot end at earliest"),
    (
        subscribed(startingOffsets=places(TOPIC, 5, 5), endingOffsets=places(TOPIC, 9)),
        "must name the same partitions: mistaken-1 is in one only",
    ),
    (
        subscribed(startingOffsets=places(TOPIC, 5, 5), endingOffsets=places(TOPIC, 4, 5)),
        "option startingOffsets of mistaken-0 is 5, behind endingOffsets, 4",
    ),
    (
        subscribed(startingOffsetsByTimestamp=places(TOPIC, 5, 5), endingOffsetsByTimestamp=places(TOPIC, 4, 5)),
        "option startingOffsetsByTimestamp of mistaken-0 is 5, behind endingOffsetsByTimestamp, 4",
    ),
    (subscribed(startingTimestamp="x"), "option startingTimestamp='x': must be a time in ms"),
    (subscribed(startingOffsets="x"), "option startingOffsets='x': must be earliest, latest, or JSON"),
    (subscribed(startingOffsetsByTimestampStrategy="x"), "option startingOffsetsByTimestampStrategy='x': must be"),
    (subscribed(minPartitions=0), "option minPartitions='0': must be"),
    (subscribed(maxRecordsPerPartition=0), "option maxRecordsPerPartition='0': must be"),
    (subscribed(minOffsetsPerTrigger=6, maxOffsetsPerTrigger=5), "option minOffsetsPerTrigger=6 is more than"),
    (subscribed(failOnDataLoss="x"), "option failOnDataLoss='x': must be true or false"),
    (subscribed(includeHeaders="x"), "option includeHeaders='x': must be true or false"),
    (subscribed(**{"kafka.auto.offset.reset": "none"}), "option kafka.auto.offset.reset cannot be set"),
    (subscribed(**{"kafka.bootstrap.servers": ""}), "option kafka.bootstrap.servers is missing"),
]


@pytest.mark.parametrize(("given", "message"), AT_LOAD, ids=[message for _, message in AT_LOAD])
def test_a_mistake_is_named_when_the_frame_is_made(
    spark: SparkSession, broker: Broker, given: dict[str, Any], message: str
) -> None:
    """Spark asks for the schema when it makes a frame; ours is asked here as Spark's worker asks it."""
    with pytest.raises(WrongOption) as error:
        KbrokerSource(CaseInsensitiveDict(options(broker.bootstrap_servers, given))).schema()
    assert message in str(error.value)
    if "kafka.bootstrap.servers" not in given:  # theirs looks for a broker without a name for a minute
        assert place_of_error(spark, broker.bootstrap_servers, THEIRS, given)[0] == "load"


@pytest.mark.parametrize(("given", "message"), [AT_LOAD[0], AT_LOAD[6], AT_LOAD[9], AT_LOAD[-1]])
def test_spark_shows_a_mistake_when_the_frame_is_made(
    spark: SparkSession, broker: Broker, given: dict[str, Any], message: str
) -> None:
    """Four of them: of no option, of one, of two together, and of the client's."""
    where, said = place_of_error(spark, broker.bootstrap_servers, OURS, given)
    assert (where, said.startswith("kbroker.spark.errors.WrongOption: ")) == ("load", True), said
    assert message in said


AT_ACTION: list[tuple[dict[str, Any], str, str]] = [
    (subscribed(startingOffsets="latest"), "option startingOffsets: a batch cannot begin at latest", "load"),
    (
        subscribed(startingOffsets=places(TOPIC, 0, -1)),
        "option startingOffsets: a batch cannot begin at latest",
        "load",
    ),
    (subscribed(subscribe="nowhere"), "option subscribe: there is no nowhere", "action"),
    (subscribed(subscribe=f"{TOPIC},nowhere"), "option subscribe: there is no nowhere", "action"),
    ({"assign": {"nowhere": [0]}, "fetchOffset.numRetries": 1}, "option assign: there is no nowhere-0", "action"),
    ({"assign": {TOPIC: [0, 7]}, "fetchOffset.numRetries": 1}, "option assign: there is no mistaken-7", "no error"),
    (subscribed(startingOffsets=places(TOPIC, 5)), "option startingOffsets says nothing of mistaken-1", "action"),
    (subscribed(startingOffsets=places(TOPIC, 5, 5, 5)), "option startingOffsets names mistaken-2", "action"),
    (subscribed(endingOffsets=places(TOPIC, 5)), "option endingOffsets says nothing of mistaken-1", "action"),
    (
        subscribed(startingOffsetsByTimestamp=places(TOPIC, 5)),
        "option startingOffsetsByTimestamp says nothing of mistaken-1",
        "action",
    ),
    (
        subscribed(startingOffsets=places(TOPIC, 5, 500)),
        "mistaken-1 would begin at offset 500, behind its end 50",
        "action",
    ),
    (
        subscribed(startingOffsets=places(TOPIC, 5, 500), failOnDataLoss=False),
        "mistaken-1 would begin at offset 500, behind its end 50",
        "action",
    ),
    (
        subscribed(startingTimestamp=T0_MS + 50, endingOffsets=places(TOPIC, 1, 1)),
        "mistaken-0 would begin at offset 25, behind its end 1",
        "action",
    ),
    (
        subscribed(startingTimestamp=T0_MS + 5000),
        "no record of mistaken-0, mistaken-1 is at the starting time or later; set startingOffsetsByTimestampStrategy",
        "action",
    ),
    (
        subscribed(endingOffsets=places(TOPIC, 5, 500)),
        "option endingOffsets: mistaken-1 ends before that, at 50; set failOnDataLoss=false",
        "action",
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "message", "theirs"), AT_ACTION, ids=[f"{message} {given}"[:80] for given, message, _ in AT_ACTION]
)
def test_a_mistake_is_named_when_the_frame_is_read(
    spark: SparkSession, broker: Broker, given: dict[str, Any], message: str, theirs: str
) -> None:
    where, said = place_of_error(spark, broker.bootstrap_servers, OURS, given)
    assert where == "action", said
    assert message in said
    assert place_of_error(spark, broker.bootstrap_servers, THEIRS, given)[0] == theirs


@pytest.mark.parametrize("form", FORMATS)
def test_a_schema_cannot_be_given(spark: SparkSession, broker: Broker, form: str) -> None:
    reader = spark.read.format(form).schema("key binary").options(**options(broker.bootstrap_servers, subscribed()))
    with pytest.raises(PySparkException) as refused:
        reader.load().collect()
    if form == OURS:
        assert "a schema cannot be given" in last_line(refused.value)


def test_a_broker_that_is_away_is_named_within_the_time_it_is_given(spark: SparkSession) -> None:
    given = {"subscribe": TOPIC, "kafka.default.api.timeout.ms": 500}
    with pytest.raises(AnalysisException) as error:
        load(spark, "127.0.0.1:1", **given).collect()
    assert "127.0.0.1:1: connection refused (is a broker there, and bootstrap.servers right?)" in last_line(error.value)
    assert str(error.value).partition("JVM stacktrace")[0].count("\n") < 12
