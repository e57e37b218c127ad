"""Which part of Produce the processor does, and which part handlers do: a waiting request must not hold up others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from kbroker.errors import ErrorCode
from kbroker.model import TopicPartition
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from kbroker.protocol.records import encode_batch
from kbroker.server.dispatch import LARGE_REQUEST_SIZE
from kbroker.server.handlers.shared.services import Services
from kbroker.transactions.verifier import LocalVerifier
from tests.kit.brokers.small import SmallBroker
from tests.kit.clients.wire import WireClient
from tests.kit.parts.processors import produce_request

VERSION = 11
HANDLERS = 4


class Coordinator:
    """A coordinator that says of every transaction that it includes every partition."""

    def verify(
        self, _transactional_id: str, _producer_id: int, _epoch: int, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, ErrorCode]:
        return dict.fromkeys(partitions, ErrorCode.NONE)


class BrokerWithCoordinator(SmallBroker):
    def _services(self, **parts: Any) -> Services:
        coordinator = Coordinator()
        return super()._services(verifier=LocalVerifier(lambda: coordinator), **parts)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[SmallBroker]:
    with BrokerWithCoordinator(tmp_path) as broker:
        for name in ("open", "closed"):
            broker.create_topic(name, 1)
        yield broker


@pytest.fixture
def client(broker: SmallBroker) -> Iterator[WireClient]:
    with WireClient("127.0.0.1", broker.port) as client:
        yield client


def batch(sequence: int = -1, size: int = 1) -> bytes:
    """Return a batch; with a sequence it is one of a transaction."""
    if sequence < 0:
        return encode_batch([(0, None, bytes(size))])
    return encode_batch(
        [(0, None, bytes(size))], producer_id=7, producer_epoch=0, base_sequence=sequence, is_transactional=True
    )


def transaction(*topics: str, size: int = 1) -> M.ProduceRequest:
    """Return a request that begins a transaction in each of the topics."""
    request = produce_request(topics[0], batch(0, size))
    request.transactional_id = "mine"
    request.topic_data = [produce_request(topic, batch(0, size)).topic_data[0] for topic in topics]
    return request


def codes(answer: M.ProduceResponse) -> list[int]:
    return [topic.partition_responses[0].error_code for topic in answer.responses]


def served_beside(broker: SmallBroker) -> None:
    """Check that the same processor serves another client, twice: by then it has seen what came before."""
    with WireClient("127.0.0.1", broker.port) as other:
        for _ in range(2):
            assert codes(other.call(ApiKey.PRODUCE, VERSION, produce_request("open", batch()))) == [0]


def test_a_log_is_not_opened_by_the_processor(broker: SmallBroker, client: WireClient) -> None:
    with broker.held_closed("closed", 0):
        asked = client.send(ApiKey.PRODUCE, VERSION, produce_request("closed", batch()))
        served_beside(broker)
    assert codes(client.receive(ApiKey.PRODUCE, VERSION, asked)) == [0]


@pytest.mark.parametrize("topics", [("open", "closed"), ("closed", "open"), ("closed",)])
def test_a_log_is_not_opened_by_the_processor_for_a_transaction_either(
    broker: SmallBroker, client: WireClient, topics: tuple[str, ...]
) -> None:
    with broker.held_closed("closed", 0):
        asked = client.send(ApiKey.PRODUCE, VERSION, transaction(*topics))
        served_beside(broker)
    assert codes(client.receive(ApiKey.PRODUCE, VERSION, asked)) == [0] * len(topics)
    assert [broker.log(topic, 0).state.first_undecided_offset < 1 << 62 for topic in topics] == [True] * len(topics)


def test_a_segment_is_not_rolled_by_the_processor_for_a_transaction(broker: SmallBroker, client: WireClient) -> None:
    broker.create_topic("full", 1, segment_bytes=100)
    broker.log("full", 0).append(batch())
    with broker.log("full", 0)._lock:
        asked = client.send(ApiKey.PRODUCE, VERSION, transaction("open", "full"))
        served_beside(broker)
    assert codes(client.receive(ApiKey.PRODUCE, VERSION, asked)) == [0, 0]


@pytest.mark.parametrize("size", [1, 2 * LARGE_REQUEST_SIZE])
def test_whose_transaction_begins_does_not_wait_for_a_handler(
    broker: SmallBroker, client: WireClient, size: int
) -> None:
    """All handlers are kept busy by as many requests, taken in the channel's order."""
    with ExitStack() as stack:
        busy = [stack.enter_context(WireClient("127.0.0.1", broker.port)) for _ in range(HANDLERS)]
        with broker.held_closed("closed", 0):
            asked = [each.send(ApiKey.PRODUCE, VERSION, produce_request("closed", batch())) for each in busy]
            served_beside(broker)
            assert codes(client.call(ApiKey.PRODUCE, VERSION, transaction("open", size=size))) == [0]
        for each, correlation_id in zip(busy, asked, strict=True):
            assert codes(each.receive(ApiKey.PRODUCE, VERSION, correlation_id)) == [0]
