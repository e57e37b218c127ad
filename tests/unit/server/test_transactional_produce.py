"""Batches of transactions over the wire: who is asked before the first one, and what consumers get (KIP-98, 890)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kbroker.errors import ErrorCode
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from kbroker.protocol.records import encode_batch
from kbroker.server.handlers.produce import code_for_version
from kbroker.storage.log import Log
from tests.kit.clients.wire import WireClient
from tests.kit.logs.committed import committed_records
from tests.kit.parts.processors import ProcessorRig

PRODUCER = 4000
NEWEST = 11
NOW_MS = time.time_ns() // 1_000_000


class Coordinator:
    """A coordinator that gives the answers of the test, and calls something before each."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int, int, list[tuple[str, int]]]] = []
        self.answers: dict[int, ErrorCode] = {}
        self.meanwhile: Any = lambda: None

    def verify(
        self, transactional_id: str, producer_id: int, epoch: int, partitions: list[tuple[str, int]]
    ) -> list[ErrorCode]:
        self.asked.append((transactional_id, producer_id, epoch, partitions))
        self.meanwhile()
        return [self.answers.get(partition_id, ErrorCode.NONE) for _, partition_id in partitions]


@pytest.fixture
def coordinator() -> Coordinator:
    return Coordinator()


@pytest.fixture
def rig(tmp_path: Path, coordinator: Coordinator) -> Iterator[ProcessorRig]:
    with ProcessorRig(tmp_path / "logs") as rig:
        rig.verify = coordinator.verify
        yield rig


@pytest.fixture
def logs(rig: ProcessorRig) -> list[Log]:
    return rig.create("orders", 3)


@pytest.fixture
def client(rig: ProcessorRig) -> Iterator[WireClient]:
    with rig.connect() as client:
        yield client


def batch(sequence: int, *, epoch: int = 0, producer_id: int = PRODUCER, count: int = 1) -> bytes:
    return encode_batch(
        [(NOW_MS, None, b"v")] * count,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        is_transactional=True,
    )


def produce(
    client: WireClient, batches: dict[int, bytes], *, version: int = NEWEST, transactional_id: str | None = "mine"
) -> list[Any]:
    """Produce; return the answers by partition."""
    request = M.ProduceRequest(
        transactional_id=transactional_id,
        acks=-1,
        timeout_ms=1000,
        topic_data=[
            M.ProduceRequest.TopicProduceData(
                name="orders",
                partition_data=[
                    M.ProduceRequest.PartitionProduceData(index=at, records=data) for at, data in batches.items()
                ],
            )
        ],
    )
    return list(client.call(ApiKey.PRODUCE, version, request).responses[0].partition_responses)


def codes(answers: list[Any]) -> list[ErrorCode]:
    return [ErrorCode(answer.error_code) for answer in answers]


# --- verification -----------------------------------------------------------------------------------------


def test_the_coordinator_is_asked_once_for_all_partitions_where_a_transaction_begins(
    client: WireClient, logs: list[Log], coordinator: Coordinator
) -> None:
    assert codes(produce(client, {0: batch(0), 2: batch(0)})) == [ErrorCode.NONE] * 2
    assert coordinator.asked == [("mine", PRODUCER, 0, [("orders", 0), ("orders", 2)])]
    assert codes(produce(client, {0: batch(1), 2: batch(1), 1: batch(0)})) == [ErrorCode.NONE] * 3
    assert coordinator.asked[1:] == [("mine", PRODUCER, 0, [("orders", 1)])]
    logs[0].append_marker(PRODUCER, 0, 0, commit=True)
    assert codes(produce(client, {0: batch(2)})) == [ErrorCode.NONE]
    assert coordinator.asked[2:] == [("mine", PRODUCER, 0, [("orders", 0)])]


def test_of_a_transaction_with_an_epoch_of_its_own_only_the_first_batch_is_asked_about(
    client: WireClient, logs: list[Log], coordinator: Coordinator
) -> None:
    for epoch in range(2):
        for sequence in range(3):
            sent = produce(client, {0: batch(sequence, epoch=epoch)}, version=12)
            assert codes(sent) == [ErrorCode.NONE]
        logs[0].append_marker(PRODUCER, epoch + 1, 0, commit=True, bumped=True)
    assert coordinator.asked == [("mine", PRODUCER, epoch, [("orders", 0)]) for epoch in range(2)]


@pytest.mark.parametrize("version", range(3, 13))
def test_what_the_coordinator_does_not_know_is_not_appended(
    client: WireClient, logs: list[Log], coordinator: Coordinator, version: int
) -> None:
    coordinator.answers[1] = ErrorCode.INVALID_TXN_STATE
    first, second = produce(client, {0: batch(0), 1: batch(0)}, version=version)
    assert (first.error_code, second.error_code) == (ErrorCode.NONE, ErrorCode.INVALID_TXN_STATE)
    assert second.log_start_offset == -1
    assert (second.error_message is not None) == (version >= 8)
    assert (logs[0].log_end_offset, logs[1].log_end_offset) == (1, 0)


