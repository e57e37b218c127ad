"""A share of the cluster rounds, and that they can fail; full disks; log directories that fail."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kbroker.errors import ErrorCode
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from tests.crash import migration
from tests.crash.cluster_rounds import at_rest, run
from tests.kit.clients.wire import WireClient
from tests.kit.cluster import tree
from tests.kit.cluster.cluster import Cluster
from tests.kit.cluster.nodes import REPLICATED
from tests.kit.crash.small_disk import read_only
from tests.kit.crash.transaction_history import Outcome
from tests.kit.logs.home import batch_of

KBROKERS = ("kbroker", "kbroker", "kbroker")
KAFKAS = ("kafka", "kafka", "kafka")
MIXED = ("kbroker", "kbroker", "kafka")
MOSTLY_KAFKA = ("kafka", "kafka", "kbroker")


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("brokers", "seed"),
    [
        (KBROKERS, 1),
        (MIXED, 2),
        pytest.param(KBROKERS, 3, marks=pytest.mark.slow),
        pytest.param(MOSTLY_KAFKA, 4, marks=pytest.mark.slow),
        pytest.param(KAFKAS, 5, marks=pytest.mark.slow),
    ],
)
def test_nothing_acknowledged_is_lost_whatever_happens_to_brokers_and_networks(
    brokers: tuple[str, ...], seed: int
) -> None:
    result = run(seed, brokers=brokers, seconds=6)
    assert not result.is_bad, str(result)
    assert result.outcomes[Outcome.COMMITTED] > 30 and result.records > 1000, str(result)
    if result.left_out:
        why = "; ".join(dict.fromkeys(result.left_out.values()))
        pytest.skip(f"all was well, but without {', '.join(result.left_out)}: {why}")


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize(("plant", "fault"), [("acks=1", "isolate_leader"), ("unclean", "kill_in_order")])
@pytest.mark.parametrize("brokers", [KAFKAS, KBROKERS], ids="-".join)
def test_records_that_only_a_lost_leader_had_are_missed(brokers: tuple[str, ...], plant: str, fault: str) -> None:
    result = run(1, brokers=brokers, seconds=4, faults=[fault], plant=plant)
    assert any("crash-" in line and "plain" in line for line in result.wrong), str(result)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_kafkas_become_kbrokers_and_kafkas_again_under_load_and_nothing_is_lost() -> None:
    result = migration.run()
    assert not result.is_bad, str(result)
    assert result.outcomes[Outcome.COMMITTED] > 30 and result.records > 1000, str(result)


@pytest.mark.timeout(300)
def test_replicas_that_a_full_disk_refuses_are_in_sync_again_when_there_is_room() -> None:
    """Without a restart of the broker: it asks the controller for its roles when the disk takes them."""
    with Cluster(KBROKERS, {"min.insync.replicas": 2}, disk="100m") as cluster, cluster.entered():
        cluster.fill_disk(2)
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        admin.create_topics([NewTopic("late", 3, 3)])["late"].result(30)
        producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "acks": "all"})
        failed: list[object] = []
        for number in range(300):
            producer.produce(
                "late", b"%d" % number, partition=number % 3,
                on_delivery=lambda error, _: failed.append(error) if error else None,
            )  # fmt: skip
        assert producer.flush(30) == 0
        assert not failed
        assert {cluster.leader("late", partition) for partition in range(3)} <= {1, 3}
        cluster.free_disk(2)
        cluster.await_settled()
        assert not at_rest(cluster)


@contextlib.contextmanager
def disks() -> Iterator[Cluster]:
    """Three kbrokers with disks of their own, and a topic "t" whose partition N broker N + 1 leads, all in sync."""
    with Cluster(KBROKERS, {"min.insync.replicas": 2}, disk="100m") as cluster, cluster.entered():
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        replicas = [[1, 2, 3], [2, 3, 1], [3, 1, 2]]
        admin.create_topics([NewTopic("t", 3, replica_assignment=replicas)])["t"].result(30)
        cluster.await_settled()
        yield cluster


def produce(cluster: Cluster, node_id: int) -> int:
    """Produce 20 KB with acks=all to the partition that a broker leads; return the error code."""
    node = cluster.nodes[node_id]
    data = M.ProduceRequest.PartitionProduceData(
        index=node_id - 1, records=batch_of([b"x" * 20_000], int(time.time() * 1000))
    )
    topic = M.ProduceRequest.TopicProduceData(name="t", partition_data=[data])
    with WireClient(node.host.address, node.port, timeout_s=60) as client:
        answer = client.call(ApiKey.PRODUCE, 9, M.ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[topic]))
    return int(answer.responses[0].partition_responses[0].error_code)


LAG_S = int(str(REPLICATED["replica.lag.time.max.ms"])) / 1000
BUSY_S = 4.0
"""What a busy machine may add."""


def produce_without(cluster: Cluster, node_id: int) -> int:
    """Do as `produce` while a follower cannot take records. It holds the answer up until it leaves the ISR, no longer.

    That is after one and a half of replica.lag.time.max.ms at most, and a change of the ISR.
    """
    began = time.monotonic()
    code = produce(cluster, node_id)
    assert time.monotonic() - began < 2 * LAG_S + BUSY_S
    return code


def isrs(cluster: Cluster) -> dict[int, set[int]]:
    """Return who is in sync, by partition of the topic."""
    found = {one.index: one for one in tree.partitions(cluster.tree()) if one.topic == "t"}
    return {at: set(one.state["isr"]) for at, one in found.items() if one.state is not None}


@pytest.mark.timeout(200)
def test_a_leader_with_a_full_disk_refuses_records_and_what_others_lead_goes_on() -> None:
    with disks() as cluster:
        assert [produce(cluster, each) for each in (1, 2, 3)] == [0, 0, 0]
        cluster.fill_disk(1)
        assert produce(cluster, 1) == ErrorCode.KAFKA_STORAGE_ERROR
        assert [produce_without(cluster, each) for each in (2, 3)] == [0, 0], "once the full follower has left the ISR"
        assert produce(cluster, 1) == ErrorCode.KAFKA_STORAGE_ERROR
        assert cluster.leader("t") == 1, "what it has is read there"
        cluster.free_disk(1)
        cluster.await_settled()
        assert [produce(cluster, each) for each in (1, 2, 3)] == [0, 0, 0]
        assert not at_rest(cluster)


@pytest.mark.timeout(200)
def test_a_follower_with_a_full_disk_leaves_the_isr_and_comes_back_when_there_is_room() -> None:
    with disks() as cluster:
        cluster.fill_disk(3)
        assert [produce_without(cluster, each) for each in (1, 2)] == [0, 0]
        assert isrs(cluster) == {0: {1, 2}, 1: {1, 2}, 2: {1, 2, 3}}
        assert all(node.is_running for node in cluster.nodes.values())
        cluster.free_disk(3)
        cluster.await_settled()
        assert isrs(cluster) == {0: {1, 2, 3}, 1: {1, 2, 3}, 2: {1, 2, 3}}
        assert not at_rest(cluster)


# --- failed log directories -------------------------------------------------------------------------------------------

PARTITIONS, WAIT_S = 6, 60.0
SEGMENT = 100_000


def await_that(is_so: Callable[[], bool], what: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < deadline, what()
        time.sleep(0.05)


class Writing:
    """Writes numbers with acks=all to all partitions of the topic "t" in turn, during the block."""

    def __init__(self, cluster: Cluster):
        told = {"bootstrap.servers": cluster.bootstrap_servers, "enable.idempotence": True}
        self._producer = Producer(told | {"batch.size": SEGMENT // 2})
        self.sent = self.acknowledged = 0
        self.errors: list[str] = []
        self._is_ending = threading.Event()
        self._thread = threading.Thread(target=self._write, daemon=True)

    def _write(self) -> None:
        while not self._is_ending.wait(0.02):
            for _ in range(PARTITIONS * 5):
                value = b"%d:%s" % (self.sent, b"x" * 500)
                self._producer.produce("t", value, partition=self.sent % PARTITIONS, on_delivery=self._told)
                self.sent += 1
            self._producer.poll(0)
        self._producer.flush(WAIT_S)

    def _told(self, error: object, _: object) -> None:
        if error is None:
            self.acknowledged += 1
        else:
            self.errors.append(str(error))

    def await_more(self) -> None:
        """Wait until everything that was sent until now, and as much again as a broker can hold up, is acknowledged."""
        wanted = self.sent + PARTITIONS * 100
        await_that(lambda: self.acknowledged >= wanted, lambda: (self.acknowledged, wanted, self.errors[:3]))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_ending.set()
        self._thread.join(2 * WAIT_S)


def numbers_sent(writing: Writing) -> dict[int, list[int]]:
    return {at: list(range(at, writing.sent, PARTITIONS)) for at in range(PARTITIONS)}


def numbers(cluster: Cluster, count: int) -> dict[int, list[int]]:
    """Read `count` records of the topic "t": the numbers, by partition."""
    told = {"bootstrap.servers": cluster.bootstrap_servers, "group.id": "none", "enable.auto.commit": False}
    consumer = Consumer(told)
    consumer.assign([TopicPartition("t", at, 0) for at in range(PARTITIONS)])
    found: dict[int, list[int]] = {at: [] for at in range(PARTITIONS)}
    deadline = time.monotonic() + WAIT_S
    while sum(map(len, found.values())) < count:
        assert time.monotonic() < deadline, {at: len(each) for at, each in found.items()}
        for message in consumer.consume(1000, 0.2):
            assert message.error() is None, message.error()
            found[message.partition() or 0].append(int((message.value() or b"").partition(b":")[0]))
    consumer.close()
    return found


@contextlib.contextmanager
def two_directories() -> Iterator[Cluster]:
    """Three kbrokers with two log directories each, and the topic "t"; broker 1 leads its partitions 0 to 3."""
    settings = {
        "min.insync.replicas": 2, "log.segment.bytes": SEGMENT, "log.flush.offset.checkpoint.interval.ms": 200,
    }  # fmt: skip
    with Cluster(KBROKERS, settings, directories=2) as cluster, cluster.entered():
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        replicas = [[1, 2, 3], [1, 2, 3], [1, 3, 2], [1, 3, 2], [2, 3, 1], [3, 1, 2]]
        admin.create_topics([NewTopic("t", PARTITIONS, replica_assignment=replicas)])["t"].result(30)
        cluster.await_settled()
        yield cluster


@pytest.mark.timeout(300)
@pytest.mark.parametrize("which", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_what_a_broker_has_in_a_failed_directory_others_lead_and_the_rest_of_it_goes_on(which: int) -> None:
    """The directory fails while the broker runs, is still bad at the next start, and is whole again at the one after.

    With acks=all nothing is refused or lost meanwhile.
    """
    with two_directories() as cluster:
        broker = cluster.nodes[1]
        lost = {int(each.name[2:]) for each in broker.directories[which].glob("t-*")}
        assert len(lost) == 3 and lost & {0, 1, 2, 3} and {0, 1, 2, 3} - lost
        expected = {at: {2, 3} if at in lost else {1, 2, 3} for at in range(PARTITIONS)}
        with Writing(cluster) as writing:
            writing.await_more()
            with read_only(broker.directories[which]):
                await_that(lambda: isrs(cluster) == expected, lambda: (isrs(cluster), expected))
                leaders = [cluster.leader("t", at) for at in range(PARTITIONS)]
                assert [leader == 1 for leader in leaders] == [at < 4 and at not in lost for at in range(PARTITIONS)]
                writing.await_more()
                assert isrs(cluster) == expected
                assert broker.is_running and f"{broker.directories[which]} is offline" in broker.output
                broker.stop()
                cluster.start([1])
                await_that(lambda: isrs(cluster) == expected, lambda: (isrs(cluster), expected))
                writing.await_more()
                assert isrs(cluster) == expected
                broker.stop()
            cluster.start([1])
            cluster.await_settled()
            writing.await_more()
        assert writing.errors == []
        assert numbers(cluster, writing.sent) == numbers_sent(writing)
        assert not at_rest(cluster)


@pytest.mark.timeout(300)
def test_nothing_is_lost_when_a_log_directory_fails_and_the_controller_is_killed_before_it_hears_of_it() -> None:
    """The next controller hears of the directory from the broker's answers.

    Until the killed one is back, the directory's partitions have one replica in sync, and acks=all waits.
    """
    with two_directories() as cluster:
        controller = cluster.controller()
        failing, third = (cluster.nodes[each] for each in cluster.nodes if each != controller)
        lost = {int(each.name[2:]) for each in failing.directories[1].glob("t-*")}
        assert 0 < len(lost) < PARTITIONS
        both = {third.node_id, failing.node_id}
        left = {at: {third.node_id} if at in lost else both for at in range(PARTITIONS)}
        with Writing(cluster) as writing:
            writing.await_more()
            cluster.nodes[controller].pause()
            with read_only(failing.directories[1]):
                said = f"{failing.directories[1]} is offline"
                await_that(lambda: said in failing.output, lambda: failing.output[-2000:])
                cluster.kill(controller)
                await_that(lambda: isrs(cluster) == left, lambda: (isrs(cluster), left))
                assert {cluster.leader("t", at) for at in lost} == {third.node_id}
                cluster.start([controller])
                back = {at: {controller} | each for at, each in left.items()}
                await_that(lambda: isrs(cluster) == back, lambda: (isrs(cluster), back))
                writing.await_more()
                failing.stop()
            cluster.start([failing.node_id])
            cluster.await_settled()
            writing.await_more()
        assert writing.errors == []
        assert numbers(cluster, writing.sent) == numbers_sent(writing)
        assert not at_rest(cluster)
