"""Kafka topics in PySpark: `format("kbroker")`, a session that is set up for it, and the loader. No jar."""

from kbroker.spark.session import session

__all__ = ["session"]
