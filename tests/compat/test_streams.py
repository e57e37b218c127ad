"""Kafka Streams with exactly_once_v2: applications and broker are killed, and every word is counted exactly once."""

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

from tests.compat.conftest import new_broker
from tests.compat.test_clients import create_topic
from tests.kit.brokers.process import BrokerProcess
from tests.kit.kafka.java_program import compile_java

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


def read_counts(broker: BrokerProcess, topic: str, expected: Counter[str]) -> dict[str, list[int]]:
    """Return the committed outputs by word, in order: wait for as many as expected, then a little longer for more."""
    reader = Consumer(
        {"bootstrap.servers": broker.address, "group.id": "check", "enable.auto.commit": False}
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


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("version", ["3.9.1", "4.3.1"])
def test_words_are_counted_exactly_once_whatever_is_killed(version: str) -> None:
    chance = random.Random(version)
    expected: Counter[str] = Counter()
    with new_broker({"group.initial.rebalance.delay.ms": 0}) as broker:
        source, target = create_topic(broker, PARTITIONS), create_topic(broker, PARTITIONS)
        producer = Producer({"bootstrap.servers": broker.address, "enable.idempotence": True, "log_level": 0})
        faults = ["application", "broker", "application", "stop", "application", "broker"]
        with applications(version, broker.address, source, target) as instances:
            for number in range(LINES):
                words = chance.choices(WORDS, k=chance.randint(1, 8))
                expected.update(words)
                producer.produce(source, " ".join(words).encode(), partition=number % PARTITIONS)
                producer.poll(0.01)
                if number % (LINES // len(faults)) == LINES // len(faults) - 1:
                    time.sleep(chance.uniform(0.5, 3))
                    match faults.pop(0):
                        case "application":
                            one = chance.choice(instances)
                            one.end(signal.SIGKILL)
                            one.start()
                        case "stop":
                            broker.restart()
                        case _:
                            broker.kill()
                            broker.start()
            assert producer.flush(60) == 0
            found = read_counts(broker, target, expected)
            said = "\n".join(one.said()[-3000:] for one in instances)
        assert {word: len(counts) for word, counts in found.items()} == dict(expected), said
        assert all(counts == list(range(1, len(counts) + 1)) for counts in found.values())
