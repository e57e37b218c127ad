"""Producer ids never repeat, whoever restarts or dies."""

from functools import partial
from pathlib import Path

import pytest

from kbroker.cluster.producer_ids import BLOCK_SIZE, MAX_PRODUCER_ID, ProducerIds, ProducerIdsExhausted
from kbroker.coordination import paths
from kbroker.coordination.embedded import EmbeddedStore
from kbroker.coordination.paths import ProducerIdBlock
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
