"""What a fetch may cost others.

Each partition is looked at once, by a handler if there are many, and what is kept of a fetch is bounded.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest

from kbroker.errors import ErrorCode
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from kbroker.protocol.headers import encode_request
from kbroker.protocol.records import encode_batch
from kbroker.storage.options import LogOptions
from tests.kit.brokers.small import SmallBroker
from tests.kit.clients.wire import WireClient
from tests.kit.logs.home import LogHome
from tests.kit.models.fetch_machine import fetch_request, partition_request, produce_request
from tests.kit.parts.processors import QUARANTINE

VERSION = 12
NOW = 1_700_000_000_000
MOST_ABORTED = 1 << 16
LONG_MS = 60_000  # longer than a test may take
UNINDEXED: Any = {"index_interval_bytes": (1 << 31) - 1}
UNVERIFIED: Any = {"verify_transactions": False, "segment_ms": 1 << 50}
FIRST_OF_TRANSACTION: Any = {"producer_epoch": 0, "base_sequence": 0, "is_transactional": True}
UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def barrier(broker: SmallBroker) -> None:
    """Wait until the processor has seen what other connections had sent before, and which were closed."""
    with WireClient("127.0.0.1", broker.port) as other:
        for _ in range(3):
            other.call(ApiKey.FETCH, VERSION, fetch_request(VERSION, []))


def fetch(client: WireClient, parts: list[Any], **fields: Any) -> M.FetchResponse:
    answer: M.FetchResponse = client.call(ApiKey.FETCH, VERSION, fetch_request(VERSION, parts, **fields))
    return answer


def parts_of(response: M.FetchResponse) -> list[M.FetchResponse.PartitionData]:
    return [part for topic in response.responses for part in topic.partitions]


def unknown(count: int, topic: str = "nobody's") -> list[Any]:
    return [partition_request(topic, number, 0) for number in range(count)]


def new_topic(broker: SmallBroker, partition_count: int = 1, **options: Any) -> str:
    name = broker.new_name()
    broker.create_topic(name, partition_count, **options)
    return name


def produce(client: WireClient, topic: str, partition_id: int = 0, size: int = 100) -> None:
    batch = encode_batch([(1, None, b"v" * size)])
    client.call(ApiKey.PRODUCE, 9, produce_request(topic, partition_id, batch))


@pytest.fixture(scope="module")
def many(broker: SmallBroker) -> str:
    """A topic with so many partitions that, with some that do not exist, a request has too many for a processor."""
    return new_topic(broker, 60)


def parts_of_many(topic: str) -> list[Any]:
    return [partition_request(topic, number, 0) for number in range(60)] + unknown(950)


# --- once for each partition ------------------------------------------------------------------------


@pytest.mark.parametrize("times", [3, 1000])
def test_a_partition_that_is_named_again_and_again_is_answered_once(
    broker: SmallBroker, client: WireClient, times: int
) -> None:
    """The answer is at the place of the first mention, for the fields of the last one, as in Kafka."""
    topic = new_topic(broker, 2)
    for partition_id in (0, 1, 1):
        produce(client, topic, partition_id)
    again = [partition_request(topic, number % 2, -5) for number in range(2 * times)]
    parts = again + [partition_request("nobody's", 0, 0)] * times
    parts += [partition_request(topic, 1, 1), partition_request(topic, 0, 1)]
    answered = parts_of(fetch(client, parts))
    assert [(part.partition_index, part.error_code, len(part.records or b"")) for part in answered] == [
        (0, 0, 0),
        (1, 0, len(encode_batch([(1, None, b"v" * 100)]))),
        (0, UNKNOWN, 0),
    ]


@pytest.mark.parametrize("times", [100, 3000])
def test_a_partition_that_is_named_again_and_again_is_waited_for_once(
    broker: SmallBroker, client: WireClient, times: int
) -> None:
    topic = new_topic(broker)
    with WireClient("127.0.0.1", broker.port) as waiting:
        parts = [partition_request(topic, 0, 0)] * times
        asked = waiting.send(ApiKey.FETCH, VERSION, fetch_request(VERSION, parts, max_wait_ms=LONG_MS))
        while broker.waiting_fetches(topic, 0) == 0:
            barrier(broker)
        assert broker.waiting_fetches(topic, 0) == 1, "an append looks at each of them"
        produce(client, topic)
        assert len(parts_of(waiting.receive(ApiKey.FETCH, VERSION, asked))) == 1
    assert broker.waiting_fetches(topic, 0) == 0


def test_a_fetch_that_waits_is_no_larger_than_what_it_waits_for(broker: SmallBroker, client: WireClient) -> None:
    """A partition that is named 10,000 times is kept once. All of them would be 140 MB."""
    topic = new_topic(broker)
    request = fetch_request(VERSION, [partition_request(topic, 0, 0)] * 10_000, max_wait_ms=LONG_MS)
    frame = encode_request(ApiKey.FETCH, VERSION, 1, "test", request)
    with ExitStack() as stack:
        clients = [stack.enter_context(WireClient("127.0.0.1", broker.port)) for _ in range(100)]
        before = psutil.Process().memory_info().rss
        for waiting in clients:
            waiting.send_raw(frame)
        while broker.waiting_fetches(topic, 0) < len(clients):
            barrier(broker)
        grown = psutil.Process().memory_info().rss - before
        produce(client, topic)
    assert grown < (70 << 20) + QUARANTINE


def test_a_fetch_whose_client_has_gone_does_not_wait_longer_than_idle_connections_may(tmp_path: Path) -> None:
    """This holds however long a time the fetch has asked for. A fetch whose client is there waits on."""
    with SmallBroker(tmp_path, idle_ms=300) as broker:
        topic = new_topic(broker)
        request = fetch_request(VERSION, [partition_request(topic, 0, 0)], max_wait_ms=(1 << 31) - 1)
        stays, leaving = WireClient("127.0.0.1", broker.port), WireClient("127.0.0.1", broker.port)
        asked = stays.send(ApiKey.FETCH, VERSION, request)
        leaving.send(ApiKey.FETCH, VERSION, request)
        while broker.waiting_fetches(topic, 0) < 2:
            barrier(broker)
        leaving.close()
        while broker.waiting_fetches(topic, 0) == 2:
            barrier(broker)
        with stays:
            with WireClient("127.0.0.1", broker.port) as producer:
                produce(producer, topic)
            assert len(parts_of(stays.receive(ApiKey.FETCH, VERSION, asked))) == 1


# --- beside the processor ---------------------------------------------------------------------------


def test_a_fetch_of_few_partitions_is_served_by_the_processor(
    broker: SmallBroker, client: WireClient, handed_over: list[int]
) -> None:
    assert len(parts_of(fetch(client, unknown(900)))) == 900
    assert handed_over == []


def test_a_fetch_of_many_partitions_is_not_served_by_the_processor(
    broker: SmallBroker, client: WireClient, handed_over: list[int]
) -> None:
    topic = new_topic(broker)
    produce(client, topic)
    answered = parts_of(fetch(client, [*unknown(5000), partition_request(topic, 0, 0)]))
    assert [part.error_code for part in answered] == [0] + [UNKNOWN] * 5000
    assert answered[0].records
    assert handed_over == [client.correlation_id]


def test_a_session_of_many_partitions_is_not_looked_at_by_the_processor(
    broker: SmallBroker, client: WireClient, handed_over: list[int]
) -> None:
    topic = new_topic(broker)
    response = fetch(client, [*unknown(3000), partition_request(topic, 0, 0)], session_epoch=0)
    assert response.session_id
    handed_over.clear()
    produce(client, topic)
    answered = parts_of(fetch(client, [], session_id=response.session_id, session_epoch=1))
    assert sum(bool(part.records) for part in answered) == 1 and len(answered) == 3001
    assert handed_over == [client.correlation_id]


def test_a_fetch_of_many_partitions_waits_like_any_other(
    broker: SmallBroker, client: WireClient, handed_over: list[int], many: str
) -> None:
    """The fetch waits at the processor: a handler gets it when it comes, and each time something has come for it."""
    parts = parts_of_many(many)
    request = fetch_request(VERSION, parts, max_wait_ms=LONG_MS, min_bytes=250)
    with WireClient("127.0.0.1", broker.port) as waiting:
        asked = waiting.send(ApiKey.FETCH, VERSION, request)
        while broker.waiting_fetches(many, 59) == 0:
            barrier(broker)
        produce(client, many, 7)
        produce(client, many, 8)
        answered = parts_of(waiting.receive(ApiKey.FETCH, VERSION, asked))
        assert [part.partition_index for part in answered if part.records] == [7, 8]
        assert len(answered) == 1010 and set(handed_over) == {asked} and len(handed_over) >= 2


def test_a_connection_that_closes_takes_its_fetch_of_many_partitions_along(
    broker: SmallBroker, client: WireClient, many: str
) -> None:
    parts = parts_of_many(many)
    request = fetch_request(VERSION, parts, max_wait_ms=LONG_MS, min_bytes=1000)
    for waits in (False, True):
        leaving = WireClient("127.0.0.1", broker.port)
        leaving.send(ApiKey.FETCH, VERSION, request)
        while waits and broker.waiting_fetches(many, 59) == 0:
            barrier(broker)
        leaving.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        leaving.close()
        while broker.processors.connection_count > 1:
            produce(client, many)
    while any(broker.waiting_fetches(many, number) for number in range(60)):
        barrier(broker)


def test_a_fetch_of_many_partitions_is_answered_when_its_time_is_over(client: WireClient, many: str) -> None:
    parts = parts_of_many(many)
    answered = parts_of(fetch(client, parts, max_wait_ms=20))
    assert [part.error_code for part in answered] == [0] * 60 + [UNKNOWN] * 950


def test_unknown_partitions_without_end_are_not_kept_waiting(broker: SmallBroker, client: WireClient) -> None:
    topic = new_topic(broker)
    answered = parts_of(fetch(client, [partition_request(topic, 0, 0), *unknown(1001)], max_wait_ms=LONG_MS))
    assert len(answered) == 1002


def test_an_offset_that_is_far_from_the_index_is_not_looked_for_by_the_processor(
    broker: SmallBroker, client: WireClient, handed_over: list[int]
) -> None:
    topic = new_topic(broker, **UNINDEXED)
    log = broker.log(topic, 0)
    batch = encode_batch([(1, None, b"v" * 4096)])
    for _ in range(1200):
        log.append(batch)
    (near,) = parts_of(fetch(client, [partition_request(topic, 0, 10, 100)]))
    assert near.records and handed_over == []
    (far,) = parts_of(fetch(client, [partition_request(topic, 0, 1100, 100)]))
    assert int.from_bytes(far.records[:8]) == 1100
    assert handed_over == [client.correlation_id]
    handed_over.clear()
    (none,) = parts_of(fetch(client, [partition_request(topic, 0, 1100, 100)], max_bytes=0))
    assert len(none.records) > 4096, "the first batch of a fetch is sent whatever its size"


def test_nothing_is_looked_for_where_there_is_no_room_to_send_it(
    broker: SmallBroker, client: WireClient, handed_over: list[int]
) -> None:
    topic = new_topic(broker, 1, **UNINDEXED)
    other = new_topic(broker)
    produce(client, other)
    log = broker.log(topic, 0)
    batch = encode_batch([(1, None, b"v" * 4096)])
    for _ in range(1200):
        log.append(batch)
    parts = [partition_request(other, 0, 0), partition_request(topic, 0, 1100)]
    first, second = parts_of(fetch(client, parts, max_bytes=100))
    assert first.records and second.records == b"" and second.high_watermark == 1200
    assert handed_over == []


# --- aborted transactions ---------------------------------------------------------------------------


def abort(broker: SmallBroker, topic: str, partition_id: int, count: int) -> None:
    log = broker.log(topic, partition_id)
    for producer_id in range(count):
        log.append(encode_batch([(1, None, b"v")], producer_id=producer_id, **FIRST_OF_TRANSACTION))
        log.append_marker(producer_id, 0, 0, commit=False)


@pytest.fixture(scope="module")
def short_answers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallBroker]:
    with SmallBroker(tmp_path_factory.mktemp("short"), fetch_max_bytes=3200) as broker:
        yield broker


def test_aborted_transactions_are_told_of_as_many_partitions_as_an_answer_has_room_for(
    short_answers: SmallBroker,
) -> None:
    """fetch.max.bytes has room for the aborted transactions of 200 partitions."""
    topic = new_topic(short_answers, 4, **UNINDEXED, **UNVERIFIED)
    for partition_id in range(4):
        abort(short_answers, topic, partition_id, 150)
    with WireClient("127.0.0.1", short_answers.port) as client:
        parts = [partition_request(topic, partition_id, 0, 100) for partition_id in range(4)]
        answered = parts_of(fetch(client, parts, isolation_level=1, max_wait_ms=LONG_MS))
    assert [(len(part.records) > 0, len(part.aborted_transactions)) for part in answered] == [
        (True, 150),
        (True, 150),
        (False, 0),
        (False, 0),
    ]


def test_a_read_that_overlaps_with_very_many_aborted_transactions_is_one_batch_long(tmp_path: Path) -> None:
    home = LogHome(tmp_path, options=LogOptions(**UNINDEXED, **UNVERIFIED))
    state = home.create().state
    first = b""
    for producer_id in range(MOST_ABORTED + 1):
        batch = encode_batch([(NOW, None, b"v")], producer_id=producer_id, **FIRST_OF_TRANSACTION)
        first = first or batch
        state.append(batch, NOW)
        state.append_marker(producer_id, 0, 0, False, NOW)
        if producer_id == MOST_ABORTED - 1:
            code, size, aborted = state.aborted(0, 1 << 20)
            assert (code, size, len(aborted)) == (0, 1 << 20, MOST_ABORTED)
    assert state.aborted(0, 1 << 20) == (0, len(first), [(0, 0)])
    assert state.aborted(2, 1 << 20) == (0, 1 << 20, [(each, 2 * each) for each in range(1, MOST_ABORTED + 1)])


# --- sessions ---------------------------------------------------------------------------------------

FNV_PRIME, GOLDEN = 16777619, 0x9E3779B1


def fnv_1a(name: bytes) -> int:
    value = 2166136261
    for byte in name:
        value = (value ^ byte) * FNV_PRIME & 0xFFFFFFFF
    return value


def meeting(count: int) -> list[Any]:
    """Return partitions that one hash, FNV-1a of the name xor a multiple of the partition, puts in the same place."""
    inverse = pow(GOLDEN, -1, 1 << 32)
    parts = []
    for number in range(count):
        partition_id = fnv_1a(b"t%d" % number) * inverse & 0xFFFFFFFF
        parts.append(partition_request(f"t{number}", partition_id - (partition_id >> 31 << 32), 0))
    return parts


def test_partitions_that_were_chosen_to_meet_stand_apart_in_a_session(tmp_path: Path) -> None:
    with SmallBroker(tmp_path) as broker, WireClient("127.0.0.1", broker.port) as client:
        assert fetch(client, meeting(4000), session_epoch=0).session_id
        assert broker.sessions.longest_search < 100


@pytest.fixture
def small_cache(tmp_path: Path) -> Iterator[SmallBroker]:
    """A cache whose sessions together may have 10,000 partitions."""
    with SmallBroker(tmp_path, session_slots=2) as broker:
        yield broker


@pytest.fixture
def user(small_cache: SmallBroker) -> Iterator[WireClient]:
    with WireClient("127.0.0.1", small_cache.port) as client:
        yield client


def test_a_session_has_a_bounded_number_of_partitions(small_cache: SmallBroker, user: WireClient) -> None:
    assert fetch(user, unknown(10_001), session_epoch=0).session_id == 0, "as when the cache is full"
    response = fetch(user, unknown(9_999), session_epoch=0)
    assert response.session_id
    assert small_cache.sessions.counts() == (1, 9_999, 0)
    more = fetch(user, unknown(2, "another"), session_id=response.session_id, session_epoch=1)
    assert more.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND, "the client begins again, without a session"
    assert small_cache.sessions.counts() == (0, 0, 0)


@pytest.mark.parametrize("size, cached", [(249, True), (250, False)])
def test_a_session_holds_no_name_that_is_no_topics(
    small_cache: SmallBroker, user: WireClient, size: int, cached: bool
) -> None:
    response = fetch(user, unknown(3, "x" * size), session_epoch=0)
    assert bool(response.session_id) == cached
    response = fetch(user, unknown(3), session_epoch=0)
    added = fetch(user, unknown(3, "y" * size), session_id=response.session_id, session_epoch=1)
    assert added.error_code == (0 if cached else ErrorCode.FETCH_SESSION_ID_NOT_FOUND)


def test_all_sessions_together_have_a_bounded_number_of_partitions(small_cache: SmallBroker, user: WireClient) -> None:
    first = fetch(user, unknown(6_000), session_epoch=0).session_id
    assert first
    assert fetch(user, unknown(6_000), session_epoch=0).session_id == 0
    second = fetch(user, unknown(3_000), session_epoch=0).session_id
    assert second
    grown = fetch(user, unknown(2_000, "another"), session_id=second, session_epoch=1)
    assert grown.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert small_cache.sessions.counts() == (1, 6_000, 0)
    assert fetch(user, [], session_id=first, session_epoch=1).error_code == 0


def test_the_sessions_of_a_connection_that_is_gone_are_evicted_first(
    small_cache: SmallBroker, user: WireClient
) -> None:
    with WireClient("127.0.0.1", small_cache.port) as leaving:
        stays = fetch(user, unknown(1), session_epoch=0).session_id
        assert fetch(leaving, unknown(5), session_epoch=0).session_id
        assert fetch(user, unknown(9), session_epoch=0).session_id == 0, "none of them is old"
    barrier(small_cache)
    assert fetch(user, unknown(1), session_epoch=0).session_id
    assert fetch(user, [], session_id=stays, session_epoch=1).error_code == 0
    assert small_cache.sessions.counts()[0] == 2


def test_a_session_that_another_connection_has_taken_over_is_not_the_first_to_go(
    small_cache: SmallBroker, user: WireClient
) -> None:
    with WireClient("127.0.0.1", small_cache.port) as leaving:
        taken = fetch(leaving, unknown(1), session_epoch=0).session_id
        assert fetch(user, [], session_id=taken, session_epoch=1).error_code == 0
    barrier(small_cache)
    assert fetch(user, unknown(1), session_epoch=0).session_id
    assert fetch(user, unknown(9), session_epoch=0).session_id == 0
    assert fetch(user, [], session_id=taken, session_epoch=2).error_code == 0
