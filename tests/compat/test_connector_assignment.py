"""Who gets which partition: this client's assignment and that of Kafka 0.8.2's own assignors, from the same nodes."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from kbroker.client.config.parsing import parse_options
from kbroker.client.config.zookeeper import ZOOKEEPER
from kbroker.client.connector.assignment import Assignment, Disagreement
from kbroker.client.connector.group_nodes import GroupNodes
from kbroker.client.connector.membership import shares_of
from kbroker.client.connector.subscription import Subscription
from kbroker.client.zookeeper.session import Session
from kbroker.coordination.paths import NO_UUID, TopicAssignment, encode_topic
from tests.kit.kafka import maven
from tests.kit.kafka.java_program import compile_java
from tests.kit.kafka.process import KafkaInMemory
from tests.kit.kafka.zookeeper import ZooKeeperProcess

FEW_GROUPS, GROUPS = 30, 150
TOPICS = {f"t{number}{suffix}": 2 * number for number in range(6) for suffix in ("", ".x", "-Ä")} | {
    "big": 37,
    "__consumer_offsets": 5,
}


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    try:
        KafkaInMemory.classpath()
        maven.fetch(["org.apache.kafka:kafka_2.11:0.8.2.2"])
    except maven.MavenFailed as missing:
        pytest.skip(str(missing))
    with ZooKeeperProcess() as zookeeper:
        made = Session(parse_options(ZOOKEEPER, None, {"zookeeper_connect": zookeeper.address}))
        for path in ("/brokers", "/brokers/topics"):
            made.store.create(path)
        for name, count in TOPICS.items():
            replicas = dict.fromkeys(range(count), (1,))
            made.store.create(f"/brokers/topics/{name}", encode_topic(TopicAssignment(NO_UUID, replicas, {}, {})))
        yield made
        made.close()


@pytest.mark.parametrize("count", [FEW_GROUPS, pytest.param(GROUPS, marks=pytest.mark.slow)])
def test_assignments_are_those_of_kafka_0_8(session: Session, count: int) -> None:
    chance = random.Random(count)
    asked = []
    for number in range(count):
        group, even = f"g{count}-{number}", chance.random() < 0.5
        same = drawn(chance)
        for place in range(chance.randint(1, 5)):
            name = f"{group}_{chance.choice(['a', 'B', 'host-1', 'host-10', 'ü'])}-{place}"
            GroupNodes(session, group, name).register(same if even else drawn(chance), 0, lambda _: None)
            asked += [("range", group, name), ("roundrobin", group, name)]
    java = compile_java(
        Path(__file__).parent / "java-0.8", "Assign", "0.8.2.2", "org.apache.kafka:kafka_2.11:0.8.2.2",
        options=("-Xmx128m", "-Dfile.encoding=UTF-8", "-Dstdout.encoding=UTF-8"),
    )  # fmt: skip
    done = subprocess.run(
        [*java, session._address], input="".join(" ".join(each) + "\n" for each in asked), capture_output=True,
        encoding="utf-8", timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    refused = 0
    for (strategy, group, name), answer in zip(asked, blocks(done.stdout), strict=True):
        nodes = GroupNodes(session, group, name)
        try:
            found = [f"{each.topic} {each.partition_id} {owner}" for each, owner in share(nodes, strategy).items()]
        except Disagreement:
            found = ["!"]
            refused += 1
        assert sorted(found) == answer, (strategy, group)
    assert 0 < refused < len(asked) / 2


def share(nodes: GroupNodes, strategy: str) -> Assignment:
    def unwatched(_event: object) -> None:
        """A watch that does nothing: later changes do not matter here."""

    members, existing = nodes.members(unwatched), nodes.topics(unwatched)
    partitions = nodes.partitions(TOPICS, unwatched)
    shares = shares_of(nodes.consumer_id, members, existing, lambda _: partitions, strategy, exclude_internal=True)
    return {partition: owner for partition, owner in shares.items() if owner.rpartition("-")[0] == nodes.consumer_id}


def blocks(text: str) -> list[list[str]]:
    """Return the answers, each a sorted list of lines."""
    found: list[list[str]] = [[]]
    for line in text.split("\n")[:-1]:
        if line:
            found[-1].append(line)
        else:
            found.append([])
    return [sorted(each) for each in found[:-1]]


def drawn(chance: random.Random) -> Subscription:
    if chance.random() < 0.3:
        expression = chance.choice(["t.*", ".*", "t[123]", "big|t5", "nothing"])
        return Subscription(chance.choice(["white_list", "black_list"]), {expression: chance.randint(1, 3)})
    names = chance.sample([*sorted(TOPICS), "missing"], chance.randint(1, 4))
    even = chance.randint(1, 3)
    return Subscription("static", {name: chance.choice([even, chance.randint(1, 12)]) for name in names})
