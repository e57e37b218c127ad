"""Clients that find their brokers in ZooKeeper: consumers, producers and tools of old Kafkas, with a kbroker."""

from __future__ import annotations

import contextlib
import subprocess
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from tests.kit.brokers.process import BrokerProcess
from tests.kit.clients.wire import WireClient
from tests.kit.kafka import maven
from tests.kit.kafka.java_program import java
from tests.kit.kafka.process import KafkaInMemory
from tests.kit.kafka.zookeeper import ZooKeeperProcess

VERSIONS = ("0.8.2.2", "0.10.2.2")
WAIT_S = 60.0
PARTITIONS = 4
CHROOT = "/kafka/old"
SETTINGS: dict[str, object] = {"num.partitions": PARTITIONS}


class Old:
    """A ZooKeeper, a kbroker that is registered in it, and an old Kafka's programs, which only know the ZooKeeper."""

    def __init__(self, classpath: str, zookeeper: ZooKeeperProcess, folder: Path):
        self.classpath = classpath
        self.zookeeper = zookeeper
        self.folder = folder
        self.address = zookeeper.address + CHROOT
        self.broker = BrokerProcess({**SETTINGS, "broker.id": 1, "zookeeper.connect": self.address}, folder / "kbroker")
        self.client = KazooClient(self.address, timeout=60.0)

    def command(self, name: str, *arguments: object) -> list[str]:
        return [*java(self.classpath, "-Xmx128m"), name, *map(str, arguments)]

    def run(self, name: str, *arguments: object, given: str | None = None) -> str:
        """Run a program and return its standard output."""
        done = subprocess.run(
            self.command(name, *arguments), input=given, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, f"{name}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    @contextlib.contextmanager
    def consumer(self, name: str, group: str, topic: str, *more: str) -> Iterator[Path]:
        """Run a consumer of a group for as long as the context lasts; yield the file that it prints to."""
        properties, printed = self.folder / f"{name}.properties", self.folder / f"{name}.txt"
        properties.write_text(
            f"group.id={group}\nconsumer.id={name}\nauto.commit.interval.ms=200\n"
            "zookeeper.session.timeout.ms=6000\nrebalance.backoff.ms=500\n"
        )
        command = self.command(
            "kafka.tools.ConsoleConsumer", "--zookeeper", self.address, "--topic", topic,
            "--consumer.config", properties, *more,
        )  # fmt: skip
        with printed.open("w") as output, (self.folder / f"{name}.errors").open("w") as errors:
            process = subprocess.Popen(command, stdout=output, stderr=errors)
            try:
                yield printed
            finally:
                process.terminate()
                process.wait(WAIT_S)

    def produce(self, topic: str, values: Sequence[str]) -> None:
        """Produce messages, and return once the broker has them: Kafka 0.8.2's producer does not wait for that."""
        self.run(
            "kafka.tools.ConsoleProducer", "--broker-list", self.broker.address, "--topic", topic, "--sync",
            "--request-required-acks", 1,
            given="".join(f"{value}\n" for value in values),
        )  # fmt: skip

    def owners(self, group: str, topic: str) -> dict[str, str]:
        """Return the consumer of each partition, as the consumers have agreed on it."""
        path = f"/consumers/{group}/owners/{topic}"
        try:
            return {each: self.client.get(f"{path}/{each}")[0].decode() for each in self.client.get_children(path)}
        except NoNodeError:
            return {}


@pytest.fixture(scope="module", params=VERSIONS)
def old(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Old]:
    try:
        KafkaInMemory.classpath()
        classpath = maven.fetch([f"org.apache.kafka:kafka_2.11:{request.param}"])
    except maven.MavenFailed as missing:
        pytest.skip(str(missing))
    with ZooKeeperProcess() as zookeeper:
        old = Old(classpath, zookeeper, tmp_path_factory.mktemp("old"))
        with old.broker:
            with warnings.catch_warnings(action="ignore"):  # that there is no chroot yet
                old.client.start()
            await_that(lambda: old.client.exists("/brokers/ids/1") is not None)
            try:
                yield old
            finally:
                old.client.stop()
                old.client.close()


def await_that(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < deadline, "it does not come to be"
        time.sleep(0.05)


def lines(path: Path) -> list[str]:
    """Return the complete lines of a file."""
    return path.read_text().split("\n")[:-1]


def test_a_consumer_finds_the_broker_in_zookeeper_and_reads_what_was_produced(old: Old) -> None:
    values = [f"value {number}" for number in range(300)]
    old.produce("read", values)
    printed = old.run(
        "kafka.tools.ConsoleConsumer", "--zookeeper", old.address, "--topic", "read", "--from-beginning",
        "--max-messages", len(values),
    )  # fmt: skip
    assert sorted(set(printed.split("\n")) & set(values)) == sorted(values)


def test_a_group_shares_partitions_and_takes_over_those_of_a_member_that_leaves(old: Old) -> None:
    old.produce("shared", ["first"])
    expected = {"first"}

    def produce(name: str) -> None:
        values = [f"{name} {number}" for number in range(100)]
        old.produce("shared", values)
        expected.update(values)

    def owner_count() -> int:
        owners = old.owners("group", "shared")
        return len(set(owners.values())) if len(owners) == PARTITIONS else 0

    with old.consumer("one", "group", "shared", "--from-beginning") as one:
        await_that(lambda: owner_count() == 1)
        produce("alone")
        with old.consumer("two", "group", "shared") as two:
            await_that(lambda: owner_count() == 2)
            produce("together")
            await_that(lambda: expected <= {*lines(one), *lines(two)})
        await_that(lambda: owner_count() == 1)
        produce("alone again")
        await_that(lambda: expected <= {*lines(one), *lines(two)})
    committed = [
        int(old.client.get(f"/consumers/group/offsets/shared/{partition}")[0]) for partition in range(PARTITIONS)
    ]
    assert sum(committed) == len(expected)


def test_a_consumer_sees_topics_and_partitions_that_come_later(old: Old) -> None:
    """The consumer watches ZooKeeper for both."""
    old.produce("grows", ["before"])
    with old.consumer("watching", "watchers", "grows", "--from-beginning") as printed:
        await_that(lambda: len(old.owners("watchers", "grows")) == PARTITIONS)
        with WireClient("127.0.0.1", old.broker.port) as client:
            R = M.CreatePartitionsRequest
            topics = [R.CreatePartitionsTopic(name="grows", count=PARTITIONS + 2, assignments=None)]
            answer = client.call(ApiKey.CREATE_PARTITIONS, 0, R(topics=topics, timeout_ms=10_000))
            assert [each.error_code for each in answer.results] == [0]
        await_that(lambda: len(old.owners("watchers", "grows")) == PARTITIONS + 2)
        values = [f"after {number}" for number in range(100)]
        old.produce("grows", values)
        await_that(lambda: {"before", *values} <= set(lines(printed)))


def test_tools_that_read_zookeeper_see_the_topics(old: Old) -> None:
    old.produce("described", ["x"])
    await_that(lambda: old.client.exists(f"/brokers/topics/described/partitions/{PARTITIONS - 1}/state") is not None)
    assert "described" in old.run("kafka.admin.TopicCommand", "--zookeeper", old.address, "--list").split()
    said = old.run("kafka.admin.TopicCommand", "--zookeeper", old.address, "--describe", "--topic", "described")
    assert f"PartitionCount:{PARTITIONS}\tReplicationFactor:1" in said
    for partition in range(PARTITIONS):
        assert f"Topic: described\tPartition: {partition}\tLeader: 1\tReplicas: 1\tIsr: 1" in said
