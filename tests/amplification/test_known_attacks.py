"""Attacks that once worked: one connection makes a broker spend far more than was sent to it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from functools import partial

import pytest

from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from kbroker.protocol.records import encode_batch
from tests.amplification import attacks
from tests.amplification.bounds import excess, limit_above, limit_of
from tests.amplification.figures import NO_LIMIT, Figures, Scales
from tests.amplification.furnished_broker import FurnishedBroker
from tests.amplification.furnishing import HEAVY, TIME, Furnisher
from tests.kit.brokers.process import BrokerProcess, folder_in_memory, free_port
from tests.kit.clients.wire import WireClient

SIZE_OF_A_NEW_TOPIC = 35
"""The size of a CreateTopics request, for which the table of bounds says what a topic may cost."""


@pytest.fixture(scope="module")
def broker() -> Iterator[FurnishedBroker]:
    made = FurnishedBroker()
    yield made
    made.discard()


@pytest.mark.parametrize("name", attacks.BY_NAME)
def test_one_connection_spends_what_it_sends(broker: FurnishedBroker, name: str) -> None:
    attack, api_key = attacks.BY_NAME[name]
    finding = broker.finding(attack, partial(limit_of, api_key))
    assert finding is None, finding


def test_waiting_fetches_of_a_partition_do_not_slow_down_who_writes_to_it(broker: FurnishedBroker) -> None:
    def produce(furnisher: Furnisher) -> None:
        furnisher.produce(HEAVY, (encode_batch([(TIME, None, b"")]) for _ in range(400)))

    def weigh(broker: FurnishedBroker) -> tuple[Figures, Figures]:
        alone = broker.scales.weigh_while(lambda: produce(broker.furnisher), Figures(), NO_LIMIT)
        with WireClient("127.0.0.1", broker.scales.port) as waiting:
            end = broker.furnisher.end_offset(HEAVY)
            waits = attacks.fetching(end, 50_000, max_wait_ms=60_000, min_bytes=1 << 30)
            waiting.send_raw(attacks.frame(ApiKey.FETCH, 4, waits))
            broker.scales.settle(NO_LIMIT.time)
            beside = broker.scales.weigh_while(lambda: produce(broker.furnisher), Figures(), NO_LIMIT)
        return beside, limit_above(alone)

    finding = broker.finding_of(weigh)
    assert finding is None, finding


def test_ids_that_are_given_away_do_not_slow_down_the_end_of_others(broker: FurnishedBroker) -> None:
    last_ms = 300

    def give_and_forget(broker: FurnishedBroker) -> None:
        broker.scales.exchange(attacks.member_ids(range(1, last_ms)))
        threading.Event().wait(2 * last_ms / 1000)  # until all have ended, one by one

    def weigh(broker: FurnishedBroker) -> tuple[Figures, Figures]:
        few = broker.scales.weigh_while(lambda: give_and_forget(broker), Figures(), NO_LIMIT)
        broker.scales.exchange(attacks.member_ids([600_000] * 45_000))
        many = broker.scales.weigh_while(lambda: give_and_forget(broker), Figures(), NO_LIMIT)
        return many, limit_above(few)

    finding = broker.finding_of(weigh)
    assert finding is None, finding


def test_ids_of_producers_cannot_be_chosen_so_that_they_are_slow_to_find(broker: FurnishedBroker) -> None:
    def weigh(broker: FurnishedBroker) -> tuple[Figures, Figures]:
        count = 15_000
        plain = broker.scales.weigh(attacks.producers(iter(range(1 << 40, (1 << 40) + count))), NO_LIMIT)
        return broker.scales.weigh(attacks.producers(attacks.colliding_producers(count)), NO_LIMIT), limit_above(plain)

    finding = broker.finding_of(weigh)
    assert finding is None, finding


def test_topics_that_are_made_by_being_named_cost_what_others_do() -> None:
    """A request for more topics than one may make makes none, and costs no more than one for topics that exist."""
    made, refused = 300, 20_000
    with BrokerProcess({"num.network.threads": 1}, folder_in_memory()) as broker:
        broker.owns_folder = True
        scales = Scales(broker.pid, broker.port)
        few = scales.weigh([attacks.topics_by_name("few", made)], NO_LIMIT)
        assert excess(few, limit_of(ApiKey.CREATE_TOPICS, made * SIZE_OF_A_NEW_TOPIC)) is None, few
        many = scales.weigh([attacks.topics_by_name("many", refused)], NO_LIMIT)
        assert excess(many, limit_of(ApiKey.METADATA, many.request)) is None, many
        with WireClient("127.0.0.1", broker.port) as client:
            assert len(client.call(ApiKey.METADATA, 12, M.MetadataRequest(topics=None)).topics) == made
        scales.close()


def test_silent_connections_do_not_keep_others_from_the_health_of_a_broker() -> None:
    port = free_port()
    with BrokerProcess({"kbroker.http.address": f"127.0.0.1:{port}"}):
        silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(8)]
        with socket.create_connection(("127.0.0.1", port), timeout=8) as asking:
            asking.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            assert asking.recv(12) == b"HTTP/1.1 200"
        for connection in silent:
            connection.close()
