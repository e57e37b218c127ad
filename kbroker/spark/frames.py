"""Topics as DataFrames in one call: thin helpers over `format("kbroker")`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from kbroker.spark.errors import WrongOption
from kbroker.spark.session import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FLAGS = {"a": re.ASCII, "i": re.IGNORECASE, "m": re.MULTILINE, "s": re.DOTALL, "x": re.VERBOSE}

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

    `kafka`: options of the client; `options`: of the format, with their names. A mapping or a type of Spark's may stand
    for its JSON, and a list for its parts with commas. In `spark`, else in the session that there is, or a new one.
    WrongOption: a value is of no such kind.
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
    given = {**options, **{f"kafka.{name}": value for name, value in (kafka or {}).items()}}
    found = {"kafka.bootstrap.servers": bootstrap_servers, **_subscription(topics)}
    return found | {name: _text(name, value) for name, value in given.items() if value is not None}


def _subscription(topics: Topics) -> dict[str, str]:
    if isinstance(topics, str):
        return {"subscribe": topics}
    if isinstance(topics, re.Pattern):
        return {"subscribePattern": _expression(topics)}
    if isinstance(topics, Mapping):
        return {"assign": json.dumps({topic: list(numbers) for topic, numbers in topics.items()})}
    return {"subscribe": ",".join(topics)}


def _expression(pattern: re.Pattern[str]) -> str:
    """With its flags in it."""
    flags = "".join(letter for letter, flag in FLAGS.items() if pattern.flags & flag)
    bare = re.sub(r"^\(\?[aimsux]+\)", "", pattern.pattern)
    return f"(?{flags}){bare}" if flags else bare


def _text(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (str, int, float)):
        return str(value)
    if isinstance(value, re.Pattern):
        return _expression(value)
    if callable(as_json := getattr(value, "json", None)):
        return str(as_json())
    try:
        if isinstance(value, bytes):
            raise TypeError(value)
        if isinstance(value, Mapping) or name in ("keySchema", "valueSchema"):
            return json.dumps(value)
        return ",".join(_part(each) for each in value)
    except TypeError:
        raise WrongOption(f"option {name}={value!r}: must be text, a number, or a list or mapping of such") from None


def _part(of: Any) -> str:
    if not isinstance(of, (str, int)):
        raise TypeError(of)
    return str(of)


def _session() -> SparkSession:
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession() or session()
