"""A YARN cluster on this machine: Hadoop's own mini cluster in one process, with real containers."""

from __future__ import annotations

import os
import subprocess
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

import pyspark

from tests.kit.kafka import maven
from tests.kit.kafka.java_program import java

PROGRAM = Path(__file__).with_name("java") / "YarnCluster.java"
VERSION = "3.5.0"
"""The version of Hadoop that comes with PySpark 4.2 and 4.3."""

NEEDED = (
    "org.bouncycastle:bcpkix-jdk18on:1.78.1",
    "org.junit.jupiter:junit-jupiter-api:5.11.4",
    "org.mockito:mockito-core:4.11.0",
)
START_S = 120


class YarnCluster:
    """A cluster of two nodes. `configuration` is the folder for HADOOP_CONF_DIR."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.configuration = folder / "configuration"
        self.configuration.mkdir(parents=True)

    def start(self) -> None:
        jars = maven.jars([f"org.apache.hadoop:hadoop-client-minicluster:{VERSION}"], alone=True)
        classpath = maven.fetch(NEEDED, jars) + f"{os.pathsep}{Path(pyspark.__file__).parent / 'jars'}/*"
        command = [*java(classpath, "-Xmx512m"), str(PROGRAM), str(self.configuration / "yarn-site.xml")]
        with (self.folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                command, cwd=self.folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )
        assert self._process.stdout is not None
        timer = threading.Timer(START_S, self._process.kill)
        timer.start()
        said = self._process.stdout.readline()
        timer.cancel()
        assert said == "started\n", (self.folder / "log").read_text()[-3000:]

    def stop(self) -> None:
        try:
            self._process.communicate("", timeout=60)
        finally:
            self._process.kill()
            self._process.wait(30)

    def said(self, stream: str) -> str:
        """The output of the containers, to `stdout` or `stderr`."""
        return "".join(path.read_text() for path in sorted(self.folder.glob(f"target/**/container_*/{stream}")))

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
