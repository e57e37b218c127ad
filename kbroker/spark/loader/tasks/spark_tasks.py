"""Runs a load's tasks as Spark jobs."""

from __future__ import annotations

import concurrent.futures
import re
import uuid
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Protocol, TypeVar

from kbroker.errors import KbrokerError
from kbroker.spark.loader.errors import LoadFailed, SparkGone

if TYPE_CHECKING:
    from pyspark import Accumulator, SparkContext
    from pyspark.sql import SparkSession

T = TypeVar("T")
R = TypeVar("R")

PROGRESS_S = 0.2
GONE = "Spark's JVM has ended; what it said is above"


class Tasks(Protocol):
    """What runs a load's tasks elsewhere. A load itself does not know of Spark."""

    @property
    def slots(self) -> int: ...
    def run(
        self,
        function: Callable[[T], R],
        items: Sequence[T],
        weigh: Callable[[R], tuple[int, int]],
        progressed: Callable[[int, int], None],
    ) -> list[R]: ...


class SparkTasks:
    """Runs functions on Spark's executors. `session` is called once there is something to run."""

    def __init__(self, session: Callable[[], SparkSession]):
        self._session = session

    @cached_property
    def _context(self) -> SparkContext:
        """The Spark context. Raises LoadFailed when Spark does not start, and SparkGone when its JVM has ended."""
        try:
            return self._session().sparkContext
        except KbrokerError:
            raise
        except Exception as error:
            if _is_gone(error):
                raise SparkGone(GONE) from error
            # The first line of Java's error is Py4J's and names only the call; the reason follows behind it.
            java = re.search(r"^: (.*)$", str(error), re.MULTILINE)
            said = java[1] if java else str(error).partition("\n")[0]
            raise LoadFailed(f"Spark does not start: {said}") from error

    @cached_property
    def _counters(self) -> tuple[Accumulator[int], Accumulator[int]]:
        """Accumulators of rows and bytes. All jobs share them, because PySpark never forgets an accumulator."""
        return self._context.accumulator(0), self._context.accumulator(0)

    @property
    def slots(self) -> int:
        """How many tasks run at a time. Raises SparkGone when Spark's JVM has ended."""
        try:
            return self._context.defaultParallelism
        except Exception as error:
            if _is_gone(error):
                raise SparkGone(GONE) from error
            raise

    def run(
        self,
        function: Callable[[T], R],
        items: Sequence[T],
        weigh: Callable[[R], tuple[int, int]],
        progressed: Callable[[int, int], None],
    ) -> list[R]:
        """Return what `function` makes of each item, in the attempt of its task that counts.

        `progressed` is called now and then with the rows and bytes that were done since its last call; `weigh` finds
        them on executors. Ctrl-C cancels the job. Raises LoadFailed when a task has failed for good, and SparkGone when
        Spark's JVM has ended.
        """
        context = self._context
        rows, size = self._counters
        group = f"kbroker-load-{uuid.uuid4().hex[:12]}"
        told_rows, told_size = rows.value, size.value

        def run(item: T) -> R:
            made = function(item)
            more_rows, more_size = weigh(made)
            rows.add(more_rows)
            size.add(more_size)
            return made

        def collect() -> list[R]:
            context.setJobGroup(group, f"kbroker load: {len(items)} tasks", interruptOnCancel=True)
            return context.parallelize(items, len(items)).map(run).collect()

        with concurrent.futures.ThreadPoolExecutor(1, "kbroker-load") as pool:
            future = pool.submit(collect)
            try:
                while not future.done():
                    concurrent.futures.wait([future], PROGRESS_S)
                    now_rows, now_size = rows.value, size.value
                    progressed(now_rows - told_rows, now_size - told_size)
                    told_rows, told_size = now_rows, now_size
                return future.result()
            except KeyboardInterrupt:
                while not future.done():  # it may begin only now
                    context.cancelJobGroup(group)
                    concurrent.futures.wait([future], PROGRESS_S)
                raise
            except Exception as error:
                if _is_gone(error):
                    raise SparkGone(GONE) from error
                raise LoadFailed(reason(str(error))) from error


def _is_gone(error: Exception) -> bool:
    """Return whether an error means that Spark's JVM has ended. An error of the JVM itself is a Py4JJavaError."""
    from py4j.protocol import Py4JError, Py4JJavaError

    return isinstance(error, ConnectionError | Py4JError) and not isinstance(error, Py4JJavaError)


def reason(text: str) -> str:
    """Return the error at the end of a task's Python traceback, which Spark puts into a message of its own."""
    tail = text.rpartition("Traceback (most recent call last)")[2] or text
    said = re.findall(r"^(?:[\w.]*\.)?(\w+): (\S.*)$", tail, re.MULTILINE)
    if not said:
        return f"a task has failed: {text.splitlines()[0]}"
    kind, what = said[0]
    return what if kind in ("LoadFailed", "RecordsLost", "NotALake") else f"a task has failed: {kind}: {what}"
