"""A Spark session that is set up for what Python sources need."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from kbroker.errors import KbrokerError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LEAST_JAVA = 17


class NotInstalled(KbrokerError):
    """Something that Spark needs is missing; the message says what to do."""


def session(master: str = "local[*]", app_name: str = "kbroker", **conf: str | int | bool) -> SparkSession:
    """A SparkSession, or the one that there is.

    The workers run this interpreter, and Arrow batches go through Unix sockets. `conf`: settings of Spark, with
    underscores for dots: `spark_sql_shuffle_partitions=2`; they win. NotInstalled says what is missing.
    """
    check_installed()
    from pyspark.sql import SparkSession

    # Spark takes python3 from the PATH otherwise, which has no kbroker: then it would not know the format.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    wanted: dict[str, str | int | bool] = {"spark.python.unix.domain.socket.enabled": True}
    if master.startswith("local"):
        wanted |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    wanted |= {name.replace("_", "."): value for name, value in conf.items()}
    builder = SparkSession.builder.appName(app_name).master(master)
    for name, value in wanted.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def check_installed() -> None:
    """PySpark, pyarrow and Java, in versions that work."""
    try:
        import pyarrow  # noqa: F401
        import pyspark
    except ModuleNotFoundError as error:
        raise NotInstalled(f"{error.name} is not installed; it comes with: pip install 'kbroker[spark]'") from None
    from kbroker.spark.source import check_version

    check_version(pyspark.__version__)
    java = java_command()
    if java is None:
        raise NotInstalled(f"Java is not installed: Spark needs {LEAST_JAVA} or later, on the PATH or in JAVA_HOME")
    version = java_version(java)
    if version < LEAST_JAVA:
        raise NotInstalled(f"{java} is Java {version}: Spark needs {LEAST_JAVA} or later; JAVA_HOME may name another")


def java_command() -> str | None:
    """The java that Spark will start."""
    home = os.environ.get("JAVA_HOME")
    if home:
        found = Path(home) / "bin" / "java"
        return str(found) if found.exists() else None
    return shutil.which("java")


def java_version(java: str) -> int:
    """The number that people call it by: 8, 17, 21."""
    told = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60).stderr
    found = re.search(r'version "(?:1\.)?(\d+)', told)
    return int(found[1]) if found else LEAST_JAVA
