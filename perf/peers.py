"""The brokers that are measured: kbroker and Apache Kafka, started alike, as context managers."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from perf import machine
from tests.kit import maven

KAFKA_VERSION = "4.3.1"
READY_TIMEOUT_S = 60


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def answers(port: int) -> bool:
    """Whether somebody on `port` answers an ApiVersions v0 request."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            connection.settimeout(2)
            connection.sendall(b"\0\0\0\x0e\0\x12\0\0\0\0\0\7\0\4perf")
            return len(connection.recv(4)) == 4
    except OSError:
        return False


class Peer:
    """A broker process with a directory of its own, stopped and removed at the end of the with block."""

    name = "peer"

    def __init__(self, overrides: dict[str, object] | None = None, data: Path | None = None):
        self.overrides = dict(overrides or {})
        self.keep_data = data is not None
        self.folder = data or Path(tempfile.mkdtemp(prefix="kbroker-bench-"))
        self.folder.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        self.ready_s = 0.0
        self.process: subprocess.Popen[bytes] | None = None

    def command(self) -> list[str]:
        raise NotImplementedError

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        command = self.command()
        with (self.folder / "output.txt").open("wb") as output:
            started = time.perf_counter()
            self.process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, cwd=self.folder)
        while not answers(self.port):
            if self.process.poll() is not None or time.perf_counter() - started > READY_TIMEOUT_S:
                raise RuntimeError(f"{self.name} did not start:\n{(self.folder / 'output.txt').read_text()[-2000:]}")
            time.sleep(0.002)
        self.ready_s = time.perf_counter() - started

    def stop(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def __enter__(self) -> Peer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        if not self.keep_data:
            shutil.rmtree(self.folder, ignore_errors=True)

    def cpu_seconds(self) -> float:
        return machine.cpu_seconds(self.pid)

    def memory_mb(self) -> float:
        return machine.memory_mb(self.pid)

    def create_topic(self, topic: str, partitions: int, config: dict[str, str] | None = None) -> None:
        from confluent_kafka.admin import AdminClient, NewTopic

        admin = AdminClient({"bootstrap.servers": self.address})
        new = NewTopic(topic, num_partitions=partitions, replication_factor=1, config=config or {})
        admin.create_topics([new])[topic].result(60)
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            known = admin.list_topics(topic, timeout=10).topics[topic].partitions
            if len(known) == partitions and all(p.leader >= 0 for p in known.values()):
                return
            time.sleep(0.05)
        raise RuntimeError(f"{topic} has no leaders")


class Kbroker(Peer):
    name = "kbroker"

    def command(self) -> list[str]:
        settings = {"listeners": f"PLAINTEXT://127.0.0.1:{self.port}", **self.overrides}
        options = [f"{key}={value}" for key, value in settings.items()]
        program = str(Path(sys.executable).with_name("kbroker"))
        return [program, "start", "--data", str(self.folder / "data"), *sum((["--override", o] for o in options), [])]


class Kafka(Peer):
    """Apache Kafka in KRaft mode, 1 GB heap; settings that only kbroker has are left out."""

    name = "Kafka"

    def command(self) -> list[str]:
        controller = free_port()
        settings: dict[str, object] = {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{controller}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": self.folder / "data",
            "offsets.topic.replication.factor": 1,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "group.initial.rebalance.delay.ms": 0,
            **{key: value for key, value in self.overrides.items() if not key.startswith("kbroker.")},
        }
        properties = self.folder / "server.properties"
        properties.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        java = ["java", "-Xms1g", "-Xmx1g", "-cp", kafka_classpath()]
        if not (self.folder / "data" / "meta.properties").exists():
            format_command = [*java, "kafka.tools.StorageTool", "format", "-t", "MkU3OEVBNTcwNTJENDM2Qg", "-c", str(properties)]
            subprocess.run(format_command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return [*java, "kafka.Kafka", str(properties)]


def kafka_classpath() -> str:
    """Class path of Kafka's server and tools, fetched from Maven Central once."""
    return maven.fetch([f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}", f"org.apache.kafka:kafka-tools:{KAFKA_VERSION}"])


def java_tool(name: str, *arguments: object, timeout_s: float = 300) -> str:
    """Run a class of org.apache.kafka.tools; returns what it prints."""
    command = ["java", "-Xmx512m", "-cp", kafka_classpath(), f"org.apache.kafka.tools.{name}", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False, env=os.environ)
    if done.returncode != 0:
        raise RuntimeError(f"{name}: {(done.stderr or done.stdout)[-1000:]}")
    return done.stdout
