"""Makes `format("kbroker")` known: Spark looks for modules named pyspark_* and takes their DefaultSource."""

from kbroker.spark.source import KbrokerSource as DefaultSource

__all__ = ["DefaultSource"]
