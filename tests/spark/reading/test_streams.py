"""Topics as streams: offsets, limits and checkpoints, beside Spark's own connector."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from kbroker.client import AdminClient
from kbroker.testing import Broker
from tests.kit.spark.reading import last_line
from tests.kit.spark.topics import T0_MS, fill, places
from tests.spark.both_formats import FORMATS, OURS, THEIRS, Stream, load, rows

MakeStream = Callable[..., Stream]
QUICK = "limited"  # the others are slow


@pytest.fixture
def stream(spark: SparkSession, broker: Broker, tmp_path: Path) -> MakeStream:
    """One of each format, with a folder of its own."""

    def make(form: str = OURS, **given: Any) -> Stream:
        return Stream(spark, tmp_path / form, broker.bootstrap_servers, form, **given)

    return make


OPTIONS: dict[str, Callable[[str], dict[str, Any]]] = {
    "earliest": lambda t: {"subscribe": t, "startingOffsets": "earliest"},
    "offsets": lambda t: {"subscribePattern": f"^{t}$", "startingOffsets": places(t, 10, -2, 33)},
    "time": lambda t: {"subscribe": t, "startingTimestamp": T0_MS + 50},
    "times": lambda t: {"subscribe": t, "startingOffsetsByTimestamp": places(t, T0_MS, T0_MS + 90, T0_MS + 50)},
    "assigned": lambda t: {"assign": {t: [2, 0]}, "startingOffsets": "earliest", "minPartitions": 5},
    "limited": lambda t: {
        "subscribe": t,
        "startingOffsets": "earliest",
        "includeHeaders": True,
        "maxOffsetsPerTrigger": 40,
    },
}


@pytest.mark.parametrize(
    "given",
    [pytest.param(given, id=name, marks=[] if name == QUICK else pytest.mark.slow) for name, given in OPTIONS.items()],
)
def test_rows_and_offsets_are_those_of_the_jvm_connector(
    stream: MakeStream, broker: Broker, topic: str, given: Callable[[str], dict[str, Any]]
) -> None:
    fill(broker.bootstrap_servers, topic, 3, 100)
    ours, theirs = (stream(form, **given(topic)) for form in FORMATS)
    ours.run()
    theirs.run()
    assert ours.rows() == theirs.rows()
    assert ours.logged() == theirs.logged()


def test_a_restarted_stream_goes_on_where_it_was(stream: MakeStream, broker: Broker, topic: str) -> None:
    fill(broker.bootstrap_servers, topic, 2, 50)
    query = stream(subscribe=topic, startingOffsets="earliest")
    query.run()
    query.run()  # there is nothing new
    fill(broker.bootstrap_servers, topic, 2, 30, make=False)
    query.run()
    assert query.offsets() == [(topic, number, offset) for number in (0, 1) for offset in range(40)]
    assert query.logged() == [places(topic, 25, 25), places(topic, 40, 40)]


@pytest.mark.slow
def test_a_new_stream_begins_at_the_end(stream: MakeStream, broker: Broker, topic: str) -> None:
    fill(broker.bootstrap_servers, topic, 2, 50)
    both = [stream(form, subscribe=topic) for form in FORMATS]
    for query in both:
        query.run()
    fill(broker.bootstrap_servers, topic, 2, 30, make=False)
    for query in both:
        query.run()
        assert query.offsets() == [(topic, number, offset) for number in (0, 1) for offset in range(25, 40)]
        assert query.logged() == [places(topic, 25, 25), places(topic, 40, 40)]


def test_a_first_batch_that_runs_again_loses_nothing(stream: MakeStream, broker: Broker, topic: str) -> None:
    """Spark asks anew where the stream begins, when that has moved on, and there is a partition more."""
    fill(broker.bootstrap_servers, topic, 2, 50)
    query = stream(subscribe=topic)
    query.run()
    query.forget(0)
    with AdminClient(bootstrap_servers=broker.bootstrap_servers) as admin:
        admin.create_partitions(topic, 3)
    fill(broker.bootstrap_servers, topic, 3, 30, make=False)
    query.run()
    found = [(topic, 0, at) for at in range(25, 35)] + [(topic, 1, at) for at in range(25, 35)]
    assert query.offsets() == found + [(topic, 2, at) for at in range(10)]


@pytest.mark.slow
def test_a_first_batch_of_a_time_without_records_may_run_again_when_there_are(
    stream: MakeStream, broker: Broker, topic: str
) -> None:
    fill(broker.bootstrap_servers, topic, 1, 50)
    query = stream(subscribe=topic, startingTimestamp=T0_MS + 60, startingOffsetsByTimestampStrategy="latest")
    query.run()
    query.forget(0)
    fill(broker.bootstrap_servers, topic, 1, 50, start=50, make=False)
    query.run()
    assert query.offsets() == [(topic, 0, at) for at in range(50, 100)]


@pytest.mark.slow
def test_a_batch_that_runs_again_has_the_same_rows(stream: MakeStream, broker: Broker, topic: str) -> None:
    fill(broker.bootstrap_servers, topic, 2, 50)
    query = stream(subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=20)
    query.run()
    before = query.logged()
    last = len(before) - 1
    query.forget(last)
    fill(broker.bootstrap_servers, topic, 2, 10, make=False)
    query.run()
    assert query.logged()[: last + 1] == before
    assert query.offsets()[-1] == (topic, 1, 29)
    assert len(query.offsets()) == len(set(query.offsets()))


@pytest.mark.slow
@pytest.mark.parametrize(("first", "second"), [(THEIRS, OURS), (OURS, THEIRS)])
def test_a_checkpoint_of_one_format_is_that_of_the_other(
    stream: MakeStream, broker: Broker, topic: str, first: str, second: str
) -> None:
    fill(broker.bootstrap_servers, topic, 2, 50)
    query = stream(subscribe=topic, startingOffsets="earliest")
    query.form = first
    query.run()
    fill(broker.bootstrap_servers, topic, 2, 30, make=False)
    query.form = second
    query.run()
    assert query.offsets() == [(topic, number, offset) for number in (0, 1) for offset in range(40)]


@pytest.mark.slow
def test_a_new_partition_is_read_from_its_beginning(stream: MakeStream, broker: Broker, topic: str) -> None:
    fill(broker.bootstrap_servers, topic, 1, 20)
    both = [stream(form, subscribe=topic, maxOffsetsPerTrigger=8) for form in FORMATS]
    for query in both:
        query.run()
    with AdminClient(bootstrap_servers=broker.bootstrap_servers) as admin:
        admin.create_partitions(topic, 2)
    fill(broker.bootstrap_servers, topic, 2, 20, make=False)
    for query in both:
        query.run()
        found = [(topic, 0, at) for at in range(20, 30)] + [(topic, 1, at) for at in range(10)]
        assert query.offsets() == found
    assert both[0].logged() == both[1].logged()


@pytest.mark.slow
def test_available_now_stops_where_the_log_ended_at_its_start(
    spark: SparkSession, stream: MakeStream, broker: Broker, topic: str
) -> None:
    fill(broker.bootstrap_servers, topic, 1, 20)
    query = stream(subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=5, minOffsetsPerTrigger=5)
    running = query.start(availableNow=True)
    grown = False
    while running.isActive:
        if not grown and running.lastProgress is not None:
            fill(broker.bootstrap_servers, topic, 1, 7, make=False)
            grown = True
        time.sleep(0.01)
    assert grown
    assert query.offsets() == [(topic, 0, at) for at in range(20)]


def test_a_batch_waits_for_enough_records(stream: MakeStream, broker: Broker, topic: str) -> None:
    fill(broker.bootstrap_servers, topic, 1, 5)
    query = stream(subscribe=topic, startingOffsets="earliest", minOffsetsPerTrigger=10, maxTriggerDelay="1h")
    running = query.start(processingTime="100 milliseconds")
    try:
        running.processAllAvailable()  # the first batch does not wait
        fill(broker.bootstrap_servers, topic, 1, 9, make=False)
        running.processAllAvailable()
        assert query.logged() == [places(topic, 5)]
        assert len(query.offsets()) == 5
        fill(broker.bootstrap_servers, topic, 1, 1, make=False)
        running.processAllAvailable()
        assert query.logged() == [places(topic, 5), places(topic, 15)]
    finally:
        running.stop()
    assert len(query.offsets()) == 15


@pytest.mark.slow
def test_progress_tells_how_far_it_is_and_how_far_it_could_be(stream: MakeStream, broker: Broker, topic: str) -> None:
    fill(broker.bootstrap_servers, topic, 1, 20)
    query = stream(subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=5)
    (source,) = query.run().recentProgress[0]["sources"]
    assert json.loads(source["endOffset"]) == places(topic, 5)
    assert json.loads(source["latestOffset"]) == places(topic, 20)
    assert source["numInputRows"] == 5


@pytest.mark.slow
def test_a_group_shows_how_far_a_stream_has_come(stream: MakeStream, broker: Broker, topic: str) -> None:
    fill(broker.bootstrap_servers, topic, 2, 40)
    group = f"{topic}-group"
    given = {"subscribe": topic, "startingOffsets": "earliest", "kafka.group.id": group, "commitOffsets": True}
    query = stream(**given)
    query.run()
    fill(broker.bootstrap_servers, topic, 2, 2, make=False)
    query.run()
    with AdminClient(bootstrap_servers=broker.bootstrap_servers) as admin:
        found = {place.partition_id: each.offset for place, each in admin.committed(group).items()}
        assert found == {0: 21, 1: 21}


@pytest.mark.parametrize(
    "name",
    [
        "endingOffsets",
        pytest.param("endingTimestamp", marks=pytest.mark.slow),
        pytest.param("endingOffsetsByTimestamp", marks=pytest.mark.slow),
    ],
)
def test_a_stream_has_no_end(stream: MakeStream, topic: str, name: str) -> None:
    value = {"endingOffsets": "latest", "endingTimestamp": 5, "endingOffsetsByTimestamp": places(topic, 5)}[name]
    with pytest.raises(Exception, match="a stream has no end") as refused:
        stream(subscribe=topic, **{name: value}).run()
    assert f"option {name} is for batches: a stream has no end" in last_line(refused.value)


def test_a_topic_that_is_not_there_is_named(stream: MakeStream, topic: str) -> None:
    with pytest.raises(StreamingQueryException) as refused:
        stream(subscribe=topic, **{"fetchOffset.retryIntervalMs": 10}).run()
    assert f"option subscribe: there is no {topic}" in last_line(refused.value)


@pytest.mark.slow
def test_what_a_batch_reads_is_what_a_stream_reads(
    spark: SparkSession, stream: MakeStream, broker: Broker, topic: str
) -> None:
    fill(broker.bootstrap_servers, topic, 3, 100)
    query = stream(subscribe=topic, startingOffsets="earliest", columns="topic,partition,offset,value")
    query.run()
    frame = load(spark, broker.bootstrap_servers, subscribe=topic, columns="topic,partition,offset,value")
    assert query.rows() == rows(frame)
