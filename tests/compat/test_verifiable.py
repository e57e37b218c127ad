"""Kafka's own verifiable producer and consumers while three brokers are restarted one after the other."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kbroker.testing import Cluster
from tests.compat.test_failover import FEW_STATE_PARTITIONS, PARTITIONS, read_all
from tests.kit.brokers.process import write_properties
from tests.kit.child_process import ChildProcess
from tests.kit.kafka import maven
from tests.kit.kafka.java_program import java
from tests.kit.kafka.zookeeper import zookeeper_jars

TOPIC, GROUP = "verifiable", "verifiers"
PER_SECOND = 1000
PATIENCE_S = 90.0
TOOLS = "org.apache.kafka.tools"


class Verifiable(ChildProcess):
    """A verifiable client in a JVM of its own: `events` is what it has printed."""

    def __init__(self, version: str, kind: str, *arguments: object):
        coordinates = [f"org.apache.kafka:kafka_2.13:{version}", f"org.apache.kafka:kafka-tools:{version}"]
        command = [*java(maven.fetch(coordinates), "-Xmx128m"), f"{TOOLS}.{kind}", *map(str, arguments)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.events: list[dict[str, Any]] = []
        self._listening = threading.Thread(target=self._listen, daemon=True)
        self._listening.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                self.events.append(json.loads(line))

    def of(self, name: str) -> list[dict[str, Any]]:
        return [event for event in list(self.events) if event["name"] == name]

    def end(self) -> None:
        """End it as its users do: it sends, or commits, what is under way."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(PATIENCE_S)
        self._listening.join(PATIENCE_S)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(3, settings=FEW_STATE_PARTITIONS, zookeeper_jars=zookeeper_jars()) as started:
        started.create_topic(TOPIC, PARTITIONS)
        yield started


@pytest.mark.timeout(400)
@pytest.mark.parametrize("version", ["4.3.1", pytest.param("3.9.1", marks=pytest.mark.slow)])
def test_a_rolling_restart_loses_nothing_and_doubles_nothing(cluster: Cluster, version: str, tmp_path: Path) -> None:
    settings = {"enable.idempotence": "true", "retries": 2**31 - 1, "linger.ms": 5}  # it retries nothing by itself
    config = ("--producer.config", write_properties(tmp_path / "producer.properties", settings))
    at = ("--bootstrap-server", cluster.bootstrap_servers, "--topic", TOPIC)
    reading = (*at, "--group-id", GROUP, "--verbose", "--session-timeout", 10_000, "--reset-policy", "earliest")
    with (
        Verifiable(version, "VerifiableConsumer", *reading) as one,
        Verifiable(version, "VerifiableConsumer", *reading) as other,
        Verifiable(version, "VerifiableProducer", *at, "--throughput", PER_SECOND, *config) as producer,
    ):
        readers = (one, other)
        await_that(lambda: len(producer.of("producer_send_success")) > PER_SECOND, "nothing is produced")
        await_that(lambda: all(reader.of("records_consumed") for reader in readers), "a member reads nothing")
        for broker_id in cluster.brokers:
            cluster.stop(broker_id)
            time.sleep(1)
            cluster.start(broker_id)
        producer.end()
        sent = producer.of("producer_send_success")
        await_that(lambda: sum(len(each.of("record_data")) for each in readers) >= len(sent), "not all is read")
        time.sleep(1)  # what would be read twice
        for reader in readers:
            reader.end()
        read = [event for reader in readers for event in reader.of("record_data")]

    assert producer.of("producer_send_error") == []
    assert [
        event["success"] for reader in readers for event in reader.of("offsets_committed") if not event["success"]
    ] == []
    found = read_all(cluster, TOPIC)
    told: dict[int, dict[int, int]] = defaultdict(dict)
    for event in sent:
        told[event["partition"]][event["offset"]] = int(event["value"])
    assert len(sent) == sum(map(len, found.values())) > 5 * PER_SECOND
    for partition, numbers in found.items():
        assert numbers == sorted(set(numbers)), f"partition {partition} is out of order"
        assert told[partition] == dict(enumerate(numbers))
    times = Counter((event["partition"], event["offset"]) for event in read)
    assert set(times) == {(partition, offset) for partition, of in told.items() for offset in of}
    assert set(times.values()) == {1}


def await_that(is_so: Any, what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)
