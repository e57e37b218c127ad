"""The source, the sink and the loader on three brokers of which one dies: every record is there, once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from kbroker.spark import load
from kbroker.testing import Cluster
from tests.kit.kafka.zookeeper import zookeeper_jars
from tests.kit.spark import load as loads
from tests.kit.spark import sink_query
from tests.kit.spark.load import on_broker, visible
from tests.kit.spark.sink_query import committed, open_transactions
from tests.kit.spark.topics import fill
from tests.spark.both_formats import Stream

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

PARTITIONS = sink_query.PARTITIONS
SETTINGS = {"log.retention.ms": -1, "offsets.topic.num.partitions": 3, "transaction.state.log.num.partitions": 3}
PATIENCE_S = 120
LOG_SHOWN = 20_000
"""The last characters of each broker's log that a failure shows: a traceback in it may be the cause."""


@pytest.fixture(scope="module")
def brokers() -> Iterator[Cluster]:
    with Cluster(3, settings=SETTINGS, zookeeper_jars=zookeeper_jars()) as started:
        yield started


@contextmanager
def dying(brokers: Cluster, topic: str, is_time: Callable[[], bool]) -> Iterator[None]:
    """Have the leader of a topic's first partition die in this block once `is_time()` is true. Later it is back."""
    ends = threading.Event()
    killed: list[int] = []

    def die() -> None:
        while not is_time():
            if ends.wait(0.02):
                return
        killed.append(brokers.leader(topic))
        brokers.kill(killed[0])

    thread = threading.Thread(target=die)
    thread.start()
    try:
        yield
    except BaseException:
        for broker_id, broker in brokers.brokers.items():
            print(f"--- broker {broker_id}", broker.log[-LOG_SHOWN:], sep="\n")
        raise
    finally:
        ends.set()
        thread.join(PATIENCE_S)
        brokers.start()
    assert killed, "it was over before it began"


def has_files(folder: Path, count: int = 1) -> bool:
    return folder.is_dir() and sum(not each.name.startswith(".") for each in folder.iterdir()) >= count


def test_a_stream_from_topic_to_topic_writes_each_record_once(
    spark: SparkSession, brokers: Cluster, topic: str, tmp_path: Path
) -> None:
    source, servers = f"{topic}-in", brokers.bootstrap_servers
    for name in (source, topic):
        brokers.create_topic(name, PARTITIONS)
    sink_query.fill(servers, source, 0, 6000)
    query = {
        "servers": servers, "source": source, "source_form": "kbroker", "sink": topic, "rows": 1000,
        "checkpoint": str(tmp_path / "checkpoint"), "options": {"exactlyOnce": "true"},
    }  # fmt: skip
    with dying(brokers, topic, lambda: has_files(tmp_path / "checkpoint/commits", 2)):
        running = sink_query.start(spark, query)
        assert running.awaitTermination(PATIENCE_S)
    assert committed(servers, topic) == list(range(6000))
    assert open_transactions(servers) == []


def test_a_stream_reads_each_record_once(spark: SparkSession, brokers: Cluster, topic: str, tmp_path: Path) -> None:
    brokers.create_topic(topic, PARTITIONS)
    fill(brokers.bootstrap_servers, topic, PARTITIONS, 6000, make=False)
    given: dict[str, Any] = {"subscribe": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": 600}
    stream = Stream(spark, tmp_path, brokers.bootstrap_servers, **given)
    with dying(brokers, topic, lambda: has_files(stream.checkpoint / "commits", 2)):
        stream.run()
    assert stream.offsets() == [(topic, number, at) for number in range(PARTITIONS) for at in range(2000)]


def test_a_load_has_each_record_once(spark: SparkSession, brokers: Cluster, topic: str, tmp_path: Path) -> None:
    servers, lake = brokers.bootstrap_servers, tmp_path / "lake"
    brokers.create_topic(topic, PARTITIONS)
    loads.fill(servers, topic, PARTITIONS, 20_000, step_ms=100)
    with dying(brokers, topic, (lake / "_kbload").exists):
        load(topic, lake, bootstrap_servers=servers, spark=spark, task_bytes=50_000)
    assert visible(lake) == on_broker(servers, topic)
