"""Topics into a lake in one call: the function `kbroker.spark.load`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kbroker.spark.errors import WrongOption
from kbroker.spark.loader.run import Loader, Watcher
from kbroker.spark.loader.settings import Settings
from kbroker.spark.loader.summary import Summary
from kbroker.spark.loader.tasks.spark_tasks import SparkTasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def load(
    topics: str | Iterable[str] | re.Pattern[str],
    lake: str | Path,
    *,
    bootstrap_servers: str,
    spark: SparkSession | None = None,
    master: str = "local[*]",
    options: Mapping[str, Any] | None = None,
    watcher: Watcher | None = None,
    **settings: Any,
) -> Summary:
    """Load what is new in topics into a lake of Parquet files, each record once. Return what was done.

    `topics`: one name or several, or a compiled pattern that names match as a whole.
    `lake`: a directory that all executors reach at the same path, or a URI of pyarrow's file systems.
    `spark`: the session to use. If it is None, one with this `master` is made once there is something to read.
    `options`: options of kbroker.client, for example for security, with `kafka.` before their names or without.
    `watcher`: is told how far the load is.
    `settings`: fields of kbroker.spark.loader.settings.Settings.

    Raises a KbrokerError that says why the load failed: LoadFailed, an error of the client, or WrongOption.
    """
    if not isinstance(lake, (str, Path)):
        raise WrongOption(f"lake={lake!r}: must be a path or a URI")
    if not isinstance(topics, (str, re.Pattern, Iterable)):
        raise WrongOption(f"topics={topics!r}: must be names, or one compiled pattern")
    where = str(lake)
    if "://" not in where and settings.get("filesystem") is None:
        where = str(Path(where).absolute())
    if isinstance(topics, re.Pattern):
        settings["pattern"] = topics
    else:
        settings["topics"] = (topics,) if isinstance(topics, str) else tuple(topics)
    client = {name.removeprefix("kafka."): value for name, value in (options or {}).items()}
    wanted = Settings(lake=where, client={**client, "bootstrap.servers": bootstrap_servers}, **settings)

    def session() -> SparkSession:
        from kbroker.spark.session import loading_session

        return spark if spark is not None else loading_session(master)

    return Loader(wanted, SparkTasks(session), watcher).run()
