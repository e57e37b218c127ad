"""Records as rows."""

from __future__ import annotations

from kbroker.client import Consumer, Producer
from kbroker.spark.options.format_options import SparkOptions, Use
from kbroker.spark.reading.record_batches import RecordBatches
from kbroker.spark.schema import schema_of
from kbroker.testing import Broker


def test_a_time_that_spark_cannot_have_is_none() -> None:
    """A producer that took nanoseconds for milliseconds stopped all streams of its topic for good."""
    last_ms = (1 << 63) // 1000
    stamps = [1_700_000_000_000, last_ms, last_ms + 1, 1_700_000_000_000_000_000, (1 << 63) - 1]
    found = []
    with Broker(settings={"log.retention.ms": -1}) as broker:
        broker.create_topic("t")
        given = {"kafka.bootstrap.servers": broker.bootstrap_servers, "subscribe": "t"}
        options = SparkOptions(given, Use.BATCH_READ)
        with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
            producer.send_many("t", [b"v"] * len(stamps), timestamps=stamps).result(10)
        batches = RecordBatches(schema_of(options.columns), "t", 0, options)
        with Consumer(bootstrap_servers=broker.bootstrap_servers) as consumer:
            for records in consumer.read_range("t", 0, 0, len(stamps)):
                for batch in batches.convert(records):
                    found += batch.column("timestamp").cast("int64").to_pylist()
    assert found == [1_700_000_000_000_000, last_ms * 1000, -1000, -1000, -1000]
