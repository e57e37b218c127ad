"""Transactions that a producer leaves open, and somebody else ends; transactions of both versions."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from kbroker.client import (
    AdminClient,
    AsyncAdminClient,
    AsyncProducer,
    BrokerError,
    ConsumerGroupMetadata,
    ErrorCode,
    PartialFailure,
    PreparedTransaction,
    TimedOut,
    TransactionAborted,
    UsageError,
)
from kbroker.testing import Broker
from tests.kit.clients.transactions import QUICK, SECONDS, committed, new_id, producer_of, send, transact

GONE = {
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_TXN_STATE,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
}


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(faults=True, settings={"num.partitions": 3}) as started:
        yield started


@pytest.fixture(scope="module")
def admin(broker: Broker) -> Iterator[AdminClient]:
    with AdminClient(bootstrap_servers=broker.bootstrap_servers, **QUICK) as made:
        yield made


def prepare(broker: Broker, version: int, topic: str, *values: str, **options: Any) -> PreparedTransaction:
    """By a producer that is closed then."""
    with producer_of(broker, version, **options) as producer:
        producer.begin_transaction()
        send(producer, topic, *values)
        producer.send_offsets_to_transaction({(topic, 0): 7}, ConsumerGroupMetadata(f"g-{topic}"), SECONDS)
        prepared = producer.prepare_transaction(SECONDS)
    assert prepared.version == version
    return prepared


def test_what_is_prepared_is_ended_by_somebody_else(
    broker: Broker, admin: AdminClient, topic: str, version: int
) -> None:
    first, second = (prepare(broker, version, topic, name, name) for name in "ab")
    admin.end_transactions([first], commit=False)
    assert committed(broker, topic) == [[], [], []]
    admin.end_transactions([second], commit=True)
    admin.end_transactions([second], commit=True)  # asked again
    assert committed(broker, topic) == [["b"], ["b"], []]
    assert admin.committed(f"g-{topic}", require_stable=True)[topic, 0].offset == 7


def test_many_are_ended_at_once_and_each_that_cannot_says_so(
    broker: Broker, admin: AdminClient, topic: str, version: int
) -> None:
    prepared = [prepare(broker, version, topic, f"{i}") for i in range(6)]
    admin.end_transactions(prepared[:2], commit=False)
    with pytest.raises(PartialFailure) as failed:
        admin.end_transactions(prepared, commit=True)
    assert failed.value.errors.keys() == {each.transactional_id for each in prepared[:2]}
    assert {error.code for error in failed.value.errors.values()} <= GONE
    assert sorted(committed(broker, topic)[0]) == ["2", "3", "4", "5"]


def test_what_was_fenced_or_whose_id_was_used_again_is_not_committed(
    broker: Broker, admin: AdminClient, topic: str, version: int
) -> None:
    fenced = prepare(broker, version, topic, "fenced")
    admin.fence_producers([fenced.transactional_id])
    name = new_id()
    used_again = prepare(broker, version, topic, "used again", name=name)
    with producer_of(broker, version, name) as successor:
        for prepared in (fenced, used_again):
            with pytest.raises(BrokerError) as error:
                admin.end_transactions([prepared], commit=True)
            assert error.value.code in GONE
        successor.begin_transaction()
        send(successor, topic, "later")
        successor.commit_transaction(SECONDS)
    assert committed(broker, topic) == [["later"], [], []]


@pytest.mark.parametrize("handled", [False, True])
def test_a_lost_request_and_a_lost_answer_are_asked_for_again(
    broker: Broker, admin: AdminClient, topic: str, version: int, handled: bool
) -> None:
    prepared = prepare(broker, version, topic, "a")
    fault = broker.faults.drop("EndTxn", handled=handled)
    error = broker.faults.error("EndTxn", ErrorCode.CONCURRENT_TRANSACTIONS)
    admin.end_transactions([prepared], commit=True)
    assert (fault.struck, error.struck) == (1, 1)
    assert committed(broker, topic) == [["a"], [], []]


def test_the_producer_itself_may_end_it_and_go_on(broker: Broker, topic: str, version: int) -> None:
    with producer_of(broker, version) as producer:
        for number, end in enumerate([producer.commit_transaction, producer.abort_transaction]):
            producer.begin_transaction()
            send(producer, topic, f"{number}")
            assert producer.prepare_transaction(SECONDS) == producer.prepare_transaction(SECONDS)
            with pytest.raises(UsageError, match="the transaction is prepared"):
                producer.send(topic, "more")
            with pytest.raises(UsageError, match="the transaction is prepared"):
                producer.begin_transaction()
            end(SECONDS)
        transact(producer, topic, 2)
    assert committed(broker, topic) == [["0", "2"], ["2"], ["2"]]


def test_an_empty_transaction_is_not_prepared(broker: Broker, topic: str, version: int) -> None:
    with producer_of(broker, version) as producer:
        with pytest.raises(UsageError, match="begin_transaction has to be called first"):
            producer.prepare_transaction()
        producer.begin_transaction()
        with pytest.raises(UsageError, match="nothing was sent"):
            producer.prepare_transaction()
        send(producer, topic, "a")
        producer.commit_transaction(SECONDS)
    assert committed(broker, topic) == [["a"], [], []]


def test_preparing_that_takes_too_long_goes_on_and_may_be_given_up(broker: Broker, topic: str, version: int) -> None:
    with producer_of(broker, version) as producer:
        producer.begin_transaction()
        producer.send(topic, "a", partition=0).result(SECONDS)
        fault = broker.faults.error("Produce", ErrorCode.NOT_ENOUGH_REPLICAS, times=None)
        unsent = producer.send(topic, "b", partition=0)
        with pytest.raises(TimedOut, match="prepare_transaction"):
            producer.prepare_transaction(0.05)
        with pytest.raises(UsageError, match="is being prepared"):
            producer.send(topic, "c")
        assert fault.struck > 0
        broker.faults.clear()
        producer.abort_transaction(SECONDS)
        assert isinstance(unsent.exception(SECONDS), TransactionAborted) or unsent.exception() is None
        transact(producer, topic, 1)
    assert committed(broker, topic) == [["1"], ["1"], ["1"]]


def test_both_are_awaited_too(broker: Broker, topic: str) -> None:
    options: dict[str, Any] = {"bootstrap_servers": broker.bootstrap_servers}

    async def run() -> None:
        async with AsyncProducer(**options, transactional_id=new_id()) as producer:
            await producer.init_transactions()
            await producer.begin_transaction()
            await producer.send(topic, "a", partition=0)
            prepared = await producer.prepare_transaction()
        async with AsyncAdminClient(**options) as admin:
            await admin.end_transactions([prepared], commit=True)

    asyncio.run(run())
    assert committed(broker, topic) == [["a"], [], []]
