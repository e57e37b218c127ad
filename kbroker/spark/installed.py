"""Checks that what Spark needs is installed. An error says in one line what is missing and what to do."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from kbroker.errors import KbrokerError

LEAST_PYSPARK = (4, 2)
LEAST_PYARROW = (18, 0)
LEAST_JAVA = 17
TIMEOUT_S = 60

ALL = f"pip install 'pyspark>={LEAST_PYSPARK[0]}.{LEAST_PYSPARK[1]}' 'pyarrow>={LEAST_PYARROW[0]}' cryptography"


class NotInstalled(KbrokerError, RuntimeError):
    """Something that Spark needs is missing; the message says what to do."""


def check_installed() -> None:
    """Raise NotInstalled unless PySpark, pyarrow and Java are there, in versions that work."""
    try:
        import pyarrow
        import pyspark
    except ModuleNotFoundError as error:
        raise NotInstalled(f"{error.name} is not installed: {ALL}") from None
    check_pyspark(pyspark.__version__)
    if _version(pyarrow.__version__) < LEAST_PYARROW:
        raise NotInstalled(f"pyarrow {pyarrow.__version__} is too old: install pyarrow>={LEAST_PYARROW[0]}")
    _check_spark_home(pyspark.__version__)
    java = java_command()
    found = java_version(java)
    if found < LEAST_JAVA:
        raise NotInstalled(f"{java} is Java {found}: Spark needs {LEAST_JAVA} or later; JAVA_HOME may name another")


def check_pyspark(version: str) -> None:
    """Raise NotInstalled for a PySpark before LEAST_PYSPARK, whose Python sources have no admission control."""
    if _version(version) < LEAST_PYSPARK:
        wanted = ".".join(map(str, LEAST_PYSPARK))
        raise NotInstalled(f"PySpark {version} is too old for format kbroker: install pyspark>={wanted}")


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:2])


def _check_spark_home(version: str) -> None:
    """Raise NotInstalled if SPARK_HOME names another version of Spark: PySpark starts that one, not its own."""
    home = os.environ.get("SPARK_HOME")
    for jar in (Path(home) / "jars").glob("spark-core_*.jar") if home else ():
        theirs = jar.stem.rpartition("-")[2]
        if _version(theirs) != _version(version):
            raise NotInstalled(f"SPARK_HOME={home} is Spark {theirs}, but PySpark is {version}: unset SPARK_HOME")


# --- Java -------------------------------------------------------------------------------------------------


def java_command() -> str:
    """Return the path of the java that Spark will start. Raises NotInstalled when there is none."""
    home = os.environ.get("JAVA_HOME")
    if home:
        found = Path(home) / "bin" / "java"
        if not found.exists():
            raise NotInstalled(f"JAVA_HOME={home} has no bin/java: Spark needs Java {LEAST_JAVA} or later there")
        return str(found)
    on_path = shutil.which("java")
    if on_path is None:
        raise NotInstalled(f"Java is not installed: Spark needs {LEAST_JAVA} or later, on the PATH or in JAVA_HOME")
    return on_path


def java_version(java: str) -> int:
    """Return the version by which people call a Java: 8, 17, 21. Raises NotInstalled when `java` does not tell it."""
    try:
        told = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=TIMEOUT_S).stderr
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotInstalled(f"{java} cannot be run: {error}") from None
    found = re.search(r'version "(?:1\.)?(\d+)', told)
    if found is None:
        said = told.strip().splitlines()
        raise NotInstalled(f"{java} does not say which Java it is: {said[0] if said else 'it says nothing'}")
    return int(found[1])


# --- the interpreter that Spark runs ----------------------------------------------------------------------


def check_this_interpreter() -> None:
    """Raise NotInstalled if this interpreter, in which Spark looks for formats, has no pyarrow.

    Without pyarrow the next process that Spark starts dies.
    """
    if find_spec("pyarrow") is None:
        raise NotInstalled(
            f"{sys.executable}, which Spark runs, has no pyarrow: name the interpreter that has kbroker[spark] in "
            "PYSPARK_PYTHON, or begin with kbroker.spark.session()"
        )


def check_interpreter(python: str, why: str) -> None:
    """Raise NotInstalled unless the interpreter `python` has kbroker and pyarrow, and is of this Python's version.

    Spark looks for formats with that interpreter, and reports any error there as a format that does not exist.
    `why` says in messages where the interpreter's path comes from.
    """
    if python == sys.executable:
        return
    where = f"{python}, {why},"
    try:
        done = subprocess.run(
            [python, "-c", "import sys, kbroker.client, pyarrow; print(*sys.version_info[:2])"],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotInstalled(f"{where} cannot be run: {error}") from None
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["it ends at once"]
        raise NotInstalled(
            f"{where} cannot import kbroker and pyarrow: {said[-1]}; begin with PYSPARK_PYTHON={sys.executable}"
        )
    if tuple(map(int, done.stdout.split())) != sys.version_info[:2]:
        raise NotInstalled(f"{where} is Python {'.'.join(done.stdout.split())}, and this is {sys.version.split()[0]}")
