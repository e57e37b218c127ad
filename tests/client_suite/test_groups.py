"""Groups of consumers: members share, commit, come and go; what an administrator sees."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from kbroker.client import AdminClient
from kbroker.client.consumer.consumer import Consumer
from kbroker.client.errors import BrokerError
from kbroker.errors import ErrorCode
from kbroker.model import TopicPartition
from tests.client_suite.features import (
    CONSUMER_GROUPS,
    DELETE_GROUPS,
    DELETE_OFFSETS,
    GROUP_STATES,
    GROUP_TYPES,
    REMOVE_MEMBERS,
)
from tests.client_suite.suite_broker import SECONDS, SuiteBroker

QUICK = {"session_timeout_ms": 6_000, "heartbeat_interval_ms": 300}


class Members:
    """Consumers of one group, polled in turn."""

    def __init__(self) -> None:
        self.consumers: list[Consumer] = []
        self.values: list[bytes | None] = []

    def poll_until(self, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + SECONDS
        while not done():
            assert time.monotonic() < deadline, [each.assignment() for each in self.consumers]
            for each in self.consumers:
                self.values += [record.value for record in each.poll(0.05)]


def produce(broker: SuiteBroker, topic: str, values: list[bytes]) -> None:
    with broker.producer() as producer:
        for number, value in enumerate(values):
            producer.send_nowait(topic, value, partition=number % 2)
        producer.flush(SECONDS)


def test_members_share_and_go_on_where_others_stopped(broker: SuiteBroker) -> None:
    share_and_go_on(broker, **QUICK)


def test_members_of_the_consumer_protocol_do_the_same(broker: SuiteBroker) -> None:
    with broker.serving(CONSUMER_GROUPS):
        share_and_go_on(broker, group_protocol="consumer")


def share_and_go_on(broker: SuiteBroker, **options: Any) -> None:
    topic, group = broker.new_topic(2), broker.unique("group")
    values = [b"%d" % number for number in range(200)]
    produce(broker, topic, values[:100])
    members = Members()
    with broker.consumer(group_id=group, **options) as first:
        members.consumers = [first]
        first.subscribe([topic])
        members.poll_until(lambda: len(members.values) == 100)
        with broker.consumer(group_id=group, **options) as second:
            members.consumers = [first, second]
            second.subscribe([topic])
            members.poll_until(lambda: len(first.assignment()) == len(second.assignment()) == 1)
            produce(broker, topic, values[100:])
            members.poll_until(lambda: len(members.values) >= 200)
        members.consumers = [first]
        members.poll_until(lambda: len(first.assignment()) == 2)
    assert sorted(v or b"" for v in members.values) == sorted(values)
    with broker.consumer(group_id=group, **options) as third:
        members.consumers = [third]
        third.subscribe([topic])
        produce(broker, topic, [b"later"])
        members.poll_until(lambda: len(members.values) >= 201)
        assert members.values[200:] == [b"later"]


def test_what_is_committed_is_there_for_everybody(broker: SuiteBroker, admin: AdminClient) -> None:
    topic, group = broker.new_topic(2), broker.unique("group")
    both = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
    with broker.consumer(group_id=group, enable_auto_commit=False) as consumer:
        assert consumer.committed(both) == dict.fromkeys(both)
        consumer.assign(both)
        consumer.commit({both[0]: 5})
        committed = consumer.committed(both)
        assert committed[both[1]] is None
        assert committed[both[0]] is not None
        assert committed[both[0]].offset == 5  # type: ignore[union-attr]
    assert {at: each.offset for at, each in admin.committed(group, both).items()} == {both[0]: 5}
    assert {at: each.offset for at, each in admin.committed(group).items()} == {both[0]: 5}
    admin.alter_offsets(group, {both[0]: 3, both[1]: 4})
    assert {at: each.offset for at, each in admin.committed(group).items()} == {both[0]: 3, both[1]: 4}
    with broker.serving(DELETE_OFFSETS):
        admin.delete_offsets(group, [both[0]])
        assert set(admin.committed(group)) == {both[1]}
    with broker.serving(DELETE_GROUPS):
        admin.delete_groups([group])
        assert admin.committed(group) == {}
        with pytest.raises(BrokerError) as raised:
            admin.delete_groups([group])
        assert raised.value.code == ErrorCode.GROUP_ID_NOT_FOUND


def test_groups_are_listed_and_described(broker: SuiteBroker, admin: AdminClient) -> None:
    topic, group = broker.new_topic(2), broker.unique("described")
    dead = admin.describe_group(group)
    assert (dead.state, dead.members) == ("Dead", ())
    members = Members()
    with broker.consumer(group_id=group, client_id="c1", **QUICK) as consumer:
        members.consumers = [consumer]
        consumer.subscribe([topic])
        members.poll_until(lambda: len(consumer.assignment()) == 2)
        found = admin.describe_group(group)
        assert (found.state, found.group_type, found.protocol_type) == ("Stable", "classic", "consumer")
        (member,) = found.members
        assert (member.client_id, member.partitions) == ("c1", ((topic, 0), (topic, 1)))
        assert found.coordinator == admin.describe_cluster().brokers[0].node_id
        listed = {each.group_id: each for each in admin.list_groups()}
        assert listed[group].protocol_type == "consumer"
        with broker.serving(GROUP_STATES):
            assert group in [each.group_id for each in admin.list_groups(states=["Stable"])]
            assert group not in [each.group_id for each in admin.list_groups(states=["Empty"])]
        with broker.serving(GROUP_TYPES):
            assert group in [each.group_id for each in admin.list_groups(types=["classic"])]
            assert group not in [each.group_id for each in admin.list_groups(types=["consumer"])]
        with broker.serving(REMOVE_MEMBERS):
            admin.remove_members(group, member_ids=[member.member_id])
            members.poll_until(lambda: admin.describe_group(group).state == "Stable")  # who lives joins again
            assert admin.describe_group(group).members[0].member_id != member.member_id
