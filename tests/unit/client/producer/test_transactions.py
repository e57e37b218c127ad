"""Transactional producers against kbroker, as it is with errors, lost requests and lost answers."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from kbroker.client import AdminClient, ConsumerGroupMetadata, Producer
from kbroker.client.consumer.group_metadata import OffsetAndMetadata
from kbroker.client.errors import BrokerError, ClientClosed, ClientError, TimedOut, UsageError
from kbroker.client.producer.errors import (
    ProducerFenced,
    TransactionAborted,
    TransactionFailed,
    TransactionMustAbort,
)
from kbroker.errors import ErrorCode
from kbroker.testing import Broker
from tests.kit.clients.transactions import (
    QUICK,
    SECONDS,
    committed,
    committed_offset,
    new_id,
    producer_of,
    send,
    transact,
)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(faults=True, settings={"num.partitions": 3}) as started:
        yield started


@pytest.fixture(autouse=True)
def no_client_is_left(broker: Broker) -> Iterator[None]:
    """Not even of a producer that could not begin."""
    before = set(threading.enumerate())
    yield
    begun = set(threading.enumerate()) - before
    assert [each.name for each in begun if each.name.startswith("kbroker-client-")] == []


def test_what_is_committed_is_seen_and_what_is_aborted_is_not(broker: Broker, topic: str, version: int) -> None:
    with producer_of(broker, version) as producer:
        for round_ in range(4):
            producer.begin_transaction()
            send(producer, topic, *(f"{round_}.{i}" for i in range(6)))
            producer.flush(SECONDS) if round_ < 2 else None
            producer.commit_transaction(SECONDS) if round_ % 2 else producer.abort_transaction(SECONDS)
    assert committed(broker, topic) == [[f"{r}.{i + p}" for r in (1, 3) for i in (0, 3)] for p in range(3)]
    requests = {name: broker.faults.seen(name) for name in ("AddPartitionsToTxn", "EndTxn")}
    assert requests["EndTxn"] > 0
    assert (requests["AddPartitionsToTxn"] > 0) == (version == 1)
    broker.faults._seen.clear()


def test_an_empty_transaction_asks_nobody(broker: Broker, topic: str, version: int) -> None:
    with producer_of(broker, version) as producer:
        before = broker.faults.seen("EndTxn")
        for end in (producer.commit_transaction, producer.abort_transaction):
            producer.begin_transaction()
            end()
        assert broker.faults.seen("EndTxn") == before


def test_a_block_commits_and_an_exception_in_it_aborts(broker: Broker, topic: str) -> None:
    with producer_of(broker) as producer:
        with producer.transaction() as same:
            assert same is producer
            send(producer, topic, "a", "b")
        with pytest.raises(ZeroDivisionError), producer.transaction():
            send(producer, topic, "x", "y")
            raise ZeroDivisionError
        with producer.transaction():
            send(producer, topic, "c")
    assert committed(broker, topic) == [["a", "c"], ["b"], []]


def test_each_step_has_its_time(broker: Broker, topic: str) -> None:
    with Producer(bootstrap_servers=broker.bootstrap_servers) as plain:
        for call in (plain.init_transactions, plain.begin_transaction, plain.commit_transaction):
            with pytest.raises(UsageError, match=r"no transactional\.id"):
                call()
    with Producer(bootstrap_servers=broker.bootstrap_servers, transactional_id="steps", **QUICK) as producer:
        nothing = ConsumerGroupMetadata("g")

        def commit_offsets() -> None:
            producer.send_offsets_to_transaction({(topic, 0): 1}, nothing)

        for step in (producer.begin_transaction, producer.commit_transaction, producer.abort_transaction):
            with pytest.raises(UsageError, match="init_transactions has to be called first"):
                step()
        producer.init_transactions(SECONDS)
        with pytest.raises(UsageError, match="init_transactions: begin_transaction has to be called"):
            producer.init_transactions()
        for step in (producer.commit_transaction, producer.abort_transaction, commit_offsets):
            with pytest.raises(UsageError, match="begin_transaction has to be called first"):
                step()
        with pytest.raises(UsageError, match="begin_transaction has to be called first"):
            producer.send(topic, b"outside")
        producer.begin_transaction()
        with pytest.raises(UsageError, match="commit or abort it first"):
            producer.begin_transaction()
        with pytest.raises(ValueError, match="offset -1"):
            producer.send_offsets_to_transaction({(topic, 0): -1}, nothing)
        with pytest.raises(TypeError, match="not str"):
            producer.send_offsets_to_transaction({(topic, 0): 1}, "g")  # type: ignore[arg-type]
        producer.commit_transaction(SECONDS)
        with pytest.raises(UsageError, match="begin_transaction has to be called first"):
            producer.send_nowait(topic, b"outside")


@pytest.mark.parametrize(
    "options", [{"acks": 1}, {"enable_idempotence": False}, {"max_in_flight_requests_per_connection": 6}]
)
def test_options_that_transactions_do_not_go_with(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"transactional\.id needs"):
        Producer(bootstrap_servers="127.0.0.1:1", transactional_id="t", **options)


def test_a_zombie_is_fenced(broker: Broker, topic: str, version: int) -> None:
    name = new_id()
    with producer_of(broker, version, name) as zombie:
        zombie.begin_transaction()
        send(zombie, topic, "zombie")
        zombie.flush(SECONDS)
        with producer_of(broker, version, name) as heir, heir.transaction():
            send(heir, topic, "heir")
        with pytest.raises(ClientError) as raised:
            send(zombie, topic, "late")
            zombie.commit_transaction(SECONDS)
        if not isinstance(raised.value, ProducerFenced):
            with pytest.raises(ProducerFenced):
                zombie.abort_transaction(SECONDS)
        assert not raised.value.retriable
        with pytest.raises(ProducerFenced, match="close this producer"):
            zombie.send(topic, b"later still")
        for step in (zombie.begin_transaction, zombie.abort_transaction, zombie.commit_transaction):
            with pytest.raises(ProducerFenced):
                step()
    assert committed(broker, topic) == [["heir"], [], []]


@pytest.mark.parametrize("end", ["commit", "abort"])
def test_a_transaction_that_has_taken_too_long_is_aborted(topic: str, version: int, end: str) -> None:
    often = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": 50, "num.partitions": 3}
    with Broker(settings=often) as broker, producer_of(broker, version, transaction_timeout_ms=100) as producer:
        producer.begin_transaction()
        send(producer, topic, "late")
        producer.flush(SECONDS)
        pause, deadline = threading.Event(), time.monotonic() + SECONDS
        while "was open for longer" not in broker.log:
            assert time.monotonic() < deadline
            pause.wait(0.01)
        if end == "commit":
            with pytest.raises(TransactionFailed):
                producer.commit_transaction(SECONDS)
            assert committed(broker, topic) == [[], [], []]
            return
        producer.abort_transaction(SECONDS)  # nobody else has begun: the producer gets another epoch
        with producer.transaction():
            send(producer, topic, "next")
        assert committed(broker, topic) == [["next"], [], []]


def test_a_batch_that_is_refused_leaves_only_the_abort(broker: Broker, topic: str, version: int) -> None:
    with producer_of(broker, version) as producer:
        with producer.transaction():
            send(producer, topic, "before")
        producer.begin_transaction()
        kept = producer.send(topic, b"kept", partition=1)
        producer.flush(SECONDS)
        fault = broker.faults.error("Produce", "TOPIC_AUTHORIZATION_FAILED")
        refused = producer.send(topic, b"refused", partition=0)
        assert refused.exception(SECONDS).code == ErrorCode.TOPIC_AUTHORIZATION_FAILED  # type: ignore[union-attr]
        assert fault.struck == 1
        assert kept.exception(SECONDS) is None
        with pytest.raises(TransactionMustAbort, match=r"TOPIC_AUTHORIZATION_FAILED.*abort_transaction"):
            producer.send(topic, b"more")
        with pytest.raises(TransactionMustAbort):
            producer.send_offsets_to_transaction({(topic, 0): 1}, ConsumerGroupMetadata("g"))
        with pytest.raises(TransactionMustAbort) as raised:
            producer.commit_transaction(SECONDS)
        assert raised.value.__cause__ is refused.exception(0)
        producer.abort_transaction(SECONDS)
        with producer.transaction():
            send(producer, topic, "after", "after", "after")
    assert committed(broker, topic) == [["before", "after"], ["after"], ["after"]]


@pytest.mark.parametrize("code", [ErrorCode.INVALID_RECORD, ErrorCode.PRODUCER_FENCED])
@pytest.mark.parametrize("call", ["commit", "abort"])
def test_a_failure_that_is_heard_of_just_before_an_end_begins_counts(
    broker: Broker, topic: str, call: str, code: ErrorCode
) -> None:
    with producer_of(broker) as producer:
        producer.begin_transaction()
        send(producer, topic, "kept")
        producer.flush(SECONDS)
        transactions = producer._background.transactions
        assert transactions is not None

        async def race() -> None:
            ending = asyncio.ensure_future(getattr(transactions, call)())
            await asyncio.sleep(0)  # the end has been allowed, and not yet begun
            transactions.batch_failed(BrokerError("a batch", code=code), unsure=False)
            await ending

        if code == ErrorCode.PRODUCER_FENCED:
            with pytest.raises(ProducerFenced):
                producer._thread.call(race(), SECONDS)
        elif call == "commit":
            with pytest.raises(TransactionMustAbort):
                producer._thread.call(race(), SECONDS)
            producer.abort_transaction(SECONDS)
        else:
            producer._thread.call(race(), SECONDS)
    assert committed(broker, topic) == [[], [], []]


def test_a_commit_hears_that_its_partitions_are_refused(broker: Broker, topic: str) -> None:
    with producer_of(broker, 1) as producer:
        transact(producer, topic, 0)
        producer.begin_transaction()
        broker.faults.delay("AddPartitionsToTxn", 0.2, times=1)
        broker.faults.error("AddPartitionsToTxn", "TOPIC_AUTHORIZATION_FAILED")
        refused = producer.send(topic, b"refused", partition=0)
        with pytest.raises(TransactionMustAbort, match="TOPIC_AUTHORIZATION_FAILED"):
            producer.commit_transaction(SECONDS)  # waits for its records already
        assert isinstance(refused.exception(0), TransactionMustAbort)
        producer.abort_transaction(SECONDS)
    assert committed(broker, topic) == [["0"]] * 3


def test_an_abort_fails_what_was_not_sent(broker: Broker, topic: str, version: int) -> None:
    with producer_of(broker, version, linger_ms=60_000) as producer:
        producer.begin_transaction()
        waiting = producer.send(topic, b"waiting")
        producer.abort_transaction(SECONDS)
        assert isinstance(waiting.exception(0), TransactionAborted)
        with producer.transaction():
            send(producer, topic, "next")
    assert committed(broker, topic) == [["next"], [], []]


FATAL = {
    "InitProducerId": ["TRANSACTIONAL_ID_AUTHORIZATION_FAILED", "INVALID_TRANSACTION_TIMEOUT"],
    "AddPartitionsToTxn": [
        "PRODUCER_FENCED",
        "INVALID_PRODUCER_EPOCH",
        "INVALID_PRODUCER_ID_MAPPING",
        "INVALID_TXN_STATE",
    ],
    "AddOffsetsToTxn": ["INVALID_PRODUCER_ID_MAPPING", "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"],
    "TxnOffsetCommit": ["PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH"],
    "Produce": ["PRODUCER_FENCED", "INVALID_PRODUCER_ID_MAPPING", "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"],
    "EndTxn": ["PRODUCER_FENCED", "INVALID_TXN_STATE", "INVALID_PRODUCER_ID_MAPPING", "UNKNOWN_SERVER_ERROR"],
}
ABORTABLE = {
    "AddPartitionsToTxn": ["TOPIC_AUTHORIZATION_FAILED", "UNKNOWN_PRODUCER_ID", "TRANSACTION_ABORTABLE"],
    "AddOffsetsToTxn": ["GROUP_AUTHORIZATION_FAILED", "UNKNOWN_PRODUCER_ID"],
    "TxnOffsetCommit": [
        "GROUP_AUTHORIZATION_FAILED",
        "ILLEGAL_GENERATION",
        "UNKNOWN_MEMBER_ID",
        "FENCED_INSTANCE_ID",
        "STALE_MEMBER_EPOCH",
        "TRANSACTION_ABORTABLE",
        "OFFSET_METADATA_TOO_LARGE",
    ],
    "Produce": [
        "TRANSACTION_ABORTABLE",
        "INVALID_TXN_STATE",
        "INVALID_PRODUCER_EPOCH",
        "OUT_OF_ORDER_SEQUENCE_NUMBER",
        "UNKNOWN_PRODUCER_ID",
        "INVALID_RECORD",
        "MESSAGE_TOO_LARGE",
    ],
    "EndTxn": ["TRANSACTION_ABORTABLE", "UNKNOWN_PRODUCER_ID"],
}
OF_COORDINATORS = [
    "NOT_COORDINATOR",
    "COORDINATOR_NOT_AVAILABLE",
    "COORDINATOR_LOAD_IN_PROGRESS",
    "CONCURRENT_TRANSACTIONS",
]
RETRIABLE = {
    "InitProducerId": OF_COORDINATORS,
    "AddPartitionsToTxn": [*OF_COORDINATORS, "UNKNOWN_TOPIC_OR_PARTITION", "OPERATION_NOT_ATTEMPTED"],
    "AddOffsetsToTxn": OF_COORDINATORS,
    "TxnOffsetCommit": [*OF_COORDINATORS, "UNKNOWN_TOPIC_OR_PARTITION", "REQUEST_TIMED_OUT"],
    "EndTxn": OF_COORDINATORS,
    "FindCoordinator": ["COORDINATOR_NOT_AVAILABLE"],
    "Produce": ["CONCURRENT_TRANSACTIONS", "NOT_ENOUGH_REPLICAS", "NOT_LEADER_OR_FOLLOWER"],
}
APIS = ["InitProducerId", "AddPartitionsToTxn", "AddOffsetsToTxn", "TxnOffsetCommit", "EndTxn", "Produce"]
ONLY_VERSION_1 = ("AddPartitionsToTxn", "AddOffsetsToTxn")


def cases(apis: Iterable[str]) -> list[tuple[int, str]]:
    return [(version, api) for api in apis for version in (1, 2) if version == 1 or api not in ONLY_VERSION_1]


@pytest.mark.parametrize(("version", "api"), cases(RETRIABLE))
def test_what_is_retriable_is_tried_again(broker: Broker, topic: str, version: int, api: str) -> None:
    with producer_of(broker, version) as producer:
        transact(producer, topic, 0)
        for number, code in enumerate(RETRIABLE[api], 1):
            fault = broker.faults.error(api, code, times=2)
            if api in ("InitProducerId", "FindCoordinator"):
                with producer_of(broker, version) as other:
                    transact(other, topic, number)
            else:
                transact(producer, topic, number)
            assert fault.struck == 2
    assert committed(broker, topic) == [[f"{number}" for number in range(1 + len(RETRIABLE[api]))]] * 3
    assert committed_offset(broker, topic) == 1 + len(RETRIABLE[api])


@pytest.mark.parametrize(("version", "api"), cases(ABORTABLE))
def test_what_is_abortable_leaves_a_producer_that_can_go_on(broker: Broker, topic: str, version: int, api: str) -> None:
    with producer_of(broker, version) as producer:
        transact(producer, topic, 0)
        for number, code in enumerate(ABORTABLE[api]):
            fault = broker.faults.error(api, code)
            with pytest.raises(TransactionMustAbort, match=code):
                transact(producer, topic, 10 * number + 5)
            assert fault.struck == 1
            producer.abort_transaction(SECONDS)
            assert committed_offset(broker, topic) == 10 * number + 1
            transact(producer, topic, 10 * number + 10)
    assert committed(broker, topic) == [[f"{10 * number}" for number in range(1 + len(ABORTABLE[api]))]] * 3


@pytest.mark.parametrize(("version", "api"), cases(FATAL))
def test_what_is_fatal_ends_the_producer(broker: Broker, topic: str, version: int, api: str) -> None:
    for code in FATAL[api]:
        with producer_of(broker, version) as producer:
            fault = broker.faults.error(api, code)
            with pytest.raises(TransactionFailed, match=code) as raised:
                if api == "InitProducerId":
                    with producer_of(broker, version) as other:
                        transact(other, topic, 1)
                else:
                    transact(producer, topic, 1)
            assert fault.struck == 1
            assert isinstance(raised.value, ProducerFenced) == (code in ("PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH"))
            if api != "InitProducerId":
                for step in (producer.abort_transaction, producer.begin_transaction, producer.commit_transaction):
                    with pytest.raises(TransactionFailed, match=code):
                        step()


@pytest.mark.parametrize("handled", [False, True], ids=["request lost", "answer lost"])
@pytest.mark.parametrize(("version", "api"), cases(APIS))
def test_a_lost_request_or_answer_changes_nothing(
    broker: Broker, topic: str, version: int, api: str, handled: bool
) -> None:
    with producer_of(broker, version) as producer:
        transact(producer, topic, 0)
        fault = broker.faults.drop(api, times=2, handled=handled)
        if api == "InitProducerId":
            with producer_of(broker, version) as other:
                transact(other, topic, 1)
        else:
            transact(producer, topic, 1)
        assert fault.struck == 2
        producer.begin_transaction()
        send(producer, topic, "x", "x", "x")
        fault = broker.faults.drop("EndTxn", handled=handled)
        producer.abort_transaction(SECONDS)
        transact(producer, topic, 2)
    assert committed(broker, topic) == [["0", "1", "2"]] * 3
    assert committed_offset(broker, topic) == 3


def test_an_end_goes_on_when_its_caller_has_no_more_time(broker: Broker, topic: str, version: int) -> None:
    with producer_of(broker, version) as producer:
        producer.begin_transaction()
        send(producer, topic, "a")
        producer.flush(SECONDS)
        broker.faults.delay("EndTxn", 0.5, times=1)
        with pytest.raises(TimedOut):
            producer.commit_transaction(0.1)
        with pytest.raises(UsageError, match="commit_transaction has not ended"):
            producer.abort_transaction(SECONDS)
        producer.commit_transaction(SECONDS)
    assert committed(broker, topic) == [["a"], [], []]


def test_a_commit_whose_flush_has_no_time_can_be_aborted(broker: Broker, topic: str, version: int) -> None:
    with producer_of(broker, version) as producer:
        transact(producer, topic, 0)
        producer.begin_transaction()
        fault = broker.faults.error("Produce", "NOT_ENOUGH_REPLICAS", times=None)
        send(producer, topic, "x")
        with pytest.raises(TimedOut):
            producer.commit_transaction(0.2)
        fault.left = 1
        producer.abort_transaction(SECONDS)
        transact(producer, topic, 1)
    assert committed(broker, topic) == [["0", "1"]] * 3


def test_offsets_with_their_metadata_and_a_consumer_that_is_a_zombie(broker: Broker, topic: str, version: int) -> None:
    group = f"g-{topic}"
    with producer_of(broker, version) as producer:
        with producer.transaction():
            send(producer, topic, "a", "b", "c")
            offsets = {(topic, 0): OffsetAndMetadata(1, "noted"), (topic, 1): OffsetAndMetadata(1)}
            producer.send_offsets_to_transaction(offsets, ConsumerGroupMetadata(group))
        producer.begin_transaction()
        with pytest.raises(TransactionMustAbort, match=r"UNKNOWN_MEMBER_ID|ILLEGAL_GENERATION"):
            producer.send_offsets_to_transaction({(topic, 0): 2}, ConsumerGroupMetadata(group, 7, "gone"))
        producer.abort_transaction(SECONDS)
    with AdminClient(bootstrap_servers=broker.bootstrap_servers) as admin:  # confluent-kafka reads past metadata's end
        assert admin.committed(group) == offsets


def test_closing_aborts_what_is_open(broker: Broker, topic: str, version: int) -> None:
    name = new_id()
    producer = producer_of(broker, version, name)
    producer.begin_transaction()
    send(producer, topic, "a", "b", "c")
    producer.flush(SECONDS)
    before = broker.faults.seen("EndTxn")
    producer.close(SECONDS)
    assert broker.faults.seen("EndTxn") == before + 1
    assert committed(broker, topic) == [[], [], []]
    with pytest.raises(ClientClosed):
        producer.begin_transaction()


def test_closing_with_a_broker_that_is_gone_is_bounded(topic: str) -> None:
    with Broker(settings={"num.partitions": 3}) as broker:
        producer = producer_of(broker)
        producer.begin_transaction()
        send(producer, topic, "a")
        producer.flush(SECONDS)
    started = time.monotonic()
    producer.close(0.5)
    assert time.monotonic() - started < 15
