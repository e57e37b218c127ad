"""Records that go while they are read, and brokers that go: readers as drivers and tasks have them, without Spark."""

from __future__ import annotations

import time
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from kbroker.client import Producer
from kbroker.client.consumer.fetching import Fetching
from kbroker.client.errors import BrokerError, TimedOut
from kbroker.spark.errors import DataLoss
from kbroker.spark.options.format_options import Use
from kbroker.spark.reading.batch_reader import BatchReader
from kbroker.spark.reading.read_options import read_options
from kbroker.spark.reading.stream_reader import StreamReader
from kbroker.spark.schema import schema_of
from kbroker.testing import Broker
from tests.kit.spark.topics import QUICK, delete_before, delete_topic, fill, options, places

COLUMNS = ("offset", "value")
IN_VAIN = {"kafkaConsumer.pollTimeoutMs": 300}
"""A task waits no longer where nothing comes, however long it waits."""
SMALL_FETCHES = {"kafka.max.partition.fetch.bytes": 20_000, "kafka.queued.max.bytes": 20_000}


def batch(servers: str, **given: Any) -> tuple[BatchReader, list[Any]]:
    """Return a reader as a task has it, and its partitions; without Spark."""
    schema = schema_of(COLUMNS)
    wanted = options(servers, QUICK | {"columns": ",".join(COLUMNS)} | given)
    reader = BatchReader(read_options(wanted, Use.BATCH_READ, schema), schema)
    return reader, reader.partitions()


def fill_large(servers: str, topic: str, count: int) -> None:
    with Producer(bootstrap_servers=servers, batch_size=5000) as producer:
        producer.send_many(topic, [b"%0500d" % i for i in range(count)], partitions=0).result(30)


# --- batches ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fails", [True, False])
def test_retention_overtakes_a_task(broker: Broker, topic: str, fails: bool) -> None:
    broker.create_topic(topic, 1)
    fill_large(broker.bootstrap_servers, topic, 2000)
    reader, (partition,) = batch(broker.bootstrap_servers, subscribe=topic, failOnDataLoss=fails, **SMALL_FETCHES)
    reading = reader.read(partition)
    found = next(reading).column("offset").to_pylist()
    delete_before(broker.bootstrap_servers, (topic, 0, 1500))
    if fails:
        with pytest.raises(DataLoss, match=r"of the offsets \d+ to 2000 some are gone, it has 1500 to 2000"):
            list(reading)
        return
    for each in reading:
        found += each.column("offset").to_pylist()
    gap = next(at for at in range(1, len(found)) if found[at] != found[at - 1] + 1)
    assert found == [*range(gap), *range(1500, 2000)]
    assert gap < 1500


@pytest.mark.parametrize("fails", [True, False])
def test_a_topic_is_made_again_under_a_task(broker: Broker, topic: str, fails: bool) -> None:
    broker.create_topic(topic, 1)
    fill_large(broker.bootstrap_servers, topic, 2000)
    reader, (partition,) = batch(broker.bootstrap_servers, subscribe=topic, failOnDataLoss=fails, **SMALL_FETCHES)
    reading = reader.read(partition)
    found = next(reading).column("offset").to_pylist()
    delete_topic(broker.bootstrap_servers, topic)
    broker.create_topic(topic, 1)
    fill_large(broker.bootstrap_servers, topic, 10)
    if fails:
        with pytest.raises(DataLoss, match=r"of the offsets \d+ to 2000 some are gone, it has 0 to 10"):
            list(reading)
    else:
        for each in reading:
            found += each.column("offset").to_pylist()
        assert found == list(range(len(found)))


@pytest.mark.parametrize("fails", [True, False])
def test_a_topic_is_deleted_under_a_task(broker: Broker, topic: str, fails: bool) -> None:
    broker.create_topic(topic, 1)
    fill_large(broker.bootstrap_servers, topic, 100)
    reader, (partition,) = batch(broker.bootstrap_servers, subscribe=topic, failOnDataLoss=fails, **IN_VAIN)
    delete_topic(broker.bootstrap_servers, topic)
    if fails:
        with pytest.raises(DataLoss, match="of the offsets 0 to 100 some are gone, it has 0 to 0"):
            list(reader.read(partition))
    else:
        assert list(reader.read(partition)) == []


