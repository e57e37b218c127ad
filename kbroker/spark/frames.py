"""Topics as DataFrames in one call: thin helpers over `format("kbroker")`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from kbroker.spark.session import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Topics = str | Iterable[str] | re.Pattern[str] | Mapping[str, Iterable[int]]


def read(
    topics: Topics,
    bootstrap_servers: str,
    *,
    spark: SparkSession | None = None,
    kafka: Mapping[str, Any] | None = None,
    **options: Any,
) -> DataFrame:
    """What is in these topics now: names, a compiled pattern, or partitions by topic.

    `kafka`: options of the client; `options`: of the format, with their names, a mapping in place of JSON. In `spark`,
    else in the session that there is, or a new one.
    """
    reader = (spark or _session()).read.format("kbroker")
    return reader.options(**format_options(topics, bootstrap_servers, kafka, options)).load()


def stream(
    topics: Topics,
    bootstrap_servers: str,
    *,
    spark: SparkSession | None = None,
    kafka: Mapping[str, Any] | None = None,
    **options: Any,
) -> DataFrame:
    """What comes into them, from `startingOffsets` on; see `read`."""
    reader = (spark or _session()).readStream.format("kbroker")
    return reader.options(**format_options(topics, bootstrap_servers, kafka, options)).load()


def format_options(
    topics: Topics, bootstrap_servers: str, kafka: Mapping[str, Any] | None, options: Mapping[str, Any]
) -> dict[str, str]:
    """As Spark takes them."""
    found = {"kafka.bootstrap.servers": bootstrap_servers, **_subscription(topics)}
    found |= {f"kafka.{name}": _text(value) for name, value in (kafka or {}).items()}
    return found | {name: _text(value) for name, value in options.items() if value is not None}


def _subscription(topics: Topics) -> dict[str, str]:
    if isinstance(topics, str):
        return {"subscribe": topics}
    if isinstance(topics, re.Pattern):
        return {"subscribePattern": topics.pattern}
    if isinstance(topics, Mapping):
        return {"assign": json.dumps({topic: list(numbers) for topic, numbers in topics.items()})}
    return {"subscribe": ",".join(topics)}


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return json.dumps(value)
    return str(value)


def _session() -> SparkSession:
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession() or session()
