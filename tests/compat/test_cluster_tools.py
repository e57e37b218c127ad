"""The unmodified admin tools of Apache Kafka against three brokers, some of them while clients write and read."""

from __future__ import annotations

import json
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

import confluent_kafka
import pytest

from kbroker.client import AdminClient, Consumer, Producer, TopicPartition
from kbroker.testing import Broker, Cluster
from tests.compat.clients import named
from tests.compat.test_failover import FEW_STATE_PARTITIONS, PARTITIONS, read_all
from tests.compat.test_failover import Load as ClientsLoad
from tests.kit.cluster.cluster import Cluster as ClusterOfHosts
from tests.kit.cluster.replicas import differences
from tests.kit.kafka.tools import Tools
from tests.kit.kafka.zookeeper import zookeeper_jars

PATIENCE_S = 90.0
REASSIGN = "ReassignPartitionsCommand"
AT_ONCE, BETWEEN_S = 100, 0.05
"""The load: 2,000 records a second, which are half a megabyte."""
THROTTLE = 2_000_000
"""Bytes a second on each broker. What is written must be less, or a replica that is throttled never catches up."""
SETTINGS = {**FEW_STATE_PARTITIONS, "default.replication.factor": 2}
"""Every topic has a broker that has none of its replicas."""
VERSIONS = ["3.9.1", pytest.param("4.3.1", marks=pytest.mark.slow)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(3, settings=SETTINGS, zookeeper_jars=zookeeper_jars()) as started:
        yield started


@pytest.fixture(params=VERSIONS)
def tools(cluster: Cluster, tmp_path: Path, request: pytest.FixtureRequest) -> Tools:
    return Tools(request.param, cluster.bootstrap_servers, tmp_path)


@pytest.fixture
def topic() -> str:
    return f"tools-{uuid4().hex[:10]}"


def await_that(is_so: Any, what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def replicas(cluster: Cluster, topic: str) -> list[list[int]]:
    with AdminClient(bootstrap_servers=cluster.bootstrap_servers) as admin:
        return [list(each.replicas) for each in admin.describe_topics([topic])[topic].partitions]


def leaders(cluster: Cluster, topic: str) -> list[int]:
    with AdminClient(bootstrap_servers=cluster.bootstrap_servers) as admin:
        return [each.leader for each in admin.describe_topics([topic])[topic].partitions]


def write(cluster: Cluster, topic: str, counts: Mapping[int, int]) -> None:
    """Write so many records to each partition."""
    with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        for partition, count in counts.items():
            producer.send_many(topic, [b"%d" % number for number in range(count)], partitions=partition)
        producer.flush(PATIENCE_S)


# --- moves under load -------------------------------------------------------------------------------------------------


class Load:
    """An idempotent producer and a member of a group of librdkafka's, at work on a topic during the block."""

    def __init__(self, cluster: Cluster, topic: str):
        self._topic = topic
        told = {"bootstrap.servers": cluster.bootstrap_servers}
        self._producer = confluent_kafka.Producer({**told, "enable.idempotence": True, "linger.ms": 5})
        self._consumer = confluent_kafka.Consumer(
            {**told, "group.id": topic, "auto.offset.reset": "earliest", "auto.commit.interval.ms": 500}
        )
        self.sent = 0
        self.offsets: dict[int, int] = {}
        """Where each number was acknowledged."""
        self.errors: list[str] = []
        self.read: Counter[tuple[int, int]] = Counter()
        self._is_ending, self._is_read = threading.Event(), threading.Event()
        self._threads = [threading.Thread(target=each, daemon=True) for each in (self._write, self._read)]

    def _write(self) -> None:
        while not self._is_ending.is_set():
            for _ in range(AT_ONCE):
                self._producer.produce(
                    self._topic, b"%d:%s" % (self.sent, b"x" * 200), partition=self.sent % PARTITIONS,
                    on_delivery=self._told(self.sent),
                )  # fmt: skip
                self.sent += 1
            self._producer.poll(0)
            self._is_ending.wait(BETWEEN_S)
        self._producer.flush(PATIENCE_S)

    def _told(self, number: int) -> Any:
        def told(error: Any, message: Any) -> None:
            if error is not None:
                self.errors.append(f"{number}: {error}")
            else:
                self.offsets[number] = message.offset()

        return told

    def _read(self) -> None:
        self._consumer.subscribe([self._topic])
        while not self._is_read.is_set():
            for message in self._consumer.consume(500, 0.2):
                if message.error() is None:
                    self.read[message.partition(), message.offset()] += 1
        self._consumer.close()

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        await_that(lambda: self.read, "nothing is read")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_ending.set()
        self._threads[0].join(PATIENCE_S)
        if kind is None:
            await_that(lambda: self.errors or len(self.read) >= self.sent, "the group does not read all")
        self._is_read.set()
        self._threads[1].join(PATIENCE_S)


def elsewhere(at: int, row: Sequence[int]) -> list[int]:
    """Return replicas without the one that is preferred now; every other time the new one is preferred then."""
    (new,) = {1, 2, 3} - {*row}
    return [new, row[1]] if at % 2 else [row[1], new]


def plan(tools: Tools, topic: str, rows: Sequence[Sequence[int]]) -> Path:
    partitions = [{"topic": topic, "partition": at, "replicas": [*row]} for at, row in enumerate(rows)]
    return tools.file(json.dumps({"version": 1, "partitions": partitions}))


def verified(tools: Tools, path: Path, topic: str, count: int) -> str:
    """Wait until the tool says that all partitions have moved, and return what it has said."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        said = tools.run(REASSIGN, "--reassignment-json-file", path, "--verify")
        states = re.findall(rf"Reassignment of partition {topic}-\d+ is (completed|still in progress)\.", said)
        assert len(states) == count, said
        if "still in progress" not in states:
            return said
        assert time.monotonic() < deadline, said


def throttles(cluster: Cluster, topic: str) -> dict[str, str]:
    """Return the settings of throttles that somebody has made, on the topic and on any broker."""
    with AdminClient(bootstrap_servers=cluster.bootstrap_servers) as admin:
        described = [admin.describe_topic_config(topic), *map(admin.describe_broker_config, cluster.brokers)]
        return {
            name: str(each.value)
            for found in described
            for name, each in found.items()
            if ".replication.throttled." in name and each.source.startswith("DYNAMIC")
        }


def move_all(cluster: Cluster, tools: Tools, topic: str, throttle: int | None) -> None:
    """Move all partitions of a topic away from the brokers that lead them."""
    wanted = [elsewhere(at, row) for at, row in enumerate(replicas(cluster, topic))]
    path = plan(tools, topic, wanted)
    limits = [] if throttle is None else ["--throttle", throttle]
    said = tools.run(REASSIGN, "--reassignment-json-file", path, "--execute", *limits)
    assert "Successfully started partition reassignments for" in said
    if throttle is not None:
        assert f"The inter-broker throttle limit was set to {throttle} B/s" in said
        assert set(throttles(cluster, topic)) == {
            f"{role}.replication.throttled.{what}" for role in ("leader", "follower") for what in ("rate", "replicas")
        }
    said = verified(tools, path, topic, len(wanted))
    assert replicas(cluster, topic) == wanted
    assert all(leader in row for leader, row in zip(leaders(cluster, topic), wanted, strict=True))
    if throttle is not None:
        assert "Clearing broker-level throttles on brokers 1,2,3" in said
        assert throttles(cluster, topic) == {}
    assert "No partition reassignments found." in tools.run(REASSIGN, "--list")


def test_all_partitions_of_a_topic_move_while_clients_write_and_read(
    cluster: Cluster, tools: Tools, topic: str
) -> None:
    cluster.create_topic(topic, PARTITIONS)
    with Load(cluster, topic) as load:
        for throttle in (None, THROTTLE):
            move_all(cluster, tools, topic, throttle)
    assert load.errors == []
    found = read_all(cluster, topic)
    assert {at: found[at] for at in range(PARTITIONS)} == {
        at: [*range(at, load.sent, PARTITIONS)] for at in range(PARTITIONS)
    }
    assert load.offsets == {number: number // PARTITIONS for number in range(load.sent)}
    assert set(load.read) == {(number % PARTITIONS, offset) for number, offset in load.offsets.items()}


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("client", ["java-3.9", "java-4.3", "franz-go"])
def test_all_partitions_move_under_the_load_of_other_clients(cluster: Cluster, tools: Tools, client: str) -> None:
    """Without kafkajs, which loses its place on Apache Kafka too: it notes what was sent by broker, not by partition,
    and ends with OUT_OF_ORDER_SEQUENCE_NUMBER when the lead of some partitions moves to a broker that has answered.
    """
    load = ClientsLoad(named(client), cluster, 100_000, 250, 1_000)
    try:
        load.start()
        load.await_begun()
        for throttle in (None, THROTTLE, None):
            for topic in load.topics:
                move_all(cluster, tools, topic, throttle)
        load.finish()
    finally:
        load.end()


def test_a_move_is_planned_listed_and_cancelled(cluster: Cluster, tools: Tools, topic: str) -> None:
    cluster.create_topic(topic, segment_bytes=1 << 20)
    (old,) = replicas(cluster, topic)
    (new,) = {1, 2, 3} - {*old}
    with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        producer.send_many(topic, [b"x" * 100_000] * 60)
        producer.flush(PATIENCE_S)
    path = plan(tools, topic, [[old[0], new]])
    tools.run(REASSIGN, "--reassignment-json-file", path, "--execute", "--throttle", 50_000)
    moving = rf"{topic}-0: replicas: {old[0]},{new},{old[1]}\. adding: {new}\. removing: {old[1]}\."
    assert re.search(moving, tools.run(REASSIGN, "--list"))
    again = tools.attempt(REASSIGN, "--reassignment-json-file", path, "--execute")
    assert again.returncode == 1 and "Cannot execute because there is an existing partition assignment" in again.stdout
    described = tools.run("TopicCommand", "--describe", "--topic", topic)
    assert re.search(rf"Adding Replicas: {new}\s+Removing Replicas: {old[1]}", described), described
    assert tools.run("TopicCommand", "--describe", "--topic", topic, "--under-replicated-partitions") == ""
    said = tools.run(REASSIGN, "--reassignment-json-file", path, "--cancel")
    assert f"Successfully cancelled partition reassignment for: {topic}-0" in said
    assert replicas(cluster, topic) == [old] and throttles(cluster, topic) == {}


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("version", ["3.9.1", "4.3.1"])
def test_replicas_move_to_the_log_directories_that_the_file_names(version: str, topic: str, tmp_path: Path) -> None:
    """Broker 1's two replicas change places. Those of broker 3 are new, and are made where they would not be otherwise:
    both in one directory."""
    count = 2000
    settings = {"min.insync.replicas": 1, "log.segment.bytes": 100_000}
    with ClusterOfHosts(("kbroker",) * 3, settings, directories=2) as cluster, cluster.entered():
        tools = Tools(version, cluster.bootstrap_servers, tmp_path)
        tools.run("TopicCommand", "--create", "--topic", topic, "--replica-assignment", "1:2,1:2")
        cluster.await_settled()
        with Producer(bootstrap_servers=cluster.bootstrap_servers, batch_size=10_000) as producer:
            for at in range(2):
                producer.send_many(topic, [b"%d:%s" % (each, b"x" * 100) for each in range(count)], partitions=at)
            producer.flush(PATIENCE_S)
        old = {at: cluster.nodes[1].replica(f"{topic}-{at}").parent for at in range(2)}
        assert {*old.values()} == {*cluster.nodes[1].directories}
        wanted = {(at, 1): old[1 - at] for at in range(2)} | {
            (at, 3): cluster.nodes[3].directories[1] for at in range(2)
        }
        rows = [
            {
                "topic": topic,
                "partition": at,
                "replicas": [1, 3],
                "log_dirs": [str(wanted[at, each]) for each in (1, 3)],
            }
            for at in range(2)
        ]
        path = tools.file(json.dumps({"version": 1, "partitions": rows}))
        said = tools.run(REASSIGN, "--reassignment-json-file", path, "--execute")
        for (at, node), place in wanted.items():
            started = (
                f"Successfully started moving log directory to {place} for replica {topic}-{at} with broker {node}"
            )
            assert started in said, said
        said, deadline = verified(tools, path, topic, 2), time.monotonic() + PATIENCE_S
        while "still in progress" in said:
            assert time.monotonic() < deadline, said
            said = verified(tools, path, topic, 2)
        for at, node in wanted:
            assert f"Reassignment of replica {topic}-{at}-{node} completed successfully." in said, said
        cluster.await_settled()
        with AdminClient(bootstrap_servers=cluster.bootstrap_servers) as admin:
            told = admin.describe_replica_log_dirs([(topic, at, node) for at, node in wanted])
        assert [each.path for each in told.values()] == [str(each) for each in wanted.values()]
        for at in range(2):
            folders = {node: cluster.nodes[node].replica(f"{topic}-{at}") for node in (1, 3)}
            assert folders == {node: wanted[at, node] / f"{topic}-{at}" for node in (1, 3)}
            assert differences(folders, topic) == []
        with Consumer(bootstrap_servers=cluster.bootstrap_servers, auto_offset_reset="earliest") as consumer:
            consumer.assign_topics(topic)
            found: list[tuple[int, int]] = []
            deadline = time.monotonic() + PATIENCE_S
            while len(found) < 2 * count:
                assert time.monotonic() < deadline, len(found)
                found += ((each.partition, int((each.value or b"").partition(b":")[0])) for each in consumer.poll(1.0))
        assert sorted(found) == [(at, number) for at in range(2) for number in range(count)]


@pytest.mark.slow
def test_a_plan_that_cannot_be_is_refused(cluster: Cluster, tools: Tools, topic: str) -> None:
    cluster.create_topic(topic)
    before = replicas(cluster, topic)
    for row, says in (
        ([1, 9], "Unknown broker id 9"),
        ([1, 1], "Partition replica lists may not contain duplicate entries"),
        ([], "Partition replica list cannot be empty"),
    ):
        refused = tools.attempt(REASSIGN, "--reassignment-json-file", plan(tools, topic, [row]), "--execute")
        assert refused.returncode == 1
        assert says in refused.stdout + refused.stderr
    named_topics = tools.file(json.dumps({"version": 1, "topics": [{"topic": topic}]}))
    said = tools.run(REASSIGN, "--topics-to-move-json-file", named_topics, "--broker-list", "1,3", "--generate")
    proposed = json.loads(said.splitlines()[-1])
    assert [sorted(each["replicas"]) for each in proposed["partitions"]] == [[1, 3]]
    assert replicas(cluster, topic) == before


# --- topics, settings, offsets ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_topics_are_made_described_extended_and_deleted(cluster: Cluster, tools: Tools, topic: str) -> None:
    tools.run("TopicCommand", "--create", "--topic", topic, "--partitions", 3, "--replication-factor", 3)
    cluster.await_in_sync(topic)
    described = tools.run("TopicCommand", "--describe", "--topic", topic)
    assert re.search(rf"Topic: {topic}\s+TopicId: \S{{22}}\s+PartitionCount: 3\s+ReplicationFactor: 3", described)
    rows = re.findall(r"Leader: (\d)\s+Replicas: (\d,\d,\d)\s+Isr: (\d,\d,\d)", described)
    assert len(rows) == 3 and {row[0] for row in rows} == {"1", "2", "3"}
    tools.run("TopicCommand", "--alter", "--topic", topic, "--partitions", 4)
    assert len(replicas(cluster, topic)) == 4
    many = tools.attempt("TopicCommand", "--create", "--topic", f"{topic}-4", "--replication-factor", 4)
    assert many.returncode == 1 and "only 3 broker(s) are registered" in many.stdout
    tools.run("TopicCommand", "--delete", "--topic", topic)
    with AdminClient(bootstrap_servers=cluster.bootstrap_servers) as admin:
        assert topic not in admin.list_topics()


def await_setting(broker: Broker, topic: str, name: str, value: str) -> None:
    with AdminClient(bootstrap_servers=broker.bootstrap_servers) as admin:
        await_that(lambda: admin.describe_topic_config(topic)[name].value == value, f"a broker does not know {name}")


def test_settings_of_brokers_and_topics_are_read_and_altered(cluster: Cluster, tools: Tools, topic: str) -> None:
    cluster.create_topic(topic, 2)
    rate, throttled = "leader.replication.throttled.rate", "leader.replication.throttled.replicas"
    of_broker = ("--entity-type", "brokers", "--entity-name", 2)
    tools.run("ConfigCommand", *of_broker, "--alter", "--add-config", f"{rate}=1000000,log.retention.ms=7200000")
    described = tools.run("ConfigCommand", *of_broker, "--describe")
    assert f"{rate}=1000000 sensitive=false synonyms={{DYNAMIC_BROKER_CONFIG:{rate}=1000000" in described
    assert "log.retention.ms=7200000" in described
    tools.run("ConfigCommand", *of_broker, "--alter", "--delete-config", f"{rate},log.retention.ms")
    with AdminClient(bootstrap_servers=cluster.bootstrap_servers) as admin:
        assert admin.describe_broker_config(2)[rate].source == "DEFAULT_CONFIG"
    of_topic = ("--entity-type", "topics", "--entity-name", topic)
    tools.run("ConfigCommand", *of_topic, "--alter", "--add-config", f"{throttled}=[0:1,1:2],min.insync.replicas=1")
    for broker in cluster.brokers.values():
        await_setting(broker, topic, throttled, "0:1,1:2")


def test_log_directories_of_several_brokers_are_described(cluster: Cluster, tools: Tools, topic: str) -> None:
    cluster.create_topic(topic, 2, 3)
    write(cluster, topic, {0: 100, 1: 0})
    printed = tools.run("LogDirsCommand", "--describe", "--broker-list", "1,3", "--topic-list", topic)
    found = json.loads(printed.splitlines()[-1])["brokers"]
    assert [each["broker"] for each in found] == [1, 3]
    for each in found:
        (directory,) = each["logDirs"]
        rows = {row["partition"]: row for row in directory["partitions"]}
        assert rows[f"{topic}-0"]["size"] > 100 and rows[f"{topic}-1"]["size"] == 0
        assert all((row["offsetLag"], row["isFuture"]) == (0, False) for row in rows.values())


def test_a_cluster_in_zookeeper_says_that_it_has_no_quorum(tools: Tools) -> None:
    refused = tools.attempt("MetadataQuorumCommand", "describe", "--status")
    assert refused.returncode == 1
    assert "DESCRIBE_QUORUM" in refused.stdout + refused.stderr
    assert "imed out" not in refused.stdout + refused.stderr


def test_offsets_of_partitions_of_several_leaders_are_found(cluster: Cluster, tools: Tools, topic: str) -> None:
    cluster.create_topic(topic, 3)
    write(cluster, topic, {0: 5, 1: 6, 2: 7})
    assert len({*leaders(cluster, topic)}) == 3
    said = tools.run("GetOffsetShell", "--topic-partitions", f"{topic}:0-2", "--time", -1)
    assert said.split() == [f"{topic}:0:5", f"{topic}:1:6"]
    assert tools.run("GetOffsetShell", "--topic", topic, "--time", -2).split() == [f"{topic}:{at}:0" for at in range(3)]


def test_groups_are_described_reset_and_deleted_when_their_coordinator_has_changed(
    cluster: Cluster, tools: Tools, topic: str
) -> None:
    cluster.create_topic(topic, 3)
    write(cluster, topic, {0: 5, 1: 6, 2: 7})
    with Consumer(bootstrap_servers=cluster.bootstrap_servers, group_id=topic) as consumer:
        consumer.commit({TopicPartition(topic, at): 2 for at in range(3)})

    def state() -> tuple[str, ...]:
        said = tools.run("ConsumerGroupCommand", "--describe", "--group", topic, "--state")
        found = re.search(rf"^{topic}\s+127\.0\.0\.1:\d+\s+\((\d)\)\s.*\s(Empty)\s+0\s*$", said, re.MULTILINE)
        assert found is not None, said
        return found.groups()

    coordinator = int(state()[0])
    cluster.stop(coordinator)
    try:
        assert state() != (str(coordinator), "Empty")
        described = tools.run("ConsumerGroupCommand", "--describe", "--group", topic)
        rows = re.findall(rf"{topic}\s+{topic}\s+(\d)\s+(\d)\s+(\d)\s+(\d)", described)
        assert sorted(rows) == [("0", "2", "5", "3"), ("1", "2", "6", "4"), ("2", "2", "7", "5")]
        tools.run(
            "ConsumerGroupCommand", "--group", topic, "--topic", topic, "--reset-offsets", "--to-latest", "--execute"
        )
        with AdminClient(bootstrap_servers=cluster.bootstrap_servers) as admin:
            assert [each.offset for _, each in sorted(admin.committed(topic).items())] == [5, 6, 7]
        tools.run("ConsumerGroupCommand", "--delete", "--group", topic)
        assert topic not in tools.run("ConsumerGroupCommand", "--list").split()
    finally:
        cluster.start(coordinator)


# --- elections --------------------------------------------------------------------------------------------------------


def test_preferred_leaders_are_elected(cluster: Cluster, tools: Tools, topic: str) -> None:
    cluster.create_topic(topic, 3, 3)
    preferred = leaders(cluster, topic)
    cluster.stop(preferred[0])
    cluster.start(preferred[0])
    assert leaders(cluster, topic)[0] != preferred[0]
    elect = ("--election-type", "preferred")
    said = tools.run("LeaderElectionCommand", *elect, "--topic", topic, "--partition", 0)
    assert f"Successfully completed leader election (PREFERRED) for partitions {topic}-0" in said
    assert leaders(cluster, topic) == preferred
    said = tools.run("LeaderElectionCommand", *elect, "--topic", topic, "--partition", 0)
    assert f"Valid replica already elected for partitions {topic}-0" in said
    tools.run("LeaderElectionCommand", *elect, "--all-topic-partitions")
    with AdminClient(bootstrap_servers=cluster.bootstrap_servers) as admin:
        found = admin.describe_topics(admin.list_topics(internal=True))
        assert all(each.leader == each.replicas[0] for one in found.values() for each in one.partitions)


@pytest.mark.slow
def test_an_unclean_leader_is_elected_where_nobody_in_sync_is_alive(cluster: Cluster, tools: Tools, topic: str) -> None:
    cluster.create_topic(topic, 1, 2, min_insync_replicas=1)
    ((last, behind),) = replicas(cluster, topic)
    elect = ("--election-type", "unclean", "--topic", topic, "--partition", 0)
    said = tools.run("LeaderElectionCommand", *elect)
    assert f"Valid replica already elected for partitions {topic}-0" in said
    write(cluster, topic, {0: 5})
    cluster.kill(behind)
    with AdminClient(bootstrap_servers=cluster.bootstrap_servers) as admin:
        await_that(lambda: admin.describe_topics([topic])[topic].partitions[0].in_sync == (last,), "it is in sync")
    write(cluster, topic, {0: 6})
    cluster.kill(last)
    cluster.brokers[behind].start()
    await_that(lambda: leaders(cluster, topic) == [-1], "somebody leads")
    assert re.search(
        rf"Topic: {topic}\s+Partition: 0\s+Leader: none",
        tools.run("TopicCommand", "--describe", "--topic", topic, "--unavailable-partitions"),
    )
    said = tools.run("LeaderElectionCommand", *elect)
    assert f"Successfully completed leader election (UNCLEAN) for partitions {topic}-0" in said
    assert leaders(cluster, topic) == [behind]
    cluster.start(last)
    with Consumer(bootstrap_servers=cluster.bootstrap_servers) as consumer:
        assert consumer.end_offsets([(topic, 0)]) == {(topic, 0): 5}
