"""The client and a cluster of three, kbrokers or Apache Kafkas, of which some die, stand still and come back."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import pytest

from kbroker.client import (
    AsyncConsumer,
    AsyncProducer,
    Consumer,
    Delivery,
    Producer,
    TopicPartition,
    TransactionFailed,
    TransactionMustAbort,
)
from kbroker.testing import Cluster
from tests.kit.kafka.cluster import KafkaCluster
from tests.kit.kafka.zookeeper import zookeeper_jars
from tests.kit.proxies.dropping import DroppingProxy

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

PARTITIONS = 6
PAUSE_S = 8.0  #: longer than the cluster waits for a broker
AWAY_S = 5.0
READ_TIMEOUT_S = 180.0
SETTINGS = {"group.initial.rebalance.delay.ms": 0, "replica.selector.class": "RackAwareReplicaSelector"}


AnyCluster = Cluster | KafkaCluster


@pytest.fixture(scope="module", params=["kbroker", "kafka"])
def cluster(request: pytest.FixtureRequest) -> Iterator[AnyCluster]:
    if request.param == "kafka":
        with KafkaCluster() as kafkas:
            yield kafkas
    else:
        with Cluster(3, settings=SETTINGS, racks=["r1", "r2", "r3"], zookeeper_jars=zookeeper_jars()) as kbrokers:
            yield kbrokers


class Running:
    """Calls `work(running)` again and again in a thread until the end, which raises what `work` has raised."""

    def __init__(self, work: Callable[[], None]):
        self._work = work
        self._end = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            while not self._end.is_set():
                self._work()
        except BaseException as error:
            self._error = error

    def __enter__(self) -> Running:
        self._thread.start()
        return self

    def __exit__(self, *how: Any) -> None:
        self._end.set()
        self._thread.join(120)
        assert not self._thread.is_alive()
        if self._error is not None:
            raise self._error


def read_all(cluster: AnyCluster, topic: str, **options: Any) -> dict[int, list[int]]:
    """Return every number in the topic, by partition, in order."""
    found: dict[int, list[int]] = defaultdict(list)
    with Consumer(bootstrap_servers=cluster.bootstrap_servers, auto_offset_reset="earliest", **options) as consumer:
        partitions = [TopicPartition(topic, n) for n in range(PARTITIONS)]
        consumer.assign(partitions)
        ends = consumer.end_offsets(partitions)
        deadline = time.monotonic() + READ_TIMEOUT_S
        while any((consumer.position(*each) or 0) < end for each, end in ends.items()):
            assert time.monotonic() < deadline
            for record in consumer.poll(1.0):
                found[record.partition].append(int(record.value or b""))
    return found


def trouble(cluster: AnyCluster, topic: str) -> None:
    """Kill the leader of partition 0, then pause another broker, then stop one cleanly."""
    first = cluster.leader(topic)
    cluster.kill(first)
    time.sleep(AWAY_S)
    cluster.start(first)
    with cluster.paused(cluster.leader(topic)):
        time.sleep(PAUSE_S)
    cluster.await_in_sync(topic)
    last = cluster.leader(topic)
    cluster.stop(last)
    cluster.start(last)


def test_nothing_is_lost_doubled_or_out_of_order_when_leaders_change(cluster: AnyCluster) -> None:
    topic = "changing-leaders"
    cluster.create_topic(topic, PARTITIONS)
    deliveries: list[Delivery] = []
    seen: list[Counter[int]] = []

    with ExitStack() as stack:
        for _ in range(2):
            seen.append(Counter())
            consumer = stack.enter_context(
                Consumer(
                    bootstrap_servers=cluster.bootstrap_servers,
                    group_id="changing-leaders",
                    auto_offset_reset="earliest",
                    auto_commit_interval_ms=500,
                    partition_assignment_strategy="cooperative-sticky",
                )
            )
            consumer.subscribe(topic)

            def read(consumer: Consumer = consumer, mine: Counter[int] = seen[-1]) -> None:
                mine.update(int(record.value or b"") for record in consumer.poll(0.5))

            stack.enter_context(Running(read))

        producer = stack.enter_context(Producer(bootstrap_servers=cluster.bootstrap_servers))

        def send() -> None:
            for _ in range(100):
                number = len(deliveries)
                deliveries.append(producer.send(topic, b"%d" % number, partition=number % PARTITIONS))
            time.sleep(0.02)

        with Running(send):
            trouble(cluster, topic)
        producer.flush(120)
        assert not [each for each in deliveries if each.exception(0) is not None]
        deadline = time.monotonic() + READ_TIMEOUT_S
        while len(seen[0].keys() | seen[1].keys()) < len(deliveries):
            assert time.monotonic() < deadline, "the group has not seen all"
            time.sleep(0.1)

    found = read_all(cluster, topic)
    assert len(deliveries) > 5_000
    for partition in range(PARTITIONS):
        assert found[partition] == list(range(partition, len(deliveries), PARTITIONS))
        offsets = [each.offset for each in deliveries[partition::PARTITIONS]]
        assert offsets == list(range(len(offsets)))


def test_nothing_is_lost_doubled_or_out_of_order_with_asyncio_either(cluster: AnyCluster) -> None:
    topic = "changing-leaders-asyncio"
    cluster.create_topic(topic, PARTITIONS)

    async def write(ending: asyncio.Event) -> list[Delivery]:
        deliveries: list[Delivery] = []
        async with AsyncProducer(bootstrap_servers=cluster.bootstrap_servers) as producer:
            while not ending.is_set():
                for _ in range(100):
                    number = len(deliveries)
                    deliveries.append(await producer.send(topic, b"%d" % number, partition=number % PARTITIONS))
                await asyncio.sleep(0.02)
            await producer.flush(120)
        return deliveries

    async def read(seen: set[int], ending: asyncio.Event) -> None:
        options: Any = {"group_id": topic, "auto_offset_reset": "earliest", "auto_commit_interval_ms": 500}
        async with AsyncConsumer(bootstrap_servers=cluster.bootstrap_servers, **options) as consumer:
            await consumer.subscribe(topic)
            while not ending.is_set():
                seen.update(int(record.value or b"") for record in await consumer.poll(0.5))

    async def run() -> list[Delivery]:
        seen: set[int] = set()
        enough, all_read = asyncio.Event(), asyncio.Event()
        writing = asyncio.create_task(write(enough))
        reading = [asyncio.create_task(read(seen, all_read)) for _ in range(2)]
        await asyncio.to_thread(trouble, cluster, topic)
        enough.set()
        deliveries = await writing
        deadline = time.monotonic() + READ_TIMEOUT_S
        while len(seen) < len(deliveries):
            assert time.monotonic() < deadline, "the group has not seen all"
            await asyncio.sleep(0.1)
        all_read.set()
        await asyncio.gather(*reading)
        return deliveries

    deliveries = asyncio.run(run())
    assert not [each for each in deliveries if each.exception(0) is not None]
    found = read_all(cluster, topic)
    assert len(deliveries) > 5_000
    for partition in range(PARTITIONS):
        assert found[partition] == list(range(partition, len(deliveries), PARTITIONS))


def test_transactions_go_on_when_their_coordinators_change(cluster: AnyCluster) -> None:
    source, target = "to-copy", "copied"
    cluster.create_topic(source, PARTITIONS)
    cluster.create_topic(target, PARTITIONS)
    deliveries: list[Delivery] = []
    copied = 0

    with ExitStack() as stack:
        producer = stack.enter_context(Producer(bootstrap_servers=cluster.bootstrap_servers))

        def send() -> None:
            for _ in range(20):
                number = len(deliveries)
                deliveries.append(producer.send(source, b"%d" % number, partition=number % PARTITIONS))
            time.sleep(0.02)

        copier = Copier(cluster, source, target)
        stack.callback(copier.close)
        with Running(copier.step):
            with Running(send):
                trouble(cluster, target)
            producer.flush(120)
            deadline = time.monotonic() + READ_TIMEOUT_S
            while copier.copied < len(deliveries):
                assert time.monotonic() < deadline, "not all is copied"
                time.sleep(0.1)
        copied = copier.copied

    found = read_all(cluster, target, isolation_level="read_committed")
    assert copied == len(deliveries) > 1_000
    for partition in range(PARTITIONS):
        assert found[partition] == list(range(partition, len(deliveries), PARTITIONS))


class Copier:
    """Reads, writes and commits in one transaction; begins anew after an error that a transaction may fail with."""

    def __init__(self, cluster: AnyCluster, source: str, target: str):
        self.cluster = cluster
        self.source, self.target = source, target
        self.copied = 0
        self.begin()

    def begin(self) -> None:
        self.consumer = Consumer(
            bootstrap_servers=self.cluster.bootstrap_servers,
            group_id="copiers",
            enable_auto_commit=False,
            isolation_level="read_committed",
            auto_offset_reset="earliest",
        )
        self.consumer.subscribe(self.source)
        self.producer = Producer(bootstrap_servers=self.cluster.bootstrap_servers, transactional_id="copier")
        self.producer.init_transactions(120)

    def close(self) -> None:
        self.consumer.close()
        self.producer.close(30)

    def step(self) -> None:
        records = self.consumer.poll(0.5, 500)
        if not records:
            return
        try:
            with self.producer.transaction():
                for record in records:
                    self.producer.send(self.target, record.value, partition=record.partition)
                self.producer.send_offsets_to_transaction(
                    records.next_offsets(), self.consumer.group_metadata(), timeout=120
                )
        except TransactionMustAbort:
            for partition, committed in self.consumer.committed(records.partitions()).items():
                self.consumer.seek(*partition, committed.offset if committed is not None else 0)
        except TransactionFailed:
            self.close()
            self.begin()
        else:
            self.copied += len(records)


class Balancer(DroppingProxy):
    """A load balancer: each connection goes to the next of `ports`."""

    def __init__(self, ports: Sequence[int]):
        super().__init__()
        self.turns = itertools.cycle(ports)
        self.taken: Counter[int] = Counter()

    def next_port(self) -> int:
        port = next(self.turns)
        self.taken[port] += 1
        return port


def test_the_address_of_a_tcp_load_balancer_is_enough(cluster: AnyCluster) -> None:
    topic = "balanced"
    with Balancer([int(each.rpartition(":")[2]) for each in cluster.bootstrap_servers.split(",")]) as balancer:
        address = f"127.0.0.1:{balancer.port}"
        for number in range(6):
            with Producer(bootstrap_servers=address) as producer:
                producer.send(topic, b"%d" % number).result(60)
        with Consumer(bootstrap_servers=address, group_id="balanced", auto_offset_reset="earliest") as consumer:
            consumer.subscribe(topic)
            found = {int(record.value or b"") for record in itertools.islice(consumer, 6)}
    assert found == set(range(6))
    assert len(balancer.taken) == 3


def test_a_consumer_reads_from_the_replica_in_its_rack_while_that_is_alive(cluster: AnyCluster) -> None:
    """KIP-392: once the leader has named the replica, the consumer fetches from no other before that one is killed."""
    topic = "in-racks"
    cluster.create_topic(topic, PARTITIONS)
    sent = 0
    with (
        Producer(bootstrap_servers=cluster.bootstrap_servers) as producer,
        Consumer(
            bootstrap_servers=cluster.bootstrap_servers, auto_offset_reset="earliest", client_rack="r2"
        ) as consumer,
    ):
        consumer.assign_topics(topic)
        asked = consumer._fetching.cluster._connections

        def read_some() -> set[int]:
            """Write and read records, and return which brokers the consumer has asked."""
            nonlocal sent
            before = {node_id: connection.traffic for (node_id, _), connection in asked.items()}
            expected = list(range(sent, sent + 600))
            for number in expected:
                producer.send(topic, b"%d" % number, partition=number % PARTITIONS)
            sent += 600
            found: list[int] = []
            deadline = time.monotonic() + READ_TIMEOUT_S
            while len(found) < 600:
                assert time.monotonic() < deadline
                found += (int(record.value or b"") for record in consumer.poll(1.0))
            assert sorted(found) == expected
            after = {node_id: connection.traffic for (node_id, _), connection in asked.items()}
            return {node_id for node_id in after if after[node_id] > before.get(node_id, 0)}

        read_some()
        read_some()  # a leader's answer that names the replica may come after the records of the first read
        assert read_some() == {2}
        cluster.kill(2)
        read_some()
        assert 2 not in read_some()
        cluster.start(2)
