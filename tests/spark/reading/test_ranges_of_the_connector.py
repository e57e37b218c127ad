"""Tasks are cut as the compiled calculator of Spark's own connector cuts them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from kbroker.spark.reading.ranges import OffsetRange, divided

SIZES = st.lists(st.integers(0, 30) | st.integers(0, 100_000), min_size=1, max_size=6)


def theirs(spark: SparkSession, ranges: list[OffsetRange], **given: int | None) -> list[OffsetRange]:
    jvm: Any = spark._jvm
    package = jvm.org.apache.spark.sql.kafka010
    options = {name: str(value) for name, value in given.items() if value is not None}
    calculator = package.KafkaOffsetRangeCalculator.apply(
        jvm.org.apache.spark.sql.util.CaseInsensitiveStringMap(options)
    )
    found = jvm.java.util.ArrayList()
    for each in ranges:
        place = jvm.org.apache.kafka.common.TopicPartition(each.topic, each.partition)
        found.add(package.KafkaOffsetRange(place, each.start, each.until, jvm.scala.Option.empty()))
    wanted = jvm.scala.jdk.javaapi.CollectionConverters.asScala(found).toSeq()
    nowhere = jvm.scala.jdk.javaapi.CollectionConverters.asScala(jvm.java.util.ArrayList()).toSeq()
    parts = jvm.scala.jdk.javaapi.CollectionConverters.asJava(calculator.getRanges(wanted, nowhere))
    return [OffsetRange(each.topic(), each.partition(), each.fromOffset(), each.untilOffset()) for each in parts]


@pytest.mark.slow
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sizes=SIZES, least=st.none() | st.integers(1, 20), most=st.none() | st.integers(4_000, 60_000))
def test_tasks_are_those_of_the_jvm_connector(
    spark: SparkSession, sizes: list[int], least: int | None, most: int | None
) -> None:
    ranges = [OffsetRange("t", number, 100 * number, 100 * number + size) for number, size in enumerate(sizes)]
    ours = divided(ranges, least_count=least, most_records=most)
    assert ours == theirs(spark, ranges, minPartitions=least, maxRecordsPerPartition=most)
