"""Brokers of a cluster, each a process on a host of its own: Apache Kafka 3.9.1 in ZooKeeper mode, or kbroker."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from tests.kit.brokers.hosts import Host
from tests.kit.brokers.process import ServerProcess, serves, write_properties
from tests.kit.kafka.java_program import java
from tests.kit.kafka.process import KafkaProcess

HEAP = "256m"
LOG4J = {
    "log4j.rootLogger": "WARN, stdout",
    "log4j.logger.kafka": "INFO",
    "log4j.logger.kafka.server.KafkaConfig": "WARN",
    "log4j.logger.state.change.logger": "INFO",
    "log4j.appender.stdout": "org.apache.log4j.ConsoleAppender",
    "log4j.appender.stdout.layout": "org.apache.log4j.PatternLayout",
    "log4j.appender.stdout.layout.ConversionPattern": "%d{HH:mm:ss.SSS} %p %m (%c{1})%n",
}
GROUP_PARTITIONS = 5
"""The partitions of __consumer_offsets."""
REPLICATED: dict[str, object] = {
    "default.replication.factor": 3,
    "min.insync.replicas": 2,
    "offsets.topic.replication.factor": 3,
    "offsets.topic.num.partitions": GROUP_PARTITIONS,
    "transaction.state.log.replication.factor": 3,
    "transaction.state.log.min.isr": 2,
    "transaction.state.log.num.partitions": 5,
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 1000,
    "zookeeper.session.timeout.ms": 2000,
    "zookeeper.connection.timeout.ms": 30000,
    "replica.lag.time.max.ms": 3000,
    "replica.fetch.backoff.ms": 200,
    "controller.socket.timeout.ms": 5000,
    "controlled.shutdown.retry.backoff.ms": 500,
    "auto.create.topics.enable": "false",
}
"""What every broker of a cluster of three has: two of three must have a record, and a silent broker is out within
seconds."""


class Node(ServerProcess):
    """A broker. `kind` is what it is called in `--brokers`."""

    kind = ""
    start_timeout_s = 120.0
    ends_without_room = False
    """Whether it ends itself, at any moment, when its disk is full."""

    def __init__(
        self, node_id: int, host: Host, folder: Path, zookeeper: str, settings: Mapping[str, object], data: Path
    ):
        super().__init__(folder, host)
        self.node_id = node_id
        self.directories = [data]
        self.is_paused = False
        self.settings: dict[str, object] = {
            "broker.id": node_id,
            "broker.rack": f"r{node_id}",
            "zookeeper.connect": zookeeper,
            "listeners": f"PLAINTEXT://{self.address}",
            "log.dirs": data,
            **settings,
        }

    def take_place_of(self, before: Node) -> None:
        """Have the address of a broker that has stopped. The other has none then."""
        self._reserved.release()
        self._reserved, self.port = before._reserved, before.port
        self.settings["listeners"] = f"PLAINTEXT://{self.address}"

    @property
    def data(self) -> Path:
        """The log directory, or the first of several."""
        return self.directories[0]

    def add_directories(self, *directories: Path) -> None:
        """Have more log directories from the next start on."""
        self.directories += directories
        self.settings["log.dirs"] = ",".join(map(str, self.directories))

    def replica(self, partition: str) -> Path:
        """Return where a partition's log is, in the log directory that has it. `partition`: as "topic-0"."""
        return next((found for each in self.directories if (found := each / partition).exists()), self.data / partition)

    def is_ready(self) -> bool:
        return serves(self.port, self.host.address)

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def signal(self, number: signal.Signals) -> None:
        if self.process is not None:
            self.process.send_signal(number)  # it does nothing when the process has been waited for

    def begin(self) -> float:
        """Start the process without waiting for it; returns the performance counter's time for `await_ready`."""
        started = time.perf_counter()
        command = self.command()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.is_paused = False
        with self.host.entered(), (self.folder / "output.txt").open("ab") as output:
            self.process = self._lifeline.start(command, stdout=output, stderr=output, cwd=self.folder)
        return started

    def start(self) -> None:
        self.await_member(self.begin())

    def await_member(self, started: float) -> None:
        """Wait for the process that `begin` has started until it serves. RuntimeError if it ends or takes too long."""
        self.await_ready(started)

    def kill(self) -> None:
        self.is_paused = False
        super().kill()

    def pause(self) -> None:
        """Stop all threads (SIGSTOP). The kernel goes on to take connections and bytes for the process."""
        self.is_paused = True
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.signal(signal.SIGCONT)
        self.is_paused = False

    def dump_threads(self) -> None:
        """Make the process print the stack of each of its threads, if it is one that can do so and live on."""


class KafkaNode(Node):
    """Apache Kafka 3.9.1 with a small heap. Its log is in its output."""

    kind = "kafka"
    ends_without_room = True
    taken = "org.apache.zookeeper.KeeperException$NodeExistsException"

    def await_member(self, started: float) -> None:
        """Kafka ends itself when the session of its last life has not ended yet: then it is started again."""
        while True:
            known = len(self.output)
            try:
                return self.await_ready(started)
            except RuntimeError:
                is_too_early = self.taken in self.output[known:] or self.taken in self.output[-20_000:]
                if not is_too_early or time.perf_counter() - started > self.start_timeout_s:
                    raise
                self.begin()

    def command(self) -> list[str]:
        logging = write_properties(self.folder / "log4j.properties", LOG4J)
        properties = write_properties(self.folder / "server.properties", self.settings)
        machine = java(KafkaProcess.classpath(), f"-Xms{HEAP}", f"-Xmx{HEAP}")
        return [machine[0], f"-Dlog4j.configuration=file:{logging}", *machine[1:], "kafka.Kafka", str(properties)]

    def dump_threads(self) -> None:
        self.signal(signal.SIGQUIT)
        time.sleep(1)  # the JVM gives no sign that it has printed them


class KbrokerNode(Node):
    """kbroker as a member of the cluster."""

    kind = "kbroker"

    def command(self) -> list[str]:
        properties = write_properties(self.folder / "server.properties", self.settings)
        return [sys.executable, "-m", "kbroker.cli.main", "start", str(properties)]

    def dump_threads(self) -> None:
        self.signal(signal.SIGABRT)  # faulthandler prints them, and the process ends
        if self.process is not None:
            self.process.wait(10)


KINDS: dict[str, type[Node]] = {kind.kind: kind for kind in (KafkaNode, KbrokerNode)}
