"""A standalone Spark cluster on this machine: master and workers are processes that run PySpark's own jars."""

from __future__ import annotations

import os
import re
import subprocess
import threading
import zipfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil
import py4j
import pyspark

from tests.kit.brokers.process import free_port
from tests.kit.build import ROOT
from tests.kit.spark.events import logging_to

TIMEOUT_S = 180.0


class SparkCluster:
    """The cluster. `python` is its interpreter; nothing of this environment is on its path. `hosts`: an address of
    this machine for each worker. Speculative copies of a task run on other hosts than the first attempt only."""

    def __init__(self, folder: Path, python: Path, hosts: Sequence[str] = ("127.0.0.1", "127.0.0.1")) -> None:
        self.folder = folder
        self.python = python
        self.home = spark_home(folder / "spark")
        self.url = f"spark://127.0.0.1:{free_port()}"
        self._hosts = hosts
        self._processes: list[subprocess.Popen[bytes]] = []
        self._environment = {
            "PATH": f"{python.parent}:/usr/bin:/bin",
            "SPARK_HOME": str(self.home),
            "SPARK_SCALA_VERSION": "2.13",
            "PYTHONDONTWRITEBYTECODE": "1",
            **{name: os.environ[name] for name in ("JAVA_HOME", "TMPDIR") if name in os.environ},
        }

    def start(self) -> None:
        """Start the cluster, and wait until the master knows all workers."""
        port = self.url.rpartition(":")[2]
        master = self._run("master", "master.Master", "--host", "127.0.0.1", "--port", port, "--webui-port", "0")
        known = threading.Semaphore(0)
        registered = re.compile(rb"Registering worker ")
        threading.Thread(target=_watch, args=(master, registered, known), daemon=True).start()
        for i, host in enumerate(self._hosts):
            self._run(
                f"worker-{i}", "worker.Worker", "--host", host, "--webui-port", "0", "--cores", "1",
                "--memory", "1g", "--work-dir", str(self.folder / f"work-{i}"), self.url, host=host, drop=True,
            )  # fmt: skip
        for _ in self._hosts:
            if not known.acquire(timeout=TIMEOUT_S):
                raise TimeoutError("not all workers have come to the master")

    def _run(
        self, name: str, what: str, *arguments: str, host: str = "127.0.0.1", drop: bool = False
    ) -> subprocess.Popen[bytes]:
        command = ["java", "-Xmx256m", "-XX:+UseSerialGC", "-cp", f"{self.home / 'jars'}/*"]
        command += [f"org.apache.spark.deploy.{what}", *arguments]
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                command,
                env=self._environment | {"SPARK_LOCAL_IP": host},
                cwd=self.folder,
                stdout=log,
                stderr=log if drop else subprocess.PIPE,
            )
        self._processes.append(process)
        return process

    def conf(self) -> dict[str, str | int]:
        """Return the settings of a session on this cluster: small executors, and only addresses of this machine."""
        return {
            "spark_driver_host": "127.0.0.1",
            "spark_driver_bindAddress": "127.0.0.1",
            "spark_executor_memory": "512m",
            "spark_cores_max": len(self._hosts),
        }

    def of_a_query(self, events: Path, **conf: object) -> dict[str, object]:
        """Return what a tests.kit.spark.sink_query needs to run on this cluster. Spark logs its events in `events`."""
        wanted = {**self.conf(), **logging_to(events), "spark_executorEnv_PYTHONPATH": str(ROOT), **conf}
        return {"master": self.url, "conf": wanted, "environment": {"SPARK_HOME": str(self.home)}}

    def executors(self) -> list[psutil.Process]:
        """The JVMs that run tasks. Python processes are their children."""
        found = [each for process in self._processes for each in psutil.Process(process.pid).children()]
        return [each for each in found if each.is_running()]

    def logs(self) -> str:
        """The output of the executors, for messages of failing tests."""
        found = sorted(self.folder.glob("work-*/*/*/stderr"))
        return "\n".join(f"--- {path}\n{path.read_text()[-3000:]}" for path in found)

    def stop(self) -> None:
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            process.wait(30)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _watch(process: subprocess.Popen[bytes], wanted: re.Pattern[bytes], found: threading.Semaphore) -> None:
    assert process.stderr is not None
    for line in process.stderr:
        if wanted.search(line):
            found.release()


def spark_home(folder: Path) -> Path:
    """Make a SPARK_HOME as Spark is distributed. pip's PySpark lacks the archives from which executors get PySpark."""
    there = Path(pyspark.__file__).parent
    folder.mkdir(parents=True)
    for name in ("jars", "bin"):
        (folder / name).symlink_to(there / name)
    library = folder / "python" / "lib"
    library.mkdir(parents=True)
    (version,) = (path.name for path in Path(py4j.__file__).parent.parent.glob("py4j-*.dist-info"))
    number = version.removeprefix("py4j-").removesuffix(".dist-info")
    for package, archive in ((there, "pyspark.zip"), (Path(py4j.__file__).parent, f"py4j-{number}-src.zip")):
        with zipfile.ZipFile(library / archive, "w") as made:
            for path in (path for kind in ("*.py", "*.json") for path in package.rglob(kind)):
                made.write(path, Path(package.name) / path.relative_to(package))
    return folder
