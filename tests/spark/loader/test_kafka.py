"""`kbroker load` from Apache Kafka: the lake has what its brokers have, and `--verify` agrees."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from kbroker.client import AdminClient, Producer
from kbroker.spark import load
from kbroker.spark.loader.summary import Summary
from kbroker.spark.loader.tasks.spark_tasks import SparkTasks
from kbroker.spark.loader.verification.verify import verify
from tests.kit.kafka.process import Kafka4InMemory, KafkaInMemory, KafkaProcess
from tests.kit.kafka.zookeeper import Kafka25
from tests.kit.parts.processors import wait_until
from tests.kit.spark.load import BEGIN_MS, create, fill, on_broker, settings_of, visible, visible_in
from tests.kit.spark.object_stores import below, s3_bucket

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

COMMITTED = {"isolation.level": "read_committed"}
SETTINGS: dict[str, object] = {
    "offsets.topic.num.partitions": 1,
    "transaction.state.log.num.partitions": 1,
    "log.retention.ms": -1,  # records are years old
    "log.cleaner.backoff.ms": 100,
}


class SmallKafka4(Kafka4InMemory):
    heap = "256m"


class SmallKafka3(KafkaInMemory):
    heap = "256m"


@pytest.fixture(scope="module", params=[SmallKafka4, SmallKafka3, Kafka25], ids=lambda kind: kind.version)
def kafka(request: pytest.FixtureRequest) -> Iterator[str]:
    """Where it is reached."""
    kind: type[KafkaProcess] = request.param
    with kind(SETTINGS) as found:
        yield found.address


class Lake:
    """And how it is loaded with Spark."""

    def __init__(self, spark: SparkSession, servers: str, place: Path | str, **options: Any):
        self.spark = spark
        self.servers = servers
        self.place = place
        self.options = options

    def load(self, topic: str, **settings: Any) -> Summary:
        return load(
            topic,
            self.place,
            bootstrap_servers=self.servers,
            spark=self.spark,
            options=self.options,
            task_bytes=20_000,
            **settings,
        )

    def is_whole(self, topic: str) -> bool:
        """By `--verify`."""
        settings = settings_of(self.place, self.servers, topic, client=self.options)
        return verify(settings, SparkTasks(lambda: self.spark)).is_good


@pytest.fixture
def lake(spark: SparkSession, kafka: str, tmp_path: Path) -> Lake:
    return Lake(spark, kafka, tmp_path / "lake")


def test_each_load_takes_what_has_come_since(kafka: str, topic: str, lake: Lake) -> None:
    create(kafka, topic, 3)
    fill(kafka, topic, 3, 1000)
    assert lake.load(topic).rows == 3000
    assert lake.load(topic).commits == []
    fill(kafka, topic, 3, 200, start=1000)
    with AdminClient(bootstrap_servers=kafka) as admin:
        admin.create_partitions(topic, 4)
    wait_until(lambda: len(partitions_of(kafka, topic)) == 4, "the new partition")
    fill(kafka, topic, 4, 50, start=1200)
    assert lake.load(topic, group=f"{topic}-lag").rows == 800
    assert visible(lake.place) == on_broker(kafka, topic)
    assert lake.is_whole(topic)
    with AdminClient(bootstrap_servers=kafka) as admin:
        shown = {place.partition_id: each.offset for place, each in admin.committed(f"{topic}-lag").items()}
    assert shown == {0: 1250, 1: 1250, 2: 1250, 3: 50}


def partitions_of(servers: str, topic: str) -> list[Any]:
    with AdminClient(bootstrap_servers=servers) as admin:
        return list(admin.describe_topics([topic])[topic].partitions)


def test_compaction_leaves_gaps(kafka: str, topic: str, lake: Lake) -> None:
    create(kafka, topic, 1, cleanup_policy="compact", min_cleanable_dirty_ratio="0.01", segment_bytes=str(1 << 20))
    fill_large(kafka, topic, 0, 5000)
    wait_until(lambda: len(on_broker(kafka, topic)) < 5000, "the cleaner", 60)
    before = on_broker(kafka, topic)
    found = lake.load(topic)
    assert found.rows + found.topics[0].missing == 5000
    first = visible(lake.place)
    assert on_broker(kafka, topic).items() <= first.items() <= before.items()
    fill_large(kafka, topic, 5000, 5100)
    lake.load(topic)
    assert on_broker(kafka, topic).items() <= visible(lake.place).items()
    assert first.items() <= visible(lake.place).items()
    assert lake.is_whole(topic)


def fill_large(servers: str, topic: str, start: int, stop: int) -> None:
    """Write large records with seven keys."""
    numbers = range(start, stop)
    with Producer(bootstrap_servers=servers) as producer:
        producer.send_many(
            topic,
            [b"%01000d" % number for number in numbers],
            [b"key %d" % (number % 7) for number in numbers],
            partitions=0,
            timestamps=[BEGIN_MS + number for number in numbers],
        ).result(30)


def test_only_what_was_committed(spark: SparkSession, kafka: str, topic: str, tmp_path: Path) -> None:
    create(kafka, topic, 1)
    with Producer(bootstrap_servers=kafka, transactional_id=topic) as producer:
        producer.init_transactions()
        for number in range(10):
            producer.begin_transaction()
            producer.send_many(topic, [b"%d" % number] * 50, partitions=0, timestamps=[BEGIN_MS] * 50)
            producer.flush()
            if number < 9:
                producer.commit_transaction() if number % 3 else producer.abort_transaction()
        lake = Lake(spark, kafka, tmp_path / "committed", **COMMITTED)
        wait_until(lambda: len(on_broker(kafka, topic, **COMMITTED)) == 300, "markers", 30)
        assert lake.load(topic).rows == 300  # the last one is open
        all_of_it = Lake(spark, kafka, tmp_path / "all")
        assert all_of_it.load(topic).rows == 500
        producer.commit_transaction()
    wait_until(lambda: len(on_broker(kafka, topic, **COMMITTED)) == 350, "the last marker", 30)
    assert lake.load(topic).rows == 50
    assert visible(lake.place) == on_broker(kafka, topic, **COMMITTED)
    assert lake.is_whole(topic)
    assert visible(all_of_it.place) == on_broker(kafka, topic)


def test_a_lake_in_an_object_store(spark: SparkSession, kafka: str, topic: str) -> None:
    """The lake's commits are records of a topic, in Apache Kafka too."""
    create(kafka, topic, 2)
    fill(kafka, topic, 2, 500)
    with s3_bucket() as bucket:
        lake = Lake(spark, kafka, below(bucket, topic))
        assert [lake.load(topic).commits for _ in range(2)] == [[1], []]
        fill(kafka, topic, 2, 100, start=500)
        assert lake.load(topic).commits == [2]
        assert visible_in(settings_of(lake.place, kafka, topic)) == on_broker(kafka, topic)
        assert lake.is_whole(topic)
    with AdminClient(bootstrap_servers=kafka) as admin:
        (log,) = (name for name in admin.list_topics() if name.startswith("kbroker-load-"))
    assert len(on_broker(kafka, log, **COMMITTED)) == 2
