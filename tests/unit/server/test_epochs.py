"""Transactions with their own epoch (KIP-890, part 2), over the wire."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest

from kbroker.errors import ErrorCode
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from tests.kit.brokers.process import BrokerProcess
from tests.kit.clients.epoch_producer import EpochProducer, Refused
from tests.kit.clients.wire import WireClient
from tests.unit.server.test_transactions import PARTITIONS, SETTINGS, read, state


@pytest.fixture(scope="module")
def shared() -> Iterator[BrokerProcess]:
    with BrokerProcess(SETTINGS) as started:
        yield started


def new_topic(broker: BrokerProcess) -> str:
    topic = f"topic-{uuid4().hex[:8]}"
    wanted = M.CreateTopicsRequest.CreatableTopic(name=topic, num_partitions=PARTITIONS, replication_factor=1)
    with WireClient("127.0.0.1", broker.port) as client:
        (made,) = client.call(ApiKey.CREATE_TOPICS, 5, M.CreateTopicsRequest(topics=[wanted])).topics
    assert made.error_code == 0
    return topic


def new_producer(broker: BrokerProcess, **fields: Any) -> EpochProducer:
    made = EpochProducer(broker.port, f"id-{uuid4().hex[:8]}", **fields)
    made.init()
    return made


def offset_of(broker: BrokerProcess, group: str, topic: str) -> int:
    R = M.OffsetFetchRequest
    asked = R(group_id=group, topics=[R.OffsetFetchRequestTopic(name=topic, partition_indexes=[0])])
    with WireClient("127.0.0.1", broker.port) as client:
        (found,) = client.call(ApiKey.OFFSET_FETCH, 7, asked).topics[0].partitions
    return int(found.committed_offset)


@pytest.mark.parametrize("version", range(5))
def test_the_feature_of_transactions_is_reported_as_kafka_4_does(shared: BrokerProcess, version: int) -> None:
    asked = M.ApiVersionsRequest(client_software_name="test", client_software_version="1")
    with WireClient("127.0.0.1", shared.port) as client:
        answer = client.call(ApiKey.API_VERSIONS, version, asked)
    supported = [(one.name, one.min_version, one.max_version) for one in answer.supported_features]
    finalized = [(one.name, one.min_version_level, one.max_version_level) for one in answer.finalized_features]
    assert supported == ([("transaction.version", 0, 2)] if version >= 4 else [])
    assert finalized == ([("transaction.version", 2, 2)] if version >= 3 else [])
    assert answer.finalized_features_epoch == (0 if version >= 3 else -1)


def every_step(broker: BrokerProcess, made: EpochProducer, topic: str, before: Callable[[], None]) -> None:
    """Run two transactions with offsets, the first aborted; `before` is called before each step."""
    for commit, prefix in ((False, b"x"), (True, b"a")):
        for number in range(2):
            for partition in range(PARTITIONS):
                before()
                made.send(topic, partition, [prefix + b"%d" % number])
        before()
        made.commit_offsets(f"g-{topic}", topic, {0: 7 if commit else 5})
        before()
        made.end(commit)
    before()
    assert read(broker, topic) == [["a0", "a1"]] * PARTITIONS
    assert read(broker, topic, "read_uncommitted") == [["x0", "x1", "a0", "a1"]] * PARTITIONS
    assert offset_of(broker, f"g-{topic}", topic) == 7
    assert (made.epoch, state(broker, made.id).producer_epoch) == (2, 2)


@pytest.mark.parametrize("verification", [True, False])
@pytest.mark.parametrize("durable", [False, True])
def test_transactions_are_seen_whole_or_not_at_all(durable: bool, verification: bool) -> None:
    settings = {**SETTINGS, "transaction.partition.verification.enable": str(verification).lower()}
    with BrokerProcess(settings | ({"log.flush.interval.messages": 1} if durable else {})) as broker:
        every_step(broker, new_producer(broker), new_topic(broker), lambda: None)


def test_a_broker_that_is_killed_before_any_step_goes_on_with_the_transaction() -> None:
    with BrokerProcess(SETTINGS) as broker:

        def kill() -> None:
            broker.kill()
            broker.start()

        every_step(broker, new_producer(broker), new_topic(broker), kill)


def test_a_late_batch_does_not_get_into_the_next_transaction(shared: BrokerProcess) -> None:
    topic, made = new_topic(shared), new_producer(shared)
    made.send(topic, 0, [b"x"])
    late = EpochProducer(shared.port, made.id)
    late.producer_id, late.epoch, late.sequences = made.producer_id, made.epoch, dict(made.sequences)
    made.end(False)
    for turn in range(2):
        for partition in (0, 1):  # where the transaction was, and where it was not
            with pytest.raises(Refused) as refused:
                late.send(topic, partition, [b"late"])
            assert refused.value.code is ErrorCode.INVALID_PRODUCER_EPOCH
        if not turn:
            made.send(topic, 0, [b"a"])
    made.end(True)
    assert read(shared, topic)[0] == ["a"]


def test_a_second_producer_fences_the_first(shared: BrokerProcess) -> None:
    topic, first = new_topic(shared), new_producer(shared)
    first.send(topic, 0, [b"x"])
    second = EpochProducer(shared.port, first.id)
    second.init()
    second.send(topic, 0, [b"a"])
    for step, code in (
        (lambda: first.send(topic, 0, [b"late"]), ErrorCode.INVALID_PRODUCER_EPOCH),
        (lambda: first.end(True), ErrorCode.PRODUCER_FENCED),
        (lambda: first.commit_offsets("g", topic, {0: 1}), ErrorCode.INVALID_PRODUCER_EPOCH),
    ):
        with pytest.raises(Refused) as refused:
            step()
        assert refused.value.code is code
    second.end(True)
    assert read(shared, topic)[0] == ["a"]


def test_a_transaction_that_takes_too_long_is_aborted(shared: BrokerProcess) -> None:
    topic, made = new_topic(shared), new_producer(shared, timeout_ms=200)
    made.send(topic, 0, [b"x"])
    with WireClient("127.0.0.1", shared.port) as client:
        asked = M.FetchRequest.FetchTopic(topic=topic, partitions=[M.FetchRequest.FetchPartition(partition=0)])
        while state(shared, made.id).transaction_state != "CompleteAbort":  # each look waits for what there is to read
            client.call(ApiKey.FETCH, 11, M.FetchRequest(topics=[asked], max_wait_ms=100, min_bytes=1 << 20))
    with pytest.raises(Refused):
        made.end(True)
    made.init()
    made.send(topic, 0, [b"a"])
    made.end(True)
    assert read(shared, topic)[0] == ["a"]
