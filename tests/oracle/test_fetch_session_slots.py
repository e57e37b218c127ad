"""Which new fetch session gets a slot: the matrix has room for all sessions, so brokers with eight slots are asked."""

from __future__ import annotations

import pytest

from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from tests.kit.brokers.process import BrokerProcess
from tests.kit.clients.wire import WireClient
from tests.kit.kafka.process import KafkaInMemory
from tests.oracle.matrix import KAFKA_SETTINGS, OUR_SETTINGS
from tests.oracle.scenarios.requests import FetchTopic, fetch, fetch_partition

SLOTS = 8
SETTING = {"max.incremental.fetch.session.cache.slots": SLOTS}
VERSION = 12
TOPIC = FetchTopic(topic="t", partitions=[fetch_partition()])


def slots_given(client: WireClient) -> list[bool]:
    """Return which new sessions got a slot: as many as there are slots, one more, four after the third is closed."""

    def new_session() -> int:
        session_id: int = client.call(ApiKey.FETCH, VERSION, fetch([TOPIC], session_epoch=0)).session_id
        return session_id

    client.call(ApiKey.METADATA, VERSION, M.MetadataRequest(topics=[M.MetadataRequest.MetadataRequestTopic(name="t")]))
    ids = [new_session() for _ in range(SLOTS + 1)]
    client.call(ApiKey.FETCH, VERSION, fetch([], session_id=ids[2], session_epoch=-1))
    ids += [new_session() for _ in range(4)]
    return [session_id != 0 for session_id in ids]


def test_a_slot_is_free_for_whoever_comes() -> None:
    with BrokerProcess({**OUR_SETTINGS, **SETTING}) as kbroker, WireClient("127.0.0.1", kbroker.port) as client:
        assert slots_given(client) == [True] * SLOTS + [False] + [True, False, False, False]


@pytest.mark.timeout(300)
def test_kafka_has_a_cache_for_every_eighth_of_the_slots_and_takes_them_in_turn() -> None:
    with KafkaInMemory({**KAFKA_SETTINGS, **SETTING}) as kafka, WireClient("127.0.0.1", kafka.port) as client:
        # The turn of the second cache comes first.
        assert slots_given(client) == [True] * SLOTS + [False] + [False, True, False, False]
