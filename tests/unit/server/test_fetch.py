"""Fetch over real sockets: bytes, limits, long polls, and what becomes of a fetch that waits."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import pytest

from kbroker.errors import ErrorCode, KbrokerError
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from kbroker.protocol.headers import decode_response, encode_request
from kbroker.protocol.records import encode_batch
from tests.kit.brokers.small import SmallBroker
from tests.kit.clients.wire import ConnectionClosed, WireClient
from tests.kit.models.fetch_machine import fetch_request, partition_request, produce_request, stamped
from tests.kit.wire.parser_cases import mangled

ALL_VERSIONS = range(4, 18)
LONG_MS = 60_000  # longer than a test may take


class Topic:
    """A new topic, and the batches that were produced to its partitions."""

    def __init__(self, broker: SmallBroker, client: WireClient, partition_count: int = 1):
        self.name = broker.new_name()
        self.topic_id = broker.create_topic(self.name, partition_count)
        self.client = client
        self.stored: list[list[bytes]] = [[] for _ in range(partition_count)]
        self.end = [0] * partition_count

    def key(self, version: int) -> str | bytes:
        return self.topic_id if version >= 13 else self.name

    def produce(self, partition_id: int = 0, size: int = 100, count: int = 1) -> bytes:
        batch = encode_batch([(1, None, b"v" * size)] * count)
        response = self.client.call(ApiKey.PRODUCE, 9, produce_request(self.name, partition_id, batch))
        assert response.responses[0].partition_responses[0].error_code == 0
        stored = stamped(batch, self.end[partition_id], SmallBroker.leader_epoch)
        self.stored[partition_id].append(stored)
        self.end[partition_id] += count
        return stored


def barrier(broker: SmallBroker) -> None:
    """Wait until the processor has gone round twice, and so has seen what other connections had sent before."""
    with WireClient("127.0.0.1", broker.port) as other:
        for _ in range(2):
            other.call(ApiKey.FETCH, 12, fetch_request(12, []))


def parts_of(response: M.FetchResponse) -> list[M.FetchResponse.PartitionData]:
    return [part for topic in response.responses for part in topic.partitions]


# --- bytes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ALL_VERSIONS)
def test_every_version_gets_the_bytes_of_the_segment(broker: SmallBroker, client: WireClient, version: int) -> None:
    topic = Topic(broker, client)
    for size in (10, 5000, 100_000):
        topic.produce(size=size, count=3)
    request = fetch_request(version, [partition_request(topic.key(version), 0, 3)])
    (part,) = parts_of(client.call(ApiKey.FETCH, version, request))
    assert part.records == broker.segment_bytes(topic.name, 0)[len(topic.stored[0][0]) :]
    assert (part.error_code, part.high_watermark, part.last_stable_offset) == (0, 9, 9)


def test_a_fetch_may_end_inside_a_batch_but_not_inside_its_first(broker: SmallBroker, client: WireClient) -> None:
    topic = Topic(broker, client)
    first, second = topic.produce(), topic.produce()
    for limit, expected in [
        (1, first),
        (len(first) - 1, first),
        (len(first) + 7, first + second[:7]),
        (10_000, first + second),
    ]:
        request = fetch_request(12, [partition_request(topic.name, 0, 0, limit)])
        assert parts_of(client.call(ApiKey.FETCH, 12, request))[0].records == expected
        request = fetch_request(12, [partition_request(topic.name, 0, 0)], max_bytes=limit)
        assert parts_of(client.call(ApiKey.FETCH, 12, request))[0].records == expected


def test_only_the_first_partition_with_data_may_exceed_its_limit(broker: SmallBroker, client: WireClient) -> None:
    topic = Topic(broker, client, 3)
    large = topic.produce(1, size=5000)
    topic.produce(2, size=5000)
    request = fetch_request(12, [partition_request(topic.name, each, 0, 1000) for each in range(3)])
    assert [part.records for part in parts_of(client.call(ApiKey.FETCH, 12, request))] == [b"", large, b""]


def test_a_batch_of_many_megabytes_arrives_whole(broker: SmallBroker, client: WireClient) -> None:
    topic = Topic(broker, client)
    values = [random.Random(size).randbytes(900_000) for size in range(12)]
    for value in values:
        client.call(ApiKey.PRODUCE, 9, produce_request(topic.name, 0, encode_batch([(1, None, value)])))
    request = fetch_request(17, [partition_request(topic.topic_id, 0, 0, 100 << 20)], max_bytes=100 << 20)
    (part,) = parts_of(client.call(ApiKey.FETCH, 17, request))
    assert part.records == broker.segment_bytes(topic.name, 0)


def test_rolled_segments_are_read_one_after_the_other(broker: SmallBroker, client: WireClient) -> None:
    name = broker.new_name()
    broker.create_topic(name, 1, segment_bytes=1000)
    expected = []
    for base in range(20):
        batch = encode_batch([(1, None, b"r" * 200)])
        client.call(ApiKey.PRODUCE, 9, produce_request(name, 0, batch))
        expected.append(stamped(batch, base, broker.leader_epoch))
    got = b""
    while got != b"".join(expected):
        assert b"".join(expected).startswith(got)
        offset = len(got) // len(expected[0])
        request = fetch_request(12, [partition_request(name, 0, offset)], max_wait_ms=LONG_MS, min_bytes=1 << 20)
        (part,) = parts_of(client.call(ApiKey.FETCH, 12, request))
        assert part.records, "a segment that is not the last cannot grow: no reason to wait"
        got += part.records
        if offset + len(part.records) // len(expected[0]) >= 16:
            break


def test_a_closed_log_is_opened_by_the_fetch_that_needs_it(broker: SmallBroker, client: WireClient) -> None:
    topic = Topic(broker, client)
    stored = topic.produce()
    for version in (4, 12, 17):
        broker.close_log(topic.name, 0)
        request = fetch_request(version, [partition_request(topic.key(version), 0, 0)], **session(version))
        (part,) = parts_of(client.call(ApiKey.FETCH, version, request))
        assert part.records == stored


def session(version: int) -> dict[str, int]:
    return {"session_epoch": 0} if version >= 7 else {}


def test_an_incremental_fetch_of_a_closed_log_counts_once(broker: SmallBroker, client: WireClient) -> None:
    topic = Topic(broker, client)
    request = fetch_request(12, [partition_request(topic.name, 0, 0)], session_epoch=0)
    session_id = client.call(ApiKey.FETCH, 12, request).session_id
    for epoch in range(1, 4):
        stored = topic.produce()
        broker.close_log(topic.name, 0)
        update = [partition_request(topic.name, 0, epoch - 1)]
        response = client.call(ApiKey.FETCH, 12, fetch_request(12, update, session_id=session_id, session_epoch=epoch))
        assert (response.error_code, response.session_id) == (0, session_id)
        assert parts_of(response)[0].records == stored


# --- errors -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ALL_VERSIONS)
def test_unknown_partitions_get_their_error_and_the_others_their_data(
    broker: SmallBroker, client: WireClient, version: int
) -> None:
    topic = Topic(broker, client)
    stored = topic.produce()
    nobody = bytes([9]) * 16 if version >= 13 else "nobody-made-this"
    parts = [partition_request(nobody, 0, 0), partition_request(topic.key(version), 5, 0)]
    parts.append(partition_request(topic.key(version), 0, 0))
    answers = parts_of(client.call(ApiKey.FETCH, version, fetch_request(version, parts)))
    unknown_topic = ErrorCode.UNKNOWN_TOPIC_ID if version >= 13 else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert [part.error_code for part in answers] == [0, unknown_topic, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert answers[0].records == stored
    assert {(part.high_watermark, part.log_start_offset, part.records) for part in answers[1:]} == {(-1, -1, b"")}


def test_an_isolation_level_that_does_not_exist_is_refused_as_kafka_does(
    broker: SmallBroker, client: WireClient
) -> None:
    topic = Topic(broker, client)
    for version in (4, 12, 17):
        request = fetch_request(version, [partition_request(topic.key(version), 0, 0)], isolation_level=2)
        response = client.call(ApiKey.FETCH, version, request)
        assert response.error_code == (-1 if version >= 7 else 0)
        assert [(part.error_code, part.records) for part in parts_of(response)] == (
            [(-1, None)] if version < 13 else []
        )


def test_negative_sizes_are_refused_only_where_there_is_something_to_read(
    broker: SmallBroker, client: WireClient
) -> None:
    topic = Topic(broker, client)
    topic.produce()
    for fields in ({}, {"max_bytes": -1}):
        for offset, error in [(0, ErrorCode.UNKNOWN_SERVER_ERROR), (1, ErrorCode.NONE)]:
            request = fetch_request(12, [partition_request(topic.name, 0, offset, -1 if not fields else 100)], **fields)
            assert parts_of(client.call(ApiKey.FETCH, 12, request))[0].error_code == error


def test_a_follower_that_is_no_replica_is_sent_away(broker: SmallBroker, client: WireClient) -> None:
    topic = Topic(broker, client)
    topic.produce()
    for version in (12, 17):
        follower = {"replica_id": 7} if version < 15 else {"replica_state": M.FetchRequest.ReplicaState(replica_id=7)}
        for epoch, error in [(-1, ErrorCode.NOT_LEADER_OR_FOLLOWER), (1, ErrorCode.UNKNOWN_LEADER_EPOCH)]:
            request = fetch_request(version, [partition_request(topic.key(version), 0, 0, 1000, epoch)], **follower)
            (part,) = parts_of(client.call(ApiKey.FETCH, version, request))
            assert part.error_code == error


def test_who_has_an_old_leader_epoch_is_told_who_leads(broker: SmallBroker, client: WireClient) -> None:
    topic = Topic(broker, client)
    for version in (12, 15, 16, 17):
        request = fetch_request(version, [partition_request(topic.key(version), 0, 0, 1000, 0)])
        response = client.call(ApiKey.FETCH, version, request)
        (part,) = parts_of(response)
        assert part.error_code == ErrorCode.FENCED_LEADER_EPOCH
        told = [(node.node_id, node.host, node.port) for node in response.node_endpoints]
        assert told == ([(0, "127.0.0.1", broker.port)] if version >= 16 else [])
        assert part.current_leader.leader_epoch == (broker.leader_epoch if version >= 16 else -1)


# --- long polls -------------------------------------------------------------------------------------


def test_a_fetch_at_the_end_is_answered_by_the_append_of_another_connection(
    broker: SmallBroker, client: WireClient
) -> None:
    topic = Topic(broker, client)
    with WireClient("127.0.0.1", broker.port) as waiting:
        for version in (4, 11, 12, 17):
            request = fetch_request(
                version,
                [partition_request(topic.key(version), 0, topic.end[0])],
                max_wait_ms=LONG_MS,
                **session(version),
            )
            asked = waiting.send(ApiKey.FETCH, version, request)
            barrier(broker)
            assert broker.waiting_fetches(topic.name, 0) == 1
            stored = topic.produce()
            assert parts_of(waiting.receive(ApiKey.FETCH, version, asked))[0].records == stored
            assert broker.waiting_fetches(topic.name, 0) == 0


def test_a_fetch_without_news_is_answered_empty_when_its_time_is_over(broker: SmallBroker, client: WireClient) -> None:
    topic = Topic(broker, client)
    for version in ALL_VERSIONS:
        request = fetch_request(version, [partition_request(topic.key(version), 0, 0)], max_wait_ms=20)
        (part,) = parts_of(client.call(ApiKey.FETCH, version, request))
        assert (part.error_code, part.records, part.high_watermark) == (0, b"", 0)


def test_min_bytes_are_gathered_over_partitions_and_appends(broker: SmallBroker, client: WireClient) -> None:
    topic = Topic(broker, client, 3)
    first = topic.produce(0)
    request = fetch_request(
        12, [partition_request(topic.name, each, 0) for each in range(3)], max_wait_ms=LONG_MS, min_bytes=3 * len(first)
    )
    with WireClient("127.0.0.1", broker.port) as waiting:
        asked = waiting.send(ApiKey.FETCH, 12, request)
        barrier(broker)
        second = topic.produce(1)
        barrier(broker)
        assert broker.waiting_fetches(topic.name, 2) == 1
        third = topic.produce(2)
        answers = parts_of(waiting.receive(ApiKey.FETCH, 12, asked))
    assert [part.records for part in answers] == [first, second, third]


def test_too_few_bytes_are_sent_when_the_time_is_over(broker: SmallBroker, client: WireClient) -> None:
    topic = Topic(broker, client)
    stored = topic.produce()
    request = fetch_request(12, [partition_request(topic.name, 0, 0)], max_wait_ms=30, min_bytes=10_000)
    assert parts_of(client.call(ApiKey.FETCH, 12, request))[0].records == stored


def test_min_bytes_above_max_bytes_wait_for_max_bytes_only(broker: SmallBroker, client: WireClient) -> None:
    topic = Topic(broker, client)
    stored = topic.produce()
    request = fetch_request(
        12, [partition_request(topic.name, 0, 0)], max_wait_ms=LONG_MS, min_bytes=1 << 20, max_bytes=len(stored)
    )
    assert parts_of(client.call(ApiKey.FETCH, 12, request))[0].records == stored


def test_an_error_is_a_reason_not_to_wait(broker: SmallBroker, client: WireClient) -> None:
    topic = Topic(broker, client, 2)
    parts = [partition_request(topic.name, 0, 0), partition_request(topic.name, 1, 99)]
    answers = parts_of(client.call(ApiKey.FETCH, 12, fetch_request(12, parts, max_wait_ms=LONG_MS)))
    assert [part.error_code for part in answers] == [0, ErrorCode.OFFSET_OUT_OF_RANGE]


def test_a_fetch_of_nothing_known_does_not_wait(broker: SmallBroker, client: WireClient) -> None:
    parts = [partition_request("nobody-made-this", 0, 0)]
    answers = parts_of(client.call(ApiKey.FETCH, 12, fetch_request(12, parts, max_wait_ms=LONG_MS)))
    assert [part.error_code for part in answers] == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert client.call(ApiKey.FETCH, 12, fetch_request(12, [], max_wait_ms=LONG_MS)).responses == []


@pytest.mark.parametrize("version", [4, 12, 17])
def test_a_partition_that_is_deleted_answers_who_waits_for_it(
    broker: SmallBroker, client: WireClient, version: int
) -> None:
    kept, deleted = Topic(broker, client), Topic(broker, client)
    parts = [partition_request(topic.key(version), 0, 0) for topic in (kept, deleted)]
    parts.append(partition_request(bytes(16) if version >= 13 else "nobody-made-this", 0, 0))
    with WireClient("127.0.0.1", broker.port) as waiting:
        asked = waiting.send(
            ApiKey.FETCH, version, fetch_request(version, parts, max_wait_ms=LONG_MS, **session(version))
        )
        barrier(broker)
        broker.delete_topic(deleted.name)
        response = waiting.receive(ApiKey.FETCH, version, asked)
    assert [part.error_code for part in parts_of(response)][:2] == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    if version < 13:
        assert [topic.topic for topic in response.responses] == [kept.name, deleted.name, "nobody-made-this"]
    assert broker.waiting_fetches(kept.name, 0) == 0


def test_a_thousand_fetches_wait_on_one_partition_and_one_append_answers_all(
    broker: SmallBroker, client: WireClient
) -> None:
    topic = Topic(broker, client)
    request = fetch_request(12, [partition_request(topic.name, 0, 0)], max_wait_ms=LONG_MS)
    waiting = [WireClient("127.0.0.1", broker.port) for _ in range(1000)]
    try:
        asked = [each.send(ApiKey.FETCH, 12, request) for each in waiting]
        barrier(broker)
        assert broker.waiting_fetches(topic.name, 0) == 1000
        for each in waiting[::3]:
            each.close()
        stored = topic.produce()
        for i, each in enumerate(waiting):
            if i % 3:
                assert parts_of(each.receive(ApiKey.FETCH, 12, asked[i]))[0].records == stored
        barrier(broker)
        assert broker.waiting_fetches(topic.name, 0) == 0
    finally:
        for each in waiting:
            each.close()


def test_a_connection_that_closes_takes_its_waiting_fetch_along(broker: SmallBroker, client: WireClient) -> None:
    topic = Topic(broker, client)
    for _ in range(20):
        leaving = WireClient("127.0.0.1", broker.port)
        leaving.send(
            ApiKey.FETCH, 12, fetch_request(12, [partition_request(topic.name, 0, topic.end[0])], max_wait_ms=LONG_MS)
        )
        leaving.close()
        topic.produce()
    barrier(broker)
    assert broker.waiting_fetches(topic.name, 0) == 0


def test_requests_behind_a_waiting_fetch_are_answered_behind_it(broker: SmallBroker, client: WireClient) -> None:
    topic = Topic(broker, client)
    with WireClient("127.0.0.1", broker.port) as waiting:
        first = waiting.send(
            ApiKey.FETCH, 12, fetch_request(12, [partition_request(topic.name, 0, 0)], max_wait_ms=LONG_MS)
        )
        second = waiting.send(ApiKey.FETCH, 4, fetch_request(4, [partition_request(topic.name, 0, 0)]))
        barrier(broker)
        stored = topic.produce()
        assert parts_of(waiting.receive(ApiKey.FETCH, 12, first))[0].records == stored
        assert parts_of(waiting.receive(ApiKey.FETCH, 4, second))[0].records == stored


def test_a_broker_stops_while_fetches_wait(tmp_path: Path) -> None:
    with SmallBroker(tmp_path) as broker:
        broker.create_topic("t", 2)
        waiting = [WireClient("127.0.0.1", broker.port) for _ in range(10)]
        parts = [partition_request("t", each, 0) for each in range(2)]
        for each in waiting:
            each.send(ApiKey.FETCH, 12, fetch_request(12, parts, max_wait_ms=LONG_MS, session_epoch=0))
        barrier(broker)
        assert broker.waiting_fetches("t", 1) == 10
    for each in waiting:
        assert each.is_closed()
        each.close()


# --- sessions ---------------------------------------------------------------------------------------


def test_who_gets_a_slot_of_the_session_cache(tmp_path: Path) -> None:
    with (
        SmallBroker(tmp_path, session_slots=2, min_eviction_ms=1000) as broker,
        WireClient("127.0.0.1", broker.port) as client,
    ):
        broker.advance_ms(0)
        name = broker.new_name()
        broker.create_topic(name, 3)

        def new_session(size: int) -> int:
            request = fetch_request(12, [partition_request(name, each, 0) for each in range(size)], session_epoch=0)
            return int(client.call(ApiKey.FETCH, 12, request).session_id)

        def use(session_id: int, epoch: int) -> int:
            request = fetch_request(12, [], session_id=session_id, session_epoch=epoch)
            return int(client.call(ApiKey.FETCH, 12, request).error_code)

        first, second = new_session(2), new_session(2)
        assert new_session(3) == 0, "young sessions stay"
        broker.advance_ms(1001)
        assert use(first, 1) == use(second, 1) == 0
        assert new_session(2) == 0, "one of the same size is worth no more"
        third = new_session(3)
        assert third, "a larger one takes the place of one that has had its time"
        assert {use(first, 2), use(second, 2)} == {0, ErrorCode.FETCH_SESSION_ID_NOT_FOUND}
        assert broker.sessions.counts() == (2, 5, 1)
        broker.advance_ms(500)
        assert use(third, 1) == 0
        broker.advance_ms(501)
        assert new_session(1), "one that was not used for long goes first"
        assert use(third, 2) == 0
        assert broker.sessions.counts() == (2, 4, 2)


class SessionMaker:
    """A client on one host that makes and uses fetch sessions."""

    def __init__(self, broker: SmallBroker, host: str):
        self.name = broker.new_name()
        self.client = WireClient("127.0.0.1", broker.port, source=(host, 0))

    def make(self, size: int = 1) -> int:
        """Make a session; return its id, 0 if there is none."""
        request = fetch_request(12, [partition_request(self.name, each, 0) for each in range(size)], session_epoch=0)
        return int(self.client.call(ApiKey.FETCH, 12, request).session_id)

    def use(self, session_id: int, epoch: int = 1, grows_to: int = 0) -> int:
        parts = [partition_request(self.name, each, 0) for each in range(grows_to)]
        request = fetch_request(12, parts, session_id=session_id, session_epoch=epoch)
        return int(self.client.call(ApiKey.FETCH, 12, request).error_code)


def test_a_host_with_more_than_half_of_the_sessions_gives_to_the_others_and_takes_only_its_own(tmp_path: Path) -> None:
    with SmallBroker(tmp_path, session_slots=5, min_eviction_ms=1000) as broker:
        broker.advance_ms(0)
        greedy, modest = SessionMaker(broker, "127.0.0.2"), SessionMaker(broker, "127.0.0.3")
        with greedy.client, modest.client:
            made = [greedy.make(2) for _ in range(5)]
            assert all(made) and greedy.make(2) == 0
            broker.advance_ms(1)
            assert all(greedy.use(each) == 0 for each in made[1:])
            of_modest = modest.make()
            assert of_modest, "all of the greedy host's are young: the one that was silent for longest goes"
            assert greedy.use(made[0]) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
            broker.advance_ms(1001)
            assert modest.use(of_modest) == 0
            assert all(greedy.use(each, 2) == 0 for each in made[1:])
            assert greedy.make(3), "a larger one takes the place of a smaller one,"
            assert modest.use(of_modest, 2) == 0, "but of its own"
            assert modest.make(), "the greedy host has four"
            assert modest.make(1) == 0, "three is half, rounded up"


def test_a_host_with_more_than_half_of_the_partitions_in_sessions_gives_to_the_others(tmp_path: Path) -> None:
    with SmallBroker(tmp_path, session_slots=10) as broker:
        greedy, modest = SessionMaker(broker, "127.0.0.2"), SessionMaker(broker, "127.0.0.3")
        with greedy.client, modest.client:
            of_modest = modest.make()
            made = greedy.make(5001), greedy.make(4998)
            assert all(made) and broker.sessions.counts()[1] == 10_000
            assert greedy.make() == 0
            assert modest.use(of_modest, grows_to=2) == 0, "there is room for what it adds"
            assert broker.sessions.counts()[1] == 2 + 4998
            assert [greedy.use(each) for each in made] == [ErrorCode.FETCH_SESSION_ID_NOT_FOUND, 0]
            assert greedy.make(5000) and broker.sessions.counts()[1] == 10_000
            assert modest.make(2), "and for another session of it"


def test_a_session_that_is_evicted_while_its_fetch_waits_answers_all_the_same(tmp_path: Path) -> None:
    with (
        SmallBroker(tmp_path, session_slots=1, min_eviction_ms=-1) as broker,
        WireClient("127.0.0.1", broker.port) as client,
        WireClient("127.0.0.1", broker.port) as other,
    ):
        topic = Topic(broker, other)
        request = fetch_request(12, [partition_request(topic.name, 0, 0)], session_epoch=0)
        session_id = client.call(ApiKey.FETCH, 12, request).session_id
        asked = client.send(
            ApiKey.FETCH, 12, fetch_request(12, [], session_id=session_id, session_epoch=1, max_wait_ms=LONG_MS)
        )
        barrier(broker)
        assert other.call(ApiKey.FETCH, 12, request).session_id not in (0, session_id)
        assert broker.sessions.counts() == (1, 1, 1)
        stored = topic.produce()
        assert parts_of(client.receive(ApiKey.FETCH, 12, asked))[0].records == stored
        gone = client.call(ApiKey.FETCH, 12, fetch_request(12, [], session_id=session_id, session_epoch=2))
        assert gone.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_a_session_that_went_on_elsewhere_refuses_the_fetch_that_waits(broker: SmallBroker, client: WireClient) -> None:
    topic = Topic(broker, client, 2)
    request = fetch_request(12, [partition_request(topic.name, each, 0) for each in range(2)], session_epoch=0)
    session_id = client.call(ApiKey.FETCH, 12, request).session_id
    with WireClient("127.0.0.1", broker.port) as waiting:
        asked = waiting.send(
            ApiKey.FETCH, 12, fetch_request(12, [], session_id=session_id, session_epoch=1, max_wait_ms=LONG_MS)
        )
        barrier(broker)
        forget = fetch_request(12, [], [(topic.name, 1)], session_id=session_id, session_epoch=2)
        assert client.call(ApiKey.FETCH, 12, forget).error_code == 0
        topic.produce(1)
        refused = waiting.receive(ApiKey.FETCH, 12, asked)
        assert (refused.error_code, refused.session_id) == (ErrorCode.INVALID_FETCH_SESSION_EPOCH, session_id)


def test_a_session_is_not_looked_at_while_another_request_changes_it(broker: SmallBroker, client: WireClient) -> None:
    """A fetch waits while the next one of its session, still being prepared, has changed the session already."""
    topic, closed = Topic(broker, client, 2), Topic(broker, client)
    request = fetch_request(12, [partition_request(topic.name, each, 0) for each in range(2)], session_epoch=0)
    session_id = client.call(ApiKey.FETCH, 12, request).session_id
    with WireClient("127.0.0.1", broker.port) as waiting, WireClient("127.0.0.1", broker.port) as other:
        asked = waiting.send(
            ApiKey.FETCH, 12, fetch_request(12, [], session_id=session_id, session_epoch=1, max_wait_ms=LONG_MS)
        )
        barrier(broker)
        with broker.held_closed(closed.name, 0):
            added = [partition_request(closed.name, 0, 0)]
            change = fetch_request(12, added, [(topic.name, 1)], session_id=session_id, session_epoch=2)
            changing = other.send(ApiKey.FETCH, 12, change)
            barrier(broker)
            topic.produce(1)
            refused = waiting.receive(ApiKey.FETCH, 12, asked)
            assert refused.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
        assert other.receive(ApiKey.FETCH, 12, changing).error_code == 0


def test_partitions_that_had_data_are_answered_last(broker: SmallBroker, client: WireClient) -> None:
    """So a limit does not starve the partitions at the end."""
    topic = Topic(broker, client, 3)
    parts = [partition_request(topic.name, each, 0) for each in range(3)]
    session_id = client.call(ApiKey.FETCH, 12, fetch_request(12, parts, session_epoch=0)).session_id
    topic.produce(1)
    order = []
    for epoch in range(1, 4):
        request = fetch_request(12, [], session_id=session_id, session_epoch=epoch)
        order.append([part.partition_index for part in parts_of(client.call(ApiKey.FETCH, 12, request))])
        for partition_id in (0, 2):
            topic.produce(partition_id)
    assert order == [[1], [0, 2, 1], [0, 2, 1]]


def test_a_session_tells_of_a_partition_again_when_its_error_is_gone(broker: SmallBroker, client: WireClient) -> None:
    topic = Topic(broker, client)
    parts = [partition_request(topic.name, 0, 5)]
    session_id = client.call(ApiKey.FETCH, 12, fetch_request(12, parts, session_epoch=0)).session_id
    told = []
    for epoch, update in enumerate([[], [partition_request(topic.name, 0, 0)], []], start=1):
        request = fetch_request(12, update, session_id=session_id, session_epoch=epoch)
        answers = parts_of(client.call(ApiKey.FETCH, 12, request))
        told.append([(part.error_code, part.high_watermark) for part in answers])
    assert told == [[(ErrorCode.OFFSET_OUT_OF_RANGE, -1)], [(0, 0)], []]


def test_a_session_of_many_partitions_names_only_what_changed(broker: SmallBroker, client: WireClient) -> None:
    topics = [Topic(broker, client, 100) for _ in range(3)]
    parts = [partition_request(topic.topic_id, each, 0) for topic in topics for each in range(100)]
    response = client.call(ApiKey.FETCH, 17, fetch_request(17, parts, session_epoch=0))
    assert len(parts_of(response)) == 300
    stored = topics[1].produce(41)
    request = fetch_request(17, [], session_id=response.session_id, session_epoch=1)
    (topic,) = client.call(ApiKey.FETCH, 17, request).responses
    assert topic.topic_id == topics[1].topic_id
    assert [(part.partition_index, part.records) for part in topic.partitions] == [(41, stored)]
    forgotten = [(topic.topic_id, each) for topic in topics for each in range(100) if each % 7]
    request = fetch_request(17, [], forgotten, session_id=response.session_id, session_epoch=2)
    assert client.call(ApiKey.FETCH, 17, request).error_code == 0
    for topic in topics:
        topic.produce(7)
        topic.produce(8)
    request = fetch_request(17, [], session_id=response.session_id, session_epoch=3)
    assert [part.partition_index for part in parts_of(client.call(ApiKey.FETCH, 17, request))] == [7, 7, 7]


# --- hostile bytes ----------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [4, 7, 11, 12, 13, 15, 17])
def test_bytes_that_are_no_request_close_one_connection_at_most(
    broker: SmallBroker, client: WireClient, version: int
) -> None:
    topic = Topic(broker, client)
    topic.produce()
    key = topic.key(version)
    request = fetch_request(
        version,
        [partition_request(key, 0, 0), partition_request(key, 1, 0)],
        [(key, 1)],
        **session(version),
        max_wait_ms=0,
    )
    frame = encode_request(ApiKey.FETCH, version, 7, "c", request)
    header = frame[4 : 4 + (12 if version >= 12 else 11)]
    for name, data in mangled(frame[4:]):
        if not data.startswith(header):
            continue  # the header is the processor's; its tests are there
        with WireClient("127.0.0.1", broker.port) as hostile:
            hostile.send_raw(struct.pack(">i", len(data)) + data)
            try:
                decode_response(ApiKey.FETCH, version, hostile.read_frame())
            except ConnectionClosed:
                pass
            except KbrokerError as error:
                raise AssertionError(f"{name}: the response does not parse: {error}") from error
    assert parts_of(client.call(ApiKey.FETCH, version, fetch_request(version, [partition_request(key, 0, 0)])))[
        0
    ].records


def test_a_count_that_cannot_be_true_takes_no_memory(broker: SmallBroker) -> None:
    frame = bytearray(encode_request(ApiKey.FETCH, 11, 7, "c", fetch_request(11, [])))
    count_at = len(frame) - 4 - 4 - 2  # topics, forgotten topics, rack
    frame[count_at : count_at + 4] = struct.pack(">i", 0x7FFFFFFF)
    with WireClient("127.0.0.1", broker.port) as hostile:
        hostile.send_raw(bytes(frame))
        assert hostile.is_closed()
