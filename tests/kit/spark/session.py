"""Spark for tests: a session with Spark's own Kafka connector beside ours, so that both can be compared."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from kbroker.spark import session
from tests.kit.kafka import maven
from tests.kit.kafka.java_program import SHORT_LIVED

CONNECTOR = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.1.0-preview1",  # there is none of 4.2.0; this one loads
    "org.apache.kafka:kafka-clients:3.9.2",
    "org.apache.commons:commons-pool2:2.12.1",
    "org.apache.spark:spark-avro_2.13:4.1.1",  # there is none of 4.2.0 either
)


def connector_jars() -> list[Path]:
    return maven.jars(CONNECTOR, alone=True)


def new_session(folder: Path, master: str = "local[2]", memory: str = "1g", **conf: str | int | bool) -> SparkSession:
    """Return a small and silent session with the formats kafka and kbroker. A process can have one at a time."""
    return session(
        master,
        "kbroker-tests",
        **{
            "spark_jars": ",".join(map(str, connector_jars())),
            "spark_driver_memory": memory,
            "spark_driver_defaultJavaOptions": " ".join(SHORT_LIVED),
            "spark_ui_enabled": False,
            "spark_ui_showConsoleProgress": False,
            "spark_sql_shuffle_partitions": 2,
            "spark_sql_session_timeZone": "UTC",
            "spark_local_dir": str(folder / "local"),
            "spark_sql_warehouse_dir": str(folder / "warehouse"),
            **conf,
        },
    )
