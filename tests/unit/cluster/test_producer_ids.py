"""Producer ids never repeat, whoever restarts or dies."""

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kbroker.cluster.producer_ids import (
    BLOCK_SIZE,
    MAX_PRODUCER_ID,
    AllocatedProducerIds,
    NoIdYet,
    ProducerIds,
    ProducerIdsExhausted,
)
from kbroker.coordination import paths
from kbroker.coordination.embedded import EmbeddedStore
from kbroker.coordination.paths import ProducerIdBlock
from kbroker.protocol import messages as M
from tests.kit.threads import run_all


@pytest.fixture
def store(tmp_path: Path):
    store = EmbeddedStore(str(tmp_path / "store"))
    store.connect().create(paths.PRODUCER_ID_BLOCK)
    yield store
    store.stop()


def test_ids_begin_at_0_and_follow_each_other(store: EmbeddedStore) -> None:
    ids = ProducerIds(store.connect(), 7)
    assert [ids.next() for _ in range(2 * BLOCK_SIZE + 1)] == list(range(2 * BLOCK_SIZE + 1))


def test_a_block_is_durable_before_its_first_id_is_used(store: EmbeddedStore) -> None:
    session = store.connect()
    ProducerIds(session, 7).next()
    block = paths.decode_producer_id_block(paths.PRODUCER_ID_BLOCK, session.get(paths.PRODUCER_ID_BLOCK)[0])
    assert block == ProducerIdBlock(7, 0, BLOCK_SIZE - 1)


def test_a_broker_that_died_leaves_the_rest_of_its_block(store: EmbeddedStore) -> None:
    assert ProducerIds(store.connect(), 7).next() == 0
    assert ProducerIds(store.connect(), 7).next() == BLOCK_SIZE


def test_ids_do_not_repeat_after_the_store_was_opened_again(tmp_path: Path, store: EmbeddedStore) -> None:
    ProducerIds(store.connect(), 7).next()
    store.stop()
    again = EmbeddedStore(str(tmp_path / "store"))
    try:
        assert ProducerIds(again.connect(), 7).next() == BLOCK_SIZE
    finally:
        again.stop()


def test_brokers_at_the_same_time_share_no_id(store: EmbeddedStore) -> None:
    given: list[list[int]] = [[] for _ in range(4)]

    def take(node_id: int) -> None:
        ids = ProducerIds(store.connect(), node_id)
        given[node_id] += [ids.next() for _ in range(2500)]

    run_all(*(partial(take, node_id) for node_id in range(len(given))))
    together = [producer_id for ids in given for producer_id in ids]
    assert len(together) == len(set(together)) == 10_000


def test_the_last_id_is_the_largest_int64_at_most(store: EmbeddedStore) -> None:
    session = store.connect()
    last = MAX_PRODUCER_ID - BLOCK_SIZE
    session.set(paths.PRODUCER_ID_BLOCK, paths.encode_producer_id_block(ProducerIdBlock(1, 0, last)))
    ids = ProducerIds(session, 7)
    assert ids.next() == last + 1
    for _ in range(BLOCK_SIZE - 1):
        ids.next()
    with pytest.raises(ProducerIdsExhausted):
        ids.next()


def test_a_block_of_apache_kafka_is_gone_on_from(store: EmbeddedStore) -> None:
    session = store.connect()
    session.set(paths.PRODUCER_ID_BLOCK, b'{"version":1,"broker":0,"block_start":"3000","block_end":"3999"}')
    assert ProducerIds(session, 7).next() == 4000


class StandInController:
    """Answers when the test says so, with the blocks of a cluster that nobody else uses."""

    def __init__(self) -> None:
        self.asked: list[tuple[M.AllocateProducerIdsRequest, Callable[[M.Message | None, int], None]]] = []
        self.next = 5000

    def ask(self, make: Any, api_key: int, highest_version: int, answered: Any) -> None:
        assert (api_key, highest_version) == (67, 0)
        self.asked.append((make(0), answered))

    def answer(self, **fields: int) -> None:
        given = {"producer_id_start": self.next, "producer_id_len": 1000, **fields}
        self.next += 1000
        self.asked.pop(0)[1](M.AllocateProducerIdsResponse(**given), 0)


@pytest.fixture
def controller() -> StandInController:
    return StandInController()


def allocated(controller: StandInController) -> AllocatedProducerIds:
    return AllocatedProducerIds(3, lambda: 77, controller.ask)


def test_a_member_asks_the_controller_and_waits_for_nothing(controller: StandInController) -> None:
    ids = allocated(controller)
    for _ in range(3):
        with pytest.raises(NoIdYet):
            ids.next()
    ((request, _),) = controller.asked
    assert (request.broker_id, request.broker_epoch) == (3, 77)
    controller.answer()
    assert [ids.next() for _ in range(3)] == [5000, 5001, 5002] and controller.asked == []


def wanted(controller: StandInController) -> AllocatedProducerIds:
    """Return the ids of a member of which somebody has wanted one already."""
    ids = allocated(controller)
    with pytest.raises(NoIdYet):
        ids.next()
    return ids


def test_no_block_is_taken_before_somebody_wants_an_id(controller: StandInController) -> None:
    ids = allocated(controller)
    ids.fetch_ahead()
    assert controller.asked == []
    with pytest.raises(NoIdYet):
        ids.next()
    assert len(controller.asked) == 1


def test_the_next_block_is_asked_for_ahead(controller: StandInController) -> None:
    ids = wanted(controller)
    ids.fetch_ahead()
    controller.answer()
    given = [ids.next() for _ in range(901)]
    assert len(controller.asked) == 1
    controller.answer(producer_id_start=9000)
    given += [ids.next() for _ in range(100)]
    assert given == [*range(5000, 6000), 9000] and controller.asked == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"error_code": 41},
        {"producer_id_len": 0},
        {"producer_id_len": -1},
        {"producer_id_start": -1},
        {"producer_id_start": 2**63 - 10},
    ],
)
def test_a_bad_answer_gives_no_ids_and_it_is_asked_again(controller: StandInController, wrong: dict[str, int]) -> None:
    ids = wanted(controller)
    controller.answer(**wrong)
    with pytest.raises(NoIdYet):
        ids.next()
    controller.answer(producer_id_start=10, producer_id_len=2)
    assert [ids.next(), ids.next()] == [10, 11]


def test_no_answer_is_no_block(controller: StandInController) -> None:
    ids = wanted(controller)
    controller.asked.pop()[1](None, -1)
    with pytest.raises(NoIdYet):
        ids.next()
    assert len(controller.asked) == 1


def test_no_id_is_given_twice_by_many_threads(controller: StandInController) -> None:
    ids = allocated(controller)
    lock, given = threading.Lock(), []

    def work() -> None:
        mine = []
        while len(mine) < 1500:
            try:
                mine.append(ids.next())
            except NoIdYet:
                with lock:
                    if controller.asked:
                        controller.answer()
        with lock:
            given.extend(mine)

    run_all(*[work] * 4)
    assert len(set(given)) == 6000
