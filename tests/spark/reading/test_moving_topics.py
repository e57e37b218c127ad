"""Topics that change while streams and loads read them: gaps, retention, and partitions that come."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from kbroker.client import AdminClient, Producer
from kbroker.spark import load
from kbroker.spark.loader.errors import LoadFailed
from kbroker.spark.loader.summary import Summary
from kbroker.testing import Broker
from tests.kit.parts.processors import wait_until
from tests.kit.spark.load import on_broker, visible
from tests.kit.spark.topics import delete_before, fill, places
from tests.spark.both_formats import FORMATS, Stream

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

COUNT = 2000
DELETED = 1500
SMALL_FETCHES = {"max.partition.fetch.bytes": "20000", "fetch.max.bytes": "20000"}
CLEANED = {"log.cleaner.backoff.ms": 50, "log.cleaner.min.cleanable.ratio": 0.01}

MakeStream = Callable[..., Stream]


@pytest.fixture(scope="module")
def started() -> Iterator[Broker]:
    with Broker(faults=True, settings=CLEANED | {"log.retention.ms": -1}) as broker:
        yield broker


@pytest.fixture
def moving(started: Broker) -> Broker:
    started.faults.clear()
    return started


@pytest.fixture
def stream(spark: SparkSession, moving: Broker, topic: str, tmp_path: Path) -> MakeStream:
    """From the beginning of the topic. Nothing of a broker's is waited for long."""

    def make(form: str, **given: Any) -> Stream:
        given = {"subscribe": topic, "startingOffsets": "earliest"} | given
        return Stream(spark, tmp_path / form, moving.bootstrap_servers, form, **given)

    return make


def send(servers: str, topic: str, start: int, stop: int, keys: int = 0) -> None:
    """Records of 500 bytes in partition 0, batches of ten; of so many keys."""
    numbers = range(start, stop)
    with Producer(bootstrap_servers=servers, batch_size=5000) as producer:
        named = [b"key %d" % (number % keys) for number in numbers] if keys else None
        producer.send_many(topic, [b"%0500d" % number for number in numbers], named, partitions=0).result(30)


def offsets_of(query: Stream) -> list[int]:
    """Each once, in order; of a topic of one partition."""
    found = [offset for _, _, offset in query.offsets()]
    assert found == sorted(set(found))
    return found


# --- gaps ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMATS)
def test_a_stream_over_what_compaction_has_left(
    stream: MakeStream, moving: Broker, topic: str, tmp_path: Path, form: str
) -> None:
    """Batches and tasks of which nothing is left are none that fail."""
    servers = moving.bootstrap_servers
    moving.create_topic(topic, 1, **{"cleanup.policy": "compact", "segment.bytes": 50_000})
    send(servers, topic, 0, COUNT, keys=7)
    wait_until(lambda: len(on_broker(servers, topic)) < COUNT / 4, "the cleaner", 60)
    before = {offset for _, _, offset in on_broker(servers, topic)}
    query = stream(form, maxOffsetsPerTrigger=600, minPartitions=8)
    query.run()
    first = set(offsets_of(query))
    assert {offset for _, _, offset in on_broker(servers, topic)} <= first <= before
    send(servers, topic, COUNT, COUNT + 500, keys=7)
    query.run()
    found = set(offsets_of(query))
    assert {offset for _, _, offset in on_broker(servers, topic)} <= found
    assert {offset for offset in found if offset < COUNT} == first
    assert query.logged() == [places(topic, end) for end in (600, 1200, 1800, 2000, 2500)]


@pytest.mark.parametrize("level", ["read_committed", "read_uncommitted"])
def test_streams_over_transactions(stream: MakeStream, moving: Broker, topic: str, level: str) -> None:
    """Some batches have aborted records and markers only. What is open is the next run's."""
    moving.create_topic(topic, 1)
    given = {"kafka.isolation.level": level, "maxOffsetsPerTrigger": 15, "kafkaConsumer.pollTimeoutMs": 30_000}
    both = [stream(form, **given) for form in FORMATS]
    with Producer(bootstrap_servers=moving.bootstrap_servers, transactional_id=topic) as producer:
        producer.init_transactions()
        for number in range(6):
            producer.begin_transaction()
            producer.send_many(topic, [b"%d" % number] * 20, partitions=0)
            producer.flush()
            if number < 5:
                (producer.abort_transaction if number % 2 else producer.commit_transaction)()
        committed = level == "read_committed"
        end = 5 * 21 if committed else 5 * 21 + 20
        wait_until(lambda: end_of(moving, topic, committed) == end, "markers", 30)
        for query in both:
            query.run()
            assert len(offsets_of(query)) == (60 if committed else 120)
            assert query.logged()[-1] == places(topic, end)
        producer.commit_transaction()
    wait_until(lambda: end_of(moving, topic, committed) == 6 * 21, "the last marker", 30)
    for query in both:
        query.run()
        assert len(offsets_of(query)) == (80 if committed else 120)
    ours, theirs = both
    assert ours.rows() == theirs.rows()
    assert ours.logged() == theirs.logged()