def test_errors_of_the_coordinator_are_told_as_a_producer_of_that_version_knows_them() -> None:
    told = {
        (error, version): code_for_version(error, version)
        for error in (
            ErrorCode.NONE, ErrorCode.PRODUCER_FENCED, ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.NOT_COORDINATOR,
            ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        )
        for version in (10, 11, 12)
    }  # fmt: skip
    assert told == {
        (ErrorCode.NONE, 10): ErrorCode.NONE,
        (ErrorCode.NONE, 11): ErrorCode.NONE,
        (ErrorCode.PRODUCER_FENCED, 10): ErrorCode.INVALID_PRODUCER_EPOCH,
        (ErrorCode.PRODUCER_FENCED, 11): ErrorCode.INVALID_PRODUCER_EPOCH,
        (ErrorCode.TRANSACTION_ABORTABLE, 10): ErrorCode.INVALID_TXN_STATE,
        (ErrorCode.TRANSACTION_ABORTABLE, 11): ErrorCode.TRANSACTION_ABORTABLE,
        (ErrorCode.NOT_COORDINATOR, 10): ErrorCode.NOT_ENOUGH_REPLICAS,
        (ErrorCode.NOT_COORDINATOR, 11): ErrorCode.NOT_ENOUGH_REPLICAS,
        (ErrorCode.CONCURRENT_TRANSACTIONS, 10): ErrorCode.NOT_ENOUGH_REPLICAS,
        (ErrorCode.CONCURRENT_TRANSACTIONS, 11): ErrorCode.NOT_ENOUGH_REPLICAS,
        (ErrorCode.INVALID_PRODUCER_ID_MAPPING, 10): ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        (ErrorCode.INVALID_PRODUCER_ID_MAPPING, 11): ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        (ErrorCode.NONE, 12): ErrorCode.NONE,
        (ErrorCode.PRODUCER_FENCED, 12): ErrorCode.INVALID_PRODUCER_EPOCH,
        (ErrorCode.TRANSACTION_ABORTABLE, 12): ErrorCode.TRANSACTION_ABORTABLE,
        (ErrorCode.NOT_COORDINATOR, 12): ErrorCode.NOT_ENOUGH_REPLICAS,
        (ErrorCode.CONCURRENT_TRANSACTIONS, 12): ErrorCode.CONCURRENT_TRANSACTIONS,
        (ErrorCode.INVALID_PRODUCER_ID_MAPPING, 12): ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    }


def test_a_marker_between_the_question_and_the_append_makes_the_answer_worthless(
    client: WireClient, logs: list[Log], coordinator: Coordinator
) -> None:
    coordinator.meanwhile = lambda: logs[0].append_marker(PRODUCER, 0, 0, commit=False)
    assert codes(produce(client, {0: batch(0)})) == [ErrorCode.INVALID_TXN_STATE]
    assert logs[0].active_producers()[0].transaction_start_offset == -1
    # Of another producer it means nothing.
    coordinator.meanwhile = lambda: logs[0].append_marker(PRODUCER + 1, 0, 0, commit=False)
    assert codes(produce(client, {0: batch(0)})) == [ErrorCode.NONE]


def test_a_transaction_that_ends_while_another_partition_is_asked_about_is_over(
    client: WireClient, logs: list[Log], coordinator: Coordinator
) -> None:
    assert codes(produce(client, {1: batch(0)})) == [ErrorCode.NONE]
    coordinator.meanwhile = lambda: logs[1].append_marker(PRODUCER, 0, 0, commit=True)
    answers = produce(client, {0: batch(0), 1: batch(1)})
    assert codes(answers) == [ErrorCode.NONE, ErrorCode.INVALID_TXN_STATE]
    assert (logs[0].log_end_offset, logs[1].log_end_offset) == (1, 2)


def test_a_batch_does_not_go_before_one_that_was_refused_while_it_was_asked_about(
    client: WireClient, logs: list[Log], coordinator: Coordinator
) -> None:
    """KAFKA-14884: otherwise the batch before it would come too late, however often it is sent again."""
    coordinator.answers[0] = ErrorCode.NOT_ENOUGH_REPLICAS
    assert codes(produce(client, {0: batch(0)})) == [ErrorCode.NOT_ENOUGH_REPLICAS]
    coordinator.answers.clear()
    assert codes(produce(client, {0: batch(1)})) == [ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER]
    assert codes(produce(client, {0: batch(0)})) == [ErrorCode.NONE]
    assert codes(produce(client, {0: batch(1)})) == [ErrorCode.NONE]
    assert logs[0].log_end_offset == 2


