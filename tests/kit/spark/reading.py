"""Reading with any format of Spark, and what its errors say."""

from __future__ import annotations

import re
from typing import Any

from pyspark.sql import DataFrame, SparkSession


def load(spark: SparkSession, form: str = "kbroker", **options: Any) -> DataFrame:
    """Return a DataFrame of a format. Nothing is read yet; only the schema is known."""
    reader = spark.read.format(form)
    for name, value in options.items():
        reader = reader.option(name, value)
    return reader.load()


def last_line(error: BaseException) -> str:
    """Return the last line of the traceback in a Python data source's error, which Spark wraps: what users look at."""
    text = str(error).split("\n\nJVM stacktrace")[0]
    found = re.findall(
        r"^(?:[\w.]+\.)?\w+(?:Error|Exception|Option|Failed|Loss|Out|Records|Delivered)\b: .*$", text, re.MULTILINE
    )
    return found[-1] if found else text.strip().splitlines()[-1]