def end_of(broker: Broker, topic: str, committed: bool) -> int:
    with AdminClient(bootstrap_servers=broker.bootstrap_servers) as admin:
        ((_, found),) = admin.list_offsets([(topic, 0)], read_committed=committed).items()
    return found.offset


# --- retention ----------------------------------------------------------------------------------------------


def fill_slowly(moving: Broker, topic: str) -> None:
    """Fill a topic that a task takes a while to read."""
    moving.create_topic(topic, 1)
    send(moving.bootstrap_servers, topic, 0, COUNT)
    moving.faults.delay("Fetch", 0.1)


def delete_when_read(moving: Broker, topic: str, begun: int) -> None:
    """`begun`: Fetch requests before. Some of it is read then, and most is not."""
    wait_until(lambda: moving.faults.seen("Fetch") > begun + 5, "tasks that read", 60)
    delete_before(moving.bootstrap_servers, (topic, 0, DELETED))
    moving.faults.clear()


def left(found: list[int]) -> int:
    """Up to where it was read before the rest was deleted."""
    gap = next(at for at, offset in enumerate(found) if at != offset)
    assert 0 < gap < DELETED
    assert found == [*range(gap), *range(DELETED, COUNT)]
    return gap


@pytest.mark.parametrize("form", FORMATS)
def test_retention_under_a_streams_task(stream: MakeStream, moving: Broker, topic: str, form: str) -> None:
    fill_slowly(moving, topic)
    small = {f"kafka.{name}": value for name, value in SMALL_FETCHES.items()}
    query = stream(form, failOnDataLoss=False, **small)
    begun = moving.faults.seen("Fetch")
    running = query.start(availableNow=True)
    delete_when_read(moving, topic, begun)
    assert running.awaitTermination(120)
    left(offsets_of(query))


@pytest.mark.parametrize("form", FORMATS)
def test_retention_under_a_streams_task_that_must_not_lose(
    stream: MakeStream, moving: Broker, topic: str, form: str
) -> None:
    """Nothing of its batch is there, before somebody says that records may be missing."""
    fill_slowly(moving, topic)
    small = {f"kafka.{name}": value for name, value in SMALL_FETCHES.items()}
    query = stream(form, **small)
    begun = moving.faults.seen("Fetch")
    running = query.start(availableNow=True)
    delete_when_read(moving, topic, begun)
    with pytest.raises(StreamingQueryException) as lost:
        running.awaitTermination(120)
    if form == "kbroker":
        assert "some are gone, it has 1500 to 2000; set failOnDataLoss=false" in str(lost.value)
    assert not list(query.output.glob("_spark_metadata/*"))
    query.given["failOnDataLoss"] = False
    query.run()
    assert offsets_of(query) == [*range(DELETED, COUNT)]


@pytest.mark.parametrize("data_loss", ["fail", "continue"])
def test_retention_under_a_loads_task(
    spark: SparkSession, moving: Broker, topic: str, tmp_path: Path, data_loss: str
) -> None:
    lake, servers = tmp_path / "lake", moving.bootstrap_servers
    fill_slowly(moving, topic)
    begun = moving.faults.seen("Fetch")
    deleting = threading.Thread(target=delete_when_read, args=(moving, topic, begun))

    def loaded() -> Summary:
        return load(topic, lake, bootstrap_servers=servers, spark=spark, options=SMALL_FETCHES, data_loss=data_loss)

    deleting.start()
    try:
        if data_loss == "fail":
            with pytest.raises(LoadFailed, match=rf"^{topic}-0: offset \d+ was deleted before it was read;"):
                loaded()
            assert visible(lake) == {}
            return
        found = loaded()
    finally:
        deleting.join()
    gap = left(sorted(offset for _, _, offset in visible(lake)))
    assert (found.rows, found.topics[0].missing) == (gap + COUNT - DELETED, DELETED - gap)
    assert loaded().commits == []