def test_answers_that_are_not_for_every_partition_are_none(
    rig: ProcessorRig, client: WireClient, logs: list[Log], capfd: pytest.CaptureFixture[str]
) -> None:
    rig.verify = lambda *asked: [ErrorCode.NONE] * 2
    assert codes(produce(client, {0: batch(0)})) == [ErrorCode.INVALID_TXN_STATE]
    assert "2 answers for 1 partitions" in capfd.readouterr().err
    assert logs[0].log_end_offset == 0


def test_where_nobody_can_be_asked_nothing_begins(rig: ProcessorRig, client: WireClient, logs: list[Log]) -> None:
    rig.verify = None
    assert codes(produce(client, {0: batch(0)})) == [ErrorCode.INVALID_TXN_STATE]
    assert logs[0].log_end_offset == 0


def test_nobody_is_asked_where_the_broker_is_told_not_to(rig: ProcessorRig, coordinator: Coordinator) -> None:
    rig.create("orders", 1, verify_transactions=False)
    with rig.connect() as client:
        assert codes(produce(client, {0: batch(0)})) == [ErrorCode.NONE]
    assert coordinator.asked == []


def test_one_request_is_of_one_producer(client: WireClient, logs: list[Log], coordinator: Coordinator) -> None:
    mapping = [ErrorCode.INVALID_PRODUCER_ID_MAPPING] * 2
    assert codes(produce(client, {0: batch(0), 1: batch(0, producer_id=1)})) == mapping
    assert codes(produce(client, {0: batch(0), 1: batch(0, epoch=1)})) == mapping
    foreign = [ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED]
    assert codes(produce(client, {0: batch(0)}, transactional_id=None)) == foreign
    assert coordinator.asked == []


# --- what consumers see -----------------------------------------------------------------------------------


def fetch(
    rig: ProcessorRig, client: WireClient, offset: int, *, committed: bool, version: int = NEWEST, **fields: Any
) -> Any:
    request = rig.fetch_request("orders", offset, isolation_level=int(committed), **fields)
    return client.call(ApiKey.FETCH, version, request).responses[0].partitions[0]


@pytest.mark.parametrize("version", range(4, 13))
def test_who_reads_committed_records_is_told_what_was_aborted(
    rig: ProcessorRig, client: WireClient, logs: list[Log], version: int
) -> None:
    assert fetch(rig, client, 0, committed=True, version=version).aborted_transactions == []
    assert fetch(rig, client, 0, committed=False, version=version).aborted_transactions is None
    produce(client, {0: batch(0)})
    produce(client, {0: batch(0, producer_id=1, count=2)})
    logs[0].append_marker(1, 0, 0, commit=False)
    told = fetch(rig, client, 0, committed=True, version=version)
    assert (told.high_watermark, told.last_stable_offset, told.records) == (4, 0, b"")
    assert told.aborted_transactions == []
    logs[0].append_marker(PRODUCER, 0, 0, commit=True)
    told = fetch(rig, client, 0, committed=True, version=version)
    assert (told.high_watermark, told.last_stable_offset) == (5, 5)
    aborted = [(at.producer_id, at.first_offset) for at in told.aborted_transactions]
    assert aborted == [(1, 1)]
    records, end = committed_records(told.records, aborted, 0)
    assert ([record.offset for record in records], end) == ([0], 5)
    told = fetch(rig, client, 4, committed=True, version=version)
    assert told.aborted_transactions == []
    assert fetch(rig, client, 0, committed=False, version=version).aborted_transactions is None


def test_the_end_of_a_transaction_answers_who_waits_for_committed_records(
    rig: ProcessorRig, client: WireClient, logs: list[Log]
) -> None:
    produce(client, {0: batch(0)})
    with rig.connect() as reader:
        request = rig.fetch_request("orders", 0, isolation_level=1, max_wait_ms=60_000)
        asked = reader.send(ApiKey.FETCH, NEWEST, request)
        produce(client, {0: batch(1)})
        assert logs[0].state.last_stable_offset == 0
        logs[0].append_marker(PRODUCER, 0, 0, commit=True)
        told = reader.receive(ApiKey.FETCH, NEWEST, asked).responses[0].partitions[0]
    assert (told.last_stable_offset, told.high_watermark) == (3, 3)


def test_records_behind_an_open_transaction_do_not_answer_who_waits_for_committed_ones(
    rig: ProcessorRig, client: WireClient, logs: list[Log]
) -> None:
    produce(client, {0: batch(0)})
    with rig.connect() as reader:
        request = rig.fetch_request("orders", 0, isolation_level=1, max_wait_ms=300)
        asked = reader.send(ApiKey.FETCH, NEWEST, request)
        logs[0].append(encode_batch([(NOW_MS, None, b"other")]))
        told = reader.receive(ApiKey.FETCH, NEWEST, asked).responses[0].partitions[0]
    assert (told.records, told.last_stable_offset) == (b"", 0)
