"""Apache Kafka in a process of its own, where a test compares kbroker with it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.kit.brokers.process import BrokerProcess, folder_in_memory, free_port, write_properties
from tests.kit.kafka import maven
from tests.kit.kafka.java_program import java

KAFKA_ALONE: dict[str, object] = {
    "offsets.topic.replication.factor": 1,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
    "group.initial.rebalance.delay.ms": 0,
}
"""Settings that an Apache Kafka without other brokers needs in any mode."""


class KafkaProcess(BrokerProcess):
    """Apache Kafka 3.9.1 in KRaft mode, whose answers are the reference."""

    version = "3.9.1"
    heap = "512m"

    @classmethod
    def classpath(cls) -> str:
        return maven.fetch(
            [f"org.apache.kafka:kafka_2.13:{cls.version}", f"org.apache.kafka:kafka-tools:{cls.version}"]
        )

    def java(self) -> list[str]:
        """The command that runs a class of this Kafka, without the class and its arguments."""
        return java(self.classpath(), f"-Xms{self.heap}", f"-Xmx{self.heap}")

    @classmethod
    def format(cls, properties: Path) -> None:
        """Make the log directories of a broker with these settings ready for its first start."""
        formatting = ["kafka.tools.StorageTool", "format", "-t", "MkU3OEVBNTcwNTJENDM2Qg", "-c", str(properties)]
        # Other options than the server's: its own archive of classes, since it loads few of the server's.
        command = [*java(cls.classpath(), "-Xmx128m"), *formatting]
        subprocess.run(command, check=True, capture_output=True, env=os.environ)

    def command(self) -> list[str]:
        controller = free_port()
        settings = {
            "process.roles": "broker,controller",
            "node.id": 0,
            "controller.quorum.voters": f"0@127.0.0.1:{controller}",
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{controller}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": self.data,
            **KAFKA_ALONE,
            **self.overrides,
        }
        properties = write_properties(self.folder / "server.properties", settings)
        if not (self.data / "meta.properties").exists():
            self.format(properties)
        return [*self.java(), "kafka.Kafka", str(properties)]


class KafkaInMemory(KafkaProcess):
    """Apache Kafka with its files in memory where there is room: what it answers is asked, and a slow disk, which it
    waits for before it answers, is not to decide that."""

    def __init__(self, overrides: dict[str, object] | None = None, folder: Path | None = None):
        super().__init__(overrides, folder or folder_in_memory())
        self.owns_folder = folder is None


class Kafka4InMemory(KafkaInMemory):
    """Apache Kafka 4.3.1, for what 3.9 does not have."""

    version = "4.3.1"
