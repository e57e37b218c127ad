"""InitProducerId for idempotent producers: a new id each time, whatever was sent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kbroker.errors import ErrorCode
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from tests.kit.brokers.small import SmallBroker
from tests.kit.clients.wire import WireClient


def ask(client: WireClient, version: int, **fields: Any) -> tuple[int, int, int]:
    """Ask for a producer id; return (error code, producer id, producer epoch)."""
    request = M.InitProducerIdRequest(**({"transactional_id": None, "transaction_timeout_ms": 60_000} | fields))
    answer = client.call(ApiKey.INIT_PRODUCER_ID, version, request)
    return answer.error_code, answer.producer_id, answer.producer_epoch


def test_every_answer_is_a_new_id_with_epoch_0(client: WireClient) -> None:
    answers = [ask(client, version) for version in range(6) for _ in range(3)]
    assert {(error, epoch) for error, _, epoch in answers} == {(0, 0)}
    assert len({producer_id for _, producer_id, _ in answers}) == len(answers)


@pytest.mark.parametrize("version", range(3, 6))
def test_a_producer_that_has_an_id_gets_another(client: WireClient, version: int) -> None:
    _, old, _ = ask(client, version)
    error, new, epoch = ask(client, version, producer_id=old, producer_epoch=3)
    assert (error, epoch) == (0, 0)
    assert new not in (-1, old)


@pytest.mark.parametrize("version", range(3, 6))
def test_an_id_without_an_epoch_is_refused(client: WireClient, version: int) -> None:
    for fields in ({"producer_id": 7}, {"producer_epoch": 3}):
        assert ask(client, version, **fields) == (ErrorCode.INVALID_REQUEST, -1, -1)


def test_ids_do_not_repeat_after_a_restart(tmp_path: Path) -> None:
    given = []
    for _ in range(3):
        with SmallBroker(tmp_path) as broker, WireClient("127.0.0.1", broker.port) as client:
            given += [ask(client, 4)[1] for _ in range(5)]
    assert len(set(given)) == 15
