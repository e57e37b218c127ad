"""`kbroker.testing.Cluster`: brokers that have one ZooKeeper, what happens when some of them go, and what is left."""

from __future__ import annotations

import os
import re
import signal
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest

from kbroker.client import AdminClient, ClientError, Consumer, Producer
from kbroker.testing import BrokerFailed, Cluster, ZooKeeper
from kbroker.testing.zookeeper import STOP_TIMEOUT_S, serves


@pytest.fixture
def cluster(jars: Path) -> Iterator[Cluster]:
    with Cluster(3, zookeeper_jars=jars) as cluster:
        yield cluster


@pytest.mark.timeout(120)
def test_what_is_acknowledged_is_there_when_its_leader_is_gone(cluster: Cluster) -> None:
    cluster.create_topic("views", partitions=3)
    with Producer(bootstrap_servers=cluster.bootstrap_servers, acks="all") as producer:
        sent = [producer.send("views", b"%d" % number, partition=0) for number in range(100)]
        assert [delivery.result(30).offset for delivery in sent] == list(range(100))
        lost = cluster.leader("views")
        cluster.kill(lost)
        assert producer.send("views", b"after", partition=0).result(60).offset == 100
    assert cluster.leader("views") != lost
    cluster.start()
    assert cluster.brokers[lost].pid is not None
    with Consumer(bootstrap_servers=cluster.bootstrap_servers, auto_offset_reset="earliest") as consumer:
        consumer.assign_topics("views")
        found = []
        while len(found) < 101:
            found += [record.value for record in consumer.poll(5.0)]
    assert found == [b"%d" % number for number in range(100)] + [b"after"]


@pytest.mark.timeout(120)
def test_a_controller_that_is_paused_is_replaced(cluster: Cluster) -> None:
    paused = cluster.controller()
    assert paused in cluster.brokers
    with cluster.paused(paused):
        deadline = time.monotonic() + 30
        with AdminClient(bootstrap_servers=cluster.brokers[paused % 3 + 1].bootstrap_servers) as admin:
            while admin.describe_cluster().controller_id in (-1, paused):
                assert time.monotonic() < deadline
    cluster.await_in_sync()


@pytest.mark.timeout(120)
@pytest.mark.parametrize("is_controller", [False, True])
def test_topics_are_created_and_leaders_found_while_a_broker_is_paused(cluster: Cluster, is_controller: bool) -> None:
    cluster.create_topic("before", partitions=3)
    controller = cluster.controller()
    paused = controller if is_controller else controller % 3 + 1
    with cluster.paused(paused):
        cluster.create_topic("meanwhile", partitions=3, replication_factor=2)
        cluster.await_in_sync()
        cluster.start()
        leaders = {cluster.leader(topic, partition) for topic in ("before", "meanwhile") for partition in range(3)}
        assert leaders == cluster.brokers.keys() - {paused}
    cluster.await_in_sync()
    cluster.create_topic("after", replication_factor=3)


@pytest.mark.timeout(120)
def test_a_broker_that_was_paused_and_ended_is_waited_for_when_it_is_started_again(cluster: Cluster) -> None:
    cluster.create_topic("views", partitions=3)
    for end in (cluster.kill, cluster.stop):
        cluster.pause(1)
        end(1)
        cluster.start()
        assert {cluster.leader("views", partition) for partition in range(3)} <= cluster.brokers.keys()
        with AdminClient(bootstrap_servers=cluster.bootstrap_servers) as admin:
            assert all(set(each.in_sync) == {1, 2, 3} for each in admin.describe_topics(["views"])["views"].partitions)
    cluster.pause(1)
    cluster.resume(1)
    cluster.await_in_sync()


@pytest.mark.timeout(120)
def test_brokers_acknowledge_and_serve_while_zookeeper_is_paused(cluster: Cluster) -> None:
    """For longer than sessions last, and afterwards the cluster comes to rest."""
    cluster.create_topic("views", partitions=3)
    with (
        Producer(bootstrap_servers=cluster.bootstrap_servers, acks="all") as producer,
        Consumer(bootstrap_servers=cluster.bootstrap_servers, auto_offset_reset="earliest") as consumer,
    ):
        consumer.assign_topics("views")
        producer.send("views", b"before").result(30)  # the producer's id comes from ZooKeeper
        with cluster.zookeeper.paused():
            until, count = time.monotonic() + 4, 0
            while time.monotonic() < until:
                producer.send("views", b"%d" % count).result(30)
                count += 1
                assert consumer.poll(30.0)
            with pytest.raises(BrokerFailed, match="not at rest after 0 s: broker 1 is not registered"):
                cluster.await_in_sync(timeout_s=0)  # the brokers' metadata shows no difference
        cluster.await_in_sync()
        producer.send("views", b"after").result(30)
    cluster.create_topic("after")


@pytest.mark.timeout(120)
def test_a_zookeeper_that_is_paused_can_be_stopped(jars: Path) -> None:
    with ZooKeeper(jars) as zookeeper:
        zookeeper.pause()
        assert not serves(zookeeper.port)
        zookeeper.resume()
        assert serves(zookeeper.port)
        zookeeper.pause()
        began = time.monotonic()
        zookeeper.stop()
        assert time.monotonic() - began < STOP_TIMEOUT_S
        for question in (zookeeper.pause, zookeeper.resume):
            with pytest.raises(RuntimeError, match="not running"):
                question()


