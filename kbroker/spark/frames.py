"""Reads topics as DataFrames in one call: thin helpers over `format("kbroker")`."""

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
    """Return a DataFrame of the records that are in `topics` now.

    `topics`: one name or several, a compiled pattern that is searched in names, or partition numbers by topic.
    `spark`: the session to use; by default the active one, or a new one made by `session()`.
    `kafka`: options of the client, without the prefix `kafka.`.
    `options`: options of the format, by name. A mapping or a Spark type is passed as its JSON, a list as its parts
    joined with commas. An option that is None is left out.

    Raises WrongOption when an option's value is of another kind.
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
    """Return a streaming DataFrame of the records of `topics` from `startingOffsets` on; arguments as in `read`."""
    reader = (spark or _session()).readStream.format("kbroker")
    return reader.options(**format_options(topics, bootstrap_servers, kafka, options)).load()


def format_options(
    topics: Topics, bootstrap_servers: str, kafka: Mapping[str, Any] | None, options: Mapping[str, Any]
) -> dict[str, str]:
    """Return all options as the names and strings that Spark takes. Raises WrongOption as `read` does."""
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
    """Return the text of a compiled pattern, with its flags written into the text."""
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


def _part(value: Any) -> str:
    if not isinstance(value, (str, int)):
        raise TypeError(value)
    return str(value)


def _session() -> SparkSession:
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession() or session()
