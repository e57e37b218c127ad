"""Members with names of their own (KIP-345): they go and come back, and nobody else notices."""

from __future__ import annotations

import pytest

from kbroker.client import AdminClient, RebalanceListener
from kbroker.client.errors import BrokerError
from kbroker.errors import ErrorCode
from kbroker.model import TopicPartition
from tests.client_suite.features import REMOVE_MEMBERS, STATIC_MEMBERS
from tests.client_suite.suite_broker import SuiteBroker
from tests.client_suite.test_groups import Members, produce

LASTING = {"session_timeout_ms": 30_000, "heartbeat_interval_ms": 300}


class Counting(RebalanceListener):
    """Counts how often partitions were assigned and revoked."""

    def __init__(self) -> None:
        self.changes = 0

    def on_assigned(self, partitions: list[TopicPartition]) -> None:
        self.changes += 1

    on_revoked = on_assigned


def test_a_member_comes_back_to_what_it_had(broker: SuiteBroker, admin: AdminClient) -> None:
    broker.need(STATIC_MEMBERS)
    topic, group = broker.new_topic(2), broker.unique("group")
    options = {"group_id": group, **LASTING}
    members, kept = Members(), Counting()
    with broker.consumer(group_instance_id="stays", **options) as stays:
        second = broker.consumer(group_instance_id="returns", **options)
        members.consumers = [stays, second]
        stays.subscribe([topic], kept)
        second.subscribe([topic])
        members.poll_until(lambda: len(stays.assignment()) == len(second.assignment()) == 1)
        produce(broker, topic, [b"%d" % number for number in range(100)])
        members.poll_until(lambda: len(members.values) == 100)
        had, changes = second.assignment(), kept.changes
        second.close()
        produce(broker, topic, [b"%d" % number for number in range(100, 200)])
        with broker.consumer(group_instance_id="returns", **options) as second:
            members.consumers = [stays, second]
            second.subscribe([topic])
            members.poll_until(lambda: len(members.values) >= 200)
            assert (second.assignment(), kept.changes) == (had, changes)
            instances = {each.instance_id for each in admin.describe_group(group).members}
        assert sorted(members.values, key=lambda each: int(each or b"")) == [b"%d" % n for n in range(200)]
        assert instances == {"stays", "returns"}
        members.consumers = [stays]
        with broker.serving(REMOVE_MEMBERS):
            admin.remove_members(group, instance_ids=["returns"])
            members.poll_until(lambda: len(stays.assignment()) == 2)


def test_of_two_with_one_name_the_later_one_stays(broker: SuiteBroker) -> None:
    broker.need(STATIC_MEMBERS)
    topic, group = broker.new_topic(2), broker.unique("group")
    options = {"group_id": group, "group_instance_id": "same", **LASTING}
    members = Members()
    with broker.consumer(**options) as first, broker.consumer(**options) as second:
        members.consumers = [first]
        first.subscribe([topic])
        members.poll_until(lambda: len(first.assignment()) == 2)
        members.consumers = [second]
        second.subscribe([topic])
        members.poll_until(lambda: len(second.assignment()) == 2)
        members.consumers = [first]
        with pytest.raises(BrokerError) as raised:
            members.poll_until(lambda: False)
        assert raised.value.code == ErrorCode.FENCED_INSTANCE_ID
        assert not raised.value.retriable
        members.consumers = [second]
        produce(broker, topic, [b"1", b"2"])
        members.poll_until(lambda: len(members.values) == 2)


def test_a_name_is_refused_where_members_have_none(broker: SuiteBroker) -> None:
    topic = broker.new_topic()
    options = {"group_id": broker.unique("group"), "group_instance_id": "named", **LASTING}
    members = Members()
    with broker.consumer(**options) as consumer, broker.serving(STATIC_MEMBERS):
        members.consumers = [consumer]
        consumer.subscribe([topic])
        members.poll_until(lambda: bool(consumer.assignment()))
