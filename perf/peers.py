"""The brokers that are measured, kbroker and Apache Kafka, and the CPU and memory that they use."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from perf import machine
from tests.kit.brokers.process import BrokerProcess, free_port, write_properties
from tests.kit.clients.wire import WireClient
from tests.kit.kafka.process import KafkaProcess

__all__ = ["Before", "Kafka", "Kafka39", "Kbroker", "Peer", "free_port", "java_tool"]


class Peer(BrokerProcess):
    """A broker process that can say what it has cost."""

    name = "peer"

    def cpu_seconds(self) -> float:
        return machine.cpu_seconds(self.pid)

    def memory_mb(self) -> float:
        return machine.memory_mb(self.pid)

    def resident_mb(self) -> float:
        return machine.resident_mb(self.pid)

    def create_topic(self, topic: str, partitions: int, config: dict[str, str] | None = None) -> None:
        from confluent_kafka.admin import AdminClient, NewTopic

        admin = AdminClient({"bootstrap.servers": self.address})
        new = NewTopic(topic, num_partitions=partitions, replication_factor=1, config=config or {})
        admin.create_topics([new])[topic].result(60)
        self.await_leaders(topic, partitions)

    def await_leaders(self, topic: str, partitions: int) -> None:
        """Wait until all partitions are served. Kafka answers, and shows the topic, before it serves them."""
        wanted = [M.ListOffsetsRequest.ListOffsetsPartition(partition_index=p, timestamp=-1) for p in range(partitions)]
        request = M.ListOffsetsRequest(topics=[M.ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=wanted)])
        deadline = time.monotonic() + 30
        with WireClient("127.0.0.1", self.port, client_id="perf") as client:
            while time.monotonic() < deadline:
                answer = client.call(ApiKey.LIST_OFFSETS, 5, request)
                if all(found.error_code == 0 for found in answer.topics[0].partitions):
                    return
                time.sleep(0.05)
        raise RuntimeError(f"{topic} has no leaders")


class Kbroker(Peer):
    name = "kbroker"


class Before(Kbroker):
    """The kbroker of another checkout, built there by `make build`: what this one is measured beside after a change."""

    name = "kbroker before"

    def __init__(self, checkout: Path, overrides: dict[str, object] | None = None):
        super().__init__(overrides)
        self.checkout = checkout

    def command(self) -> list[str]:
        return [str(self.checkout / ".venv/bin/python"), *super().command()[1:]]


class Kafka(KafkaProcess, Peer):
    """Apache Kafka in KRaft mode, 1 GB heap."""

    name = "Kafka"
    version = "4.3.1"
    heap = "1g"

    def java(self) -> list[str]:
        return ["java", f"-Xms{self.heap}", f"-Xmx{self.heap}", "-cp", self.classpath()]


class Kafka39(Kafka):
    """Apache Kafka 3.9, which still serves clients that are older than record batches; its log goes to its output."""

    version = "3.9.1"

    def java(self) -> list[str]:
        logging = write_properties(self.folder / "log4j.properties", LOG4J)
        command = super().java()
        return [command[0], f"-Dlog4j.configuration=file:{logging}", *command[1:]]


LOG4J = {
    "log4j.rootLogger": "WARN, stdout",
    "log4j.logger.kafka.log.LogManager": "INFO",
    "log4j.appender.stdout": "org.apache.log4j.ConsoleAppender",
    "log4j.appender.stdout.layout": "org.apache.log4j.PatternLayout",
    "log4j.appender.stdout.layout.ConversionPattern": "[%d] %p %m (%c)%n",
}


def java_tool(name: str, *arguments: object, timeout_s: float = 300) -> str:
    """Run a class of org.apache.kafka.tools; returns what it prints."""
    command = ["java", "-Xmx512m", "-cp", Kafka.classpath(), f"org.apache.kafka.tools.{name}", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{name}: {(done.stderr or done.stdout)[-1000:]}")
    return done.stdout