def make_again_when_read(moving: Broker, topic: str, begun: int) -> None:
    wait_until(lambda: moving.faults.seen("Fetch") > begun + 5, "tasks that read", 60)
    with AdminClient(bootstrap_servers=moving.bootstrap_servers) as admin:
        admin.delete_topics([topic])
        wait_until(lambda: topic not in admin.list_topics(), "a topic that is gone")
        admin.create_topic(topic, 1, configs={"retention.ms": "-1"})
    send(moving.bootstrap_servers, topic, 0, 10)
    moving.faults.clear()


def test_a_topic_that_is_made_again_under_a_loads_task(
    spark: SparkSession, moving: Broker, topic: str, tmp_path: Path
) -> None:
    """What is missing is not looked for offset by offset."""
    lake, servers = tmp_path / "lake", moving.bootstrap_servers
    fill_slowly(moving, topic)
    making = threading.Thread(target=make_again_when_read, args=(moving, topic, moving.faults.seen("Fetch")))
    making.start()
    try:
        with pytest.raises(LoadFailed, match=rf"^{topic}-0 ends before offset \d+: .* the next load "):
            load(topic, lake, bootstrap_servers=servers, spark=spark, options=SMALL_FETCHES, data_loss="continue")
    finally:
        making.join()
    assert visible(lake) == {}
    assert load(topic, lake, bootstrap_servers=servers, spark=spark, data_loss="continue").rows == 10
    assert visible(lake) == on_broker(servers, topic)


# --- partitions ---------------------------------------------------------------------------------------------


def add_partition_when_read(moving: Broker, topic: str, begun: int) -> None:
    """The batch is planned then, and its tasks have not ended."""
    wait_until(lambda: moving.faults.seen("Fetch") > begun, "tasks that read", 60)
    with AdminClient(bootstrap_servers=moving.bootstrap_servers) as admin:
        admin.create_partitions(topic, 3)
    fill(moving.bootstrap_servers, topic, 3, 30, make=False)
    moving.faults.clear()


PLANNED = [(partition, at) for partition in range(2) for at in range(25)]
ALL = [(partition, at) for partition, count in enumerate((35, 35, 10)) for at in range(count)]


@pytest.mark.parametrize("form", FORMATS)
def test_a_partition_that_comes_when_a_batch_is_planned(
    stream: MakeStream, moving: Broker, topic: str, form: str
) -> None:
    """The batch is what was planned; the partition is the next one's, from its beginning."""
    fill(moving.bootstrap_servers, topic, 2, 50)
    query = stream(form)
    begun = moving.faults.seen("Fetch")
    moving.faults.delay("Fetch", 2)
    running = query.start(processingTime="0 seconds")
    try:
        add_partition_when_read(moving, topic, begun)
        wait_until(lambda: len(query.logged()) >= 2, "the next batch", 60)
        running.processAllAvailable()
    finally:
        running.stop()
    assert query.logged()[0] == places(topic, 25, 25)
    assert query.logged()[-1] == places(topic, 35, 35, 10)
    assert query.offsets() == [(topic, partition, at) for partition, at in ALL]


def test_a_partition_that_comes_when_a_load_is_planned(
    spark: SparkSession, moving: Broker, topic: str, tmp_path: Path
) -> None:
    lake, servers = tmp_path / "lake", moving.bootstrap_servers
    fill(servers, topic, 2, 50)
    begun = moving.faults.seen("Fetch")
    moving.faults.delay("Fetch", 2)
    adding = threading.Thread(target=add_partition_when_read, args=(moving, topic, begun))
    adding.start()
    try:
        load(topic, lake, bootstrap_servers=servers, spark=spark)
    finally:
        adding.join()
    assert sorted((partition, at) for _, partition, at in visible(lake)) == PLANNED
    load(topic, lake, bootstrap_servers=servers, spark=spark)
    assert visible(lake) == on_broker(servers, topic)
    assert sorted((partition, at) for _, partition, at in visible(lake)) == ALL
