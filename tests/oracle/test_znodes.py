"""The tree of nodes that kbroker keeps is the one that Apache Kafka 3.9.1 keeps in a real ZooKeeper.

The same requests go to both brokers. Then paths, data, versions and which nodes are ephemeral are equal, except for
values that differ between runs (`known_by_name`) and for the differences in `LISTED`.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kbroker.config.broker_config import load_config
from kbroker.coordination.embedded import EmbeddedStore, store_path
from kbroker.errors import ErrorCode
from kbroker.protocol import messages as M
from kbroker.server.broker import Broker
from tests.kit.kafka import maven
from tests.kit.kafka.zookeeper import KafkaOnZooKeeper, Node, Nodes, ZooKeeperProcess, nodes_of
from tests.oracle.cluster_deviations import IN_CLUSTERS
from tests.oracle.deviations import matches
from tests.oracle.history import TIMEOUT_S, History
from tests.oracle.listed import Listed, assert_same_but_for, not_there
from tests.oracle.other_deviations import OTHERS
from tests.oracle.scenarios.configs import APPEND, BROKER, DELETE, SET, SUBTRACT, TOPIC, alter, change
from tests.oracle.scenarios.requests import records

SETTINGS: dict[str, object] = {
    "broker.id": 0,
    "broker.rack": "r1",
    "num.partitions": 2,
    "offsets.topic.num.partitions": 3,
    "offsets.topic.replication.factor": 1,
    "group.initial.rebalance.delay.ms": 0,
    "auto.create.topics.enable": "true",
}


def only_in_order(kafka: Node | None, ours: Node | None) -> bool:
    """Return whether both are the same JSON, with the fields in another order."""
    if kafka is None or ours is None:
        return False
    return kafka._replace(data=b"") == ours._replace(data=b"") and bool(json.loads(kafka.data) == json.loads(ours.data))


def in_the_next_epoch(kafka: Node | None, ours: Node | None) -> bool:
    """Return whether our state of a partition is Kafka's, written once more with the next leader epoch."""
    if kafka is None or ours is None:
        return False
    theirs, found = json.loads(kafka.data), json.loads(ours.data)
    next_one = {"leader_epoch": theirs["leader_epoch"] + 1, "controller_epoch": found["controller_epoch"]}
    return ours.version == kafka.version + 1 and bool(found == theirs | next_one)


ORDERED = (
    Listed("/brokers/topics/wide", only_in_order, "Nodes: order of fields"),
    Listed("/config/topics/*", only_in_order, "Nodes: order of fields"),
)
LISTED = {
    "alone": (*ORDERED, Listed("/config/changes/*", not_there, "Nodes: /config/changes")),
    "member": ORDERED,
}
AFTER_A_RESTART: dict[str, tuple[Listed[Node], ...]] = {
    "alone": (),
    "member": (
        Listed(
            "/brokers/topics/*/partitions/*/state",
            in_the_next_epoch,
            "The controller: brokers that came back while there was none",
        ),
    ),
}


CHROOT = "/member"
"""Where kbroker is a member, in Kafka's ZooKeeper."""


class Kbroker:
    """kbroker in this process, so that its ephemeral nodes, which are in no file, can be seen while it runs.

    `kind` is "alone", or "member" for one in the ZooKeeper.
    """

    def __init__(self, folder: Path, zookeeper: ZooKeeperProcess, kind: str):
        self.folder = folder
        self.zookeeper = zookeeper
        self.kind = kind
        self.broker: Broker | None = None
        self.port = 0

    def start(self) -> None:
        settings = dict(SETTINGS)
        if self.kind == "member":
            settings["zookeeper.connect"] = self.zookeeper.address + CHROOT
        overrides = ["listeners=PLAINTEXT://127.0.0.1:0", *(f"{name}={value}" for name, value in settings.items())]
        self.broker = Broker(load_config(None, overrides, self.folder, {}))
        self.broker.start()
        self.port = self.broker.endpoints[0].port

    def stop(self) -> None:
        if self.broker is not None:
            self.broker.stop()
            self.broker = None

    def restart(self) -> None:
        self.stop()
        self.start()

    def nodes(self) -> dict[str, Node]:
        """Return a member's nodes in ZooKeeper; of a broker that is alone those it has, or has in its file."""
        if self.kind == "member":
            nodes = self.zookeeper.nodes().items()
            return {path.removeprefix(CHROOT) or "/": node for path, node in nodes if path.startswith(CHROOT)}
        if self.broker is not None:
            return nodes_of(self.broker._home.session)
        store = EmbeddedStore(store_path(str(self.folder)))
        try:
            return nodes_of(store.connect())
        finally:
            store.stop()


