"""A Spark session that is set up for what Python sources need."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from kbroker.spark.installed import check_installed, check_interpreter

LOGGING = Path(__file__).with_name("log4j2.properties").as_uri()

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def session(master: str | None = None, app_name: str = "kbroker", **conf: str | int | bool) -> SparkSession:
    """A SparkSession, or the one that there is.

    `master`: local[*], or what spark-submit was told. `conf`: settings of Spark, with underscores for dots:
    `spark_sql_shuffle_partitions=2`, or as they are: `**{"spark.sql.shuffle.partitions": 2}`; they win. Arrow batches
    go through Unix sockets, but on YARN. NotInstalled says in one line what is missing.

    All run the interpreter that PYSPARK_PYTHON names, this one if it names none: on the driver, where it looks for
    formats, and on executors. Spark has one path for both, so it must lead to a Python with kbroker on all machines.
    """
    check_installed()
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    if "PYSPARK_GATEWAY_PORT" in os.environ:  # of spark-submit's JVM
        SparkContext._ensure_initialized()
    if SparkContext._jvm is None:
        python = os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        check_interpreter(python, "which PYSPARK_PYTHON names")
        # Of a Python source Spark runs this one, on executors too; it may be a path on the driver only, or jupyter.
        os.environ["PYSPARK_DRIVER_PYTHON"] = python
        master = master or "local[*]"
        where = master
    else:
        _check_running()
        where = master or SparkConf().get("spark.master", "")
    wanted: dict[str, str | int | bool] = {}
    # The temporary folders of YARN's containers have names that are longer than a socket's may be.
    if not where.startswith("yarn"):
        wanted["spark.python.unix.domain.socket.enabled"] = True
    if where.startswith("local"):
        wanted |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    wanted |= {name if "." in name else name.replace("_", "."): value for name, value in conf.items()}
    builder = SparkSession.builder.appName(app_name)
    if master is not None:
        builder = builder.master(master)
    for name, value in wanted.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def loading_session(master: str, **conf: str | int | bool) -> SparkSession:
    """For loads, whose JVM has little to do: no page, no bar, errors only in its log, and none of the compiling that
    takes half a second of each load's cores. On a cluster what its administrators say to JVMs is left alone."""
    quiet: dict[str, str | int | bool] = {"spark.ui.enabled": False, "spark.ui.showConsoleProgress": False}
    if master.startswith("local"):
        # From the JVM's first line on, while spark.log.level holds from when there is a context.
        quiet["spark.driver.defaultJavaOptions"] = f"-XX:TieredStopAtLevel=1 -Dlog4j2.configurationFile={LOGGING}"
    else:
        quiet["spark.log.level"] = "ERROR"
    return session(master, "kbroker load", **{**quiet, **conf})


def _check_running() -> None:
    """A JVM that somebody else has started: what it was started with cannot be changed any more."""
    from pyspark import SparkContext

    assert SparkContext._jvm is not None
    environment = SparkContext._jvm.System.getenv
    python = environment("PYSPARK_DRIVER_PYTHON") or environment("PYSPARK_PYTHON") or "python3"
    check_interpreter(python, "with which Spark was started")
