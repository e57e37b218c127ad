"""`kbroker load` on a cluster, as a separate process, and the task attempts that are writing at a moment."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from tests.kit.build import ROOT
from tests.kit.spark.cluster import SparkCluster
from tests.kit.spark.events import logging_to

STAGED = re.compile(r"/_kbload/staging/[^/]+/(\d+)-[0-9a-f]+/")


class Attempt:
    """The process of a task attempt, which had a staged file open when it was found."""

    def __init__(self, process: psutil.Process, unit: int):
        self.process = process
        self.unit = unit

    @property
    def executor(self) -> psutil.Process:
        return next(each for each in self.process.parents() if each.name() == "java")


class ClusterLoad:
    """A load as a context manager: the process does not outlive the block, and may run again.

    `events`: Spark's events.
    """

    def __init__(self, cluster: SparkCluster, folder: Path, lake: Path, arguments: Sequence[str], **conf: object):
        self.cluster = cluster
        self.lake = lake
        self.events = folder / "events"
        self._log = folder / "load.log"
        wanted: dict[str, object] = {**cluster.conf(), **logging_to(self.events), **conf}
        settings = [part for name, value in wanted.items() for part in ("--conf", f"{name.replace('_', '.')}={value}")]
        self._command = [sys.executable, "-m", "kbroker.cli.main", "load", *arguments, "--to", str(lake)]
        self._command += ["--master", cluster.url, *settings]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def output(self) -> str:
        return self._log.read_text() if self._log.exists() else ""

    def wait(self, timeout_s: float = 240.0) -> int:
        """Wait for the load to end, and return its exit code."""
        assert self._process is not None
        return self._process.wait(timeout_s)

    def kill(self) -> None:
        """Kill the driver and its JVM. The executors notice that later."""
        assert self._process is not None
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def attempts(self) -> Iterator[Attempt]:
        """The attempts that are writing now."""
        for executor in self.cluster.executors():
            try:
                found = executor.children(recursive=True)
            except psutil.NoSuchProcess:
                continue
            for process in found:
                unit = _unit_that_is_written(process)
                if unit is not None:
                    yield Attempt(process, unit)

    def an_attempt(self) -> Attempt:
        """Wait until an attempt writes, and return it."""
        found: list[Attempt] = []

        def writes() -> bool:
            assert self._process is not None and self._process.poll() is None, self.output + self.cluster.logs()
            found.extend(self.attempts())
            return bool(found)

        await_that(writes, "an attempt that writes")
        return found[0]

    def a_stopped_attempt(self) -> Attempt:
        """Stop an attempt before it has written everything, and return it. SIGCONT lets it go on."""
        while True:
            found = self.an_attempt()
            found.process.suspend()
            if _unit_that_is_written(found.process) == found.unit:
                return found
            found.process.resume()

    def folders_of(self, unit: int) -> int:
        """The number of attempts of a unit that have begun to write and are not cleaned up."""
        return len(list(self.lake.glob(f"_kbload/staging/*/{unit:06}-*")))

    def __enter__(self) -> Self:
        environment = {**os.environ, "SPARK_HOME": str(self.cluster.home)}
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command, cwd=ROOT, env=environment, stdout=log, stderr=log, start_new_session=True
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()


def await_that(condition: Callable[[], bool], what: str, timeout_s: float = 120) -> None:
    """Wait until `condition` is true, with pauses that leave the machine time to work.

    AssertionError after `timeout_s`.
    """
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        time.sleep(0.02)


def _unit_that_is_written(process: psutil.Process) -> int | None:
    try:
        links = [str(each.readlink()) for each in Path(f"/proc/{process.pid}/fd").iterdir()]
    except OSError:
        return None
    units = {int(found[1]) for link in links if (found := STAGED.search(link))}
    return min(units) if units else None