def old_commit(group: str, offsets: dict[str, dict[int, int]], metadata: str | None = "m") -> M.OffsetCommitRequest:
    R = M.OffsetCommitRequest
    topics = [
        R.OffsetCommitRequestTopic(
            name=name,
            partitions=[
                R.OffsetCommitRequestPartition(
                    partition_index=index, committed_offset=offset, committed_metadata=metadata
                )
                for index, offset in each.items()
            ],
        )
        for name, each in offsets.items()
    ]
    return R(group_id=group, topics=topics)


def accepted(answer: Any) -> list[int]:
    return [each.error_code for each in answer.responses]


def change_everything(port: int) -> None:
    """Send every request that makes, changes or removes nodes, and some that are refused."""
    with History(port) as h:
        h.create("assigned", assignment=[[0], [0], [0]])
        h.create("counted", 4, configs={"retention.ms": "1000000", "cleanup.policy": "compact", "segment.bytes": "999"})
        h.create("default")
        h.create("odd.name_x-1", 1, configs={"follower.replication.throttled.replicas": "*"})
        h.create("wide", 12)
        h.await_leaders("made-by-asking", make=True)
        h.grow("default", 4, [[0], [0]])
        h.grow("wide", 14)

        topic_changes = [
            [("cleanup.policy", APPEND, "delete"), ("segment.bytes", DELETE, None), ("retention.bytes", SET, "77")],
            [("cleanup.policy", SUBTRACT, "compact")],
        ]
        for wishes in topic_changes:
            h.do(change((TOPIC, "counted", wishes)), accepted)
        h.do(change((TOPIC, "default", [("max.message.bytes", SET, "5000")])), accepted)
        h.do(change((TOPIC, "default", [("max.message.bytes", DELETE, None)])), accepted)
        h.do(change((TOPIC, "wide", [("retention.ms", DELETE, None)])), accepted)
        h.do(alter((TOPIC, "assigned", {"flush.ms": "5", "retention.ms": "-1"})), accepted)
        h.do(alter((TOPIC, "assigned", {"retention.ms": "7"})), accepted)

        h.do(change((BROKER, "0", [("background.threads", SET, "8"), ("max.connections", SET, "900")])), accepted)
        h.do(change((BROKER, "", [("log.retention.ms", SET, "99999999"), ("max.connections", SET, "800")])), accepted)
        h.do(change((BROKER, "", [("max.connections", DELETE, None)])), accepted)
        h.do(alter((BROKER, "0", {"max.connections.per.ip": "700"})), accepted)

        refused = [
            change((TOPIC, "default", [("retention.ms", SET, "no number")])),
            change((TOPIC, "default", [("retention.ms", SET, "5")]), check=True),
            change((BROKER, "0", [("log.dirs", SET, "/elsewhere")])),
            alter((TOPIC, "nowhere", {"retention.ms": "7"})),
        ]
        for request in refused:
            h.ask(request)

        h.create("gone", 2, configs={"retention.ms": "5"})
        h.create("back", 2, configs={"retention.ms": "5"})
        h.delete("gone", "back")
        h.create_again("back")

        h.ask_for_a_producer_id()
        h.produce("default", 0, records())
        h.commit_offset("g", "default")
        for offset in (5, 4):
            h.ask(old_commit("old", {"default": {0: offset, 1: 7}, "wide": {11: offset}}), version=0)


def known_by_name(nodes: Nodes, port: int) -> dict[str, Node]:
    """Return the nodes with names in the place of ports, times and random ids. Values without that form stay."""
    patterns = {
        rb'"timestamp":"\d{13}"': b'"timestamp":"<time>"',
        rb'"topic_id":"[\w-]{22}"': b'"topic_id":"<id>"',
        rb'^{"version":"1","id":"[\w-]{22}"}$': b'{"version":"1","id":"<id>"}',
        rb":%d\b" % port: b":<port>",
        rb',"kbroker":"[\d.]+"': b"",
    }
    found = {}
    for path, node in nodes.items():
        data = node.data
        for pattern, name in patterns.items():
            data = re.sub(pattern, name, data)
        # How often a broker writes its registration while it starts is its own affair.
        found[path] = node._replace(data=data, version=0 if node.is_ephemeral else node.version)
    return found


@dataclass
class Both:
    """The two brokers, after the same history."""

    kafka: KafkaOnZooKeeper
    kbroker: Kbroker

    def settled_nodes_of_kafka(self) -> Nodes:
        """Return Kafka's nodes once nothing is left to be deleted: Kafka deletes after it has answered."""
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            nodes = {path: node for path, node in self.kafka.zookeeper.nodes().items() if not path.startswith(CHROOT)}
            if not any(matches("/admin/delete_topics/*", path) for path in nodes):
                return nodes
            assert time.monotonic() < deadline, "Kafka does not delete"

    def assert_same_nodes(self, listed: dict[str, tuple[Listed[Node], ...]] | None = None) -> None:
        """Assert that the nodes differ as LISTED says, and as `listed` says."""
        kafka = known_by_name(self.settled_nodes_of_kafka(), self.kafka.port)
        ours = known_by_name(self.kbroker.nodes(), self.kbroker.port)
        kind = self.kbroker.kind
        assert_same_but_for((*LISTED[kind], *(listed or {}).get(kind, ())), kafka, ours)


