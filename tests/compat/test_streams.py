"""Kafka Streams with exactly_once_v2: applications and brokers are killed, and every word is counted exactly once."""

from __future__ import annotations

import random
import signal
import subprocess
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Producer, TopicPartition

from kbroker.testing import Cluster
from tests.compat.conftest import new_broker
from tests.compat.test_clients import create_topic
from tests.kit.kafka.java_program import compile_java
from tests.kit.kafka.zookeeper import zookeeper_jars

HERE = Path(__file__).parent
PARTITIONS = 2
LINES = 1500
WORDS = [f"word{number}" for number in range(40)]
PATIENCE_S = 150.0


class Application:
    """One instance of the word count."""

    def __init__(self, version: str, folder: Path, bootstrap: str, source: str, target: str):
        self.command = compile_java(HERE / "streams", "WordCount", version, f"org.apache.kafka:kafka-streams:{version}")
        self.command += [bootstrap, f"count-{source}", str(folder), source, target]
        self.output = folder.parent / f"{folder.name}.txt"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT
            )

    def end(self, how: signal.Signals) -> None:
        if self.process is not None:
            self.process.send_signal(how)
            self.process.wait(60)

    def said(self) -> str:
        return self.output.read_text(errors="replace")


@contextmanager
def applications(version: str, *places: str) -> Iterator[list[Application]]:
    with tempfile.TemporaryDirectory(prefix="streams-") as folder, ExitStack() as stack:
        made = [Application(version, Path(folder) / f"state-{number}", *places) for number in range(2)]
        for one in made:
            one.start()
            stack.callback(one.end, signal.SIGKILL)
        yield made


def read_counts(bootstrap: str, topic: str, expected: Counter[str]) -> dict[str, list[int]]:
    """Return the committed outputs by word, in order: wait for as many as expected, then a little longer for more."""
    reader = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "check", "enable.auto.commit": False}
        | {"isolation.level": "read_committed", "fetch.queue.backoff.ms": 5, "log_level": 0}
    )
    reader.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in range(PARTITIONS)])
    found: dict[str, list[int]] = defaultdict(list)
    left, until = expected.total(), time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        for message in reader.consume(1000, 0.2):
            if message.error():
                raise KafkaException(message.error())
            found[message.key().decode()].append(int(message.value()))
            left -= 1
            if left == 0:
                until = time.monotonic() + 2
    reader.close()
    return found


class Lines:
    """Lines that are sent to a topic while something happens, and how often each word is in them."""

    def __init__(self, bootstrap: str, topic: str, chance: random.Random):
        self.topic, self.chance = topic, chance
        self.producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0})
        self.words: Counter[str] = Counter()

    def send(self, count: int) -> None:
        for number in range(count):
            words = self.chance.choices(WORDS, k=self.chance.randint(1, 8))
            self.words.update(words)
            self.producer.produce(self.topic, " ".join(words).encode(), partition=number % PARTITIONS)
            self.producer.poll(0.01)

    def check(self, bootstrap: str, target: str, instances: list[Application]) -> None:
        """Each word's counts are 1, 2, 3 and so on, up to how often it was sent."""
        assert self.producer.flush(60) == 0
        found = read_counts(bootstrap, target, self.words)
        said = "\n".join(one.said()[-3000:] for one in instances)
        assert {word: len(counts) for word, counts in found.items()} == dict(self.words), said
        assert all(counts == list(range(1, len(counts) + 1)) for counts in found.values())


def kill_one(chance: random.Random, instances: list[Application]) -> None:
    one = chance.choice(instances)
    one.end(signal.SIGKILL)
    one.start()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("version", ["3.9.1", "4.3.1"])
def test_words_are_counted_exactly_once_whatever_is_killed(version: str) -> None:
    chance = random.Random(version)
    faults = ("application", "broker", "application", "stop", "application", "broker")
    with new_broker({"group.initial.rebalance.delay.ms": 0}) as broker:
        source, target = create_topic(broker, PARTITIONS), create_topic(broker, PARTITIONS)
        lines = Lines(broker.address, source, chance)
        with applications(version, broker.address, source, target) as instances:
            for fault in faults:
                lines.send(LINES // len(faults))
                time.sleep(chance.uniform(0.5, 3))
                match fault:
                    case "application":
                        kill_one(chance, instances)
                    case "stop":
                        broker.restart()
                    case _:
                        broker.kill()
                        broker.start()
            lines.check(broker.address, target, instances)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("version", ["3.9.1", "4.3.1"])
def test_words_are_counted_exactly_once_while_brokers_of_a_cluster_die(version: str) -> None:
    """Whoever dies coordinates some of the group's and the transactions' partitions, and leads some of the topics'."""
    chance = random.Random(version)
    settings: dict[str, object] = {"group.initial.rebalance.delay.ms": 0, "offsets.topic.num.partitions": 6}
    settings |= {"transaction.state.log.num.partitions": 6}
    with Cluster(3, settings=settings, zookeeper_jars=zookeeper_jars()) as cluster:
        source, target = "lines", "counts"
        for topic in (source, target):
            cluster.create_topic(topic, PARTITIONS)
        lines = Lines(cluster.bootstrap_servers, source, chance)
        with applications(version, cluster.bootstrap_servers, source, target) as instances:
            for broker_id in cluster.brokers:
                lines.send(LINES // 6)
                cluster.kill(broker_id)
                lines.send(LINES // 6)
                cluster.start(broker_id)
                if broker_id == 2:
                    kill_one(chance, instances)
            lines.check(cluster.bootstrap_servers, target, instances)
