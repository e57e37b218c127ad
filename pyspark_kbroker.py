"""Registers `format("kbroker")`: Spark imports modules named pyspark_* and uses their DefaultSource."""

from kbroker.spark.source import KbrokerSource as DefaultSource

__all__ = ["DefaultSource"]
