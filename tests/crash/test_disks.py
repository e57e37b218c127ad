"""Real disks that are full, read-only or gone under a real broker: what its clients hear, and that nothing is lost.

Each log directory is a small file system in memory of its own. The tests need the permission to mount.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kbroker.errors import ErrorCode
from kbroker.protocol import messages as M
from tests.kit.brokers.process import BrokerProcess
from tests.kit.crash.small_disk import becomes_read_only, disk, fill
from tests.kit.kafka.zookeeper import KafkaOnZooKeeper
from tests.oracle.history import SOON, History
from tests.oracle.scenarios.requests import fetch, fetch_partition, offsets_of, produce_all, records

SETTINGS: dict[str, object] = {
    "log.segment.bytes": 100_000,
    "offsets.topic.num.partitions": 1,
    "log.flush.offset.checkpoint.interval.ms": 200,
    "log.segment.delete.delay.ms": 0,
    "num.network.threads": 1,
}
WAIT_S = 20.0


@pytest.fixture
def disks(tmp_path: Path) -> Iterator[list[Path]]:
    with disk(tmp_path / "a") as first, disk(tmp_path / "b") as second:
        yield [first, second]


def broker_on(folder: Path, *directories: Path) -> BrokerProcess:
    return BrokerProcess({**SETTINGS, "log.dirs": ",".join(map(str, directories))}, folder=folder / "broker")


def create_topic(admin: AdminClient, name: str, partitions: int, timeout_s: float = WAIT_S) -> None:
    admin.create_topics([NewTopic(name, partitions, 1)])[name].result(timeout_s)


class Writer:
    """Makes the topic `orders` with one partition and writes to it. It knows which numbers were acknowledged."""

    def __init__(self, broker: BrokerProcess):
        self.acknowledged: list[int] = []
        self.errors: set[int] = set()
        self._next = 0
        self.admin = AdminClient({"bootstrap.servers": broker.address})
        create_topic(self.admin, "orders", 1)
        settings = {"bootstrap.servers": broker.address, "linger.ms": 0, "message.timeout.ms": 700, "retries": 2}
        self._producer = Producer({**settings, "retry.backoff.ms": 50, "acks": "all"})

    def write(self, count: int) -> None:
        for number in range(self._next, self._next + count):

            def told(error: KafkaError | None, _: object, number: int = number) -> None:
                if error is None:
                    self.acknowledged.append(number)
                else:
                    self.errors.add(error.code())

            value = b"%d " % number + b"x" * 5000
            self._producer.produce("orders", value, on_delivery=told)
            self._producer.flush(10)
        self._next += count


def numbers_in(broker: BrokerProcess) -> list[int]:
    with History(broker.port) as h:
        asked = M.ListOffsetsRequest(replica_id=-1, topics=[offsets_of("orders", [(0, -1)])])
        end = h.do(asked, lambda answer: [answer.topics[0].partitions[0].error_code], version=5)
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "nobody", "enable.auto.commit": False})
    consumer.assign([TopicPartition("orders", 0, 0)])
    found: list[int] = []
    deadline = time.monotonic() + WAIT_S
    while len(found) < end.topics[0].partitions[0].offset:
        assert time.monotonic() < deadline
        message = consumer.poll(1)
        if message is not None and message.error() is None:
            found.append(int(message.value().split()[0]))
    consumer.close()
    return found


def assert_holds(broker: BrokerProcess, writer: Writer) -> None:
    """Check that all acknowledged numbers are there, in order.

    Others may be there: their producer was told an error.
    """
    found = numbers_in(broker)
    assert set(writer.acknowledged) <= set(found)
    kept = set(writer.acknowledged)
    assert [number for number in found if number in kept] == writer.acknowledged


def commit(broker: BrokerProcess, offset: int, times: int = 1) -> None:
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "g", "enable.auto.commit": False})
    try:
        for _ in range(times):
            consumer.commit(offsets=[TopicPartition("orders", 0, offset)], asynchronous=False)
    finally:
        consumer.close()


def committed(broker: BrokerProcess) -> int:
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "g"})
    (found,) = consumer.committed([TopicPartition("orders", 0)], timeout=WAIT_S)
    consumer.close()
    offset: int = found.offset
    return offset


def test_a_full_disk_refuses_and_serves_on_when_there_is_space(disks: list[Path], tmp_path: Path) -> None:
    directory = disks[0]
    with broker_on(tmp_path, directory) as broker:
        writer = Writer(broker)
        writer.write(50)
        commit(broker, 17)
        assert (len(writer.acknowledged), writer.errors) == (50, set())
        for round_number in range(2):
            filler = fill(directory)
            writer.write(4)
            assert KafkaError._MSG_TIMED_OUT in writer.errors or KafkaError.KAFKA_STORAGE_ERROR in writer.errors
            before = len(writer.acknowledged)
            with pytest.raises(KafkaException):
                create_topic(writer.admin, f"refused-{round_number}", 3, timeout_s=5)
            with pytest.raises(KafkaException):
                commit(broker, 18, times=100)  # commits that fit into the file's last page succeed
            # It is read, all the while.
            assert_holds(broker, writer)
            filler.unlink()
            writer.write(20)
            assert len(writer.acknowledged) == before + 20
            commit(broker, 19 + round_number)
            create_topic(writer.admin, f"made-{round_number}", 3)
            assert f"refused-{round_number}" not in writer.admin.list_topics(timeout=WAIT_S).topics
        assert_holds(broker, writer)
        broker.kill()
        broker.start()
        assert_holds(broker, writer)
        assert committed(broker) == 20
        assert f"log directory {directory} is full" in broker.output
        assert "is offline" not in broker.output


def test_a_broker_that_is_killed_on_a_full_disk_starts_again_when_there_is_space(
    disks: list[Path], tmp_path: Path
) -> None:
    directory = disks[0]
    with broker_on(tmp_path, directory) as broker:
        writer = Writer(broker)
        writer.write(50)
        filler = fill(directory)
        writer.write(2)
        broker.kill()
        filler.unlink()
        broker.start()
        assert_holds(broker, writer)
        writer.write(5)
        assert_holds(broker, writer)


def codes_of(h: History, topic: str, partition_id: int) -> dict[str, int]:
    """Return the error code that each API answers for a partition."""
    produced = h.ask(produce_all({topic: {partition_id: records()}}), version=9)
    fetched = h.ask(fetch([M.FetchRequest.FetchTopic(topic=topic, partitions=[fetch_partition(partition_id, 0)])]), 12)
    listed = h.ask(M.ListOffsetsRequest(replica_id=-1, topics=[offsets_of(topic, [(partition_id, -1)])]), version=5)
    known = h.ask(M.MetadataRequest(topics=[M.MetadataRequest.MetadataRequestTopic(name=topic)]), version=9)
    (partition,) = (each for each in known.topics[0].partitions if each.partition_index == partition_id)
    return {
        "Produce": produced.responses[0].partition_responses[0].error_code,
        "Fetch": fetched.responses[0].partitions[0].error_code,
        "ListOffsets": listed.topics[0].partitions[0].error_code,
        "Metadata": partition.error_code,
        "leader": partition.leader_id,
        "offline replicas": len(partition.offline_replicas),
    }


STORAGE_ERROR, NO_LEADER = int(ErrorCode.KAFKA_STORAGE_ERROR), int(ErrorCode.LEADER_NOT_AVAILABLE)
OFFLINE = {
    "Produce": STORAGE_ERROR, "Fetch": STORAGE_ERROR, "ListOffsets": STORAGE_ERROR, "Metadata": NO_LEADER,
    "leader": -1, "offline replicas": 1,
}  # fmt: skip


def is_unmounted(directory: Path) -> None:
    subprocess.run(["umount", "-l", str(directory)], check=True)


def is_removed(directory: Path) -> None:
    (directory / "data").rename(directory / "elsewhere")


@pytest.mark.parametrize("fails", [becomes_read_only, is_unmounted, is_removed])
def test_a_directory_that_fails_takes_its_partitions_and_the_rest_serves_on(
    disks: list[Path], tmp_path: Path, fails: Callable[[Path], None]
) -> None:
    # The first one holds the store of topics.
    directories = [disks[0] / "data", disks[1] / "data"]
    with broker_on(tmp_path, *directories) as broker, History(broker.port) as h:
        h.create("orders", 4)
        for at in range(4):
            h.produce("orders", at, records(10))
        lost = sorted(int(path.name[-1]) for path in directories[1].glob("orders-?"))
        kept = [at for at in range(4) if at not in lost]
        assert len(lost) == len(kept) == 2
        well = codes_of(h, "orders", kept[0])
        fails(disks[1])
        deadline = time.monotonic() + WAIT_S
        while codes_of(h, "orders", lost[0]) != OFFLINE:
            assert time.monotonic() < deadline, codes_of(h, "orders", lost[0])
            time.sleep(0.05)
        assert codes_of(h, "orders", lost[1]) == OFFLINE
        assert [codes_of(h, "orders", at) for at in kept] == [well, well]
        h.create("new", 4)
        assert len(list(directories[0].glob("new-?"))) == 4
        broker.stop()
        assert broker.output.count(f"{directories[1]} is offline") == 1


@pytest.mark.slow
def test_kafka_says_the_same_of_the_partitions_of_a_failed_directory(disks: list[Path], tmp_path: Path) -> None:
    directories = ",".join(map(str, disks))
    settings = {"log.dirs": directories, "log.segment.bytes": 2000, "log.retention.ms": -1, "broker.id": 0}
    with KafkaOnZooKeeper(settings, folder=tmp_path / "kafka") as kafka, History(kafka.port) as h:
        h.create("orders", 4, not_yet=(*SOON, ErrorCode.INVALID_REPLICATION_FACTOR))
        for at in range(4):
            h.produce("orders", at, records(10))
        lost = [int(path.name[-1]) for path in disks[1].glob("orders-?")]
        well = codes_of(h, "orders", next(at for at in range(4) if at not in lost))
        becomes_read_only(disks[1])
        deadline = time.monotonic() + 3 * WAIT_S
        while [codes_of(h, "orders", at) for at in range(4)] != [OFFLINE if at in lost else well for at in range(4)]:
            assert time.monotonic() < deadline
            time.sleep(0.2)


def test_a_directory_that_is_bad_at_the_start_is_back_at_the_next(disks: list[Path], tmp_path: Path) -> None:
    with broker_on(tmp_path, *disks) as broker:
        with History(broker.port) as h:
            h.create("orders", 4)
            for at in range(4):
                h.produce("orders", at, records(10))
        broker.stop()
        lost = sorted(int(path.name[-1]) for path in disks[1].glob("orders-?"))
        becomes_read_only(disks[1])
        for end in (broker.stop, broker.kill):
            broker.start()
            with History(broker.port) as h:
                assert [codes_of(h, "orders", at) == OFFLINE for at in range(4)] == [at in lost for at in range(4)]
            end()
        subprocess.run(["umount", str(disks[1])], check=True)
        broker.start()
        with History(broker.port) as h:
            assert [codes_of(h, "orders", at)["Produce"] for at in range(4)] == [0] * 4
            asked = M.ListOffsetsRequest(replica_id=-1, topics=[offsets_of("orders", [(at, -1) for at in lost])])
            answer = h.ask(asked, version=5)
            assert [each.offset for each in answer.topics[0].partitions] == [13, 13]
        broker.stop()
        # Without the directory that has the store, no topic is known.
        becomes_read_only(disks[0])
        with pytest.raises(RuntimeError, match="the store of topics"):
            broker.start()


def test_without_the_directory_of_the_store_nothing_of_topics_changes_and_the_rest_serves_on(
    disks: list[Path], tmp_path: Path
) -> None:
    """Offsets of clients before Kafka 0.9, which are in the store, are refused. Groups on other directories go on."""
    directories = [disks[0] / "data", disks[1] / "data"]
    with broker_on(tmp_path, *directories) as broker, History(broker.port) as h:
        h.create("orders", 3)  # two in the first directory, so that the topic of offsets goes to the second
        h.commit_offset("g", "orders")
        assert (directories[1] / "__consumer_offsets-0").exists()
        (kept,) = (int(path.name[-1]) for path in directories[1].glob("orders-?"))
        well = codes_of(h, "orders", kept)
        is_removed(disks[0])
        deadline = time.monotonic() + WAIT_S
        while refusal_of_a_topic(h) != STORAGE_ERROR:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        for at in range(3):
            while codes_of(h, "orders", at) != (well if at == kept else OFFLINE):
                assert time.monotonic() < deadline
                time.sleep(0.05)
        h.commit_offset("g", "orders")
        broker.stop()
        assert "takes no more changes until the broker is started again" in broker.output


def refusal_of_a_topic(h: History) -> int:
    topic = M.CreateTopicsRequest.CreatableTopic(name="refused", num_partitions=1, replication_factor=1)
    answer = h.ask(M.CreateTopicsRequest(topics=[topic], timeout_ms=5000, validate_only=False))
    if answer.topics[0].error_code == 0:
        h.delete("refused")
    code: int = answer.topics[0].error_code
    return code