@pytest.mark.timeout(120)
@pytest.mark.parametrize("clients_too", [False, True])
def test_a_leader_that_is_isolated_acknowledges_nothing_more_and_another_one_leads(
    jars: Path, clients_too: bool
) -> None:
    with Cluster(3, cuts=True, zookeeper_jars=jars) as cluster:
        cluster.create_topic("views")
        lost = cluster.leader("views")
        with Producer(bootstrap_servers=cluster.bootstrap_servers, acks="all") as producer:
            assert producer.send("views", b"before").result(60).offset == 0
        hasty = {"acks": "all", "delivery_timeout_ms": 3000, "request_timeout_ms": 1000, "linger_ms": 0}
        with cluster.isolated(lost, clients_too=clients_too):
            with (
                Producer(bootstrap_servers=cluster._address(lost), max_block_ms=3000, **hasty) as producer,
                pytest.raises(ClientError),
            ):
                producer.send("views", b"lost").result(60)  # it leads on, as far as it knows, and nobody follows
            deadline = time.monotonic() + 30
            while cluster.leader("views") in (-1, lost):
                assert time.monotonic() < deadline
            with Producer(bootstrap_servers=cluster._address(cluster.leader("views")), acks="all") as producer:
                assert producer.send("views", b"after").result(60).offset == 1
        cluster.await_in_sync("views")
        with Consumer(bootstrap_servers=cluster.bootstrap_servers, auto_offset_reset="earliest") as consumer:
            consumer.assign_topics("views")
            found: list[bytes | None] = []
            while len(found) < 2:
                found += [record.value for record in consumer.poll(5.0)]
        assert found == [b"before", b"after"]


def bytes_out(cluster: Cluster, broker_id: int) -> float:
    """Return how many bytes of records a broker has sent to consumers and followers since its start."""
    with urllib.request.urlopen(f"http://{cluster.http_address(broker_id)}/metrics") as answer:
        values = re.findall(r"^kbroker_bytes_out_total\{.*\} (\S+)$", answer.read().decode(), re.MULTILINE)
    return sum(map(float, values))


@pytest.mark.timeout(120)
def test_a_consumer_reads_from_the_broker_of_its_rack_and_from_another_one_when_that_is_killed(jars: Path) -> None:
    """KIP-392, with librdkafka. Only the consumer reads from a broker that leads nothing: it has what that has sent."""
    racks = ["a", "b", "c"]
    settings = {"replica.selector.class": "RackAwareReplicaSelector"}
    with Cluster(3, settings=settings, racks=racks, zookeeper_jars=jars) as cluster:
        cluster.create_topic("views")
        leader = cluster.leader("views")
        near, far = (each for each in cluster.brokers if each != leader)
        told = {"bootstrap.servers": cluster.bootstrap_servers, "client.rack": racks[near - 1], "group.id": "readers"}
        consumer = confluent_kafka.Consumer({**told, "auto.offset.reset": "earliest", "enable.auto.commit": False})
        consumer.assign([confluent_kafka.TopicPartition("views", 0)])
        found: list[int] = []

        def write_and_read() -> None:
            with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
                first = len(found)
                producer.send_many("views", [b"%d:%s" % (first + at, b"x" * 1000) for at in range(100)])
                producer.flush(60)
            deadline = time.monotonic() + 60
            while len(found) < first + 100:
                assert time.monotonic() < deadline, found[-1:]
                found.extend(int((each.value() or b"").partition(b":")[0]) for each in consumer.consume(100, 0.2))

        write_and_read()
        write_and_read()
        assert bytes_out(cluster, near) >= 200 * 1000
        assert bytes_out(cluster, far) == 0
        cluster.kill(near)
        write_and_read()
        assert found == list(range(300))
        consumer.close()


def test_a_cluster_without_proxies_isolates_nobody(cluster: Cluster) -> None:
    with pytest.raises(RuntimeError, match="cuts=True"):
        cluster.isolate(1)


@pytest.mark.timeout(120)
def test_one_broker_is_a_cluster_too(jars: Path) -> None:
    with Cluster(1, zookeeper_jars=jars) as cluster:
        cluster.create_topic("alone", partitions=2)
        assert cluster.leader("alone", 1) == 1 == cluster.controller()


@pytest.mark.timeout(120)
def test_a_broker_that_ends_by_itself_is_told(jars: Path, temporary_files: Path) -> None:
    with pytest.raises(BrokerFailed, match="has ended by itself"), Cluster(1, zookeeper_jars=jars) as cluster:
        pid = cluster.brokers[1].pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert list(temporary_files.iterdir()) == []


@pytest.mark.parametrize("name", ["broker.id", "zookeeper.connect", "listeners", "log.dirs"])
def test_settings_that_the_cluster_makes_itself_are_refused(jars: Path, temporary_files: Path, name: str) -> None:
    with pytest.raises(ValueError, match=name):
        Cluster(2, settings={name: "7"}, zookeeper_jars=jars)
    assert list(temporary_files.iterdir()) == []


@pytest.mark.parametrize("racks", [[], ["a"], ["a", "b", "c"]])
def test_each_broker_has_one_rack_if_any_has(jars: Path, temporary_files: Path, racks: list[str]) -> None:
    with pytest.raises(ValueError, match="racks"):
        Cluster(2, racks=racks, zookeeper_jars=jars)
    assert list(temporary_files.iterdir()) == []


def test_a_cluster_of_no_brokers_is_refused(jars: Path) -> None:
    with pytest.raises(ValueError, match="none"):
        Cluster(0, zookeeper_jars=jars)
