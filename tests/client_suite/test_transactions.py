"""Transactions: together or not at all, fenced, and what an administrator sees of them."""

from __future__ import annotations

import pytest

from kbroker.client import AdminClient
from kbroker.client.errors import BrokerError, ClientError
from kbroker.errors import ErrorCode
from kbroker.model import TopicPartition
from tests.client_suite.features import (
    DESCRIBE_TRANSACTIONS,
    IDEMPOTENCE,
    LIST_TRANSACTIONS,
    PRODUCERS,
    TRANSACTIONS,
)
from tests.client_suite.suite_broker import SECONDS, SuiteBroker, eventually
from tests.client_suite.test_records import read

UNSUPPORTED = ErrorCode.UNSUPPORTED_VERSION


def test_records_appear_together_or_not_at_all(broker: SuiteBroker) -> None:
    topic = broker.new_topic(2)
    with broker.producer(transactional_id=broker.unique("id"), enable_idempotence=True) as producer:
        with broker.serving(IDEMPOTENCE):
            producer.init_transactions(SECONDS)
        if not broker.has(TRANSACTIONS):
            return
        with producer.transaction():
            producer.send_nowait(topic, b"first", partition=0)
            producer.send_nowait(topic, b"second", partition=1)
        producer.begin_transaction()
        producer.send(topic, b"never", partition=0)
        producer.abort_transaction(SECONDS)
        with producer.transaction():
            producer.send_nowait(topic, b"third", partition=0)
    with broker.consumer(isolation_level="read_committed") as consumer:
        consumer.assign_topics(topic)
        found = {each.value: each.partition for each in read(consumer, 3)}
        assert found == {b"first": 0, b"second": 1, b"third": 0}


def test_offsets_are_committed_with_what_was_made_of_them(broker: SuiteBroker, admin: AdminClient) -> None:
    broker.need(TRANSACTIONS)
    source, group = broker.new_topic(), broker.unique("group")
    at = TopicPartition(source, 0)
    with (
        broker.producer(transactional_id=broker.unique("id")) as producer,
        broker.consumer(group_id=group, enable_auto_commit=False) as consumer,
    ):
        consumer.assign([at])
        producer.init_transactions(SECONDS)
        producer.begin_transaction()
        producer.send_offsets_to_transaction({at: 7}, consumer.group_metadata(), SECONDS)
        producer.abort_transaction(SECONDS)
        assert admin.committed(group) == {}
        with producer.transaction():
            producer.send_offsets_to_transaction({at: 9}, consumer.group_metadata(), SECONDS)
        eventually(lambda: {each.offset for each in admin.committed(group).values()} == {9})


def test_who_comes_later_fences_who_was_there(broker: SuiteBroker) -> None:
    broker.need(TRANSACTIONS)
    topic, name = broker.new_topic(), broker.unique("id")
    with broker.producer(transactional_id=name) as first, broker.producer(transactional_id=name) as second:
        first.init_transactions(SECONDS)
        first.begin_transaction()
        first.send(topic, b"lost").result(SECONDS)
        second.init_transactions(SECONDS)
        with pytest.raises(ClientError) as raised:
            first.commit_transaction(SECONDS)
        assert raised.value.code in (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH)
        with second.transaction():
            second.send_nowait(topic, b"kept")
    with broker.consumer(isolation_level="read_committed") as consumer:
        consumer.assign_topics(topic)
        assert [each.value for each in read(consumer, 1)] == [b"kept"]


def test_an_administrator_sees_and_ends_transactions(broker: SuiteBroker, admin: AdminClient) -> None:
    topic, name = broker.new_topic(), broker.unique("id")
    with broker.serving(LIST_TRANSACTIONS):
        admin.list_transactions()
    with broker.serving(PRODUCERS):
        assert admin.describe_producers([(topic, 0)]) == {(topic, 0): ()}
    if not broker.has(TRANSACTIONS):
        with pytest.raises(BrokerError, match="has no transactions") as raised:
            admin.describe_transaction(name)
        assert raised.value.code == UNSUPPORTED
        return
    with pytest.raises(BrokerError) as raised:
        admin.describe_transaction(name)
    missing = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND if broker.has(DESCRIBE_TRANSACTIONS) else UNSUPPORTED
    assert raised.value.code == missing
    with broker.producer(transactional_id=name) as producer:
        producer.init_transactions(SECONDS)
        producer.begin_transaction()
        producer.send(topic, b"open").result(SECONDS)
        ends = [admin.list_offsets([(topic, 0)], read_committed=committed) for committed in (False, True)]
        assert [found[TopicPartition(topic, 0)].offset for found in ends] == [1, 0]
        if broker.has(LIST_TRANSACTIONS):
            listed = {each.transactional_id: each.state for each in admin.list_transactions(["Ongoing"])}
            assert listed == {name: "Ongoing"}
            described = admin.describe_transaction(name)
            assert (described.state, described.partitions) == ("Ongoing", ((topic, 0),))
            (state,) = admin.describe_producers([(topic, 0)])[TopicPartition(topic, 0)]
            assert (state.producer_id, state.transaction_start) == (described.producer_id, 0)
        admin.fence_producers([name])
        eventually(lambda: admin.list_offsets([(topic, 0)], read_committed=True)[TopicPartition(topic, 0)].offset > 1)
        with pytest.raises(ClientError):
            producer.commit_transaction(SECONDS)