def test_time_may_run_out_between_two_answers_that_a_topic_is_gone(
    broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create_topic(topic, 1)
    fill_large(broker.bootstrap_servers, topic, 100)
    reader, (partition,) = batch(broker.bootstrap_servers, subscribe=topic, **IN_VAIN)
    delete_topic(broker.bootstrap_servers, topic)
    asked = Fetching.offsets

    async def late(self: Fetching, wanted: Any) -> Any:
        try:
            return await asked(self, wanted)
        except BrokerError as error:
            raise TimedOut("not done within 1.5 s") from error

    monkeypatch.setattr(Fetching, "offsets", late)
    with pytest.raises(DataLoss, match="of the offsets 0 to 100 some are gone, it has 0 to 0"):
        list(reader.read(partition))


def test_a_broker_that_dies_under_a_task_is_named_in_time(topic: str) -> None:
    with Broker() as broker:
        broker.create_topic(topic, 1)
        fill_large(broker.bootstrap_servers, topic, 2000)
        reader, (partition,) = batch(broker.bootstrap_servers, subscribe=topic, **SMALL_FETCHES)
        reading = reader.read(partition)
        next(reading)
        broker.kill()
        began = time.monotonic()
        with pytest.raises(TimedOut, match=rf"{topic}-0: nothing came .* between offset .*{broker.bootstrap_servers}"):
            list(reading)
        assert time.monotonic() - began < 30


@pytest.mark.parametrize("fails", [True, False])
def test_records_that_do_not_come_are_not_lost(topic: str, fails: bool) -> None:
    with Broker(faults=True) as broker:
        broker.create_topic(topic, 1)
        fill_large(broker.bootstrap_servers, topic, 10)
        reader, (partition,) = batch(broker.bootstrap_servers, subscribe=topic, failOnDataLoss=fails, **IN_VAIN)
        broker.faults.delay("Fetch", 60)
        with pytest.raises(TimedOut, match=f"{topic}-0: nothing came for 0.3 s between offset 0 and 10"):
            list(reader.read(partition))


def test_a_broker_that_comes_back_is_waited_for(topic: str) -> None:
    with Broker() as broker:
        broker.create_topic(topic, 1)
        fill_large(broker.bootstrap_servers, topic, 2000)
        given = {"kafkaConsumer.pollTimeoutMs": 60_000, "kafka.default.api.timeout.ms": 60_000} | SMALL_FETCHES
        reader, (partition,) = batch(broker.bootstrap_servers, subscribe=topic, **given)
        reading = reader.read(partition)
        found = next(reading).column("offset").to_pylist()
        broker.restart(kill=True)
        for each in reading:
            found += each.column("offset").to_pylist()
        assert found == list(range(2000))


# --- streams ------------------------------------------------------------------------------------------------


def stream_reader(broker: Broker, **given: Any) -> StreamReader:
    """Make a reader as a driver has it, without Spark."""
    wanted = options(broker.bootstrap_servers, QUICK | {"columns": "offset"} | given)
    return StreamReader(wanted, schema_of(("offset",)))


def test_a_topic_that_is_subscribed_to_is_gone_for_a_while(broker: Broker, topic: str) -> None:
    stays, goes = f"{topic}-stays", f"{topic}-goes"
    fill(broker.bootstrap_servers, stays, 1, 10)
    fill(broker.bootstrap_servers, goes, 1, 10)
    strict, lenient = (
        stream_reader(broker, subscribe=f"{stays},{goes}", startingOffsets="earliest", failOnDataLoss=fails)
        for fails in (True, False)
    )
    try:
        start = strict.latestOffset(lenient.initialOffset(), ReadAllAvailable())
        assert start == places(goes, 10) | places(stays, 10)
        delete_topic(broker.bootstrap_servers, goes)
        with pytest.raises(DataLoss, match=f"{goes} is gone, with what was not read of it; set failOnDataLoss=false"):
            strict.latestOffset(start, ReadAllAvailable())
        end = lenient.latestOffset(start, ReadAllAvailable())
        assert end == places(stays, 10)
        assert lenient.partitions(start, end) == []
        with pytest.raises(DataLoss, match=f"{goes}-0 is gone"):
            strict.partitions(start, end)
        fill(broker.bootstrap_servers, goes, 1, 4)
        back = lenient.latestOffset(end, ReadAllAvailable())
        assert back == places(goes, 4) | places(stays, 10)
        assert [each.value for each in lenient.partitions(end, back)] == [(goes, 0, 0, 4)]
    finally:
        strict.stop()
        lenient.stop()


def test_available_now_does_not_end_well_without_what_it_has_promised(broker: Broker, topic: str) -> None:
    fill(broker.bootstrap_servers, topic, 1, 10)
    reader = stream_reader(broker, subscribe=topic, failOnDataLoss=False, startingOffsets="earliest")
    try:
        reader.prepareForTriggerAvailableNow()
        start = reader.initialOffset()
        end = reader.latestOffset(start, reader.getDefaultReadLimit())
        assert [each.value for each in reader.partitions(start, end)] == [(topic, 0, 0, 10)]
        delete_topic(broker.bootstrap_servers, topic)
        with pytest.raises(DataLoss, match=f"{topic}-0 is gone while AvailableNow reads it; start the query again"):
            reader.partitions(start, end)
        fill(broker.bootstrap_servers, topic, 1, 3)
        with pytest.raises(DataLoss, match=f"{topic}-0 has become shorter while AvailableNow reads it"):
            reader.partitions(start, end)
    finally:
        reader.stop()


def test_a_partition_that_is_new_but_has_lost_its_beginning(broker: Broker, topic: str) -> None:
    fill(broker.bootstrap_servers, topic, 2, 20)
    delete_before(broker.bootstrap_servers, (topic, 1, 4))
    for fails in (True, False):
        reader = stream_reader(broker, subscribe=topic, failOnDataLoss=fails)
        try:
            if fails:
                with pytest.raises(DataLoss, match=f"{topic}-1 is new, but does not begin at offset 0 any more"):
                    reader.partitions(places(topic, 10), places(topic, 10, 10))
            else:
                found = [each.value for each in reader.partitions(places(topic, 10), places(topic, 10, 10))]
                assert found == [(topic, 1, 4, 10)]
        finally:
            reader.stop()
