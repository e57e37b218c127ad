"""Ways to run a stream that Spark has for its own sources only: what it says of a Python source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from kbroker.client import AdminClient
from kbroker.testing import Broker


@pytest.mark.parametrize(
    ("trigger", "says"),
    [
        ({"continuous": "1 second"}, "Data source kbroker does not support continuous processing"),
        ({"realTime": "5 seconds"}, r"The input stream .*PythonMicroBatchStream\w* is not supported in Real-time Mode"),
    ],
)
def test_spark_refuses_what_python_sources_cannot(
    spark: SparkSession, broker: Broker, topic: str, tmp_path: Path, trigger: dict[str, Any], says: str
) -> None:
    with AdminClient(bootstrap_servers=broker.bootstrap_servers) as admin:
        admin.create_topic(topic, 1)
    options = {"kafka.bootstrap.servers": broker.bootstrap_servers, "subscribe": topic}
    stream = spark.readStream.format("kbroker").options(**options).load().writeStream.format("console")
    started = stream.outputMode("update").option("checkpointLocation", str(tmp_path)).trigger(**trigger)
    with pytest.raises(Exception, match=says):
        query = started.start()
        try:
            query.awaitTermination(60)
        finally:
            query.stop()