@pytest.fixture(scope="module", params=["alone", "member"])
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    try:
        KafkaOnZooKeeper.classpath()
    except maven.MavenFailed as missing:
        pytest.skip(str(missing))
    with KafkaOnZooKeeper({**SETTINGS, "zookeeper.session.timeout.ms": 60_000}) as kafka:
        kbroker = Kbroker(tmp_path_factory.mktemp("nodes"), kafka.zookeeper, request.param)
        kbroker.start()
        try:
            for port in (kafka.port, kbroker.port):
                change_everything(port)
            yield Both(kafka, kbroker)
        finally:
            kbroker.stop()


def test_nodes_are_those_that_kafka_has_in_zookeeper(both: Both) -> None:
    both.assert_same_nodes()


NO_PATHS = ("", "a//b", "/a", "a/", ".", "a/../b", "a\0b", "a\tb", "\x80", "\uf000", "\U0001f600")


def offsets_of_version_0(port: int) -> list[object]:
    """Compare the answers without their order, which in Kafka is that of a hash table."""
    said: list[object] = []
    with History(port) as h:

        def commit(group: str, offsets: dict[str, dict[int, int]], metadata: str | None = "m") -> None:
            answer = h.ask(old_commit(group, offsets, metadata), version=0)
            said.append(sorted((t.name, p.partition_index, p.error_code) for t in answer.topics for p in t.partitions))

        def fetch(group: str, partitions: dict[str, list[int]]) -> None:
            R = M.OffsetFetchRequest
            topics = [R.OffsetFetchRequestTopic(name=name, partition_indexes=at) for name, at in partitions.items()]
            answer = h.ask(R(group_id=group, topics=topics), version=0)
            listed = [(t.name, p) for t in answer.topics for p in t.partitions]
            said.append(
                sorted((name, p.partition_index, p.committed_offset, p.metadata, p.error_code) for name, p in listed)
            )

        commit("v0", {"default": {0: 5, 1: 6, 9: 7, -1: 8}, "nowhere": {0: 1}, "wide": {3: 2}})
        fetch("v0", {"default": [0, 1, 2, 9, -1], "nowhere": [0], "wide": [3, 4]})
        fetch("v0-nobody", {"default": [0]})
        for offset in (0, -1, -2, 2**63 - 1, -(2**63)):
            commit("v0", {"default": {0: offset}})
            fetch("v0", {"default": [0]})
        for metadata in (None, "", "x" * 4096, "x" * 4097):
            commit("v0-metadata", {"default": {0: 3}}, metadata)
        fetch("v0-metadata", {"default": [0]})
        commit("v0", {})
        commit("v0", {"default": {}})
        fetch("v0", {})
        for group in ("a/b", "offsets", " ", "ü", "\u4e2d\ufb01"):
            commit(group, {"default": {0: 5}})
            fetch(group, {"default": [0]})
        commit("v0/offsets/default/3", {"default": {0: 5}})  # makes nodes without data
        fetch("v0", {"default": [3]})
        for group in NO_PATHS:
            commit(group, {"default": {0: 5}, "nowhere": {0: 5}})
            fetch(group, {"default": [0], "nowhere": [0]})
        h.create("short-lived", 1)
        commit("v0", {"short-lived": {0: 5}})
        h.delete("short-lived")
        h.create_again("short-lived")
        fetch("v0", {"short-lived": [0]})
    return said


def test_offsets_of_version_0_are_those_of_kafka_on_zookeeper(both: Both) -> None:
    kafka, ours = offsets_of_version_0(both.kafka.port), offsets_of_version_0(both.kbroker.port)
    refused = int(ErrorCode.INVALID_GROUP_ID)
    failed = int(ErrorCode.UNKNOWN_SERVER_ERROR)
    assert str(ours).count(f" {refused})") == 2 * len(NO_PATHS)
    assert str(ours).replace(f" {refused})", f" {failed})") == str(kafka)
    both.assert_same_nodes()


@pytest.mark.slow
def test_nodes_are_those_of_kafka_after_a_restart_and_a_clean_stop(both: Both) -> None:
    for broker in (both.kafka, both.kbroker):
        broker.restart()
        with History(broker.port) as h:
            h.create("late", 3)
            h.grow("late", 4)
            h.ask_for_a_producer_id()
    both.assert_same_nodes(AFTER_A_RESTART)
    for broker in (both.kafka, both.kbroker):
        broker.stop()
    both.assert_same_nodes(AFTER_A_RESTART)


def test_what_differs_on_purpose_is_in_the_documents() -> None:
    listed = [*LISTED.values(), *AFTER_A_RESTART.values()]
    assert {one.subject for each in listed for one in each} <= {other.subject for other in (*OTHERS, *IN_CLUSTERS)}
