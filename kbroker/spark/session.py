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
    """Return a SparkSession that is set up for `format("kbroker")`: a new one, or the one that is running.

    `master`: Spark's master URL; by default `local[*]`, or what spark-submit was told.
    `conf`: Spark's settings, with underscores for dots (`spark_sql_shuffle_partitions=2`) or under their own names
    (`**{"spark.sql.shuffle.partitions": 2}`). They override what is set here: Arrow batches go through Unix sockets,
    except on YARN, and a local driver listens on 127.0.0.1.

    Spark runs the Python interpreter that PYSPARK_PYTHON names, or this one if the variable is not set. It runs it on
    the driver, to look for formats, and on executors. Spark has one path for both, so the path must lead to a Python
    with kbroker on every machine. If Spark's JVM is running already, its interpreter is only checked.

    Raises NotInstalled, whose message says in one line what to do, when Java, PySpark or pyarrow is missing or too
    old, or when the interpreter cannot import kbroker and pyarrow.
    """
    check_installed()
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    if "PYSPARK_GATEWAY_PORT" in os.environ:  # spark-submit has started the JVM
        SparkContext._ensure_initialized()
    if SparkContext._jvm is None:
        python = os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        check_interpreter(python, "which PYSPARK_PYTHON names")
        # Spark runs PYSPARK_DRIVER_PYTHON for Python sources, on executors too. A value that the user has set is
        # replaced: it may exist on the driver only, or be jupyter.
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
    """Return a session for loads, whose JVM has little to do.

    It has no web page and no progress bar, and logs errors only. A local JVM does not optimize what it compiles, which
    would take half a second of CPU in each load. On a cluster the administrators' options for JVMs are left alone.
    """
    quiet: dict[str, str | int | bool] = {"spark.ui.enabled": False, "spark.ui.showConsoleProgress": False}
    if master.startswith("local"):
        # This quiets the JVM from its first line on; spark.log.level applies only once there is a context.
        quiet["spark.driver.defaultJavaOptions"] = f"-XX:TieredStopAtLevel=1 -Dlog4j2.configurationFile={LOGGING}"
    else:
        quiet["spark.log.level"] = "ERROR"
    return session(master, "kbroker load", **{**quiet, **conf})


def _check_running() -> None:
    """Raise NotInstalled if the running JVM's Python interpreter, which cannot be changed any more, does not work."""
    from pyspark import SparkContext

    assert SparkContext._jvm is not None
    environment = SparkContext._jvm.System.getenv
    python = environment("PYSPARK_DRIVER_PYTHON") or environment("PYSPARK_PYTHON") or "python3"
    check_interpreter(python, "with which Spark was started")
