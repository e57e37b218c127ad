"""A load's tasks as Spark jobs."""

from __future__ import annotations

import concurrent.futures
import re
import uuid
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from kbroker.spark.loader.errors import LoadFailed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
R = TypeVar("R")

PROGRESS_S = 0.2


class SparkTasks:
    """`session` is called when there is something to read."""

    def __init__(self, session: Callable[[], SparkSession]):
        self._session = session

    @property
    def slots(self) -> int:
        """How many tasks run at a time."""
        return self._session().sparkContext.defaultParallelism

    def run(
        self,
        function: Callable[[T], R],
        items: Sequence[T],
        weigh: Callable[[R], tuple[int, int]],
        progressed: Callable[[int, int], None],
    ) -> list[R]:
        """Of each item what the attempt that counts has made of it. LoadFailed: a task has failed for good.

        `progressed` is called now and then with what `weigh` (on executors) says of what was done since the last time:
        rows, and bytes. Ctrl-C cancels the job.
        """
        context = self._session().sparkContext
        rows, size = context.accumulator(0), context.accumulator(0)
        group = f"kbroker-load-{uuid.uuid4().hex[:12]}"
        told_rows = told_size = 0

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
                context.cancelJobGroup(group)
                raise
            except Exception as error:
                raise LoadFailed(reason(str(error))) from error


def reason(text: str) -> str:
    """What Python says in the end of a traceback, which Spark puts into its own."""
    tail = text.rpartition("Traceback (most recent call last)")[2] or text
    said = re.findall(r"^(?:[\w.]*\.)?(\w+): (\S.*)$", tail, re.MULTILINE)
    if not said:
        return f"a task has failed: {text.splitlines()[0]}"
    kind, what = said[0]
    return what if kind in ("LoadFailed", "RecordsLost", "NotALake") else f"a task has failed: {kind}: {what}"
