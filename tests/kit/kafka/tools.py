"""Kafka's console and admin tools, each run in a JVM of its own as the scripts in bin/ do."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from uuid import uuid4

from tests.kit.kafka import maven
from tests.kit.kafka.java_program import java

TOOLS = "org.apache.kafka.tools"
# Tools that moved: the package of each version.
PACKAGES = {
    "3.9.1": {
        "ConsoleProducer": "kafka.tools",
        "BrokerApiVersionsCommand": "kafka.admin",
        "ConfigCommand": "kafka.admin",
    },
    "4.3.1": {"ConfigCommand": "kafka.admin"},
}
READER_PROPERTY = {"3.9.1": "--property", "4.3.1": "--reader-property"}
FORMATTER_PROPERTY = {"3.9.1": "--property", "4.3.1": "--formatter-property"}
IN_PACKAGES = {
    "ConsoleConsumer": f"{TOOLS}.consumer",
    "ConsumerGroupCommand": f"{TOOLS}.consumer.group",
    "ReassignPartitionsCommand": f"{TOOLS}.reassign",
}


class Tools:
    """The tools of one version, for the cluster at `address`."""

    def __init__(self, version: str, address: str, folder: Path):
        self.version, self.address, self.folder = version, address, folder

    def command(self, tool: str, *arguments: object, flag: str = "--bootstrap-server") -> list[str]:
        package = PACKAGES[self.version].get(tool) or IN_PACKAGES.get(tool, TOOLS)
        classpath = maven.fetch(
            [f"org.apache.kafka:kafka_2.13:{self.version}", f"org.apache.kafka:kafka-tools:{self.version}"]
        )
        command = [*java(classpath, "-Xmx256m"), f"{package}.{tool}", flag, self.address]
        return [*command, *map(str, arguments)]

    def run(self, tool: str, *arguments: object, stdin: str = "") -> str:
        """Run a tool, which must succeed, and return what it prints."""
        done = self.attempt(tool, *arguments, stdin=stdin)
        assert done.returncode == 0, f"{tool} {arguments}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def attempt(self, tool: str, *arguments: object, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(tool, *arguments),
            input=stdin, capture_output=True, text=True, timeout=90, check=False,
            env={**os.environ, "LC_ALL": "C.UTF-8"},
        )  # fmt: skip

    def file(self, text: str) -> Path:
        path = self.folder / uuid4().hex
        path.write_text(text)
        return path
