"""What an exactly-once stream keeps with a broker: decisions, and who may make them."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest

from kbroker.client import AdminClient, Producer, ProducerFenced
from kbroker.spark.errors import SinkFailed
from kbroker.spark.writing.sink_ledger import SinkLedger
from kbroker.spark.writing.sink_state import Winner, attempt_id, driver_id
from kbroker.testing import Broker
from tests.kit.spark.sink_query import committed, open_transactions


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    with Broker() as broker:
        broker.create_topic("sink")
        yield broker.bootstrap_servers


@pytest.fixture(scope="module")
def admin(servers: str) -> Iterator[AdminClient]:
    with AdminClient(bootstrap_servers=servers) as made:
        yield made


@pytest.fixture
def query() -> str:
    return uuid4().hex[:8]


@pytest.fixture
def ledger(admin: AdminClient, query: str) -> SinkLedger:
    return SinkLedger(admin, query, "sink")


def driver(servers: str, query: str) -> Producer:
    made = Producer(bootstrap_servers=servers, transactional_id=driver_id(query))
    made.init_transactions()
    return made


def attempt(servers: str, ledger: SinkLedger, query: str, batch_id: int, task: int, number: int = 0) -> Winner:
    """Writes the task's number and leaves its transaction prepared."""
    with Producer(bootstrap_servers=servers, transactional_id=attempt_id(query, task, number)) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send_nowait("sink", b"%d" % task)
        ledger.add_batch(producer, batch_id, task)
        found = producer.prepare_transaction()
    return Winner(number, found.producer_id, found.epoch, found.version)


@pytest.mark.parametrize("count", [1, 128, 129, 400])
def test_a_decision_is_read_again(servers: str, ledger: SinkLedger, query: str, count: int) -> None:
    winners = tuple(None if task % 3 == 0 else Winner(task, task, 1, 2) for task in range(count))
    assert ledger.decision(0) is None
    with driver(servers, query) as producer:
        ledger.decide(producer, 0, winners)
        assert ledger.decision(0) == winners
        assert ledger.decision(1) is None
        ledger.decide(producer, 7, winners[:1])
    assert ledger.decision(7) == winners[:1]
    with pytest.raises(SinkFailed, match="batch 0 is to be written after batch 7 was"):
        ledger.decision(0)


def test_a_newer_driver_fences_an_older_one(servers: str, ledger: SinkLedger, query: str) -> None:
    with driver(servers, query) as older:
        assert ledger.decision(0) is None
        with driver(servers, query) as newer:
            with pytest.raises(ProducerFenced):
                ledger.decide(older, 0, [Winner(0, 1, 1, 2)])
            assert ledger.decision(0) is None
            ledger.decide(newer, 0, [Winner(0, 2, 1, 2)])
    assert ledger.decision(0) == (Winner(0, 2, 1, 2),)


def test_winners_are_finished_as_often_as_they_are_asked_for(servers: str, ledger: SinkLedger, query: str) -> None:
    before = committed(servers, "sink")
    winners = [attempt(servers, ledger, query, 0, task) for task in range(4)]
    ledger.check_open(0, winners)
    for _ in range(2):
        assert ledger.finish(0, [*winners, None]) == set()
    assert len(committed(servers, "sink")) == len(before) + 4


def test_a_transaction_whose_id_was_used_again_is_there_or_lost(servers: str, ledger: SinkLedger, query: str) -> None:
    """A later batch uses it, or the same attempt has begun again."""
    assert ledger.finish(4, [attempt(servers, ledger, query, 4, task) for task in range(2)]) == set()
    there, lost = (attempt(servers, ledger, query, 5, task) for task in range(2))
    assert ledger.finish(5, [there]) == set()
    attempt(servers, ledger, query, 6, 0)
    attempt(servers, ledger, query, 5, 1)
    assert ledger.finish(5, [there, lost]) == {1}
    with pytest.raises(SinkFailed, match="the transactions of 2 of 2 tasks were aborted"):
        ledger.check_open(5, [there, lost])
    ledger.abort_attempts()


def test_what_nobody_will_commit_is_aborted_and_others_are_not(
    servers: str, admin: AdminClient, ledger: SinkLedger, query: str
) -> None:
    other = SinkLedger(admin, "other-" + query, "sink")
    attempt(servers, other, "other-" + query, 0, 0)
    theirs = open_transactions(servers)
    mine = [attempt(servers, ledger, query, 0, task, number) for task in range(2) for number in range(2)]
    ledger.abort({0: mine[0]})
    assert len(open_transactions(servers)) == len(theirs) + 3
    ledger.abort({0: mine[0]})  # it is not open any more, which is no matter
    ledger.abort_attempts()
    assert open_transactions(servers) == theirs
    assert ledger.finish(0, [mine[0], mine[2]]) == {0, 1}
    other.abort_attempts()
