"""Compacted topics as tables."""

from __future__ import annotations

import random
from typing import Any

import pytest
from pyspark.sql import SparkSession

import kbroker.spark
from kbroker.client import AdminClient, Producer
from kbroker.testing import Broker
from tests.kit.spark.reading import last_line


def latest(spark: SparkSession, broker: Broker, topic: str, **options: Any) -> Any:
    return kbroker.spark.latest(topic, broker.bootstrap_servers, spark=spark, **options)


def test_each_key_has_its_newest_value(spark: SparkSession, broker: Broker, topic: str) -> None:
    """The values are those of a dictionary that is written in the order of the offsets, whatever the timestamps say."""
    chance = random.Random(17)
    with AdminClient(bootstrap_servers=broker.bootstrap_servers) as admin:
        admin.create_topic(topic, 3)
    model: dict[bytes, tuple[bytes, int]] = {}
    with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
        for i in range(5000):
            key = None if chance.random() < 0.05 else b"key %d" % chance.randrange(400)
            value = None if chance.random() < 0.2 else b"value %d" % i
            timestamp = 1_700_000_000_000 + chance.randrange(10_000)
            partition = None if key is None else int(key[4:]) % 3
            producer.send(topic, value, key=key, partition=partition, timestamp=timestamp)
            if key is not None and value is None:
                model.pop(key, None)
            elif key is not None:
                model[key] = (value, timestamp)
    found = latest(spark, broker, topic)
    assert found.columns == ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
    rows = found.selectExpr("key", "value", "unix_millis(timestamp) as ms", "partition").collect()
    assert {bytes(row.key): (bytes(row.value), row.ms) for row in rows} == model
    assert len(rows) == len(model) > 200
    assert all(int(row.key[4:]) % 3 == row.partition for row in rows)


def test_a_key_that_has_moved_to_another_partition_is_there_once(
    spark: SparkSession, broker: Broker, topic: str
) -> None:
    with AdminClient(bootstrap_servers=broker.bootstrap_servers) as admin:
        admin.create_topic(topic, 2)
    with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
        for partition, timestamp, value in (
            (1, 1000, b"old"),
            (1, 900, b"newer"),
            (0, 2000, b"moved"),
            (1, 500, b"no"),
        ):
            producer.send(topic, value, key=b"a", partition=partition, timestamp=timestamp)
            producer.send(topic, value if partition else None, key=b"gone", partition=partition, timestamp=timestamp)
    assert [bytes(row.value) for row in latest(spark, broker, topic).collect()] == [b"moved"]


def test_values_are_decoded_and_bad_ones_are_errors_or_kept(spark: SparkSession, broker: Broker, topic: str) -> None:
    with AdminClient(bootstrap_servers=broker.bootstrap_servers) as admin:
        admin.create_topic(topic, 1)
    with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
        for key, value in ((b"a", b"1"), (b"b", b"x"), (b"a", b"2"), (b"b", b"\xff"), (b"c", b"3"), (b"c", None)):
            producer.send(topic, value, key=key)
    with pytest.raises(Exception) as caught:
        latest(spark, broker, topic, valueFormat="string").collect()
    assert f"BadRecord: {topic}-0, offset 3: the value cannot be decoded: it is not UTF-8" in last_line(caught.value)
    kept = latest(spark, broker, topic, valueFormat="string", keyFormat="string", mode="PERMISSIVE")
    assert kept.columns[:2] == ["key", "value"] and len(kept.columns) == 7
    assert sorted((row.key, row.value) for row in kept.collect()) == [("a", "2"), ("b", None)]
    named = latest(spark, broker, topic, valueFormat="string", mode="PERMISSIVE", columnNameOfCorruptRecord="bad")
    assert sorted((row.bad is not None, row.value) for row in named.collect()) == [(False, "2"), (True, None)]
