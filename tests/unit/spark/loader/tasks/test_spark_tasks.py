"""Why a task failed, out of what Spark says of it."""

from __future__ import annotations

from typing import NoReturn

import pytest

from kbroker.spark.installed import NotInstalled
from kbroker.spark.loader.errors import LoadFailed
from kbroker.spark.loader.tasks.spark_tasks import SparkTasks, reason

SPARK = """Job aborted due to stage failure: Task 0 in stage 0.0 failed 1 times, most recent failure: \
Traceback (most recent call last):
  File "worker.py", line 1, in process
OSError: [Errno 28] Error writing bytes to file. Detail: [errno 28] No space left on device

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "task.py", line 2, in run_unit
{said}

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:581)
Caused by: java.io.IOException: something else
"""


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("kbroker.spark.loader.errors.LoadFailed: /lake: no space left on device", "/lake: no space left on device"),
        ("kbroker.spark.loader.errors.RecordsLost: t-0: gone", "t-0: gone"),
        ("kbroker.errors.TimedOut: t-0: nothing came", "a task has failed: TimedOut: t-0: nothing came"),
        ("ZeroDivisionError: division by zero", "a task has failed: ZeroDivisionError: division by zero"),
    ],
)
def test_what_python_said_last_counts(said: str, expected: str) -> None:
    assert reason(SPARK.format(said=said)) == expected


def test_without_a_traceback_the_first_line_counts() -> None:
    assert reason("Job 0 cancelled\nDriver stacktrace:") == "a task has failed: Job 0 cancelled"


STOPPED = """An error occurred while calling None.org.apache.spark.sql.classic.SparkSession.
: java.lang.IllegalStateException: Cannot call methods on a stopped SparkContext.
This stopped SparkContext was created at:
"""


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (Exception(STOPPED), "java.lang.IllegalStateException: Cannot call methods on a stopped SparkContext.$"),
        (RuntimeError("[JAVA_GATEWAY_EXITED] Java gateway process exited.\nMore"), "JAVA_GATEWAY_EXITED.* exited.$"),
    ],
)
def test_a_spark_that_does_not_start_is_one_line(error: Exception, says: str) -> None:
    def session() -> NoReturn:
        raise error

    with pytest.raises(LoadFailed, match=f"^Spark does not start: .*{says}"):
        _ = SparkTasks(session).slots


def test_what_is_not_installed_is_said_as_it_is() -> None:
    def session() -> NoReturn:
        raise NotInstalled("no Java")

    with pytest.raises(NotInstalled):
        _ = SparkTasks(session).slots
