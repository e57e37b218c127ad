"""Groups of the consumer protocol (KIP-848) with unmodified clients that have it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from tests.compat.clients import CLIENTS, Client
from tests.compat.conftest import new_broker
from tests.compat.test_clients import create_topic, produce_arguments
from tests.kit.brokers.process import BrokerProcess
from tests.kit.clients.wire import WireClient

NAMES = ("confluent", "java-4.3")
NEWER = [pytest.param(one, id=one.name) for one in CLIENTS if one.name in NAMES]
JAVA_OFTEN = [
    pytest.param(one, id=one.name, marks=pytest.mark.slow if one.name == "confluent" else ())
    for one in CLIENTS
    if one.name in NAMES
]
COUNT = 20_000
FAST = {
    "group.consumer.heartbeat.interval.ms": 300,
    "group.consumer.min.heartbeat.interval.ms": 300,
    "group.consumer.session.timeout.ms": 5000,
    "group.consumer.min.session.timeout.ms": 5000,
}


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with new_broker(FAST) as started:
        yield started


def form_a_group(client: Client, broker: BrokerProcess, **changes: Any) -> str:
    """Run two members, one after the other and then both; every record is read and committed. Return the topic."""
    topic = create_topic(broker, 4)
    arguments: dict[str, Any] = {
        "bootstrap": broker.address, "topic": topic, "group": f"g-{topic}", "count": COUNT, "timeout_s": 90,
        "assignor": None, "static": False, "protocol": "consumer", **changes,
    }  # fmt: skip
    if "pattern" in changes:
        arguments["pattern"] = changes["pattern"].format(topic=topic)
    _, done = client.run_all(("produce", produce_arguments(broker, topic, count=COUNT)), ("group", arguments))
    assert done["distinct"] == COUNT
    assert min(done["members"]) > 0
    assert done["committed"] == COUNT
    return topic


@pytest.mark.parametrize("client", NEWER)
@pytest.mark.parametrize("assignor", ["uniform", pytest.param("range", marks=pytest.mark.slow)])
def test_a_group_rebalances_in_the_middle_and_loses_nothing(
    client: Client, assignor: str, broker: BrokerProcess
) -> None:
    form_a_group(client, broker, assignor=assignor)


@pytest.mark.parametrize("client", JAVA_OFTEN)
def test_members_are_subscribed_by_a_pattern(client: Client, broker: BrokerProcess) -> None:
    form_a_group(client, broker, pattern="^{topic}|nothing-else.*")


@pytest.mark.parametrize("client", JAVA_OFTEN)
def test_a_group_of_static_members_rebalances_when_a_session_ends(client: Client, broker: BrokerProcess) -> None:
    form_a_group(client, broker, static=True)


@pytest.mark.parametrize("client", JAVA_OFTEN)
@pytest.mark.parametrize(("protocol", "left"), [("upgrade", "consumer"), ("downgrade", "classic")])
def test_a_live_group_changes_its_protocol_and_loses_nothing(
    client: Client, protocol: str, left: str, broker: BrokerProcess
) -> None:
    """The member that leaves has joined by the other protocol."""
    topic = form_a_group(client, broker, protocol=protocol)
    with WireClient("127.0.0.1", broker.port) as asked:
        groups = asked.call(ApiKey.LIST_GROUPS, 5, M.ListGroupsRequest()).groups
    assert [one.group_type for one in groups if one.group_id == f"g-{topic}"] == [left]


class Members:
    """Consumers of one group in this process, each of one protocol; the records that they read are kept."""

    def __init__(self, broker: BrokerProcess, topic: str):
        self.broker, self.topic = broker, topic
        self.alive: dict[str, Any] = {}
        self.seen: set[tuple[int, int]] = set()

    def start(self, name: str, protocol: str, **settings: Any) -> None:
        from confluent_kafka import Consumer

        if protocol == "classic":
            settings = {"session.timeout.ms": 6000, "heartbeat.interval.ms": 300, **settings}
        member = Consumer(
            {
                "bootstrap.servers": self.broker.address, "group.id": f"g-{self.topic}", "group.protocol": protocol,
                "auto.offset.reset": "earliest", "enable.auto.commit": False, "client.id": name, **settings,
            }
        )  # fmt: skip
        member.subscribe([self.topic])
        self.alive[name] = member

    def stop(self, name: str) -> None:
        self.alive.pop(name).close()

    def until_shared(self, count: int) -> None:
        """Poll until every partition has an owner, every member owns some, and `count` records were read."""
        deadline = time.monotonic() + 60
        while True:
            for member in self.alive.values():
                for message in member.consume(500, 0.05):
                    assert message.error() is None, message.error()
                    self.seen.add((message.partition(), message.offset()))
            shares = [[one.partition for one in member.assignment()] for member in self.alive.values()]
            if sorted(p for share in shares for p in share) == [0, 1, 2, 3] and all(shares) and len(self.seen) >= count:
                return
            assert time.monotonic() < deadline, f"shares {shares}, {len(self.seen)} records"

    def kind(self) -> str:
        from confluent_kafka.admin import AdminClient

        admin = AdminClient({"bootstrap.servers": self.broker.address})
        listed = admin.list_consumer_groups().result().valid
        return str(next(one.type.name for one in listed if one.group_id == f"g-{self.topic}"))


@pytest.mark.parametrize("assignor", [pytest.param("range", marks=pytest.mark.slow), "cooperative-sticky"])
def test_a_live_group_is_upgraded_and_downgraded_one_member_at_a_time(assignor: str, broker: BrokerProcess) -> None:
    client = next(one for one in CLIENTS if one.name == "confluent")
    topic = create_topic(broker, 4)
    client.run("produce", **produce_arguments(broker, topic, count=4000))
    members = Members(broker, topic)
    old = {"partition.assignment.strategy": assignor}
    members.start("a", "classic", **old)
    members.start("b", "classic", **old)
    members.until_shared(4000)
    assert members.kind() == "CLASSIC"
    members.start("c", "consumer")
    members.until_shared(4000)
    assert members.kind() == "CONSUMER"
    members.stop("a")
    members.until_shared(4000)
    broker.restart()
    members.until_shared(4000)
    members.start("d", "consumer")
    members.stop("b")
    members.until_shared(4000)
    assert members.kind() == "CONSUMER"
    members.start("e", "classic", **old)
    members.until_shared(4000)
    members.stop("c")
    members.stop("d")
    members.until_shared(4000)
    assert members.kind() == "CLASSIC"
    members.stop("e")


def test_kbroker_groups_shows_such_a_group_and_leaves_its_offsets_alone(broker: BrokerProcess) -> None:
    def groups(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "kbroker.cli.main", "groups", *words, "--bootstrap", broker.address]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    topic = create_topic(broker, 4)
    members = Members(broker, topic)
    members.start("a", "consumer")
    members.until_shared(0)
    (shown,) = json.loads(groups("describe", f"g-{topic}", "--json").stdout)
    assert (shown["state"], shown["protocol"]) == ("Stable", "uniform")
    assert [member["partitions"] for member in shown["members"]] == [[f"{topic}-{number}" for number in range(4)]]
    refused = groups("reset-offsets", f"g-{topic}", "--topic", topic, "--to-earliest")
    assert "stop its members first" in refused.stderr
    members.stop("a")
    assert groups("reset-offsets", f"g-{topic}", "--topic", topic, "--to-earliest", "--execute").returncode == 0
