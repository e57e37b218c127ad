"""Topics as DataFrames."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from kbroker.client import AdminClient, Producer
from kbroker.testing import Broker


def load(spark: SparkSession, broker: Broker, form: str = "kbroker", **options: Any) -> DataFrame:
    reader = spark.read.format(form).option("kafka.bootstrap.servers", broker.bootstrap_servers)
    for name, value in options.items():
        reader = reader.option(name, value)
    return reader.load()


@pytest.fixture
def filled(broker: Broker, topic: str) -> str:
    with AdminClient(bootstrap_servers=broker.bootstrap_servers) as admin:
        admin.create_topic(topic, 3)
    with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
        for i in range(300):
            producer.send(
                topic,
                None if i % 7 == 0 else b"value %d" % i,
                key=None if i % 5 == 0 else b"key %d" % i,
                headers=[("a", b"%d" % i), ("b", None)] if i % 3 == 0 else None,
                partition=i % 3,
                timestamp=1_700_000_000_000 + i,
            )
    return topic


def test_rows_are_those_of_the_jvm_connector(spark: SparkSession, broker: Broker, filled: str) -> None:
    ours = load(spark, broker, subscribe=filled, includeHeaders=True)
    theirs = load(spark, broker, "kafka", subscribe=filled, includeHeaders=True)
    assert ours.schema == theirs.schema
    found = sorted(ours.collect(), key=lambda row: (row.partition, row.offset))
    assert found == sorted(theirs.collect(), key=lambda row: (row.partition, row.offset))
    assert len(found) == 300
